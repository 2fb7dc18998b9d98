//! The one thread that writes. A caller hands it a job and waits for the answer.
//!
//! # Why jobs share a commit
//! A commit waits for the disk, which takes one to ten milliseconds; its size hardly matters. So all waiting jobs are
//! written in one transaction, and jobs that arrive meanwhile in the next. There are no timers, and the busier the
//! thread is, the less each job costs.
//!
//! # Why jobs may be written twice
//! A job that fails rolls back the whole transaction. Then each job is written in a transaction of its own, so that
//! the failed one does not block the others. A job changes memory only when it is on disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::database;
use super::directory::Directory;
use super::error::{DatabaseError, DatabaseResult};
use super::full_scan::FullScan;
use super::last_seen::{Flush, LastSeenTables};
use super::write_job::WriteJob;
use crate::clock::{Stopwatch, monotonic};
use crate::store::{EngineError, Result};
use crate::telemetry::Telemetry;

/// The most jobs in the queue; while it is full, callers wait to enqueue.
const QUEUE_LIMIT: usize = 256;

/// The most jobs of one transaction, which bounds the wait of the first.
const JOBS_PER_TRANSACTION: usize = 64;

/// The longest time for which last seen times are only in memory.
const WRITE_BEHIND: Duration = Duration::from_secs(2);

/// Fewer changed rows than this between two flushes count as little load.
const FEW_ROWS: u64 = 10_000;

struct QueuedJob {
    job: Box<dyn WriteJob>,
    /// Held until the job has ended.
    _permit: OwnedSemaphorePermit,
}

/// The handle of the thread that writes.
pub(super) struct Writer {
    jobs: Option<Sender<QueuedJob>>,
    permits: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
    last_seen: Arc<LastSeenTables>,
    telemetry: Arc<Telemetry>,
}

impl Writer {
    /// Starts the thread. When the handle is dropped, the thread writes everything and ends.
    pub fn start(
        database: Connection,
        directory: Directory,
        last_seen: Arc<LastSeenTables>,
        telemetry: Arc<Telemetry>,
        full_scan: Arc<FullScan>,
    ) -> std::io::Result<Writer> {
        let (jobs, queue) = mpsc::channel();
        let path = directory.path().to_owned();
        let writer = WriterThread {
            database,
            path,
            last_seen: last_seen.clone(),
            telemetry: telemetry.clone(),
            full_scan,
            _directory: directory,
        };
        let thread =
            std::thread::Builder::new().name("engine-writer".into()).spawn(move || writer.run(&queue))?;
        let permits = Arc::new(Semaphore::new(QUEUE_LIMIT));
        Ok(Writer { jobs: Some(jobs), permits, thread: Some(thread), last_seen, telemetry })
    }

    async fn enqueue(&self, job: Box<dyn WriteJob>) -> Result<()> {
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| ended())?;
        let jobs = self.jobs.as_ref().ok_or_else(ended)?;
        jobs.send(QueuedJob { job, _permit: permit }).map_err(|_| ended())
    }

    /// Runs a function in a transaction; if that is rolled back, runs the function again. `name` is for metrics.
    pub async fn write<T, F>(&self, name: &'static str, write: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> DatabaseResult<T> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.run(name, Box::new(WriteFn { write, written: None, answer }), answered).await
    }

    pub fn last_seen(&self) -> Arc<LastSeenTables> {
        self.last_seen.clone()
    }

    /// Writes last seen times and hearing that only memory holds. `name` is for metrics.
    pub async fn flush(&self, name: &'static str) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let flush = Flush::new(self.last_seen.clone(), self.telemetry.clone()).answering(answer);
        self.run(name, Box::new(flush), answered).await
    }

    /// Enqueues a job and waits for its answer. `name` is for metrics.
    pub async fn run<T>(
        &self,
        name: &'static str,
        job: Box<dyn WriteJob>,
        answered: oneshot::Receiver<Result<T>>,
    ) -> Result<T> {
        let began = Stopwatch::start();
        self.enqueue(job).await?;
        let answer = answered.await.map_err(|_| ended())?;
        self.telemetry.engine_command(name, began.elapsed());
        answer
    }
}

/// Waits until everything is written, so that the directory is free afterwards.
impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ended() -> EngineError {
    EngineError::Unavailable("the thread that writes has ended; restart rollcall".into())
}

/// A function as a job.
struct WriteFn<T, F> {
    write: F,
    written: Option<T>,
    answer: oneshot::Sender<Result<T>>,
}

impl<T, F> WriteJob for WriteFn<T, F>
where
    T: Send,
    F: FnMut(&Connection) -> DatabaseResult<T> + Send,
{
    fn write(&mut self, database: &Connection) -> DatabaseResult<()> {
        self.written = Some((self.write)(database)?);
        Ok(())
    }

    fn finish(self: Box<Self>) {
        // The caller may have been dropped; the transaction is committed anyway.
        let _ = self.answer.send(self.written.ok_or_else(ended));
    }

    fn fail(self: Box<Self>, why: EngineError) {
        let _ = self.answer.send(Err(why));
    }
}

struct WriterThread {
    database: Connection,
    path: PathBuf,
    last_seen: Arc<LastSeenTables>,
    telemetry: Arc<Telemetry>,
    full_scan: Arc<FullScan>,
    /// Holds the lock while the thread writes.
    _directory: Directory,
}

impl WriterThread {
    fn run(mut self, queue: &Receiver<QueuedJob>) {
        let mut flush_at = monotonic() + WRITE_BEHIND;
        let mut rows = 0;
        loop {
            let mut permits = Vec::new();
            let mut jobs: Vec<Box<dyn WriteJob>> = Vec::new();
            let first = queue.recv_timeout(flush_at.saturating_duration_since(monotonic()));
            let is_over = matches!(first, Err(RecvTimeoutError::Disconnected));
            for QueuedJob { job, _permit } in
                first.into_iter().chain(queue.try_iter().take(JOBS_PER_TRANSACTION))
            {
                jobs.push(job);
                permits.push(_permit);
            }
            let is_flush = is_over || flush_at <= monotonic();
            if !is_flush {
                self.write(jobs);
                continue;
            }
            let before = std::mem::replace(&mut rows, self.database.total_changes());
            let is_calm = rows - before < FEW_ROWS;
            if is_calm {
                database::checkpoint_soon(&self.database);
            }
            // The flush is last: a unit with a change in this transaction is written by that change.
            jobs.push(Box::new(Flush::new(self.last_seen.clone(), self.telemetry.clone())));
            flush_at = monotonic() + WRITE_BEHIND;
            self.write(jobs);
            if is_calm {
                database::release_cache(&self.database);
            }
            if is_over {
                return;
            }
        }
    }

    fn write(&mut self, mut jobs: Vec<Box<dyn WriteJob>>) {
        match self.transaction(&mut jobs) {
            Ok(()) => jobs.into_iter().for_each(|job| job.finish()),
            Err(_) if jobs.len() > 1 => jobs.into_iter().for_each(|job| self.write(vec![job])),
            Err(error) => {
                let error = self.full_scan.explain(error, &self.path);
                jobs.into_iter().for_each(|job| job.fail(error.clone()));
            }
        }
    }

    fn transaction(&mut self, jobs: &mut [Box<dyn WriteJob>]) -> DatabaseResult<()> {
        let begun = self.database.execute_batch("BEGIN IMMEDIATE");
        let mut written = 0;
        let result = begun.map_err(DatabaseError::from).and_then(|()| {
            for job in jobs.iter_mut() {
                written += 1;
                job.write(&self.database)?;
            }
            Ok(self.database.execute_batch("COMMIT")?)
        });
        if result.is_err() {
            // SQLite rolls back by itself after some failures.
            if !self.database.is_autocommit() {
                let _ = self.database.execute_batch("ROLLBACK");
            }
            jobs[..written].iter_mut().for_each(|job| job.undo());
        }
        result
    }
}
