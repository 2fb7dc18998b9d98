//! How fast one connection is read, and how much memory large packets take together.
//!
//! No message above a rate is refused. The connection is read more slowly, so that its own socket holds the device back:
//! to a client of MQTT 3.1.1 every refusal of a message reads as success.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Packets up to this size are read at any time; larger ones share a limit.
const SMALL: usize = 4 << 10;
/// That limit, in KiB, over all connections.
const MAX_LARGE: usize = 32 << 10;

/// So much a second, and as much at once. Zero: any amount.
#[derive(Debug)]
pub struct Rate {
    a_second: f64,
    /// Below zero: too much was taken, and that has to be waited for.
    left: f64,
    at: Instant,
}

impl Rate {
    pub fn new(a_second: u32, now: Instant) -> Rate {
        Rate { a_second: a_second.into(), left: a_second.into(), at: now }
    }

    pub fn take(&mut self, amount: usize, now: Instant) {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * self.a_second;
        self.left = (self.left + gained).min(self.a_second) - amount as f64;
        self.at = now;
    }

    /// When more may be taken; `None`: now.
    pub fn waits_until(&self, now: Instant) -> Option<Instant> {
        let is_over = self.a_second > 0.0 && self.left < 0.0;
        let until = is_over.then(|| self.at + Duration::from_secs_f64(-self.left / self.a_second));
        until.filter(|until| *until > now)
    }
}

/// The room for large packets that have not arrived whole.
#[derive(Clone)]
pub struct LargePackets(Arc<Semaphore>);

impl LargePackets {
    pub fn new() -> LargePackets {
        LargePackets(Arc::new(Semaphore::new(MAX_LARGE)))
    }

    /// Room for a packet of `length` bytes; none is needed for a small one. `None`: it has to wait.
    pub fn room_for(&self, length: usize) -> Option<Option<OwnedSemaphorePermit>> {
        if length <= SMALL {
            return Some(None);
        }
        let size = length.div_ceil(1 << 10).min(MAX_LARGE) as u32;
        self.0.clone().try_acquire_many_owned(size).ok().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_too_much_is_waited_for_and_no_more_than_a_second_is_saved_up() {
        let now = Instant::now();
        let mut rate = Rate::new(10, now);
        rate.take(10, now);
        assert_eq!(rate.waits_until(now), None);
        rate.take(5, now);
        assert_eq!(rate.waits_until(now), Some(now + Duration::from_millis(500)));
        assert_eq!(rate.waits_until(now + Duration::from_millis(500)), None);
        let later = now + Duration::from_secs(60);
        rate.take(10, later);
        assert_eq!(rate.waits_until(later), None);
        rate.take(1, later);
        assert!(rate.waits_until(later).is_some());
        let mut free = Rate::new(0, now);
        free.take(1_000_000, now);
        assert_eq!(free.waits_until(now), None);
    }

    #[test]
    fn large_packets_wait_for_one_another_and_small_ones_for_nothing() {
        let large = LargePackets::new();
        let held = large.room_for(MAX_LARGE << 10).unwrap();
        assert!(large.room_for(SMALL + 1).is_none() && large.room_for(SMALL).is_some());
        drop(held);
        assert!(large.room_for(SMALL + 1).is_some());
    }
}
