//! The model that the mirror is compared with.

use std::collections::BTreeMap;

use super::*;

/// The units of an engine, in a map.
pub struct Model {
    rules: Arc<Rules>,
    units: BTreeMap<Unit, Snapshot>,
    pub mirror: Mirror,
}

impl Model {
    pub fn new() -> Model {
        Model::with_partitions(3)
    }

    pub fn with_partitions(partitions: u16) -> Model {
        let rules = rules();
        Model { rules: rules.clone(), units: BTreeMap::new(), mirror: Mirror::new(rules, partitions) }
    }

    pub fn rules(&self) -> &KindRules {
        self.rules.values().next().unwrap()
    }

    pub fn read(&self, unit: &Unit) -> Snapshot {
        self.units.get(unit).cloned().unwrap_or_else(|| stranger(unit.clone()))
    }

    /// Applies a change and leaves the mirror to the caller.
    pub fn apply(&mut self, seen: &Snapshot, change: &Change) {
        let after = self.units.entry(seen.unit.clone()).or_insert_with(|| seen.clone());
        after.facts = change.facts.clone();
        after.alive = match change.key {
            KeyChange::Keep => seen.alive,
            KeyChange::Set { last_seen, .. } => Some(last_seen),
            KeyChange::Delete => None,
        };
    }

    pub fn changed(&mut self, seen: Snapshot, change: Change) {
        self.apply(&seen, &change);
        let _ = self.mirror.changed(&seen, &change);
    }

    pub fn hear(&mut self, heartbeat: &Heartbeat, hearing: &Hearing, now: Timestamp) {
        let seen = self.read(&heartbeat.unit);
        if seen.alive.is_some_and(|alive| alive <= heartbeat.at) && heartbeat.declared.is_empty() {
            self.units.get_mut(&heartbeat.unit).unwrap().alive = Some(heartbeat.at);
            self.mirror.seen(&[RecordedHeartbeat::of(&heartbeat.unit, heartbeat.at)]);
        } else if let (_, Some(change)) = presence::hear(&seen, heartbeat, self.rules(), hearing, now) {
            self.changed(seen, change);
        }
    }

    pub fn check(&mut self, unit: &Unit, hearing: &Hearing, now: Timestamp) {
        let seen = self.read(unit);
        match presence::check_deadline(&seen, self.rules(), hearing, now) {
            Verdict::Alive(change) | Verdict::Offline(change) | Verdict::Back(change) => {
                self.changed(seen, change);
            }
            _ => {}
        }
    }

    pub fn register(&mut self, unit: &Unit, wanted: &Registration, hearing: &Hearing, now: Timestamp) {
        let seen = self.read(unit);
        let change = presence::register(&seen, wanted, self.rules(), hearing, now);
        self.changed(seen, change);
    }

    pub fn retire(&mut self, unit: &Unit, now: Timestamp) {
        let seen = self.read(unit);
        if let Some(change) = presence::retire(&seen, now) {
            self.changed(seen, change);
        }
    }

    pub fn page(&self, partition: u16) -> Vec<Snapshot> {
        self.units.values().filter(|seen| partition_of(&seen.unit, 3) == partition).cloned().collect()
    }

    /// The units that a reader of the mirror has to see.
    pub fn truth(&self, hearing: &Hearing, now: Timestamp) -> Vec<(String, State, Option<Timestamp>)> {
        let judged = self.units.values().filter_map(|seen| {
            let state = presence::state(seen, self.rules(), hearing, now)?;
            let update = RowUpdate::of(seen.facts.as_ref()?, seen.alive)?;
            let last_seen = update.state.is_heard().then_some(update.last_seen);
            Some((seen.unit.id.as_str().to_owned(), state, last_seen))
        });
        judged.collect()
    }
}
