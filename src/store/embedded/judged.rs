//! Which incidents a notification tells of: a field of its JSON, written once.

use rusqlite::{Connection, OptionalExtension, params};

use super::EmbeddedEngine;
use super::stored::text;
use crate::presence::Incident;
use crate::store::notification::with_incidents;
use crate::store::{Delivery, Result};

/// See [`GroupStore::judged`](crate::store::GroupStore::judged).
pub(super) async fn judged(
    engine: &EmbeddedEngine,
    delivery: &Delivery,
    incidents: Option<&[Incident]>,
) -> Result<Option<Vec<Incident>>> {
    let (group, id) = (delivery.group.key.clone(), delivery.notification().to_owned());
    let (incidents, is_write) = (incidents.map(<[Incident]>::to_vec), incidents.is_some());
    let judge = move |database: &Connection| {
        let mut select = database.prepare_cached("SELECT body FROM notifications WHERE id = ?")?;
        let stored = select.query_row([&id], |row| Ok(text(row, 0)?.into_owned())).optional()?;
        let Some(stored) = stored else { return Ok(None) };
        let (known, judged) = with_incidents(&group, stored.as_bytes(), incidents.as_deref())?;
        if let Some(judged) = judged {
            let mut update = database.prepare_cached("UPDATE notifications SET body = ? WHERE id = ?")?;
            update.execute(params![judged, id])?;
        }
        Ok(known)
    };
    if is_write { engine.writer.write("judged", judge).await } else { engine.readers.read(judge).await }
}
