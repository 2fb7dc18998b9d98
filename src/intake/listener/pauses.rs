//! How the thread of the listener waits for packets.
//!
//! # Why it pauses
//! A heartbeat that wakes the thread by itself costs several times as much as one of many that are read together. So an
//! idle thread sleeps for [`PAUSE`] before it waits for packets, and then reads all that have arrived. Everything that
//! it read before is already recorded and acknowledged, so only a message that arrives within the pause waits for its
//! end; when the listener is otherwise idle, no message waits.
//!
//! Measured at a thousand heartbeats a second over fifty connections, in alternation with a run without pauses: a
//! heartbeat that comes by itself costs 27 µs of processor time instead of 55, and one that comes with another 22
//! instead of 36. At tens of thousands a second it costs 2 either way.
//!
//! # When it does not
//! A client that waits for an acknowledgement before each message would lose a pause with each. So there are no pauses
//! for [`CALM`] after a client has sent twice, or two clients have connected, within [`HURRY`]. There are none after a
//! unit is announced as gone, because each step up to its notification would wait for a pause. And there are none while
//! the engine works on a batch, because its next step and its acknowledgements would wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::clock::monotonic;

const PAUSE: Duration = Duration::from_millis(5);
/// Longer than a pause, so that a client in a hurry is noticed even if a pause delayed it.
const HURRY: Duration = Duration::from_millis(10);
const CALM: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Pauses {
    /// When a client was last in a hurry.
    hurried: Mutex<Option<Instant>>,
    /// Whether the engine works on a batch.
    pub is_applying: Arc<AtomicBool>,
}

impl Pauses {
    /// Notes that a client sent something now, and its previous message at `before`; or the same for two clients that
    /// connected.
    pub fn arrived(&self, before: Instant, now: Instant) {
        if now.duration_since(before) < HURRY {
            self.hurry(now);
        }
    }

    /// Stops pauses for a while, because a client waits for each of the next steps.
    pub fn hurry(&self, now: Instant) {
        *self.hurried.lock() = Some(now);
    }

    /// Blocks the idle thread for a pause, if one is due.
    #[expect(clippy::disallowed_methods, reason = "see the head of this file")]
    pub fn pause(&self) {
        if self.are_due(monotonic()) {
            std::thread::sleep(PAUSE);
        }
    }

    fn are_due(&self, now: Instant) -> bool {
        let hurried = *self.hurried.lock();
        let is_calm = hurried.is_none_or(|at| now.duration_since(at) >= CALM);
        is_calm && !self.is_applying.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_pauses_while_a_client_sends_as_fast_as_it_is_answered() {
        let (pauses, now) = (Pauses::default(), monotonic());
        assert!(pauses.are_due(now));
        pauses.arrived(now, now + HURRY);
        assert!(pauses.are_due(now + HURRY), "each client sends now and then");
        pauses.arrived(now, now + PAUSE);
        assert!(!pauses.are_due(now + PAUSE) && !pauses.are_due(now + CALM));
        assert!(pauses.are_due(now + PAUSE + CALM));
    }

    #[test]
    fn there_are_no_pauses_while_the_engine_works_on_a_batch() {
        let (pauses, now) = (Pauses::default(), monotonic());
        pauses.is_applying.store(true, Ordering::Relaxed);
        assert!(!pauses.are_due(now));
        pauses.is_applying.store(false, Ordering::Relaxed);
        assert!(pauses.are_due(now));
    }
}
