//! Reads messages together when they arrive too fast to wake up for each.
//!
//! # Why a thread sleeps
//! A broker writes each message separately into the connection. Each write wakes a waiting reader, which costs the
//! broker about as much as the message, and the reader more. So when messages arrive less than a pause apart, the
//! thread of the connection sleeps for a pause before it waits, and then reads all that have arrived. The thread itself
//! has to sleep: if only a task sleeps, its runtime still waits for the connection, and each write wakes it.
//!
//! Below about three thousand messages a second there are no pauses, and each message is read at once.
//!
//! # Why no longer
//! Measured in alternation with a run without pauses, on four busy cores that broker, Redis and Rollcall share: a
//! message costs Rollcall 4.6 µs of CPU instead of 5.5 (QoS 0). Pauses of 1 ms save little beyond that and delay
//! acknowledgements. Once the receive maximum is unacknowledged, the broker queues further messages, which costs it
//! twice as much for each, and it falls behind.

use std::time::{Duration, Instant};

use crate::clock::monotonic;

/// Some kilobytes arrive in this time.
const PAUSE: Duration = Duration::from_micros(300);

/// The most packets that are read before other work: checking for work after each packet would cost too much.
const BURST: u32 = 256;

/// Detects whether messages arrive fast.
#[derive(Default)]
pub struct ReadCoalescer {
    /// The packets since the last other work.
    burst: u32,
    waits_since: Option<Instant>,
    is_busy: bool,
}

impl ReadCoalescer {
    /// Returns whether another packet may be read before other work; if not, the next burst begins.
    pub fn is_in_burst(&mut self) -> bool {
        self.burst = if self.burst < BURST { self.burst + 1 } else { 0 };
        self.burst > 0
    }

    /// Called when nothing is left to read: blocks the thread for a pause if messages arrive fast.
    #[expect(clippy::disallowed_methods, reason = "see the head of this file")]
    pub fn pause(&mut self) {
        if std::mem::take(&mut self.is_busy) {
            std::thread::sleep(PAUSE);
        }
        self.waits_since = Some(monotonic());
    }

    /// Notes that a packet ended the wait.
    pub fn on_wake(&mut self, now: Instant) {
        self.is_busy = self.waits_since.take().is_some_and(|since| now.duration_since(since) < PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_pauses_only_after_a_wait_that_was_shorter_than_a_pause() {
        // (waited, pauses before the next wait)
        let cases = [(Duration::ZERO, true), (PAUSE / 2, true), (PAUSE, false), (100 * PAUSE, false)];
        for (waited, pauses) in cases {
            let mut coalescer = ReadCoalescer::default();
            coalescer.pause();
            let since = coalescer.waits_since.unwrap();
            coalescer.on_wake(since + waited);
            assert_eq!(coalescer.is_busy, pauses, "{waited:?}");
            coalescer.pause();
            assert!(!coalescer.is_busy, "one pause for each wait");
        }
        let mut coalescer = ReadCoalescer::default();
        coalescer.on_wake(monotonic());
        assert!(!coalescer.is_busy, "it did not wait");
    }
}
