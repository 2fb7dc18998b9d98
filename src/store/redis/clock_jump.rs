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
//! the server's clock is compared with the renewal that was the last when its request was sent, so that an answer from
//! before a jump was handled does not count as an answer from after it. If the first answer that shows the jump is the
//! answer to a renewal, the renewal is repeated, and the repetition handles the jump. An instance that has not renewed
//! yet detects no jump; another instance that has renewed does. Where the clock goes back, keys expire later, which
//! harms no unit.
//!
//! # Other servers of a cluster
//! A server whose clock is off does no harm as long as the clock goes evenly: it adds the rest of a key's life to its
//! own time. But a replica gets the end of each key by the clock of its primary. So a replica whose clock is ahead
//! removes keys too early as soon as it is promoted, and so does a server whose clock is set forward. Each deadline
//! check reads the server's clock after its units. If that clock is ahead of the time of the fleet, an absent key may
//! have held a heartbeat that is later by as much, so the unit is marked offline later by as much, at most by a
//! timeout. No memory is needed for that. If a clock was behind and is set right, keys were removed too early, and
//! nothing shows it. Examinations name servers whose clocks differ, replicas included: see `clock_difference.rs`. Keys
//! that live too long do no harm.

use std::time::{Duration, Instant};

use crate::clock::Timestamp;

/// A shorter jump does not matter: the unit of a key that expires this early is almost due.
pub(super) const SHORTEST: Duration = Duration::from_millis(250);

/// When a renewal was sent, and the server's clock in its answer; `None` before the first renewal.
pub(super) type LastRenewal = Option<(Instant, Timestamp)>;

/// The expected time of the server's clock.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    renewed: LastRenewal,
    /// The time of the fleet in that answer.
    fleet: Option<Timestamp>,
    /// The expected time when a jump was detected.
    jumped: Option<Timestamp>,
}

impl ServerClock {
    /// The last renewal. A caller reads it before it sends a request whose answer has the server's clock.
    pub fn last_renewal(&self) -> LastRenewal {
        self.renewed
    }

    /// Reads the server's clock from an answer that arrived by `now`. Answers whether the clock jumped since `last`,
    /// the last renewal when the request was sent, or an earlier jump is not handled yet.
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

    /// The expected time when a jump was detected that no renewal has handled yet.
    pub fn jumped(&self) -> Option<Timestamp> {
        self.jumped
    }

    /// Notes the answer to a renewal that was sent at `sent`: the server's clock and the time of the fleet.
    pub fn renewed(&mut self, sent: Instant, server: Timestamp, fleet: Timestamp) {
        *self = ServerClock { renewed: Some((sent, server)), fleet: Some(fleet), jumped: None };
    }

    /// The time of the fleet at `now`, or a little later.
    pub fn fleet_time(&self, now: Instant) -> Option<Timestamp> {
        let (sent, _) = self.renewed?;
        Some(self.fleet? + now.duration_since(sent))
    }

    /// How far the clock of another server is ahead of the time of the fleet, as it was read in an answer that arrived
    /// by `now`; zero if that does not matter.
    pub fn ahead_of_fleet(&self, now: Instant, other: Timestamp) -> Duration {
        let ahead = self.fleet_time(now).map(|fleet| other.since(fleet));
        ahead.filter(|ahead| *ahead > SHORTEST).unwrap_or_default()
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
            clock.renewed(begin, at(10_000), at(10_000));
            let last = clock.last_renewal();
            assert_eq!(clock.read(last, after(arrival), at(server)), jumped, "{server} after {arrival} ms");
        }
    }

    #[test]
    fn another_server_is_ahead_of_the_time_of_the_fleet_and_not_of_a_clock_that_has_stepped() {
        let begin = monotonic();
        let mut clock = ServerClock::default();
        assert_eq!(clock.ahead_of_fleet(begin, at(70_000)), Duration::ZERO, "there was no renewal yet");
        clock.renewed(begin, at(70_000), at(10_000));
        // (arrival of the answer, the clock in it, how far it is ahead)
        for (arrival, other, ahead) in [
            (100, 10_100, 0),
            (100, 10_350, 0),
            (100, 10_351, 251),
            (100, 5_000, 0),
            (9_000, 10_500, 0),
            (0, 70_000, 60_000),
        ] {
            let found = clock.ahead_of_fleet(begin + Duration::from_millis(arrival), at(other));
            assert_eq!(found.as_millis(), ahead, "{other} after {arrival} ms");
        }
    }

    #[test]
    fn a_jump_lasts_until_a_renewal_has_handled_it() {
        let begin = monotonic();
        let mut clock = ServerClock::default();
        clock.renewed(begin, at(10_000), at(10_000));
        let last = clock.last_renewal();
        assert!(clock.read(last, begin, at(70_000)));
        assert!(clock.read(last, begin, at(10_000)), "also if the clock was set right again");
        assert_eq!(clock.jumped(), Some(at(10_000)));
        clock.renewed(begin, at(70_000), at(10_000));
        assert_eq!(clock.jumped(), None);
        assert!(!clock.read(clock.last_renewal(), begin, at(70_001)));
    }

    #[test]
    fn an_answer_to_a_request_from_before_the_renewal_that_handled_a_jump_is_of_before_it() {
        let begin = monotonic();
        let mut clock = ServerClock::default();
        clock.renewed(begin, at(10_000), at(10_000));
        let before = clock.last_renewal();
        clock.renewed(begin + SHORTEST, at(70_000), at(10_250));
        assert!(clock.read(before, begin + 2 * SHORTEST, at(70_500)));
        assert_eq!(clock.jumped(), None, "it is handled");
    }
}
