//! A receiver's tray: what it may hold in all, and where deliveries are put that it did not ask for.
//!
//! Whoever joins a silence that is told at once may take it along, instead of leaving it in the
//! engine for the receiver's loop to fetch. There has to be room for it first: every delivery that is
//! held has a place, from before the engine is asked until it knows how the delivery ended.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::clock::Timestamp;
use crate::store::Delivery;

/// How long room is waited for. Nobody is held up by that who has room. After that it is left to the
/// engine to keep what is for receivers that are slow, or away.
const PATIENCE: Duration = Duration::from_millis(500);

/// The tray of one receiver.
pub(super) struct Tray {
    capacity: usize,
    places: Arc<Semaphore>,
    // Bounded by the places.
    put: UnboundedSender<Placed>,
    bell: Notify,
}

/// Places that were taken.
pub(super) type Places = OwnedSemaphorePermit;

/// A delivery and the place that it takes up.
pub(super) struct Placed {
    pub delivery: Delivery,
    /// The end of its lease.
    pub until: Timestamp,
    pub place: Places,
}

impl Tray {
    /// A tray for so many deliveries, and the end from which they are taken.
    pub fn new(capacity: usize) -> (Arc<Tray>, UnboundedReceiver<Placed>) {
        let (put, taken) = unbounded_channel();
        let places = Arc::new(Semaphore::new(capacity));
        (Arc::new(Tray { capacity, places, put, bell: Notify::new() }), taken)
    }

    /// How many places are free.
    pub fn free(&self) -> usize {
        self.places.available_permits()
    }

    /// Takes free places, at most this many and never more than a quarter of all: there are several who
    /// fill the tray.
    pub fn reserve(&self, most: usize) -> Option<Places> {
        loop {
            let places = most.min(self.free()).min(self.capacity.div_ceil(4));
            if places == 0 {
                return None;
            }
            if let Ok(places) = self.places.clone().try_acquire_many_owned(places as u32) {
                return Some(places);
            }
        }
    }

    /// So many free places are worth an errand.
    fn few(&self, wanted: usize) -> usize {
        self.capacity.div_ceil(8).min(wanted)
    }

    /// Puts a delivery that was handed out into one of these places.
    pub fn put(&self, delivery: Delivery, until: Timestamp, places: &mut Places) {
        if let Some(place) = places.split(1) {
            // A loop that has ended leaves it to whoever leases it next.
            let _ = self.put.send(Placed { delivery, until, place });
        }
    }

    /// There is something in the engine to fetch.
    pub fn ring(&self) {
        self.bell.notify_one();
    }

    /// Ends when there is.
    pub async fn rung(&self) {
        self.bell.notified().await;
    }
}

/// Takes free places in each of these trays, at most as many as wanted. Waits until one of them has a
/// few, if not for long.
pub(super) async fn room(trays: &[Arc<Tray>], wanted: usize) -> Vec<Option<Places>> {
    let reserve = || trays.iter().map(|tray| tray.reserve(wanted)).collect();
    let places: Vec<Option<Places>> = reserve();
    let is_full = |(tray, places): (&Arc<Tray>, &Option<Places>)| len(places) < tray.few(wanted);
    if trays.is_empty() || wanted == 0 || !trays.iter().zip(&places).all(is_full) {
        return places;
    }
    drop(places);
    let few = trays.iter().map(|tray| Box::pin(tray.places.acquire_many(tray.few(wanted) as u32)));
    // They are given back and taken again, with what else is free by then.
    let _ = tokio::time::timeout(PATIENCE, select_all(few)).await.map(drop);
    reserve()
}

/// How many places these are.
pub(super) fn len(places: &Option<Places>) -> usize {
    places.as_ref().map_or(0, Places::num_permits)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn who_has_room_is_not_held_up_by_who_has_none() {
        let (full, _taken) = Tray::new(16);
        let (free, _taken) = Tray::new(16);
        let held = [16; 4].map(|most| full.reserve(most));
        assert_eq!(held.each_ref().map(len), [4; 4], "never more than a quarter");
        let trays = [full.clone(), free];
        let lengths: Vec<usize> = room(&trays, 100).now_or_never().unwrap().iter().map(len).collect();
        assert_eq!(lengths, [0, 4]);
        let alone = [full];
        assert!(room(&alone, 100).now_or_never().is_none(), "it is waited for");
        assert_eq!(room(&alone, 0).now_or_never().unwrap().iter().map(len).sum::<usize>(), 0);
        let freed = async {
            tokio::task::yield_now().await;
            drop(held);
        };
        let (places, ()) = tokio::join!(room(&alone, 3), freed);
        assert_eq!(places.iter().map(len).collect::<Vec<_>>(), [3]);
    }
}
