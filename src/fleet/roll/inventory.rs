//! Many units at once, from an inventory: its units are registered, and units that it does not name are removed.

use super::Roll;
use crate::clock::Timestamp;
use crate::presence::{self, Change, Snapshot, Unit, UnitSettings};
use crate::store::Result;

/// The effect of a line of an inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// The unit was not in the fleet.
    New,
    Changed,
    /// The unit has these settings already.
    Same,
    /// The kind of the unit is not configured.
    Unknown,
    /// The unit has no room for the labels.
    TooManyLabels,
}

impl Roll {
    /// Registers units or changes their settings, in order; at most [`MAX_STEP`](crate::store::MAX_STEP), each once.
    /// `dry_run`: only says what would happen.
    pub async fn register_all(
        &self,
        wanted: &[(Unit, UnitSettings)],
        dry_run: bool,
        now: Timestamp,
    ) -> Result<Vec<Registered>> {
        let units: Vec<Unit> = wanted.iter().map(|(unit, _)| unit.clone()).collect();
        let seen = self.engine.read(&units).await?;
        let (rules, hearing) = (self.rules(), self.hearing());
        let configured = |seen: &Snapshot, settings: &UnitSettings| {
            let rules = rules.get(&seen.unit.kind).filter(|_| settings.fit(seen))?;
            Some(presence::configure(seen, settings, rules, &hearing, now))
        };
        let effect =
            |(seen, (unit, settings)): (&Snapshot, &(Unit, UnitSettings))| match rules.get(&unit.kind) {
                None => Registered::Unknown,
                Some(_) if settings.are_of(seen, now) => Registered::Same,
                Some(_) if !settings.fit(seen) => Registered::TooManyLabels,
                Some(_) if seen.is_known() => Registered::Changed,
                Some(_) => Registered::New,
            };
        let effects: Vec<Registered> = seen.iter().zip(wanted).map(effect).collect();
        if dry_run {
            return Ok(effects);
        }
        let to_do = seen
            .into_iter()
            .zip(wanted)
            .zip(&effects)
            .filter(|(_, effect)| matches!(effect, Registered::New | Registered::Changed));
        let (mut changes, mut settings) = (Vec::new(), Vec::new());
        for ((seen, (_, wanted)), _) in to_do {
            let Some(change) = configured(&seen, wanted) else { continue };
            changes.push((seen, change));
            settings.push(wanted);
        }
        let applied = self.apply(&changes).await?;
        for (((seen, _), settings), _) in
            changes.iter().zip(settings).zip(applied).filter(|(_, applied)| !applied)
        {
            self.decide(&seen.unit, |seen| configured(seen, settings)).await?;
        }
        Ok(effects)
    }

    /// Removes units from the fleet, as they were read. Answers how many were in the fleet; `dry_run` removes no unit.
    pub async fn retire_all(&self, seen: Vec<Snapshot>, dry_run: bool, now: Timestamp) -> Result<usize> {
        let decided =
            seen.into_iter().filter_map(|seen| presence::retire(&seen, now).map(|change| (seen, change)));
        let changes: Vec<(Snapshot, Change)> = decided.collect();
        if dry_run {
            return Ok(changes.len());
        }
        let applied = self.apply(&changes).await?;
        let mut removed = 0;
        for ((seen, _), applied) in changes.iter().zip(applied) {
            removed +=
                usize::from(applied || self.decide(&seen.unit, |seen| presence::retire(seen, now)).await?);
            self.declared.forget(&seen.unit);
        }
        Ok(removed)
    }
}
