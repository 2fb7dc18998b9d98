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
use crate::store::{Delivery, KeptIncident, Result, partition_of_group};

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
        let judgement = Judgement {
            group: delivery.group.key.clone(),
            group_json: to_json(&delivery.group)?,
            partition: partition_of_group(&delivery.group.key, self.memory.partitions()),
            id: delivery.notification().to_owned(),
            notified: incident_json(notified)?,
            before: before.map(str::to_owned),
            after: after.map(incident_text).transpose()?,
            over_at: over_at(now),
        };
        self.writer.write("keep_incident", move |database: &Connection| judgement.write(database)).await
    }
}

/// A judgement of a notification, ready to be written.
struct Judgement {
    group: String,
    group_json: String,
    partition: u16,
    /// The id of the notification.
    id: String,
    /// The incidents (JSON).
    notified: String,
    before: Option<String>,
    after: Option<String>,
    over_at: Timestamp,
}

impl Judgement {
    fn write(&self, database: &Connection) -> DatabaseResult<KeptIncident> {
        let Judgement { group, id, notified, before, after, over_at, .. } = self;
        let body: Option<String> = database
            .prepare_cached("SELECT CAST(body AS TEXT) FROM notifications WHERE id = ?")?
            .query_row([id], |row| row.get(0))
            .optional()?;
        let Some(body) = body else { return Ok(KeptIncident::Known(None)) };
        if is_judged(&body) {
            return Ok(KeptIncident::Known(known_in(group, body.as_bytes())));
        }
        if member(database, group)? != *before {
            return Ok(KeptIncident::Changed);
        }
        database
            .prepare_cached("UPDATE notifications SET body = ? WHERE id = ?")?
            .execute(params![with_incident(&body, notified), id])?;
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
