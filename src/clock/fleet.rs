//! The clock of the fleet as one instance keeps it: started once from the machine's clock, then
//! led by the engine's and carried in between by a clock that nobody sets.
//!
//! The machine's clock is read once. Whoever sets it later, by an hour or by a day, changes nothing
//! here. Every instance asks the same engine for the time, so their clocks agree however wrong
//! those of their machines are.
//!
//! # Why it never goes back
//! Last seen times, deadlines and the ledger of blind time are compared with one another for as long
//! as a unit lives. Time that is told twice would make a heartbeat older than the one before it. So a
//! clock that is ahead stands still until the time has come that it tells; one that is behind goes
//! forward at once, and nobody was heard in the time that it leaps over.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Milliseconds since 1970, as the fleet has them.
#[derive(Debug)]
pub(super) struct FleetClock {
    /// A moment of the clock that nobody sets.
    started: Instant,
    /// The time at that moment.
    base: AtomicI64,
    /// The latest time that was told.
    told: AtomicI64,
    /// Whether it was ever led. Until then it tells the time of one machine, which binds nobody.
    is_led: AtomicBool,
}

impl FleetClock {
    /// Starts at `machine`, the time of the machine's clock, until it is led.
    pub fn new(machine: i64) -> FleetClock {
        FleetClock {
            started: Instant::now(),
            base: AtomicI64::new(machine),
            told: AtomicI64::new(i64::MIN),
            is_led: AtomicBool::new(false),
        }
    }

    pub fn now(&self) -> i64 {
        self.at(self.started.elapsed())
    }

    pub fn lead(&self, theirs: i64, took: Duration) {
        self.lead_at(self.started.elapsed(), theirs, took);
    }

    fn at(&self, elapsed: Duration) -> i64 {
        let now = self.base.load(Ordering::SeqCst).saturating_add(milliseconds(elapsed));
        // Asked many times within a millisecond, and to write would keep others from reading.
        let told = self.told.load(Ordering::SeqCst);
        if told >= now { told } else { self.told.fetch_max(now, Ordering::SeqCst).max(now) }
    }

    /// The leading clock told `theirs` at some moment of the `took` before now, so now it tells
    /// something from `theirs` to `theirs` + `took`: only what lies outside of that is a difference.
    fn lead_at(&self, elapsed: Duration, theirs: i64, took: Duration) {
        let base = self.base.load(Ordering::SeqCst);
        let ours = base.saturating_add(milliseconds(elapsed));
        let latest = theirs.saturating_add(milliseconds(took)).saturating_add(1);
        let right = ours.clamp(theirs, latest);
        self.base.store(base.saturating_add(right.saturating_sub(ours)), Ordering::SeqCst);
        if !self.is_led.swap(true, Ordering::SeqCst) {
            self.told.store(i64::MIN, Ordering::SeqCst);
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

    /// A clock of a machine that is that far off, led once after a second.
    fn led(off: i64) -> FleetClock {
        let clock = FleetClock::new(BEGIN + off);
        clock.at(ms(999));
        clock.lead_at(ms(1000), BEGIN + 1000, ms(0));
        clock
    }

    #[test]
    fn a_machine_whose_clock_is_wrong_tells_the_time_of_the_fleet_once_it_is_led() {
        for off in [-HOUR, -3, 0, 3, HOUR] {
            let now = led(off).at(ms(1500));
            assert!((BEGIN + 1500..=BEGIN + 1501).contains(&now), "off by {off} ms: {now}");
        }
    }

    #[test]
    fn what_the_journey_explains_is_no_difference() {
        let clock = led(0);
        for (theirs, took, expected) in [(1990, 20, 2000), (2000, 0, 2000), (1980, 19, 2000)] {
            clock.lead_at(ms(2000), BEGIN + theirs, ms(took));
            assert_eq!(clock.at(ms(2000)), BEGIN + expected, "{theirs} within {took} ms");
        }
    }

    #[test]
    fn it_goes_forward_at_once() {
        let clock = led(0);
        assert_eq!(clock.at(ms(2000)), BEGIN + 2000);
        clock.lead_at(ms(2000), BEGIN + HOUR, ms(5));
        assert_eq!(clock.at(ms(2000)), BEGIN + HOUR);
        assert_eq!(clock.at(ms(2007)), BEGIN + HOUR + 7);
    }

    #[test]
    fn it_never_goes_back_and_stands_until_its_time_has_come() {
        let clock = led(0);
        assert_eq!(clock.at(ms(10_000)), BEGIN + 10_000);
        clock.lead_at(ms(10_000), BEGIN + 9_989, ms(0));
        assert_eq!(clock.at(ms(10_000)), BEGIN + 10_000);
        assert_eq!(clock.at(ms(10_005)), BEGIN + 10_000);
        assert_eq!(clock.at(ms(10_020)), BEGIN + 10_010, "and then it goes with the one that leads");
    }

    #[test]
    fn leading_it_again_and_again_does_not_drive_it_forward() {
        let clock = led(0);
        for second in 2..1000 {
            // Each answer was under way for 8 ms, 4 of them back.
            clock.lead_at(ms(second * 1000), BEGIN + second * 1000 - 4, ms(8));
        }
        assert_eq!(clock.at(ms(1_000_000)), BEGIN + 1_000_000);
    }
}
