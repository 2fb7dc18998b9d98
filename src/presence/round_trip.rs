//! The way to the broker and back: how long it takes, and how late a proof may be because of it.
//!
//! A canary proves hearing up to the moment at which it was sent, and it arrives a round trip later. Where the broker
//! is far away, proof is always that late. Lateness alone is no blindness: canaries that follow one another closely
//! prove that nothing is missing between them, however long each of them took. So each limit on the *age* of a proof
//! includes the round trip, and a limit on the *distance* between two proofs does not.
//!
//! # Why the round trip follows measurements slowly
//! A connection that stalls for a minute delivers canaries that took a minute, all at once. That is an interruption and
//! no far broker. So the round trip grows by no more than a second with each canary, and never faster than time
//! passes; it shrinks half as fast, so that a link with jitter counts as slow as its slow canaries. It is never more
//! than [`MAX_ROUND_TRIP`].

use std::time::Duration;

use crate::clock::Timestamp;

/// The longest round trip for which hearing waits for proofs. Farther away than this, hearing is blind.
pub const MAX_ROUND_TRIP: Duration = Duration::from_secs(30);

/// By how much the round trip grows at most with one canary.
const MAX_GROWTH: Duration = Duration::from_secs(1);

/// The most canaries of a connection that are on their way at a time, where the way is long. Brokers accept 20
/// publications that they have not acknowledged (Mosquitto), and hold back the others: with more, each canary would
/// wait for the canaries before it, longer and longer.
const CANARIES_UNDERWAY: u32 = 8;

/// The number of probes of all filters that are on their way at a time, and the most of one filter.
const PROBES_UNDERWAY: u32 = 12;
const MAX_PROBES_UNDERWAY: u32 = 4;

/// The measured round trip of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrip {
    length: Duration,
    /// When a canary last came back.
    returned: Option<Timestamp>,
}

impl RoundTrip {
    /// Notes that a canary that was sent at `sent` came back at `now`.
    pub fn returned(&mut self, sent: Timestamp, now: Timestamp) {
        let measured = now.since(sent).min(MAX_ROUND_TRIP);
        self.length = match self.returned.map(|before| now.since(before)) {
            None => measured,
            Some(passed) if measured > self.length => measured.min(self.length + passed.min(MAX_GROWTH)),
            Some(passed) => measured.max(self.length.saturating_sub(passed / 2)),
        };
        self.returned = Some(now);
    }

    pub fn length(&self) -> Duration {
        self.length
    }
}

/// The least time between two canaries of a connection with that round trip.
pub fn least_canary_period(round_trip: Duration) -> Duration {
    round_trip / CANARIES_UNDERWAY
}

/// The least time between two probes of a filter, where `filters` filters are probed over a connection with that round
/// trip.
pub fn least_probe_period(round_trip: Duration, filters: usize) -> Duration {
    let filters = u32::try_from(filters).unwrap_or(u32::MAX).max(1);
    round_trip / (PROBES_UNDERWAY / filters).clamp(1, MAX_PROBES_UNDERWAY)
}

/// Follows whether the fleet is heard.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Up to when it was heard.
    heard: Option<Timestamp>,
    /// When `heard` was last noticed to grow.
    grew: Option<Timestamp>,
}

impl Progress {
    /// Whether Rollcall is blind at `now`, having heard up to `heard`. It hears while proof goes on, at least once
    /// within a `gap` and a round trip; the proof may be as late as the way of the slowest instance makes it.
    pub fn is_blind(
        &mut self,
        heard: Option<Timestamp>,
        now: Timestamp,
        gap: Duration,
        round_trip: Duration,
    ) -> bool {
        if self.heard.is_some() && heard > self.heard {
            self.grew = Some(now);
        }
        self.heard = heard;
        let Some(heard) = heard else { return true };
        let latest = self.grew.map_or(heard, |grew| grew.max(heard));
        now.since(latest) > gap + round_trip || now.since(heard) > gap + MAX_ROUND_TRIP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + ms)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_round_trip_follows_canaries_no_faster_than_time_passes() {
        // When each canary was sent and came back (ms), and the round trip after the last one.
        type Case<'a> = (&'a str, &'a [(i64, i64)], u64);
        let cases: [Case; 8] = [
            ("the first one counts as it is", &[(0, 1600)], 1600),
            ("and is bounded", &[(0, 90_000)], 30_000),
            ("a way that grows is followed", &[(0, 100), (300, 1000), (600, 1900)], 1300),
            ("by a second at a time", &[(0, 100), (300, 10_300)], 1100),
            (
                "a stall delivers all at once",
                &[(0, 10), (1000, 60_000), (2000, 60_000), (3000, 60_001)],
                1011,
            ),
            ("a way that shrinks is followed half as fast", &[(0, 1600), (1500, 1900), (1800, 2000)], 1400),
            ("down to what is measured", &[(0, 1600), (5000, 5100)], 100),
            ("a clock that went back", &[(0, 100), (500, 400)], 0),
        ];
        for (claim, canaries, expected) in cases {
            let mut trip = RoundTrip::default();
            canaries.iter().for_each(|(sent, came)| trip.returned(at(*sent), at(*came)));
            assert_eq!(trip.length(), ms(expected), "{claim}");
        }
    }

    #[test]
    fn a_link_with_jitter_counts_as_slow_as_its_slow_canaries() {
        let mut trip = RoundTrip::default();
        for second in 0..60 {
            let way = if second % 3 == 0 { 4000 } else { 1500 };
            trip.returned(at(second * 1000), at(second * 1000 + way));
        }
        assert!(trip.length() > ms(2900), "{:?}", trip.length());
    }

    #[test]
    fn few_messages_of_rollcall_are_on_their_way_however_long_that_is() {
        // The round trip, the number of filters, the least periods of canaries and probes (ms).
        let cases = [(0, 1, 0, 0), (1600, 1, 200, 400), (10_000, 3, 1250, 2500), (10_000, 50, 1250, 10_000)];
        for (round_trip, filters, canary, probe) in cases {
            assert_eq!(least_canary_period(ms(round_trip)), ms(canary));
            assert_eq!(least_probe_period(ms(round_trip), filters), ms(probe), "{round_trip} {filters}");
        }
    }

    #[test]
    fn rollcall_hears_while_proof_goes_on_however_late_it_comes() {
        // (now, heard up to, blind) in ms, one after the other, with a gap of 1.5 s and a round trip of 1.6 s.
        let steps = [
            (0, None, true),
            (100, Some(-60_000), true), // of an earlier process
            (1600, Some(0), false),
            (4700, Some(0), false),
            (4701, Some(0), true),
            (5000, Some(3000), false),
            (9000, Some(4000), false),  // another instance is farther away
            (36_000, Some(4400), true), // too far
        ];
        let mut progress = Progress::default();
        for (now, heard, is_blind) in steps {
            assert_eq!(progress.is_blind(heard.map(at), at(now), ms(1500), ms(1600)), is_blind, "{now}");
        }
    }
}
