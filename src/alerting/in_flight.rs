//! The deliveries of one receiver that this instance holds: leased, attempted, or attempted and not yet recorded.
//!
//! Each delivery takes up a slot of the receiver's buffer, so nothing here grows while the engine or the receiver
//! hangs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::buffer::{Buffered, Slots};
use super::channel::{Failure, ReceiverAnswer};
use super::probing::Probing;
use crate::clock::{Timestamp, monotonic};
use crate::store::{Delivery, EndedLease};
use crate::telemetry::LogLimit;

/// No more deliveries are leased while the held ones have more records than this.
const MAX_RECORDS: usize = 50_000;

pub(super) struct DeliveriesInFlight {
    /// Leased and not begun, by id. Ids that are not in `leased` any more are skipped.
    pub waiting: VecDeque<String>,
    pub attempts: JoinSet<FinishedAttempt>,
    /// Outcomes that are not yet written to the engine.
    pub unrecorded: Vec<EndedLease>,
    /// Every delivery whose outcome the engine does not know, by id.
    pub leased: HashMap<String, LeasedDelivery>,
    /// How many of `leased` were begun.
    pub begun: usize,
    /// Why the receiver is disabled.
    pub disabled: Option<String>,
    pub probing: Probing,
    /// Whether the last attempt failed; `None` before the first.
    pub is_down: Option<bool>,
    /// Whether the last attempt failed, so that the log already says that the receiver fails.
    pub is_failing: bool,
    pub deliveries_logged: LogLimit,
    pub failures_logged: LogLimit,
    records: Arc<AtomicUsize>,
}

/// A leased delivery and the slot that it takes up.
pub(super) struct LeasedDelivery {
    pub delivery: Arc<Delivery>,
    /// The end of its lease.
    pub until: Timestamp,
    pub is_begun: bool,
    /// Its outcome is decided; without an attempt, if the receiver is disabled.
    pub has_ended: bool,
    _slot: Slots,
    _records: RecordPermit,
}

/// The number of records of a held delivery, and the sum over all held deliveries.
struct RecordPermit(usize, Arc<AtomicUsize>);

impl Drop for RecordPermit {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0, Ordering::Relaxed);
    }
}

pub(super) struct FinishedAttempt {
    pub id: String,
    /// `None`: the delivery might not be attempted.
    pub sent: Option<Sent>,
}

/// The answer of a receiver to an attempt.
pub(super) struct Sent {
    pub result: Result<ReceiverAnswer, Failure>,
    /// The begin of the attempt.
    pub at: Timestamp,
    pub took: Duration,
}

impl DeliveriesInFlight {
    pub fn new() -> DeliveriesInFlight {
        DeliveriesInFlight {
            waiting: VecDeque::new(),
            attempts: JoinSet::new(),
            unrecorded: Vec::new(),
            leased: HashMap::new(),
            begun: 0,
            disabled: None,
            probing: Probing::default(),
            is_down: None,
            is_failing: false,
            deliveries_logged: LogLimit::new(monotonic()),
            failures_logged: LogLimit::new(monotonic()),
            records: Arc::default(),
        }
    }

    pub fn push(&mut self, Buffered { delivery, until, slot }: Buffered) {
        let (id, delivery) = (delivery.id.clone(), Arc::new(delivery));
        if let Some(leased) = self.leased.get_mut(&id) {
            // The lease had ended and this instance leased the delivery again: an attempt that is under way goes on.
            (leased.delivery, leased.until) = (delivery, until);
            return;
        }
        let count = delivery.offline.len() + delivery.online.len();
        self.records.fetch_add(count, Ordering::Relaxed);
        let records = RecordPermit(count, self.records.clone());
        let leased = LeasedDelivery {
            delivery,
            until,
            is_begun: false,
            has_ended: false,
            _slot: slot,
            _records: records,
        };
        self.leased.insert(id.clone(), leased);
        self.waiting.push_back(id);
    }

    /// Whether the held deliveries have too many records to lease more: one delivery of a storm has ten thousand.
    pub fn is_full(&self) -> bool {
        self.records.load(Ordering::Relaxed) > MAX_RECORDS
    }

    /// The deliveries whose leases end before `before` and which this instance still needs.
    pub fn to_extend(&self, before: Timestamp) -> Vec<Arc<Delivery>> {
        let needed = self.leased.values().filter(|leased| !leased.has_ended && leased.until < before);
        needed.map(|leased| leased.delivery.clone()).collect()
    }

    /// Notes which leases were extended. A delivery that lost its lease before its attempt is left to the instance
    /// that holds it now.
    pub fn set_extended(&mut self, deliveries: &[Arc<Delivery>], until: Timestamp, still_leased: Vec<bool>) {
        let count = self.leased.len();
        for (delivery, is_leased) in deliveries.iter().zip(still_leased) {
            let Some(leased) = self.leased.get_mut(&delivery.id) else { continue };
            // The delivery may have been leased again meanwhile.
            let is_same = leased.delivery.attempt == delivery.attempt;
            if is_leased && is_same {
                leased.until = until;
            } else if is_same && leased.is_waiting() {
                self.remove(&delivery.id);
            }
        }
        if self.leased.len() < count {
            let DeliveriesInFlight { waiting, leased, .. } = self;
            waiting.retain(|id| leased.contains_key(id));
        }
    }

    /// Takes the waiting delivery with the fewest attempts: a delivery that the receiver refuses for its content is
    /// no good probe. A timer that is delivered at most once is taken only if nothing else waits: it would be lost.
    pub fn take_probe(&mut self) -> Option<String> {
        let leased = self.waiting.iter().map(|id| self.leased.get(id).filter(|leased| leased.is_waiting()));
        let cost = |leased: &LeasedDelivery| (leased.delivery.is_at_most_once(), leased.delivery.attempt);
        let costs = leased.map(|leased| leased.map_or((true, u32::MAX), cost));
        let (least, _) = costs.enumerate().min_by_key(|&(_, cost)| cost)?;
        self.waiting.remove(least)
    }

    /// Takes out the deliveries whose attempts were not begun.
    pub fn take_waiting(&mut self) -> Vec<Arc<Delivery>> {
        self.waiting.clear();
        self.leased.extract_if(|_, leased| leased.is_waiting()).map(|(_, leased)| leased.delivery).collect()
    }

    /// Lets go of a delivery and its slot.
    pub fn remove(&mut self, id: &str) {
        if self.leased.remove(id).is_some_and(|leased| leased.is_begun) {
            self.begun -= 1;
        }
    }
}

impl LeasedDelivery {
    pub fn is_waiting(&self) -> bool {
        !self.is_begun && !self.has_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerting::buffer::DeliveryBuffer;
    use crate::presence::{FiredTimer, Guarantee, TimerData};
    use crate::store::Group;

    fn fired(guarantee: Guarantee) -> FiredTimer {
        let at = Timestamp::ZERO;
        let (id, timer_type) = ("one".parse().unwrap(), "report".parse().unwrap());
        FiredTimer { id, timer_type, guarantee, due: at, fired_at: at, data: TimerData::default() }
    }

    #[test]
    fn a_timer_that_is_delivered_at_most_once_is_a_probe_only_if_nothing_else_waits() {
        let (buffer, _queue) = DeliveryBuffer::new(64, true);
        let mut in_flight = DeliveriesInFlight::new();
        for (id, guarantee, attempt) in [
            ("once", Guarantee::AtMostOnce, 1),
            ("often", Guarantee::AtLeastOnce, 9),
            ("new", Guarantee::AtLeastOnce, 1),
        ] {
            let group = Group { key: id.to_owned(), labels: Default::default() };
            let delivery = Delivery::new(id.to_owned(), "hook", group, Timestamp::ZERO);
            let delivery = Delivery { timers: vec![fired(guarantee)], attempt, ..delivery };
            in_flight.push(Buffered { delivery, until: Timestamp::NEVER, slot: buffer.reserve(1).unwrap() });
        }
        let taken: Vec<String> = std::iter::from_fn(|| in_flight.take_probe()).collect();
        assert_eq!(taken, ["new", "often", "once"]);
    }
}
