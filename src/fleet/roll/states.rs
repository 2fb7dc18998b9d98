//! The states of units as the engine holds them, and since when; and the units whose silence is unusual.

use std::collections::HashMap;

use futures_util::future::try_join_all;

use super::Roll;
use crate::clock::Timestamp;
use crate::fleet::mirror::{Cursor, UnusualUnit, WantedUnits};
use crate::presence::{self, OfflineRecord, Snapshot, State, StateSince, Unit};
use crate::store::Result;

/// The newest records in which the ends of silences are looked for.
const MOST_RECORDS: usize = 10_000;
const RECORDS_PAGE: usize = 1000;

/// When the last silence of a unit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastReturn {
    /// The newest record of the unit says it.
    Stored,
    /// At that moment; `None`: no moment is known.
    Known(Option<Timestamp>),
}

impl Roll {
    /// The state of each unit, in order; `None`: there is no such unit.
    pub async fn states(
        &self,
        units: &[(Unit, LastReturn)],
        now: Timestamp,
    ) -> Result<Vec<Option<StateSince>>> {
        let (hearing, rules) = (self.hearing(), self.rules());
        let names: Vec<Unit> = units.iter().map(|(unit, _)| unit.clone()).collect();
        let of_unit = async |(seen, (unit, back)): (Snapshot, &(Unit, LastReturn))| {
            let Some(rules) = rules.get(&unit.kind) else { return Ok(None) };
            let known = if let LastReturn::Known(at) = back { *at } else { None };
            let state = presence::state_since(&seen, rules, &hearing, now, known);
            if *back != LastReturn::Stored || state.is_none_or(|one| one.state != State::Online) {
                return Ok(state);
            }
            let records = self.engine.history(unit, 1).await?.records;
            let back = records.first().and_then(|record| record.back_at);
            Ok(presence::state_since(&seen, rules, &hearing, now, back))
        };
        try_join_all(self.engine.read(&names).await?.into_iter().zip(units).map(of_unit)).await
    }

    /// When the last silence of units ended, as far as the newest records of the fleet say it: to look for the record of each
    /// of many units would take too long.
    pub async fn last_returns(&self) -> Result<HashMap<Unit, Timestamp>> {
        let (mut returns, mut before) = (HashMap::new(), None);
        for _ in 0..MOST_RECORDS / RECORDS_PAGE {
            let page = self.engine.records(false, before, RECORDS_PAGE).await?;
            before = page.last().map(|last| (last.detected_at, last.id.clone()));
            let is_last = page.len() < RECORDS_PAGE;
            for OfflineRecord { id, back_at, .. } in page {
                if let Some(back) = back_at {
                    let known = returns.entry(id.unit).or_insert(back);
                    *known = back.max(*known);
                }
            }
            if is_last {
                break;
            }
        }
        Ok(returns)
    }

    /// See [`Mirror::unusual`](crate::fleet::Mirror::unusual). Call it where a thread may work for some milliseconds.
    pub fn unusual(
        &self,
        cursor: &mut Cursor,
        wanted: &WantedUnits,
        now: Timestamp,
        limit: usize,
    ) -> Vec<UnusualUnit> {
        self.mirror.unusual(cursor, wanted, &self.hearing(), now, limit)
    }
}
