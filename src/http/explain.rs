//! Why a unit is in its state, in one sentence.

use std::time::Duration;

use super::units::UnitView;
use crate::clock::Timestamp;
use crate::presence::State;

/// Why the unit is in its state.
pub(super) fn sentence(view: &UnitView, now: Timestamp) -> String {
    let heard = match view.last_seen {
        Some(seen) => format!("It was last heard {} ago", span(now.since(seen))),
        None => "It was never heard".to_owned(),
    };
    let timeout = span(Duration::from_secs_f64(view.timeout_seconds));
    let until_offline = view.deadline.filter(|deadline| *deadline > now).map_or(String::new(), |deadline| {
        format!(" It is offline in {} if it stays silent.", span(deadline.since(now)))
    });
    match view.state {
        State::Online => format!("{heard}, within its timeout of {timeout}.{until_offline}"),
        State::Late => {
            format!("{heard}, longer ago than its timeout of {timeout}; its grace is not over.")
        }
        State::Offline => match &view.record {
            Some(record) => {
                format!("{heard}. Its deadline passed {} ago.", span(now.since(record.deadline)))
            }
            None => format!("{heard}, and its deadline has passed."),
        },
        State::NeverSeen => format!("It is registered and was never heard.{until_offline}"),
        State::Paused => match view.paused_until {
            Some(until) => {
                let rest = span(until.since(now));
                format!("{heard}. It is paused for another {rest}: its silence does not count.")
            }
            None => format!("{heard}. It declared a planned silence (sleep)."),
        },
        State::Unknown => {
            format!("{heard}. Its deadline has passed, but Rollcall has no proof of hearing up to it yet.")
        }
    }
}

/// A span in its two largest units.
pub(super) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let (large, small) = match seconds {
        0..60 => return format!("{seconds} s"),
        60..3600 => ((seconds / 60, "min"), (seconds % 60, "s")),
        3600..86_400 => ((seconds / 3600, "h"), (seconds / 60 % 60, "min")),
        _ => ((seconds / 86_400, "d"), (seconds / 3600 % 24, "h")),
    };
    match small.0 {
        0 => format!("{} {}", large.0, large.1),
        rest => format!("{} {} {} {}", large.0, large.1, rest, small.1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_written_in_their_two_largest_units() {
        let cases = [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (61, "1 min 1 s"),
            (3600, "1 h"),
            (86_399, "23 h 59 min"),
            (90_000, "1 d 1 h"),
        ];
        for (seconds, written) in cases {
            assert_eq!(span(Duration::from_secs(seconds)), written);
        }
    }
}
