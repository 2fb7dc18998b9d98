//! Steps of the engine's clock: which ones the fleet follows, and when.
//!
//! The clock of the engine is outside of Rollcall: an operator, a time service or a machine that slept may set it. The
//! monotonic clock says which time is expected. A clock that is ahead of the expected time has stepped; the time of the
//! fleet goes on by the monotonic clock meanwhile, so that nothing that waits for a moment happens early. A step that
//! lasts for [`CONFIRMED`] is accepted: the time of the fleet skips it, and the time that it skips was not heard. A
//! step that is taken back before that has no effect.
//!
//! A clock that was set back is no step: the time of the fleet never goes back (`presence/roster.rs`).
//!
//! # Why the accepted steps are added up
//! A span, such as that of a timer that is due in half an hour, does not get shorter because a clock was set. The sum
//! at its beginning, compared with the sum now, says by how much its end moves. The sleep of a unit moves by what the
//! last step skipped, if that lies within it: no two steps are accepted within a minute, and few sleeps meet two.
//!
//! # Why a caller may expect nothing
//! An instance that has just started knows no earlier time. It takes over a step that is held back, which the engine
//! stores, and otherwise follows the clock. If the clock is before the step by now, the step was taken back meanwhile.

use std::time::Duration;

use super::Timestamp;

/// A smaller difference is no step: time services slew clocks, and it harms nothing.
const TOLERATED: Duration = Duration::from_secs(1);

/// How long a step lasts before it is accepted.
pub const CONFIRMED: Duration = Duration::from_secs(60);

/// A step that is not accepted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldStep {
    /// How far the clock is ahead of the time of the fleet.
    pub ahead: Duration,
    /// When the step was noticed, in the time of the fleet.
    pub since: Timestamp,
}

/// The time that the fleet skipped when a step was accepted. It did not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skip {
    pub from: Timestamp,
    pub to: Timestamp,
}

/// The steps of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    pub held: Option<HeldStep>,
    /// The sum of the steps that were accepted.
    pub accepted: Duration,
    /// The last of these steps.
    pub skipped: Option<Skip>,
}

impl Steps {
    /// The time by which the fleet goes on when the clock is `clock`, and `expected` by the monotonic clock.
    pub fn follow(&mut self, clock: Timestamp, expected: Option<Timestamp>) -> Timestamp {
        let held = self.held.take();
        let known = |held: HeldStep| clock - held.ahead;
        let lasts = |held: &HeldStep| known(*held) + TOLERATED >= held.since;
        let expected = expected.or(held.filter(lasts).map(known)).unwrap_or(clock);
        let ahead = clock.since(expected);
        if ahead <= TOLERATED {
            return clock;
        }
        let is_known = |held: &HeldStep| held.ahead.abs_diff(ahead) <= TOLERATED;
        let held = held.filter(is_known).unwrap_or(HeldStep { ahead, since: expected });
        let now = known(held);
        if now.since(held.since) >= CONFIRMED {
            self.accepted += held.ahead;
            self.skipped = Some(Skip { from: now, to: clock });
            return clock;
        }
        self.held = Some(held);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_732_147_200_000 + seconds * 1000)
    }

    fn seconds(seconds: i64) -> Duration {
        Duration::from_secs(seconds as u64)
    }

    #[test]
    fn a_step_is_followed_once_it_has_lasted() {
        // (the clock, the expected time, the time of the fleet after it, the sum of accepted steps; in s), one after
        // the other
        type Case = (i64, Option<i64>, i64, i64);
        let cases: [(&str, &[Case]); 9] = [
            ("a start", &[(0, None, 0, 0), (1, Some(1), 1, 0)]),
            ("slewing", &[(0, None, 0, 0), (2, Some(1), 2, 0), (4, Some(3), 4, 0)]),
            (
                "a step that lasts",
                &[
                    (0, None, 0, 0),
                    (HOUR + 1, Some(1), 1, 0),
                    (HOUR + 60, Some(60), 60, 0),
                    (HOUR + 61, Some(61), HOUR + 61, HOUR),
                    (HOUR + 62, Some(HOUR + 62), HOUR + 62, HOUR),
                ],
            ),
            (
                "a step that is taken back",
                &[
                    (0, None, 0, 0),
                    (HOUR + 1, Some(1), 1, 0),
                    (30, Some(30), 30, 0),
                    (HOUR + 70, Some(70), 70, 0),
                    (HOUR + 129, Some(129), 129, 0),
                    (HOUR + 130, Some(130), HOUR + 130, HOUR),
                ],
            ),
            (
                "a step after a step",
                &[
                    (0, None, 0, 0),
                    (10, Some(1), 1, 0),
                    (HOUR + 50, Some(50), 50, 0),
                    (HOUR + 109, Some(109), 109, 0),
                    (HOUR + 110, Some(110), HOUR + 110, HOUR),
                ],
            ),
            (
                "another instance that starts",
                &[
                    (0, None, 0, 0),
                    (HOUR + 1, Some(1), 1, 0),
                    (HOUR + 5, None, 5, 0),
                    (HOUR + 61, None, HOUR + 61, HOUR),
                ],
            ),
            (
                "a step that is taken back while no instance runs",
                &[(0, None, 0, 0), (HOUR + 1, Some(1), 1, 0), (50, None, 50, 0), (51, Some(51), 51, 0)],
            ),
            ("a clock that goes back", &[(HOUR, None, HOUR, 0), (1, Some(HOUR + 1), 1, 0)]),
            (
                "two steps that last",
                &[
                    (0, None, 0, 0),
                    (11, Some(1), 1, 0),
                    (71, Some(61), 71, 10),
                    (92, Some(72), 72, 10),
                    (152, Some(132), 152, 30),
                ],
            ),
        ];
        for (name, case) in cases {
            let mut steps = Steps::default();
            for (clock, expected, now, accepted) in case {
                assert_eq!(steps.follow(at(*clock), expected.map(at)), at(*now), "{name}: {clock}");
                assert_eq!(steps.accepted, seconds(*accepted), "{name}: {clock}");
            }
            let last = steps.skipped.map(|skip| skip.to.since(skip.from));
            assert_eq!(last.is_some(), !steps.accepted.is_zero(), "{name}");
            assert!(last.is_none_or(|last| last <= steps.accepted), "{name}: {last:?}");
        }
    }
}
