//! Changes without an answer, and units whose row in the mirror may be wrong.
//!
//! An engine that fails while it applies changes may have applied them: the answer was lost, or a part of them was
//! done before the rest failed. The records are durable and receivers are notified, but only answers update the
//! mirror and the counters of this process. So each call that applies changes leaves them here unless it is answered,
//! also if it is dropped halfway, and the walk reads their outcome from the engine.
//!
//! # Why a change is recognised
//! A record holds the moment at which it was detected, or its unit was back. No two changes of one record have
//! the same moments, so a record that is stored as the change would have written it was written by that change.
//!
//! # Why the engine is asked several times
//! A server that hung executes the commands that it had received, also from closed connections. So a change stays
//! here until the engine has answered for as long as that may take.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::Roll;
use crate::clock::monotonic;
use crate::presence::{Change, Lifecycle, OfflineRecord, Snapshot, Unit};
use crate::store::{EngineError, MAX_STEP, Result, note, partition_of};

/// How long an engine that answers again may take to execute the commands that it had received before.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// The most units that are held here. For further units the walk brings the mirror up to date, and the counters miss
/// their changes.
const MAX_UNITS: usize = 200_000;

/// Units that are read together, and records that are read at once.
const ASKED_AT_ONCE: usize = 2000;
const RECORDS_AT_ONCE: usize = 16;

/// Units with changes of which the outcome is not known yet.
#[derive(Default)]
pub(super) struct Unconfirmed(Mutex<HashMap<Unit, UnconfirmedRecords>>);

#[derive(Default)]
struct UnconfirmedRecords {
    /// Records that may have been opened or closed.
    records: Vec<OfflineRecord>,
    /// Whether a change may still be applied.
    is_open: bool,
    /// Since when the engine answers.
    asked: Option<Instant>,
}

/// Changes that are being applied.
pub(super) struct Applying<'a> {
    unconfirmed: &'a Unconfirmed,
    changes: &'a [(Snapshot, Change)],
    /// The records that an earlier attempt at these changes would have written.
    earlier: Vec<OfflineRecord>,
    is_answered: bool,
}

impl Unconfirmed {
    /// Begins to apply changes. They stay here unless the engine answers.
    pub fn applying<'a>(&'a self, changes: &'a [(Snapshot, Change)]) -> Applying<'a> {
        let mut pending_changes = self.0.lock();
        let mut earlier = Vec::new();
        if !pending_changes.is_empty() {
            for (seen, change) in changes {
                if let Some((pending, record)) =
                    pending_changes.get_mut(&seen.unit).zip(change.record.as_ref())
                {
                    earlier.extend(pending.records.extract_if(.., |one| is_same(one, record)));
                }
            }
        }
        drop(pending_changes);
        Applying { unconfirmed: self, changes, earlier, is_answered: false }
    }

    /// Notes that the rows of `units` in the mirror may be wrong.
    pub fn recheck<'a>(&self, units: impl IntoIterator<Item = &'a Unit>) {
        let mut pending_changes = self.0.lock();
        for unit in units {
            if pending_changes.len() < MAX_UNITS {
                pending_changes.entry(unit.clone()).or_default();
            }
        }
    }

    /// Up to `most` units to read, with records that may have been opened or closed.
    pub fn some(&self, most: usize) -> Vec<(Unit, Vec<OfflineRecord>)> {
        let pending_changes = self.0.lock();
        pending_changes
            .iter()
            .take(most)
            .map(|(unit, pending)| (unit.clone(), pending.records.clone()))
            .collect()
    }

    /// Notes that a record is stored as a pending change would have written it. Answers whether that is new.
    pub fn confirm(&self, record: &OfflineRecord) -> bool {
        let unit = Unit::new(record.kind.clone(), record.unit.clone());
        let mut pending_changes = self.0.lock();
        let Some(pending) = pending_changes.get_mut(&unit) else { return false };
        let count = pending.records.len();
        pending.records.retain(|one| !is_same(one, record));
        pending.records.len() < count
    }

    /// Notes that the engine has answered reads of `units`.
    pub fn asked<'a>(&self, units: impl IntoIterator<Item = &'a Unit>) {
        let mut pending_changes = self.0.lock();
        let now = monotonic();
        let mut known = HashSet::new();
        for unit in units {
            let Some(pending) = pending_changes.get_mut(unit) else { continue };
            let asked = *pending.asked.get_or_insert(now);
            if !pending.is_open || now.duration_since(asked) >= MAX_DELAY {
                known.insert(unit.clone());
            }
        }
        pending_changes.retain(|unit, _| !known.contains(unit));
    }

    fn leave(&self, unit: &Unit, record: Option<&OfflineRecord>) {
        let mut pending_changes = self.0.lock();
        if pending_changes.len() >= MAX_UNITS && !pending_changes.contains_key(unit) {
            return;
        }
        let pending = pending_changes.entry(unit.clone()).or_default();
        (pending.is_open, pending.asked) = (true, None);
        pending.records.extend(record.cloned());
    }
}

impl Roll {
    /// Reads from the engine the outcome of changes whose reply was lost, and units whose row in the mirror may be
    /// wrong. Afterwards applied changes are counted, and the mirror agrees with the engine.
    pub async fn settle(&self) -> Result<()> {
        let some = self.unconfirmed.some(ASKED_AT_ONCE);
        let records: Vec<&OfflineRecord> = some.iter().flat_map(|(_, records)| records).collect();
        for records in records.chunks(RECORDS_AT_ONCE) {
            let stored = join_all(records.iter().map(|record| self.engine.record(&record.id))).await;
            for (record, stored) in records.iter().zip(stored) {
                // The outcome of a record that another program overwrote is unknown.
                let is_ours = match stored {
                    Err(EngineError::Damaged(_)) => false,
                    stored => stored?.is_some_and(|stored| is_stored(record, &stored)),
                };
                if is_ours && self.unconfirmed.confirm(record) {
                    self.tell(record);
                    self.outbox_grew.notify_one();
                }
            }
        }
        let mut partitions: BTreeMap<u16, Vec<Unit>> = BTreeMap::new();
        for (unit, _) in &some {
            partitions.entry(partition_of(unit, self.engine.partitions())).or_default().push(unit.clone());
        }
        for (partition, units) in partitions {
            if self.mirror.keeps(partition) {
                self.compare(partition, &units).await?;
            } else {
                note(&*self.engine, &units.iter().collect::<Vec<&Unit>>()).await?;
            }
            self.unconfirmed.asked(&units);
        }
        Ok(())
    }

    /// Has the row of a unit of this instance read again if it says otherwise than what was read now: the instance that
    /// opened or closed the record may have ended before it noted that.
    pub(super) fn recheck_if_otherwise(&self, seen: &Snapshot) {
        let partition = partition_of(&seen.unit, self.engine.partitions());
        let is_offline =
            seen.facts.as_ref().is_some_and(|facts| matches!(facts.lifecycle, Lifecycle::Offline(_)));
        if self.mirror.keeps(partition) && self.mirror.is_offline(&seen.unit) != is_offline {
            self.unconfirmed.recheck([&seen.unit]);
        }
    }

    /// Brings units of one partition in the mirror up to date, except units that cannot be read.
    pub async fn compare(&self, partition: u16, units: &[Unit]) -> Result<()> {
        if self.mirror.is_view() {
            return Ok(());
        }
        let mut steps: Vec<&[Unit]> = units.chunks(MAX_STEP).collect();
        while let Some(units) = steps.pop() {
            let mark = self.mirror.mark(partition);
            match self.engine.read(units).await {
                Ok(found) => self.mirror.compare(mark, &found),
                Err(EngineError::Damaged(_)) if units.len() > 1 => {
                    let (one, other) = units.split_at(units.len() / 2);
                    steps.extend([one, other]);
                }
                Err(EngineError::Damaged(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Applying<'_> {
    /// Notes which changes the engine applied, by its answer.
    pub fn answered(mut self, applied: &[bool]) {
        self.is_answered = true;
        if self.earlier.is_empty() {
            return;
        }
        // A change that was not applied now may have been applied at the earlier attempt.
        for ((seen, change), _) in self.changes.iter().zip(applied).filter(|(_, applied)| !**applied) {
            let record = change.record.as_ref();
            let earlier = record.and_then(|record| self.earlier.iter().find(|one| is_same(one, record)));
            if earlier.is_some() {
                self.unconfirmed.leave(&seen.unit, earlier);
            }
        }
    }
}

impl Drop for Applying<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            for (seen, change) in self.changes {
                self.unconfirmed.leave(&seen.unit, change.record.as_ref());
            }
        }
    }
}

/// Whether two states of a record come from the same change.
fn is_same(a: &OfflineRecord, b: &OfflineRecord) -> bool {
    (&a.id, a.detected_at, a.back_at, a.closed_by) == (&b.id, b.detected_at, b.back_at, b.closed_by)
}

/// Whether a record is stored as that change of it has left it, or was closed since.
fn is_stored(change: &OfflineRecord, stored: &OfflineRecord) -> bool {
    let is_opening = change.back_at.is_none();
    change.detected_at == stored.detected_at && (is_opening || is_same(change, stored))
}
