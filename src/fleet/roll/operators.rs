//! Changes of a unit by operators. A change is decided again if the unit changes meanwhile.

use super::Roll;
use crate::clock::Timestamp;
use crate::presence::{self, Acknowledgement, RecordId, Snapshot, Unit, UnitSettings};
use crate::store::Result;

#[derive(Clone, Debug)]
pub enum UnitChange {
    /// Acknowledges the open record of the unit; `None` takes the acknowledgement back.
    Acknowledge(Option<Acknowledgement>),
    /// Pauses the unit from now until that moment; `None` ends its pause.
    Pause(Option<Timestamp>),
    /// Registers the unit or changes its settings.
    Register(UnitSettings),
    /// Removes the unit from the fleet; its later heartbeats are counted and change nothing.
    Remove,
}

impl Roll {
    /// Changes a unit; with `id` only if that is its open record. Runs `first` before the change, if the change is
    /// possible. `false`: the unit is unknown, was removed or is of a kind that is not configured, it has no such record
    /// or no pause that could end, or it has no room for the labels.
    ///
    /// # Errors
    /// The errors of the engine and of `first`.
    pub async fn change(
        &self,
        unit: &Unit,
        id: Option<&RecordId>,
        wanted: &UnitChange,
        now: Timestamp,
        first: impl Future<Output = Result<()>> + Send,
    ) -> Result<bool> {
        let Some(rules) = self.rules.of(unit.kind.as_str()) else { return Ok(false) };
        let hearing = self.hearing();
        let decision = |seen: &Snapshot| match wanted {
            UnitChange::Acknowledge(acknowledged) => presence::acknowledge(seen, id, acknowledged.clone()),
            UnitChange::Pause(until) => presence::pause(seen, *until, &rules, &hearing, now),
            UnitChange::Register(wanted) if unit.id.is_reserved() || !wanted.fit(seen) => None,
            UnitChange::Register(wanted) => Some(presence::configure(seen, wanted, &rules, &hearing, now)),
            UnitChange::Remove => presence::retire(seen, now),
        };
        let seen = self.engine.read(std::slice::from_ref(unit)).await?;
        if !seen.iter().any(|seen| decision(seen).is_some()) {
            return Ok(false);
        }
        first.await?;
        let is_changed = self.decide(unit, decision).await?;
        if matches!(wanted, UnitChange::Remove) {
            self.declared.forget(unit);
        }
        Ok(is_changed)
    }
}
