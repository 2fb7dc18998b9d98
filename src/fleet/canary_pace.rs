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
//! accordingly: see [`RoundTrip`]. The age of a proof may be a round trip more than a gap. Each of several brokers has
//! its own pace ([`BrokerPace`]), as far as its open connections say. The fleet as a whole, and a kind wherever it is
//! heard, are judged by the slowest.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard};

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
    /// The way to each broker, by its name.
    ways: RwLock<HashMap<String, Way>>,
}

/// The pace at one broker.
#[derive(Clone, Debug)]
pub struct BrokerPace {
    pace: Arc<CanaryPace>,
    broker: String,
}

/// The shortest timeouts of kinds.
type Shortest = HashMap<Kind, Duration>;

/// The round trips of canaries through one broker.
#[derive(Debug, Default)]
struct Way {
    /// The round trips of the open connections of this process, by client id.
    round_trips: HashMap<String, RoundTrip>,
    /// How many filters are probed there.
    filters: usize,
}

impl Way {
    /// How long canaries take to the broker and back, on its slowest connection.
    fn round_trip(&self) -> Duration {
        self.round_trips.values().map(RoundTrip::length).max().unwrap_or_default()
    }
}

impl CanaryPace {
    /// A pace that does not change.
    pub fn fixed(gap: Duration) -> CanaryPace {
        CanaryPace {
            gap,
            follows: false,
            met: RwLock::default(),
            elsewhere: RwLock::default(),
            ways: RwLock::default(),
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
        let mut met = self.met.write();
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
        *self.elsewhere.write() = elsewhere;
    }

    /// The pace at the broker of this name.
    pub fn at(self: &Arc<Self>, broker: &str) -> BrokerPace {
        BrokerPace { pace: self.clone(), broker: broker.to_owned() }
    }

    /// How long canaries take to the slowest broker and back.
    pub fn round_trip(&self) -> Duration {
        read(&self.ways).values().map(Way::round_trip).max().unwrap_or_default()
    }

    /// Two canaries further apart than this enclose a blind interval, at any broker.
    pub fn gap(&self) -> Duration {
        self.gap_over(self.round_trip())
    }

    /// Two probes of a filter of that kind further apart than this enclose a blind interval of the kind, at any broker.
    pub fn probe_gap(&self, rules: &KindRules) -> Duration {
        let ways = read(&self.ways);
        let ways = ways.values().map(|way| (way.round_trip(), way.filters));
        ways.chain([Default::default()]).map(|way| self.probe_gap_over(way, rules)).max().unwrap_or_default()
    }

    /// The shortest timeout of a unit of that kind, or the timeout of the kind.
    pub fn shortest_of(&self, rules: &KindRules) -> Duration {
        let elsewhere = read(&self.elsewhere).get(&rules.kind).copied();
        let met = self.met_of(&rules.kind).into_iter().chain(elsewhere);
        met.chain([rules.policy.timeout]).min().unwrap_or_default()
    }

    fn gap_over(&self, round_trip: Duration) -> Duration {
        let gap = self.shortest().map_or(self.gap, |shortest| self.gap.min(blind_gap(shortest)));
        gap.max(MISSING_CANARIES * least_canary_period(round_trip))
    }

    fn probe_period_over(&self, (round_trip, filters): (Duration, usize), rules: &KindRules) -> Duration {
        probe_period(self.shortest_of(rules)).max(least_probe_period(round_trip, filters.max(1)))
    }

    fn probe_gap_over(&self, way: (Duration, usize), rules: &KindRules) -> Duration {
        probe_gap(self.probe_period_over(way, rules), self.gap_over(way.0))
    }

    fn shortest(&self) -> Option<Duration> {
        let (met, elsewhere) = (read(&self.met), read(&self.elsewhere));
        met.values().chain(elsewhere.values()).min().copied().filter(|_| self.follows)
    }
}

impl BrokerPace {
    /// Notes that a canary of that client came back at `now`.
    pub fn canary_returned(&self, client_id: &str, sent: Timestamp, now: Timestamp) {
        self.change(|way| way.round_trips.entry(client_id.to_owned()).or_default().returned(sent, now));
    }

    /// Notes that the connection of that client ended: its round trip says nothing any more.
    pub fn connection_ended(&self, client_id: &str) {
        self.change(|way| way.round_trips.remove(client_id));
    }

    /// Sets the number of filters that are probed there.
    pub fn probes(&self, filters: usize) {
        self.change(|way| way.filters = filters);
    }

    /// How long canaries take to the broker and back, on the slowest connection of this process.
    pub fn round_trip(&self) -> Duration {
        self.way().0
    }

    /// Two canaries further apart than this enclose a blind interval.
    pub fn gap(&self) -> Duration {
        self.pace.gap_over(self.round_trip())
    }

    /// How old the newest proof may be: a gap and a round trip.
    pub fn most_age(&self) -> Duration {
        let round_trip = self.round_trip();
        self.pace.gap_over(round_trip) + round_trip
    }

    /// The time between two canaries. `configured`: the period of the configuration or of the configured kinds.
    pub fn period(&self, configured: Duration) -> Duration {
        let shortest = self.pace.shortest();
        let period = shortest.map_or(configured, |shortest| configured.min(canary_period(shortest)));
        period.max(least_canary_period(self.round_trip()))
    }

    /// The time between two probes of a filter of that kind, if canaries are as fast.
    pub fn probe_period(&self, rules: &KindRules) -> Duration {
        self.pace.probe_period_over(self.way(), rules)
    }

    /// Two probes of a filter of that kind further apart than this enclose a blind interval of the kind.
    pub fn probe_gap(&self, rules: &KindRules) -> Duration {
        self.pace.probe_gap_over(self.way(), rules)
    }

    /// The shortest timeout of a unit of that kind, or the timeout of the kind.
    pub fn shortest_of(&self, rules: &KindRules) -> Duration {
        self.pace.shortest_of(rules)
    }

    /// The round trip and the number of filters.
    fn way(&self) -> (Duration, usize) {
        read(&self.pace.ways).get(&self.broker).map(|way| (way.round_trip(), way.filters)).unwrap_or_default()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Way) -> T) {
        let mut ways = self.pace.ways.write();
        change(ways.entry(self.broker.clone()).or_default());
    }
}

fn read<T>(shared: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    shared.read()
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
        let following = Arc::new(CanaryPace::following(3 * SECOND));
        let fixed = Arc::new(CanaryPace::fixed(3 * SECOND));
        let period = |pace: &Arc<CanaryPace>| pace.at("main").period(SECOND);
        let paces = |declared: Option<Duration>, facts: &mut Facts| {
            facts.declared_timeout = declared;
            [&following, &fixed].map(|pace| {
                pace.met(facts, &rules);
                (period(pace), pace.gap())
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
        assert_eq!(period(&following), fast.0);
        // A timeout of another instance counts as long as that instance announces it.
        let met = |timeout: Duration| [(rules.kind.clone(), timeout)];
        following.met_elsewhere(met(SECOND));
        fixed.met_elsewhere(met(SECOND));
        assert_eq!(period(&following), Duration::from_millis(50));
        assert_eq!((period(&fixed), following.met_of(&rules.kind)), (SECOND, Some(2 * SECOND)));
        following.met_elsewhere([]);
        assert_eq!(period(&following), fast.0);
    }

    #[test]
    fn a_far_broker_makes_its_pace_slower_and_its_proofs_older_while_it_is_connected() {
        let rules = KindRules::new("detector".parse().unwrap());
        let pace = Arc::new(CanaryPace::following(3 * SECOND));
        pace.met_timeout(&rules.kind, SECOND);
        let (near, far) = (pace.at("near"), pace.at("far"));
        near.probes(50);
        far.probes(3);
        let ms = Duration::from_millis;
        let now = |at: &BrokerPace| {
            (at.period(SECOND), at.gap(), at.most_age(), at.probe_period(&rules), at.probe_gap(&rules))
        };
        let fast = (ms(50), ms(500), ms(500), ms(50), ms(550));
        assert_eq!((now(&near), now(&far)), (fast, fast));
        near.canary_returned("near", Timestamp::ZERO, Timestamp::from_millis(8));
        far.canary_returned("far", Timestamp::ZERO, Timestamp::from_millis(8000));
        let slow = (ms(1000), ms(3000), ms(11_000), ms(2000), ms(6000));
        assert_eq!((now(&near), now(&far)), ((fast.0, fast.1, ms(508), fast.3, fast.4), slow));
        let slowest = |pace: &CanaryPace| (pace.round_trip(), pace.gap(), pace.probe_gap(&rules));
        assert_eq!(slowest(&pace), (ms(8000), slow.1, slow.4));
        far.connection_ended("far");
        assert_eq!((now(&far), slowest(&pace)), (fast, (ms(8), fast.1, fast.4)));
    }
}
