//! Who may be written for at a time.
//!
//! One page of a shard at a time, so that clients who ask more often than they are answered do not
//! multiply the work; and few pages at all, as each takes a core while it is written. Who comes
//! too early waits a little: two that ask at the same moment are both answered.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many pages are written at a time.
pub(super) const READERS: usize = 4;
/// How many shards are told apart; those beyond share a place.
const SHARDS: usize = 64;
/// How long somebody waits for a place.
const WAIT: Duration = Duration::from_secs(5);

/// The places there are.
pub(super) struct Places {
    readers: Arc<Semaphore>,
    shards: Vec<Arc<Semaphore>>,
}

/// A place that is held.
pub(super) struct Place {
    _shard: OwnedSemaphorePermit,
    _reader: OwnedSemaphorePermit,
}

impl Places {
    pub fn new() -> Places {
        let shards = (0..SHARDS).map(|_| Arc::new(Semaphore::new(1))).collect();
        Places { readers: Arc::new(Semaphore::new(READERS)), shards }
    }

    /// A place for writing a shard; `None` if there is none for a while.
    pub async fn take(&self, shard: u16) -> Option<Place> {
        let shard = self.shards[usize::from(shard) % SHARDS].clone();
        let both = async {
            // The shard first: who waits for it must not keep others from theirs.
            let shard = shard.acquire_owned().await.ok()?;
            let reader = self.readers.clone().acquire_owned().await.ok()?;
            Some(Place { _shard: shard, _reader: reader })
        };
        tokio::time::timeout(WAIT, both).await.ok().flatten()
    }
}
