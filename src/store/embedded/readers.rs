//! Those who only look: connections of their own, which see what was committed and hold up nobody.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::database::open_to_read;
use super::error::DatabaseResult;
use super::full_scan::FullScan;
use crate::store::{EngineError, Result};

/// How many look at the same time; others wait.
const MOST: usize = 4;

/// Connections that nobody uses at the moment.
pub(super) struct Readers {
    path: PathBuf,
    idle: Arc<Mutex<Vec<Connection>>>,
    places: Semaphore,
    full_scan: Arc<FullScan>,
}

impl Readers {
    pub fn new(path: &Path, full_scan: Arc<FullScan>) -> Readers {
        Readers { path: path.to_owned(), idle: Arc::default(), places: Semaphore::new(MOST), full_scan }
    }

    /// DeadlineIndex by a function, on a thread that may block.
    pub async fn read<T, F>(&self, look: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> DatabaseResult<T> + Send + 'static,
    {
        let ended = |_| EngineError::Unavailable("a look at the fleet was broken off".into());
        let _place = self.places.acquire().await.expect("it is never closed");
        let (idle, path, full_scan) = (self.idle.clone(), self.path.clone(), self.full_scan.clone());
        let looked = tokio::task::spawn_blocking(move || {
            let unused = idle.lock().expect("nothing panics under this lock").pop();
            let connection = unused.map_or_else(|| open_to_read(&path), Ok);
            let connection = connection.map_err(|fault| fault.explain(&path))?;
            let found = look(&connection).map_err(|fault| full_scan.explain(fault, &path))?;
            // One that failed is not used again.
            idle.lock().expect("nothing panics under this lock").push(connection);
            Ok(found)
        });
        looked.await.map_err(ended)?
    }
}
