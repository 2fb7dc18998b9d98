//! Leases of deliveries, in memory: one process has the fleet to itself, and its leases end with it, so a delivery
//! that was leased is free after a restart.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::clock::Timestamp;
use crate::store::Delivery;

/// The lease of the first notification in the lane of a group.
pub(super) struct DeliveryLease {
    /// The id of the notification.
    pub id: String,
    pub attempt: u32,
    pub until: Timestamp,
}

/// Leases by receiver and group.
#[derive(Default)]
pub(super) struct DeliveryLeases(Mutex<HashMap<String, HashMap<String, DeliveryLease>>>);

impl DeliveryLeases {
    pub fn grant(&self, receiver: &str, group: &str, lease: DeliveryLease) {
        self.receivers().entry(receiver.to_owned()).or_default().insert(group.to_owned(), lease);
    }

    /// Ends the lease of the group if it is for the notification `id`.
    pub fn end(&self, receiver: &str, group: &str, id: &str) {
        if let Some(groups) = self.receivers().get_mut(receiver)
            && groups.get(group).is_some_and(|lease| lease.id == id)
        {
            groups.remove(group);
        }
    }

    /// Ends the lease of this attempt, not that of a later one.
    pub fn end_attempt(&self, delivery: &Delivery) {
        if let Some(groups) = self.receivers().get_mut(&delivery.receiver)
            && groups.get(&delivery.group.key).is_some_and(|lease| lease.is_of(delivery))
        {
            groups.remove(&delivery.group.key);
        }
    }

    /// Extends a lease, also one that has ended, if no other attempt was leased since. Answers whether it is kept here.
    pub fn extend(&self, delivery: &Delivery, until: Timestamp) -> bool {
        let mut receivers = self.receivers();
        let groups = receivers.get_mut(&delivery.receiver);
        let lease = groups.and_then(|groups| groups.get_mut(&delivery.group.key));
        let Some(lease) = lease.filter(|lease| lease.is_of(delivery)) else { return false };
        lease.until = until;
        true
    }

    /// The end of the last lease of the group's first notification, which may have passed; `None`: there is none.
    pub fn until(&self, receiver: &str, group: &str) -> Option<Timestamp> {
        self.receivers().get(receiver)?.get(group).map(|lease| lease.until)
    }

    /// How many groups of a receiver have a lease, or had one that has passed.
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
