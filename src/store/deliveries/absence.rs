//! Receivers that were not configured for a while, and the silences of which they were not notified.
//!
//! Instances mark receivers that are not in their configuration as absent. When a receiver is configured again, its
//! lanes are read once before any notification is leased. A silence that has ended meanwhile is marked as unnotified:
//! the silence and its return are left out when their notifications are leased. A silence that lasts is delivered as
//! sealed.
//!
//! # Why the mark of absence stays until all lanes are read
//! After a crash halfway the lanes are read again, and a second mark of a silence changes nothing.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::StoredDeliveries;
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, Snapshot, Unit};
use crate::store::documents::{Document, TableValue};
use crate::store::lane::Lane;
use crate::store::notification::Notification;
use crate::store::unnotified::{
    LeftOut, Unnotified, UnnotifiedSilence, blindness_in, left_out, silence, silence_in,
};
use crate::store::{
    Cell, ChangeSet, Delivery, EngineError, Group, MAX_STEP, ReceiverName, Result, Table, partition_of_group,
};

/// The name and value of the mark that waiting notifications may contain unnotified silences. Without this mark, a
/// lease reads only the marks of returns.
pub(super) const MARKED: &str = "-";

/// A receiver that is or was configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ListedReceiver {
    /// Since when it is configured, or absent.
    since: Timestamp,
    is_absent: bool,
}

impl TableValue for ListedReceiver {
    type Name = String;
    const TABLE: Table = Table::ReceiverList;
}

impl StoredDeliveries {
    /// Enters the configured receivers in the list of receivers, and marks the other receivers in the list as absent.
    /// The service calls this at each start. Safe to repeat.
    pub async fn register_receivers(&self, receivers: &[String], now: Timestamp) -> Result<()> {
        let mut listed: HashMap<String, Option<ListedReceiver>> =
            self.listed_receivers().await?.into_iter().map(|(name, known)| (name, Some(known))).collect();
        if listed.is_empty() {
            let found = match self.engine.receivers_with_cells().await {
                // Without the right to search for them, the list has only the receivers that are configured from now
                // on.
                Err(EngineError::Refused(_)) => BTreeSet::new(),
                found => found?,
            };
            listed.extend(found.into_iter().map(|name| (name.to_string(), None)));
        }
        let mut sets = Vec::new();
        let mut change = |name: &String, known, after| {
            sets.push(self.documents.change(&Document::expected(name.clone(), known)?, Some(&after))?);
            Ok::<_, EngineError>(())
        };
        // An absent receiver stays absent until its lanes are up to date.
        for name in receivers.iter().filter(|name| !listed.contains_key(*name)) {
            change(name, None, ListedReceiver { since: now, is_absent: false })?;
        }
        for (name, known) in listed.iter().filter(|(name, _)| !receivers.contains(name)) {
            if known.is_none_or(|known| !known.is_absent) {
                change(name, *known, ListedReceiver { since: now, is_absent: true })?;
            }
        }
        self.documents.write(&sets).await?;
        Ok(())
    }

    async fn listed_receivers(&self) -> Result<Vec<(String, ListedReceiver)>> {
        Ok(self.documents.of_fleet::<ListedReceiver>().await?.into_iter().collect())
    }

    /// The receiver that a client names; `None`: no receiver with this name was ever configured.
    pub(super) async fn known_receiver(&self, receiver: &str) -> Result<Option<ReceiverName>> {
        if let Some(known) = ReceiverName::known(receiver) {
            return Ok(Some(known));
        }
        let is_listed = self.all_receivers().await?.iter().any(|name| name == receiver);
        Ok(is_listed.then(|| ReceiverName::of(receiver)))
    }

    /// The names of all receivers that are or were configured.
    pub(super) async fn all_receivers(&self) -> Result<Vec<String>> {
        Ok(self.listed_receivers().await?.into_iter().map(|(name, _)| name).collect())
    }

    /// Brings the deliveries of an absent receiver up to date, before any of them is leased: silences that have
    /// ended, and their returns, are left out. Then the receiver is not absent any more. Answers the number that is
    /// left out; zero for a receiver that was not absent. Safe to repeat.
    pub async fn bring_up_to_date(&self, receiver: &str, now: Timestamp) -> Result<usize> {
        let listed: Document<ListedReceiver> = self.documents.one(&receiver.to_owned()).await?;
        if !listed.value.is_some_and(|known| known.is_absent) {
            return Ok(0);
        }
        let (table, mut past) = (Table::Lanes(ReceiverName::of(receiver)), 0);
        for partition in self.all_partitions() {
            let mut from = None;
            loop {
                let page = self.engine.scan_cells(table, partition, from).await?;
                past += self.mark_past(partition, receiver, &page.cells).await?;
                from = page.next;
                if from.is_none() {
                    break;
                }
            }
        }
        let after = ListedReceiver { since: now, is_absent: false };
        self.documents.write(&[self.documents.change(&listed, Some(&after))?]).await?;
        Ok(past)
    }

    /// Marks the ended silences in these lanes. Answers their number.
    async fn mark_past(&self, partition: u16, receiver: &str, lanes: &[(String, Vec<u8>)]) -> Result<usize> {
        // Leasing reports an unreadable lane.
        let lanes = lanes.iter().filter_map(|(group, lane)| Some((group, Lane::decode(lane).ok()?)));
        let lanes: Vec<(&String, Lane)> = lanes.collect();
        let of = |(group, lane): &'_ (&'_ String, Lane)| {
            let group = (*group).clone();
            lane.notifications.iter().map(move |id| (group.clone(), id.clone())).collect::<Vec<_>>()
        };
        let waiting: Vec<(String, String)> = lanes.iter().flat_map(of).collect();
        let mut past = 0;
        for step in waiting.chunks(MAX_STEP) {
            let of: Vec<(&str, &str)> =
                step.iter().map(|(group, id)| (group.as_str(), id.as_str())).collect();
            let bodies = self.bodies(&of).await?;
            let read = |((group, _), body): (&(String, String), Option<Vec<u8>>)| {
                Notification::read(group, &body?).notification
            };
            let notifications: Vec<Notification> = step.iter().zip(bodies).filter_map(read).collect();
            let names = self.past(&notifications).await?;
            if names.is_empty() {
                continue;
            }
            let table = Table::Unnotified(ReceiverName::of(receiver));
            let set = ChangeSet::of(partition).put(table, MARKED, Some(MARKED.as_bytes()));
            let mark =
                |set: ChangeSet, name: &String| set.put(table, name, Some(Unnotified::PAST.as_bytes()));
            self.documents.write(&[names.iter().fold(set, mark)]).await?;
            past += names.len();
        }
        Ok(past)
    }

    /// The names of the silences and blind intervals of these notifications that have ended.
    async fn past(&self, notifications: &[Notification]) -> Result<BTreeSet<String>> {
        let mut past = BTreeSet::new();
        let lasts = |one: &Notification| one.blind.iter().any(|interval| !interval.is_over());
        if notifications.iter().any(lasts) {
            let hearing = self.engine.hearing().await?;
            for one in notifications {
                past.extend(one.over(&hearing).map(|interval| blindness_in(&one.group, interval)));
            }
        }
        // For a reminder, the receiver may have been notified of the silences before.
        let notified_first = notifications.iter().filter(|one| !one.reminder);
        let of = notified_first.flat_map(|one| one.offline.iter().map(|record| (&one.group, record)));
        let silences: Vec<(&Group, &OfflineRecord)> = of.filter(|(_, record)| record.is_silence()).collect();
        for records in silences.chunks(MAX_STEP) {
            let units: Vec<Unit> = records.iter().map(|(_, record)| record.id.unit.clone()).collect();
            let seen = self.engine.read(&units).await?;
            let over = records.iter().zip(seen).filter(|((_, record), seen)| is_over(record, seen));
            past.extend(over.map(|((group, record), _)| silence_in(group, record)));
        }
        Ok(past)
    }

    /// These deliveries without the returns of silences of which the receiver was not notified, and without silences
    /// that ended before it was configured again. A delivery may have no members left. Deliveries of a group are in
    /// order. Afterwards the receiver counts as notified of the silences of a dead letter among them.
    pub async fn leave_out(&self, receiver: &str, deliveries: Vec<Delivery>) -> Result<Vec<Delivery>> {
        Ok(self.left_out(receiver, deliveries).await?.deliveries)
    }

    pub(super) async fn left_out(&self, receiver: &str, deliveries: Vec<Delivery>) -> Result<LeftOut> {
        let unnotified = self.unnotified(receiver, &deliveries).await?;
        let left = left_out(deliveries, unnotified);
        self.forget_unnotified(receiver, &left.notified).await?;
        Ok(left)
    }

    /// For each of these open silences, in the group with it, the id of the notification that was given up and left the
    /// receiver without notice of it; `None`: none was, or its dead letter is delivered again. Known also when the dead
    /// letter is removed.
    pub async fn given_up(
        &self,
        receiver: &str,
        silences: &[(&Group, &OfflineRecord)],
    ) -> Result<Vec<Option<String>>> {
        let table = Table::Unnotified(ReceiverName::of(receiver));
        let cell = |(group, record): &(&Group, &OfflineRecord)| {
            let partition = partition_of_group(&group.key, self.partitions());
            Cell { table, partition, name: silence_in(group, record) }
        };
        let marks = self.engine.read_cells(&silences.iter().map(cell).collect::<Vec<_>>()).await?;
        let letter =
            |mark: Option<Vec<u8>>| match Unnotified::of(String::from_utf8_lossy(&mark?).into_owned()) {
                Unnotified::Dead(letter) => Some(letter),
                Unnotified::Past => None,
            };
        Ok(marks.into_iter().map(letter).collect())
    }

    /// The marks of the silences and blind intervals of these deliveries of which the receiver was not notified, by
    /// name.
    async fn unnotified(
        &self,
        receiver: &str,
        deliveries: &[Delivery],
    ) -> Result<HashMap<String, Unnotified>> {
        let table = Table::Unnotified(ReceiverName::of(receiver));
        let cell = |partition: u16, name: String| Cell { table, partition, name };
        let partitions: BTreeSet<u16> = deliveries.iter().map(|one| self.partition(one)).collect();
        let mut cells: Vec<Cell> =
            partitions.iter().map(|partition| cell(*partition, MARKED.to_owned())).collect();
        for delivery in deliveries {
            let of = |record| cell(self.partition(delivery), silence_in(&delivery.group, record));
            cells.extend(delivery.notified_before().map(of));
        }
        let stored = self.engine.read_cells(&cells).await?;
        let is_marked = |(of, mark): (u16, &Option<Vec<u8>>)| mark.is_some().then_some(of);
        let marked: BTreeSet<u16> = partitions.iter().copied().zip(&stored).filter_map(is_marked).collect();
        let mut known: Vec<(Cell, Option<Vec<u8>>)> =
            cells.into_iter().zip(stored).skip(partitions.len()).collect();
        let mut cells = Vec::new();
        for delivery in deliveries.iter().filter(|one| marked.contains(&self.partition(one))) {
            let blind = delivery.blind.iter().map(|interval| blindness_in(&delivery.group, interval));
            let names = delivery.silences().into_iter().chain(blind);
            cells.extend(names.map(|name| cell(self.partition(delivery), name)));
        }
        if !cells.is_empty() {
            let stored = self.engine.read_cells(&cells).await?;
            known.extend(cells.into_iter().zip(stored));
        }
        let mark = |stored: Vec<u8>| Unnotified::of(String::from_utf8_lossy(&stored).into_owned());
        Ok(known.into_iter().filter_map(|(cell, stored)| Some((cell.name, mark(stored?)))).collect())
    }

    /// Removes the marks that the receiver was not notified of these silences.
    pub(super) async fn forget_unnotified(
        &self,
        receiver: &str,
        silences: &[UnnotifiedSilence],
    ) -> Result<()> {
        let table = Table::Unnotified(ReceiverName::of(receiver));
        let set = |UnnotifiedSilence { group, name }: &UnnotifiedSilence| {
            ChangeSet::of(partition_of_group(group, self.partitions())).put(table, name, None)
        };
        if !silences.is_empty() {
            self.documents.write(&silences.iter().map(set).collect::<Vec<_>>()).await?;
        }
        Ok(())
    }
}

/// Whether the record is closed. A unit with unreadable facts may still be offline.
fn is_over(record: &OfflineRecord, seen: &Snapshot) -> bool {
    let open = seen.facts.as_ref().and_then(|facts| facts.open_record(&seen.unit));
    !seen.is_unreadable() && open.is_none_or(|open| silence(&open) != silence(record))
}
