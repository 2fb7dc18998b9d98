//! The states of units as the engine holds them, and since when; and the units whose silence is unusual.

use futures_util::future::try_join_all;

use super::Roll;
use crate::clock::Timestamp;
use crate::fleet::mirror::UnusualUnit;
use crate::presence::{self, Snapshot, State, StateSince, Unit};
use crate::store::Result;

impl Roll {
    /// The state of each unit, in order; `None`: there is no such unit. The flag of a unit: its last silence may have
    /// ended, and then its newest record says when.
    pub async fn states(&self, units: &[(Unit, bool)], now: Timestamp) -> Result<Vec<Option<StateSince>>> {
        let (hearing, rules) = (self.hearing(), self.rules());
        let names: Vec<Unit> = units.iter().map(|(unit, _)| unit.clone()).collect();
        let of_unit = async |(seen, (unit, is_back)): (Snapshot, &(Unit, bool))| {
            let Some(rules) = rules.get(&unit.kind) else { return Ok(None) };
            let state = presence::state_since(&seen, rules, &hearing, now, None);
            if !is_back || state.is_none_or(|one| one.state != State::Online) {
                return Ok(state);
            }
            let records = self.engine.history(unit, 1).await?.records;
            let back = records.first().and_then(|record| record.back_at);
            Ok(presence::state_since(&seen, rules, &hearing, now, back))
        };
        try_join_all(self.engine.read(&names).await?.into_iter().zip(units).map(of_unit)).await
    }

    /// See [`Mirror::unusual`](crate::fleet::Mirror::unusual). Call it where a thread may work for some milliseconds.
    pub fn unusual(&self, now: Timestamp, limit: usize) -> Vec<UnusualUnit> {
        self.mirror.unusual(&self.hearing(), now, limit)
    }
}
