//! Waiting for facts.

use std::time::Duration;

/// Far longer than anything takes that comes true at all.
const PATIENCE: Duration = Duration::from_secs(90);

/// Waits until something is so, and fails the test if it does not become so.
pub async fn until(what: &str, fact: impl AsyncFn() -> bool) {
    let awaited = async {
        while !fact().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, awaited).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}
