//! How long an answer is under way at the least: what the way to the server and back costs.
//!
//! # Why it is measured
//! Steps are few at a time so that the server works for one while the next is there: see `admission`. That is so
//! where a step takes the server longer than its answer is under way. A server that is far away would stand
//! still between the steps, and whatever waits for a turn would wait for many round trips, one after the other.
//! So as many more are sent as a round trip has room for.
//!
//! # Why the least counts
//! A server with much to do answers late, and more of it would only make it later. But not everything that
//! it was asked in ten seconds was late.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// How long an answer counts, and up to twice as long.
const WINDOW: Duration = Duration::from_secs(5);

/// About as long as a server takes for a step, and the next that waits there. What is not further away is near.
const STEP: Duration = Duration::from_millis(10);

/// With so many times as many steps a server is busy however far away it is.
const MOST_TIMES: usize = 32;

/// How many times as many steps may be under way as near by.
pub fn times(round_trip: Duration) -> usize {
    (1 + (round_trip.as_millis() / STEP.as_millis()) as usize).min(MOST_TIMES)
}

/// The least that answers took lately.
#[derive(Default)]
pub struct RoundTrip(Mutex<Least>);

#[derive(Default)]
struct Least {
    began: Option<Instant>,
    now: Option<Duration>,
    before: Option<Duration>,
}

impl RoundTrip {
    /// An answer took so long. Answers with the least.
    pub fn took(&self, span: Duration, now: Instant) -> Duration {
        let mut least = self.0.lock().expect("nothing panics under this lock");
        if least.began.is_none_or(|began| now.duration_since(began) >= WINDOW) {
            *least = Least { began: Some(now), now: None, before: least.now };
        }
        least.now = Some(least.now.map_or(span, |known| known.min(span)));
        least.least()
    }

    /// The least that was taken lately.
    pub fn least(&self) -> Duration {
        self.0.lock().expect("nothing panics under this lock").least()
    }
}

impl Least {
    fn least(&self) -> Duration {
        self.before.into_iter().chain(self.now).min().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_steps_are_under_way_where_every_answer_takes_long_and_only_there() {
        let (trip, began) = (RoundTrip::default(), Instant::now());
        let took =
            |at: u64, ms: u64| times(trip.took(Duration::from_millis(ms), began + Duration::from_secs(at)));
        // (at, answered within, times)
        let cases = [
            (0, 1, 1),
            (1, 900, 1), // one that was late
            (6, 200, 1),
            (7, 230, 1),
            (12, 200, 21), // all of ten seconds were
            (13, 900, 21),
            (18, 5000, 21),
            (24, 5000, 32),
            (25, 2, 1), // it is near after all
        ];
        for (at, ms, times) in cases {
            assert_eq!(took(at, ms), times, "{ms} ms at {at} s");
        }
    }
}
