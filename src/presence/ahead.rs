//! Stored moments of the future: nobody was heard then.
//!
//! A clock that was wrong, a hand or a restore may leave an expiry key that says the year 2100. Believed, its unit
//! could be silent until then. So a unit that is said to have been heard later than clocks may differ counts as heard
//! now: no living unit is called offline for it, and a dead one is found one timeout later at the most.
//!
//! # Why it is not named unless it is a day ahead
//! When the clock of a fleet is set back by an hour, whatever was heard in that hour lies ahead of it, of every unit
//! at once. That is no damage, and is right again with the next heartbeat of each.

use std::time::Duration;

use super::{Change, Facts, IndexChange, KeyChange, KindRules, Snapshot};
use crate::clock::Timestamp;

/// How far clocks may differ: as for the times that devices tell.
const AHEAD: Duration = Duration::from_secs(300);

/// Further than a clock is set by hand, a time zone included.
const NAMED: Duration = Duration::from_secs(86_400);

/// The unit as it is believed, if it is stored as heard in the future.
pub fn believed(seen: &Snapshot, now: Timestamp) -> Option<Snapshot> {
    let is_ahead = |at: Timestamp| at > now + AHEAD;
    let facts = seen.facts.as_ref();
    let of_facts = facts.is_some_and(|facts| moments(facts).any(is_ahead));
    if !of_facts && !seen.alive.is_some_and(is_ahead) {
        return None;
    }
    let facts = facts.map(|facts| Facts {
        last_seen: facts.last_seen.min(now),
        silent_from: facts.silent_from.map(|from| from.min(now)),
        looked_at: facts.looked_at.map(|at| at.min(now)),
        ..facts.clone()
    });
    Some(Snapshot { alive: seen.alive.map(|at| at.min(now)), facts, ..seen.clone() })
}

/// The stored moment to name, if it lies too far ahead for a clock that was set.
pub fn odd_moment(seen: &Snapshot, now: Timestamp) -> Option<Timestamp> {
    let latest = seen.facts.iter().flat_map(moments).chain(seen.alive).max()?;
    (latest > now + NAMED).then_some(latest)
}

/// What a look changes that was made from what is `believed`: a key that stays would be believed again.
pub fn as_believed(change: Change, believed: &Snapshot, rules: &KindRules) -> Change {
    let Change { key: KeyChange::Keep, index: IndexChange::LookAt(_), facts: Some(facts), .. } = &change
    else {
        return change;
    };
    let Some(last_seen) = believed.alive else { return change };
    let ttl = facts.policy(rules).allowed();
    Change { key: KeyChange::Set { last_seen, ttl }, ..change }
}

fn moments(facts: &Facts) -> impl Iterator<Item = Timestamp> {
    [Some(facts.last_seen), facts.silent_from, facts.looked_at].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::Standing;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn seen(alive: Option<Timestamp>, last_seen: Timestamp) -> Snapshot {
        let unit = "detector:a".parse().unwrap();
        Snapshot { unit, alive, facts: Some(Facts::new(Standing::Present, last_seen)), stored: None }
    }

    #[test]
    fn what_lies_further_ahead_than_clocks_differ_was_heard_now() {
        let (minute, hour, year) = (60, 3600, 365 * 86_400);
        for (ahead, is_believed, is_named) in [
            (0, true, false),
            (5 * minute, true, false),
            (6 * minute, false, false),
            (hour, false, false),
            (year, false, true),
        ] {
            let at = NOW + Duration::from_secs(ahead);
            for seen in [seen(Some(at), NOW), seen(None, at), seen(Some(at), at)] {
                let believed = believed(&seen, NOW);
                assert_eq!(believed.is_none(), is_believed, "{ahead} s ahead");
                assert_eq!(odd_moment(&seen, NOW).is_some(), is_named, "{ahead} s ahead");
                if let Some(believed) = believed {
                    assert_eq!(believed.alive, seen.alive.map(|_| NOW));
                    assert_eq!(believed.facts.unwrap().last_seen, NOW);
                }
            }
        }
    }
}
