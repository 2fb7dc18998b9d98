//! Dead letters: deliveries that were given up.

use super::StoredDeliveries;
use super::waiting_delivery;
use crate::clock::Timestamp;
use crate::store::cells::{IndexEntry, IndexRange};
use crate::store::documents::{Document, TableValue};
use crate::store::lane::Lane;
use crate::store::notification::discarded;
use crate::store::{Cell, ChangeSet, DeadLetter, EntryOrder, Index, MAX_STEP, ReceiverName, Result, Table};

/// The number of lanes that one step discards.
const LANES: usize = 50;

/// The changes of one step of discarding; zeros if nothing is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// How many notifications became dead letters, which a later step removes.
    pub ended: usize,
    /// How many dead letters were removed.
    pub removed: usize,
}

impl TableValue for DeadLetter {
    type Name = String;
    const TABLE: Table = Table::DeadLetters(ReceiverName::ANY);
}

impl StoredDeliveries {
    /// Dead letters of a receiver, newest first.
    pub async fn dead_letters(&self, receiver: &str, limit: usize) -> Result<Vec<DeadLetter>> {
        let (from, until) = (Timestamp::ZERO, Timestamp::from_millis(i64::MAX));
        self.dead_letters_between(receiver, from, until, limit, EntryOrder::NewestFirst).await
    }

    /// Dead letters of a receiver that were given up from one moment up to the other.
    pub async fn dead_letters_between(
        &self,
        receiver: &str,
        from: Timestamp,
        until: Timestamp,
        limit: usize,
        order: EntryOrder,
    ) -> Result<Vec<DeadLetter>> {
        let Some(of) = self.known_receiver(receiver).await? else { return Ok(Vec::new()) };
        let (from, until) = (from.as_millis(), until.as_millis());
        let range = IndexRange { index: Index::Dead(of), from, after: "", until, limit, order };
        loop {
            let entries = self.engine.range(&range, &self.all_partitions()).await?;
            let (mut letters, mut lost) = (Vec::with_capacity(entries.len()), Vec::new());
            for step in entries.chunks(MAX_STEP) {
                let cells = step.iter().map(|entry| letter_cell(of, entry.partition, &entry.name)).collect();
                for (entry, document) in step.iter().zip(self.documents.read_cells(cells).await?) {
                    match document {
                        Document { value: Some(letter), .. } => letters.push(letter),
                        document => lost.push(left(of, entry, &document)),
                    }
                }
            }
            // A fault left an entry without a letter; more may follow.
            if lost.is_empty() || !self.documents.write(&lost).await?.contains(&true) {
                return Ok(letters);
            }
        }
    }

    /// The dead letter of a notification, if there is one.
    pub async fn letter(&self, receiver: &str, notification: &str) -> Result<Option<DeadLetter>> {
        let Some(of) = self.known_receiver(receiver).await? else { return Ok(None) };
        let cells =
            self.all_partitions().into_iter().map(|partition| letter_cell(of, partition, notification));
        let found: Vec<Document<DeadLetter>> = self.documents.read_cells(cells.collect()).await?;
        Ok(found.into_iter().find_map(|document| document.value))
    }

    /// Removes dead letters. Answers how many there were.
    pub async fn purge(&self, letters: &[DeadLetter]) -> Result<usize> {
        let mut removed = 0;
        for step in letters.chunks(MAX_STEP) {
            let cell = |letter: &DeadLetter| {
                let of = ReceiverName::of(&letter.delivery.receiver);
                letter_cell(of, self.partition(&letter.delivery), letter.delivery.notification())
            };
            let cells: Vec<Cell> = step.iter().map(cell).collect();
            let stored = self.engine.read_cells(&cells).await?;
            let sets = cells.iter().zip(&stored).zip(step).filter_map(|((cell, stored), letter)| {
                let of = ReceiverName::of(&letter.delivery.receiver);
                let set = ChangeSet::of(cell.partition).has(cell.table, &cell.name, Some(stored.as_deref()?));
                Some(set.put(cell.table, &cell.name, None).enter(Index::Dead(of), &cell.name, None))
            });
            let written = self.documents.write(&sets.collect::<Vec<_>>()).await?;
            removed += written.into_iter().filter(|is_written| *is_written).count();
        }
        Ok(removed)
    }

    /// Discards a bounded number of dead letters of a receiver, and of its waiting notifications, which become dead
    /// letters first. This receiver is not notified of the returns of the discarded silences.
    pub async fn discard(&self, receiver: &str, now: Timestamp) -> Result<Discarded> {
        let Some(of) = self.known_receiver(receiver).await? else { return Ok(Discarded::default()) };
        let dead = self.engine.entries(Index::Dead(of), &self.all_partitions(), i64::MAX, MAX_STEP).await?;
        // Remove dead letters first, so that at most one step of them exists.
        if !dead.is_empty() {
            let set = |IndexEntry { partition, name, .. }: &IndexEntry| {
                let set = ChangeSet::of(*partition).put(Table::DeadLetters(of), name, None);
                set.enter(Index::Dead(of), name, None)
            };
            self.documents.write(&dead.iter().map(set).collect::<Vec<_>>()).await?;
            return Ok(Discarded { ended: 0, removed: dead.len() });
        }
        for partition in self.all_partitions() {
            let page = self.engine.scan_cells(Table::Lanes(of), partition, None).await?;
            let lanes: Vec<(String, Vec<u8>)> = page.cells.into_iter().take(LANES).collect();
            if !lanes.is_empty() {
                return self.discard_lanes(partition, receiver, lanes, now).await;
            }
        }
        Ok(Discarded::default())
    }

    /// Ends the first notification of some lanes. It becomes a dead letter, so that the returns of its silences are
    /// left out.
    async fn discard_lanes(
        &self,
        partition: u16,
        receiver: &str,
        lanes: Vec<(String, Vec<u8>)>,
        now: Timestamp,
    ) -> Result<Discarded> {
        let mut firsts = Vec::new();
        let mut unreadable = 0;
        for (group, stored) in lanes {
            let cell = Lane::cell(receiver, partition, &group);
            let lane: Document<Lane> = self.documents.document(cell, Some(stored)).await?;
            match lane.value {
                Some(known) => firsts.push((lane.name, known.first().to_owned())),
                None => unreadable += 1,
            }
        }
        let of: Vec<(&str, &str)> = firsts.iter().map(|(group, id)| (group.as_str(), id.as_str())).collect();
        let bodies = self.bodies(&of).await?;
        let letter = |((group, id), body): (&(String, String), _)| {
            discarded(waiting_delivery(receiver, group, id, body), now)
        };
        let letters: Vec<DeadLetter> = firsts.iter().zip(bodies).map(letter).collect();
        let ended = self.give_up(&letters, now).await?;
        // Unreadable letters were quarantined.
        Ok(Discarded { ended, removed: unreadable })
    }
}

fn letter_cell(of: ReceiverName, partition: u16, notification: &str) -> Cell {
    Cell { table: Table::DeadLetters(of), partition, name: notification.to_owned() }
}

/// The change-set that removes an entry without a letter.
fn left(of: ReceiverName, entry: &IndexEntry, document: &Document<DeadLetter>) -> ChangeSet {
    let set = document.expect_in(ChangeSet::of(entry.partition));
    set.is_at(Index::Dead(of), &entry.name, Some(entry.at)).enter(Index::Dead(of), &entry.name, None)
}
