//! Since when the fleet is watched. Time before that is neither online nor offline: nothing is known of it.
//!
//! The first instance that reaches the engine writes the moment once, for all instances and for every later start.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Timestamp};
use crate::store::{EngineError, Shared, SharedChange, SharedStore};

/// The name of the only entry: the moment, in ms.
const WATCHED_SINCE: &str = "watched_since";
/// How long a failed write waits before it is tried again.
const AGAIN_AFTER: std::time::Duration = std::time::Duration::from_secs(1);

/// Cheap to share.
#[derive(Clone)]
pub(super) struct Beginning {
    store: Arc<dyn SharedStore>,
    known: Arc<OnceLock<Timestamp>>,
}

impl Beginning {
    pub fn new(store: Arc<dyn SharedStore>) -> Beginning {
        Beginning { store, known: Arc::default() }
    }

    /// Writes the moment unless it is known, as soon as the engine answers.
    pub async fn note(self, clock: Clock, stop: CancellationToken) {
        let noting = async {
            while let Err(error) = self.since(clock.now()).await {
                tracing::debug!("since when the fleet is watched is not written yet: {error}");
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        };
        stop.run_until_cancelled(noting).await;
    }

    /// Since when the fleet is watched: from now on, if that is not written. A page goes on without it.
    pub async fn since(&self, now: Timestamp) -> Result<Timestamp, EngineError> {
        loop {
            if let Some(known) = self.known.get() {
                return Ok(*known);
            }
            let stored = self.store.shared(Shared::Beginning).await?;
            let found = stored.entries.iter().find(|(name, _)| name == WATCHED_SINCE);
            if let Some(since) = found.and_then(|(_, since)| since.parse().ok()).map(Timestamp::from_millis) {
                return Ok(*self.known.get_or_init(|| since));
            }
            let write = vec![(WATCHED_SINCE.to_owned(), now.as_millis().to_string())];
            // Of two instances one writes, and both read what was written.
            let change = SharedChange { version: stored.version, write, forget: Vec::new() };
            self.store.change_shared(Shared::Beginning, &change).await?;
        }
    }
}
