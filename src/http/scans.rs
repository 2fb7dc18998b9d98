//! Scans of all units of this instance, a few at a time.
//!
//! # Why
//! A list or a count of a million units keeps a processor busy for some milliseconds. Many at once would delay
//! heartbeats and the search for silent units. So one processor is left to those; scans wait for one another, and a
//! request that finds too many waiting is refused.

use std::sync::Arc;
use std::thread::available_parallelism;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::http_error::HttpError;

/// The most waiting scans; a further one is refused.
const MAX_WAITING: usize = 64;

/// Runs scans. Cheap to share.
#[derive(Clone)]
pub(super) struct Scans {
    threads: Arc<Semaphore>,
    /// One permit for each scan that runs or waits.
    admitted: Arc<Semaphore>,
}

impl Scans {
    pub fn new() -> Scans {
        let cores = available_parallelism().map_or(1, usize::from);
        Scans::on(cores.saturating_sub(1).max(1))
    }

    fn on(threads: usize) -> Scans {
        Scans {
            threads: Arc::new(Semaphore::new(threads)),
            admitted: Arc::new(Semaphore::new(threads + MAX_WAITING)),
        }
    }

    /// Runs a scan after those before it.
    ///
    /// # Errors
    /// Too many scans wait.
    ///
    /// Cancel-safe: a waiting scan is dropped, and a running scan finishes unseen.
    pub async fn run<T: Send + 'static>(
        &self,
        scan: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HttpError> {
        let turn = self.turn().await?;
        let scanning = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            scan()
        });
        scanning.await.map_err(|error| HttpError::internal(format!("reading the units failed: {error}")))
    }

    async fn turn(&self) -> Result<(OwnedSemaphorePermit, OwnedSemaphorePermit), HttpError> {
        let Ok(admitted) = self.admitted.clone().try_acquire_owned() else {
            let text = format!("{MAX_WAITING} lists and counts of all units wait already; try again later");
            return Err(HttpError::unavailable(text));
        };
        let thread = self.threads.clone().acquire_owned().await;
        let thread =
            thread.map_err(|error| HttpError::internal(format!("reading the units failed: {error}")))?;
        Ok((admitted, thread))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use axum::http::StatusCode;
    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn a_scan_beyond_those_that_may_wait_is_refused_and_there_is_room_again_when_they_have_ended() {
        let scans = Scans::on(2);
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = Arc::new(parking_lot::Mutex::new(ended));
        let scan = || {
            let ended = ended.clone();
            scans.run(move || ended.lock().recv().is_ok())
        };
        let mut waiting = Box::pin(join_all((0..2 + MAX_WAITING).map(|_| scan())));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        let refused = futures_util::poll!(Box::pin(scan()));
        assert!(
            matches!(refused, Poll::Ready(Err(problem)) if problem.status() == StatusCode::SERVICE_UNAVAILABLE)
        );
        (0..2 + MAX_WAITING).for_each(|_| end.send(()).unwrap());
        assert!(waiting.await.into_iter().all(|ended| ended.unwrap()));
        end.send(()).unwrap();
        assert!(scan().await.unwrap());
    }

    #[tokio::test]
    async fn a_request_that_is_given_up_leaves_its_place() {
        let scans = Scans::on(1);
        let turn = scans.turn().await.unwrap();
        for _ in 0..2 * MAX_WAITING {
            let mut waiting = Box::pin(scans.run(|| ()));
            assert!(futures_util::poll!(&mut waiting).is_pending());
        }
        drop(turn);
        scans.run(|| ()).await.unwrap();
    }
}
