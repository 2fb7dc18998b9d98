//! Deliveries: notifications for receivers, and dead letters. Also the implementation of [`AlertStore`].
//!
//! A group has one lane for each receiver. Only the first notification of a lane is leased, so the notifications of a
//! group arrive in order.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::due_members::{due_members, in_order};
use super::ending::{Ending, FINISH_STEP, OnRecord};
use super::units::first_score;
use super::{RedisEngine, absence, fallback, groups, kept, marking, members, outbox, receivers, reminders};
use crate::clock::Timestamp;
use crate::presence::{GroupIncident, Incident, OfflineRecord, RecordId};
use crate::store::attempts::texts;
use crate::store::notification::{Notification, Readable};
use crate::store::untold::leave_out_untold;
use crate::store::{
    AcknowledgedSilence, AlertStore, Backlog, Capacity, DeadLetter, Delivery, Destinations, Discarded, End,
    Ended, Entry, FindAttempts, Join, Joined, KeptIncident, LARGEST_STEP, Marking, MeantFor, Membership,
    Position, Result, StoredAttempts, WaitingPage,
};
use crate::telemetry::Stored;
use async_trait::async_trait;

/// How many lists of groups one call splits in each partition, before it leases single groups.
const MOST_SPREAD: usize = 16;

/// How many deliveries one script leases: about a quarter of a millisecond, as in [`super::hand_out`].
const LEASE_STEP: usize = 50;

#[async_trait]
impl AlertStore for RedisEngine {
    async fn outbox(&self, outboxes: &[u16], limit: usize) -> Result<Vec<Entry>> {
        self.review_joined(outboxes).await?;
        let entries = outbox::oldest(self, outboxes, limit).await?;
        if !entries.is_empty() {
            self.hold_after_failover().await;
        }
        // The outbox after the last partition is that of hearing.
        let outboxes = entries.iter().map(|entry| entry.position.outbox);
        let partitions: BTreeSet<u16> = outboxes.filter(|outbox| *outbox < self.keys.partitions()).collect();
        self.wait_for_replicas(partitions).await;
        Ok(entries)
    }

    async fn join(
        &self,
        joins: &[Join],
        destinations: &Destinations,
        capacity: &Capacity,
        now: Timestamp,
    ) -> Result<Joined> {
        let joined = groups::join(self, joins, destinations, capacity, now).await?;
        self.wait_for_replicas_of(&joined.deliveries).await;
        Ok(joined)
    }

    async fn remove_entries(&self, entries: &[Position], groups: &BTreeSet<u16>) -> Result<()> {
        self.remove_joined(entries, groups).await
    }

    async fn seal(&self, partitions: &[u16], destinations: &Destinations, now: Timestamp) -> Result<usize> {
        groups::seal(self, partitions, destinations, now).await
    }

    async fn first_seal(&self, partitions: &[u16]) -> Result<Option<Timestamp>> {
        groups::first_seal(self, partitions).await
    }

    async fn remind(&self, partitions: &[u16], destinations: &Destinations, now: Timestamp) -> Result<usize> {
        reminders::remind(self, partitions, destinations, now).await
    }

    async fn first_reminder(&self, partitions: &[u16]) -> Result<Option<Timestamp>> {
        reminders::first(self, partitions).await
    }

    async fn lease(
        &self,
        partitions: &[u16],
        receiver: &str,
        now: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Delivery>> {
        let limit = limit.min(LARGEST_STEP);
        let mut due = self.queued(partitions, receiver, now, limit).await?;
        self.split_lists(&mut due, receiver, now).await?;
        let steps = due.iter().flat_map(|(partition, groups)| {
            let steps = groups.chunks(LEASE_STEP);
            let slot = self.keys.slot(*partition);
            steps.map(move |groups| (slot, self.lease_step(*partition, receiver, groups, now, until)))
        });
        let leased: Vec<Delivery> =
            self.topology.few_at_once(steps.collect()).await?.into_iter().flatten().collect();
        self.wait_for_replicas_of(&leased).await;
        let untold = absence::untold(self, receiver, &leased).await?;
        leave_out_untold(self, &self.telemetry, receiver, leased, &untold, now).await
    }

    async fn memberships(&self, records: &[&OfflineRecord]) -> Result<Vec<Vec<Membership>>> {
        members::memberships(self, records).await
    }

    async fn lasting(&self, group: &str) -> Result<Vec<RecordId>> {
        members::lasting(self, group).await
    }

    async fn incident(&self, group: &str) -> Result<Option<String>> {
        self.read_incident(group).await
    }

    async fn keep_incident(
        &self,
        delivery: &Delivery,
        told: Option<&Incident>,
        before: Option<&str>,
        after: Option<&GroupIncident>,
        now: Timestamp,
    ) -> Result<KeptIncident> {
        self.write_incident(delivery, told, before, after, now).await
    }

    async fn first_lease(&self, partitions: &[u16], receiver: &str) -> Result<Option<Timestamp>> {
        let keys = partitions.iter().map(|p| self.keys.of(*p, "queue", receiver));
        first_score(self, "first_lease", keys).await
    }

    async fn end_attempts(&self, ended: &[Ended], keep: Duration, now: Timestamp) -> Result<()> {
        self.keep_acknowledged(ended, now);
        self.finish(ended, keep, now).await?;
        for one in ended {
            if let End::RetryAt(at) = one.end {
                let texts = texts(std::iter::once(one));
                let on_record = OnRecord { now, keep, texts };
                self.set_next_attempt("retry_later", &[&one.delivery], at, &on_record).await?;
            }
        }
        Ok(())
    }

    fn keep_acknowledged(&self, ended: &[Ended], now: Timestamp) {
        let delivered = ended.iter().filter(|one| one.end == End::Delivered);
        self.keep_deliveries(delivered.map(|one| one.delivery.as_ref()), now);
    }

    async fn doubtful(&self) -> Result<Vec<AcknowledgedSilence>> {
        self.doubtful_silences().await
    }

    async fn doubts_arise(&self) {
        self.comparison_is_due().await;
    }

    async fn mark_notified(
        &self,
        markings: &[Marking],
        destinations: &Destinations,
        now: Timestamp,
    ) -> Result<usize> {
        marking::mark(self, markings, destinations, now).await
    }

    fn settle_doubts(&self, later: &HashSet<RecordId>) {
        self.settle_silences(later);
    }

    async fn extend_leases(&self, deliveries: &[Arc<Delivery>], until: Timestamp) -> Result<Vec<bool>> {
        let deliveries: Vec<&Delivery> = deliveries.iter().map(AsRef::as_ref).collect();
        self.set_next_attempt("extend_leases", &deliveries, until, &OnRecord::NOTHING).await
    }

    async fn backlog(&self, partitions: &[u16], receiver: &str) -> Result<Backlog> {
        receivers::backlog(&self.topology, &self.keys, partitions.iter().copied(), receiver).await
    }

    async fn enlist(&self, names: &[String], now: Timestamp) -> Result<()> {
        receivers::enlist(self, names, now).await
    }

    async fn bring_up_to_date(&self, receiver: &str, now: Timestamp) -> Result<usize> {
        absence::bring_up_to_date(self, receiver, now).await
    }

    async fn kept(&self) -> Result<Vec<(String, Backlog)>> {
        receivers::kept(&self.topology, &self.keys).await
    }

    async fn discard(&self, receiver: &str, now: Timestamp) -> Result<Discarded> {
        receivers::discard(self, receiver, now).await
    }

    async fn letters(
        &self,
        receiver: &str,
        from: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<DeadLetter>> {
        kept::letters(self, receiver, (from, until), limit).await
    }

    async fn letter(&self, receiver: &str, notification: &str) -> Result<Option<DeadLetter>> {
        kept::letter(self, receiver, notification).await
    }

    async fn purge(&self, letters: &[DeadLetter]) -> Result<usize> {
        kept::purge(self, letters).await
    }

    async fn waiting(&self, receiver: &str, after: Option<&str>) -> Result<WaitingPage> {
        kept::waiting(self, receiver, after).await
    }

    async fn replay(&self, delivery: &Delivery, now: Timestamp) -> Result<bool> {
        kept::replay(self, delivery, now).await
    }

    async fn down_since(&self, receiver: &str, now: Timestamp) -> Result<Timestamp> {
        fallback::down_since(self, receiver, now).await
    }

    async fn is_up(&self, receiver: &str) -> Result<()> {
        fallback::is_up(self, receiver).await
    }

    async fn fall_back(
        &self,
        partitions: &[u16],
        meant_for: &MeantFor,
        to: &str,
        now: Timestamp,
    ) -> Result<usize> {
        fallback::fall_back(self, partitions, meant_for, to, now).await
    }

    async fn attempts(&self, find: &FindAttempts) -> Result<Vec<StoredAttempts>> {
        kept::attempts(self, find).await
    }
}

impl RedisEngine {
    /// Up to `limit` groups of a receiver whose next attempt is due, from as few partitions as possible: one script
    /// leases, and later ends, the deliveries of one partition.
    async fn queued(
        &self,
        partitions: &[u16],
        receiver: &str,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(u16, Vec<String>)>> {
        let queue = |partition: u16| self.keys.of(partition, "queue", receiver);
        let names = ("due_deliveries", "queue");
        let share = |counts: &[usize]| in_order(counts, limit);
        let found = due_members(self, names, queue, partitions, now, share).await?;
        let mut due = Vec::new();
        for (partition, groups) in found {
            let groups = self.names(&queue(partition), groups, Stored::Delivery).await?;
            if !groups.is_empty() {
                due.push((partition, groups));
            }
        }
        Ok(due)
    }

    /// Removes lists of groups from the due groups, see `hand_out.lua`. Each group of a list whose delivery has not
    /// ended gets an entry of its own in the queue.
    async fn split_lists(
        &self,
        due: &mut [(u16, Vec<String>)],
        receiver: &str,
        now: Timestamp,
    ) -> Result<()> {
        let mut steps = Vec::new();
        for (partition, groups) in due {
            let lists = groups.extract_if(.., |group| group.contains('\n'));
            for list in lists.take(MOST_SPREAD) {
                steps.push((self.keys.slot(*partition), self.split_step(*partition, receiver, list, now)));
            }
            groups.retain(|group| !group.contains('\n'));
        }
        self.topology.few_at_once(steps).await?;
        Ok(())
    }

    /// Items that belong to deliveries, by the partition and the receiver of the delivery: one script may change
    /// those of one partition and receiver.
    pub(super) fn by_queue<'a, T>(
        &self,
        items: impl Iterator<Item = T>,
        delivery: impl Fn(&T) -> &'a Delivery,
    ) -> BTreeMap<(u16, &'a str), Vec<T>> {
        let mut queues: BTreeMap<(u16, &str), Vec<T>> = BTreeMap::new();
        for item in items {
            let of = delivery(&item);
            let partition = self.keys.partition_of_group(&of.group.key);
            queues.entry((partition, &of.receiver)).or_default().push(item);
        }
        queues
    }

    /// Sets the next attempt of deliveries; no later delivery of their groups is leased before it. Answers, in order,
    /// which deliveries were still under way with the attempt that they name.
    async fn set_next_attempt(
        &self,
        name: &'static str,
        deliveries: &[&Delivery],
        at: Timestamp,
        on_record: &OnRecord,
    ) -> Result<Vec<bool>> {
        let queues = self.by_queue(deliveries.iter().copied().enumerate(), |(_, delivery)| delivery);
        let steps = queues.iter().flat_map(|(&(partition, receiver), deliveries)| {
            let slot = self.keys.slot(partition);
            deliveries
                .chunks(FINISH_STEP)
                .map(move |step| (slot, self.attempt_step(name, (partition, receiver), step, at, on_record)))
        });
        let mut were_under_way = vec![false; deliveries.len()];
        for (index, answer) in self.topology.few_at_once(steps.collect()).await?.into_iter().flatten() {
            were_under_way[index] = answer == 1;
        }
        Ok(were_under_way)
    }

    async fn split_step(
        &self,
        partition: u16,
        receiver: &str,
        list: String,
        now: Timestamp,
    ) -> Result<usize> {
        let mut script = self.scripts.split_list.prepare_invoke();
        script.key(self.keys.of(partition, "queue", receiver));
        script.key(self.keys.of(partition, "lanes", receiver));
        script.arg(now.as_millis()).arg(&list);
        script.arg(list.split('\n').collect::<Vec<&str>>());
        self.topology.run_alerting("split_list", self.keys.slot(partition), &script).await
    }

    /// Answers the numbers of the deliveries, each with 1 if it was still under way.
    async fn attempt_step(
        &self,
        name: &'static str,
        (partition, receiver): (u16, &str),
        step: &[(usize, &Delivery)],
        at: Timestamp,
        on_record: &OnRecord,
    ) -> Result<Vec<(usize, u8)>> {
        let mut script = self.scripts.set_next_attempt.prepare_invoke();
        for name in ["queue", "lanes"] {
            script.key(self.keys.of(partition, name, receiver));
        }
        script.key(self.keys.in_partition(partition, "attempts"));
        script.arg(at.as_millis()).arg(step.len());
        script.arg(step.iter().map(|(_, one)| one.group.key.as_str()).collect::<Vec<&str>>());
        script.arg(step.iter().map(|(_, one)| one.notification()).collect::<Vec<&str>>());
        script.arg(step.iter().map(|(_, one)| one.attempt).collect::<Vec<u32>>());
        on_record.add_to(&mut script);
        let answers: Vec<u8> = self.topology.run(name, &script).await?;
        Ok(step.iter().map(|(index, _)| *index).zip(answers).collect())
    }

    async fn lease_step(
        &self,
        partition: u16,
        receiver: &str,
        groups: &[String],
        now: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<Delivery>> {
        let mut script = self.scripts.lease.prepare_invoke();
        script.key(self.keys.of(partition, "queue", receiver));
        script.key(self.keys.of(partition, "lanes", receiver));
        script.key(self.keys.in_partition(partition, "notifications"));
        script.arg(now.as_millis()).arg(until.as_millis()).arg(groups);
        let flat: Vec<Vec<u8>> =
            self.topology.run_alerting("lease", self.keys.slot(partition), &script).await?;
        let (mut deliveries, mut broken) = (Vec::new(), Vec::new());
        for leased in flat.chunks_exact(4) {
            let text = |index: usize| String::from_utf8_lossy(&leased[index]).into_owned();
            let (id, group, attempt) = (text(0), text(3), text(1).parse().unwrap_or(u32::MAX));
            let Readable { notification, error } = Notification::read(&group, &leased[2]);
            let is_broken = notification.is_none();
            if let Some(error) = error {
                self.quarantine_notification(partition, &id, &leased[2], !is_broken, &error).await?;
            }
            let mut delivery = Delivery::of(notification, &group, &format!("{id}.{receiver}"), receiver);
            delivery.attempt = attempt;
            if is_broken { broken.push(delivery) } else { deliveries.push(delivery) }
        }
        // A delivery without content is ended: its group goes on with the next one.
        let ending = |delivery| Ending { delivery, letter: None, was_marked: false };
        let endings: Vec<Ending> = broken.iter().map(ending).collect();
        if !endings.is_empty() {
            let endings: Vec<&Ending> = endings.iter().collect();
            self.finish_step(partition, receiver, &endings, now, &OnRecord::NOTHING).await?;
        }
        Ok(deliveries)
    }
}
