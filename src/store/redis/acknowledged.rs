//! Silences that receivers know of, until replicas have them.
//!
//! A replica that takes over may lack a record of which receivers have the notification, if it lagged and the wait for
//! it ended (see `replication.rs`). A unit that stays silent is found again. One that is heard again before that would
//! leave an open alert for ever: neither its record nor its group says that a receiver was notified. So this process
//! keeps the silences that its receivers acknowledged, from that moment on until a wait for the replicas succeeds that
//! began [`FAILOVER`] later, or for [`MAX_AGE`], at most [`MAX_RECORDS`] records.
//!
//! # Why an earlier wait proves nothing
//! In the first second of a failover by Sentinel the promoted replica is a primary already, while the old primary
//! accepts writes and another replica acknowledges them. Both follow the new primary afterwards, and these writes are
//! lost.
//!
//! A silence is doubtful if the primary of its unit or of its group was replaced since it was recorded.
//! `alerting/lost.rs` compares doubtful silences with the stored ones, and writes lost ones again. Where nothing was
//! lost, as after slots have moved, the comparison changes nothing.
//!
//! # Why deliveries of returns are kept, too
//! A silence whose return was delivered needs nothing any more, whatever the replica has.
//!
//! # Why transitions wait after a failover
//! The instance that lets a transition join its group need not be the one that delivered the silence: see
//! `compared.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{RedisEngine, marking};
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId};
use crate::store::unnotified::silence;
use crate::store::{AcknowledgedSilence, Delivery, Destinations, NotifiedMark, NotifiedSilences, Result};

/// How long a delivery is kept without a replica that has it: longer than a failover takes.
const MAX_AGE: Duration = Duration::from_secs(600);
/// The most records in deliveries that are kept. Of more, the oldest are forgotten.
const MAX_RECORDS: usize = 10_000;
/// From the promotion of a replica until this process knows of it, at most.
const FAILOVER: Duration = Duration::from_secs(10);
/// The least time between two waits for replicas.
const PERIOD: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Acknowledged(Mutex<Memory>);

#[derive(Default)]
struct Memory {
    /// Oldest first.
    kept: BTreeMap<u64, AcknowledgedDelivery>,
    /// The numbers of deliveries, by id.
    numbers: HashMap<String, u64>,
    next: u64,
    /// How many records the deliveries have.
    records: usize,
    waited: Option<Instant>,
    /// When silences were compared last with the stored ones.
    compared: Option<Instant>,
}

struct AcknowledgedDelivery {
    delivery: Delivery,
    acknowledged: Instant,
    /// When it was known that the primaries have it, and how long before that its first silence was recorded.
    stored: Instant,
    age: Duration,
}

impl AcknowledgedDelivery {
    /// Whether a primary since that moment may lack it.
    fn is_lost_by(&self, since: Instant) -> bool {
        since.checked_add(self.age).is_none_or(|since| since > self.stored)
    }
}

impl Memory {
    fn keep(&mut self, delivery: &Delivery, now: Timestamp) {
        let is_needed = !delivery.offline.is_empty() || !delivery.online.is_empty() && !self.kept.is_empty();
        if !is_needed || self.numbers.contains_key(&delivery.id) {
            return;
        }
        let first = delivery.offline.iter().map(|record| record.detected_at).min();
        let (at, age) = (Instant::now(), first.map_or(Duration::ZERO, |first| now.since(first)));
        self.numbers.insert(delivery.id.clone(), self.next);
        let kept = AcknowledgedDelivery { delivery: delivery.clone(), acknowledged: at, stored: at, age };
        self.kept.insert(self.next, kept);
        self.next += 1;
        self.records += records(delivery);
        while self.records > MAX_RECORDS && self.forget_first().is_some() {}
    }

    fn forget_first(&mut self) -> Option<()> {
        let (_, kept) = self.kept.pop_first()?;
        self.forgotten(&kept);
        Some(())
    }

    fn forget(&mut self, is_safe: impl Fn(&AcknowledgedDelivery) -> bool) {
        let safe: Vec<AcknowledgedDelivery> =
            self.kept.extract_if(.., |_, kept| is_safe(kept)).map(|(_, kept)| kept).collect();
        safe.iter().for_each(|kept| self.forgotten(kept));
    }

    fn forgotten(&mut self, kept: &AcknowledgedDelivery) {
        self.numbers.remove(&kept.delivery.id);
        self.records -= records(&kept.delivery);
    }

    /// Silences for which that is true and of which no return was delivered, once for each group, with their receivers.
    fn silences(
        &self,
        is_doubtful: impl Fn(&AcknowledgedDelivery, &OfflineRecord) -> bool,
    ) -> Vec<AcknowledgedSilence> {
        let name = |kept: &AcknowledgedDelivery, record| {
            let Delivery { group, receiver, .. } = &kept.delivery;
            (silence(record), group.key.clone(), receiver.clone())
        };
        let returned: HashSet<(String, String, String)> = self
            .kept
            .values()
            .flat_map(|kept| kept.delivery.online.iter().map(move |record| name(kept, record)))
            .collect();
        let mut found: BTreeMap<(String, String), AcknowledgedSilence> = BTreeMap::new();
        for kept in self.kept.values() {
            let Delivery { offline, group, receiver, .. } = &kept.delivery;
            // An episode of flapping is not a record that could be written again.
            let silences = offline.iter().filter(|record| !record.is_flapping());
            let open = silences.filter(|record| !returned.contains(&name(kept, record)));
            for record in open.filter(|record| is_doubtful(kept, record)) {
                let new = || AcknowledgedSilence {
                    record: record.clone(),
                    group: group.clone(),
                    receivers: Vec::new(),
                };
                let (silence, group, _) = name(kept, record);
                found.entry((silence, group)).or_insert_with(new).receivers.push(receiver.clone());
            }
        }
        found.into_values().collect()
    }
}

fn records(delivery: &Delivery) -> usize {
    delivery.offline.len() + delivery.online.len()
}

#[async_trait]
impl NotifiedSilences for RedisEngine {
    async fn doubtful(&self) -> Result<Vec<AcknowledgedSilence>> {
        if self.topology.is_fixed() {
            return Ok(Vec::new());
        }
        // A comparison under other primaries, learned meanwhile, is announced the next time.
        let view = self.topology.view().await?;
        let doubtful = self.find_doubtful().await;
        if doubtful.is_empty() {
            self.announce_comparison(&view).await?;
        }
        Ok(doubtful)
    }

    async fn wait_for_doubtful(&self) {
        let mut changes = self.topology.changes();
        let is_due = || self.acknowledged().compared < self.topology.replaced_at();
        while !is_due() && changes.changed().await.is_ok() {}
    }

    async fn mark_notified(
        &self,
        markings: &[NotifiedMark],
        destinations: &Destinations,
        now: Timestamp,
    ) -> Result<usize> {
        marking::mark(self, markings, destinations, now).await
    }

    fn resolve_doubtful(&self, later: &HashSet<RecordId>) {
        let mut memory = self.acknowledged();
        let Some(compared) = memory.compared else { return };
        for kept in memory.kept.values_mut().filter(|kept| kept.acknowledged <= compared) {
            if !kept.delivery.offline.iter().any(|record| later.contains(&record.id)) {
                (kept.stored, kept.age) = (compared, Duration::ZERO);
            }
        }
    }
}

impl RedisEngine {
    /// Keeps deliveries that a receiver acknowledged, if a replica may take over.
    pub(super) fn keep_deliveries<'a>(&self, deliveries: impl Iterator<Item = &'a Delivery>, now: Timestamp) {
        if !self.topology.is_fixed() {
            let mut memory = self.acknowledged();
            deliveries.for_each(|delivery| memory.keep(delivery, now));
        }
    }

    /// Silences that the primaries of now may lack. Forgets those that replicas have.
    async fn find_doubtful(&self) -> Vec<AcknowledgedSilence> {
        let now = Instant::now();
        let (doubtful, partitions) = {
            let mut memory = self.acknowledged();
            memory.forget(|kept| now.duration_since(kept.acknowledged) > MAX_AGE);
            memory.compared = Some(now);
            if memory.kept.is_empty() {
                return Vec::new();
            }
            let is_doubtful = |kept: &AcknowledgedDelivery, record: &OfflineRecord| {
                let partitions = [self.keys.partition(&record.id.unit), self.partition_of(kept)];
                partitions.into_iter().any(|partition| self.may_be_lost(kept, partition))
            };
            let waits = memory.waited.is_none_or(|waited| now.duration_since(waited) >= PERIOD);
            let partitions =
                waits.then(|| memory.kept.values().flat_map(|kept| self.partitions_of(kept)).collect());
            memory.waited = if waits { Some(now) } else { memory.waited };
            (memory.silences(is_doubtful), partitions)
        };
        if let Some(partitions) = partitions {
            let replicated = self.replicated(partitions).await;
            // Of a primary that took over meanwhile, the wait proves nothing.
            let is_safe = |partition: u16, kept: &AcknowledgedDelivery| {
                replicated.contains(&partition) && !self.may_be_lost(kept, partition)
            };
            self.acknowledged().forget(|kept| {
                kept.stored + FAILOVER <= now
                    && self.partitions_of(kept).into_iter().all(|one| is_safe(one, kept))
            });
        }
        doubtful
    }

    /// Whether the primary of a partition took over after that.
    fn may_be_lost(&self, kept: &AcknowledgedDelivery, partition: u16) -> bool {
        self.topology.primary_since(self.keys.slot(partition)).is_some_and(|since| kept.is_lost_by(since))
    }

    fn partition_of(&self, kept: &AcknowledgedDelivery) -> u16 {
        self.keys.partition_of_group(&kept.delivery.group.key)
    }

    fn partitions_of(&self, kept: &AcknowledgedDelivery) -> BTreeSet<u16> {
        let units = kept.delivery.offline.iter().map(|record| self.keys.partition(&record.id.unit));
        units.chain([self.partition_of(kept)]).collect()
    }

    fn acknowledged(&self) -> MutexGuard<'_, Memory> {
        self.acknowledged.0.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::Unit;
    use crate::store::Group;

    fn delivery(number: usize, receiver: &str, is_return: bool) -> Delivery {
        let unit: Unit = format!("detector:{number}").parse().unwrap();
        let at = Timestamp::from_millis(1_700_000_000_000);
        let record = OfflineRecord::open(unit, at, at, at);
        let group = Group { key: "all".to_owned(), labels: Default::default() };
        let (offline, online) = if is_return { (vec![], vec![record]) } else { (vec![record], vec![]) };
        let id = format!("ntf_{number}{is_return}.{receiver}");
        Delivery { offline, online, ..Delivery::new(id, receiver, group, at) }
    }

    fn memory(deliveries: &[Delivery]) -> Memory {
        let mut memory = Memory::default();
        deliveries.iter().for_each(|one| memory.keep(one, one.sealed_at));
        memory
    }

    #[test]
    fn a_silence_is_kept_once_with_the_receivers_that_do_not_know_its_return() {
        let all = [delivery(1, "a", false), delivery(1, "b", false), delivery(2, "a", false)];
        let returns = [delivery(1, "b", true), delivery(2, "a", true)];
        let memory = memory(&[&all[..], &all[..1], &returns].concat());
        let silences = memory.silences(|_, _| true);
        let receivers: Vec<_> = silences.iter().map(|one| (&one.record, &one.receivers[..])).collect();
        assert_eq!(receivers, [(&all[0].offline[0], &["a".to_owned()][..])]);
    }

    #[test]
    fn the_oldest_are_forgotten_when_there_are_too_many_and_a_return_alone_is_not_kept() {
        let all: Vec<Delivery> = (0..MAX_RECORDS + 3).map(|number| delivery(number, "a", false)).collect();
        let memory = memory(&all);
        let first = memory.kept.values().next().expect("it is full");
        assert_eq!((memory.records, memory.numbers.len()), (MAX_RECORDS, MAX_RECORDS));
        assert_eq!(first.delivery, all[3]);
        assert_eq!(super::tests::memory(&[delivery(1, "a", true)]).records, 0);
    }

    #[test]
    fn a_silence_is_doubtful_from_its_detection_on_until_it_was_compared() {
        let at = Instant::now();
        let age = Duration::from_secs(5);
        let kept =
            AcknowledgedDelivery { delivery: delivery(1, "a", false), acknowledged: at, stored: at, age };
        assert!(
            kept.is_lost_by(at - Duration::from_secs(4)) && !kept.is_lost_by(at - Duration::from_secs(6))
        );
        let compared = AcknowledgedDelivery { age: Duration::ZERO, ..kept };
        assert!(!compared.is_lost_by(at) && compared.is_lost_by(at + Duration::from_millis(1)));
    }
}
