//! Read-only connections, which see committed data and do not block the writer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use super::database::open_to_read;
use super::error::DatabaseResult;
use super::full_scan::FullScan;
use crate::store::{EngineError, Result};

pub(super) struct Readers {
    path: PathBuf,
    idle: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
    full_scan: Arc<FullScan>,
}

impl Readers {
    /// Opens `most` connections, one for each concurrent read; further reads wait. Opens them all now, because a
    /// directory that is removed later cannot be opened any more.
    pub fn open(path: &Path, most: usize, full_scan: Arc<FullScan>) -> DatabaseResult<Readers> {
        let idle: Vec<Connection> = (0..most).map(|_| open_to_read(path)).collect::<DatabaseResult<_>>()?;
        let (idle, permits) = (Arc::new(Mutex::new(idle)), Arc::new(Semaphore::new(most)));
        Ok(Readers { path: path.to_owned(), idle, permits, full_scan })
    }

    /// Calls a function with a connection, on a thread that may block. A read waits and runs in a task of its own, so
    /// that other reads go on even if the caller does not poll it, as in a stream that reads ahead.
    pub async fn read<T, F>(&self, read: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> DatabaseResult<T> + Send + 'static,
    {
        let ended = |_| EngineError::Unavailable("a read of the fleet was broken off".into());
        let (idle, path, full_scan) = (self.idle.clone(), self.path.clone(), self.full_scan.clone());
        let blocking = move || {
            let unused = idle.lock().pop();
            let connection = unused.map_or_else(|| open_to_read(&path), Ok);
            let connection = connection.map_err(|error| error.explain(&path))?;
            let found = read(&connection).map_err(|error| full_scan.explain(error, &path))?;
            // A connection that failed is not used again.
            idle.lock().push(connection);
            Ok(found)
        };
        let permits = self.permits.clone();
        let reading = async move {
            let _permit = permits.acquire_owned().await.expect("it is never closed");
            tokio::task::spawn_blocking(blocking).await
        };
        AbortOnDropHandle::new(tokio::spawn(reading)).await.and_then(|read| read).map_err(ended)?
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::directory::DATABASE;
    use super::*;

    #[tokio::test]
    async fn a_read_that_nobody_polls_holds_no_other_up() {
        let dir = tempfile::tempdir().unwrap();
        Connection::open(dir.path().join(DATABASE))
            .unwrap()
            .execute_batch("CREATE TABLE facts (unit)")
            .unwrap();
        let readers = Readers::open(dir.path(), 1, Arc::default()).unwrap();
        let mut first = Box::pin(readers.read(|_| Ok(1)));
        assert!(first.as_mut().now_or_never().is_none());
        assert_eq!(readers.read(|_| Ok(2)).await.unwrap(), 2);
        assert_eq!(first.await.unwrap(), 1);
    }
}
