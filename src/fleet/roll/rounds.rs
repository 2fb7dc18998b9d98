//! Rounds of admission: one decision about each unit at a time.
//!
//! Two decisions about one unit cannot both be made from one snapshot. They are made in the order of time, so the last
//! declaration counts, also where two heartbeats have the same millisecond. But of heartbeats with the same declaration
//! only the newest matters, unless they end a silence: then the first of them is the end. So a backlog of many
//! heartbeats of each unit takes a round or two, however far away the engine is. With a round for each heartbeat,
//! admission never ended where a round took as long as a unit waits between two heartbeats.

use std::collections::HashMap;

use crate::clock::Timestamp;
use crate::presence::{
    self, Change, Hearing, Heartbeat, HeartbeatResult, KindRules, Lifecycle, Snapshot, Unit,
};
use crate::store::table::Absence;

/// Heartbeats of one unit, in the order of their moments.
pub(super) struct UnitHeartbeats<'a> {
    heartbeats: Vec<&'a Heartbeat>,
}

/// One change for the first heartbeats of a unit.
pub(super) struct HeartbeatStep<'a> {
    /// The heartbeat that stands for all heartbeats of the step.
    pub heartbeat: &'a Heartbeat,
    pub heard: HeartbeatResult,
    pub change: Change,
    /// The number of heartbeats.
    count: usize,
}

impl HeartbeatStep<'_> {
    /// The effects of the heartbeats, for metrics.
    pub fn counts(&self) -> [(HeartbeatResult, u64); 2] {
        counts(self.heard, self.count)
    }

    /// The heartbeat before the step, if the interval since then says something of the rhythm of the unit: of several
    /// heartbeats at once only the newest is known here.
    pub fn before(&self, seen: &Snapshot) -> Option<Timestamp> {
        let is_next = self.heard == HeartbeatResult::Refreshed && self.count == 1;
        let before = seen.last_heard().filter(|_| is_next)?;
        let is_absent = Absence::of(seen.facts.as_ref()?).is_within(before, self.heartbeat.at);
        (before < self.heartbeat.at && !is_absent).then_some(before)
    }
}

/// The effects of `count` heartbeats with the same declaration, of which the newest has the effect `heard`.
fn counts(heard: HeartbeatResult, count: usize) -> [(HeartbeatResult, u64); 2] {
    let others = if heard == HeartbeatResult::New { HeartbeatResult::Refreshed } else { heard };
    [(heard, 1), (others, count as u64 - 1)]
}

/// Heartbeats by unit: units in the order of their first heartbeat, heartbeats of a unit in the order of their moments.
pub(super) fn by_unit(heartbeats: Vec<&Heartbeat>) -> Vec<UnitHeartbeats<'_>> {
    let mut units: Vec<UnitHeartbeats> = Vec::new();
    let mut indexes: HashMap<&Unit, usize> = HashMap::new();
    for heartbeat in heartbeats {
        let index = *indexes.entry(&heartbeat.unit).or_insert(units.len());
        match units.get_mut(index) {
            Some(unit) => unit.heartbeats.push(heartbeat),
            None => units.push(UnitHeartbeats { heartbeats: vec![heartbeat] }),
        }
    }
    // Keeps heartbeats of one millisecond as they came.
    units.iter_mut().for_each(|unit| unit.heartbeats.sort_by_key(|heartbeat| heartbeat.at));
    units
}

impl<'a> UnitHeartbeats<'a> {
    pub fn unit(&self) -> &'a Unit {
        &self.heartbeats[0].unit
    }

    /// The first change that the heartbeats make; `None` if they change nothing. Heartbeats before the change are
    /// passed to `count`, each run with its newest heartbeat.
    pub fn next(
        &mut self,
        seen: &Snapshot,
        rules: &KindRules,
        hearing: &Hearing,
        now: Timestamp,
        count: impl Fn(&Heartbeat, HeartbeatResult, u64),
    ) -> Option<HeartbeatStep<'a>> {
        let is_offline =
            seen.facts.as_ref().is_some_and(|facts| matches!(facts.lifecycle, Lifecycle::Offline(_)));
        while let Some(first) = self.heartbeats.first() {
            let same = self.heartbeats.iter().take_while(|heartbeat| heartbeat.declared == first.declared);
            let run = if is_offline { 1 } else { same.count() };
            let heartbeat = self.heartbeats[run - 1];
            match presence::hear(seen, heartbeat, rules, hearing, now) {
                (heard, Some(change)) => return Some(HeartbeatStep { heartbeat, heard, change, count: run }),
                (heard, None) => {
                    counts(heard, run).into_iter().for_each(|(heard, n)| count(heartbeat, heard, n));
                }
            }
            self.heartbeats.drain(..run);
        }
        None
    }

    /// Removes the heartbeats of the step. Answers whether there are more.
    pub fn done(&mut self, step: &HeartbeatStep<'a>) -> bool {
        self.heartbeats.drain(..step.count);
        !self.heartbeats.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use super::*;
    use crate::presence::{Cause, Declared, Facts, Policy, Silence};

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn heartbeat(unit: &str, ms: i64, timeout: Option<u64>) -> Heartbeat {
        let declared = Declared { timeout: timeout.map(Duration::from_secs), ..Declared::default() };
        Heartbeat { declared, ..Heartbeat::of(unit.parse().unwrap(), at(ms)) }
    }

    /// The moments of the changes that these heartbeats make one after the other, beginning with the stored facts, and
    /// the counts.
    fn changes(heartbeats: &[Heartbeat], facts: Option<Facts>) -> (Vec<i64>, Vec<(HeartbeatResult, u64)>) {
        let rules = KindRules::new("a".parse().unwrap());
        let rules =
            KindRules { policy: Policy { timeout: Duration::from_secs(3600), ..rules.policy }, ..rules };
        let unit = heartbeats[0].unit.clone();
        let mut seen = Snapshot { unit, alive: None, alive_at: None, facts, stored: None };
        let (mut made, counted) = (Vec::new(), RefCell::new(Vec::new()));
        let mut units = by_unit(heartbeats.iter().collect());
        let of_one = &mut units[0];
        let count = |_: &Heartbeat, heard, n| counted.borrow_mut().push((heard, n));
        while let Some(step) = of_one.next(&seen, &rules, &Hearing::default(), at(10_000), count) {
            made.push(step.heartbeat.at.as_millis());
            counted.borrow_mut().extend(step.counts());
            seen = Snapshot {
                alive: Some(step.heartbeat.at),
                alive_at: None,
                facts: step.change.facts.clone(),
                ..seen
            };
            of_one.done(&step);
        }
        let counted = counted.into_inner().into_iter().filter(|(_, n)| *n > 0).collect();
        (made, counted)
    }

    #[test]
    fn heartbeats_stand_by_unit_in_the_order_of_their_moments() {
        let heartbeats = [("a:1", 5), ("a:2", 2), ("a:1", 3), ("a:3", 4), ("a:1", 1)];
        let heartbeats = heartbeats.map(|(unit, ms)| heartbeat(unit, ms, None));
        let times: Vec<Vec<i64>> = by_unit(heartbeats.iter().collect())
            .iter()
            .map(|unit| unit.heartbeats.iter().map(|heartbeat| heartbeat.at.as_millis()).collect())
            .collect();
        assert_eq!(times, [vec![1, 3, 5], vec![2], vec![4]]);
    }

    #[test]
    fn of_heartbeats_with_the_same_declaration_only_the_newest_makes_a_change() {
        let plain = [1, 5, 3].map(|ms| heartbeat("a:1", ms, None));
        assert_eq!(
            changes(&plain, None),
            (vec![5], vec![(HeartbeatResult::New, 1), (HeartbeatResult::Refreshed, 2)])
        );
        let declaring = [(1, None), (2, Some(60)), (3, Some(60)), (4, None), (5, None)];
        let declaring = declaring.map(|(ms, timeout)| heartbeat("a:1", ms, timeout));
        let counted = [
            (HeartbeatResult::New, 1),
            (HeartbeatResult::Refreshed, 1),
            (HeartbeatResult::Refreshed, 1),
            (HeartbeatResult::Refreshed, 1),
        ];
        let (made, counts) = changes(&declaring, None);
        assert_eq!(
            (made, counts),
            (vec![1, 3, 5], [&counted[..], &[(HeartbeatResult::Refreshed, 1)]].concat())
        );
    }

    #[test]
    fn a_silence_ends_with_the_first_heartbeat_after_it() {
        let silence = Silence {
            deadline: at(2),
            detected_at: at(3),
            cause: Cause::Silence,
            allowed: Duration::from_millis(1),
        };
        let facts = Facts::new(Lifecycle::Offline(silence), at(1));
        let heartbeats = [1, 6, 7, 8].map(|ms| heartbeat("a:1", ms, None));
        let counted = vec![
            (HeartbeatResult::Stale, 1),
            (HeartbeatResult::Back, 1),
            (HeartbeatResult::Refreshed, 1),
            (HeartbeatResult::Refreshed, 1),
        ];
        assert_eq!(changes(&heartbeats, Some(facts)), (vec![6, 8], counted));
    }
}
