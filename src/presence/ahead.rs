//! Stored moments that lie in the future.
//!
//! A wrong clock, a manual change or a restore may leave an expiry key with a moment in the year 2100. Until then the
//! unit could be silent without a record. So a moment that is further ahead than clocks may differ counts as now:
//! no living unit is offline for it, and a dead unit is found at most one timeout later.
//!
//! # Why a moment is not reported unless it is a day ahead
//! When the clock of a fleet is set back by an hour, every heartbeat of that hour lies ahead of the clock, for all
//! units at once. That is no damage: the next heartbeat of each unit corrects it.

use std::time::Duration;

use super::{Change, Facts, IndexChange, KeyChange, KindRules, Known, Snapshot};
use crate::clock::Timestamp;

/// How far clocks may differ; the same as for the timestamps of devices.
const TOLERANCE: Duration = Duration::from_secs(300);

/// A stored moment is reported if it is further ahead than this: an operator sets a clock by less, a time zone
/// included.
const REPORTED: Duration = Duration::from_secs(86_400);

/// The unit with each moment of the future replaced by `now`; `None` if there is none.
pub fn corrected(seen: &Snapshot, now: Timestamp) -> Option<Snapshot> {
    let is_ahead = |at: Timestamp| at > now + TOLERANCE;
    let facts = seen.facts.as_ref();
    let of_facts = facts.is_some_and(|facts| moments(facts).any(is_ahead));
    if !of_facts && !seen.alive.is_some_and(is_ahead) {
        return None;
    }
    let facts = facts.map(|facts| Facts {
        last_seen: facts.last_seen.min(now),
        silent_from: facts.silent_from.map(|from| from.min(now)),
        checked_at: facts.checked_at.map(|at| at.min(now)),
        known: facts.known.map(|known| Known { since: known.since.min(now), ..known }),
        ..facts.clone()
    });
    Some(Snapshot { alive: seen.alive.map(|at| at.min(now)), facts, ..seen.clone() })
}

/// The stored moment to report, if it lies too far ahead for a clock that was set.
pub fn future_moment(seen: &Snapshot, now: Timestamp) -> Option<Timestamp> {
    let latest = seen.facts.iter().flat_map(moments).chain(seen.alive).max()?;
    (latest > now + REPORTED).then_some(latest)
}

/// The change of a check of [`corrected`] facts, with the expiry key set to the corrected moment: a key that keeps the
/// future moment would be corrected at every check.
pub fn as_corrected(change: Change, corrected: &Snapshot, rules: &KindRules) -> Change {
    let Change { key: KeyChange::Keep, index: IndexChange::CheckAt(_), facts: Some(facts), .. } = &change
    else {
        return change;
    };
    let Some(last_seen) = corrected.alive else { return change };
    let ttl = facts.policy(rules).allowed();
    Change { key: KeyChange::Set { last_seen, ttl }, ..change }
}

fn moments(facts: &Facts) -> impl Iterator<Item = Timestamp> {
    [Some(facts.last_seen), facts.silent_from, facts.checked_at].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::Lifecycle;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn seen(alive: Option<Timestamp>, last_seen: Timestamp) -> Snapshot {
        let unit = "detector:a".parse().unwrap();
        Snapshot {
            unit,
            alive,
            alive_at: None,
            facts: Some(Facts::new(Lifecycle::Present, last_seen)),
            stored: None,
        }
    }

    #[test]
    fn a_moment_further_ahead_than_clocks_differ_counts_as_now() {
        let (minute, hour, year) = (60, 3600, 365 * 86_400);
        for (ahead, is_accepted, is_reported) in [
            (0, true, false),
            (5 * minute, true, false),
            (6 * minute, false, false),
            (hour, false, false),
            (year, false, true),
        ] {
            let at = NOW + Duration::from_secs(ahead);
            for seen in [seen(Some(at), NOW), seen(None, at), seen(Some(at), at)] {
                let corrected = corrected(&seen, NOW);
                assert_eq!(corrected.is_none(), is_accepted, "{ahead} s ahead");
                assert_eq!(future_moment(&seen, NOW).is_some(), is_reported, "{ahead} s ahead");
                if let Some(corrected) = corrected {
                    assert_eq!(corrected.alive, seen.alive.map(|_| NOW));
                    assert_eq!(corrected.facts.unwrap().last_seen, NOW);
                }
            }
        }
    }
}
