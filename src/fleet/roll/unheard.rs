//! Units of a kind that is not heard while the fleet is: they may be overdue, and cannot be decided.
//!
//! There may be a million of them, and each canary would trigger useless checks. So their next check is postponed until
//! the check can succeed.

use std::time::Duration;

use super::Roll;
use crate::clock::Timestamp;
use crate::presence::{Change, Hearing, IndexChange, KeyChange, Kind, KindRules, Snapshot};

/// Round trips after which a probe of a member of a share is proved: to the member that receives it, and its answer.
const PROBE_TRIPS: u32 = 2;

/// The longest and the shortest time between two checks of a unit whose kind is not configured.
const MAX_WITHOUT_RULES: Duration = Duration::from_secs(300);
const MIN_WITHOUT_RULES: Duration = Duration::from_secs(1);

/// The next check of a unit whose kind is not configured. Such a kind may come back, soon or never: the longer it
/// has been away, the rarer are the checks. When it is back its units have about as long again to send a heartbeat.
pub(super) fn next_check_without_rules(hearing: &Hearing, kind: &Kind, now: Timestamp) -> Timestamp {
    let of_kind = hearing.filters.proved.iter().filter(|((one, _), _)| one == kind);
    let away = of_kind.map(|(_, proved)| now.since(*proved)).min().unwrap_or(Duration::MAX);
    now + (away / 4).clamp(MIN_WITHOUT_RULES, MAX_WITHOUT_RULES)
}

impl Roll {
    /// Whether that kind is not heard while the fleet is, as of the last canary.
    pub fn is_behind(&self, kind: &Kind) -> bool {
        self.hearing().is_behind(kind, self.late_of(kind))
    }

    /// How far a kind that is heard may be behind the fleet.
    pub(super) fn late_of(&self, kind: &Kind) -> Duration {
        self.gap_of(kind) + PROBE_TRIPS * self.pace.round_trip()
    }

    /// Two proofs of a filter of that kind further apart than this enclose a blind interval of the kind.
    pub fn gap_of(&self, kind: &Kind) -> Duration {
        self.rules.of(kind.as_str()).map_or(self.pace.gap(), |rules| self.pace.probe_gap(&rules))
    }

    /// The change that puts off the check of an undecided unit, if it is undecided because its kind is not heard.
    pub(super) fn wait_for_its_kind(
        &self,
        seen: &Snapshot,
        rules: &KindRules,
        hearing: &Hearing,
        now: Timestamp,
    ) -> Option<Change> {
        let late = self.pace.probe_gap(rules) + PROBE_TRIPS * self.pace.round_trip();
        let of_unit = hearing.of_unit(seen, rules);
        if !of_unit.is_behind_the(hearing.heard, late) {
            return None;
        }
        let facts = seen.facts.clone()?;
        let next_check = of_unit.recheck_at(&facts.policy(rules), now);
        Some(Change {
            key: KeyChange::Keep,
            index: IndexChange::CheckAt(next_check),
            facts: Some(facts),
            record: None,
        })
    }
}
