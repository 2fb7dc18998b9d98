//! An engine in memory that can be switched off, as a whole or for heartbeats only, which no real
//! one can: enough of one for heartbeats and canaries.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use rollcall::clock::Timestamp;
use rollcall::engine::*;
use rollcall::presence::*;

#[derive(Default)]
struct State {
    down: bool,
    deaf: bool,
    refusals: u64,
    alive: HashMap<Unit, Timestamp>,
    facts: HashMap<Unit, Facts>,
    damaged: Option<Unit>,
    heard: Option<Timestamp>,
    blind: Vec<Interval>,
}

#[derive(Default)]
pub struct StandIn(Mutex<State>);

impl StandIn {
    pub fn set_down(&self, down: bool) {
        self.0.lock().unwrap().down = down;
    }
    /// Refuses heartbeats and takes everything else.
    pub fn set_deaf(&self, deaf: bool) {
        self.0.lock().unwrap().deaf = deaf;
    }
    /// How many calls it refused.
    pub fn refusals(&self) -> u64 {
        self.0.lock().unwrap().refusals
    }
    pub fn damage(&self, unit: &str) {
        self.0.lock().unwrap().damaged = Some(unit.parse().unwrap());
    }
    pub fn last_seen(&self, unit: &str) -> Option<Timestamp> {
        self.0.lock().unwrap().alive.get(&unit.parse().unwrap()).copied()
    }
    pub fn facts(&self, unit: &str) -> Option<Facts> {
        self.0.lock().unwrap().facts.get(&unit.parse().unwrap()).cloned()
    }
    pub fn units(&self) -> usize {
        self.0.lock().unwrap().alive.len()
    }
    pub fn heard(&self) -> Option<Timestamp> {
        self.0.lock().unwrap().heard
    }
    pub fn blind(&self) -> Vec<Interval> {
        self.0.lock().unwrap().blind.clone()
    }
    fn up(&self) -> Result<std::sync::MutexGuard<'_, State>> {
        self.answer(|state| state.down)
    }
    fn hears(&self) -> Result<std::sync::MutexGuard<'_, State>> {
        self.answer(|state| state.down || state.deaf)
    }
    fn answer(&self, refuses: fn(&State) -> bool) -> Result<std::sync::MutexGuard<'_, State>> {
        let mut state = self.0.lock().unwrap();
        if refuses(&state) {
            state.refusals += 1;
            return Err(EngineError::Unavailable("switched off".to_owned()));
        }
        Ok(state)
    }
}

#[async_trait]
impl UnitStore for StandIn {
    async fn refresh(&self, beats: &[Refresh]) -> Result<Vec<bool>> {
        let mut state = self.hears()?;
        let applied = |beat: &Refresh| match state.alive.get_mut(&beat.unit) {
            Some(seen) if *seen <= beat.at => {
                *seen = beat.at;
                true
            }
            _ => false,
        };
        Ok(beats.iter().map(applied).collect())
    }
    async fn read(&self, units: &[Unit]) -> Result<Vec<Snapshot>> {
        let state = self.hears()?;
        if units.iter().any(|unit| Some(unit) == state.damaged.as_ref()) {
            return Err(EngineError::Damaged("not readable".to_owned()));
        }
        let read = |unit: &Unit| Snapshot {
            unit: unit.clone(),
            alive: state.alive.get(unit).copied(),
            facts: state.facts.get(unit).cloned(),
            stored: None,
        };
        Ok(units.iter().map(read).collect())
    }
    async fn apply(&self, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>> {
        let mut state = self.hears()?;
        for (seen, change) in changes {
            if let KeyChange::Set { last_seen, .. } = change.key {
                state.alive.insert(seen.unit.clone(), last_seen);
            }
            if let Some(facts) = &change.facts {
                state.facts.insert(seen.unit.clone(), facts.clone());
            }
        }
        Ok(vec![true; changes.len()])
    }
    fn partitions(&self) -> u16 {
        1
    }
    async fn due(&self, _: u16, _: Timestamp, _: usize, _: usize) -> Result<Vec<Unit>> {
        unimplemented!()
    }
    async fn first_look(&self) -> Result<Option<Timestamp>> {
        unimplemented!()
    }
}

#[async_trait]
impl HearingStore for StandIn {
    async fn hearing(&self) -> Result<Hearing> {
        let state = self.up()?;
        Ok(Hearing { heard: state.heard, ledger: Ledger::new(state.blind.clone()), settle: Duration::ZERO })
    }
    async fn advance(&self, sent_at: Timestamp, gap: Duration, _: Duration) -> Result<Option<Interval>> {
        let mut state = self.up()?;
        let before = state.heard.unwrap_or(sent_at);
        state.heard = Some(before.max(sent_at));
        let blind = (sent_at.since(before) > gap).then_some(Interval { from: before, to: sent_at });
        state.blind.extend(blind);
        Ok(blind)
    }
}

#[async_trait]
impl AlertStore for StandIn {
    async fn outbox(&self, _: usize) -> Result<Vec<Entry>> {
        unimplemented!()
    }
    async fn join(&self, _: &[Join], _: Pace, _: Timestamp) -> Result<()> {
        unimplemented!()
    }
    async fn settle(&self, _: &[Position]) -> Result<()> {
        unimplemented!()
    }
    async fn seal(&self, _: &[String], _: Pace, _: Timestamp) -> Result<usize> {
        unimplemented!()
    }
    async fn first_seal(&self) -> Result<Option<Timestamp>> {
        unimplemented!()
    }
    async fn lease(&self, _: &str, _: Timestamp, _: Timestamp, _: usize) -> Result<Vec<Delivery>> {
        unimplemented!()
    }
    async fn first_lease(&self, _: &str) -> Result<Option<Timestamp>> {
        unimplemented!()
    }
    async fn delivered(&self, _: &[Delivery], _: Timestamp) -> Result<()> {
        unimplemented!()
    }
    async fn postpone(&self, _: &Delivery, _: Timestamp) -> Result<()> {
        unimplemented!()
    }
    async fn bury(&self, _: &Delivery, _: &str, _: Timestamp) -> Result<()> {
        unimplemented!()
    }
    async fn backlog(&self, _: &str) -> Result<Backlog> {
        unimplemented!()
    }
    async fn dead_letters(&self, _: &str, _: usize) -> Result<Vec<DeadLetter>> {
        unimplemented!()
    }
}

#[async_trait]
impl Queries for StandIn {
    async fn record(&self, _: &RecordId) -> Result<Option<OfflineRecord>> {
        unimplemented!()
    }
    async fn records(
        &self,
        _: bool,
        _: Option<(Timestamp, RecordId)>,
        _: usize,
    ) -> Result<Vec<OfflineRecord>> {
        unimplemented!()
    }
    fn pages(&self) -> u32 {
        1
    }
    async fn walk(&self, _: u16, _: u32) -> Result<Vec<Snapshot>> {
        unimplemented!()
    }
    async fn forget_records(&self, _: Timestamp) -> Result<usize> {
        unimplemented!()
    }
}

#[async_trait]
impl Engine for StandIn {
    async fn examine(&self, _: Timestamp) -> Result<Vec<Warning>> {
        unimplemented!()
    }
    async fn listen(&self, _: tokio::sync::mpsc::Sender<Hint>) -> Result<()> {
        unimplemented!()
    }
}
