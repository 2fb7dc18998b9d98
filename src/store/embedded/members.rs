//! The members of groups: which silences wait for a notification, which receivers were notified of them, and which
//! silences last.

use rusqlite::{Connection, params};

use super::EmbeddedEngine;
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId};
use crate::store::json::from_json;
use crate::store::member_names::{names_of, of_member};
use crate::store::{Group, Membership, NotifiedSilence, Result};

/// See [`GroupStore::memberships`](crate::store::GroupStore::memberships).
pub(super) async fn memberships(
    engine: &EmbeddedEngine,
    records: &[&OfflineRecord],
) -> Result<Vec<Vec<Membership>>> {
    let names: Vec<[String; 2]> = records.iter().map(|record| names_of(record)).collect();
    let memberships = move |database: &Connection| {
        let all = names.iter().map(|names| memberships_of(database, names));
        Ok(all.collect::<rusqlite::Result<_>>()?)
    };
    engine.readers.read(memberships).await
}

fn memberships_of(database: &Connection, names: &[String; 2]) -> rusqlite::Result<Vec<Membership>> {
    let mut select = database.prepare_cached(
        "SELECT key, groups.body, letter FROM members JOIN groups ON groups.id = grp WHERE member IN (?, ?) ORDER BY key",
    )?;
    let rows = select.query_map([&names[0], &names[1]], |row| {
        let text = |at: usize| row.get_ref(at).ok().and_then(|value| value.as_str().ok());
        // A member that cannot be read names no receiver.
        let (Some(key), Some(letter)) = (text(0), text(2)) else { return Ok(None) };
        let group = text(1).and_then(|body| from_json::<Group>("a group", body).ok());
        let labels = group.map(|group| group.labels).unwrap_or_default();
        Ok(Membership::read(Group { key: key.to_owned(), labels }, letter))
    })?;
    Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// See [`GroupStore::lasting`](crate::store::GroupStore::lasting).
pub(super) async fn lasting(
    engine: &EmbeddedEngine,
    group: &str,
    from: Timestamp,
    before: Option<Timestamp>,
) -> Result<Vec<RecordId>> {
    let (group, from) = (group.to_owned(), from.as_millis());
    let before = before.map_or(i64::MAX, Timestamp::as_millis);
    let lasting = move |database: &Connection| {
        let mut select = database.prepare_cached(
            "SELECT CAST(member AS TEXT) FROM lasting WHERE grp = (SELECT id FROM groups WHERE key = ?) \
             AND at >= ? AND at < ?",
        )?;
        let names = select.query_map(params![group, from, before], |row| row.get::<_, String>(0))?;
        let names = names.collect::<rusqlite::Result<Vec<String>>>()?;
        Ok(names.iter().filter_map(|name| Some(of_member(name)?.1)).collect())
    };
    engine.readers.read(lasting).await
}

/// See [`GroupStore::add_receiver`](crate::store::GroupStore::add_receiver).
pub(super) async fn add_receiver(
    engine: &EmbeddedEngine,
    receiver: &str,
    silences: &[NotifiedSilence],
) -> Result<()> {
    if silences.is_empty() {
        return Ok(());
    }
    let name = |NotifiedSilence { group, member, detected_at }: &NotifiedSilence| {
        (group.clone(), member.clone(), detected_at.as_millis())
    };
    let receiver = receiver.to_owned();
    let silences: Vec<(String, String, i64)> = silences.iter().map(name).collect();
    let write = move |database: &Connection| {
        for (group, member, detected) in &silences {
            let update = "UPDATE members SET letter = letter || iif(substr(letter, -1) = ':', '', ',') || ?1 \
                          WHERE grp = (SELECT id FROM groups WHERE key = ?2) \
                          AND member IN (?3, ?3 || ' ' || ?4) \
                          AND detected = ?4 AND (letter GLOB 't:*' OR letter GLOB 'b:*') \
                          AND instr(',' || substr(letter, 3) || ',', ',' || ?1 || ',') = 0";
            database.prepare_cached(update)?.execute(params![receiver, group, member, detected])?;
        }
        Ok(())
    };
    engine.writer.write("fall_back", write).await
}
