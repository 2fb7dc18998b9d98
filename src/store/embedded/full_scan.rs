//! A request to scan all rows in the next examination, after a read found a value that does not fit its column.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::error::DatabaseError;
use crate::store::EngineError;

#[derive(Default)]
pub(super) struct FullScan {
    is_requested: AtomicBool,
    wake: Notify,
}

impl FullScan {
    /// The error for operators; an unreadable value requests a scan.
    pub fn explain(&self, error: DatabaseError, path: &Path) -> EngineError {
        if error.is_of_a_value() {
            self.request();
        }
        error.explain(path)
    }

    pub fn request(&self) {
        self.is_requested.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }

    /// Requests the scan again after it failed, for the next examination at its usual time.
    pub fn retry_later(&self) {
        self.is_requested.store(true, Ordering::SeqCst);
    }

    /// Whether a scan was requested since the last call.
    pub fn take(&self) -> bool {
        self.is_requested.swap(false, Ordering::SeqCst)
    }

    /// Ends when a scan is requested.
    pub async fn requested(&self) {
        self.wake.notified().await;
    }
}
