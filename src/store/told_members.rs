//! What a notification says, as it is written when its group is sealed.

use super::notification::{BLIND, OFFLINE, ONLINE, letter_told, notification_id};
use crate::clock::Timestamp;
use crate::presence::Stage;

/// The members of a notification that is being sealed, each with what is told of it (JSON). It is written without being
/// parsed: one that cannot be read keeps no other from being told.
#[derive(Default)]
pub(super) struct ToldMembers {
    offline: Vec<String>,
    online: Vec<String>,
    blind: Vec<String>,
    /// For each of `online` the receivers that were told its silence: nothing, or a colon and their names.
    told_to: Vec<String>,
    digest: Vec<String>,
}

impl ToldMembers {
    /// Adds a member, in the order of their names.
    pub fn add(&mut self, member: &str, stage: Stage, is_blind: bool, told_to: &str, body: String) {
        let is_offline = !is_blind && stage != Stage::IsBack;
        self.digest.push(format!("{}{member}", letter_told(is_offline)));
        let list = match (is_blind, is_offline) {
            (true, _) => &mut self.blind,
            (_, true) => &mut self.offline,
            _ => {
                self.told_to.push(told_to.to_owned());
                &mut self.online
            }
        };
        list.push(body);
    }

    /// The id in the group with that key.
    pub fn id(&self, key: &str) -> String {
        notification_id(key, &self.digest.join("\n"))
    }

    /// The JSON that [`super::notification::Notification`] reads.
    pub fn notification(&self, group_json: &str, sealed_at: Timestamp, receivers: &[String]) -> String {
        let [offline, online, blind] = [&self.offline, &self.online, &self.blind].map(|all| all.join(","));
        let told = self.told_json(receivers);
        format!(
            r#"{{"group":{group_json},"sealed_at":"{sealed_at}"{OFFLINE}{offline}{ONLINE}{online}{BLIND}{blind}]{told}}}"#
        )
    }

    /// For each return the receivers that were told its silence; nothing if all receivers were told all.
    fn told_json(&self, receivers: &[String]) -> String {
        let told: Vec<Option<&str>> = self.told_to.iter().map(|names| names.strip_prefix(':')).collect();
        let has_all = |told: &Option<&str>| {
            told.is_none_or(|told| receivers.iter().all(|name| told.split(',').any(|told| told == name)))
        };
        if told.iter().all(has_all) {
            String::new()
        } else {
            format!(r#","told":{}"#, serde_json::json!(told))
        }
    }
}
