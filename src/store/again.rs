//! A notification that is stored once more: for its receiver again, or for a fallback.

use super::notification::{Notification, notification_id};
use super::receiver_list::lists;
use super::{Delivery, MeantFor};
use crate::clock::Timestamp;
use crate::presence::Guarantee;

/// The fallback of a receiver that takes nothing.
pub(super) struct ToFallback<'a> {
    pub meant_for: &'a MeantFor,
    pub to: &'a str,
}

impl Notification {
    /// A notification with the content of this delivery, to deliver it once more.
    pub fn again(delivery: &Delivery) -> Notification {
        let Delivery { group, sealed_at, offline, online, blind, timers, .. } = delivery.clone();
        let Delivery { reminder, situation, meant_for, of_group, again_at, .. } = delivery.clone();
        Notification {
            group,
            sealed_at,
            offline,
            online,
            blind,
            timers,
            notified: Vec::new(),
            receivers: None,
            reminder,
            escalation: situation.is_escalation,
            lasting: situation.lasting,
            before: situation.since.map(Timestamp::as_millis),
            incident: situation
                .is_judged
                .then(|| situation.incident.into_iter().chain(situation.replaced).collect()),
            meant_for,
            of_group,
            again: again_at.map(Timestamp::as_millis),
        }
    }

    /// The part for the fallback: all members except ends that the fallback gets itself. `None`: the part is empty, the
    /// fallback is a receiver of the notification itself, the notification is a timer that is delivered at most once, or
    /// it has a lane of its own because its other recipients already have it.
    pub fn part_of_fallback(mut self, receiver: &str) -> Option<Notification> {
        if self.receivers.iter().flatten().any(|name| name == receiver) {
            return None;
        }
        if self.of_group.is_some() || self.timers.iter().any(|one| one.guarantee == Guarantee::AtMostOnce) {
            return None;
        }
        let knows = |receivers: &Option<String>| receivers.as_deref().is_some_and(|all| lists(all, receiver));
        let mut known = self.notified.iter().map(knows);
        self.online.retain(|_| !known.next().unwrap_or(false));
        self.blind.retain(|_| !known.next().unwrap_or(false));
        self.notified.retain(|receivers| !knows(receivers));
        let is_empty = self.offline.is_empty() && self.online.is_empty() && self.blind.is_empty();
        let is_empty = is_empty && self.timers.is_empty();
        (!is_empty).then_some(self)
    }

    /// The copy of a delivery for the fallback of its receiver, and the id of that copy. Further copies have the same
    /// id.
    pub fn for_fallback(delivery: &Delivery, to: &str, since: Timestamp) -> (String, Notification) {
        let id = notification_id(&delivery.id, to);
        let meant_for = MeantFor { receiver: delivery.receiver.clone(), since };
        (id, Notification { meant_for: Some(meant_for), ..Notification::again(delivery) })
    }
}
