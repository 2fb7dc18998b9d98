//! Why a unit is in its state, in one sentence.

use std::time::Duration;

use super::units::UnitDetails;
use crate::clock::{Timestamp, shown_span as span};
use crate::presence::{Cause, State};

/// A kind whose last proof of hearing is older than this counts as not heard: a canary takes seconds at most.
const BEHIND: Duration = Duration::from_secs(10);

/// Why the unit is in its state. `proved`: up to when its kind was heard, at the broker that heard the unit last.
pub(super) fn sentence(view: &UnitDetails, proved: Option<Timestamp>, now: Timestamp) -> String {
    let heard = match view.last_seen {
        Some(seen) => {
            let at = view.broker.as_ref().map(|broker| format!(" at broker {broker}"));
            format!("It was last heard {} ago{}", span(now.since(seen)), at.unwrap_or_default())
        }
        None => "It was never heard".to_owned(),
    };
    let timeout = span(Duration::from_secs_f64(view.timeout_seconds));
    let until_offline = view.deadline.filter(|deadline| *deadline > now).map_or(String::new(), |deadline| {
        match proved.filter(|proved| now.since(*proved) > BEHIND) {
            Some(proved) => {
                let there = if view.broker.is_some() { " there" } else { "" };
                format!(
                    " Rollcall hears nothing of its kind{there} since {proved}: that time does not count as silence."
                )
            }
            None => format!(" It is offline in {} if it stays silent.", span(deadline.since(now))),
        }
    });
    if let (Some(cause), Some(at)) = (view.late_cause, view.announced_at) {
        let rest = if until_offline.is_empty() {
            " Rollcall has no proof of hearing up to now yet.".to_owned()
        } else {
            until_offline
        };
        return format!("{heard}. {} {} ago.{rest}", announced(cause), span(now.since(at)));
    }
    match view.state {
        State::Online => format!("{heard}, within its timeout of {timeout}.{until_offline}"),
        State::Late => {
            format!("{heard}, longer ago than its timeout of {timeout}; its grace is not over.")
        }
        State::Offline => match &view.record {
            Some(record) if record.cause.is_announced() => {
                let offline = span(now.since(record.deadline));
                let why = announced(record.cause);
                format!("{heard}. {why}, and nothing came from it since: it has been offline for {offline}.")
            }
            Some(record) => {
                format!("{heard}. Its deadline passed {} ago.", span(now.since(record.deadline)))
            }
            None => format!("{heard}, and its deadline has passed."),
        },
        State::NeverSeen => format!("It is registered and was never heard.{until_offline}"),
        State::Paused => format!("{heard}. {}", paused(view, now)),
        State::Unknown => {
            format!("{heard}. Its deadline has passed, but Rollcall has no proof of hearing up to it yet.")
        }
    }
}

/// The sentence about the rhythm of a unit that is not offline.
pub(super) fn rhythm_of(view: &UnitDetails, now: Timestamp) -> Option<String> {
    if !matches!(view.state, State::Online | State::Late) {
        return None;
    }
    view.rhythm.as_ref()?.sentence(now.since(view.last_seen?))
}

/// Why the silence of the unit does not count.
fn paused(view: &UnitDetails, now: Timestamp) -> String {
    let rest = |until: Timestamp| span(until.since(now));
    let said = "It said that it would be silent: that does not count until it is heard again";
    match (view.paused_until, view.sleeps_until) {
        (Some(until), _) => format!("It is paused for another {}: its silence does not count.", rest(until)),
        (None, Some(until)) => format!("{said}, for another {} at most.", rest(until)),
        (None, None) => format!("{said}."),
    }
}

/// An announcement, in words.
pub(super) fn announced(cause: Cause) -> &'static str {
    match cause {
        Cause::LastWill => "Its last will was published",
        Cause::NodeDeath => "The death of its Sparkplug node was published",
        Cause::Disconnected => "It was reported as disconnected",
        Cause::Silence | Cause::NeverSeen | Cause::Flapping | Cause::Unusual => "It fell silent",
    }
}
