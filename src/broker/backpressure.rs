//! How many messages may wait for intake.
//!
//! Messages that devices sent and intake has not taken yet wait in the broker. Beyond a bound the library would
//! drop the oldest; so below that bound devices are held back, and no message is dropped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// Messages that may wait before devices are held back, and the same in bytes.
pub(super) const MAX_WAITING: usize = 50_000;
pub(super) const MAX_WAITING_BYTES: u64 = 32 << 20;
/// Devices are held back until fewer than this wait.
const RESUME_BELOW: usize = 1000;
/// How often the number is checked while devices are held back.
const CHECK: Duration = Duration::from_millis(10);

pub(super) struct Backpressure {
    /// Bytes that came since no message waited: at least as many as wait.
    bytes: AtomicU64,
    is_on: watch::Sender<bool>,
}

impl Backpressure {
    pub fn new() -> Backpressure {
        Backpressure { bytes: AtomicU64::new(0), is_on: watch::Sender::new(false) }
    }

    /// A message of that size is read while `waiting` others wait.
    pub fn message_read(&self, size: u32, waiting: usize) {
        if waiting == 0 {
            self.bytes.store(0, Ordering::Relaxed);
            return;
        }
        let bytes = self.bytes.fetch_add(size.into(), Ordering::Relaxed);
        if (waiting >= MAX_WAITING || bytes >= MAX_WAITING_BYTES) && !*self.is_on.borrow() {
            self.is_on.send_replace(true);
        }
    }

    /// Whether devices are held back.
    pub fn is_on(&self) -> bool {
        *self.is_on.borrow()
    }

    /// Waits until devices are no longer held back.
    pub async fn released(&self) {
        let mut is_on = self.is_on.subscribe();
        // The sender lives as long as the broker.
        let _ = is_on.wait_for(|is_on| !is_on).await;
    }

    /// Releases devices as soon as few messages wait; never ends.
    pub async fn watch(&self, waiting: impl Fn() -> usize) {
        let mut is_on = self.is_on.subscribe();
        while is_on.wait_for(|is_on| *is_on).await.is_ok() {
            while waiting() >= RESUME_BELOW {
                tokio::time::sleep(CHECK).await;
            }
            self.bytes.store(0, Ordering::Relaxed);
            self.is_on.send_replace(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[tokio::test]
    async fn devices_are_held_back_from_a_bound_on_until_little_waits() {
        let waiting = Arc::new(AtomicUsize::new(MAX_WAITING));
        let backpressure = Arc::new(Backpressure::new());
        let (watched, seen) = (backpressure.clone(), waiting.clone());
        tokio::spawn(async move { watched.watch(|| seen.load(Ordering::Relaxed)).await });
        backpressure.message_read(100, MAX_WAITING - 1);
        assert!(!backpressure.is_on());
        backpressure.message_read(100, MAX_WAITING);
        assert!(backpressure.is_on());
        waiting.store(RESUME_BELOW - 1, Ordering::Relaxed);
        backpressure.released().await;
        assert!(!backpressure.is_on());
    }

    #[test]
    fn few_large_messages_hold_devices_back_too_and_bytes_are_forgotten_when_no_message_waits() {
        let backpressure = Backpressure::new();
        let large = (MAX_WAITING_BYTES / 2) as u32;
        backpressure.message_read(large, 1);
        backpressure.message_read(large, 0);
        backpressure.message_read(large, 1);
        backpressure.message_read(large, 1);
        assert!(!backpressure.is_on());
        backpressure.message_read(1, 1);
        assert!(backpressure.is_on());
    }
}
