//! Read-only connections, which see committed data and do not block the writer.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::database::open_to_read;
use super::error::DatabaseResult;
use super::full_scan::FullScan;
use crate::store::{EngineError, Result};

pub(super) struct Readers {
    path: PathBuf,
    idle: Arc<Mutex<Vec<Connection>>>,
    permits: Semaphore,
    full_scan: Arc<FullScan>,
}

impl Readers {
    /// `most`: the most reads at the same time; further ones wait.
    pub fn new(path: &Path, most: usize, full_scan: Arc<FullScan>) -> Readers {
        let permits = Semaphore::new(most);
        Readers { path: path.to_owned(), idle: Arc::default(), permits, full_scan }
    }

    /// Calls a function with a connection, on a thread that may block.
    pub async fn read<T, F>(&self, read: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> DatabaseResult<T> + Send + 'static,
    {
        let ended = |_| EngineError::Unavailable("a read of the fleet was broken off".into());
        let _permit = self.permits.acquire().await.expect("it is never closed");
        let (idle, path, full_scan) = (self.idle.clone(), self.path.clone(), self.full_scan.clone());
        let result = tokio::task::spawn_blocking(move || {
            let unused = idle.lock().expect("nothing panics under this lock").pop();
            let connection = unused.map_or_else(|| open_to_read(&path), Ok);
            let connection = connection.map_err(|error| error.explain(&path))?;
            let found = read(&connection).map_err(|error| full_scan.explain(error, &path))?;
            // A connection that failed is not used again.
            idle.lock().expect("nothing panics under this lock").push(connection);
            Ok(found)
        });
        result.await.map_err(ended)?
    }
}
