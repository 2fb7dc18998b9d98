//! Pauses of the past, from the changes that operators made. The facts of a unit have its last pause only; each pause
//! that an operator sets or ends is in the audit.

use std::collections::HashMap;

use crate::clock::{Timestamp, parse_moment};
use crate::presence::Interval;
use crate::store::{AuditEntry, Audited};

/// A pause of a unit, by its kind and id.
pub type UnitPause = ((String, String), Interval);

/// The pauses that changes from `since` on begin or end; changes come in the order of time. A pause lasts until another
/// one of its unit begins at the latest.
pub fn past_pauses<'a>(entries: impl Iterator<Item = &'a AuditEntry>, since: Timestamp) -> Vec<UnitPause> {
    let (mut pauses, mut last) = (Vec::<(UnitPause, bool)>::new(), HashMap::new());
    for entry in entries {
        let until = match entry.change {
            Audited::Paused => until(&entry.text),
            Audited::PauseEnded | Audited::Removed => None,
            _ => continue,
        };
        let Some(unit) = entry.unit() else { continue };
        if let Some(before) = last.remove(&unit) {
            let ((_, pause), is_new): &mut (UnitPause, bool) = &mut pauses[before];
            *is_new |= entry.at < pause.to && entry.at >= since;
            pause.to = pause.to.min(entry.at);
        }
        if let Some(to) = until {
            last.insert(unit.clone(), pauses.len());
            pauses.push(((unit, Interval { from: entry.at, to }), entry.at >= since));
        }
    }
    let new = pauses.into_iter().filter(|((_, pause), is_new)| *is_new && pause.from < pause.to);
    new.map(|(pause, _)| pause).collect()
}

/// Reads `until <moment>: <comment>`.
fn until(text: &str) -> Option<Timestamp> {
    parse_moment(text.strip_prefix("until ")?.split_once(": ")?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000 + minute * 60_000)
    }

    #[test]
    fn a_pause_lasts_until_it_is_ended_or_another_one_begins() {
        let entry = |minute: i64, subject: &str, change: Audited, until: i64| AuditEntry {
            at: at(minute),
            author: "ana".to_owned(),
            change,
            subject: subject.to_owned(),
            text: if until > 0 { format!("until {}: works: all day", at(until)) } else { "over".to_owned() },
        };
        use Audited::{Acknowledged, PauseEnded, Paused, Removed};
        type Change = (i64, &'static str, Audited, i64);
        type Case<'a> = (&'a str, &'a [Change], i64, &'a [(&'a str, i64, i64)]);
        let cases: [Case<'_>; 8] = [
            ("set and over", &[(1, "pump/a", Paused, 5)], 0, &[("a", 1, 5)]),
            ("ended", &[(1, "pump/a", Paused, 9), (3, "pump/a", PauseEnded, 0)], 0, &[("a", 1, 3)]),
            (
                "set, ended and set again",
                &[(1, "pump/a", Paused, 9), (3, "pump/a", PauseEnded, 0), (5, "pump/a", Paused, 7)],
                0,
                &[("a", 1, 3), ("a", 5, 7)],
            ),
            (
                "changed",
                &[(1, "pump/a", Paused, 9), (3, "pump/a", Paused, 5)],
                0,
                &[("a", 1, 3), ("a", 3, 5)],
            ),
            ("removed", &[(1, "pump/a", Paused, 9), (3, "pump/a", Removed, 0)], 0, &[("a", 1, 3)]),
            ("of others", &[(1, "pump/a", Paused, 9), (3, "pump/b", PauseEnded, 0)], 0, &[("a", 1, 9)]),
            (
                "by record",
                &[(1, "pump:a:17", Paused, 9), (2, "pump:a:17", Acknowledged, 0)],
                0,
                &[("a", 1, 9)],
            ),
            (
                "written before",
                &[(1, "pump/a", Paused, 9), (2, "pump/b", Paused, 4), (5, "pump/a", PauseEnded, 0)],
                3,
                &[("a", 1, 5)],
            ),
        ];
        for (name, changes, since, expected) in cases {
            let entries: Vec<AuditEntry> = changes
                .iter()
                .map(|(minute, unit, change, until)| entry(*minute, unit, *change, *until))
                .collect();
            let pause = |(unit, from, to): &(&str, i64, i64)| {
                (("pump".to_owned(), (*unit).to_owned()), Interval { from: at(*from), to: at(*to) })
            };
            let expected: Vec<UnitPause> = expected.iter().map(pause).collect();
            assert_eq!(past_pauses(entries.iter(), at(since)), expected, "{name}");
        }
    }
}
