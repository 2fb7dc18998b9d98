//! Fires timers that are due, and hands their deliveries to the loops of the receivers.
//!
//! Timers have a loop of their own, so that a storm of silences delays no timer, and a storm of timers no silence:
//! both share the engine in bounded steps, and each receiver takes due deliveries of both. The loop sleeps until the
//! first timer of its partitions is due, and a registration in this process wakes it.
//!
//! Timers fire when a receiver has free slots for them: until then they can still be cancelled. While no receiver has
//! any, a step of them fires every half second; receivers that have room are unaffected by others that have none.
//!
//! Each instance fires the timers of its own partitions, and timers of other partitions that are overdue by
//! [`OVERDUE`]: their owner died or hangs. Several instances may try, because the engine lets each timer fire once.
//!
//! Timers follow the time of the fleet, which never goes back: a jump of a machine's clock fires nothing early.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use super::buffer::{Buffers, Slots, count, reserve_in};
use super::due::{DueWork, LoopName};
use super::{LEASE, MIN_WAIT, TICK, rotated, tick};
use crate::clock::{Clock, Timestamp, monotonic};
use crate::fleet::{Ownership, Timers};
use crate::presence::Timer;
use crate::store::{Result, StoredTimers, TimerCapacity, TimerClasses};
use crate::telemetry::{Loop, Telemetry};

/// The most timers that are read in one step.
const STEP: usize = 1000;
/// The least number of timers that a step reads: timers of a receiver with few slots hold up no others for long.
const LEAST: usize = 100;
/// Timers that are overdue for so long are fired by every instance.
const OVERDUE: Duration = Duration::from_secs(1);
/// The shortest time between two steps: a client that registers one timer after the other costs no more than that.
const BETWEEN_STEPS: Duration = Duration::from_millis(2);
/// After how long a timer of a type that is not configured here is checked again.
const PUT_OFF: Duration = Duration::from_secs(30);
/// How often the loop counts timers, forgets old ones, and gives up only attempts without an outcome.
const TIDIED_EVERY: Duration = Duration::from_secs(5);
/// An only attempt without an outcome is given up this long after its timeout.
const OUTCOME_AFTER: Duration = Duration::from_secs(60);
/// How often the index of timers is compared with the timers.
const MENDED_EVERY: Duration = Duration::from_secs(60);

pub(super) struct TimerFiring {
    pub engine: StoredTimers,
    /// Their classes, which a reload replaces.
    pub timers: Arc<Timers>,
    pub ownership: Ownership,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
    pub buffers: Buffers,
    /// The longest time that an attempt to deliver may take.
    pub longest_attempt: Duration,
}

/// How often timers were fired, and when the work beside firing is due.
pub(super) struct TimerProgress {
    turn: usize,
    stepped: Instant,
    tidy: Instant,
    others: Instant,
    mend: Instant,
}

impl DueWork for TimerFiring {
    type Progress = TimerProgress;
    const REPORTED_AS: Option<LoopName> = Some((Loop::Timers, ""));
    const FINISHES_STEPS: bool = true;

    fn begin(&self) -> TimerProgress {
        let now = monotonic();
        TimerProgress { turn: 0, stepped: now, tidy: now, others: now, mend: now }
    }

    /// Fires timers that are due. Answers how long it is until the next one is, at most a tick.
    async fn step(&self, next: &mut TimerProgress) -> Result<Duration> {
        next.stepped = monotonic();
        let classes = &self.timers.rules().classes;
        if classes.is_empty() {
            return Ok(TICK);
        }
        let view = self.ownership.view();
        let wait = self.fire_due(&view.partitions, next.turn, classes).await?;
        next.turn = next.turn.wrapping_add(1);
        if next.others <= monotonic() {
            next.others = monotonic() + TICK;
            self.fire_overdue(&view.partitions, classes).await?;
        }
        if next.tidy <= monotonic() {
            next.tidy = monotonic() + TIDIED_EVERY;
            self.tidy(&view.partitions).await?;
        }
        if next.mend <= monotonic() {
            next.mend = monotonic() + MENDED_EVERY;
            self.engine.repair_timers(&view.partitions).await?;
        }
        Ok(wait)
    }

    async fn hint(&self, progress: &TimerProgress) {
        self.timers.registered().notified().await;
        sleep_until((progress.stepped + BETWEEN_STEPS).into()).await;
    }
}

impl TimerFiring {
    /// Fires due timers and answers the wait until the next step. `turn` rotates the partitions, so that a partition
    /// with many due timers is not always first.
    async fn fire_due(&self, own: &[u16], turn: usize, classes: &TimerClasses) -> Result<Duration> {
        let longest = tick(&self.ownership);
        let Some(first) = self.engine.first_timer(own).await? else { return Ok(longest) };
        let now = self.clock.now();
        if first > now {
            return Ok(first.since(now).min(longest));
        }
        let own = rotated(own.to_vec(), turn);
        let due = self.engine.due_timers(&own, now, self.room(classes).await).await?;
        let fired = self.fire(&due, classes, true).await?;
        // Another instance may have been faster; then there is no hurry.
        Ok(if fired > 0 { Duration::ZERO } else { MIN_WAIT })
    }

    /// How many timers one step fires: as many as a receiver has free slots for, because a delivery without a slot is
    /// queued in the engine and leased later, which costs as much again. Waits for a moment while no receiver has a
    /// free slot; then a whole step fires, because the receivers may be away.
    async fn room(&self, classes: &TimerClasses) -> usize {
        let names: BTreeSet<&String> = classes.values().flat_map(|class| &class.receivers).collect();
        let buffers: Vec<_> = names.into_iter().filter_map(|name| self.buffers.of(name).cloned()).collect();
        let slots = reserve_in(&buffers, STEP).await;
        slots.iter().map(count).max().filter(|most| *most > 0).map_or(STEP, |most| most.max(LEAST))
    }

    /// Fires timers of other instances that are overdue.
    async fn fire_overdue(&self, own: &[u16], classes: &TimerClasses) -> Result<()> {
        let others: Vec<u16> = (0..self.engine.partitions()).filter(|one| !own.contains(one)).collect();
        let until = self.clock.now() - OVERDUE;
        let due = self.engine.due_timers(&others, until, STEP).await?;
        self.fire(&due, classes, false).await?;
        Ok(())
    }

    /// Fires timers, and takes deliveries as far as the receivers have free slots. Answers how many fired.
    async fn fire(&self, due: &[Timer], classes: &TimerClasses, takes: bool) -> Result<usize> {
        let (known, unknown): (Vec<Timer>, Vec<Timer>) =
            due.iter().cloned().partition(|timer| classes.contains_key(&timer.timer_type));
        if !unknown.is_empty() {
            self.telemetry.timers_without_class(unknown.iter().map(|timer| &timer.timer_type));
            self.engine.put_off(&unknown, self.clock.now() + PUT_OFF).await?;
        }
        if known.is_empty() {
            return Ok(0);
        }
        let mut slots = if takes { self.reserve(&known, classes) } else { BTreeMap::new() };
        let now = self.clock.now();
        let most = slots.iter().map(|(name, slots)| (name.clone(), count(slots))).collect();
        let capacity = TimerCapacity { most, until: now + LEASE };
        let fired = self.engine.fire(&known, classes, &capacity, now).await?;
        for timer in &fired.timers {
            self.telemetry.timer_fired(&timer.timer_type, now.since(timer.due));
        }
        for delivery in fired.deliveries {
            let slots = slots.get_mut(&delivery.receiver).and_then(Option::as_mut);
            if let (Some(buffer), Some(slots)) = (self.buffers.of(&delivery.receiver), slots) {
                buffer.push(delivery, capacity.until, slots);
            }
        }
        if fired.has_queued {
            self.buffers.notify();
        }
        Ok(fired.timers.len())
    }

    /// Reserves free slots of the receivers of the due timers. Deliveries without a slot wait in the engine.
    fn reserve(&self, due: &[Timer], classes: &TimerClasses) -> BTreeMap<String, Option<Slots>> {
        let mut wanted: BTreeMap<&String, usize> = BTreeMap::new();
        for class in due.iter().filter_map(|timer| classes.get(&timer.timer_type)) {
            for name in &class.receivers {
                *wanted.entry(name).or_default() += 1;
            }
        }
        let slots = wanted.into_iter().filter_map(|(name, count)| {
            Some((name.clone(), self.buffers.of(name)?.reserve_for_joins(count)))
        });
        slots.collect()
    }

    /// Counts timers, removes timers whose time on record is over, and gives up only attempts without an outcome.
    async fn tidy(&self, own: &[u16]) -> Result<()> {
        let now: Timestamp = self.clock.now();
        let waiting = self.engine.count_timers(own).await?;
        self.telemetry.timers_waiting(self.timers.rules().classes.keys(), &waiting);
        self.engine.forget_timers(own, now).await?;
        let before = now - (self.longest_attempt + OUTCOME_AFTER);
        for of in self.engine.give_up_only_attempts(own, before).await? {
            self.telemetry.timer_outcome_unknown(&of);
        }
        Ok(())
    }
}
