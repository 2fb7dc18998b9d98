//! Inhibition, as in Alertmanager: while a source is offline, receivers are not notified of its targets.
//!
//! A rule says which silences are sources, which are targets, and which labels must be equal. A missing label is empty,
//! so two units that lack it are equal in it. A unit never inhibits itself, and a silence that is a source as well as a
//! target of a rule is not inhibited by another silence that is both. Blindness is neither source nor target.
//!
//! # Why a target waits in its group
//! A target joins its groups as usual, and its wait is prolonged: a unit that is back by then is never notified, and
//! a unit that is still offline is notified once. [`Inhibitors::held`] decides when a silence joins, and again before
//! the silence is sealed: a sensor may be missed seconds before its gateway. While the source is offline, its answer
//! holds for a minute at most, and then it is called again.
//!
//! # Why a target is held after the end of its source
//! Its messages came through the source. After the source is back, the target gets its allowed silence again: the
//! time from its last heartbeat to its deadline, at most the longest timeout of the kinds, so that blind time in it
//! does not count for days.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::Matcher;
use super::alert::{alert_labels, fingerprint};
use super::matcher::label;
use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, Unit};

/// The longest and the shortest time until a silence whose source is offline is checked again. In between it is the
/// time for which the target is held after the end of its source, so that receivers are notified of the target at
/// most twice that time later.
pub const LOOKED_AT_AFTER: Duration = Duration::from_secs(60);
const LOOKED_AT_LEAST_AFTER: Duration = Duration::from_secs(5);

/// One `[[inhibit]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct InhibitRule {
    /// All of them match a source; at least one.
    pub source: Vec<Matcher>,
    /// All of them match a target; at least one.
    pub target: Vec<Matcher>,
    /// Labels, `kind` or `unit`: source and target have the same values.
    pub equal: Vec<String>,
}

/// The rules of all `[[inhibit]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inhibition {
    pub rules: Arc<[InhibitRule]>,
    /// The longest time for which a target is held after the end of its source.
    pub longest: Duration,
}

impl InhibitRule {
    pub fn is_source(&self, record: &OfflineRecord) -> bool {
        self.source.iter().all(|matcher| matcher.takes(record))
    }

    pub fn is_target(&self, record: &OfflineRecord) -> bool {
        self.target.iter().all(|matcher| matcher.takes(record))
    }

    /// The values that source and target share.
    pub fn shared<'a>(&'a self, record: &'a OfflineRecord) -> Vec<&'a str> {
        self.equal.iter().map(|name| label(record, name)).collect()
    }
}

impl Inhibition {
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether the silence of a record inhibits, or inhibited while it lasted.
    pub fn has_source(&self, record: &OfflineRecord) -> bool {
        let open = as_open(record);
        self.rules.iter().any(|rule| rule.is_source(&open))
    }

    /// How long a target is held after the end of its source.
    pub fn held_after(&self, target: &OfflineRecord) -> Duration {
        let begin = target.silent_from.map_or(target.last_seen, |from| from.max(target.last_seen));
        target.deadline.since(begin).min(self.longest)
    }

    /// Whether a record that is closed inhibits no more.
    pub fn is_past(&self, record: &OfflineRecord, now: Timestamp) -> bool {
        record.back_at.is_some_and(|ended| ended + self.longest <= now)
    }
}

/// Whether a record of a unit replaces the known record: it is a later silence, or the end of the same silence.
pub fn replaces(record: &OfflineRecord, known: &OfflineRecord) -> bool {
    let order = |record: &OfflineRecord| (record.detected_at, record.back_at.is_some());
    order(record) > order(known)
}

/// The record while its silence lasted.
fn as_open(record: &OfflineRecord) -> OfflineRecord {
    OfflineRecord { back_at: None, closed_by: None, ..record.clone() }
}

/// A unit whose silence inhibits.
#[derive(Clone, Debug)]
pub struct Source {
    pub unit: Unit,
    pub detected_at: Timestamp,
    /// `None`: the source is offline.
    pub ended: Option<Timestamp>,
    /// The fingerprint of the source's alert in Alertmanager's API.
    pub fingerprint: String,
}

impl Source {
    /// Until when the source holds a target.
    fn holds_until(&self, allowed: Duration, now: Timestamp) -> Option<Timestamp> {
        match self.ended {
            None => Some(now + allowed.clamp(LOOKED_AT_LEAST_AFTER, LOOKED_AT_AFTER)),
            Some(ended) => Some(ended + allowed).filter(|until| *until > now),
        }
    }

    /// A source that is offline is stronger than one that is back; of two that are back, the one that came back later.
    fn is_stronger(&self, other: &Source) -> bool {
        self.ended.unwrap_or(Timestamp::NEVER) > other.ended.unwrap_or(Timestamp::NEVER)
    }
}

/// The two strongest sources of a kind: one of them is not the target itself.
#[derive(Clone, Debug, Default)]
struct StrongestTwo([Option<Arc<Source>>; 2]);

impl StrongestTwo {
    fn add(&mut self, source: &Arc<Source>) {
        let mut source = source.clone();
        for place in &mut self.0 {
            match place {
                None => {
                    *place = Some(source);
                    return;
                }
                Some(known) if source.is_stronger(known) => std::mem::swap(known, &mut source),
                Some(_) => {}
            }
        }
    }
}

/// The sources of a rule with the same values of its labels.
#[derive(Clone, Debug, Default)]
struct Sources {
    alone: StrongestTwo,
    /// The sources that are targets of the rule, too.
    targets: StrongestTwo,
}

/// Why and until when a silence waits.
#[derive(Clone, Debug)]
pub struct Inhibited {
    pub until: Timestamp,
    /// At least one.
    pub by: Vec<Arc<Source>>,
}

/// The units whose silence inhibits others at a moment, found by the values that targets share with them.
#[derive(Clone, Debug, Default)]
pub struct Inhibitors {
    inhibition: Inhibition,
    /// For each rule its sources, by the values of its `equal` labels.
    sources: Vec<HashMap<Vec<String>, Sources>>,
    open: usize,
}

impl Inhibitors {
    /// `records`: the last record of each source.
    pub fn new<'a>(
        inhibition: Inhibition,
        records: impl IntoIterator<Item = &'a OfflineRecord>,
    ) -> Inhibitors {
        let mut sources: Vec<HashMap<Vec<String>, Sources>> = vec![HashMap::new(); inhibition.rules.len()];
        let mut open = 0;
        for record in records {
            let known = as_open(record);
            let source = Arc::new(Source {
                unit: record.id.unit.clone(),
                detected_at: record.detected_at,
                ended: record.back_at,
                fingerprint: fingerprint(&alert_labels(record)),
            });
            let mut is_source = false;
            for (rule, sources) in inhibition.rules.iter().zip(&mut sources) {
                if !rule.is_source(&known) {
                    continue;
                }
                is_source = true;
                let values = rule.shared(&known).into_iter().map(str::to_owned).collect();
                let same: &mut Sources = sources.entry(values).or_default();
                let strongest = if rule.is_target(&known) { &mut same.targets } else { &mut same.alone };
                strongest.add(&source);
            }
            open += usize::from(is_source && record.back_at.is_none());
        }
        Inhibitors { inhibition, sources, open }
    }

    /// Whether there is no source, so that nothing is held.
    pub fn is_empty(&self) -> bool {
        self.sources.iter().all(HashMap::is_empty)
    }

    /// How many sources are offline.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Until when receivers are not notified of an open record, and because of which sources; `None`: it is not
    /// inhibited.
    pub fn held(&self, target: &OfflineRecord, now: Timestamp) -> Option<Inhibited> {
        if target.back_at.is_some() {
            return None;
        }
        let allowed = self.inhibition.held_after(target);
        let mut until = None;
        let mut by: BTreeMap<Unit, Arc<Source>> = BTreeMap::new();
        for (rule, sources) in self.inhibition.rules.iter().zip(&self.sources) {
            if sources.is_empty() || !rule.is_target(target) {
                continue;
            }
            let values: Vec<String> = rule.shared(target).into_iter().map(str::to_owned).collect();
            let Some(same) = sources.get(&values) else { continue };
            let targets = if rule.is_source(target) { &StrongestTwo::default() } else { &same.targets };
            for source in same.alone.0.iter().chain(&targets.0).flatten() {
                if source.unit == target.id.unit {
                    continue;
                }
                if let Some(held) = source.holds_until(allowed, now) {
                    until = until.max(Some(held));
                    by.insert(source.unit.clone(), source.clone());
                }
            }
        }
        until.map(|until| Inhibited { until, by: by.into_values().collect() })
    }
}

#[cfg(test)]
mod tests;
