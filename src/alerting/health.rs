//! Writes how attempts at receivers ended, for operators: see `fleet/receivers.rs`.

use std::sync::Arc;
use std::time::Duration;

use super::due::DueWork;
use crate::fleet::ReceiverHealths;
use crate::store::Result;

/// How often outcomes are written, if there are new ones.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long the last write may take after the stop.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// Outcomes that were not written stay for the next step.
impl DueWork for Arc<ReceiverHealths> {
    type Progress = ();

    fn begin(&self) {}

    async fn step(&self, (): &mut ()) -> Result<Duration> {
        self.write().await?;
        Ok(INTERVAL)
    }

    async fn stopped(&self) {
        // Without this operators miss the last second.
        let _ = tokio::time::timeout(LAST_WRITE, self.write()).await;
    }
}
