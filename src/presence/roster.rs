//! The time of the fleet, and the leases that are measured by it.
//!
//! The time of the fleet is the time of the engine's clock, and never goes back. Where that clock went back (it was
//! set, or another server took over), the time of the fleet goes on from where it was, a little slower, until the clock
//! has come up to it. A clock that was set forward is followed when the change has lasted: see `clock/steps.rs`. A
//! lease that was valid while no instance could renew is valid for as long as before.
//!
//! # Why a time that is years ahead counts as absent
//! The time of the fleet cannot go back, so one false moment in the engine would hold forever. The time of the last
//! renewal is checked against the engine's clock and what was heard, and what was heard against the other two. Both of
//! these must be far behind it: the clock of a machine without a battery begins years in the past, and then the stored
//! moments are right.
//!
//! # Why a script repeats this
//! On Redis the clock is the clock of the server, and an answer that took long holds an old time. So `renew.lua` reads
//! the clock and decides in one step. A test gives the same generated cases to the script and to these rules.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::{Steps, Timestamp};

/// No version of Rollcall asks for a longer lease. A lease that ends later was written by another program, or by a
/// server whose clock was wrong; it is removed.
pub const MAX_LEASE: Duration = Duration::from_secs(60);

/// A moment further ahead than this was not written by Rollcall, which has the time of one clock everywhere.
pub const FARTHEST_AHEAD: Duration = Duration::from_secs(400 * 86_400);

/// Whether a stored moment may be true by these clocks: one of them is not far behind it.
pub fn is_plausible(stored: Timestamp, clocks: &[Timestamp]) -> bool {
    stored < Timestamp::NEVER && clocks.iter().any(|clock| stored <= *clock + FARTHEST_AHEAD)
}

/// While the engine's clock is behind, the time of the fleet goes by this much slower, in thousandths.
const SLOWER: u32 = 5;

/// The stored state of the roster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RosterState {
    /// The time of the fleet at the last renewal.
    pub last: Option<Timestamp>,
    /// The steps of the engine's clock.
    pub steps: Steps,
    /// The end of each instance's lease.
    pub ends: BTreeMap<String, Timestamp>,
}

/// The engine's clock at a renewal, and the time that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineTime {
    pub clock: Timestamp,
    /// Since the last renewal, by that clock or by a clock that is never set.
    pub passed: Duration,
    /// The time of the fleet that the caller expects, by a clock that is never set; `None`: the caller knows no earlier
    /// time.
    pub expected: Option<Timestamp>,
}

/// The result of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// The time of the fleet.
    pub now: Timestamp,
    /// Instances whose leases were implausible and were removed.
    pub implausible: Vec<String>,
    /// The instance had no lease before.
    pub is_new: bool,
    /// When the first lease of another instance ends.
    pub first_end: Option<Timestamp>,
}

impl RosterState {
    /// Takes or renews a lease. The time of the fleet is never before `heard`, unless `heard` is not plausible.
    pub fn renew(
        &mut self,
        instance: &str,
        lease: Duration,
        heard: Option<Timestamp>,
        time: EngineTime,
    ) -> Renewed {
        let heard = heard.filter(|heard| *heard < Timestamp::NEVER).unwrap_or(Timestamp::ZERO);
        let last = self.last.filter(|last| is_plausible(*last, &[time.clock, heard]));
        let is_true = is_plausible(heard, &[time.clock, last.unwrap_or(heard)]);
        let heard = if is_true { heard } else { Timestamp::ZERO };
        let expected = time.expected.map(|expected| last.map_or(expected, |last| expected.max(last)));
        let followed = self.steps.follow(time.clock, expected);
        let mut now = followed.max(heard);
        if let Some(last) = last {
            let passed = if self.steps.held.is_some() { Duration::ZERO } else { time.passed };
            let passed = passed.as_millis() as u64 * u64::from(1000 - SLOWER) / 1000;
            now = now.max(last + Duration::from_millis(passed));
            self.extend_leases(last, now, lease);
        }
        self.last = Some(now);
        self.ends.retain(|_, end| *end > now);
        let latest = now + MAX_LEASE.max(lease);
        let implausible = self.ends.extract_if(.., |_, end| *end > latest).map(|(name, _)| name).collect();
        let is_new = self.ends.insert(instance.to_owned(), now + lease).is_none();
        let others = self.ends.iter().filter(|(name, _)| *name != instance);
        Renewed { now, implausible, is_new, first_end: others.map(|(_, end)| *end).min() }
    }

    /// Each instance renews several times within a lease. If no instance renewed for half a lease, the engine stood
    /// still or could not be reached, and that time does not count for the leases that were valid.
    fn extend_leases(&mut self, last: Timestamp, now: Timestamp, lease: Duration) {
        let silent = now.since(last);
        if silent > lease / 2 {
            for end in self.ends.values_mut().filter(|end| **end > last) {
                *end = (*end + silent).min(now + lease);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(clock: Timestamp, passed: Duration) -> EngineTime {
        EngineTime { clock, passed, expected: None }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_732_147_200_000 + seconds * 1000)
    }

    #[test]
    fn the_time_of_the_fleet_never_goes_back() {
        let lease = Duration::from_secs(10);
        // The last time, the engine's clock, how far was heard, the time that passed (s); the time now (ms).
        let cases = [
            (None, 100, None, 0, 100_000),
            (None, 100, Some(103), 0, 103_000),
            (Some(90), 100, Some(80), 10, 100_000),
            (Some(200), 100, None, 0, 200_000),
            (Some(200), 100, None, 2, 201_990),
        ];
        for (last, clock, heard, passed, now) in cases {
            let mut state = RosterState { last: last.map(at), ..RosterState::default() };
            let passed = Duration::from_secs(passed);
            let renewed = state.renew("one", lease, heard.map(at), by(at(clock), passed));
            assert_eq!(renewed.now, at(0) + Duration::from_millis(now), "{last:?} {clock} {heard:?}");
            assert_eq!(state.last, Some(renewed.now));
        }
    }

    #[test]
    fn a_moment_that_is_years_ahead_of_both_other_clocks_counts_as_absent() {
        const DAY: i64 = 86_400;
        let year = 365 * DAY;
        let never = Timestamp::NEVER.since(at(0)).as_secs() as i64;
        // The last time, the engine's clock, how far was heard, the time now (s).
        let cases = [
            (Some(399 * DAY), 0, None, 399 * DAY),
            (Some(401 * DAY), 0, None, 0),
            (Some(20 * year), 0, Some(-1), 0),
            (Some(never), 0, None, 0),
            (Some(1), 0, Some(20 * year), 1),
            (None, 0, Some(never), 0),
            // The engine's clock is wrong: it was never set.
            (Some(20 * year), 0, Some(20 * year - 1), 20 * year),
            (None, 0, Some(20 * year), 20 * year),
        ];
        for (last, clock, heard, now) in cases {
            let mut state = RosterState { last: last.map(at), ..RosterState::default() };
            let lease = Duration::from_secs(10);
            let renewed = state.renew("one", lease, heard.map(at), by(at(clock), Duration::ZERO));
            assert_eq!(renewed.now, at(now), "{last:?} {clock} {heard:?}");
            assert_eq!(state.last, Some(renewed.now));
        }
    }

    #[test]
    fn a_lease_ends_in_its_time_unless_no_instance_could_renew() {
        let lease = Duration::from_secs(10);
        // The end of another lease, when it was renewed last, the time now, and the end that it has then (s).
        let cases = [
            (105, 100, 104, Some(105)),
            (104, 100, 104, None),
            (104, 100, 106, Some(110)), // no instance renewed for more than half a lease
            (104, 100, 112, Some(116)),
            (112, 100, 106, Some(116)), // no longer than a new lease
            (99, 100, 112, None),       // the lease had ended before
            (170, 100, 104, None),      // no instance asks for so long a lease
        ];
        for (end, last, now, expected) in cases {
            let mut state = RosterState {
                last: Some(at(last)),
                ends: [("two".to_owned(), at(end))].into(),
                ..Default::default()
            };
            let renewed = state.renew("one", lease, None, by(at(now), Duration::ZERO));
            assert_eq!(state.ends.get("two").copied(), expected.map(at), "{end} {last} {now}");
            assert_eq!(renewed.first_end, expected.map(at));
            assert_eq!(renewed.implausible.len(), usize::from(end == 170));
            assert!(renewed.is_new && state.ends["one"] == at(now) + lease);
            assert!(!state.renew("one", lease, None, by(at(now), Duration::ZERO)).is_new);
        }
    }
}
