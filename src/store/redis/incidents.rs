//! Incidents of groups: see `store/incidents.rs`.

use redis::pipe;

use super::RedisEngine;
use super::steps::{MAX_ATTEMPTS, Steps};
use crate::clock::Timestamp;
use crate::presence::{GroupIncident, Incident};
use crate::store::incidents::{
    MEMBER, incident_json, incident_text, is_judged, known_in, letter, over_at, with_incident,
};
use crate::store::{Delivery, Group, KeptIncident, Result};

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
        let [notifications, members, over] =
            ["notifications", "members", "over"].map(|name| self.keys.in_partition(partition, name));
        let (id, field) = (delivery.notification(), field(group));
        let [before, after] = texts(before, after)?;
        let notified = incident_json(notified)?;
        for _ in 0..MAX_ATTEMPTS {
            let mut read = pipe();
            read.hget(&notifications, id).hget(&members, &field);
            let (body, member): (Option<Vec<u8>>, Option<Vec<u8>>) =
                self.topology.send("incident", &read).await?;
            let Some(body) = body else { return Ok(KeptIncident::Known(None)) };
            let text = String::from_utf8_lossy(&body);
            if is_judged(&text) {
                return Ok(KeptIncident::Known(known_in(group, &body)));
            }
            if member.as_deref() != before.as_deref().map(str::as_bytes) {
                return Ok(KeptIncident::Changed);
            }
            let mut steps = Steps::default();
            steps.begin().expect_field(&notifications, id.as_bytes(), Some(&body));
            steps.expect_field(&members, field.as_bytes(), member.as_deref());
            let judged = with_incident(&text, &notified);
            steps.write("HSET", &notifications, &[id.as_bytes(), judged.as_bytes()]);
            write_kept(&mut steps, [&members, &over], &field, after.as_deref(), now);
            if self.write_alerting_step("keep_incident", partition, steps).await? {
                return Ok(KeptIncident::Kept);
            }
        }
        Ok(KeptIncident::Changed)
    }

    pub(super) async fn write_kept_incident(
        &self,
        group: &Group,
        before: &str,
        after: Option<&GroupIncident>,
        now: Timestamp,
    ) -> Result<bool> {
        let group = &group.key;
        let partition = self.keys.partition_of_group(group);
        let [members, over] = ["members", "over"].map(|name| self.keys.in_partition(partition, name));
        let ([before, after], field) = (texts(Some(before), after)?, field(group));
        let mut steps = Steps::default();
        steps.begin().expect_field(&members, field.as_bytes(), before.as_deref().map(str::as_bytes));
        write_kept(&mut steps, [&members, &over], &field, after.as_deref(), now);
        self.write_alerting_step("replace_incident", partition, steps).await
    }
}

/// The members that hold these incidents.
fn texts(before: Option<&str>, after: Option<&GroupIncident>) -> Result<[Option<String>; 2]> {
    let texts = [before.map(str::to_owned), after.map(incident_text).transpose()?];
    Ok(texts.map(|text| text.map(|text| format!("{}{text}", begin()))))
}

/// Writes the member that holds the incident of a group, or removes it.
fn write_kept(
    steps: &mut Steps,
    [members, over]: [&str; 2],
    field: &str,
    after: Option<&str>,
    now: Timestamp,
) {
    let over_at = over_at(now).as_millis().to_string();
    let (field, over_at) = (field.as_bytes(), over_at.as_bytes());
    match after {
        Some(after) => {
            steps.write("HSET", members, &[field, after.as_bytes()]);
            steps.write("ZADD", over, &[over_at, field]);
        }
        None => {
            steps.write("HDEL", members, &[field]).write("ZREM", over, &[field]);
        }
    }
}

fn field(group: &str) -> String {
    format!("{group}\n{MEMBER}")
}

/// Its stage, and no time of detection.
fn begin() -> String {
    format!("{}0", letter())
}
