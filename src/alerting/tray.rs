//! A receiver's tray: what it may hold in all, and where deliveries are put that it did not ask for.
//!
//! Whoever joins a silence that is told at once may take it along, instead of leaving it in the
//! engine for the receiver's loop to fetch. There has to be room for it first: every delivery that is
//! held has a place, from before the engine is asked until it knows how the delivery ended.

use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::engine::Delivery;

/// The tray of one receiver.
pub(super) struct Tray {
    capacity: usize,
    places: Arc<Semaphore>,
    // Bounded by the places.
    put: UnboundedSender<Placed>,
    bell: Notify,
}

/// A delivery and the place that it takes up.
pub(super) struct Placed {
    pub delivery: Delivery,
    pub place: OwnedSemaphorePermit,
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

    /// Takes free places, at most this many and never more than half of all: there are two who fill
    /// the tray.
    pub fn reserve(&self, most: usize) -> Option<OwnedSemaphorePermit> {
        loop {
            let places = most.min(self.free()).min(self.capacity.div_ceil(2));
            if places == 0 {
                return None;
            }
            if let Ok(places) = self.places.clone().try_acquire_many_owned(places as u32) {
                return Some(places);
            }
        }
    }

    /// Puts a delivery that was handed out into one of these places.
    pub fn put(&self, delivery: Delivery, places: &mut OwnedSemaphorePermit) {
        if let Some(place) = places.split(1) {
            // A loop that has ended leaves it to whoever leases it next.
            let _ = self.put.send(Placed { delivery, place });
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
