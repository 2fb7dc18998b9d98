//! Open records of units whose kinds are not configured.

use super::Roll;
use super::unheard::next_check_without_rules;
use crate::clock::Timestamp;
use crate::presence::{self, Change, Snapshot, Unit};
use crate::store::Result;

impl Roll {
    /// Closes the open records of a page of units, unless their kinds are configured. A unit that changes meanwhile is
    /// left for the next round of the walk.
    pub async fn close_unwatched(&self, units: &[Unit], now: Timestamp) -> Result<()> {
        let hearing = self.hearing();
        let rules = self.rules();
        let unwatched = |seen: Snapshot| {
            let is_watched = rules.contains_key(&seen.unit.kind);
            let next_check = next_check_without_rules(&hearing, &seen.unit.kind, now);
            let change = presence::unwatch(&seen, next_check, now).filter(|_| !is_watched)?;
            Some((seen, change))
        };
        let changes: Vec<(Snapshot, Change)> =
            self.engine.read(units).await?.into_iter().filter_map(unwatched).collect();
        self.apply(&changes).await.map(|_| ())
    }
}
