//! The number of texts that are written at a time.
//!
//! One text of a shard at a time, so that overlapping requests do not multiply the work; and few texts in all, because
//! each takes a core while it is written. A request waits a little for its turn, so that two simultaneous requests both
//! get an answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most texts at a time.
pub(super) const WRITERS: usize = 4;
/// The number of semaphores for shards; several shards share one if there are more.
const SHARDS: usize = 64;
/// The longest wait for a permit.
const WAIT: Duration = Duration::from_secs(5);

pub(super) struct WriterLimit {
    writers: Arc<Semaphore>,
    shards: Vec<Arc<Semaphore>>,
}

pub(super) struct WriterPermit {
    _shard: OwnedSemaphorePermit,
    _writer: OwnedSemaphorePermit,
}

impl WriterLimit {
    pub fn new() -> WriterLimit {
        let shards = (0..SHARDS).map(|_| Arc::new(Semaphore::new(1))).collect();
        WriterLimit { writers: Arc::new(Semaphore::new(WRITERS)), shards }
    }

    /// A permit to write a shard; `None` if none becomes free for a while.
    pub async fn take(&self, shard: u16) -> Option<WriterPermit> {
        let shard = self.shards[usize::from(shard) % SHARDS].clone();
        let both = async {
            // Take the shard first: a request that waits for its shard must not hold a writer.
            let shard = shard.acquire_owned().await.ok()?;
            let writer = self.writers.clone().acquire_owned().await.ok()?;
            Some(WriterPermit { _shard: shard, _writer: writer })
        };
        tokio::time::timeout(WAIT, both).await.ok().flatten()
    }
}
