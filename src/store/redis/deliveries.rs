//! Deliveries: notifications for receivers, and dead letters.
//!
//! A group has one lane for each receiver. Only the first notification of a lane is leased, so the notifications of a
//! group arrive in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::due_members::{due_members, in_order};
use super::finish::{Ending, FINISH_STEP};
use super::steps::{MAX_ATTEMPTS, Steps};
use super::units::first_score;
use super::{RedisEngine, absence, fallback, receivers};
use crate::clock::Timestamp;
use crate::store::again::ToFallback;
use crate::store::attempts::attempts_made;
use crate::store::notification::{Notification, Readable};
use crate::store::unnotified::end_empty;
use crate::store::{Backlog, Delivery, DeliveryStore, Destinations, End, Ended, MAX_STEP, MeantFor, Result};
use crate::telemetry::Stored;
use async_trait::async_trait;
use redis::pipe;

/// How many lists of groups one call splits in each partition, before it leases single groups.
const MAX_SPREAD: usize = 16;

/// How many deliveries one script leases: about a quarter of a millisecond, as in [`super::hand_out`].
const LEASE_STEP: usize = 50;

#[async_trait]
impl DeliveryStore for RedisEngine {
    async fn bring_up_to_date(&self, receiver: &str, now: Timestamp) -> Result<usize> {
        absence::bring_up_to_date(self, receiver, now).await
    }

    async fn lease(
        &self,
        partitions: &[u16],
        receiver: &str,
        now: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Delivery>> {
        let limit = limit.min(MAX_STEP);
        let mut due = self.queued(partitions, receiver, now, limit).await?;
        self.split_lists(&mut due, receiver, now).await?;
        let steps = due.iter().flat_map(|(partition, groups)| {
            let steps = groups.chunks(LEASE_STEP);
            let slot = self.keys.slot(*partition);
            steps.map(move |groups| (slot, self.lease_step(*partition, receiver, groups, now, until)))
        });
        let leased: Vec<Delivery> =
            self.topology.run_limited(steps.collect()).await?.into_iter().flatten().collect();
        self.wait_for_replicas_of(&leased).await;
        let left = absence::leave_out(self, receiver, leased).await?;
        let full = end_empty(self, &self.telemetry, receiver, left.deliveries, now).await?;
        // Not before they are ended: one that is leased once more is left out again.
        absence::forget(self, receiver, &left.over).await?;
        Ok(full)
    }

    async fn first_lease(&self, partitions: &[u16], receiver: &str) -> Result<Option<Timestamp>> {
        let keys = partitions.iter().map(|p| self.keys.of(*p, "queue", receiver));
        first_score(self, "first_lease", keys).await
    }

    async fn extend_leases(&self, deliveries: &[Arc<Delivery>], until: Timestamp) -> Result<Vec<bool>> {
        let extended = |delivery: &'_ Arc<Delivery>| Ended {
            delivery: delivery.clone(),
            end: End::RetryAt(until),
            attempt: None,
        };
        let extended: Vec<Ended> = deliveries.iter().map(extended).collect();
        self.set_next_attempts("extend_leases", &extended, until).await
    }

    async fn end_attempts(&self, ended: &[Ended], now: Timestamp) -> Result<()> {
        self.finish(ended, now).await?;
        self.set_next_attempts("retry_later", ended, now).await?;
        Ok(())
    }

    async fn backlog(&self, partitions: &[u16], receiver: &str) -> Result<Backlog> {
        receivers::backlog(&self.topology, &self.keys, partitions.iter().copied(), receiver).await
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
        destinations: &Destinations,
        now: Timestamp,
    ) -> Result<usize> {
        fallback::fall_back(self, partitions, &ToFallback { meant_for, to, destinations }, now).await
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
            for list in lists.take(MAX_SPREAD) {
                steps.push((self.keys.slot(*partition), self.split_step(*partition, receiver, list, now)));
            }
            groups.retain(|group| !group.contains('\n'));
        }
        self.topology.run_limited(steps).await?;
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

    /// Sets the next attempt of deliveries that are not over; no later delivery of their groups is leased before it.
    /// Answers, in order, which deliveries were still under way with the attempt that they name.
    async fn set_next_attempts(
        &self,
        name: &'static str,
        ended: &[Ended],
        now: Timestamp,
    ) -> Result<Vec<bool>> {
        let later = ended.iter().enumerate().filter_map(|(place, one)| match one.end {
            End::RetryAt(at) => Some((place, one, at)),
            End::Delivered | End::DeadLetter(_) => None,
        });
        let queues = self.by_queue(later, |(_, one, _)| &one.delivery);
        let steps = queues.iter().flat_map(|(&(partition, receiver), later)| {
            let slot = self.keys.slot(partition);
            later
                .chunks(FINISH_STEP)
                .map(move |step| (slot, self.attempt_step(name, (partition, receiver), step, now)))
        });
        let mut were_under_way = vec![false; ended.len()];
        for (place, answer) in self.topology.run_limited(steps.collect()).await?.into_iter().flatten() {
            were_under_way[place] = answer == 1;
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
        let [queue, lanes] = ["queue", "lanes"].map(|name| self.keys.of(partition, name, receiver));
        let groups: Vec<&str> = list.split('\n').collect();
        for _ in 0..MAX_ATTEMPTS {
            let mut read = pipe();
            read.zscore(&queue, &list).cmd("HMGET").arg(&lanes).arg(&groups);
            let (next, stored): (Option<f64>, Vec<Option<Vec<u8>>>) =
                self.topology.send("split_list", &read).await?;
            let Some(next) = next else { break };
            let mut steps = Steps::default();
            steps.begin().expect_score(&queue, list.as_bytes(), next);
            steps.write("ZREM", &queue, &[list.as_bytes()]);
            let now = now.as_millis().to_string();
            let mut count = 0;
            for (group, lane) in groups.iter().zip(&stored).filter(|(_, lane)| lane.is_some()) {
                steps.expect_field(&lanes, group.as_bytes(), lane.as_deref());
                // A group that already has an entry keeps it.
                steps.write("ZADD", &queue, &[b"NX", now.as_bytes(), group.as_bytes()]);
                count += 1;
            }
            if self.write_alerting_step("split_list", partition, steps).await? {
                return Ok(count);
            }
        }
        Ok(0)
    }

    /// Answers the places of the deliveries, each with 1 if it was still under way.
    async fn attempt_step(
        &self,
        name: &'static str,
        (partition, receiver): (u16, &str),
        step: &[(usize, &Ended, Timestamp)],
        now: Timestamp,
    ) -> Result<Vec<(usize, u8)>> {
        let mut script = self.scripts.set_next_attempt.prepare_invoke();
        for name in ["queue", "lanes"] {
            script.key(self.keys.of(partition, name, receiver));
        }
        let deliveries = || step.iter().map(|(_, one, _)| &*one.delivery);
        script.arg(step.len());
        script.arg(deliveries().map(|one| one.group.key.as_str()).collect::<Vec<&str>>());
        script.arg(deliveries().map(Delivery::notification).collect::<Vec<&str>>());
        script.arg(deliveries().map(|one| one.attempt).collect::<Vec<u32>>());
        script.arg(step.iter().map(|(_, _, at)| at.as_millis()).collect::<Vec<i64>>());
        if let Some(set) = attempts_made(partition, step.iter().map(|(_, one, _)| *one), now)? {
            self.add_sets(&mut script, partition, &set.shape(), &[&set]);
        }
        let answers: Vec<u8> = self.topology.run(name, &script).await?;
        Ok(step.iter().map(|(place, ..)| *place).zip(answers).collect())
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
            self.finish_step(partition, receiver, &endings, now, None).await?;
        }
        Ok(deliveries)
    }
}
