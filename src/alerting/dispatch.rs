//! From the outbox into groups, and from groups to deliveries.
//!
//! One loop: let the entries of the outbox join their groups, remove them from the outbox, seal the groups
//! that are due. It holds nothing itself. An entry leaves the outbox only after it has joined, and
//! joining twice is joining once, so a crash or an engine that fails between any two steps loses
//! nothing and repeats nothing. Several instances may dispatch at the same time; each works on its own
//! partitions, and when these change, their next owner finds everything in the engine.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::buffer::{DeliveryBuffer, count, reserve_in};
use super::group::group_of;
use super::{ENGINE_BACKOFF, LEASE, Route, SHORTEST_WAIT, tick};
use crate::clock::Clock;
use crate::fleet::Ownership;
use crate::store::{AlertStore, Capacity, Entry, Join, Position, Result, partition_of_group};
use crate::telemetry::{Loop, Telemetry};

/// The most entries of outboxes in one step.
const STEP: usize = 1000;

/// How many tasks let entries join at the same time: reading and writing a hundred thousand records is work
/// for every core.
const TASKS: usize = 4;

/// The loop and what it uses.
pub(super) struct Dispatcher {
    pub route: Route,
    pub engine: Arc<dyn AlertStore>,
    /// The outboxes and partitions that are this instance's own.
    pub ownership: Ownership,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
    /// Notified when the outbox has a new entry.
    pub outbox_grew: Arc<Notify>,
    /// For the deliveries that joining hands out, by receiver.
    pub buffers: HashMap<String, Arc<DeliveryBuffer>>,
    pub stop: CancellationToken,
}

impl Dispatcher {
    /// Runs until it is stopped.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut failures = 0;
        let mut ownership = self.ownership.clone();
        let this = Arc::new(self);
        loop {
            let wait = match this.step().await {
                Ok(wait) => {
                    failures = 0;
                    this.telemetry.engine_answered(Loop::Dispatch, "");
                    wait
                }
                Err(error) => {
                    failures += 1;
                    this.telemetry.engine_failed(Loop::Dispatch, "", &error);
                    ENGINE_BACKOFF.wait(failures, rand::random())
                }
            };
            tokio::select! {
                biased;
                () = this.stop.cancelled() => return Ok(()),
                // A new entry does not cut the wait for an engine that fails: there are many then.
                () = this.outbox_grew.notified(), if failures == 0 => {}
                () = ownership.changed(), if failures == 0 => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// One batch of the outbox, and the groups that are due. Answers how long to wait for the next step.
    async fn step(self: &Arc<Self>) -> Result<Duration> {
        // Groups are sealed beside each batch, so that a long outbox does not delay groups that are due.
        let (joined, wait) = tokio::try_join!(self.join_all(), self.seal())?;
        // The outbox may hold more.
        Ok(if joined { Duration::ZERO } else { wait })
    }

    /// Lets a batch of each outbox join its groups. Answers whether there was any. The events of one unit
    /// are in one outbox, so they keep their order though several tasks work on different outboxes.
    async fn join_all(self: &Arc<Self>) -> Result<bool> {
        let outboxes = self.ownership.view().outboxes.clone();
        let mut joining = JoinSet::new();
        for outboxes in outboxes.chunks(outboxes.len().div_ceil(TASKS).max(1)) {
            let (this, outboxes) = (self.clone(), outboxes.to_vec());
            joining.spawn(async move { this.join(&outboxes).await });
        }
        let mut any = false;
        while let Some(joined) = joining.join_next().await {
            any |= joined.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        }
        Ok(any)
    }

    /// Lets a batch of these outboxes join its groups. Answers whether there was any.
    async fn join(&self, outboxes: &[u16]) -> Result<bool> {
        let entries = self.engine.outbox(outboxes, STEP).await?;
        if entries.is_empty() {
            return Ok(false);
        }
        let (positions, mut joins): (Vec<Position>, Vec<Join>) = entries
            .into_iter()
            .map(|Entry { position, event }| {
                (position, Join { group: group_of(&event, &self.route.group_by), event })
            })
            .unzip();
        // Joins of one partition go in one step, and so do their deliveries later.
        let partitions = self.engine.partitions();
        joins.sort_by_cached_key(|join| partition_of_group(&join.group.key, partitions));
        let mut rest = &joins[..];
        while !rest.is_empty() {
            rest = self.join_some(rest).await?;
        }
        // Settle after joining: a crash in between joins once more, which changes nothing.
        self.engine.remove_entries(&positions).await?;
        Ok(true)
    }

    /// Lets the first of these join. If the route has no wait, these are as many as a receiver has free slots for,
    /// so that they need not be fetched from the engine; one step of them if no slot is free. Answers with the rest.
    async fn join_some<'a>(&self, joins: &'a [Join]) -> Result<&'a [Join]> {
        let Route { pace, receivers, .. } = &self.route;
        let buffers: Vec<Arc<DeliveryBuffer>> =
            receivers.iter().filter_map(|name| self.buffers.get(name).cloned()).collect();
        let mut slots = reserve_in(&buffers, if pace.wait.is_zero() { joins.len() } else { 0 }).await;
        let most: Vec<usize> = slots.iter().map(count).collect();
        let fitting = most.iter().copied().max().filter(|fitting| *fitting > 0);
        let (joins, rest) = joins.split_at(fitting.unwrap_or(STEP).min(joins.len()));
        let now = self.clock.now();
        let room = Capacity { most, until: now + LEASE };
        let joined = self.engine.join(joins, *pace, receivers, &room, now).await?;
        if joined.deliveries.len() < joined.sealed * receivers.len() {
            self.notify();
        }
        for delivery in joined.deliveries {
            let at = receivers.iter().position(|name| *name == delivery.receiver);
            if let Some((buffer, Some(slots))) = at.map(|at| (&buffers[at], slots[at].as_mut())) {
                buffer.push(delivery, room.until, slots);
            }
        }
        Ok(rest)
    }

    /// Wakes the loops of all receivers: the engine has deliveries to lease.
    fn notify(&self) {
        for buffer in self.buffers.values() {
            buffer.notify();
        }
    }

    /// Seals the groups that are due. Answers how long it is until the next group is due, at most a tick.
    async fn seal(&self) -> Result<Duration> {
        let (own, tick) = (&self.ownership.view().partitions, tick(&self.ownership));
        let Some(first) = self.engine.first_seal(own).await? else { return Ok(tick) };
        let now = self.clock.now();
        if first > now {
            return Ok(first.since(now).min(tick));
        }
        let sealed = self.engine.seal(own, &self.route.receivers, self.route.pace, now).await?;
        self.notify();
        // Another instance may have been faster; then there is no hurry.
        Ok(if sealed > 0 { Duration::ZERO } else { SHORTEST_WAIT })
    }
}
