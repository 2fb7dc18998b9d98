//! From the outbox into groups, and from groups to deliveries.
//!
//! A step lets entries of the outbox join their groups, removes them from the outbox, and seals the groups that are
//! due. It keeps nothing in memory that is not in the engine. An entry leaves the outbox only after it has joined,
//! and joining twice is joining once, so a crash or a failure of the engine between any two calls loses nothing and
//! repeats nothing. Several instances may dispatch at the same time; each works on its own partitions, and when these
//! change, their next owner finds everything in the engine.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::buffer::{Buffers, DeliveryBuffer, count, reserve_in};
use super::catch_up::CatchUp;
use super::due::{DueWork, LoopName};
use super::flapping::{noted, records_of};
use super::group::groups_of;
use super::routed_groups::RoutedGroups;
use super::silenced::is_held;
use super::stateful_alerts::{StatefulAlerts, acknowledged, removed};
use super::{FIRST_PARTITION, LEASE, MIN_WAIT, tick};
use crate::clock::{Clock, Timestamp, monotonic};
use crate::fleet::Ownership;
use crate::fleet::ownership::View;
use crate::presence::Trip;
use crate::routing::AlertSilences;
use crate::store::{
    Capacity, Join, OutboxEntry, OutboxEvent, OutboxStore, Position, Result, partition_of, partition_of_group,
};
use crate::telemetry::Loop;

/// The most entries of outboxes in one step of a task: enough for each transaction of an embedded engine to be worth its
/// cost, and few enough for the memory that is close to a processor.
const STEP: usize = 500;

/// How often the sources of inhibition are compared with the open records.
const COMPARED_EVERY: Duration = Duration::from_secs(300);

/// How long groups that are due wait for an outbox that holds more than a batch: silences of one storm are notified
/// together, though it takes seconds until all have joined.
const BACKLOG: Duration = Duration::from_secs(5);

/// How many tasks let entries join at the same time: one decides while the other waits for the engine. More of them
/// would only delay the ends of deliveries, which wait for the same engine.
const TASKS: usize = 2;

pub(super) struct Dispatcher {
    pub routed: RoutedGroups,
    pub outbox: Arc<dyn OutboxStore>,
    /// The outboxes and partitions that are this instance's own.
    pub ownership: Ownership,
    pub clock: Clock,
    /// Notified when the outbox has a new entry.
    pub outbox_grew: Arc<Notify>,
    pub stateful_alerts: Arc<StatefulAlerts>,
    /// For the deliveries that are leased with their join.
    pub buffers: Buffers,
}

pub(super) struct DispatchProgress {
    /// When the sources of inhibition were compared last.
    compared: Option<Instant>,
    /// When groups were sealed last.
    sealed: Instant,
    /// Own partitions whose silences follow the current routes.
    rescheduled: BTreeSet<u16>,
    catch_up: CatchUp,
}

/// The notifications that become due in groups.
#[derive(Clone, Copy)]
enum GroupsDue {
    /// Notifications of the transitions that joined.
    Seals,
    /// Repeated notifications of silences that last, and escalations to further receivers.
    Reminders,
}

impl DueWork for Arc<Dispatcher> {
    type Progress = DispatchProgress;
    const REPORTED_AS: Option<LoopName> = Some((Loop::Dispatch, ""));
    const FINISHES_STEPS: bool = true;

    fn begin(&self) -> DispatchProgress {
        DispatchProgress {
            compared: None,
            sealed: monotonic(),
            rescheduled: BTreeSet::new(),
            catch_up: CatchUp::begin(),
        }
    }

    /// Compares the sources of inhibition with the open records before the first step, and every few minutes as the
    /// owner of the first partition.
    async fn step(&self, progress: &mut DispatchProgress) -> Result<Duration> {
        let is_due = match progress.compared {
            None => true,
            Some(at) => {
                monotonic().duration_since(at) > COMPARED_EVERY && self.ownership.owns(FIRST_PARTITION)
            }
        };
        if is_due {
            let RoutedGroups { holds, queries, .. } = &self.routed;
            holds.inhibitions.compare(&**queries, self.clock.now()).await?;
            progress.compared = Some(monotonic());
        }
        self.dispatch(progress).await
    }

    async fn hint(&self, _: &DispatchProgress) {
        self.outbox_grew.notified().await;
    }
}

impl Dispatcher {
    /// Dispatches one batch of the outbox, and the due groups. Answers how long to wait for the next step.
    async fn dispatch(self: &Arc<Self>, progress: &mut DispatchProgress) -> Result<Duration> {
        let now = self.clock.now();
        let joined = self.join_all().await?;
        if joined >= STEP && monotonic().duration_since(progress.sealed) < BACKLOG {
            return Ok(Duration::ZERO);
        }
        let wait = self.seal(progress, now).await?;
        progress.sealed = monotonic();
        // The outbox may hold more.
        Ok(if joined > 0 { Duration::ZERO } else { wait })
    }

    /// Lets a batch of each outbox join its groups. Answers how many entries the largest batch had. The events of one
    /// unit are in one outbox, so they keep their order though several tasks work on different outboxes.
    async fn join_all(self: &Arc<Self>) -> Result<usize> {
        let outboxes = self.ownership.view().outboxes.clone();
        let mut joining = JoinSet::new();
        for outboxes in outboxes.chunks(outboxes.len().div_ceil(TASKS).max(1)) {
            let (this, outboxes) = (self.clone(), outboxes.to_vec());
            joining.spawn(async move { this.join(&outboxes).await });
        }
        let mut most = 0;
        while let Some(joined) = joining.join_next().await {
            most = most.max(joined.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?);
        }
        Ok(most)
    }

    /// Lets a batch of outbox entries join their groups. Answers how many entries the batch had.
    async fn join(&self, outboxes: &[u16]) -> Result<usize> {
        let entries = self.outbox.outbox(outboxes, STEP).await?;
        let count = entries.len();
        if count == 0 {
            return Ok(0);
        }
        let (acknowledged, removed) = (acknowledged(&entries), removed(&entries));
        let (positions, events): (Vec<Position>, Vec<OutboxEvent>) =
            entries.into_iter().map(|OutboxEntry { position, event }| (position, event)).unzip();
        let mut has_queued = self.stateful_alerts.remove(&removed).await?;
        // Sources first: a sensor may be in the same batch as its gateway.
        self.routed.holds.inhibitions.enter(records_of(&events), self.clock.now()).await?;
        let trip = match records_of(&events).any(|record| record.closed_by.is_none()) {
            true => self.routed.holds.breaker.judge(self.clock.now()).await?,
            false => self.routed.holds.breaker.held().await?,
        };
        // The flaps that are noted here have to be stored, too, before the entries are removed.
        let partitions = self.routed.groups.partitions();
        let of_flapping =
            records_of(&events).filter(|record| self.routed.flapping.rule(&record.kind).is_some());
        let noted_in: BTreeSet<u16> =
            of_flapping.map(|record| partition_of(&record.id.unit, partitions)).collect();
        let events = noted(&self.routed.flapping, events).await?;
        let held = self.held(&events).await?;
        let free = events.into_iter().zip(held).filter(|(_, is_held)| !is_held);
        let join = |(event, _)| Join { groups: groups_of(&event, &self.routed.routes), event };
        let mut joins: Vec<Join> = free.map(join).collect();
        // Joins of one partition go in one step, and so do their deliveries later.
        joins.sort_by_cached_key(|join| partition_of_group(&join.groups[0].key, partitions));
        let (mut rest, mut groups) = (&joins[..], noted_in);
        while !rest.is_empty() {
            rest = self.join_some(rest, trip.as_ref(), &mut groups).await?;
        }
        has_queued |= self.stateful_alerts.acknowledge(&acknowledged).await?;
        if has_queued {
            self.buffers.notify();
        }
        // Remove entries after joining: a crash in between joins them again, which changes nothing.
        self.outbox.remove_entries(&positions, &groups).await?;
        Ok(count)
    }

    /// For each event whether it joins no group, because an alert silence covers it.
    async fn held(&self, events: &[OutboxEvent]) -> Result<Vec<bool>> {
        let held_by = |silences: &AlertSilences| {
            let now = self.clock.now();
            let held = events.iter().map(|event| is_held(event, silences, now));
            held.collect::<Vec<bool>>()
        };
        let known = self.routed.holds.silences.cached().await?;
        let held = held_by(&known);
        if !held.contains(&true) {
            return Ok(held);
        }
        // Only alert silences that are read after the outbox hold an entry: see `silenced.rs`.
        let current = self.routed.holds.silences.current().await?;
        Ok(held_by(&current))
    }

    /// Lets the first events join, and returns the others. Joins at most as many events as a receiver without a wait
    /// has free slots, so that the engine hands their deliveries out at once; without free slots, a whole step. Adds
    /// the partitions of the groups to `groups`.
    async fn join_some<'a>(
        &self,
        joins: &'a [Join],
        trip: Option<&Trip>,
        groups: &mut BTreeSet<u16>,
    ) -> Result<&'a [Join]> {
        let (receivers, at_once) =
            (self.routed.destinations.receivers(), self.routed.destinations.without_wait());
        let found = at_once.iter().filter_map(|name| self.buffers.of(name).cloned());
        let buffers: Vec<Arc<DeliveryBuffer>> = found.collect();
        let mut slots = reserve_in(&buffers, joins.len()).await;
        let counts: HashMap<&str, usize> =
            at_once.iter().map(|name| name.as_str()).zip(slots.iter().map(count)).collect();
        let most: Vec<usize> =
            receivers.iter().map(|name| counts.get(name.as_str()).copied().unwrap_or(0)).collect();
        let fitting = most.iter().copied().max().filter(|fitting| *fitting > 0);
        let (joins, rest) = joins.split_at(fitting.unwrap_or(STEP).min(joins.len()));
        let now = self.clock.now();
        let room = Capacity { most, until: now + LEASE };
        let destinations = self.routed.holds.with(trip, &self.routed.destinations, now).await?;
        let joined = self.routed.groups.join(joins, &destinations, &room, now).await?;
        groups.extend(joined.groups);
        if joined.has_queued {
            self.buffers.notify();
        }
        for delivery in joined.deliveries {
            let at = at_once.iter().position(|name| **name == delivery.receiver);
            if let Some((buffer, Some(slots))) = at.map(|at| (&buffers[at], slots[at].as_mut())) {
                buffer.push(delivery, room.until, slots);
            }
        }
        Ok(rest)
    }

    /// Seals the due groups, and the groups whose receivers are notified again. Answers how long it is until the next
    /// group is due, at most a tick. `joined`: the own outboxes have joined up to this moment. A group that is due
    /// later waits for the next step: the return of its unit may be in an outbox.
    async fn seal(&self, progress: &mut DispatchProgress, joined: Timestamp) -> Result<Duration> {
        let view = self.ownership.view();
        let wait = self.notify_due(GroupsDue::Seals, &view, &mut progress.catch_up, joined).await?;
        // Without reminders in the configuration there is nothing to read from the engine.
        if !self.routed.destinations.has_reminders() {
            return Ok(wait);
        }
        self.reschedule(&view.partitions, &mut progress.rescheduled).await?;
        let reminded = self.notify_due(GroupsDue::Reminders, &view, &mut progress.catch_up, joined);
        Ok(wait.min(reminded.await?))
    }

    /// The moment up to which all entries of all outboxes have joined. Entries in the outboxes of other instances on
    /// which no instance works join here.
    async fn caught_up(&self, view: &View, catch_up: &mut CatchUp, joined: Timestamp) -> Result<Timestamp> {
        let others: Vec<u16> = (0..=self.routed.groups.partitions())
            .filter(|outbox| view.outboxes.binary_search(outbox).is_err())
            .collect();
        let stalled = catch_up.observe(&*self.outbox, &others, BACKLOG, joined).await?;
        if !stalled.is_empty() {
            self.join(&stalled).await?;
        }
        Ok(catch_up.up_to())
    }

    /// Creates a bounded number of the notifications that are due. Returns the wait until the next.
    async fn notify_due(
        &self,
        due: GroupsDue,
        view: &View,
        catch_up: &mut CatchUp,
        joined: Timestamp,
    ) -> Result<Duration> {
        let (groups, own, tick) = (&self.routed.groups, &view.partitions[..], tick(&self.ownership));
        let first = match due {
            GroupsDue::Seals => groups.first_seal(own).await?,
            GroupsDue::Reminders => groups.first_reminder(own).await?,
        };
        let Some(first) = first else { return Ok(tick) };
        let now = self.clock.now();
        if first > now {
            return Ok(first.since(now).min(tick));
        }
        let now = self.caught_up(view, catch_up, joined).await?;
        if first > now {
            return Ok(MIN_WAIT);
        }
        let destinations = self.routed.current_destinations(now).await?;
        let made = match due {
            GroupsDue::Seals => groups.seal(own, &destinations, now).await?,
            GroupsDue::Reminders => groups.remind(own, &destinations, now).await?,
        };
        if made == 0 {
            // Another instance may have been faster; then there is no hurry.
            return Ok(MIN_WAIT);
        }
        self.buffers.notify();
        Ok(Duration::ZERO)
    }

    /// Applies the routes to silences that receivers were notified of before: once for each partition.
    async fn reschedule(&self, own: &[u16], done: &mut BTreeSet<u16>) -> Result<()> {
        done.retain(|partition| own.contains(partition));
        let missing: Vec<u16> = own.iter().copied().filter(|partition| !done.contains(partition)).collect();
        if !missing.is_empty() {
            self.routed.groups.reschedule(&missing, &self.routed.destinations, self.clock.now()).await?;
            done.extend(missing);
        }
        Ok(())
    }
}
