//! An engine in a map: enough of one for pages and the walk, which read units and records and
//! never touch the outbox. It can be told to fail.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rollcall::clock::Timestamp;
use rollcall::engine::*;
use rollcall::presence::{Change, Hearing, Interval, KeyChange, OfflineRecord, RecordId, Snapshot, Unit};

pub const PARTITIONS: u16 = 4;
const PAGES: u32 = 3;

#[derive(Default)]
pub struct Map {
    /// Open to tests that change what is stored behind everybody's back.
    pub units: Mutex<BTreeMap<Unit, Snapshot>>,
    records: Mutex<BTreeMap<RecordId, OfflineRecord>>,
    hearing: Mutex<Hearing>,
    down: AtomicBool,
}

impl Map {
    /// From now on every call fails, or none does.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    fn up(&self) -> Result<()> {
        if self.down.load(Ordering::SeqCst) {
            return Err(EngineError::Unavailable("the map is folded".to_owned()));
        }
        Ok(())
    }

    fn get(&self, unit: &Unit) -> Snapshot {
        let stranger = || Snapshot { unit: unit.clone(), alive: None, facts: None, stored: None };
        self.units.lock().unwrap().get(unit).cloned().unwrap_or_else(stranger)
    }
}

#[async_trait]
impl UnitStore for Map {
    async fn refresh(&self, beats: &[Refresh]) -> Result<Vec<bool>> {
        self.up()?;
        let mut units = self.units.lock().unwrap();
        let mut refresh = |beat: &Refresh| {
            let seen = units.get_mut(&beat.unit)?;
            seen.alive = Some(seen.alive.filter(|alive| *alive <= beat.at).map(|_| beat.at)?);
            Some(())
        };
        Ok(beats.iter().map(|beat| refresh(beat).is_some()).collect())
    }

    async fn read(&self, units: &[Unit]) -> Result<Vec<Snapshot>> {
        self.up()?;
        Ok(units.iter().map(|unit| self.get(unit)).collect())
    }

    async fn apply(&self, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>> {
        self.up()?;
        let mut applied = Vec::new();
        for (seen, change) in changes {
            let same = self.get(&seen.unit) == *seen;
            applied.push(same);
            if !same {
                continue;
            }
            let alive = match change.key {
                KeyChange::Keep => seen.alive,
                KeyChange::Set { last_seen, .. } => Some(last_seen),
                KeyChange::Delete => None,
            };
            let after = Snapshot { alive, facts: change.facts.clone(), ..seen.clone() };
            self.units.lock().unwrap().insert(seen.unit.clone(), after);
            if let Some(record) = &change.record {
                self.records.lock().unwrap().insert(record.id.clone(), record.clone());
            }
        }
        Ok(applied)
    }

    fn partitions(&self) -> u16 {
        PARTITIONS
    }

    async fn due(&self, _: u16, _: Timestamp, _: usize, _: usize) -> Result<Vec<Unit>> {
        Ok(Vec::new())
    }

    async fn first_look(&self) -> Result<Option<Timestamp>> {
        Ok(None)
    }
}

#[async_trait]
impl HearingStore for Map {
    async fn hearing(&self) -> Result<Hearing> {
        self.up()?;
        Ok(self.hearing.lock().unwrap().clone())
    }

    async fn advance(&self, sent_at: Timestamp, _: Duration, _: Duration) -> Result<Option<Interval>> {
        self.up()?;
        self.hearing.lock().unwrap().heard = Some(sent_at);
        Ok(None)
    }
}

#[async_trait]
impl Queries for Map {
    async fn record(&self, id: &RecordId) -> Result<Option<OfflineRecord>> {
        self.up()?;
        Ok(self.records.lock().unwrap().get(id).cloned())
    }

    async fn records(
        &self,
        open: bool,
        before: Option<(Timestamp, RecordId)>,
        limit: usize,
    ) -> Result<Vec<OfflineRecord>> {
        self.up()?;
        let mut all: Vec<OfflineRecord> = self.records.lock().unwrap().values().cloned().collect();
        let place = |record: &OfflineRecord| (record.detected_at, record.id.clone());
        all.retain(|record| !open || record.back_at.is_none());
        all.retain(|record| before.as_ref().is_none_or(|before| place(record) < *before));
        all.sort_by_key(|record| std::cmp::Reverse(place(record)));
        all.truncate(limit);
        Ok(all)
    }

    fn pages(&self) -> u32 {
        PAGES
    }

    async fn walk(&self, partition: u16, page: u32) -> Result<Vec<Snapshot>> {
        self.up()?;
        let units = self.units.lock().unwrap();
        let mine = |unit: &Unit| {
            partition_of(unit, PARTITIONS) == partition && unit.id.as_str().len() as u32 % PAGES == page
        };
        Ok(units.values().filter(|seen| mine(&seen.unit)).cloned().collect())
    }

    async fn forget_records(&self, before: Timestamp) -> Result<usize> {
        self.up()?;
        let mut records = self.records.lock().unwrap();
        let count = records.len();
        records.retain(|_, record| record.back_at.is_none_or(|back_at| back_at >= before));
        Ok(count - records.len())
    }
}

#[async_trait]
impl AlertStore for Map {
    async fn outbox(&self, _: usize) -> Result<Vec<Entry>> {
        Ok(Vec::new())
    }
    async fn join(&self, _: &[Join], _: Pace, _: Timestamp) -> Result<()> {
        Ok(())
    }
    async fn settle(&self, _: &[Position]) -> Result<()> {
        Ok(())
    }
    async fn seal(&self, _: &[String], _: Pace, _: Timestamp) -> Result<usize> {
        Ok(0)
    }
    async fn first_seal(&self) -> Result<Option<Timestamp>> {
        Ok(None)
    }
    async fn lease(&self, _: &str, _: Timestamp, _: Timestamp, _: usize) -> Result<Vec<Delivery>> {
        Ok(Vec::new())
    }
    async fn first_lease(&self, _: &str) -> Result<Option<Timestamp>> {
        Ok(None)
    }
    async fn delivered(&self, _: &[Delivery], _: Timestamp) -> Result<()> {
        Ok(())
    }
    async fn postpone(&self, _: &Delivery, _: Timestamp) -> Result<()> {
        Ok(())
    }
    async fn bury(&self, _: &Delivery, _: &str, _: Timestamp) -> Result<()> {
        Ok(())
    }
    async fn backlog(&self, _: &str) -> Result<Backlog> {
        Ok(Backlog::default())
    }
    async fn dead_letters(&self, _: &str, _: usize) -> Result<Vec<DeadLetter>> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl Engine for Map {
    async fn examine(&self) -> Result<Vec<Warning>> {
        Ok(Vec::new())
    }
}
