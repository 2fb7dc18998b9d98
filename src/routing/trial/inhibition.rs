//! The units whose silence inhibits others, at each moment of a trial. `routing/inhibition.rs` decides until when a
//! target is held.
//!
//! The service checks again at least once a minute while a source is offline. Here the end of the source is known, so
//! only the last check before it happens: each earlier one would say that the target waits. So another member of the
//! group of a target may be notified at another moment here, by the wait and the interval of its route at most.

use std::collections::{BTreeMap, HashMap};

use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, Unit};
use crate::routing::{Inhibition, Inhibitors, replaces};

/// A rule, by its place, and the values that its sources share with their targets.
type RuleAndValues = (usize, Vec<String>);

pub(super) struct TrialInhibitors<'a> {
    inhibition: &'a Inhibition,
    sources: HashMap<RuleAndValues, TrialSources>,
}

/// The sources of a rule with the same values.
#[derive(Default)]
struct TrialSources {
    /// The last record of each, and when its silence ends.
    records: BTreeMap<Unit, (OfflineRecord, Timestamp)>,
    /// Built again at the first use after a change.
    inhibitors: Option<Inhibitors>,
}

impl<'a> TrialInhibitors<'a> {
    pub fn new(inhibition: &'a Inhibition) -> TrialInhibitors<'a> {
        TrialInhibitors { inhibition, sources: HashMap::new() }
    }

    /// Whether there is no source, so that nothing is held.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Enters a source; any other record is ignored. `open`: the record while its silence lasts; `newest`: as it is
    /// now; `ends`: when its silence ends.
    pub fn enter(&mut self, open: &OfflineRecord, newest: &OfflineRecord, ends: Timestamp) {
        for (at, rule) in self.inhibition.rules.iter().enumerate() {
            if !rule.is_source(open) {
                continue;
            }
            let values = rule.shared(open).into_iter().map(str::to_owned).collect();
            let sources = self.sources.entry((at, values)).or_default();
            let known = sources.records.get(&newest.id.unit);
            if known.is_none_or(|(known, _)| replaces(newest, known)) {
                sources.records.insert(newest.id.unit.clone(), (newest.clone(), ends));
                sources.inhibitors = None;
            }
        }
    }

    /// Until when an open record is held; `None`: it is not inhibited.
    pub fn held(&mut self, target: &OfflineRecord, now: Timestamp) -> Option<Timestamp> {
        let mut held = None;
        for (at, rule) in self.inhibition.rules.iter().enumerate() {
            if self.sources.is_empty() || !rule.is_target(target) {
                continue;
            }
            let values = rule.shared(target).into_iter().map(str::to_owned).collect();
            if let Some(sources) = self.sources.get_mut(&(at, values)) {
                held = held.max(sources.held(self.inhibition, target, now));
            }
        }
        held
    }
}

impl TrialSources {
    fn held(&mut self, inhibition: &Inhibition, target: &OfflineRecord, now: Timestamp) -> Option<Timestamp> {
        if self.inhibitors.is_none() {
            self.records.retain(|_, (record, _)| !inhibition.is_past(record, now));
            let records = self.records.values().map(|(record, _)| record);
            self.inhibitors = Some(Inhibitors::new(inhibition.clone(), records));
        }
        let held = self.inhibitors.as_ref()?.held(target, now)?;
        let open = held.by.iter().filter(|source| source.ended.is_none());
        let ends = open.filter_map(|source| self.records.get(&source.unit)).map(|(_, ends)| *ends).max();
        let step = held.until.since(now);
        Some(match ends {
            Some(ends) if ends == Timestamp::NEVER => ends,
            Some(ends) if ends > held.until && !step.is_zero() => {
                let steps = ends.since(now).as_millis() / step.as_millis();
                now + step * u32::try_from(steps).unwrap_or(u32::MAX)
            }
            _ => held.until,
        })
    }
}
