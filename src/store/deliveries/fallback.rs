//! Waiting notifications of a failing receiver also go to its fallback.
//!
//! The copies are notifications like others, with ids that are derived from the ids of the deliveries; the loop of
//! the fallback delivers them. The fallback itself is notified of the ends of these silences and blind intervals, even
//! when the receiver is back: an alert that it opened must not stay open. A mark names the last copied notification of a
//! group. The marks of groups without waiting notifications are removed by the next pass.

use serde::{Deserialize, Serialize};

use super::StoredDeliveries;
use crate::clock::Timestamp;
use crate::store::again::ToFallback;
use crate::store::documents::{Document, TableValue};
use crate::store::json::to_json;
use crate::store::lane::{Lane, append};
use crate::store::notification::Notification;
use crate::store::{
    Cell, ChangeSet, Delivery, MeantFor, NotifiedSilence, OutboxEvent, ReceiverName, Result, Table,
};

/// The most copies of one lane in one pass.
const COPIES: usize = 50;

/// When a receiver began to take nothing.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(transparent)]
struct DownSince(Timestamp);

impl TableValue for DownSince {
    type Name = String;
    const TABLE: Table = Table::Down;
}

/// The id of the last notification of a lane that the fallback got too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CopiedUpTo(String);

impl TableValue for CopiedUpTo {
    type Name = String;
    const TABLE: Table = Table::FallbackDone(ReceiverName::ANY);

    fn encode_into(&self, stored: &mut Vec<u8>) -> Result<()> {
        stored.extend_from_slice(self.0.as_bytes());
        Ok(())
    }

    fn decode(stored: &[u8]) -> Result<CopiedUpTo> {
        Ok(CopiedUpTo(String::from_utf8_lossy(stored).into_owned()))
    }
}

/// The copies of a lane that will be queued.
struct CopiedLane {
    mark: Document<CopiedUpTo>,
    /// The last notification that these copies cover.
    last: String,
    /// The copies with their ids.
    copies: Vec<(String, Notification)>,
}

impl StoredDeliveries {
    /// Since when a receiver takes nothing; `now`, if that is not stored yet.
    pub async fn down_since(&self, receiver: &str, now: Timestamp) -> Result<Timestamp> {
        let known: Document<DownSince> = self.documents.one(&receiver.to_owned()).await?;
        if let Some(DownSince(since)) = known.value {
            return Ok(since);
        }
        let set = self.documents.change(&known, Some(&DownSince(now)))?;
        if self.documents.write(&[set]).await? == [true] {
            return Ok(now);
        }
        let known: Document<DownSince> = self.documents.one(&receiver.to_owned()).await?;
        Ok(known.value.map_or(now, |DownSince(since)| since))
    }

    /// Notes that a receiver takes notifications again.
    pub async fn is_up(&self, receiver: &str) -> Result<()> {
        let set = ChangeSet::of(self.partitions());
        self.documents.write(&[set.put(Table::Down, receiver, None)]).await?;
        Ok(())
    }

    /// Queues the notifications of a receiver in these partitions for its fallback too: each once, under its own id,
    /// even if several instances call this or one calls it again. Notifications that the fallback gets itself are left
    /// out. Answers how many were queued.
    pub async fn fall_back(
        &self,
        partitions: &[u16],
        meant_for: &MeantFor,
        to: &str,
        now: Timestamp,
    ) -> Result<usize> {
        let fallback = ToFallback { meant_for, to };
        let table = Table::Lanes(ReceiverName::of(&meant_for.receiver));
        let mut queued = 0;
        for &partition in partitions {
            self.forget_marks(partition, &meant_for.receiver).await?;
            let mut from = None;
            loop {
                let page = self.engine.scan_cells(table, partition, from).await?;
                let lanes = page.cells.into_iter();
                let lanes = lanes.filter_map(|(group, lane)| Some((group, Lane::decode(&lane).ok()?)));
                for lanes in lanes.collect::<Vec<_>>().chunks(COPIES) {
                    queued += self.copy_lanes(partition, &fallback, lanes, now).await?;
                }
                from = page.next;
                if from.is_none() {
                    break;
                }
            }
        }
        Ok(queued)
    }

    /// Copies the notifications behind the marks of some lanes.
    async fn copy_lanes(
        &self,
        partition: u16,
        fallback: &ToFallback<'_>,
        lanes: &[(String, Lane)],
        now: Timestamp,
    ) -> Result<usize> {
        let done = Table::FallbackDone(ReceiverName::of(&fallback.meant_for.receiver));
        let mark = |(group, _): &(String, Lane)| Cell { table: done, partition, name: group.clone() };
        let marks = self.documents.read_cells(lanes.iter().map(mark).collect()).await?;
        let (mut copied, mut silences) = (Vec::new(), Vec::new());
        for ((group, lane), mark) in lanes.iter().zip(marks) {
            copied.extend(self.copied(fallback, (group, lane), mark, &mut silences).await?);
        }
        // First add the fallback as a receiver: without the return, the alert of a copy would stay open.
        self.groups.add_receiver(fallback.to, &silences).await?;
        let lane = |one: &CopiedLane| Lane::cell(fallback.to, partition, &one.mark.name);
        let queues: Vec<Document<Lane>> =
            self.documents.read_cells(copied.iter().map(lane).collect()).await?;
        let (mut sets, mut counts) = (Vec::new(), Vec::new());
        for (CopiedLane { mark, last, copies }, lane) in copied.into_iter().zip(queues) {
            let mut set = mark.change_in(ChangeSet::of(partition), Some(&CopiedUpTo(last)))?;
            let known = |id: &String| lane.value.as_ref().is_some_and(|lane| lane.has(id));
            let new: Vec<&(String, Notification)> = copies.iter().filter(|(id, _)| !known(id)).collect();
            if !new.is_empty() {
                let ids: Vec<&str> = new.iter().map(|(id, _)| id.as_str()).collect();
                set = append(set, &lane, fallback.to, &ids, (now, false))?;
            }
            for (id, notification) in &new {
                set = set.put(Table::Notifications, id, Some(to_json(notification)?.as_bytes()));
            }
            counts.push(new.len());
            sets.push(set);
        }
        let written = self.documents.write(&sets).await?;
        // The next pass copies lanes that have changed meanwhile.
        Ok(counts.iter().zip(written).map(|(count, is_written)| if is_written { *count } else { 0 }).sum())
    }

    /// The copies of a lane behind its mark; `None`: nothing is behind it. Adds their silences, with the group, to
    /// `silences`.
    async fn copied(
        &self,
        fallback: &ToFallback<'_>,
        (group, lane): (&String, &Lane),
        mark: Document<CopiedUpTo>,
        silences: &mut Vec<NotifiedSilence>,
    ) -> Result<Option<CopiedLane>> {
        let ids = &lane.notifications;
        let is_mark = |id: &String| mark.value.as_ref().is_some_and(|mark| mark.0 == *id);
        let behind = ids.iter().position(is_mark).map_or(0, |at| at + 1);
        let ids: Vec<&String> = ids.iter().skip(behind).take(COPIES).collect();
        let Some(last) = ids.last().map(|id| (*id).clone()) else { return Ok(None) };
        let of: Vec<(&str, &str)> = ids.iter().map(|id| (group.as_str(), id.as_str())).collect();
        let receiver = &fallback.meant_for.receiver;
        let mut copies = Vec::new();
        for (id, body) in ids.iter().zip(self.bodies(&of).await?) {
            // An unreadable notification is left out, as for its receiver.
            let notification = body.and_then(|body| Notification::read(group, &body).notification);
            let Some(part) = notification.and_then(|one| one.part_of_fallback(fallback.to)) else {
                continue;
            };
            let delivery = Delivery::of(Some(part), group, &Delivery::id_of(id, receiver), receiver);
            let offline = delivery.offline.iter().cloned().map(OutboxEvent::Record);
            let lasting = delivery.blind.iter().filter(|one| !one.is_over()).copied().map(OutboxEvent::Blind);
            silences.extend(offline.chain(lasting).map(|event| NotifiedSilence::of(group, &event)));
            copies.push(Notification::for_fallback(&delivery, fallback.to, fallback.meant_for.since));
        }
        Ok(Some(CopiedLane { mark, last, copies }))
    }

    /// Removes the marks of groups without waiting notifications.
    async fn forget_marks(&self, partition: u16, receiver: &str) -> Result<()> {
        let of = ReceiverName::of(receiver);
        let marks = self.engine.all_cells(Table::FallbackDone(of), partition).await?;
        let lane = |group: &String| Lane::cell(receiver, partition, group);
        let waiting = self.engine.read_cells(&marks.keys().map(lane).collect::<Vec<_>>()).await?;
        let gone = marks.keys().zip(waiting).filter(|(_, lane)| lane.is_none());
        let set =
            |(group, _): (&String, _)| ChangeSet::of(partition).put(Table::FallbackDone(of), group, None);
        self.documents.write(&gone.map(set).collect::<Vec<_>>()).await?;
        Ok(())
    }
}
