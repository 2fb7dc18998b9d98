//! Timers: registered for a moment, fired once, delivered as notifications.
//!
//! A timer lies in the partition of its group, [`group_of_timer`], beside the lanes of its deliveries. So one step ends
//! its waiting and queues a delivery for each receiver of its class: a crash leaves it waiting or fired. From then on
//! it is a notification like any other, with the id `<timer>:<due ms>`, and [`DeliveryStore`](super::DeliveryStore)
//! leases it, retries it and keeps dead letters. The step that ends a delivery also writes the receipt of the timer.
//!
//! An engine decides nothing: firing is "read, decide, apply if unchanged", as for units. Time is an argument.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use async_trait::async_trait;

use super::{Delivery, Layout, Result, crc16};
use crate::clock::Timestamp;
use crate::presence::{DEFAULT_TIMER_KEEP, NewTimer, Timer, TimerClass, TimerId, TimerState, TimerType};

/// The begin of the key of a timer's group; its id follows. No label is named so.
const TIMER: &str = "timer:";

/// The key of the group of a timer, which has no other members.
pub fn group_of_timer(id: &TimerId) -> String {
    format!("{TIMER}{id}")
}

/// The partition of a timer: that of its group.
pub(super) fn partition_of_timer(id: &TimerId, partitions: u16) -> u16 {
    crc16_of_timer(id) % partitions.max(1)
}

/// The checksum of the key of a timer's group.
pub(super) fn crc16_of_timer(id: &TimerId) -> u16 {
    crc16(&[TIMER.as_bytes(), id.as_str().as_bytes()])
}

/// The timer of a group; `None`: it is the group of something else.
pub fn timer_of_group(key: &str) -> Option<&str> {
    key.strip_prefix(TIMER)
}

/// The timer of a delivery, and the moment at which it fired; `None`: it is not a delivery of a timer to one of the
/// receivers of its class.
pub(super) fn firing_of(delivery: &Delivery) -> Option<(TimerId, Timestamp)> {
    timer_and_due(&delivery.group.key, delivery.notification()).filter(|_| delivery.meant_for.is_none())
}

/// The timer of a notification and the moment at which it fired, by its group and its id.
pub fn timer_and_due(group: &str, notification: &str) -> Option<(TimerId, Timestamp)> {
    let (_, due) = notification.rsplit_once(':')?;
    Some((timer_of_group(group)?.parse().ok()?, Timestamp::from_millis(due.parse().ok()?)))
}

/// The classes of timers by their types.
pub type TimerClasses = BTreeMap<TimerType, TimerClass>;

/// The outcome of registering a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerRegistered {
    /// The id was unknown, or its timer has fired or was cancelled.
    Created,
    /// The timer was waiting, and has this moment, type and data now.
    Changed,
    /// Nothing is changed: the id is known, and only a new one was wanted.
    Exists,
    /// Nothing is changed: this timer has fired at this very moment, and `<timer>:<due ms>` fires once.
    HasFired,
}

/// The outcome of cancelling a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerCancelled {
    /// It was waiting, and never fires.
    Yes,
    /// It is not as the caller knows it any more; nothing is changed.
    Changed,
    /// It has fired, or was cancelled before.
    Ended,
    Unknown,
}

/// The timers of a list, and where it goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FindTimers {
    /// Only timers of these types; all if empty.
    pub types: Vec<TimerType>,
    /// Only timers in these states; all if empty.
    pub states: Vec<TimerState>,
    /// Only timers that are due then or later.
    pub from: Option<Timestamp>,
    /// Only timers that are due before.
    pub until: Option<Timestamp>,
    /// Only timers after this one, in the order of the list: the last of the page before.
    pub after: Option<TimerPosition>,
}

/// The place of a timer in lists: by moment, then by id (bytes).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerPosition {
    pub due: Timestamp,
    pub id: TimerId,
}

impl FindTimers {
    /// Whether the list has this timer, wherever the page begins.
    pub fn matches(&self, timer: &Timer) -> bool {
        (self.types.is_empty() || self.types.contains(&timer.timer_type))
            && (self.states.is_empty() || self.states.contains(&timer.state()))
            && self.from.is_none_or(|from| timer.due >= from)
            && self.until.is_none_or(|until| timer.due < until)
    }

    /// Whether any timers that wait, and any that have ended or fired, may be in the list.
    pub(super) fn wants(&self) -> (bool, bool) {
        let is_waiting = |state: &TimerState| *state == TimerState::Waiting;
        let all = self.states.is_empty();
        (all || self.states.iter().any(is_waiting), all || !self.states.iter().all(is_waiting))
    }
}

/// A part of a list, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimerPage {
    pub timers: Vec<Timer>,
    /// Where the next page begins; `None` after the last. A page may have few timers, or none, and not be the last:
    /// the engine looks at a bounded number of them for each page.
    pub next: Option<TimerPosition>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fired {
    /// The timers that this caller fired, as they are now.
    pub timers: Vec<Timer>,
    /// Whether some of their deliveries wait in the engine for [`DeliveryStore::lease`](super::DeliveryStore::lease).
    pub has_queued: bool,
    /// Deliveries that are leased to the caller.
    pub deliveries: Vec<Delivery>,
}

/// How many deliveries the caller of [`TimerStore::fire`] takes, and until when they are leased to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimerCapacity {
    /// By the name of the receiver; none for the others.
    pub most: BTreeMap<String, usize>,
    pub until: Timestamp,
}

impl TimerCapacity {
    /// The caller takes none: [`DeliveryStore::lease`](super::DeliveryStore::lease) hands them out.
    pub const NONE: TimerCapacity = TimerCapacity { most: BTreeMap::new(), until: Timestamp::ZERO };
}

#[async_trait]
pub trait TimerStore: Layout {
    /// Registers timers, each in one step: a new one, or another moment, type and data for one that waits. With
    /// `only_new` an id that is known, waiting or not, is refused. Answers in order; of an id that is there twice the
    /// last counts. Safe to repeat.
    async fn register(
        &self,
        timers: &[NewTimer],
        only_new: bool,
        now: Timestamp,
    ) -> Result<Vec<TimerRegistered>>;

    /// Cancels timers that wait, each in one step. They can be read as long as those that fired. Answers in order.
    async fn cancel(
        &self,
        ids: &[TimerId],
        classes: &TimerClasses,
        now: Timestamp,
    ) -> Result<Vec<TimerCancelled>>;

    /// Cancels timers that are still as the caller read them: one that got another moment, type or data since is left.
    async fn cancel_unchanged(
        &self,
        timers: &[Timer],
        classes: &TimerClasses,
        now: Timestamp,
    ) -> Result<Vec<TimerCancelled>>;

    /// Reads timers, in order; `None`: unknown, or forgotten by now.
    async fn timers(&self, ids: &[TimerId]) -> Result<Vec<Option<Timer>>>;

    /// A page of timers by moment and id: about `limit` of them are looked at. Those that change meanwhile may be
    /// missing.
    async fn find_timers(&self, find: &FindTimers, limit: usize) -> Result<TimerPage>;

    /// How many timers of each type wait in these partitions. The engine keeps these numbers: reading costs little.
    async fn count_timers(&self, partitions: &[u16]) -> Result<BTreeMap<TimerType, u64>>;

    /// The moment of the first timer that waits in these partitions.
    async fn first_timer(&self, partitions: &[u16]) -> Result<Option<Timestamp>>;

    /// Up to about `limit` timers of these partitions whose moment is at or before `until`, the first of each partition
    /// first, for [`TimerStore::fire`]. A span is postponed by the steps of the clock that were accepted since, and is
    /// not among them. If more are due, a partition that has few is taken whole, and the
    /// others may be taken one after the other.
    async fn due_timers(&self, partitions: &[u16], until: Timestamp, limit: usize) -> Result<Vec<Timer>>;

    /// Fires timers that still wait as they were read, each in one step: it waits no more, and for each receiver of
    /// its class a notification is queued, of which the caller gets up to `capacity` leased. A timer of a type that is
    /// not in `classes` is left as it is.
    async fn fire(
        &self,
        timers: &[Timer],
        classes: &TimerClasses,
        capacity: &TimerCapacity,
        now: Timestamp,
    ) -> Result<Fired>;

    /// Looks again at timers in `wait`, because no instance can fire them now: a class is not configured here. Their
    /// moment stays as it is.
    async fn put_off(&self, timers: &[Timer], until: Timestamp) -> Result<()>;

    /// Ends deliveries of timers that are delivered at most once, before their only attempt: whatever follows, none of
    /// them is leased again. Answers, in order, which the caller may attempt: not those that another one has begun, or
    /// leased since. [`DeliveryStore::end_attempts`](super::DeliveryStore::end_attempts) writes the outcome.
    async fn begin_only_attempts(&self, deliveries: &[&Delivery], now: Timestamp) -> Result<Vec<bool>>;

    /// Only attempts of these partitions that began before `before` and have no outcome: their outcome is unknown from
    /// now on. Answers the types of their timers, one for each attempt.
    async fn give_up_only_attempts(&self, partitions: &[u16], before: Timestamp) -> Result<Vec<TimerType>>;

    /// Forgets timers of these partitions that ended and are not kept any more, a bounded number of them. Answers how
    /// many.
    async fn forget_timers(&self, partitions: &[u16], now: Timestamp) -> Result<usize>;

    /// Compares the index and the counts of timers that wait in these partitions with the timers, and makes them again
    /// where they differ. An engine that cannot lose them alone does nothing.
    async fn repair_timers(&self, _partitions: &[u16]) -> Result<()> {
        Ok(())
    }
}

/// The timers of a call, in which an id may be there several times.
pub(super) struct CalledTimers<'a> {
    ids: Vec<&'a TimerId>,
    /// The first and the last place of each id.
    places: HashMap<&'a TimerId, (usize, usize)>,
}

impl<'a> CalledTimers<'a> {
    pub fn new(ids: impl Iterator<Item = &'a TimerId>) -> CalledTimers<'a> {
        let (ids, mut places): (Vec<&TimerId>, HashMap<_, (usize, usize)>) = (ids.collect(), HashMap::new());
        for (place, id) in ids.iter().enumerate() {
            places.entry(*id).and_modify(|(_, last)| *last = place).or_insert((place, place));
        }
        CalledTimers { ids, places }
    }

    /// One place of each id, in order: the first, or the last.
    pub fn once(&self, is_first: bool) -> Vec<usize> {
        let places = self.places.values().map(|(first, last)| if is_first { *first } else { *last });
        let mut places: Vec<usize> = places.collect();
        places.sort_unstable();
        places
    }

    /// Completes the answers to a registration in which the last place of each id counts: the first one makes a new
    /// timer and the others change it, but if it has fired at the moment of the last one, no place does anything.
    pub fn complete(&self, answers: &mut [TimerRegistered]) {
        for (place, id) in self.ids.iter().enumerate() {
            let (first, last) = self.places[id];
            if place == last {
                continue;
            }
            answers[place] = match answers[last] {
                TimerRegistered::Created if place != first => TimerRegistered::Changed,
                answer => answer,
            };
        }
        for (first, last) in self.places.values().filter(|(first, last)| first != last) {
            if answers[*first] == TimerRegistered::Created {
                answers[*last] = TimerRegistered::Changed;
            }
        }
    }
}

/// Due timers, without the spans that steps of the clock postpone: these are as they were, and as they are then.
pub(super) fn without_postponed(
    due: impl Iterator<Item = Timer>,
    stepped: Duration,
) -> (Vec<Timer>, Vec<(Timer, Timer)>) {
    let (mut now, mut later) = (Vec::new(), Vec::new());
    for timer in due {
        match timer.postponed(stepped) {
            None => now.push(timer),
            Some(postponed) => later.push((timer, postponed)),
        }
    }
    (now, later)
}

/// How long timers of a type are kept after they ended.
pub(super) fn keep_of(classes: &TimerClasses, of: &TimerType) -> Duration {
    classes.get(of).map_or(DEFAULT_TIMER_KEEP, |class| class.keep)
}
