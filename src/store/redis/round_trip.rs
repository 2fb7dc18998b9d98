//! The round trip: the shortest recent time from a request to its answer.
//!
//! # Why it is measured
//! Few steps are under way at once, so that the server works on one while the next one waits: see `admission`. That
//! suits a server that works on a step for longer than its answer is on the network. A server far away would be idle
//! between the steps, and calls would wait for many round trips in sequence. So as many more steps are under way as
//! fit into a round trip.
//!
//! # Why the shortest time counts
//! A busy server answers late, and more requests would only make it later. But in ten seconds some of its answers
//! are in time.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The shortest time for which an answer counts; the longest is twice as long.
const WINDOW: Duration = Duration::from_secs(5);

/// About the time that a server works on a step and on the next step, which waits. A server with a shorter round trip
/// is near.
const STEP: Duration = Duration::from_millis(10);

/// The largest factor: it keeps a server busy at any distance.
const MAX_TIMES: usize = 32;

/// The factor for the number of steps under way.
pub fn times(round_trip: Duration) -> usize {
    (1 + (round_trip.as_millis() / STEP.as_millis()) as usize).min(MAX_TIMES)
}

/// The shortest recent time of an answer.
#[derive(Default)]
pub struct ShortestRoundTrip(Mutex<MinimumSince>);

#[derive(Default)]
struct MinimumSince {
    began: Option<Instant>,
    now: Option<Duration>,
    before: Option<Duration>,
}

impl ShortestRoundTrip {
    /// Records the time of an answer. Answers the shortest recent time.
    pub fn took(&self, span: Duration, now: Instant) -> Duration {
        let mut least = self.0.lock();
        if least.began.is_none_or(|began| now.duration_since(began) >= WINDOW) {
            *least = MinimumSince { began: Some(now), now: None, before: least.now };
        }
        least.now = Some(least.now.map_or(span, |known| known.min(span)));
        least.least()
    }

    /// The shortest recent time.
    pub fn least(&self) -> Duration {
        self.0.lock().least()
    }
}

impl MinimumSince {
    fn least(&self) -> Duration {
        self.before.into_iter().chain(self.now).min().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    #[test]
    fn more_steps_are_under_way_if_every_answer_takes_long_and_only_then() {
        let (trip, began) = (ShortestRoundTrip::default(), monotonic());
        let took =
            |at: u64, ms: u64| times(trip.took(Duration::from_millis(ms), began + Duration::from_secs(at)));
        // (at, answered within, times)
        let cases = [
            (0, 1, 1),
            (1, 900, 1), // one late answer
            (6, 200, 1),
            (7, 230, 1),
            (12, 200, 21), // all answers of ten seconds were late
            (13, 900, 21),
            (18, 5000, 21),
            (24, 5000, 32),
            (25, 2, 1), // the server is near after all
        ];
        for (at, ms, times) in cases {
            assert_eq!(took(at, ms), times, "{ms} ms at {at} s");
        }
    }
}
