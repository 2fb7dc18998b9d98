//! Changes as they are applied, and what follows from them in this process.

use super::Roll;
use crate::presence::{Change, Facts, OfflineRecord, Snapshot, Standing, Transition, Unit};
use crate::store::{EngineError, Result, partition_of};
use crate::telemetry::{Loop, Stored};

impl Roll {
    pub(super) async fn apply(&self, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        self.apply_by(changes, self.engine.apply(changes)).await
    }

    /// Applies changes by `apply`, which answers, in order, which were applied.
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

    /// Tells whether records can be written, of changes that hold any. A refusal stays until a record is written; an
    /// engine that is unavailable fails the same loop again.
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

    /// What follows from changes beside the work of the engine. None of it can fail: the changes stand.
    /// What the mirror and the counters need comes first, before anything is awaited: a task that ends early
    /// leaves out the rest.
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
                self.tell(record);
                has_record = true;
            }
            if change.facts.as_ref().is_none_or(|facts| matches!(facts.standing, Standing::Retired(_))) {
                removed.push(seen.unit.clone());
            }
        }
        if has_record {
            self.outbox_grew.notify_one();
        }
        // Without this the owner's mirror learns of them when it next reads that partition whole.
        if !foreign.is_empty()
            && let Err(error) = self.engine.note(&foreign).await
        {
            self.unconfirmed.recheck(foreign);
            self.telemetry.engine_failed(Loop::Notes, "", &error);
        }
        // Values of a removed unit are not shown; the page that meets them removes them, too.
        if !removed.is_empty()
            && let Err(error) = self.engine.forget_values(&removed).await
        {
            self.telemetry.engine_failed(Loop::Notes, "values of units that are gone", &error);
        }
    }

    /// A unit is watched: hearing is proved as often as it needs.
    pub(in crate::fleet) fn meet(&self, unit: &Unit, facts: Option<&Facts>) {
        if let Some((facts, rules)) = facts.zip(self.rules.get(&unit.kind)) {
            self.pace.met(facts, rules);
        }
    }

    pub(super) fn tell(&self, record: &OfflineRecord) {
        match record.transition() {
            Transition::Offline => self.telemetry.went_offline(record),
            Transition::Online => self.telemetry.came_back(record),
        }
    }
}
