//! Timers: registered for a moment, fired once, delivered as notifications.
//!
//! A timer lies in the partition of its group, [`group_of_timer`], beside the lanes of its deliveries. So one step
//! ends its waiting and queues a delivery for each receiver of its class: after a crash it is still waiting, or it
//! has fired. From then on it is a notification like any other, with the id `<timer>:<due ms>`:
//! [`StoredDeliveries`](super::StoredDeliveries) leases it, retries it and keeps dead letters. The step that ends a
//! delivery also writes the receipt of the timer.
//!
//! Timers are cells: [`StoredTimers`] reads them, lets `presence/timer` decide, and writes the change if the timers
//! are unchanged. An engine decides nothing about them. Time is an argument.

use std::collections::BTreeMap;

use super::Delivery;
use super::cells::Cells;
use super::partition::TIMER;
use super::roster::Roster;
use crate::clock::Timestamp;
use crate::presence::{Timer, TimerClass, TimerId, TimerState, TimerType};

mod stored;
mod table;

pub(super) use stored::receipt_change;
pub use table::StoredTimers;

/// The key of the group of a timer, which has no other members.
pub fn group_of_timer(id: &TimerId) -> String {
    format!("{TIMER}{id}")
}

/// The timer of a group; `None`: the group is of something else.
pub fn timer_of_group(key: &str) -> Option<&str> {
    key.strip_prefix(TIMER)
}

/// The timer of a delivery, and the moment at which it fired; `None`: the delivery is not of a timer to a receiver of
/// its class.
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

/// The filter of a list of timers, and where its page begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FindTimers {
    /// Only timers of these types; all if empty.
    pub types: Vec<TimerType>,
    /// Only timers in these states; all if empty.
    pub states: Vec<TimerState>,
    /// Only timers that are due at this moment or later.
    pub from: Option<Timestamp>,
    /// Only timers that are due before this moment.
    pub until: Option<Timestamp>,
    /// Only timers after this position: the last of the page before.
    pub after: Option<TimerPosition>,
}

/// The place of a timer in lists: by moment, then by id (bytes).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerPosition {
    pub due: Timestamp,
    pub id: TimerId,
}

impl FindTimers {
    /// Whether the filter admits this timer; ignores where the page begins.
    pub fn matches(&self, timer: &Timer) -> bool {
        (self.types.is_empty() || self.types.contains(&timer.timer_type))
            && (self.states.is_empty() || self.states.contains(&timer.state()))
            && self.from.is_none_or(|from| timer.due >= from)
            && self.until.is_none_or(|until| timer.due < until)
    }

    /// Whether the filter admits any waiting timers, and any that have fired or been cancelled.
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
    /// Where the next page begins; `None` after the last. A page before the last may have few timers or none: the
    /// engine checks a bounded number of timers for each page.
    pub next: Option<TimerPosition>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fired {
    /// The timers that this caller fired, in their new state.
    pub timers: Vec<Timer>,
    /// Whether some of their deliveries wait in the engine for [`StoredDeliveries::lease`](super::StoredDeliveries::lease).
    pub has_queued: bool,
    /// Deliveries that are leased to the caller.
    pub deliveries: Vec<Delivery>,
}

/// How many deliveries the caller of [`StoredTimers::fire`] takes, and until when they are leased to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimerCapacity {
    /// By the name of the receiver; other receivers: none.
    pub most: BTreeMap<String, usize>,
    pub until: Timestamp,
}

impl TimerCapacity {
    /// The caller takes no deliveries: [`StoredDeliveries::lease`](super::StoredDeliveries::lease) hands them out.
    pub const NONE: TimerCapacity = TimerCapacity { most: BTreeMap::new(), until: Timestamp::ZERO };
}

/// The traits that timers need of an engine.
pub trait TimerEngine: Cells + Roster {}

impl<T: Cells + Roster> TimerEngine for T {}
