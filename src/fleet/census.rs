//! The number of units of each kind, and whether there is room for another one. Instances exchange their counts, and
//! with them the shortest timeouts of their units, see [`super::canary_pace`], and how many units have each value of
//! the labels that units are counted by, at which brokers each instance publishes states, and whether devices connect
//! straight to it.
//!
//! Ids come from devices, and a device that invents a new id with each message would fill the engine. So a kind has
//! `max_units`: an id beyond is not admitted, which is counted, logged and shown. Known units are unaffected, and a
//! unit that an operator registers is always admitted.
//!
//! # How exact the limit is
//! A single instance counts its whole fleet at any moment, so it never admits one unit too many. Several instances
//! exchange counts every two seconds, so they may admit as many more as come within that time. An instance that has
//! not read its partitions yet, after a start or a takeover, counts too few.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::mirror::LabelValues;
use super::{CanaryPace, Mirror, Ownership, SharedRules};
use crate::clock::Stopwatch;
use crate::presence::{Kind, Unit};
use crate::store::roster::{KindCount, KindCounts};
use crate::store::{Result, Roster, partition_of};
use crate::telemetry::{Loop, Telemetry};

/// How often instances exchange counts.
const INTERVAL: Duration = Duration::from_secs(2);

/// A kind counts as full for this long after it refused a unit.
const CALM: Duration = Duration::from_secs(60);
/// The digest of the configuration, among the counts: the name of no kind and of no label.
const CONFIGURATION: &str = "=";
/// The digest of the broker and the client id, among the counts, too.
const CLIENT: &str = "==";
/// Whether devices connect straight to the instance, among the counts, too.
const LISTENS: &str = "===";
/// Before the name of a broker at which the instance publishes states, among the counts, too.
const PUBLISHES: &str = "==";
/// How many exchanges in a row have to show another configuration: instances are reloaded one after the other.
const DIFFERENT: u32 = 5;
/// The most values of a label that instances exchange: the values with most units.
const MAX_VALUES: usize = 500;

/// The counts of every kind.
pub struct Census {
    mirror: Arc<Mirror>,
    telemetry: Arc<Telemetry>,
    pace: Arc<CanaryPace>,
    kinds: BTreeMap<Kind, Limit>,
    rules: SharedRules,
    /// The counts of each other instance, by label, and the brokers at which it publishes states.
    elsewhere: Mutex<Vec<(String, KindCounts)>>,
    /// The brokers at which this instance publishes states.
    publishes: Mutex<BTreeSet<String>>,
    /// A digest of the configuration; 0: unknown.
    configuration: AtomicU64,
    /// In how many exchanges in a row another instance had another configuration.
    different: AtomicU32,
    /// A digest of the broker and the client id; 0: no other instance can have the same one.
    client: AtomicU64,
    /// In how many exchanges in a row another instance had the same client id.
    shared: AtomicU32,
    /// Whether devices connect straight to this instance.
    listens: AtomicBool,
    /// In how many exchanges in a row devices connected straight to another instance, too.
    listening: AtomicU32,
    begun: Stopwatch,
}

struct Limit {
    /// Reservations for units that are not admitted yet.
    reserved: AtomicU64,
    /// The counts of other instances.
    elsewhere: AtomicU64,
    /// Units that were admitted to partitions of other instances since the last exchange, and between the last two;
    /// the others count older ones.
    admitted: [AtomicU64; 2],
    /// The last refusal, in milliseconds since the start plus one; 0: none lately.
    refused: AtomicU64,
}

/// Room for a unit that is about to be admitted.
pub struct UnitReservation<'a> {
    limit: Option<&'a Limit>,
    is_foreign: bool,
}

impl Census {
    pub fn new(
        rules: SharedRules,
        mirror: Arc<Mirror>,
        telemetry: Arc<Telemetry>,
        pace: Arc<CanaryPace>,
    ) -> Census {
        let limit = || Limit {
            reserved: AtomicU64::new(0),
            elsewhere: AtomicU64::new(0),
            admitted: Default::default(),
            refused: AtomicU64::new(0),
        };
        let kinds = rules.rules().keys().map(|kind| (kind.clone(), limit())).collect();
        Census {
            mirror,
            telemetry,
            pace,
            kinds,
            rules,
            elsewhere: Mutex::default(),
            publishes: Mutex::default(),
            configuration: AtomicU64::new(0),
            different: AtomicU32::new(0),
            client: AtomicU64::new(0),
            shared: AtomicU32::new(0),
            listens: AtomicBool::new(false),
            listening: AtomicU32::new(0),
            begun: Stopwatch::start(),
        }
    }

    /// Sets the digest of the configuration that is in force from now on.
    pub fn configured(&self, hash: u64) {
        self.configuration.store(hash, Ordering::SeqCst);
    }

    /// The digest of the configuration; 0: unknown.
    pub fn configuration(&self) -> u64 {
        self.configuration.load(Ordering::SeqCst)
    }

    /// Sets the digest of the broker and the client id.
    pub fn connects(&self, client: u64) {
        self.client.store(client, Ordering::SeqCst);
    }

    /// Sets whether devices connect straight to this instance.
    pub fn listens(&self, is_so: bool) {
        self.listens.store(is_so, Ordering::SeqCst);
    }

    /// Notes whether this instance publishes states at a broker now.
    pub fn publishes(&self, broker: &str, is_so: bool) {
        let mut brokers = self.publishes.lock();
        let _ = if is_so { brokers.insert(broker.to_owned()) } else { brokers.remove(broker) };
    }

    /// The other instances that published states at a broker when they last exchanged counts.
    pub fn publishers(&self, broker: &str) -> Vec<String> {
        let elsewhere = self.elsewhere.lock();
        let here =
            elsewhere.iter().filter(|(_, counts)| counts.contains_key(&format!("{PUBLISHES}{broker}")));
        here.map(|(instance, _)| instance.clone()).collect()
    }

    /// Reserves room for a new unit; `None`, which is logged, if its kind is full.
    pub fn reserve(&self, unit: &Unit) -> Option<UnitReservation<'_>> {
        let is_foreign = !self.mirror.keeps(partition_of(unit, self.mirror.partition_count()));
        let Some(limit) = self.kinds.get(&unit.kind) else {
            return Some(UnitReservation { limit: None, is_foreign });
        };
        // Reservations first: a unit that is admitted meanwhile is counted twice rather than not at all.
        let others = limit.reserved.fetch_add(1, Ordering::SeqCst);
        let reservation = UnitReservation { limit: Some(limit), is_foreign };
        let most = self.rules.of(unit.kind.as_str()).map_or(0, |rules| rules.max_units);
        if others + self.mirror.unit_count(&unit.kind) + limit.elsewhere() < most {
            return Some(reservation);
        }
        limit.refused.store(self.begun.elapsed().as_millis() as u64 + 1, Ordering::SeqCst);
        self.telemetry.unit_refused(unit, most);
        None
    }

    /// The labels that units are counted by.
    pub fn labels(&self) -> Vec<String> {
        self.mirror.labels()
    }

    /// How many units of the whole fleet have a value of a label; `None` if that is not known: units are not counted by
    /// the label, another instance does not count by it, or there are more values than instances exchange.
    pub fn units_with(&self, label: &str, value: &str) -> Option<u64> {
        let own = self.mirror.units_with(label, value)?;
        let elsewhere = self.elsewhere.lock();
        let others = elsewhere.iter().map(|(_, counts)| {
            let rest = counts.get(&all_values(label))?;
            let known = counts.get(&one_value(label, value)).map(|count| count.units);
            known.or((rest.units == 0).then_some(0))
        });
        others.sum::<Option<u64>>().map(|others| own + others)
    }

    /// The counts by label as instances exchange them, under names that no kind has. The count of all values is 1 if
    /// some values are left out.
    fn counts_by_label(&self) -> KindCounts {
        let count = |units| KindCount { units, shortest_ms: None };
        let mut counts = KindCounts::new();
        for LabelValues { label, values, is_cut } in self.mirror.values(MAX_VALUES) {
            counts.insert(all_values(&label), count(u64::from(is_cut)));
            counts.extend(values.iter().map(|(value, units)| (one_value(&label, value), count(*units))));
        }
        counts
    }

    /// Exchanges counts with other instances until `stop`.
    pub async fn run(
        &self,
        roster: Arc<dyn Roster>,
        ownership: Ownership,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut every = tokio::time::interval(INTERVAL);
        while stop.run_until_cancelled(every.tick()).await.is_some() {
            let view = ownership.view();
            let others = view.instances.iter().filter(|name| **name != view.instance).cloned().collect();
            match self.exchange(&*roster, &view.instance, others).await {
                Ok(()) => self.telemetry.engine_answered(Loop::Census, ""),
                Err(error) => self.telemetry.engine_failed(Loop::Census, "", &error),
            }
            self.report_room();
        }
        Ok(())
    }

    /// Announces the counts of this instance and reads the counts of the others.
    pub async fn exchange(&self, roster: &dyn Roster, instance: &str, others: Vec<String>) -> Result<()> {
        if others.is_empty() {
            self.set_elsewhere(Vec::new());
            self.kinds.values().for_each(|limit| limit.learn(0));
            self.pace.met_elsewhere([]);
            self.compare_configurations(&[]);
            self.compare_clients(&[]);
            self.compare_listeners(&[]);
            return Ok(());
        }
        let count = |kind: &Kind| {
            let shortest_ms = self.pace.met_of(kind).map(|shortest| shortest.as_millis() as u64);
            (kind.to_string(), KindCount { units: self.mirror.unit_count(kind), shortest_ms })
        };
        let mut own: KindCounts = self.kinds.keys().map(count).collect();
        own.extend(self.counts_by_label());
        own.insert(CONFIGURATION.to_owned(), KindCount { units: self.configuration(), shortest_ms: None });
        own.insert(
            CLIENT.to_owned(),
            KindCount { units: self.client.load(Ordering::SeqCst), shortest_ms: None },
        );
        if self.listens.load(Ordering::SeqCst) {
            own.insert(LISTENS.to_owned(), KindCount { units: 1, shortest_ms: None });
        }
        let publishes = self.publishes.lock().clone();
        let at = |broker| (format!("{PUBLISHES}{broker}"), KindCount { units: 1, shortest_ms: None });
        own.extend(publishes.into_iter().map(at));
        roster.announce_counts(instance, &own).await?;
        let counts = roster.counts(&others).await?;
        let mut met = Vec::new();
        for (kind, limit) in &self.kinds {
            let of_kind = counts.iter().filter_map(|counts| counts.get(kind.as_str()));
            limit.learn(of_kind.clone().map(|count| count.units).sum());
            let shortest = of_kind.filter_map(|count| count.shortest_ms);
            met.extend(shortest.map(|ms| (kind.clone(), Duration::from_millis(ms))));
        }
        self.pace.met_elsewhere(met);
        self.compare_configurations(&counts);
        self.compare_clients(&counts);
        self.compare_listeners(&counts);
        self.set_elsewhere(others.into_iter().zip(counts).collect());
        Ok(())
    }

    /// Compares the configuration with those of the other instances.
    fn compare_configurations(&self, others: &[KindCounts]) {
        let known = others.iter().filter_map(|counts| Some(counts.get(CONFIGURATION)?.units));
        if !known.filter(|hash| *hash > 0).any(|hash| hash != self.configuration()) {
            self.different.store(0, Ordering::SeqCst);
            self.telemetry.configurations_differ(false);
        } else if self.different.fetch_add(1, Ordering::SeqCst) + 1 >= DIFFERENT {
            self.telemetry.configurations_differ(true);
        }
    }

    /// Compares the client id with the ids of the other instances. An instance that was killed and started again finds
    /// its own id for a moment.
    fn compare_clients(&self, others: &[KindCounts]) {
        let own = self.client.load(Ordering::SeqCst);
        let is_own = |counts: &KindCounts| counts.get(CLIENT).is_some_and(|count| count.units == own);
        if own == 0 || !others.iter().any(is_own) {
            self.shared.store(0, Ordering::SeqCst);
            self.telemetry.client_id_shared(false);
        } else if self.shared.fetch_add(1, Ordering::SeqCst) + 1 >= DIFFERENT {
            self.telemetry.client_id_shared(true);
        }
    }

    /// Looks whether devices connect straight to other instances, too. An instance that was killed and started again
    /// finds its former self for a moment.
    fn compare_listeners(&self, others: &[KindCounts]) {
        let listens = self.listens.load(Ordering::SeqCst);
        if !listens || !others.iter().any(|counts| counts.contains_key(LISTENS)) {
            self.listening.store(0, Ordering::SeqCst);
            self.telemetry.several_listen(false);
        } else if self.listening.fetch_add(1, Ordering::SeqCst) + 1 >= DIFFERENT {
            self.telemetry.several_listen(true);
        }
    }

    fn set_elsewhere(&self, mut counts: Vec<(String, KindCounts)>) {
        counts.iter_mut().for_each(|(_, counts)| counts.retain(|name, _| name.contains('=')));
        *self.elsewhere.lock() = counts;
    }

    fn report_room(&self) {
        for (kind, limit) in &self.kinds {
            let refused = limit.refused.load(Ordering::SeqCst);
            let until = Duration::from_millis(refused) + CALM;
            if refused > 0 && self.begun.elapsed() > until {
                limit.refused.store(0, Ordering::SeqCst);
                self.telemetry.kind_has_room(kind);
            }
        }
    }
}

fn all_values(label: &str) -> String {
    format!("={label}")
}

fn one_value(label: &str, value: &str) -> String {
    format!("{label}={value}")
}

impl Limit {
    /// The number of units that are not in the mirror of this instance.
    fn elsewhere(&self) -> u64 {
        let admitted: u64 = self.admitted.iter().map(|count| count.load(Ordering::SeqCst)).sum();
        admitted + self.elsewhere.load(Ordering::SeqCst)
    }

    fn learn(&self, elsewhere: u64) {
        let [now, before] = &self.admitted;
        before.store(now.swap(0, Ordering::SeqCst), Ordering::SeqCst);
        self.elsewhere.store(elsewhere, Ordering::SeqCst);
    }
}

impl UnitReservation<'_> {
    /// Ends the reservation of an admitted unit, which the mirror of its owner counts from now on.
    pub fn admitted(self) {
        if let (Some(limit), true) = (self.limit, self.is_foreign) {
            limit.admitted[0].fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Drop for UnitReservation<'_> {
    fn drop(&mut self) {
        if let Some(limit) = self.limit {
            limit.reserved.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::fleet::Rules;

    #[test]
    fn a_value_that_another_instance_may_have_left_out_is_not_known() {
        let rules = Arc::new(Rules::default());
        let mirror = Mirror::new(rules.clone(), 1).with_labels(&["site".to_owned()]);
        let telemetry = Arc::new(Telemetry::new(&Clock::system()));
        let pace = Arc::new(CanaryPace::fixed(INTERVAL));
        let census = Census::new(rules.into(), Arc::new(mirror), telemetry, pace);
        // The counts of each other instance: of all values (1: some are left out), and of the units in the north.
        type Others = [(Option<u64>, Option<u64>)];
        let cases: [(&Others, Option<u64>); 6] = [
            (&[], Some(0)),
            (&[(None, None)], None),
            (&[(Some(0), None)], Some(0)),
            (&[(Some(1), None)], None),
            (&[(Some(1), Some(7)), (Some(0), Some(2))], Some(9)),
            (&[(Some(0), Some(7)), (None, None)], None),
        ];
        for (others, expected) in cases {
            let count = |units| KindCount { units, shortest_ms: None };
            let counts = others.iter().map(|(all, north)| {
                let named = [(all_values("site"), all), (one_value("site", "north"), north)];
                let counts = named.into_iter().filter_map(|(name, units)| Some((name, count((*units)?))));
                ("another".to_owned(), counts.collect())
            });
            census.set_elsewhere(counts.collect());
            assert_eq!(census.units_with("site", "north"), expected, "{others:?}");
            assert_eq!(census.units_with("room", "1"), None);
        }
    }
}
