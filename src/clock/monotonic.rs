//! Monotonic time: how long something takes, and how long a loop waits. It means nothing outside of the process, so it
//! is neither stored nor compared with a [`Timestamp`](super::Timestamp).
//!
//! # Why there is one place
//! `Instant::now` and `elapsed` read a clock wherever they stand, also in the middle of a rule. A rule takes `now`:
//! of a stored fact as a `Timestamp`, of a rate limit, a window or a pause as an [`Instant`]. Loops and connections
//! read [`monotonic`] and hand it down. A [`Stopwatch`] measures; it cannot say what time it is.

use std::time::{Duration, Instant};

/// The current monotonic time, for loops and connections, which hand it down.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the monotonic clock")]
pub fn monotonic() -> Instant {
    Instant::now()
}

/// Measures how long something takes.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    pub fn start() -> Stopwatch {
        Stopwatch(monotonic())
    }

    pub fn elapsed(&self) -> Duration {
        monotonic().saturating_duration_since(self.0)
    }
}
