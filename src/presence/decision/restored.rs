//! A record that receivers know and the engine has lost: a replica took over that never had it.

use super::known_until;
use crate::presence::{
    Change, Closing, Facts, IndexChange, KeyChange, KindRules, Lifecycle, OfflineRecord, Silence, Snapshot,
};

/// The change that writes the open record `lost` again, under the same id. If the unit was heard since, the change
/// writes it closed, so that its return is notified. `None` if the unit is unknown, removed, or has another open
/// record.
pub fn restore(seen: &Snapshot, lost: &OfflineRecord, rules: &KindRules) -> Option<Change> {
    let facts = seen.facts.as_ref()?;
    if !matches!(facts.lifecycle, Lifecycle::NeverSeen | Lifecycle::Present) {
        return None;
    }
    let silence = Silence {
        deadline: lost.deadline,
        detected_at: lost.detected_at,
        cause: lost.cause,
        allowed: facts.policy(rules).allowed(),
    };
    let offline = Facts {
        lifecycle: Lifecycle::Offline(silence),
        last_seen: lost.last_seen,
        silent_from: lost.silent_from,
        checked_at: None,
        labels: lost.labels.clone(),
        ..facts.clone().aged(lost.detected_at)
    };
    let heard = seen.alive.map_or(facts.last_seen, |alive| alive.max(facts.last_seen));
    if heard > known_until(&offline, &silence, rules) {
        let record = offline.closed(&seen.unit, &silence, heard, Closing::Return);
        let facts = Some(facts.clone());
        return Some(Change { key: KeyChange::Keep, index: IndexChange::Keep, facts, record: Some(record) });
    }
    let record = offline.record(&seen.unit, &silence);
    let (key, index) = (KeyChange::Delete, IndexChange::Take);
    Some(Change { key, index, facts: Some(offline), record: Some(record) })
}
