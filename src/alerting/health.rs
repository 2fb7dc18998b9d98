//! Writes how attempts at receivers ended, for operators: see `fleet/receivers.rs`.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::fleet::ReceiverHealths;

/// How often outcomes are written, if there are new ones.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long the last write may take after the stop.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// Runs until it is stopped. The loops that need the engine report that it is away; outcomes that were not written stay
/// for the next time.
pub(super) async fn run(healths: Arc<ReceiverHealths>, stop: CancellationToken) -> anyhow::Result<()> {
    let mut every = tokio::time::interval(INTERVAL);
    while stop.run_until_cancelled(every.tick()).await.is_some() {
        let _ = healths.write().await;
    }
    // Without this operators miss the last second.
    let _ = tokio::time::timeout(LAST_WRITE, healths.write()).await;
    Ok(())
}
