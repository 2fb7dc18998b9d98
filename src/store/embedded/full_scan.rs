//! Something was met in the database that is not what its place should hold: the next examination puts it aside.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::error::DatabaseError;
use crate::store::EngineError;

/// Whether all rows are to be gone over.
#[derive(Default)]
pub(super) struct FullScan {
    is_met: AtomicBool,
    wake: Notify,
}

impl FullScan {
    /// What a fault means, for people; one of a value is seen to.
    pub fn explain(&self, fault: DatabaseError, path: &Path) -> EngineError {
        if fault.is_of_a_value() {
            self.request();
        }
        fault.explain(path)
    }

    /// Something does not fit.
    pub fn request(&self) {
        self.is_met.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }

    /// What was met could not be seen to: the next examination tries again, whenever it is.
    pub fn retry_later(&self) {
        self.is_met.store(true, Ordering::SeqCst);
    }

    /// Whether something was met since this was asked last.
    pub fn take(&self) -> bool {
        self.is_met.swap(false, Ordering::SeqCst)
    }

    /// Ends when something is met.
    pub async fn wait(&self) {
        self.wake.notified().await;
    }
}
