//! The rhythms of units, for readers and for the store.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::FixedState;

use super::view::Cursor;
use super::{Mirror, RecordedHeartbeat, UnitFilter};
use crate::clock::Timestamp;
use crate::presence::{Cadences, Hearing, Kind, Rhythm, Unit};
use crate::store::table::{BLOCK_UNITS, NamedRhythm};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitRhythm {
    pub rhythm: Rhythm,
    /// Since when its silence is unusual; `None`: it is not.
    pub unusual_since: Option<Timestamp>,
}

/// A unit whose silence is unusual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusualUnit {
    pub unit: Unit,
    pub last_seen: Timestamp,
    /// Since when its silence is unusual.
    pub since: Timestamp,
}

/// The units that a reader of unusual silences wants.
#[derive(Clone, Debug, Default)]
pub struct WantedUnits {
    pub kinds: BTreeSet<Kind>,
    /// Without these units.
    pub without: BTreeSet<Unit>,
}

impl Mirror {
    /// Reads on from the cursor, and answers the wanted units of this instance whose silence is unusual. Stops with the
    /// first chunk that makes them `limit` or more, else at the last unit; then the cursor is before the first one again.
    /// Takes some milliseconds for a million.
    pub fn unusual(
        &self,
        cursor: &mut Cursor,
        wanted: &WantedUnits,
        hearing: &Hearing,
        now: Timestamp,
        limit: usize,
    ) -> Vec<UnusualUnit> {
        let is_wanted: Vec<bool> = self.kinds.iter().map(|kind| wanted.kinds.contains(kind)).collect();
        let mut found = Vec::new();
        let mut evaluator = self.evaluator(hearing, now);
        while found.len() < limit {
            let is_read = self.read_rows(cursor, |rows| {
                for (slot, rank, row) in rows.selected().filter(|(_, rank, _)| is_wanted[*rank]) {
                    let state = evaluator.state(rows.table, slot, row);
                    let since = evaluator.unusual_since(rows.table, slot, row, state);
                    // Ids were parsed before they came into the mirror.
                    if let (Some(since), Ok(id)) = (since, rows.table.id(row).parse()) {
                        let unit = Unit::new(self.kinds[rank].clone(), id);
                        if !wanted.without.contains(&unit) {
                            found.push(UnusualUnit { unit, last_seen: row.last_seen, since });
                        }
                    }
                }
            });
            if !is_read {
                *cursor = Cursor::default();
                break;
            }
        }
        found
    }

    /// Learns from an interval between two heartbeats of a unit that took the slow path: see
    /// [`Refresh::unbroken`](crate::store::Refresh::unbroken).
    pub fn learn(&self, heartbeat: &RecordedHeartbeat<'_>) {
        let RecordedHeartbeat { unit, at, arrived, before, unbroken } = *heartbeat;
        let Some(key) = self.key(unit).filter(|_| unbroken.is_some()) else { return };
        let mut table = self.tables.write(self.partition_of(unit));
        if let Some(slot) = table.find(key) {
            table.learn(slot, before, (at, arrived), unbroken);
        }
    }

    /// The rhythm of a unit; `None`: the mirror has no such unit.
    pub fn rhythm(&self, unit: &Unit, hearing: &Hearing, now: Timestamp) -> Option<UnitRhythm> {
        let key = self.key(unit)?;
        let table = self.read_known(self.partition_of(unit));
        let slot = table.find(key)?;
        let row = &table[slot];
        self.rank(row)?;
        let mut evaluator = self.evaluator(hearing, now);
        let state = evaluator.state(&table, slot as usize, row);
        let unusual_since = evaluator.unusual_since(&table, slot as usize, row, state);
        Some(UnitRhythm { rhythm: row.rhythm, unusual_since })
    }

    /// The rhythms of the units of this instance, counted by kind. Takes some milliseconds for a million.
    pub fn cadences(&self, kind: Option<Kind>) -> Vec<(Kind, Cadences)> {
        let mut counted = vec![Cadences::default(); self.kinds.len()];
        let mut cursor = Cursor::new(UnitFilter { kind: kind.clone(), ..UnitFilter::default() });
        while self.read_rows(&mut cursor, |rows| {
            let heard = rows.selected().filter(|(.., row)| row.state.is_heard());
            heard.for_each(|(_, rank, row)| counted[rank].add(&row.rhythm));
        }) {}
        let wanted = |(of, _): &(Kind, Cadences)| kind.as_ref().is_none_or(|kind| kind == of);
        self.kinds.iter().cloned().zip(counted).filter(wanted).collect()
    }

    /// Whether a partition has yet to get its stored rhythms, and can.
    pub fn wants_rhythms(&self, partition: u16) -> bool {
        let state = self.state(partition);
        !state.is_foreign && !state.has_rhythms && (self.is_view || state.compared_at.is_some())
    }

    /// Gives the units of a partition the rhythms that were stored.
    pub fn put_rhythms(&self, partition: u16, stored: &HashMap<u64, Rhythm, FixedState>) {
        let kinds = self.tables.kinds().all();
        // The state first: a partition that is reset meanwhile wants its rhythms again.
        self.state(partition).has_rhythms = true;
        for block in 0..self.rhythm_blocks(partition) {
            self.tables.write(partition).put_rhythms(block, &kinds, stored);
        }
    }

    /// The number of blocks of rhythms of a partition.
    pub fn rhythm_blocks(&self, partition: u16) -> usize {
        self.read(partition).len().div_ceil(BLOCK_UNITS)
    }

    /// The blocks of a partition in which rhythms changed since this was called last; none before the stored rhythms
    /// were read.
    pub fn take_changed_rhythms(&self, partition: u16) -> Vec<usize> {
        if !self.state(partition).has_rhythms {
            return Vec::new();
        }
        self.tables.write(partition).take_changed_rhythms()
    }

    /// Counts blocks as changed again, because they could not be stored.
    pub fn put_back_rhythms(&self, partition: u16, blocks: &[usize]) {
        self.tables.write(partition).put_back_rhythms(blocks);
    }

    /// The rhythms of a block of a partition.
    pub fn rhythms(&self, partition: u16, block: usize) -> Vec<NamedRhythm> {
        let kinds = self.tables.kinds().all();
        self.read(partition).rhythms(block, &kinds)
    }
}
