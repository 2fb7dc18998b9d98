//! The activity of a connection: whether it is idle, and since when.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock::monotonic;

/// After a client has read nothing for this long, its connection may lose its slot; a slow reader pauses for less.
const STALLED: Duration = Duration::from_secs(1);

/// The activity of a connection, shared by its task and the search for a free slot.
pub(super) struct Activity {
    begun: Instant,
    /// Since when the connection waits for a request, in milliseconds since it began, plus one; 0 if it does not wait.
    waits: AtomicU64,
    /// Since when the client does not read an answer, in the same form as `waits`.
    stalls: AtomicU64,
    /// The number of requests.
    requests: AtomicU64,
    too_slow: AtomicBool,
}

impl Activity {
    pub fn new() -> Activity {
        Activity {
            begun: monotonic(),
            waits: AtomicU64::new(1),
            stalls: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            too_slow: AtomicBool::new(false),
        }
    }

    /// Notes that a request was read.
    pub fn request_begins(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.waits.store(0, Ordering::Relaxed);
    }

    /// Notes that the whole answer to a request was passed to the connection.
    pub fn request_ends(&self) {
        self.waits.store(self.now(), Ordering::Relaxed);
    }

    /// Notes that the client stopped reading.
    pub fn stalls(&self) {
        self.stalls.store(self.now(), Ordering::Relaxed);
    }

    /// Notes that the client read something.
    pub fn progresses(&self) {
        if self.waits.load(Ordering::Relaxed) > 0 {
            self.request_ends();
        }
        self.stalls.store(0, Ordering::Relaxed);
    }

    /// Notes that the client exceeded its time limit for reading.
    pub fn set_too_slow(&self) {
        self.too_slow.store(true, Ordering::Relaxed);
    }

    pub fn was_too_slow(&self) -> bool {
        self.too_slow.load(Ordering::Relaxed)
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Since when the connection is idle; `None` while a request is answered.
    pub fn idle_since(&self, now: Instant) -> Option<Instant> {
        let since = |moment: &AtomicU64| {
            let moment = moment.load(Ordering::Relaxed).checked_sub(1)?;
            Some(self.begun + Duration::from_millis(moment))
        };
        // The whole answer may have been passed to the connection, but not read yet.
        match since(&self.stalls) {
            Some(stalled) => Some(stalled).filter(|since| now.duration_since(*since) >= STALLED),
            None => since(&self.waits),
        }
    }

    fn now(&self) -> u64 {
        monotonic().duration_since(self.begun).as_millis() as u64 + 1
    }
}
