//! Rests while messages come faster than it is worth getting up for each.
//!
//! # Why a thread sleeps
//! A broker writes each message into the connection by itself. Where somebody waits at the other end,
//! each write wakes him: that costs the broker about as much as the message, and him more. So when
//! messages come less than a nap apart, the thread of the connection sleeps for a nap before it waits
//! for more, and takes whatever has come meanwhile in one go. It has to be the thread: a runtime that
//! only puts its task to sleep goes on waiting for the connection itself, and is woken by each write.
//!
//! At fewer than some three thousand messages a second nobody naps, and each is taken at once.
//!
//! # Why no longer
//! Measured in turns with the same without naps, on four busy cores that broker, Redis and Rollcall share:
//! a message costs Rollcall 4.6 µs of CPU instead of 5.5 (QoS 0). Naps of 1 ms save little beyond that and
//! delay acknowledgements. When as much as it may send ahead is not
//! acknowledged, the broker queues the rest, which costs it twice as much for a message, and stays behind.

use std::time::Duration;

use tokio::time::Instant;

/// What comes meanwhile is a few kilobytes.
const NAP: Duration = Duration::from_micros(300);

/// Knows whether messages come fast.
#[derive(Default)]
pub struct Nap {
    waits_since: Option<Instant>,
    is_busy: bool,
}

impl Nap {
    /// There is nothing to take: sleeps if it is worth it. Blocks the thread for that.
    #[expect(clippy::disallowed_methods, reason = "see the head of this file")]
    pub fn take(&mut self) {
        if std::mem::take(&mut self.is_busy) {
            std::thread::sleep(NAP);
        }
        self.waits_since = Some(Instant::now());
    }

    /// Something came while it waited.
    pub fn woke(&mut self, now: Instant) {
        self.is_busy = self.waits_since.take().is_some_and(|since| now.duration_since(since) < NAP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_naps_only_after_a_wait_that_was_shorter_than_a_nap() {
        // (waited, naps before the next wait)
        let cases = [(Duration::ZERO, true), (NAP / 2, true), (NAP, false), (100 * NAP, false)];
        for (waited, naps) in cases {
            let mut nap = Nap::default();
            nap.take();
            let since = nap.waits_since.unwrap();
            nap.woke(since + waited);
            assert_eq!(nap.is_busy, naps, "{waited:?}");
            nap.take();
            assert!(!nap.is_busy, "one nap for each wait");
        }
        let mut nap = Nap::default();
        nap.woke(Instant::now());
        assert!(!nap.is_busy, "it did not wait");
    }
}
