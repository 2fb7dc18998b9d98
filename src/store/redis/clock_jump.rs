//! Detects a jump of the server's clock forward, and a server whose clock is ahead of the time of the fleet.
//!
//! | what | goes by |
//! |---|---|
//! | deadlines, last seen times, records, blind intervals, leases, every sorted set of moments | the time of the fleet: the clock of the server that keeps `{hearing}`, which never goes back, see `renew.lua` |
//! | the end of an expiry key (`PX`) | the clock of the server that has its partition |
//!
//! # A jump
//! Expiry keys expire by the clock of their server. When an operator sets the clock forward, or a server with
//! another clock takes over, keys expire too early, and with them the newest heartbeats of their units; facts have
//! only the heartbeats of the last check. So a jump counts as time in which Rollcall did not hear: the next renewal
//! moves `heard` back by the length of the jump, and until then no heartbeat proves hearing. The next canary then
//! ends a blind interval.
//!
//! A renewal answers the server's clock, and a monotonic clock measures the time since then. Every later answer with
//! the server's clock is compared with the renewal that was the last when its request was sent, so that an answer
//! from before a jump was handled does not count as an answer from after it. If the answer to a renewal is the first
//! that shows the jump, the renewal is repeated, and the repetition handles the jump. An instance that has not
//! renewed yet detects no jump; an instance that has renewed does. If the clock goes back, keys expire later, which
//! harms no unit.
//!
//! # Other servers of a cluster
//! A server with a wrong clock does no harm as long as the clock runs evenly: it adds the rest of a key's life to its
//! own time. But keys expire too early where a clock is set forward, or where a replica takes over whose clock is
//! further ahead, because it gets the end of each key by the clock of its primary. So each canary stores in every
//! partition, beside the watermark, how far the clock of its server is ahead of the time of the fleet. If the clock
//! is further ahead later, it has jumped since, and the watermark counts as earlier by as much: see `watermarks.rs`.
//! The comparison uses bounds, so that a slow answer is no jump. Keys that live too long do no harm. Examinations
//! name servers whose clocks differ, replicas included: see `clock_difference.rs`.

use std::time::{Duration, Instant};

use super::clock_difference::ClockOffset;
use crate::clock::Timestamp;

/// A shorter jump does not matter: a unit whose key expires this early is almost due.
pub(super) const SHORTEST: Duration = Duration::from_millis(250);

/// When a renewal was sent, and the server's clock in its answer; `None` before the first renewal.
pub(super) type LastRenewal = Option<(Instant, Timestamp)>;

/// The expected time of the server's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServerClock {
    renewed: LastRenewal,
    /// The time of the fleet in that answer, and when it arrived.
    fleet: Option<(Timestamp, Instant)>,
    /// The expected time when a jump was detected.
    jumped: Option<Timestamp>,
}

impl ServerClock {
    /// The last renewal. A caller reads it before it sends a request whose answer has the server's clock.
    pub fn last_renewal(&self) -> LastRenewal {
        self.renewed
    }

    /// Reads the server's clock from an answer that arrived by `now`. Answers whether the clock has jumped since
    /// `last`, the last renewal when the request was sent, or an earlier jump is not handled yet.
    pub fn read(&mut self, last: LastRenewal, now: Instant, server: Timestamp) -> bool {
        let Some((sent, clock)) = last else { return self.jumped.is_some() };
        // An answer that was on the network for long shows an earlier time.
        let latest = clock + now.duration_since(sent);
        let has_jumped = server.since(latest) > SHORTEST;
        if has_jumped && last == self.renewed {
            self.jumped.get_or_insert(latest);
        }
        has_jumped || self.jumped.is_some()
    }

    /// The expected time at the detection of a jump that no renewal has handled yet.
    pub fn jumped(&self) -> Option<Timestamp> {
        self.jumped
    }

    /// Notes the answer to a renewal between `sent` and `arrived`: the server's clock and the time of the fleet.
    pub fn renewed(&mut self, (sent, arrived): (Instant, Instant), server: Timestamp, fleet: Timestamp) {
        *self = ServerClock { renewed: Some((sent, server)), fleet: Some((fleet, arrived)), jumped: None };
    }

    /// The time of the fleet at `now`, or a little later.
    pub fn fleet_time(&self, now: Instant) -> Option<Timestamp> {
        let (sent, _) = self.renewed?;
        Some(self.fleet?.0 + now.duration_since(sent))
    }

    /// How far a server's clock, read between `sent` and `arrived`, was ahead of the time of the fleet.
    pub fn offset_of(&self, (sent, arrived): (Instant, Instant), clock: Timestamp) -> Option<ClockOffset> {
        let (fleet, known) = self.fleet?;
        Some(ClockOffset::between(clock, fleet + sent.duration_since(known), self.fleet_time(arrived)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_clock_jumped_if_it_is_ahead_of_the_time_that_has_passed() {
        let begin = monotonic();
        let after = |ms: u64| begin + Duration::from_millis(ms);
        // (arrival of the answer, the clock in it, whether that is a jump)
        let cases = [
            (100, 10_100, false),
            (100, 10_350, false),
            (100, 10_351, true),
            (9_000, 10_100, false), // the answer was on the network for long
            (2_000, 3_612_000, true),
            (2_000, 5_000, false), // the clock was set back
        ];
        for (arrival, server, jumped) in cases {
            let mut clock = ServerClock::default();
            assert!(!clock.read(clock.last_renewal(), begin, at(0)), "there was no renewal yet");
            clock.renewed((begin, begin), at(10_000), at(10_000));
            let last = clock.last_renewal();
            assert_eq!(clock.read(last, after(arrival), at(server)), jumped, "{server} after {arrival} ms");
        }
    }

    #[test]
    fn the_offset_of_a_clock_is_between_bounds_that_slow_answers_widen() {
        let begin = monotonic();
        let after = |ms: u64| begin + Duration::from_millis(ms);
        let mut clock = ServerClock::default();
        assert!(clock.offset_of((begin, begin), at(70_000)).is_none(), "there was no renewal yet");
        clock.renewed((begin, after(20)), at(70_000), at(10_000));
        // (sent, arrived, the clock in the answer, the least and the most that it is ahead)
        for (sent, arrived, other, bounds) in [
            (20, 20, 10_000, (-20, 0)),
            (100, 130, 10_100, (-30, 20)),
            (100, 9_000, 10_500, (-8_500, 420)),
            (100, 100, 3_610_080, (3_599_980, 3_600_000)),
        ] {
            let offset = clock.offset_of((after(sent), after(arrived)), at(other)).unwrap();
            assert_eq!((offset.least, offset.most), bounds, "{other} between {sent} and {arrived} ms");
        }
    }

    #[test]
    fn a_jump_lasts_until_a_renewal_has_handled_it() {
        let begin = monotonic();
        let mut clock = ServerClock::default();
        clock.renewed((begin, begin), at(10_000), at(10_000));
        let last = clock.last_renewal();
        assert!(clock.read(last, begin, at(70_000)));
        assert!(clock.read(last, begin, at(10_000)), "also if the clock was set right again");
        assert_eq!(clock.jumped(), Some(at(10_000)));
        clock.renewed((begin, begin), at(70_000), at(10_000));
        assert_eq!(clock.jumped(), None);
        assert!(!clock.read(clock.last_renewal(), begin, at(70_001)));
    }

    #[test]
    fn an_answer_to_a_request_from_before_the_renewal_that_handled_a_jump_is_of_before_it() {
        let begin = monotonic();
        let mut clock = ServerClock::default();
        clock.renewed((begin, begin), at(10_000), at(10_000));
        let before = clock.last_renewal();
        clock.renewed((begin + SHORTEST, begin + SHORTEST), at(70_000), at(10_250));
        assert!(clock.read(before, begin + 2 * SHORTEST, at(70_500)));
        assert_eq!(clock.jumped(), None, "it is handled");
    }
}
