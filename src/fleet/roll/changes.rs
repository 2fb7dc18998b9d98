//! Changes as they are applied, and their effects in this process.

use super::Roll;
use crate::presence::{Change, Facts, Lifecycle, OfflineRecord, Snapshot, Transition, Unit};
use crate::store::{EngineError, Result, note, partition_of};
use crate::telemetry::{Loop, Stored};

impl Roll {
    pub(super) async fn apply(&self, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        self.apply_by(changes, self.engine.apply(changes)).await
    }

    /// Applies changes with `apply`, which returns for each whether it was applied.
    pub(super) async fn apply_by(
        &self,
        changes: &[(Snapshot, Change)],
        apply: impl Future<Output = Result<Vec<bool>>>,
    ) -> Result<Vec<bool>> {
        let applying = self.unconfirmed.applying(changes);
        let applied = self.records(changes, apply.await)?;
        applying.answered(&applied);
        self.applied(changes, &applied).await;
        Ok(applied)
    }

    /// Reports whether records can be written, if the changes hold any. A refusal stays until a record is written; an
    /// engine that is unavailable fails the loop that applies the changes.
    fn records<T>(&self, changes: &[(Snapshot, Change)], answer: Result<T>) -> Result<T> {
        if changes.iter().any(|(_, change)| change.record.is_some()) {
            match &answer {
                Ok(_) => self.telemetry.engine_answered(Loop::Records, ""),
                Err(error @ EngineError::Refused(_)) => {
                    self.telemetry.engine_failed(Loop::Records, "", error);
                }
                Err(_) => {}
            }
        }
        answer
    }

    /// Carries out the effects of applied changes in this process. No effect can undo a change. Mirror and counters
    /// come first, before any await: a task that ends early leaves out the rest.
    async fn applied(&self, changes: &[(Snapshot, Change)], applied: &[bool]) {
        let mut has_record = false;
        let mut foreign = Vec::new();
        let mut removed = Vec::new();
        for ((seen, change), _) in changes.iter().zip(applied).filter(|(_, applied)| **applied) {
            if !self.mirror.changed(seen, change) {
                self.unconfirmed.recheck([&seen.unit]);
            }
            self.meet(&seen.unit, change.facts.as_ref());
            if seen.is_unreadable() {
                self.telemetry.readable(Stored::Facts, &seen.unit.to_string());
            }
            if !self.mirror.keeps(partition_of(&seen.unit, self.engine.partitions())) {
                foreign.push(&seen.unit);
            }
            if let Some(record) = &change.record {
                has_record = true;
                // A record that is only acknowledged was open before.
                let before = seen.facts.as_ref().and_then(|facts| facts.open_record(&seen.unit));
                if !record.is_acknowledged() || before.is_none_or(|before| before.id != record.id) {
                    self.tell(record);
                }
            }
            if change.facts.as_ref().is_none_or(|facts| matches!(facts.lifecycle, Lifecycle::Retired(_))) {
                removed.push(seen.unit.clone());
            }
        }
        if has_record {
            self.outbox_grew.notify_one();
        }
        // Without a note the mirror of the owner has these changes only after its next whole read of the partition.
        if !foreign.is_empty()
            && let Err(error) = note(&*self.engine, &foreign).await
        {
            self.unconfirmed.recheck(foreign);
            self.telemetry.engine_failed(Loop::Notes, "", &error);
        }
        // Values of a removed unit are not shown; the page that finds them removes them too.
        if !removed.is_empty()
            && let Err(error) = self.engine.forget_values(&removed).await
        {
            self.telemetry.engine_failed(Loop::Notes, "values of units that are gone", &error);
        }
    }

    /// Notes the timeout of a watched unit for the pace of canaries.
    fn meet(&self, unit: &Unit, facts: Option<&Facts>) {
        if let Some((facts, rules)) = facts.zip(self.rules.of(unit.kind.as_str())) {
            self.pace.met(facts, &rules);
        }
    }

    /// Logs and counts a transition, and sends it to clients that follow the fleet.
    pub(super) fn tell(&self, record: &OfflineRecord) {
        self.transitions.push(record);
        match record.transition() {
            Transition::Offline => self.telemetry.went_offline(record),
            Transition::Online => self.telemetry.came_back(record),
        }
    }
}
