//! How many units of each kind the fleet has, and whether there is room for another one; and what instances tell each
//! other with that: the shortest timeouts that they met, see [`super::canary_pace`].
//!
//! Ids come from devices, and one that invents a new id with each message would fill the engine. So a
//! kind has `max_units`: an id beyond is not admitted, which is counted, logged and shown. Units that are there
//! already go on, and what an operator registers is always admitted.
//!
//! # How exact it is
//! One instance counts its whole fleet at any moment, so it never admits one too many. Several tell each other
//! every two seconds what they count, so they may admit as many more as come within that time. Until an instance
//! has read its partitions after a start or a takeover it knows of fewer than there are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{CanaryPace, Mirror, Ownership, Rules};
use crate::presence::{Kind, Unit};
use crate::store::roster::Count;
use crate::store::{Result, Roster, partition_of};
use crate::telemetry::{Loop, Telemetry};

/// How often instances tell each other what they count, and for how long that holds.
const EVERY: Duration = Duration::from_secs(2);
const HOLDS: Duration = Duration::from_secs(8);

/// A kind that has refused nothing for so long has room.
const CALM: Duration = Duration::from_secs(60);

/// The counts of every kind.
pub struct Census {
    mirror: Arc<Mirror>,
    telemetry: Arc<Telemetry>,
    pace: Arc<CanaryPace>,
    kinds: BTreeMap<Kind, Limit>,
    begun: Instant,
}

struct Limit {
    most: u64,
    /// Places that were given and are not taken yet.
    under_way: AtomicU64,
    /// What other instances count.
    elsewhere: AtomicU64,
    /// What was admitted to partitions of other instances, since the last exchange and in the one before: they
    /// count those by then.
    given: [AtomicU64; 2],
    /// When one was refused last, in milliseconds since the beginning and one more; 0: not lately.
    refused: AtomicU64,
}

/// A place for a unit that is about to be admitted.
pub struct Place<'a> {
    limit: Option<&'a Limit>,
    is_foreign: bool,
}

impl Census {
    /// The census of what a mirror holds.
    pub fn new(
        rules: &Rules,
        mirror: Arc<Mirror>,
        telemetry: Arc<Telemetry>,
        pace: Arc<CanaryPace>,
    ) -> Census {
        let limit = |most: u64| Limit {
            most,
            under_way: AtomicU64::new(0),
            elsewhere: AtomicU64::new(0),
            given: Default::default(),
            refused: AtomicU64::new(0),
        };
        let kinds = rules.values().map(|rules| (rules.kind.clone(), limit(rules.max_units))).collect();
        Census { mirror, telemetry, pace, kinds, begun: Instant::now() }
    }

    /// A place for a new unit; `None`, which is told, if its kind is full.
    pub fn place(&self, unit: &Unit) -> Option<Place<'_>> {
        let is_foreign = !self.mirror.keeps(partition_of(unit, self.mirror.partition_count()));
        let Some(limit) = self.kinds.get(&unit.kind) else { return Some(Place { limit: None, is_foreign }) };
        // Places first: a unit that takes its own meanwhile is counted twice rather than not at all.
        let others = limit.under_way.fetch_add(1, Ordering::SeqCst);
        let place = Place { limit: Some(limit), is_foreign };
        if others + self.mirror.heads(&unit.kind) + limit.elsewhere() < limit.most {
            return Some(place);
        }
        limit.refused.store(self.begun.elapsed().as_millis() as u64 + 1, Ordering::SeqCst);
        self.telemetry.unit_refused(unit, limit.most);
        None
    }

    /// Exchanges counts with other instances until `stop`.
    pub async fn run(
        &self,
        roster: Arc<dyn Roster>,
        ownership: Ownership,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let mut every = tokio::time::interval(EVERY);
        while stop.run_until_cancelled(every.tick()).await.is_some() {
            let view = ownership.view();
            let others = view.instances.iter().filter(|name| **name != view.instance).cloned().collect();
            match self.exchange(&*roster, &view.instance, others).await {
                Ok(()) => self.telemetry.engine_answered(Loop::Census, ""),
                Err(error) => self.telemetry.engine_failed(Loop::Census, "", &error),
            }
            self.tell_room();
        }
        Ok(())
    }

    /// Tells the others what this instance counts, and learns what they do.
    pub async fn exchange(&self, roster: &dyn Roster, instance: &str, others: Vec<String>) -> Result<()> {
        if others.is_empty() {
            self.kinds.values().for_each(|limit| limit.learn(0));
            self.pace.met_elsewhere([]);
            return Ok(());
        }
        let count = |kind: &Kind| {
            let shortest_ms = self.pace.met_of(kind).map(|shortest| shortest.as_millis() as u64);
            (kind.to_string(), Count { units: self.mirror.heads(kind), shortest_ms })
        };
        roster.tell_counts(instance, &self.kinds.keys().map(count).collect(), HOLDS).await?;
        let counts = roster.counts(&others).await?;
        let mut met = Vec::new();
        for (kind, limit) in &self.kinds {
            let of_kind = counts.iter().filter_map(|counts| counts.get(kind.as_str()));
            limit.learn(of_kind.clone().map(|count| count.units).sum());
            let shortest = of_kind.filter_map(|count| count.shortest_ms);
            met.extend(shortest.map(|ms| (kind.clone(), Duration::from_millis(ms))));
        }
        self.pace.met_elsewhere(met);
        Ok(())
    }

    fn tell_room(&self) {
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

impl Limit {
    /// Units that are not in this instance's mirror.
    fn elsewhere(&self) -> u64 {
        let given: u64 = self.given.iter().map(|given| given.load(Ordering::SeqCst)).sum();
        given + self.elsewhere.load(Ordering::SeqCst)
    }

    fn learn(&self, elsewhere: u64) {
        let [now, before] = &self.given;
        before.store(now.swap(0, Ordering::SeqCst), Ordering::SeqCst);
        self.elsewhere.store(elsewhere, Ordering::SeqCst);
    }
}

impl Place<'_> {
    /// The unit was admitted: the mirror of its owner counts it from now on.
    pub fn taken(self) {
        if let (Some(limit), true) = (self.limit, self.is_foreign) {
            limit.given[0].fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(limit) = self.limit {
            limit.under_way.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
