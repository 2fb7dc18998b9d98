//! How much may wait for Rollcall.
//!
//! What devices sent and intake has not taken yet waits in the broker. Beyond a bound the library would
//! drop the oldest of it; so below that bound devices are held back, and nothing is dropped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// Messages that may wait before devices are held back, and the same in bytes.
pub(super) const MOST_WAITING: usize = 50_000;
pub(super) const MOST_WAITING_BYTES: u64 = 32 << 20;
/// Until fewer than this wait.
const FEW: usize = 1000;
/// How often that is looked at while devices are held back.
const LOOK: Duration = Duration::from_millis(10);

/// What is known of it.
pub(super) struct Capacity {
    /// Bytes that came since nothing waited: more than wait.
    bytes: AtomicU64,
    full: watch::Sender<bool>,
}

impl Capacity {
    pub fn new() -> Capacity {
        Capacity { bytes: AtomicU64::new(0), full: watch::Sender::new(false) }
    }

    /// A message of that size is read while `waiting` others wait.
    pub fn enter(&self, size: u32, waiting: usize) {
        if waiting == 0 {
            self.bytes.store(0, Ordering::Relaxed);
            return;
        }
        let bytes = self.bytes.fetch_add(size.into(), Ordering::Relaxed);
        if (waiting >= MOST_WAITING || bytes >= MOST_WAITING_BYTES) && !*self.full.borrow() {
            self.full.send_replace(true);
        }
    }

    /// Whether devices are held back.
    pub fn is_full(&self) -> bool {
        *self.full.borrow()
    }

    /// Waits until there is room.
    pub async fn available(&self) {
        let mut full = self.full.subscribe();
        // It ends with the broker, and so does this.
        let _ = full.wait_for(|full| !full).await;
    }

    /// Lets devices go on as soon as there is room, for ever.
    pub async fn watch(&self, waiting: impl Fn() -> usize) {
        let mut full = self.full.subscribe();
        while full.wait_for(|full| *full).await.is_ok() {
            while waiting() >= FEW {
                tokio::time::sleep(LOOK).await;
            }
            self.bytes.store(0, Ordering::Relaxed);
            self.full.send_replace(false);
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
        let waiting = Arc::new(AtomicUsize::new(MOST_WAITING));
        let room = Arc::new(Capacity::new());
        let (watched, seen) = (room.clone(), waiting.clone());
        tokio::spawn(async move { watched.watch(|| seen.load(Ordering::Relaxed)).await });
        room.enter(100, MOST_WAITING - 1);
        assert!(!room.is_full());
        room.enter(100, MOST_WAITING);
        assert!(room.is_full());
        waiting.store(FEW - 1, Ordering::Relaxed);
        room.available().await;
        assert!(!room.is_full());
    }

    #[test]
    fn few_large_messages_fill_it_as_well_and_it_forgets_when_nothing_waits() {
        let room = Capacity::new();
        let large = (MOST_WAITING_BYTES / 2) as u32;
        room.enter(large, 1);
        room.enter(large, 0);
        room.enter(large, 1);
        room.enter(large, 1);
        assert!(!room.is_full());
        room.enter(1, 1);
        assert!(room.is_full());
    }
}
