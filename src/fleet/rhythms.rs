//! The rhythms of units, stored over restarts: an instance writes what it has learned of its units every ten minutes,
//! and reads it again when it becomes the owner of a partition.
//!
//! A crash loses the last minutes, which the next heartbeats teach again. No decision depends on rhythms, so two
//! instances that both believe to own a partition may overwrite each other.
//!
//! # How much that is
//! A cell holds a block of up to 512 units in 10 kB, twenty bytes a unit. Only blocks in which a unit was heard again
//! are written: at most 34 kB/s for a million units.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use foldhash::fast::FixedState;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{Mirror, Ownership};
use crate::clock::{Clock, Timestamp, monotonic};
use crate::presence::Rhythm;
use crate::store::table::NamedRhythm;
use crate::store::{Cells, ChangeSet, Documents, EngineError, Result, Table, TableValue};
use crate::telemetry::{Loop, Telemetry};

/// How often the rhythms of a partition are written.
const WRITE_EVERY: Duration = Duration::from_secs(600);
const TICK: Duration = Duration::from_secs(1);

/// Blocks of one write: a third of a megabyte.
const BLOCKS_A_WRITE: usize = 32;

/// How long the last write may take when Rollcall stops.
const LAST_WRITE: Duration = Duration::from_secs(3);

/// The bytes of the moment before the rhythms of a block, and of a rhythm with the hash of its unit.
const MOMENT: usize = 8;
const ENTRY: usize = 8 + Rhythm::BYTES;

/// Writes and reads the rhythms of the units of this instance.
pub struct RhythmKeeper {
    pub mirror: Arc<Mirror>,
    pub ownership: Ownership,
    pub cells: Arc<dyn Cells>,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
}

/// The partitions whose rhythms were read, with the stored blocks of each and when it was written last.
type KnownBlocks = BTreeMap<u16, (Vec<BlockName>, Instant)>;

/// The number of a partition and of a block in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BlockName {
    partition: u16,
    block: usize,
}

impl fmt::Display for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.partition, self.block)
    }
}

impl FromStr for BlockName {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<BlockName> {
        let wrong = || EngineError::Damaged(format!("{text:?} is no block of rhythms"));
        let (partition, block) = text.split_once('.').ok_or_else(wrong)?;
        let (partition, block) = (partition.parse().ok(), block.parse().ok());
        Ok(BlockName { partition: partition.ok_or_else(wrong)?, block: block.ok_or_else(wrong)? })
    }
}

/// The rhythms of a block: when they were written, and then the hash and the rhythm of each unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RhythmBlock(Vec<u8>);

impl TableValue for RhythmBlock {
    type Name = BlockName;
    const TABLE: Table = Table::Rhythms;

    /// Base64, because cells are text: as JSON it would be three times as long.
    fn encode_into(&self, stored: &mut Vec<u8>) -> Result<()> {
        stored.extend_from_slice(BASE64.encode(&self.0).as_bytes());
        Ok(())
    }

    fn decode(stored: &[u8]) -> Result<RhythmBlock> {
        let is_block =
            |bytes: &Vec<u8>| bytes.len().checked_sub(MOMENT).is_some_and(|rest| rest.is_multiple_of(ENTRY));
        let bytes = BASE64.decode(stored).ok().filter(is_block);
        bytes.map(RhythmBlock).ok_or_else(|| EngineError::Damaged("it is no block of rhythms".to_owned()))
    }
}

impl RhythmBlock {
    fn new(at: Timestamp, rhythms: &[NamedRhythm]) -> RhythmBlock {
        let mut bytes = Vec::with_capacity(MOMENT + ENTRY * rhythms.len());
        bytes.extend(at.as_millis().to_le_bytes());
        for (unit, rhythm) in rhythms {
            bytes.extend(unit.to_le_bytes());
            bytes.extend(rhythm.to_bytes());
        }
        RhythmBlock(bytes)
    }

    fn at(&self) -> i64 {
        self.0.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes))
    }

    fn rhythms(&self) -> impl Iterator<Item = NamedRhythm> {
        self.0[MOMENT..].chunks_exact(ENTRY).filter_map(|entry| {
            let (unit, rhythm) = entry.split_first_chunk()?;
            Some((u64::from_le_bytes(*unit), Rhythm::from_bytes(rhythm.try_into().ok()?)))
        })
    }
}

impl RhythmKeeper {
    /// Keeps rhythms until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut every = tokio::time::interval(TICK);
        let mut known = KnownBlocks::new();
        while stop.run_until_cancelled(every.tick()).await.is_some() {
            match stop.run_until_cancelled(self.step(&mut known)).await {
                Some(Ok(())) => self.telemetry.engine_answered(Loop::Rhythms, ""),
                Some(Err(error)) => self.telemetry.engine_failed(Loop::Rhythms, "", &error),
                None => break,
            }
        }
        // Rhythms that are not written in time are learned again.
        let _ = tokio::time::timeout(LAST_WRITE, self.write_all(&mut known)).await;
        Ok(())
    }

    /// Reads the rhythms of new partitions, and writes those of partitions that are due.
    async fn step(&self, known: &mut KnownBlocks) -> Result<()> {
        let own = self.ownership.view().partitions.clone();
        known.retain(|partition, _| own.contains(partition));
        for partition in own {
            if self.mirror.wants_rhythms(partition) {
                let stored = self.read(partition).await?;
                known.insert(partition, (stored, monotonic()));
            }
            let is_due = |(_, at): &(Vec<BlockName>, Instant)| monotonic().duration_since(*at) >= WRITE_EVERY;
            if known.get(&partition).is_some_and(is_due) {
                self.write_known(partition, known).await?;
            }
        }
        Ok(())
    }

    /// Writes the rhythms of all partitions that were read, whether they are due or not.
    async fn write_all(&self, known: &mut KnownBlocks) -> Result<()> {
        let partitions: Vec<u16> = known.keys().copied().collect();
        for partition in partitions {
            self.write_known(partition, known).await?;
        }
        Ok(())
    }

    async fn write_known(&self, partition: u16, known: &mut KnownBlocks) -> Result<()> {
        if let Some((stored, at)) = known.get_mut(&partition) {
            self.write(partition).await?;
            self.remove_stale(partition, stored).await?;
            *at = monotonic();
        }
        Ok(())
    }

    /// Gives the units of a partition their stored rhythms, and answers the names of the blocks.
    async fn read(&self, partition: u16) -> Result<Vec<BlockName>> {
        let mut stored = Documents::new(self.cells.clone()).each::<RhythmBlock>(&[partition]).await?;
        // After a change of the owner a unit may be in two blocks: the newer one counts.
        stored.sort_by_key(|(_, block)| block.at());
        let mut rhythms: HashMap<u64, Rhythm, FixedState> = HashMap::default();
        stored.iter().for_each(|(_, block)| rhythms.extend(block.rhythms()));
        self.mirror.put_rhythms(partition, &rhythms);
        Ok(stored.into_iter().map(|(name, _)| name).collect())
    }

    /// Writes the blocks of a partition in which rhythms changed.
    async fn write(&self, partition: u16) -> Result<()> {
        let documents = Documents::new(self.cells.clone());
        let changed = self.mirror.take_changed_rhythms(partition);
        for (at, blocks) in changed.chunks(BLOCKS_A_WRITE).enumerate() {
            let set = |block: &usize| {
                let rhythms = RhythmBlock::new(self.clock.now(), &self.mirror.rhythms(partition, *block));
                let name = BlockName { partition, block: *block };
                documents.put(ChangeSet::of(partition), &name, Some(&rhythms))
            };
            let sets = blocks.iter().map(set).collect::<Result<Vec<_>>>()?;
            if let Err(error) = documents.write(&sets).await {
                self.mirror.put_back_rhythms(partition, &changed[at * BLOCKS_A_WRITE..]);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes stored blocks that the table of this instance does not have: their units are in other blocks now.
    async fn remove_stale(&self, partition: u16, stored: &mut Vec<BlockName>) -> Result<()> {
        let documents = Documents::new(self.cells.clone());
        let blocks = self.mirror.rhythm_blocks(partition);
        let stale = stored.iter().filter(|name| name.block >= blocks);
        let set = |name: &BlockName| documents.put::<RhythmBlock>(ChangeSet::of(partition), name, None);
        let sets = stale.map(set).collect::<Result<Vec<_>>>()?;
        for sets in sets.chunks(BLOCKS_A_WRITE) {
            documents.write(sets).await?;
        }
        stored.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_read_as_it_was_written_and_other_bytes_are_refused() {
        let at = Timestamp::from_millis;
        let rhythm = Rhythm::default().learn(at(0), at(300_000));
        let rhythms = [(7, rhythm), (u64::MAX, rhythm.learn(at(0), at(90_000)))];
        let block = RhythmBlock::new(at(5), &rhythms);
        let read = RhythmBlock::decode(&block.encode().unwrap()).unwrap();
        assert_eq!((read.at(), read.rhythms().collect::<Vec<_>>()), (5, rhythms.to_vec()));
        for wrong in [0, 7, 9, MOMENT + ENTRY + 1] {
            assert!(RhythmBlock::decode(BASE64.encode(&vec![0; wrong]).as_bytes()).is_err(), "{wrong}");
        }
        assert!(RhythmBlock::decode(b"{}").is_err());
        let name = BlockName { partition: 3, block: 17 };
        assert_eq!((name.to_string().as_str(), "3.17".parse().ok()), ("3.17", Some(name)));
        for wrong in ["", "3", "3.", ".1", "3.1.2", "70000.1"] {
            assert!(wrong.parse::<BlockName>().is_err(), "{wrong}");
        }
    }
}
