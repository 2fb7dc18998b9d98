//! Deliveries: notifications that wait for receivers, and dead letters.
//!
//! A group has a lane of its own for each receiver; only the first notification of a lane is leased,
//! so that the notifications of one group arrive in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use super::delivery_leases::{DeliveryLease, DeliveryLeases};
use super::error::DatabaseResult;
use super::finish::{Ending, finish_one};
use super::{EmbeddedEngine, absence, cells, fallback, quarantine};
use crate::clock::Timestamp;
use crate::store::again::ToFallback;
use crate::store::notification::{Notification, Readable};
use crate::store::unnotified::end_empty;
use crate::store::{
    Backlog, ChangeSet, Delivery, DeliveryStore, Destinations, End, Ended, EngineError, MAX_STEP, MeantFor,
    Result, partition_of_group,
};
use crate::store::{attempts::attempts_made, json::to_json};
use crate::telemetry::Stored;

/// After so many bytes of notifications the other groups are leased later.
const MAX_LEASED_BYTES: usize = 16 << 20;

#[async_trait]
impl DeliveryStore for EmbeddedEngine {
    async fn bring_up_to_date(&self, receiver: &str, now: Timestamp) -> Result<usize> {
        absence::bring_up_to_date(self, receiver, now).await
    }

    async fn lease(
        &self,
        partitions: &[u16],
        receiver: &str,
        now: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Delivery>> {
        let (partitions, name) = (to_json(&partitions)?, receiver.to_owned());
        let (leases, mut before) = (self.delivery_leases.clone(), Vec::<(String, String)>::new());
        let write = move |database: &Connection| {
            // The transaction of an earlier call was rolled back, so its leases end.
            for (group, id) in before.drain(..) {
                leases.end(&name, &group, &id);
            }
            let leased = lease(database, &leases, &partitions, &name, now, limit)?;
            for Leased { group, id, attempt, .. } in &leased {
                leases.grant(&name, group, DeliveryLease { id: id.clone(), attempt: *attempt, until });
                before.push((group.clone(), id.clone()));
            }
            Ok(leased)
        };
        let (mut deliveries, mut broken) = (Vec::new(), Vec::new());
        for Leased { group, id, attempt, body } in self.writer.write("lease", write).await? {
            let Readable { notification, error } = Notification::read(&group, &body);
            if let Some(error) = error {
                self.keep_notification(&id, body, notification.is_some(), &error).await?;
            }
            let is_broken = notification.is_none();
            let mut delivery = Delivery::of(notification, &group, &format!("{id}.{receiver}"), receiver);
            delivery.attempt = attempt;
            if is_broken { broken.push(Ending::delivered(&delivery)) } else { deliveries.push(delivery) }
        }
        // These hold no transition that can be read: their groups go on with the next notification.
        if !broken.is_empty() {
            self.finish(broken, now).await?;
        }
        let left = absence::leave_out(self, receiver, deliveries).await?;
        let full = end_empty(self, &self.telemetry, receiver, left.deliveries, now).await?;
        // Not before they are ended: one that is leased once more is left out again.
        absence::forget(self, receiver, &left.over).await?;
        Ok(full)
    }

    async fn first_lease(&self, partitions: &[u16], receiver: &str) -> Result<Option<Timestamp>> {
        let select = "SELECT grp, at FROM queue WHERE receiver = ? AND partition IN \
                      (SELECT value FROM json_each(?)) ORDER BY at LIMIT ?";
        let (partitions, receiver) = (to_json(&partitions)?, receiver.to_owned());
        let leases = self.delivery_leases.clone();
        let first = move |database: &Connection| {
            let mut select = database.prepare_cached(select)?;
            // One more than are leased: if any group is free, it is among them.
            let most = leases.count(&receiver) as i64 + 1;
            let rows = select.query_map(params![receiver, partitions, most], |row| {
                Ok((row.get::<_, String>(0)?, Timestamp::from_millis(row.get(1)?)))
            })?;
            let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            let free = |(group, at): &(String, Timestamp)| {
                leases.until(&receiver, group).map_or(*at, |until| until.max(*at))
            };
            Ok(rows.iter().map(free).min())
        };
        self.readers.read(first).await
    }

    async fn extend_leases(&self, deliveries: &[Arc<Delivery>], until: Timestamp) -> Result<Vec<bool>> {
        let mut extended: Vec<bool> =
            deliveries.iter().map(|delivery| self.delivery_leases.extend(delivery, until)).collect();
        let expired = (0..deliveries.len()).filter(|place| !extended[*place]).map(|place| Ended {
            delivery: deliveries[place].clone(),
            end: End::RetryAt(until),
            attempt: None,
        });
        let expired: Vec<Ended> = expired.collect();
        if !expired.is_empty() {
            let mut answers = self.write_ends("extend_leases", &expired, until).await?.into_iter();
            extended.iter_mut().filter(|is_extended| !**is_extended).for_each(|is_extended| {
                *is_extended = answers.next().unwrap_or(false);
            });
        }
        Ok(extended)
    }

    async fn end_attempts(&self, ended: &[Ended], now: Timestamp) -> Result<()> {
        if !ended.is_empty() {
            self.write_ends("end_attempts", ended, now).await?;
        }
        Ok(())
    }

    async fn backlog(&self, partitions: &[u16], receiver: &str) -> Result<Backlog> {
        let (partitions, receiver) = (to_json(&partitions)?, receiver.to_owned());
        let count = move |database: &Connection, table: &str| {
            let select = format!(
                "SELECT count(*) FROM {table} WHERE receiver = ? AND partition IN (SELECT value FROM json_each(?))"
            );
            let mut select = database.prepare_cached(&select)?;
            select.query_row([&receiver, &partitions], |row| row.get::<_, i64>(0))
        };
        let counted = move |database: &Connection| {
            let (waiting, dead) = (count(database, "queue")?, count(database, "dead_letters")?);
            Ok(Backlog { waiting: waiting as u64, dead: dead as u64 })
        };
        self.readers.read(counted).await
    }

    async fn down_since(&self, receiver: &str, now: Timestamp) -> Result<Timestamp> {
        fallback::down_since(self, receiver, now).await
    }

    async fn is_up(&self, receiver: &str) -> Result<()> {
        fallback::is_up(self, receiver).await
    }

    async fn fall_back(
        &self,
        partitions: &[u16],
        meant_for: &MeantFor,
        to: &str,
        destinations: &Destinations,
        now: Timestamp,
    ) -> Result<usize> {
        fallback::fall_back(self, partitions, &ToFallback { meant_for, to, destinations }, now).await
    }
}

/// A notification that was leased.
struct Leased {
    group: String,
    id: String,
    attempt: u32,
    body: Vec<u8>,
}

/// Up to `limit` groups of a receiver whose deliveries are due, the longest due first.
fn due_groups(
    database: &Connection,
    leases: &DeliveryLeases,
    partitions: &str,
    receiver: &str,
    now: Timestamp,
    limit: usize,
) -> DatabaseResult<Vec<String>> {
    let most = (limit + leases.count(receiver)) as i64;
    let rows: Vec<(String, i64)> = database
        .prepare_cached(
            "SELECT grp, at FROM queue WHERE receiver = ? AND at <= ? AND partition IN \
             (SELECT value FROM json_each(?)) ORDER BY at, grp LIMIT ?",
        )?
        .query_map(params![receiver, now.as_millis(), partitions, most], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    // A delivery whose lease has ended is due since then.
    let rows = rows.into_iter().map(|(group, at)| {
        let until = leases.until(receiver, &group);
        (Timestamp::from_millis(at).max(until.unwrap_or(Timestamp::ZERO)), group)
    });
    let mut due: Vec<(Timestamp, String)> = rows.filter(|(at, _)| *at <= now).collect();
    due.sort();
    Ok(due.into_iter().take(limit).map(|(_, group)| group).collect())
}

fn lease(
    database: &Connection,
    leases: &DeliveryLeases,
    partitions: &str,
    receiver: &str,
    now: Timestamp,
    limit: usize,
) -> DatabaseResult<Vec<Leased>> {
    let due = due_groups(database, leases, partitions, receiver, now, limit.min(MAX_STEP))?;
    let (mut leased, mut bytes) = (Vec::new(), 0);
    for group in due {
        if bytes > MAX_LEASED_BYTES {
            break;
        }
        match first_of_lane(database, receiver, &group)? {
            Some((lane_id, id, attempts, Some(body))) => {
                database
                    .prepare_cached("UPDATE lanes SET attempts = attempts + 1 WHERE id = ?")?
                    .execute([lane_id])?;
                bytes += body.len();
                leased.push(Leased { group, id, attempt: attempts.saturating_add(1), body });
            }
            Some((lane_id, ..)) => {
                database.prepare_cached("DELETE FROM lanes WHERE id = ?")?.execute([lane_id])?;
            }
            None => {
                database
                    .prepare_cached("DELETE FROM queue WHERE receiver = ? AND grp = ?")?
                    .execute([receiver, &group])?;
            }
        }
    }
    Ok(leased)
}

/// The first delivery of a lane: its place, the notification and its content, and how many attempts there were.
type FirstOfLane = (i64, String, u32, Option<Vec<u8>>);

fn first_of_lane(database: &Connection, receiver: &str, group: &str) -> DatabaseResult<Option<FirstOfLane>> {
    let mut select = database.prepare_cached(
        "SELECT lanes.id, notification, attempts, CAST(body AS BLOB) FROM lanes \
         LEFT JOIN notifications ON notifications.id = notification \
         WHERE receiver = ? AND grp = ? ORDER BY lanes.id LIMIT 1",
    )?;
    let first =
        select.query_row([receiver, group], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
    Ok(first.optional()?)
}

/// Whether a delivery is the first of its lane, and no other attempt at it was begun since.
pub(super) fn is_under_way(database: &Connection, delivery: &Delivery) -> rusqlite::Result<bool> {
    let mut select = database.prepare_cached(
        "SELECT notification = ? AND attempts = ? FROM lanes WHERE receiver = ? AND grp = ? ORDER BY id LIMIT 1",
    )?;
    let key = params![delivery.notification(), delivery.attempt, delivery.receiver, delivery.group.key];
    Ok(select.query_row(key, |row| row.get(0)).optional()?.unwrap_or(false))
}

impl EmbeddedEngine {
    /// Copies an unreadable notification into quarantine. `is_in_part`: its readable members are delivered.
    async fn keep_notification(
        &self,
        id: &str,
        body: Vec<u8>,
        is_in_part: bool,
        why: &EngineError,
    ) -> Result<()> {
        let rest =
            if is_in_part { "its readable members are delivered" } else { "none of its members is readable" };
        let (name, location) = (id.to_owned(), format!("table notifications id {id:?}"));
        let text = format!("{why}; {rest}, and its group goes on; /api/v1/records lists the records");
        self.telemetry.unreadable(Stored::Delivery, &location, &text);
        let write =
            move |database: &Connection| quarantine::keep_notification(database, &name, &location, &body);
        self.writer.write("quarantine", write).await
    }

    /// Ends deliveries of which no attempt is put on record.
    pub(super) async fn finish(&self, endings: Vec<Ending>, now: Timestamp) -> Result<()> {
        if endings.is_empty() {
            return Ok(());
        }
        let partitions = self.memory.partitions();
        let endings = Arc::new(endings);
        let ended = endings.clone();
        let write = move |database: &Connection| {
            endings.iter().try_for_each(|ending| finish_one(database, ending, partitions, now))
        };
        self.writer.write("finish", write).await?;
        ended.iter().for_each(|ending| self.end_lease(ending));
        Ok(())
    }

    fn end_lease(&self, Ending { receiver, group, id, .. }: &Ending) {
        self.delivery_leases.end(receiver, group, id);
    }

    /// Writes ends and next attempts in one step, and puts the attempts on record. Answers which deliveries are still
    /// under way with the attempt that they name.
    async fn write_ends(&self, name: &'static str, ended: &[Ended], now: Timestamp) -> Result<Vec<bool>> {
        let partitions = self.memory.partitions();
        let ends = ended.iter().map(|one| Ok((Ending::of(one, now)?, one.clone())));
        let ends: Arc<Vec<(Option<Ending>, Ended)>> = Arc::new(ends.collect::<Result<_>>()?);
        let mut of_partitions: BTreeMap<u16, Vec<&Ended>> = BTreeMap::new();
        for one in ended {
            let partition = partition_of_group(&one.delivery.group.key, partitions);
            of_partitions.entry(partition).or_default().push(one);
        }
        let sets =
            of_partitions.into_iter().map(|(partition, of)| attempts_made(partition, of.into_iter(), now));
        let sets: Vec<Option<ChangeSet>> = sets.collect::<Result<_>>()?;
        let written = ends.clone();
        let write = move |database: &Connection| {
            for set in sets.iter().flatten() {
                cells::apply(database, set)?;
            }
            let end = |(ending, one): &(Option<Ending>, Ended)| match (ending, &one.end) {
                (None, End::RetryAt(at)) => set_next_attempt(database, &one.delivery, *at),
                (ending, _) => {
                    ending.iter().try_for_each(|ending| finish_one(database, ending, partitions, now))?;
                    Ok(false)
                }
            };
            written.iter().map(end).collect()
        };
        let under_way: Vec<bool> = self.writer.write(name, write).await?;
        for ((ending, one), is_under_way) in ends.iter().zip(&under_way) {
            ending.iter().for_each(|ending| self.end_lease(ending));
            if *is_under_way {
                self.delivery_leases.end_attempt(&one.delivery);
            }
        }
        Ok(under_way)
    }
}

/// Sets the next attempt of a delivery. Answers whether the delivery is still under way with the attempt that it names.
fn set_next_attempt(database: &Connection, delivery: &Delivery, at: Timestamp) -> DatabaseResult<bool> {
    let is_under_way = is_under_way(database, delivery)?;
    if is_under_way {
        let update = "UPDATE queue SET at = ? WHERE receiver = ? AND grp = ?";
        let key = params![at.as_millis(), delivery.receiver, delivery.group.key];
        database.prepare_cached(update)?.execute(key)?;
    }
    Ok(is_under_way)
}
