//! The record of attempts: how operators find attempts in it, and when attempts are removed.
//!
//! # Why an instance that writes attempts also makes room
//! The step that ends a delivery writes its attempt, and reads nothing else of the record. So each instance counts
//! the bytes that it writes, and removes the oldest attempts of a partition before they take up much more than the
//! record may have.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::Timestamp;
use crate::presence::RecordId;
use crate::store::{
    ATTEMPT_BYTES, Attempt, AttemptsEntry, Cells, CellsOfWord, ChangeSet, Documents, EndedLease, EntryOrder,
    Index, IndexEntry, IndexRange, MAX_ATTEMPT_BYTES, MAX_STEP, Result, Table, on_record, partition_of_group,
    word_of_notification, word_of_record,
};

/// After about this many written bytes an instance checks the size of a partition's attempts.
const WRITTEN: usize = 256 << 10;

/// How many cells one search finds; further ones are left out.
const MOST: usize = 20_000;

/// How many cells one change-set removes.
const REMOVED: usize = 16;

/// Of how many partitions one call reads the entries.
const PARTITIONS: usize = 64;

/// Attempts that one step wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenAttempts {
    pub at: Timestamp,
    /// Empty if they cannot be read.
    pub attempts: Vec<Attempt>,
}

/// The attempts of a fleet. Cheap to clone.
#[derive(Clone)]
pub struct Attempts {
    documents: Documents,
    /// About how many bytes this instance has written in each partition since its last check of the size.
    written: Arc<Mutex<BTreeMap<u16, usize>>>,
}

impl Attempts {
    pub fn new(cells: Arc<dyn Cells>) -> Attempts {
        Attempts { documents: Documents::new(cells), written: Arc::default() }
    }

    /// The first `limit` steps that wrote attempts in this time, in this order.
    pub async fn between(
        &self,
        from: Timestamp,
        until: Timestamp,
        limit: usize,
        order: EntryOrder,
    ) -> Result<Vec<WrittenAttempts>> {
        let (from, until) = (from.as_millis(), until.as_millis());
        let range = IndexRange { index: Index::AttemptsWritten, from, after: "", until, limit, order };
        let partitions: Vec<u16> = (0..self.documents.fleet()).collect();
        let mut entries: Vec<IndexEntry> = Vec::new();
        for some in partitions.chunks(PARTITIONS) {
            entries.extend(self.documents.range(&range, some).await?);
            entries.sort_unstable();
            if order == EntryOrder::NewestFirst {
                entries.reverse();
            }
            entries.truncate(limit);
        }
        let names: Vec<String> = entries.iter().map(|entry| entry.name.clone()).collect();
        let cells = self.documents.read::<AttemptsEntry>(&names).await?;
        let of_cells = cells.into_iter().map(|cell| cell.value.unwrap_or_default().0);
        let written = |(entry, attempts): (&IndexEntry, _)| WrittenAttempts {
            at: Timestamp::from_millis(entry.at),
            attempts,
        };
        Ok(entries.iter().zip(of_cells).map(written).collect())
    }

    /// The attempts at a notification, or at the notifications in a digest.
    pub async fn of_notification(&self, id: &str) -> Result<Vec<Attempt>> {
        let all = 0..self.documents.fleet();
        let mut found = self.of_words(all.map(|partition| word_of_notification(partition, id))).await?;
        found.retain(|one| one.notification == id || one.digest() == Some(id));
        Ok(found)
    }

    /// The attempts at notifications, each with the key of its group.
    pub async fn of_notifications(&self, notifications: &[(String, String)]) -> Result<Vec<Attempt>> {
        let partition = |group: &str| partition_of_group(group, self.documents.fleet());
        let words = notifications.iter().map(|(group, id)| word_of_notification(partition(group), id));
        let mut found = self.of_words(words).await?;
        let known: HashSet<&str> = notifications.iter().map(|(_, id)| id.as_str()).collect();
        found.retain(|one| known.contains(one.notification.as_str()));
        Ok(found)
    }

    /// The attempts that notified receivers of a record.
    pub async fn of_record(&self, id: &RecordId) -> Result<Vec<Attempt>> {
        let all = 0..self.documents.fleet();
        let mut found = self.of_words(all.map(|partition| word_of_record(partition, id))).await?;
        found.retain(|one| one.offline.contains(id) || one.online.contains(id));
        Ok(found)
    }

    /// The attempts that notified receivers of these records, each with the key of a group that it joined.
    pub async fn of_memberships(&self, records: &[(&str, &RecordId)]) -> Result<Vec<Attempt>> {
        let partition = |group: &str| partition_of_group(group, self.documents.fleet());
        self.of_words(records.iter().map(|(group, id)| word_of_record(partition(group), id))).await
    }

    /// The attempts in the cells that are found by these words, without repetitions.
    async fn of_words(&self, words: impl Iterator<Item = String>) -> Result<Vec<Attempt>> {
        let found = self.documents.read::<CellsOfWord>(&words.collect::<Vec<_>>()).await?;
        let cells = found.into_iter().flat_map(|cells| cells.value.unwrap_or_default().0);
        // A silence that lasts for a week is in hundreds of cells, and the names are in no order of time.
        let cells: BTreeSet<String> = cells.take(MOST).collect();
        let cells: Vec<String> = cells.into_iter().collect();
        let read = self.documents.read::<AttemptsEntry>(&cells).await?;
        let all = read.into_iter().flat_map(|cell| cell.value.unwrap_or_default().0);
        // A step whose answer was lost was repeated.
        let mut known = HashSet::new();
        let key = |one: &Attempt| {
            let made = (one.number, one.at, one.result.as_str(), one.answer.clone());
            (one.notification.clone(), one.receiver.clone(), made)
        };
        Ok(all.filter(|one| known.insert(key(one))).collect())
    }

    /// Makes room after these attempts were put on record: removes the oldest ones if there are too many.
    pub async fn were_put_on_record(&self, ended: &[EndedLease]) -> Result<()> {
        let partitions = self.note(ended);
        if partitions.is_empty() { Ok(()) } else { self.make_room(&partitions).await }
    }

    /// Counts the written bytes. Returns the partitions whose size has to be checked.
    fn note(&self, ended: &[EndedLease]) -> Vec<u16> {
        let mut written = self.written.lock();
        for one in ended.iter().filter(|one| one.attempt.is_some()) {
            let partition = partition_of_group(&one.delivery.group.key, self.documents.fleet());
            *written.entry(partition).or_default() += one.size();
        }
        let many: Vec<u16> =
            written.iter().filter(|(_, bytes)| **bytes >= WRITTEN).map(|(partition, _)| *partition).collect();
        written.retain(|partition, _| !many.contains(partition));
        many
    }

    /// Removes attempts of these partitions that were written before this moment, and the oldest ones that are too
    /// many.
    pub async fn forget(&self, partitions: &[u16], before: Timestamp) -> Result<()> {
        loop {
            let oldest = self.oldest(partitions, before.as_millis() - 1).await?;
            if oldest.is_empty() {
                break;
            }
            let mut of_partitions: BTreeMap<u16, Vec<IndexEntry>> = BTreeMap::new();
            for entry in oldest {
                of_partitions.entry(entry.partition).or_default().push(entry);
            }
            for (partition, oldest) in of_partitions {
                self.remove(partition, &oldest, usize::MAX).await?;
            }
        }
        self.make_room(partitions).await
    }

    /// Removes the oldest attempts of each of these partitions that has too many.
    async fn make_room(&self, partitions: &[u16]) -> Result<()> {
        let mut full = partitions.to_vec();
        while !full.is_empty() {
            let bytes = self.documents.counts(&full, ATTEMPT_BYTES).await?;
            let too_many = full.iter().zip(bytes).filter(|(_, bytes)| *bytes > MAX_ATTEMPT_BYTES as i64);
            let too_many: Vec<(u16, i64)> = too_many.map(|(partition, bytes)| (*partition, bytes)).collect();
            full.clear();
            for (partition, bytes) in too_many {
                let oldest = self.oldest(&[partition], i64::MAX).await?;
                if oldest.is_empty() {
                    // The cells were lost, and the number of their bytes was not.
                    let set = ChangeSet::of(partition).add(Table::Counts, ATTEMPT_BYTES, -bytes);
                    self.documents.write(&[set]).await?;
                } else {
                    self.remove(partition, &oldest, bytes as usize - MAX_ATTEMPT_BYTES).await?;
                    full.push(partition);
                }
            }
        }
        Ok(())
    }

    async fn oldest(&self, partitions: &[u16], until: i64) -> Result<Vec<IndexEntry>> {
        let (index, order) = (Index::AttemptsWritten, EntryOrder::OldestFirst);
        let range = IndexRange { index, from: i64::MIN, after: "", until, limit: MAX_STEP, order };
        self.documents.range(&range, partitions).await
    }

    /// Removes cells from the record in their order, up to about `most` bytes. Another instance may remove them
    /// meanwhile.
    async fn remove(&self, partition: u16, entries: &[IndexEntry], most: usize) -> Result<()> {
        let mut removed = 0;
        for some in entries.chunks(REMOVED) {
            let names: Vec<String> = some.iter().map(|entry| entry.name.clone()).collect();
            let read = self.documents.read::<AttemptsEntry>(&names).await?;
            let mut cells = Vec::with_capacity(names.len());
            for (name, cell) in names.into_iter().zip(read) {
                let entry = cell.value.unwrap_or_default();
                removed += entry.size();
                cells.push((name, entry));
                if removed >= most {
                    break;
                }
            }
            let set = some[..cells.len()].iter().fold(ChangeSet::of(partition), |set, entry| {
                set.is_at(Index::AttemptsWritten, &entry.name, Some(entry.at))
            });
            self.documents.write(&[on_record(set, &cells, None)?]).await?;
            if removed >= most {
                break;
            }
        }
        Ok(())
    }
}
