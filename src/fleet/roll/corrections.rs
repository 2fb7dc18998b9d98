//! Units whose stored state is unreadable, missing or in the future: other stored values count instead.

use super::Roll;
use crate::clock::Timestamp;
use crate::presence::{self, Change, Closing, KeyChange, Lifecycle, Snapshot, Unit};
use crate::store::Result;
use crate::telemetry::Stored;

impl Roll {
    /// The corrected state of a unit, if it differs from the stored state; the fault is reported.
    pub(super) fn corrected_unit(&self, seen: &Snapshot, now: Timestamp) -> Option<Snapshot> {
        let believed = presence::corrected(seen, now)?;
        if let Some(at) = presence::future_moment(seen, now) {
            let why = format!(
                "it says that the unit was heard at {at}, which is in the future; the unit counts as heard now"
            );
            self.telemetry.unreadable(Stored::ExpiryKey, &seen.unit.to_string(), &why);
        }
        Some(believed)
    }

    /// Closes the open records of units that become present and whose earlier state is unknown; their return is
    /// notified.
    pub(super) async fn close_lost(&self, changes: &mut [(Snapshot, Change)], now: Timestamp) -> Result<()> {
        let is_lost = |(seen, change): &(Snapshot, Change)| {
            let becomes_present = matches!(&change.facts, Some(facts) if facts.lifecycle == Lifecycle::Present)
                && matches!(change.key, KeyChange::Set { .. });
            let was_offline = || change.record.is_some() && presence::corrected(seen, now).is_some();
            becomes_present && (seen.facts.is_none() || was_offline())
        };
        let lost: Vec<usize> = (0..changes.len()).filter(|index| is_lost(&changes[*index])).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let units: Vec<Unit> = lost.iter().map(|index| changes[*index].0.unit.clone()).collect();
        for (index, open) in lost.into_iter().zip(self.engine.open_records(&units).await?) {
            let (_, change) = &mut changes[index];
            let heard = change.facts.as_ref().map(|facts| facts.last_seen);
            if let Some((mut record, heard)) = open.zip(heard).filter(|(open, heard)| *heard > open.last_seen)
            {
                (record.back_at, record.closed_by) = (Some(heard), Some(Closing::Return));
                change.record = Some(record);
            }
        }
        Ok(())
    }
}
