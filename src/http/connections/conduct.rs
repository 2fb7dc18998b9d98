//! What a connection does at the moment: whether it stands still, and since when.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A reader that did not read for so long may lose its place; one that reads slowly pauses shorter.
const STALLED: Duration = Duration::from_secs(1);

/// Shared by those that serve a connection and those that look for a place.
pub(super) struct Conduct {
    begun: Instant,
    /// Since when it waits for a request, in milliseconds since it began and one more; 0: it does not.
    waits: AtomicU64,
    /// The same for an answer of which its reader takes nothing.
    stalls: AtomicU64,
    /// How many requests there were.
    requests: AtomicU64,
    too_slow: AtomicBool,
}

impl Conduct {
    pub fn new() -> Conduct {
        Conduct {
            begun: Instant::now(),
            waits: AtomicU64::new(1),
            stalls: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            too_slow: AtomicBool::new(false),
        }
    }

    /// A request was read.
    pub fn begins(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.waits.store(0, Ordering::Relaxed);
    }

    /// Its answer was handed to the connection.
    pub fn rests(&self) {
        self.waits.store(self.now(), Ordering::Relaxed);
    }

    /// The reader takes nothing, from now on.
    pub fn stalls(&self) {
        self.stalls.store(self.now(), Ordering::Relaxed);
    }

    /// The reader took something.
    pub fn moves(&self) {
        if self.waits.load(Ordering::Relaxed) > 0 {
            self.rests();
        }
        self.stalls.store(0, Ordering::Relaxed);
    }

    /// The reader had its time.
    pub fn is_too_slow(&self) {
        self.too_slow.store(true, Ordering::Relaxed);
    }

    pub fn was_too_slow(&self) -> bool {
        self.too_slow.load(Ordering::Relaxed)
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Since when it has used its place for nothing; `None` while a request is answered.
    pub fn still_since(&self) -> Option<Instant> {
        let since = |moment: &AtomicU64| {
            let moment = moment.load(Ordering::Relaxed).checked_sub(1)?;
            Some(self.begun + Duration::from_millis(moment))
        };
        // The end of an answer may be handed over and not taken yet.
        match since(&self.stalls) {
            Some(stalled) => Some(stalled).filter(|since| since.elapsed() >= STALLED),
            None => since(&self.waits),
        }
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64 + 1
    }
}
