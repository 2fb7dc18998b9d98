//! From the outbox into groups, and from groups to deliveries.
//!
//! One loop: let what is in the outbox join its groups, remove it from the outbox, seal the groups
//! that are due. It holds nothing itself. An entry leaves the outbox only after it has joined, and
//! joining twice is joining once, so a crash or an engine that fails between any two steps loses
//! nothing and repeats nothing. Several instances may do this at the same time; each sees to what is
//! its own, and when that changes, whoever comes next finds everything as it was left.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::group::group_of;
use super::tray::{Tray, len, room};
use super::{ENGINE_BACKOFF, LEASE, Route, SHORTEST_WAIT, tick};
use crate::clock::Clock;
use crate::fleet::Ownership;
use crate::store::{Engine, Entry, Join, Position, Result, Room, partition_of_group};
use crate::telemetry::{Loop, Telemetry};

/// Entries of outboxes that are dealt with in one step.
const STEP: usize = 1000;

/// How many tasks do that at the same time: reading and writing a hundred thousand records is work for
/// every core.
const AT_ONCE: usize = 4;

/// The loop and what it uses.
pub(super) struct Tell {
    pub route: Route,
    pub engine: Arc<dyn Engine>,
    /// Whose outboxes and groups are seen to.
    pub ownership: Ownership,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
    /// Rung when there is something in the outbox.
    pub news: Arc<Notify>,
    /// Where deliveries go that joining hands out, one for each receiver.
    pub trays: HashMap<String, Arc<Tray>>,
    pub stop: CancellationToken,
}

impl Tell {
    /// Runs until it is stopped.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut failures = 0;
        let mut ownership = self.ownership.clone();
        let this = Arc::new(self);
        loop {
            let wait = match this.step().await {
                Ok(wait) => {
                    failures = 0;
                    this.telemetry.engine_answered(Loop::Telling, "");
                    wait
                }
                Err(error) => {
                    failures += 1;
                    this.telemetry.engine_failed(Loop::Telling, "", &error);
                    ENGINE_BACKOFF.wait(failures, rand::random())
                }
            };
            tokio::select! {
                biased;
                () = this.stop.cancelled() => return Ok(()),
                // OutboxEvent does not cut the wait for an engine that fails: it rings often then.
                () = this.news.notified(), if failures == 0 => {}
                () = ownership.changed(), if failures == 0 => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Deals with one batch of the outbox and the groups that are due. Answers for how long there
    /// is nothing to do.
    async fn step(self: &Arc<Self>) -> Result<Duration> {
        // Groups get their turn beside each batch, so that a long outbox does not hold up what is due.
        let (joined, wait) = tokio::try_join!(self.join_all(), self.seal())?;
        // There may be more where that came from.
        Ok(if joined { Duration::ZERO } else { wait })
    }

    /// Lets a batch of each outbox join its groups. Answers whether there was any. OutboxEvent of one unit
    /// is in one outbox, so tasks that have different ones do not overtake one another.
    async fn join_all(self: &Arc<Self>) -> Result<bool> {
        let outboxes = self.ownership.view().outboxes.clone();
        let mut joining = JoinSet::new();
        for outboxes in outboxes.chunks(outboxes.len().div_ceil(AT_ONCE).max(1)) {
            let (this, outboxes) = (self.clone(), outboxes.to_vec());
            joining.spawn(async move { this.join(&outboxes).await });
        }
        let mut any = false;
        while let Some(joined) = joining.join_next().await {
            any |= joined.unwrap_or_else(|broken| std::panic::resume_unwind(broken.into_panic()))?;
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
            .map(|Entry { position, news }| {
                (position, Join { group: group_of(&news, &self.route.group_by), news })
            })
            .unzip();
        // What is of one partition joins, and is delivered later, in one step.
        let partitions = self.engine.partitions();
        joins.sort_by_cached_key(|join| partition_of_group(&join.group.key, partitions));
        let mut rest = &joins[..];
        while !rest.is_empty() {
            rest = self.join_some(rest).await?;
        }
        // Settle after joining: a crash in between joins once more, which changes nothing.
        self.engine.settle(&positions).await?;
        Ok(true)
    }

    /// Lets the first of these join: if they may be told at once, as many as a receiver has room for,
    /// lest they are written down for it and read again; a step of them if nobody has any. Answers with
    /// the others.
    async fn join_some<'a>(&self, joins: &'a [Join]) -> Result<&'a [Join]> {
        let Route { pace, receivers, .. } = &self.route;
        let trays: Vec<Arc<Tray>> =
            receivers.iter().filter_map(|name| self.trays.get(name).cloned()).collect();
        let mut places = room(&trays, if pace.wait.is_zero() { joins.len() } else { 0 }).await;
        let most: Vec<usize> = places.iter().map(len).collect();
        let fitting = most.iter().copied().max().filter(|fitting| *fitting > 0);
        let (joins, rest) = joins.split_at(fitting.unwrap_or(STEP).min(joins.len()));
        let now = self.clock.now();
        let room = Room { most, until: now + LEASE };
        let joined = self.engine.join(joins, *pace, receivers, &room, now).await?;
        if joined.deliveries.len() < joined.sealed * receivers.len() {
            self.ring();
        }
        for delivery in joined.deliveries {
            let at = receivers.iter().position(|name| *name == delivery.receiver);
            if let Some((tray, Some(places))) = at.map(|at| (&trays[at], places[at].as_mut())) {
                tray.put(delivery, room.until, places);
            }
        }
        Ok(rest)
    }

    /// There is something for receivers to fetch.
    fn ring(&self) {
        for tray in self.trays.values() {
            tray.ring();
        }
    }

    /// Seals what is due. Answers how long it is until the next group is, at most a tick.
    async fn seal(&self) -> Result<Duration> {
        let (own, tick) = (&self.ownership.view().partitions, tick(&self.ownership));
        let Some(first) = self.engine.first_seal(own).await? else { return Ok(tick) };
        let now = self.clock.now();
        if first > now {
            return Ok(first.since(now).min(tick));
        }
        let sealed = self.engine.seal(own, &self.route.receivers, self.route.pace, now).await?;
        self.ring();
        // Somebody else may have been faster; then there is nothing to hurry for.
        Ok(if sealed > 0 { Duration::ZERO } else { SHORTEST_WAIT })
    }
}
