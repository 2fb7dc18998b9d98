//! The members of a notification, as sealing writes them.

use std::collections::HashMap;

use super::member_names::of_member;
use super::notification::{BLIND, OFFLINE, ONLINE, id_letter, notification_id};
use super::receiver_list::lists;
use crate::clock::Timestamp;
use crate::presence::{Stage, Unit};

/// The members of a notification that is being sealed, each with its record or interval (JSON). The JSON is written
/// without being parsed, so an unreadable member does not stop the others.
#[derive(Default)]
pub(super) struct SealedMembers {
    offline: Vec<String>,
    online: Vec<String>,
    blind: Vec<String>,
    /// For each of `online` the receivers that were notified of its silence: empty, or a colon and their names.
    notified: Vec<String>,
    /// The same by unit.
    notified_of: HashMap<Unit, String>,
    digest: Vec<String>,
}

impl SealedMembers {
    /// Adds a member, in the order of their names.
    pub fn add(&mut self, member: &str, stage: Stage, is_blind: bool, notified: &str, body: String) {
        let is_offline = !is_blind && stage != Stage::IsBack;
        self.digest.push(format!("{}{member}", id_letter(is_offline)));
        let list = match (is_blind, is_offline) {
            (true, _) => &mut self.blind,
            (_, true) => &mut self.offline,
            _ => {
                self.notified.push(notified.to_owned());
                if let Some((_, record)) = of_member(member) {
                    self.notified_of.insert(record.unit, notified.to_owned());
                }
                &mut self.online
            }
        };
        list.push(body);
    }

    /// The id of the notification in the group with that key.
    pub fn id(&self, key: &str) -> String {
        notification_id(key, &self.digest.join("\n"))
    }

    /// Those of these receivers that are notified of the return of a unit by this notification, and so of its next
    /// silence as well: `silence` is the name of that member, and comes behind the return.
    pub fn notified_of_return<'a>(&self, silence: &str, receivers: &[&'a String]) -> Vec<&'a String> {
        // A storm has silences alone.
        if self.notified_of.is_empty() {
            return Vec::new();
        }
        let unit = of_member(silence).map(|(_, record)| record.unit);
        let notified = unit.and_then(|unit| self.notified_of.get(&unit)?.strip_prefix(':'));
        let is_named = |name: &&&String| notified.is_some_and(|notified| lists(notified, name));
        receivers.iter().filter(is_named).copied().collect()
    }

    /// The receivers of the notification: those of the group (`own`), if it has more than returns, and all that were
    /// notified of a silence whose return is a member.
    pub fn receivers<'a>(&self, own: &'a [String], others: &[&'a String]) -> Vec<&'a String> {
        let has_news = !self.offline.is_empty() || !self.blind.is_empty();
        let knows = |name: &str, unknown: bool| {
            let names =
                |notified: &String| notified.strip_prefix(':').map_or(unknown, |all| lists(all, name));
            self.notified.iter().any(names)
        };
        let own = own.iter().filter(|name| has_news || knows(name, true));
        own.chain(others.iter().copied().filter(|name| knows(name, false))).collect()
    }

    /// The JSON that [`super::notification::Notification`] reads. `receivers`: those of the group; `told`: those of the
    /// notification.
    /// `situation` of a group that units share: how many silences last of which receivers were notified, and when it
    /// was sealed before.
    pub fn notification(
        &self,
        group_json: &str,
        sealed_at: Timestamp,
        receivers: &[String],
        told: &[&String],
        situation: Option<(u64, Option<Timestamp>)>,
    ) -> String {
        let [offline, online, blind] = [&self.offline, &self.online, &self.blind].map(|all| all.join(","));
        let has_others = told.iter().any(|name| !receivers.contains(name));
        let notified = self.notified_json(receivers, has_others);
        let situation = situation.map_or(String::new(), |(lasting, before)| {
            let before = before.map(|before| format!(r#","before":{}"#, before.as_millis()));
            format!(r#","lasting":{lasting}{}"#, before.unwrap_or_default())
        });
        format!(
            r#"{{"group":{group_json},"sealed_at":"{sealed_at}"{OFFLINE}{offline}{ONLINE}{online}{BLIND}{blind}]{notified}{situation}}}"#
        )
    }

    /// For each return the receivers that were notified of its silence; empty if all receivers were notified of all.
    fn notified_json(&self, receivers: &[String], has_others: bool) -> String {
        let notified: Vec<Option<&str>> = self.notified.iter().map(|names| names.strip_prefix(':')).collect();
        let has_all =
            |names: &Option<&str>| names.is_none_or(|names| receivers.iter().all(|name| lists(names, name)));
        if has_others {
            format!(
                r#","notified":{},"receivers":{}"#,
                serde_json::json!(notified),
                serde_json::json!(receivers)
            )
        } else if notified.iter().all(has_all) {
            String::new()
        } else {
            format!(r#","notified":{}"#, serde_json::json!(notified))
        }
    }
}
