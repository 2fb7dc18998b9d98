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
//! # How long
//! Until about [`TOGETHER`] messages have arrived. So messages that come by several brokers cost what they cost by one:
//! each connection has a part of them, and waits longer for as many. Longer pauses save little and delay
//! acknowledgements: once the receive maximum is unacknowledged, the broker queues further messages, which costs it
//! twice as much for each, and it falls behind.

use std::time::{Duration, Instant};

use crate::clock::monotonic;

/// A pause, and the longest wait after which messages count as fast.
const PAUSE: Duration = Duration::from_micros(300);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// The packets to read after a pause: some kilobytes.
const TOGETHER: u32 = 10;

/// The most packets that are read before other work: checking for work after each packet would cost too much.
const BURST: u32 = 256;

/// Detects how fast messages arrive.
#[derive(Default)]
pub struct ReadCoalescer {
    /// The packets since the last other work.
    burst: u32,
    /// When a packet last ended a wait, and the packets since then.
    woken: Option<Instant>,
    packets: u32,
    waits_since: Option<Instant>,
    /// The pause before the next wait.
    pause: Option<Duration>,
}

impl ReadCoalescer {
    /// Returns whether another packet may be read before other work; if not, the next burst begins.
    pub fn is_in_burst(&mut self) -> bool {
        self.packets += 1;
        self.burst = if self.burst < BURST { self.burst + 1 } else { 0 };
        self.burst > 0
    }

    /// Called when nothing is left to read: blocks the thread for a pause if messages arrive fast.
    #[expect(clippy::disallowed_methods, reason = "see the head of this file")]
    pub fn pause(&mut self) {
        if let Some(pause) = self.pause.take() {
            std::thread::sleep(pause);
        }
        self.waits_since = Some(monotonic());
    }

    /// Notes that a packet ended the wait.
    pub fn on_wake(&mut self, now: Instant) {
        let is_busy = self.waits_since.take().is_some_and(|since| now.duration_since(since) < PAUSE);
        let (before, packets) = (self.woken.replace(now), std::mem::take(&mut self.packets));
        let apart = before.map_or(PAUSE, |before| now.duration_since(before) / packets.max(1));
        let pause = if apart < PAUSE { (TOGETHER * apart).clamp(PAUSE, LONGEST_PAUSE) } else { PAUSE };
        self.pause = is_busy.then_some(pause);
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
            assert_eq!(coalescer.pause, pauses.then_some(PAUSE), "{waited:?}");
            coalescer.pause();
            assert_eq!(coalescer.pause, None, "one pause for each wait");
        }
        let mut coalescer = ReadCoalescer::default();
        coalescer.on_wake(monotonic());
        assert_eq!(coalescer.pause, None, "it did not wait");
    }

    #[test]
    fn a_pause_is_long_enough_for_some_messages() {
        let micros = Duration::from_micros;
        // (packets in 2 ms, the pause)
        let cases =
            [(2, PAUSE), (6, PAUSE), (10, LONGEST_PAUSE), (40, micros(500)), (100, PAUSE), (1000, PAUSE)];
        for (packets, pause) in cases {
            let mut coalescer = ReadCoalescer::default();
            coalescer.pause();
            let since = coalescer.waits_since.unwrap();
            coalescer.on_wake(since);
            (0..packets).for_each(|_| _ = coalescer.is_in_burst());
            coalescer.waits_since = Some(since + micros(2000));
            coalescer.on_wake(since + micros(2000));
            assert_eq!(coalescer.pause, Some(pause), "{packets}");
        }
    }
}
