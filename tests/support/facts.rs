//! Waiting for facts.

use std::time::Duration;

/// The longest wait: far longer than any awaited fact takes.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Waits for a fact, and fails the test if it never holds.
pub async fn until(what: &str, fact: impl AsyncFn() -> bool) {
    let awaited = async {
        while !fact().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, awaited).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}
