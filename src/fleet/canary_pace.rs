//! How often canaries go out and how large a hole between them is blind time: as configured, or as the shortest
//! timeout wants it that was met so far.
//!
//! Kinds are known from the start. What units declare and operators set is met with the first look at the fleet
//! and with every change after that. It only ever gets shorter: an instance that goes on proving faster than it
//! must harms nothing. An instance that shares a subscription meets the units of its own partitions, and the fleet is
//! heard as far as its slowest member: so instances tell each other what they met, see [`super::census`].

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use crate::presence::{
    Facts, Kind, KindRules, SHORTEST_TIMEOUT, blind_gap, canary_period, probe_gap, probe_period,
};

/// The pace of the proof of hearing.
#[derive(Debug)]
pub struct CanaryPace {
    /// What was configured, or follows from the configured kinds.
    gap: Duration,
    /// Whether it follows the shortest timeout that is met.
    follows: bool,
    /// The shortest timeout of each kind that was met.
    met: RwLock<Shortest>,
    /// And what other instances met.
    elsewhere: RwLock<Shortest>,
}

/// The shortest timeouts of kinds.
type Shortest = HashMap<Kind, Duration>;

impl CanaryPace {
    /// A pace that stays.
    pub fn fixed(gap: Duration) -> CanaryPace {
        CanaryPace { gap, follows: false, met: RwLock::default(), elsewhere: RwLock::default() }
    }

    /// One that follows the shortest timeout that is met.
    pub fn following(gap: Duration) -> CanaryPace {
        CanaryPace { follows: true, ..CanaryPace::fixed(gap) }
    }

    /// A unit with these facts is watched.
    pub fn met(&self, facts: &Facts, rules: &KindRules) {
        if facts.declared_timeout.is_none() && facts.set.timeout.is_none() {
            return;
        }
        let timeout = facts.policy(rules).timeout.max(SHORTEST_TIMEOUT);
        if self.shortest_of(rules) > timeout {
            let mut met = self.met.write().unwrap_or_else(PoisonError::into_inner);
            let shortest = met.entry(rules.kind.clone()).or_insert(timeout);
            *shortest = timeout.min(*shortest);
        }
    }

    /// The shortest timeout of that kind that this instance met.
    pub fn met_of(&self, kind: &Kind) -> Option<Duration> {
        read(&self.met).get(kind).copied()
    }

    /// Other instances met these, and none that they said before.
    pub fn met_elsewhere(&self, shortest: impl IntoIterator<Item = (Kind, Duration)>) {
        let mut elsewhere = Shortest::new();
        for (kind, timeout) in shortest {
            let timeout = timeout.max(SHORTEST_TIMEOUT);
            let shortest = elsewhere.entry(kind).or_insert(timeout);
            *shortest = timeout.min(*shortest);
        }
        *self.elsewhere.write().unwrap_or_else(PoisonError::into_inner) = elsewhere;
    }

    /// Two canaries further apart than this enclose a blind interval.
    pub fn gap(&self) -> Duration {
        self.shortest().map_or(self.gap, |shortest| self.gap.min(blind_gap(shortest)))
    }

    /// The time between two canaries, where `configured` is that of the kinds or of the configuration.
    pub fn period(&self, configured: Duration) -> Duration {
        self.shortest().map_or(configured, |shortest| configured.min(canary_period(shortest)))
    }

    /// How often it is proved that the filters of a kind are heard, if canaries are as fast.
    pub fn probe_period(&self, rules: &KindRules) -> Duration {
        probe_period(self.shortest_of(rules))
    }

    /// Two probes of a filter of that kind further apart than this enclose a blind interval of the kind.
    pub fn probe_gap(&self, rules: &KindRules) -> Duration {
        probe_gap(self.shortest_of(rules), self.gap())
    }

    /// The shortest timeout of that kind that was met, or its own.
    pub fn shortest_of(&self, rules: &KindRules) -> Duration {
        let elsewhere = read(&self.elsewhere).get(&rules.kind).copied();
        let met = self.met_of(&rules.kind).into_iter().chain(elsewhere);
        met.chain([rules.policy.timeout]).min().unwrap_or_default()
    }

    fn shortest(&self) -> Option<Duration> {
        let (met, elsewhere) = (read(&self.met), read(&self.elsewhere));
        met.values().chain(elsewhere.values()).min().copied().filter(|_| self.follows)
    }
}

fn read(shortest: &RwLock<Shortest>) -> RwLockReadGuard<'_, Shortest> {
    shortest.read().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::presence::Standing;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_shortest_timeout_that_is_met_sets_the_pace_unless_it_is_configured() {
        let rules = KindRules::new("detector".parse().unwrap());
        let mut facts = Facts::new(Standing::Present, Timestamp::ZERO);
        let (following, fixed) = (CanaryPace::following(3 * SECOND), CanaryPace::fixed(3 * SECOND));
        let paces = |declared: Option<Duration>, facts: &mut Facts| {
            facts.declared_timeout = declared;
            [&following, &fixed].map(|pace| {
                pace.met(facts, &rules);
                (pace.period(SECOND), pace.gap())
            })
        };
        let slow = (SECOND, 3 * SECOND);
        assert_eq!(paces(None, &mut facts), [slow, slow]);
        let fast = (Duration::from_millis(100), Duration::from_millis(500));
        assert_eq!(paces(Some(2 * SECOND), &mut facts), [fast, slow]);
        assert_eq!(paces(Some(600 * SECOND), &mut facts), [fast, slow], "it stays as fast as it was");
        // What does not count is not met.
        let deaf = KindRules { accept_timeout: false, ..rules.clone() };
        facts.declared_timeout = Some(SECOND);
        following.met(&facts, &deaf);
        assert_eq!(following.period(SECOND), fast.0);
        // What another instance met counts as long as it says so.
        let met = |timeout: Duration| [(rules.kind.clone(), timeout)];
        following.met_elsewhere(met(SECOND));
        fixed.met_elsewhere(met(SECOND));
        assert_eq!(following.period(SECOND), Duration::from_millis(50));
        assert_eq!((fixed.period(SECOND), following.met_of(&rules.kind)), (SECOND, Some(2 * SECOND)));
        following.met_elsewhere([]);
        assert_eq!(following.period(SECOND), fast.0);
    }
}
