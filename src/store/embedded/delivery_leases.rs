//! Deliveries that are leased. Leases are kept in memory: one process has the fleet to itself, and when it
//! ends they end with it, so what it held is free when it starts again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::clock::Timestamp;
use crate::store::Delivery;

/// The lease of what is first in the lane of a group.
pub(super) struct DeliveryLease {
    /// Of the notification.
    pub id: String,
    pub attempt: u32,
    pub until: Timestamp,
}

/// Leases by receiver and group.
#[derive(Default)]
pub(super) struct DeliveryLeases(Mutex<HashMap<String, HashMap<String, DeliveryLease>>>);

impl DeliveryLeases {
    /// From now on that is under way.
    pub fn hold(&self, receiver: &str, group: &str, hold: DeliveryLease) {
        self.receivers().entry(receiver.to_owned()).or_default().insert(group.to_owned(), hold);
    }

    /// Leases that end by then are over.
    pub fn lapse(&self, receiver: &str, now: Timestamp) {
        if let Some(groups) = self.receivers().get_mut(receiver) {
            groups.retain(|_, hold| hold.until > now);
        }
    }

    /// The notification with that id is not under way any more.
    pub fn end(&self, receiver: &str, group: &str, id: &str) {
        if let Some(groups) = self.receivers().get_mut(receiver)
            && groups.get(group).is_some_and(|hold| hold.id == id)
        {
            groups.remove(group);
        }
    }

    /// Whether that attempt is under way.
    pub fn is_held(&self, delivery: &Delivery) -> bool {
        self.receivers()
            .get(&delivery.receiver)
            .and_then(|groups| groups.get(&delivery.group.key))
            .is_some_and(|hold| hold.is_of(delivery))
    }

    /// Prolongs a lease. Whether that attempt is under way.
    pub fn prolong(&self, delivery: &Delivery, until: Timestamp) -> bool {
        let mut receivers = self.receivers();
        let groups = receivers.get_mut(&delivery.receiver);
        let hold = groups.and_then(|groups| groups.get_mut(&delivery.group.key));
        let Some(hold) = hold.filter(|hold| hold.is_of(delivery)) else { return false };
        hold.until = until;
        true
    }

    /// Until when what is first in the lane of a group is leased; `None`: it is not.
    pub fn until(&self, receiver: &str, group: &str) -> Option<Timestamp> {
        self.receivers().get(receiver)?.get(group).map(|hold| hold.until)
    }

    /// How many groups of a receiver have something under way.
    pub fn count(&self, receiver: &str) -> usize {
        self.receivers().get(receiver).map_or(0, HashMap::len)
    }

    fn receivers(&self) -> MutexGuard<'_, HashMap<String, HashMap<String, DeliveryLease>>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

impl DeliveryLease {
    fn is_of(&self, delivery: &Delivery) -> bool {
        self.id == delivery.notification() && self.attempt == delivery.attempt
    }
}
