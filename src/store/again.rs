//! A notification that is stored once more: for its receiver again, or for a fallback.

use super::notification::{Notification, notification_id};
use super::{Delivery, MeantFor};
use crate::clock::Timestamp;

impl Notification {
    /// The notification of a delivery, for one more delivery of the same.
    pub fn again(delivery: &Delivery) -> Notification {
        let Delivery { group, sealed_at, offline, online, blind, .. } = delivery.clone();
        let Delivery { reminder, situation, meant_for, .. } = delivery.clone();
        Notification {
            group,
            sealed_at,
            offline,
            online,
            blind,
            notified: Vec::new(),
            receivers: None,
            reminder,
            lasting: situation.lasting,
            before: situation.since.map(Timestamp::as_millis),
            incident: situation.is_judged.then(|| situation.incident.into_iter().collect()),
            meant_for,
        }
    }

    /// The copy of a delivery for the fallback of its receiver, and its id, the same in every attempt to make it.
    pub fn for_fallback(delivery: &Delivery, to: &str, since: Timestamp) -> (String, Notification) {
        let id = notification_id(&delivery.id, to);
        let meant_for = MeantFor { receiver: delivery.receiver.clone(), since };
        (id, Notification { meant_for: Some(meant_for), ..Notification::again(delivery) })
    }
}
