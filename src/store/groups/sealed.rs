//! The members of a notification that is being sealed.

use std::collections::HashMap;

use super::member::StoredMember;
use crate::clock::Timestamp;
use crate::presence::{Stage, Unit};
use crate::store::member_names::of_member;
use crate::store::notification::{Notification, id_letter, notification_id};
use crate::store::receiver_list::lists;
use crate::store::{Group, OutboxEvent};

/// Members, in the order of their names.
#[derive(Default)]
pub(super) struct SealedMembers {
    offline: Vec<OutboxEvent>,
    online: Vec<OutboxEvent>,
    blind: Vec<OutboxEvent>,
    /// For each of `online`, the receivers that were notified of its silence; `None`: unknown.
    notified: Vec<Option<String>>,
    /// For each of `blind`, the receivers that were notified of its begin; `None`: it is the begin, or unknown.
    notified_of_blindness: Vec<Option<String>>,
    /// The receivers of `notified`, by unit.
    notified_of: HashMap<Unit, String>,
    digest: Vec<String>,
}

impl SealedMembers {
    /// Adds a member, which waits with this event.
    pub fn add(&mut self, name: &str, member: &StoredMember, event: OutboxEvent) {
        let is_blind = event.record().is_none();
        let is_offline = !is_blind && member.stage != Stage::IsBack;
        self.digest.push(format!("{}{name}", id_letter(is_offline)));
        if is_blind {
            self.notified_of_blindness.push(member.told.clone());
            self.blind.push(event);
        } else if is_offline {
            self.offline.push(event);
        } else {
            if let (Some(told), Some((_, record))) = (&member.told, of_member(name)) {
                self.notified_of.insert(record.unit, told.clone());
            }
            self.notified.push(member.told.clone());
            self.online.push(event);
        }
    }

    /// Whether there are only silences among the members.
    pub fn has_only_silences(&self) -> bool {
        self.online.is_empty() && self.blind.is_empty()
    }

    /// The id of the notification in the group with this key: the same members get the same id, even if a sealed
    /// notification is lost and sealed again.
    pub fn id(&self, key: &str) -> String {
        notification_id(key, &self.digest.join("\n"))
    }

    /// The receivers among these that get the return of a unit with this notification, and so its next silence as
    /// well: `silence` is the name of that member, and comes behind the return.
    pub fn notified_of_return<'a>(&self, silence: &str, receivers: &[&'a String]) -> Vec<&'a String> {
        // A storm has only silences.
        if self.notified_of.is_empty() {
            return Vec::new();
        }
        let notified = of_member(silence).and_then(|(_, record)| self.notified_of.get(&record.unit));
        let is_named = |name: &&&String| notified.is_some_and(|notified| lists(notified, name));
        receivers.iter().filter(is_named).copied().collect()
    }

    /// The receivers of the notification: the receivers of the group (`own`), unless it has only returns, and every
    /// receiver that was notified of a silence whose return is a member, or of a blind interval whose end is.
    pub fn receivers(&self, own: &[String], others: &[&String]) -> Vec<String> {
        let has_news = !self.offline.is_empty() || !self.blind.is_empty();
        let knows = |name: &str, unknown: bool| {
            let names = |notified: &Option<String>| notified.as_ref().map_or(unknown, |all| lists(all, name));
            self.notified.iter().chain(&self.notified_of_blindness).any(names)
        };
        let own = own.iter().filter(|name| has_news || knows(name, true));
        own.chain(others.iter().copied().filter(|name| knows(name, false))).cloned().collect()
    }

    /// The notification. `own`: the receivers of the group; `told`: the receivers of the notification.
    pub fn notification(
        self,
        group: Group,
        sealed_at: Timestamp,
        own: &[String],
        told: &[String],
    ) -> Notification {
        let records =
            |events: Vec<OutboxEvent>| events.into_iter().filter_map(OutboxEvent::into_record).collect();
        let has_all = |names: &Option<String>| {
            names.as_ref().is_none_or(|names| own.iter().all(|name| lists(names, name)))
        };
        let has_others = told.iter().any(|name| !own.contains(name));
        let is_known = !has_others && self.notified.iter().all(has_all);
        let notified = self.notified.into_iter().chain(self.notified_of_blindness).collect();
        Notification {
            offline: records(self.offline),
            online: records(self.online),
            blind: self.blind.iter().filter_map(OutboxEvent::interval).collect(),
            notified: if is_known { Vec::new() } else { notified },
            receivers: (has_others || own.len() > 1).then(|| own.to_vec()),
            ..Notification::empty(group, sealed_at)
        }
    }
}
