//! Incidents of groups: see `store/incidents.rs`.

use rusqlite::{Connection, OptionalExtension, params};

use super::EmbeddedEngine;
use super::error::DatabaseResult;
use crate::clock::Timestamp;
use crate::presence::{GroupIncident, Incident};
use crate::store::incidents::{
    MEMBER, incident_json, incident_text, is_judged, known_in, letter, over_at, with_incident,
};
use crate::store::json::to_json;
use crate::store::{Delivery, Group, KeptIncident, Result, partition_of_group};

impl EmbeddedEngine {
    pub(super) async fn read_incident(&self, group: &str) -> Result<Option<String>> {
        let group = group.to_owned();
        self.readers.read(move |database: &Connection| Ok(member(database, &group)?)).await
    }

    pub(super) async fn write_incident(
        &self,
        delivery: &Delivery,
        notified: Option<&Incident>,
        before: Option<&str>,
        after: Option<&GroupIncident>,
        now: Timestamp,
    ) -> Result<KeptIncident> {
        let kept = self.kept(&delivery.group, before, after, now)?;
        let (id, notified) = (delivery.notification().to_owned(), incident_json(notified)?);
        let judgement = IncidentUpdate { kept, id, notified };
        self.writer.write("keep_incident", move |database: &Connection| judgement.write(database)).await
    }

    pub(super) async fn write_kept_incident(
        &self,
        group: &Group,
        before: &str,
        after: Option<&GroupIncident>,
        now: Timestamp,
    ) -> Result<bool> {
        let kept = self.kept(group, Some(before), after, now)?;
        let write = move |database: &Connection| {
            let is_same = kept.is_same(database)?;
            if is_same {
                kept.write(database)?;
            }
            Ok(is_same)
        };
        self.writer.write("replace_incident", write).await
    }

    fn kept(
        &self,
        group: &Group,
        before: Option<&str>,
        after: Option<&GroupIncident>,
        now: Timestamp,
    ) -> Result<IncidentChange> {
        Ok(IncidentChange {
            group: group.key.clone(),
            group_json: to_json(group)?,
            partition: partition_of_group(&group.key, self.memory.partitions()),
            before: before.map(str::to_owned),
            after: after.map(incident_text).transpose()?,
            over_at: over_at(now),
        })
    }
}

/// The incident that a group keeps, ready to be written.
struct IncidentChange {
    group: String,
    group_json: String,
    partition: u16,
    before: Option<String>,
    after: Option<String>,
    over_at: Timestamp,
}

impl IncidentChange {
    /// Whether the group still keeps the incident that was read.
    fn is_same(&self, database: &Connection) -> rusqlite::Result<bool> {
        Ok(member(database, &self.group)? == self.before)
    }

    fn write(&self, database: &Connection) -> rusqlite::Result<()> {
        let IncidentChange { group, after, over_at, .. } = self;
        let insert =
            "INSERT OR REPLACE INTO members SELECT id, ?, ?, 0, NULL, ?, NULL FROM groups WHERE key = ?";
        let delete = "DELETE FROM members WHERE member = ? AND grp = (SELECT id FROM groups WHERE key = ?)";
        match after {
            Some(after) => {
                // The group is forgotten where its receivers have taken nothing for a day.
                database
                    .prepare_cached("INSERT OR IGNORE INTO groups(partition, key, body) VALUES(?, ?, ?)")?
                    .execute(params![self.partition, group, self.group_json])?;
                let stored = format!("{}{after}", letter());
                database.prepare_cached(insert)?.execute(params![
                    MEMBER,
                    stored,
                    over_at.as_millis(),
                    group
                ])?
            }
            None => database.prepare_cached(delete)?.execute([MEMBER, group])?,
        };
        Ok(())
    }
}

/// A judgement of a notification, ready to be written.
struct IncidentUpdate {
    kept: IncidentChange,
    /// The id of the notification.
    id: String,
    /// The incidents (JSON).
    notified: String,
}

impl IncidentUpdate {
    fn write(&self, database: &Connection) -> DatabaseResult<KeptIncident> {
        let IncidentUpdate { kept, id, notified } = self;
        let body: Option<String> = database
            .prepare_cached("SELECT CAST(body AS TEXT) FROM notifications WHERE id = ?")?
            .query_row([id], |row| row.get(0))
            .optional()?;
        let Some(body) = body else { return Ok(KeptIncident::Known(None)) };
        if is_judged(&body) {
            return Ok(KeptIncident::Known(known_in(&kept.group, body.as_bytes())));
        }
        if !kept.is_same(database)? {
            return Ok(KeptIncident::Changed);
        }
        database
            .prepare_cached("UPDATE notifications SET body = ? WHERE id = ?")?
            .execute(params![with_incident(&body, notified), id])?;
        kept.write(database)?;
        Ok(KeptIncident::Kept)
    }
}

/// The incident of a group as it is kept.
fn member(database: &Connection, group: &str) -> rusqlite::Result<Option<String>> {
    let mut select = database.prepare_cached(
        "SELECT letter FROM members WHERE member = ? AND grp = (SELECT id FROM groups WHERE key = ?)",
    )?;
    let stored: Option<String> = select.query_row([MEMBER, group], |row| row.get(0)).optional()?;
    Ok(stored.map(|stored| stored.strip_prefix(letter()).unwrap_or_default().to_owned()))
}
