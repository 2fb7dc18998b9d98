//! Since when the fleet is watched. Time before that is unknown: neither online nor offline.
//!
//! The first instance that reaches the engine writes the moment once, for all instances and for every later start.

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Timestamp};
use crate::store::{Cells, Documents, EngineError, Table, TableValue};

/// The name of the only document.
const FLEET: &str = "fleet";
/// The wait before a failed write is tried again.
const AGAIN_AFTER: std::time::Duration = std::time::Duration::from_secs(1);

/// Since when the fleet is watched.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct WatchedSince(Timestamp);

impl TableValue for WatchedSince {
    type Name = String;
    const TABLE: Table = Table::Watched;
}

/// Cheap to share.
#[derive(Clone)]
pub struct Beginning {
    documents: Documents,
    known: Arc<OnceLock<Timestamp>>,
}

impl Beginning {
    pub fn new(cells: Arc<dyn Cells>) -> Beginning {
        Beginning { documents: Documents::new(cells), known: Arc::default() }
    }

    /// Writes the moment, unless it is written, as soon as the engine answers.
    pub async fn note(self, clock: Clock, stop: CancellationToken) {
        let noting = async {
            while let Err(error) = self.since(clock.now()).await {
                tracing::debug!("the moment from which the fleet is watched is not written yet: {error}");
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        };
        stop.run_until_cancelled(noting).await;
    }

    /// Since when the fleet is watched. If no instance has written the moment yet, this call writes `now`.
    ///
    /// # Errors
    /// The engine does not answer; pages then leave the moment out.
    pub async fn since(&self, now: Timestamp) -> Result<Timestamp, EngineError> {
        loop {
            if let Some(known) = self.known.get() {
                return Ok(*known);
            }
            let stored = self.documents.one::<WatchedSince>(&FLEET.to_owned()).await?;
            if let Some(WatchedSince(since)) = stored.value {
                return Ok(*self.known.get_or_init(|| since));
            }
            // If two instances write at the same time, one of them wins, and both read what it wrote.
            self.documents.write(&[self.documents.change(&stored, Some(&WatchedSince(now)))?]).await?;
        }
    }
}
