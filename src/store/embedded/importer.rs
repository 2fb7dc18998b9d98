//! Unpacking a fleet into a directory, in one transaction: until it is committed nothing is there.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rusqlite::{Connection, params};

use super::directory::Directory;
use super::ears::Ears;
use super::error::DatabaseResult;
use super::last_seen::unit_id;
use super::{Config, database};
use crate::clock::Timestamp;
use crate::presence::Hearing;
use crate::store::json::to_json;
use crate::store::notification::silence;
use crate::store::{EngineError, OutboxEvent, Result, partition_of, partition_of_group};
use crate::store::{migration::Importer, migration::MigrationItem};

/// What must be empty where a fleet is to arrive.
const HELD: [&str; 5] = ["units", "records", "outbox", "groups", "letters"];
/// What a fleet of which nothing is left may have left all the same; last seen times above all, which
/// would be taken for those of whoever gets the place.
const LEFT: [&str; 9] =
    ["beats", "pages", "data", "blind", "members", "notifications", "queue", "lanes", "untold"];

/// A directory into which a fleet is moved. What was not completed is gone when this goes.
pub struct EmbeddedImporter {
    house: Arc<Mutex<TargetDatabase>>,
    path: PathBuf,
}

struct TargetDatabase {
    database: Connection,
    partitions: u16,
    /// How many units there are in each partition.
    places: Vec<u32>,
    /// Nobody else's meanwhile.
    _directory: Directory,
}

impl EmbeddedImporter {
    /// Opens a directory, or makes it.
    ///
    /// # Errors
    /// `Refused` if there are units or records already, or a process works there.
    pub async fn prepare(config: &Config) -> Result<EmbeddedImporter> {
        let (config, path) = (config.clone(), config.path.clone());
        let prepare = move || {
            let mut directory = Directory::enter(&config.path)?;
            let database = database::open(&mut directory, config.partitions)?;
            begin(&database, &config).map_err(|fault| fault.explain(&config.path))?;
            let (partitions, places) = (config.partitions, vec![0; config.partitions.into()]);
            Ok(TargetDatabase { database, partitions, places, _directory: directory })
        };
        let house = tokio::task::spawn_blocking(prepare).await.map_err(broken_off)??;
        Ok(EmbeddedImporter { house: Arc::new(Mutex::new(house)), path })
    }

    async fn write(
        &self,
        step: impl FnOnce(&mut TargetDatabase) -> DatabaseResult<()> + Send + 'static,
    ) -> Result<()> {
        let house = self.house.clone();
        let write = move || step(&mut house.lock().unwrap_or_else(PoisonError::into_inner));
        let written = tokio::task::spawn_blocking(write).await.map_err(broken_off)?;
        written.map_err(|fault| fault.explain(&self.path))
    }
}

fn broken_off(_: tokio::task::JoinError) -> EngineError {
    EngineError::Unavailable("the move was broken off; it can be repeated".to_owned())
}

fn begin(database: &Connection, config: &Config) -> DatabaseResult<()> {
    for table in HELD {
        let select = format!("SELECT EXISTS (SELECT 1 FROM {table})");
        if database.query_row(&select, [], |row| row.get(0))? {
            let path = config.path.display();
            let why = format!("there is a fleet in {path} already ({table}); name an empty directory");
            return Err(EngineError::Refused(why).into());
        }
    }
    database.execute_batch("BEGIN IMMEDIATE")?;
    for table in LEFT {
        database.execute(&format!("DELETE FROM {table}"), [])?;
    }
    // It counts heartbeats that have gone with these.
    database.execute("DELETE FROM meta WHERE name = 'kept'", [])?;
    Ok(())
}

#[async_trait]
impl Importer for EmbeddedImporter {
    async fn unpack(&self, parcels: Vec<MigrationItem>) -> Result<()> {
        self.write(move |house| parcels.iter().try_for_each(|parcel| house.put(parcel))).await
    }

    async fn complete(&self, hearing: Hearing) -> Result<()> {
        self.write(move |house| house.complete(&hearing)).await
    }
}

impl TargetDatabase {
    fn put(&mut self, parcel: &MigrationItem) -> DatabaseResult<()> {
        match parcel {
            MigrationItem::Unit { unit, facts, alive, look } => {
                let partition = partition_of(unit, self.partitions);
                let place = &mut self.places[usize::from(partition)];
                let (id, name) = (unit_id(partition, *place), unit.to_string());
                *place += 1;
                self.insert(
                    "INSERT INTO units(id, name, facts, alive, look, after) VALUES(?, ?, ?, ?, ?, 0)",
                )?
                .execute(params![id, name, facts, ms(alive), ms(look)])?;
            }
            MigrationItem::Value { unit, metric, at, value } => {
                // Found by its unit's name: the unit is on the page that came just before.
                let partition = partition_of(unit, self.partitions);
                let bounds = (unit_id(partition, 0), unit_id(partition, u32::MAX));
                self.insert(
                    "INSERT OR REPLACE INTO data(id, metric, at, value) SELECT id, ?, ?, ? FROM units \
                     WHERE id BETWEEN ? AND ? AND name = ? ORDER BY id DESC LIMIT 1",
                )?
                .execute(params![
                    metric,
                    at.as_millis(),
                    value,
                    bounds.0,
                    bounds.1,
                    unit.to_string()
                ])?;
            }
            MigrationItem::Record(record) => {
                let (partition, json) = (partition_of(record.whose(), self.partitions), to_json(record)?);
                let (detected, closed) = (record.detected_at.as_millis(), ms(&record.back_at));
                self.insert(
                    "INSERT INTO records(id, partition, detected, closed, record) VALUES(?, ?, ?, ?, ?)",
                )?
                .execute(params![
                    record.id.to_string(),
                    partition,
                    detected,
                    closed,
                    json
                ])?;
            }
            MigrationItem::OutboxEvent(news) => {
                let partition = match news {
                    OutboxEvent::Record(record) => partition_of(record.whose(), self.partitions),
                    OutboxEvent::Blind(_) => self.partitions,
                };
                self.insert("INSERT INTO outbox(partition, news) VALUES(?, ?)")?
                    .execute(params![partition, to_json(news)?])?;
            }
            MigrationItem::Group { group, due, sealed } => {
                let insert = "INSERT INTO groups(partition, key, body, due, sealed) VALUES(?, ?, ?, ?, ?) \
                              ON CONFLICT(key) DO UPDATE SET due = excluded.due, sealed = excluded.sealed";
                self.insert(insert)?.execute(params![
                    self.home(&group.key),
                    group.key,
                    to_json(group)?,
                    ms(due),
                    ms(sealed)
                ])?;
            }
            // A member is found by its name. What its group shares is known from here while nobody waits in it.
            MigrationItem::GroupOf { group, .. } => {
                self.insert(
                    "INSERT INTO groups(partition, key, body) VALUES(?, ?, ?) \
                     ON CONFLICT(key) DO UPDATE SET body = excluded.body",
                )?
                .execute(params![self.home(&group.key), group.key, to_json(group)?])?;
            }
            MigrationItem::Member { group, name, letter, told_to, detected, waits, over } => {
                let (joined, body) =
                    (waits.as_ref().map(|waits| waits.0), waits.as_ref().map(|waits| &waits.1));
                self.insert("INSERT INTO members SELECT id, ?, ?, ?, ?, ?, ? FROM groups WHERE key = ?")?
                    .execute(params![
                        name,
                        format!("{letter}{told_to}"),
                        detected.as_millis(),
                        ms(&joined),
                        ms(over),
                        body,
                        group
                    ])?;
            }
            MigrationItem::Notification { id, body, owed } => {
                self.insert("INSERT INTO notifications VALUES(?, ?, ?)")?.execute(params![
                    id,
                    body,
                    *owed as i64
                ])?;
            }
            MigrationItem::Lane { receiver, group, next, attempts, notifications } => {
                self.insert("INSERT INTO queue VALUES(?, ?, ?, ?)")?.execute(params![
                    receiver,
                    group,
                    self.home(group),
                    next.as_millis()
                ])?;
                for (place, id) in notifications.iter().enumerate() {
                    let attempts = if place == 0 { *attempts } else { 0 };
                    self.insert(
                        "INSERT INTO lanes(receiver, grp, notification, attempts) VALUES(?, ?, ?, ?)",
                    )?
                    .execute(params![receiver, group, id, attempts])?;
                }
            }
            MigrationItem::Letter(letter) => {
                let (id, delivery) = (letter.delivery.notification(), &letter.delivery);
                let partition = self.home(&delivery.group.key);
                self.insert("INSERT INTO letters VALUES(?, ?, ?, ?, ?)")?.execute(params![
                    delivery.receiver,
                    id,
                    partition,
                    letter.at.as_millis(),
                    to_json(letter)?
                ])?;
                for record in &delivery.offline {
                    self.insert("INSERT OR REPLACE INTO untold VALUES(?, ?, ?)")?.execute(params![
                        delivery.receiver,
                        silence(record),
                        id
                    ])?;
                }
            }
        }
        Ok(())
    }

    fn complete(&mut self, hearing: &Hearing) -> DatabaseResult<()> {
        let ears = Ears::restore(hearing);
        self.insert("INSERT OR REPLACE INTO meta VALUES('ears', ?)")?.execute([to_json(&ears)?])?;
        for interval in hearing.ledger.intervals() {
            self.insert("INSERT INTO blind(start, until) VALUES(?, ?)")?
                .execute([interval.from.as_millis(), interval.to.as_millis()])?;
        }
        Ok(self.database.execute_batch("COMMIT")?)
    }

    fn insert(&self, insert: &str) -> rusqlite::Result<rusqlite::CachedStatement<'_>> {
        self.database.prepare_cached(insert)
    }

    fn home(&self, group: &str) -> u16 {
        partition_of_group(group, self.partitions)
    }
}

fn ms(moment: &Option<Timestamp>) -> Option<i64> {
    moment.map(Timestamp::as_millis)
}
