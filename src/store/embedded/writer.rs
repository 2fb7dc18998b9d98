//! The one thread that writes. Whoever wants something written hands it a job and waits.
//!
//! # Why jobs share a commit
//! A commit waits for the disk, which takes a millisecond or ten; what is in it hardly matters. So
//! all jobs that wait are written in one transaction, and those that come meanwhile in the next:
//! no timers, and the busier it is the less each costs.
//!
//! # Why jobs may be written twice
//! One that fails takes its whole transaction with it. Then each is written by itself, so that it
//! holds up nobody else. A job changes memory only when it is on disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::database;
use super::directory::Directory;
use super::error::{DatabaseError, DatabaseResult};
use super::full_scan::FullScan;
use super::last_seen::{Flush, LastSeenTables};
use crate::store::{EngineError, Result};
use crate::telemetry::Telemetry;

/// The most jobs that wait; who comes when it is full waits to hand over.
const MOST_WAITING: usize = 256;

/// The most jobs of one transaction, so that the first does not wait for ever.
const MOST_TOGETHER: usize = 64;

/// How long last seen times may be in memory alone.
const WRITE_BEHIND: Duration = Duration::from_secs(2);

/// With fewer rows than this between two flushes little is written.
const FEW_ROWS: u64 = 10_000;

/// Something to be written.
pub(super) trait WriteJob: Send {
    /// Writes. May be called again after [`WriteJob::undo`].
    fn write(&mut self, database: &Connection) -> DatabaseResult<()>;
    /// What was written is not to be: the transaction failed.
    fn undo(&mut self) {}
    /// What was written is on disk.
    fn finish(self: Box<Self>);
    /// It was not written, for good.
    fn fail(self: Box<Self>, why: EngineError);
}

struct QueuedJob {
    job: Box<dyn WriteJob>,
    /// Its place in the queue, until it has come to an end.
    _place: OwnedSemaphorePermit,
}

/// The way to the thread that writes.
pub(super) struct Writer {
    jobs: Option<Sender<QueuedJob>>,
    places: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
    beats: Arc<LastSeenTables>,
    telemetry: Arc<Telemetry>,
}

impl Writer {
    /// Starts the thread. It ends when this is dropped, and leaves nothing unwritten.
    pub fn start(
        database: Connection,
        directory: Directory,
        beats: Arc<LastSeenTables>,
        telemetry: Arc<Telemetry>,
        full_scan: Arc<FullScan>,
    ) -> std::io::Result<Writer> {
        let (jobs, waiting) = mpsc::channel();
        let path = directory.path().to_owned();
        let scribe = WriterThread {
            database,
            path,
            beats: beats.clone(),
            telemetry: telemetry.clone(),
            full_scan,
            _directory: directory,
        };
        let thread =
            std::thread::Builder::new().name("engine-writer".into()).spawn(move || scribe.run(&waiting))?;
        let places = Arc::new(Semaphore::new(MOST_WAITING));
        Ok(Writer { jobs: Some(jobs), places, thread: Some(thread), beats, telemetry })
    }

    /// Hands over a job; whoever made it learns from it how it ended.
    pub async fn hand_over(&self, job: Box<dyn WriteJob>) -> Result<()> {
        let place = self.places.clone().acquire_owned().await.map_err(|_| ended())?;
        let jobs = self.jobs.as_ref().ok_or_else(ended)?;
        jobs.send(QueuedJob { job, _place: place }).map_err(|_| ended())
    }

    /// Writes by a function, which may be called again if what it wrote was undone. `name` is for
    /// metrics.
    pub async fn write<T, F>(&self, name: &'static str, step: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> DatabaseResult<T> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.finish(name, Box::new(WriteFn { step, outcome: None, answer }), answered).await
    }

    /// Last seen times on their way to disk.
    pub fn beats(&self) -> Arc<LastSeenTables> {
        self.beats.clone()
    }

    /// Writes what is in memory alone. `name` is for metrics.
    pub async fn flush(&self, name: &'static str) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let flush = Flush::new(self.beats.clone(), self.telemetry.clone()).answering(answer);
        self.finish(name, Box::new(flush), answered).await
    }

    /// Hands over a job and waits for its answer.
    pub async fn finish<T>(
        &self,
        name: &'static str,
        job: Box<dyn WriteJob>,
        answered: oneshot::Receiver<Result<T>>,
    ) -> Result<T> {
        let began = Instant::now();
        self.hand_over(job).await?;
        let answer = answered.await.map_err(|_| ended())?;
        self.telemetry.engine_command(name, began.elapsed());
        answer
    }
}

/// Waits until everything is written, so that the directory is free when this is gone.
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
    step: F,
    outcome: Option<T>,
    answer: oneshot::Sender<Result<T>>,
}

impl<T, F> WriteJob for WriteFn<T, F>
where
    T: Send,
    F: FnMut(&Connection) -> DatabaseResult<T> + Send,
{
    fn write(&mut self, database: &Connection) -> DatabaseResult<()> {
        self.outcome = Some((self.step)(database)?);
        Ok(())
    }

    fn finish(self: Box<Self>) {
        // Who asked may have gone; what was written stands all the same.
        let _ = self.answer.send(self.outcome.ok_or_else(ended));
    }

    fn fail(self: Box<Self>, why: EngineError) {
        let _ = self.answer.send(Err(why));
    }
}

/// The thread's own.
struct WriterThread {
    database: Connection,
    path: PathBuf,
    beats: Arc<LastSeenTables>,
    telemetry: Arc<Telemetry>,
    full_scan: Arc<FullScan>,
    /// Nobody else's for as long as something is written.
    _directory: Directory,
}

impl WriterThread {
    fn run(mut self, waiting: &Receiver<QueuedJob>) {
        let mut flush_at = Instant::now() + WRITE_BEHIND;
        let mut rows = 0;
        loop {
            let mut places = Vec::new();
            let mut jobs: Vec<Box<dyn WriteJob>> = Vec::new();
            let first = waiting.recv_timeout(flush_at.saturating_duration_since(Instant::now()));
            let is_over = matches!(first, Err(RecvTimeoutError::Disconnected));
            for QueuedJob { job, _place } in first.into_iter().chain(waiting.try_iter().take(MOST_TOGETHER)) {
                jobs.push(job);
                places.push(_place);
            }
            let is_flush = is_over || flush_at <= Instant::now();
            if !is_flush {
                self.write(jobs);
                continue;
            }
            let before = std::mem::replace(&mut rows, self.database.total_changes());
            let is_calm = rows - before < FEW_ROWS;
            if is_calm {
                database::carry_over_soon(&self.database);
            }
            // Last: what is being changed in this transaction is written by its change.
            jobs.push(Box::new(Flush::new(self.beats.clone(), self.telemetry.clone())));
            flush_at = Instant::now() + WRITE_BEHIND;
            self.write(jobs);
            if is_calm {
                database::rest(&self.database);
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
            Err(fault) => {
                let error = self.full_scan.explain(fault, &self.path);
                jobs.into_iter().for_each(|job| job.fail(copy(&error)));
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
            // Some failures have rolled back by themselves.
            if !self.database.is_autocommit() {
                let _ = self.database.execute_batch("ROLLBACK");
            }
            jobs[..written].iter_mut().for_each(|job| job.undo());
        }
        result
    }
}

/// Everybody who waited is told.
fn copy(error: &EngineError) -> EngineError {
    match error {
        EngineError::Unavailable(why) => EngineError::Unavailable(why.clone()),
        EngineError::Refused(why) => EngineError::Refused(why.clone()),
        EngineError::Damaged(why) => EngineError::Damaged(why.clone()),
    }
}
