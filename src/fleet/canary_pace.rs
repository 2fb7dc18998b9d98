//! The period of canaries, and the gap between canaries that counts as blind time: as configured, or as the shortest
//! timeout so far needs.
//!
//! The timeouts of kinds are known from the start. Timeouts that units declare and operators set are met when the walk
//! first reads the fleet, and with every change after that. The shortest timeout only ever gets shorter: canaries that
//! are faster than necessary do no harm. An instance of a shared subscription meets the units of its own partitions
//! only, and the fleet is heard as far as its slowest member. So instances exchange their shortest timeouts: see
//! [`super::census`].
//!
//! # Where the broker is far away
//! The number of canaries and probes under way at a time is bounded. So they go out more slowly, and gaps are longer
//! accordingly: see [`RoundTrip`]. The age of a proof may be a round trip more than a gap.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::presence::{
    Facts, Kind, KindRules, MIN_TIMEOUT, MISSING_CANARIES, RoundTrip, blind_gap, canary_period,
    least_canary_period, least_probe_period, probe_gap, probe_period,
};

/// The pace of canaries and probes.
#[derive(Debug)]
pub struct CanaryPace {
    /// The configured gap, or the gap that follows from the configured kinds.
    gap: Duration,
    /// Whether the pace follows the shortest timeout.
    follows: bool,
    /// The shortest timeouts that this instance met.
    met: RwLock<Shortest>,
    /// The shortest timeouts that other instances met.
    elsewhere: RwLock<Shortest>,
    /// The round trips of the connections of this process, by client id.
    round_trips: RwLock<HashMap<String, RoundTrip>>,
    /// How many filters are probed.
    filters: AtomicUsize,
}

/// The shortest timeouts of kinds.
type Shortest = HashMap<Kind, Duration>;

impl CanaryPace {
    /// A pace that does not change.
    pub fn fixed(gap: Duration) -> CanaryPace {
        CanaryPace {
            gap,
            follows: false,
            met: RwLock::default(),
            elsewhere: RwLock::default(),
            round_trips: RwLock::default(),
            filters: AtomicUsize::default(),
        }
    }

    /// A pace that follows the shortest timeout.
    pub fn following(gap: Duration) -> CanaryPace {
        CanaryPace { follows: true, ..CanaryPace::fixed(gap) }
    }

    /// Notes the timeout of a unit that is watched.
    pub fn met(&self, facts: &Facts, rules: &KindRules) {
        if facts.declared_timeout.is_none() && facts.set.timeout.is_none() {
            return;
        }
        let timeout = facts.policy(rules).timeout.max(MIN_TIMEOUT);
        if self.shortest_of(rules) > timeout {
            self.met_timeout(&rules.kind, timeout);
        }
    }

    /// Notes a timeout of units of that kind.
    pub fn met_timeout(&self, kind: &Kind, timeout: Duration) {
        let timeout = timeout.max(MIN_TIMEOUT);
        let mut met = self.met.write().unwrap_or_else(PoisonError::into_inner);
        let shortest = met.entry(kind.clone()).or_insert(timeout);
        *shortest = timeout.min(*shortest);
    }

    /// The shortest timeout of that kind that this instance met.
    pub fn met_of(&self, kind: &Kind) -> Option<Duration> {
        read(&self.met).get(kind).copied()
    }

    /// Replaces the shortest timeouts of other instances.
    pub fn met_elsewhere(&self, shortest: impl IntoIterator<Item = (Kind, Duration)>) {
        let mut elsewhere = Shortest::new();
        for (kind, timeout) in shortest {
            let timeout = timeout.max(MIN_TIMEOUT);
            let shortest = elsewhere.entry(kind).or_insert(timeout);
            *shortest = timeout.min(*shortest);
        }
        *self.elsewhere.write().unwrap_or_else(PoisonError::into_inner) = elsewhere;
    }

    /// Notes that a canary of that client came back at `now`.
    pub fn canary_returned(&self, client_id: &str, sent: Timestamp, now: Timestamp) {
        let mut trips = self.round_trips.write().unwrap_or_else(PoisonError::into_inner);
        trips.entry(client_id.to_owned()).or_default().returned(sent, now);
    }

    /// Adds to the number of probed filters.
    pub fn probes(&self, filters: usize) {
        self.filters.fetch_add(filters, Ordering::Relaxed);
    }

    /// How long canaries take to the broker and back, on the slowest connection of this process.
    pub fn round_trip(&self) -> Duration {
        let trips = self.round_trips.read().unwrap_or_else(PoisonError::into_inner);
        trips.values().map(RoundTrip::length).max().unwrap_or_default()
    }

    /// Two canaries further apart than this enclose a blind interval.
    pub fn gap(&self) -> Duration {
        let gap = self.shortest().map_or(self.gap, |shortest| self.gap.min(blind_gap(shortest)));
        gap.max(MISSING_CANARIES * least_canary_period(self.round_trip()))
    }

    /// How old the newest proof may be: a gap and a round trip.
    pub fn most_age(&self) -> Duration {
        self.gap() + self.round_trip()
    }

    /// The time between two canaries. `configured`: the period of the configuration or of the configured kinds.
    pub fn period(&self, configured: Duration) -> Duration {
        let period = self.shortest().map_or(configured, |shortest| configured.min(canary_period(shortest)));
        period.max(least_canary_period(self.round_trip()))
    }

    /// The time between two probes of a filter of that kind, if canaries are as fast.
    pub fn probe_period(&self, rules: &KindRules) -> Duration {
        let filters = self.filters.load(Ordering::Relaxed).max(1);
        probe_period(self.shortest_of(rules)).max(least_probe_period(self.round_trip(), filters))
    }

    /// Two probes of a filter of that kind further apart than this enclose a blind interval of the kind.
    pub fn probe_gap(&self, rules: &KindRules) -> Duration {
        probe_gap(self.probe_period(rules), self.gap())
    }

    /// The shortest timeout of a unit of that kind, or the timeout of the kind.
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
    use crate::presence::Lifecycle;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_shortest_timeout_that_is_met_sets_the_pace_unless_it_is_configured() {
        let rules = KindRules::new("detector".parse().unwrap());
        let mut facts = Facts::new(Lifecycle::Present, Timestamp::ZERO);
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
        // A declared timeout that the kind does not accept does not count.
        let deaf = KindRules { accept_timeout: false, ..rules.clone() };
        facts.declared_timeout = Some(SECOND);
        following.met(&facts, &deaf);
        assert_eq!(following.period(SECOND), fast.0);
        // A timeout of another instance counts as long as that instance announces it.
        let met = |timeout: Duration| [(rules.kind.clone(), timeout)];
        following.met_elsewhere(met(SECOND));
        fixed.met_elsewhere(met(SECOND));
        assert_eq!(following.period(SECOND), Duration::from_millis(50));
        assert_eq!((fixed.period(SECOND), following.met_of(&rules.kind)), (SECOND, Some(2 * SECOND)));
        following.met_elsewhere([]);
        assert_eq!(following.period(SECOND), fast.0);
    }

    #[test]
    fn a_far_broker_makes_the_pace_slower_and_proofs_older() {
        let rules = KindRules::new("detector".parse().unwrap());
        let pace = CanaryPace::following(3 * SECOND);
        pace.met_timeout(&rules.kind, SECOND);
        pace.probes(3);
        let ms = Duration::from_millis;
        let now = |pace: &CanaryPace| {
            (
                pace.period(SECOND),
                pace.gap(),
                pace.most_age(),
                pace.probe_period(&rules),
                pace.probe_gap(&rules),
            )
        };
        assert_eq!(now(&pace), (ms(50), ms(500), ms(500), ms(50), ms(550)));
        pace.canary_returned("near", Timestamp::ZERO, Timestamp::from_millis(8));
        assert_eq!(now(&pace), (ms(50), ms(500), ms(508), ms(50), ms(550)));
        pace.canary_returned("far", Timestamp::ZERO, Timestamp::from_millis(8000));
        assert_eq!(now(&pace), (ms(1000), ms(3000), ms(11_000), ms(2000), ms(6000)));
    }
}
