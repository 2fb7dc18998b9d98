//! The delivery buffer of a receiver: how many deliveries this instance holds for it, and the queue of deliveries
//! that were leased with their join.
//!
//! If a transition is alone in a group that is due at once, its delivery is leased with its join, and the receiver's
//! loop need not fetch it from the engine. That needs a free slot first: every held delivery takes up a slot, from
//! before the call of the engine until the engine has its outcome.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::clock::Timestamp;
use crate::store::Delivery;

/// The longest wait for a free slot, while every buffer is full. After it deliveries stay in the engine for
/// receivers that are slow or away; other receivers are unaffected.
const MAX_WAIT: Duration = Duration::from_millis(500);

pub(super) struct DeliveryBuffer {
    capacity: usize,
    /// Whether deliveries may come with their join; otherwise the receiver's loop leases each of them.
    takes_joined: bool,
    slots: Arc<Semaphore>,
    // Bounded by the slots.
    queue: UnboundedSender<Buffered>,
    ready: Notify,
}

/// Slots that are reserved.
pub(super) type Slots = OwnedSemaphorePermit;

/// A leased delivery and the slot that it takes up.
pub(super) struct Buffered {
    pub delivery: Delivery,
    /// The end of its lease.
    pub until: Timestamp,
    pub slot: Slots,
}

impl DeliveryBuffer {
    /// An empty buffer, and the end of its queue for the receiver's loop.
    pub fn new(capacity: usize, takes_joined: bool) -> (Arc<DeliveryBuffer>, UnboundedReceiver<Buffered>) {
        let (queue, buffered) = unbounded_channel();
        let slots = Arc::new(Semaphore::new(capacity));
        (Arc::new(DeliveryBuffer { capacity, takes_joined, slots, queue, ready: Notify::new() }), buffered)
    }

    /// How many slots are free.
    pub fn free(&self) -> usize {
        self.slots.available_permits()
    }

    /// Reserves free slots for deliveries that are leased with their join.
    pub fn reserve_for_joins(&self, most: usize) -> Option<Slots> {
        self.takes_joined.then(|| self.reserve(most)).flatten()
    }

    /// Reserves free slots: at most `most`, and never more than a quarter of all, because several tasks fill
    /// the buffer.
    pub fn reserve(&self, most: usize) -> Option<Slots> {
        loop {
            let slots = most.min(self.free()).min(self.capacity.div_ceil(4));
            if slots == 0 {
                return None;
            }
            if let Ok(slots) = self.slots.clone().try_acquire_many_owned(slots as u32) {
                return Some(slots);
            }
        }
    }

    /// The least number of free slots that makes a call of the engine worthwhile.
    fn enough(&self, wanted: usize) -> usize {
        if self.takes_joined { self.capacity.div_ceil(8).min(wanted) } else { 0 }
    }

    /// Queues a leased delivery in one of the reserved slots.
    pub fn push(&self, delivery: Delivery, until: Timestamp, slots: &mut Slots) {
        if let Some(slot) = slots.split(1) {
            // If the receiver's loop has ended, the delivery is leased again when its lease is over.
            let _ = self.queue.send(Buffered { delivery, until, slot });
        }
    }

    /// Wakes the receiver's loop: the engine has deliveries to lease.
    pub fn notify(&self) {
        self.ready.notify_one();
    }

    /// Completes after [`notify`](Self::notify).
    pub async fn notified(&self) {
        self.ready.notified().await;
    }
}

/// The buffers of all receivers, by name.
#[derive(Clone)]
pub(super) struct Buffers(Arc<HashMap<String, Arc<DeliveryBuffer>>>);

impl Buffers {
    pub fn new(of_receivers: HashMap<String, Arc<DeliveryBuffer>>) -> Buffers {
        Buffers(Arc::new(of_receivers))
    }

    pub fn of(&self, receiver: &str) -> Option<&Arc<DeliveryBuffer>> {
        self.0.get(receiver)
    }

    /// The names of all receivers.
    pub fn receivers(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Wakes the loops of all receivers: the engine has deliveries to lease.
    pub fn notify(&self) {
        self.0.values().for_each(|buffer| buffer.notify());
    }
}

/// Reserves at most `wanted` free slots in each buffer, for deliveries that are leased with their join. Waits up to
/// [`MAX_WAIT`] if no buffer has enough.
pub(super) async fn reserve_in(buffers: &[Arc<DeliveryBuffer>], wanted: usize) -> Vec<Option<Slots>> {
    let reserve = || buffers.iter().map(|buffer| buffer.reserve_for_joins(wanted)).collect();
    let slots: Vec<Option<Slots>> = reserve();
    let is_full =
        |(buffer, slots): (&Arc<DeliveryBuffer>, &Option<Slots>)| count(slots) < buffer.enough(wanted);
    if buffers.is_empty() || wanted == 0 || !buffers.iter().zip(&slots).all(is_full) {
        return slots;
    }
    drop(slots);
    let enough =
        buffers.iter().map(|buffer| Box::pin(buffer.slots.acquire_many(buffer.enough(wanted) as u32)));
    // The slots of this wait are released and reserved again, together with slots that became free meanwhile.
    let _ = tokio::time::timeout(MAX_WAIT, select_all(enough)).await.map(drop);
    reserve()
}

/// How many slots are reserved.
pub(super) fn count(slots: &Option<Slots>) -> usize {
    slots.as_ref().map_or(0, Slots::num_permits)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_receiver_with_free_slots_does_not_wait_for_one_without() {
        let (full, _queue) = DeliveryBuffer::new(16, true);
        let (free, _queue) = DeliveryBuffer::new(16, true);
        let held = [16; 4].map(|most| full.reserve(most));
        assert_eq!(held.each_ref().map(count), [4; 4], "never more than a quarter");
        let buffers = [full.clone(), free];
        let counts: Vec<usize> =
            reserve_in(&buffers, 100).now_or_never().unwrap().iter().map(count).collect();
        assert_eq!(counts, [0, 4]);
        let only_full = [full];
        assert!(reserve_in(&only_full, 100).now_or_never().is_none(), "it waits for a free slot");
        assert_eq!(reserve_in(&only_full, 0).now_or_never().unwrap().iter().map(count).sum::<usize>(), 0);
        let released = async {
            tokio::task::yield_now().await;
            drop(held);
        };
        let (slots, ()) = tokio::join!(reserve_in(&only_full, 3), released);
        assert_eq!(slots.iter().map(count).collect::<Vec<_>>(), [3]);
    }
}
