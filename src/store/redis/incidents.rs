//! Incidents of groups: see `store/incidents.rs`.

use redis::pipe;

use super::RedisEngine;
use crate::clock::Timestamp;
use crate::presence::{GroupIncident, Incident};
use crate::store::incidents::{MEMBER, incident_json, incident_text, known_in, letter, over_at};
use crate::store::{Delivery, KeptIncident, Result};

impl RedisEngine {
    pub(super) async fn read_incident(&self, group: &str) -> Result<Option<String>> {
        let partition = self.keys.partition_of_group(group);
        let mut read = pipe();
        read.hget(self.keys.in_partition(partition, "members"), field(group));
        let (value,): (Option<Vec<u8>>,) = self.topology.send("incident", &read).await?;
        let value = value.map(|value| String::from_utf8_lossy(&value).into_owned());
        Ok(value.map(|value| value.strip_prefix(&begin()).unwrap_or_default().to_owned()))
    }

    pub(super) async fn write_incident(
        &self,
        delivery: &Delivery,
        notified: Option<&Incident>,
        before: Option<&str>,
        after: Option<&GroupIncident>,
        now: Timestamp,
    ) -> Result<KeptIncident> {
        let group = &delivery.group.key;
        let partition = self.keys.partition_of_group(group);
        let mut script = self.scripts.keep_incident.prepare_invoke();
        for name in ["notifications", "members", "over"] {
            script.key(self.keys.in_partition(partition, name));
        }
        let value = |text: &str| format!("{}{text}", begin());
        let after = after.map(incident_text).transpose()?;
        script.arg(delivery.notification()).arg(field(group)).arg(incident_json(notified)?);
        script
            .arg(before.map(value).unwrap_or_default())
            .arg(after.as_deref().map(value).unwrap_or_default());
        script.arg(over_at(now).as_millis());
        let answer: Vec<u8> =
            self.topology.run_alerting("keep_incident", self.keys.slot(partition), &script).await?;
        Ok(match &answer[..] {
            b"kept" => KeptIncident::Kept,
            b"changed" => KeptIncident::Changed,
            body => KeptIncident::Known(known_in(group, body)),
        })
    }
}

fn field(group: &str) -> String {
    format!("{group}\n{MEMBER}")
}

/// Its stage, and no time of detection.
fn begin() -> String {
    format!("{}0", letter())
}
