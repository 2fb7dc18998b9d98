//! The clock of the fleet in one instance: started from the machine's clock, then it follows
//! the engine's clock, and in between the monotonic clock.
//!
//! The machine's clock is read once. A later change of it, by an hour or by a day, has no effect here. Every instance
//! follows the clock of the same engine, so their clocks agree even if those of their machines are wrong. `steps.rs`
//! says which steps of the engine's clock are followed.
//!
//! # Why it never goes back
//! Last seen times, deadlines and the ledger of blind time are compared with one another for as long
//! as a unit exists. A clock that goes back would make a heartbeat older than the one before it. So a
//! clock that is ahead stands still until the engine's clock has caught up; a clock that is behind goes forward at
//! once, and the time that it skips counts as not heard.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use super::monotonic::Stopwatch;

/// In milliseconds since 1970.
#[derive(Debug)]
pub(super) struct FleetClock {
    /// When this clock was started, on the monotonic clock.
    started: Stopwatch,
    /// The time at `started`.
    base: AtomicI64,
    /// The latest time that was returned.
    latest: AtomicI64,
    /// Whether this clock has followed the engine's clock. Until then it may go back.
    follows: AtomicBool,
}

impl FleetClock {
    /// Starts at `machine`, the time of the machine's clock.
    pub fn new(machine: i64) -> FleetClock {
        FleetClock {
            started: Stopwatch::start(),
            base: AtomicI64::new(machine),
            latest: AtomicI64::new(i64::MIN),
            follows: AtomicBool::new(false),
        }
    }

    pub fn now(&self) -> i64 {
        self.at(self.started.elapsed())
    }

    pub fn follow(&self, theirs: i64, took: Duration) {
        self.follow_at(self.started.elapsed(), theirs, took);
    }

    fn at(&self, elapsed: Duration) -> i64 {
        let now = self.base.load(Ordering::SeqCst).saturating_add(milliseconds(elapsed));
        // Called many times within a millisecond: a read is cheaper for all threads than a write.
        let latest = self.latest.load(Ordering::SeqCst);
        if latest >= now { latest } else { self.latest.fetch_max(now, Ordering::SeqCst).max(now) }
    }

    /// The engine's clock was `theirs` within the last `took`, so its time is now between `theirs` and `theirs` +
    /// `took`: only a time outside of that is a difference.
    fn follow_at(&self, elapsed: Duration, theirs: i64, took: Duration) {
        let base = self.base.load(Ordering::SeqCst);
        let ours = base.saturating_add(milliseconds(elapsed));
        let latest = theirs.saturating_add(milliseconds(took)).saturating_add(1);
        let right = ours.clamp(theirs, latest);
        self.base.store(base.saturating_add(right.saturating_sub(ours)), Ordering::SeqCst);
        if !self.follows.swap(true, Ordering::SeqCst) {
            self.latest.store(i64::MIN, Ordering::SeqCst);
        }
    }
}

fn milliseconds(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;
    const BEGIN: i64 = 1_700_000_000_000;

    fn ms(ms: i64) -> Duration {
        Duration::from_millis(ms as u64)
    }

    /// A clock that started `off` ms ahead of the engine's clock and has followed it once.
    fn following(off: i64) -> FleetClock {
        let clock = FleetClock::new(BEGIN + off);
        clock.at(ms(999));
        clock.follow_at(ms(1000), BEGIN + 1000, ms(0));
        clock
    }

    #[test]
    fn a_machine_with_a_wrong_clock_has_the_time_of_the_fleet_once_it_follows() {
        for off in [-HOUR, -3, 0, 3, HOUR] {
            let now = following(off).at(ms(1500));
            assert!((BEGIN + 1500..=BEGIN + 1501).contains(&now), "off by {off} ms: {now}");
        }
    }

    #[test]
    fn a_difference_within_the_round_trip_is_ignored() {
        let clock = following(0);
        for (theirs, took, expected) in [(1990, 20, 2000), (2000, 0, 2000), (1980, 19, 2000)] {
            clock.follow_at(ms(2000), BEGIN + theirs, ms(took));
            assert_eq!(clock.at(ms(2000)), BEGIN + expected, "{theirs} within {took} ms");
        }
    }

    #[test]
    fn it_goes_forward_at_once() {
        let clock = following(0);
        assert_eq!(clock.at(ms(2000)), BEGIN + 2000);
        clock.follow_at(ms(2000), BEGIN + HOUR, ms(5));
        assert_eq!(clock.at(ms(2000)), BEGIN + HOUR);
        assert_eq!(clock.at(ms(2007)), BEGIN + HOUR + 7);
    }

    #[test]
    fn it_never_goes_back_and_stands_still_until_the_engine_has_caught_up() {
        let clock = following(0);
        assert_eq!(clock.at(ms(10_000)), BEGIN + 10_000);
        clock.follow_at(ms(10_000), BEGIN + 9_989, ms(0));
        assert_eq!(clock.at(ms(10_000)), BEGIN + 10_000);
        assert_eq!(clock.at(ms(10_005)), BEGIN + 10_000);
        assert_eq!(clock.at(ms(10_020)), BEGIN + 10_010, "and then it follows the engine");
    }

    #[test]
    fn following_again_and_again_does_not_move_it_forward() {
        let clock = following(0);
        for second in 2..1000 {
            // Each answer takes 8 ms, 4 ms of them on the way back.
            clock.follow_at(ms(second * 1000), BEGIN + second * 1000 - 4, ms(8));
        }
        assert_eq!(clock.at(ms(1_000_000)), BEGIN + 1_000_000);
    }
}
