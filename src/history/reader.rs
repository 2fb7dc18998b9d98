//! Reads history for pages and mails, over connections of its own. A slow read holds up no other one, unless there are as
//! many slow ones as connections.
//!
//! # Why a read outlives its request
//! A connection in the middle of a read serves no other one. If a read ended with its request, each request to a slow
//! database would connect anew, and be slower for it. So a read runs to its end in a task of its own, and returns its
//! connection.
//!
//! # A database that hangs
//! The engine answers much of what pages ask, also without history. So a page waits for [`WAIT`] at most and goes on without
//! it, and pages do not ask it again for [`PAUSE`].

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::database::{Database, DatabaseAccess, Result};
use super::{past_fleet, report, schema};
use crate::clock::{Timestamp, monotonic};
use crate::fleet::{AvailabilityHistory, PastTime};
use crate::presence::{Interval, Kind, TimeSpent, Unit};
use crate::reports::{AvailabilityReport, AvailabilityScope, Days, GroupBy};
use crate::routing::trial::PastFleet;

/// The most reads at once; others wait.
const READS: usize = 4;

/// How long a page waits for history: several slow statements, and less than the time limit of a request.
const WAIT: Duration = Duration::from_secs(5);

/// How long pages go on without history after they waited in vain.
const PAUSE: Duration = Duration::from_secs(15);

pub struct HistoryReader {
    connections: Arc<ReaderConnections>,
    reads: Arc<Semaphore>,
    /// Until when no page waits for history.
    paused_until: Mutex<Option<Instant>>,
}

struct ReaderConnections {
    access: DatabaseAccess,
    fleet: String,
    /// The connections of reads that went well.
    idle: Mutex<Vec<Database>>,
}

impl HistoryReader {
    /// `fleet`: see [`fleet_digest`](super::fleet_digest).
    pub fn new(access: DatabaseAccess, fleet: String) -> HistoryReader {
        let connections = ReaderConnections { access, fleet, idle: Mutex::default() };
        let reads = Arc::new(Semaphore::new(READS));
        HistoryReader { connections: Arc::new(connections), reads, paused_until: Mutex::default() }
    }

    /// Runs a read to its end, also if the caller is gone before that.
    async fn run<T: Send + 'static>(
        &self,
        read: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        // Before the task: there are never more tasks than reads.
        let turn = self.reads.clone().acquire_owned().await?;
        let running = tokio::spawn(async move {
            let _turn = turn;
            read.await
        });
        running.await?
    }

    /// Runs a read for a page, which goes on without it when that takes too long.
    async fn run_for_page<T: Send + 'static>(
        &self,
        read: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        let address = &self.connections.access.address;
        if self.paused_until.lock().is_some_and(|until| monotonic() < until) {
            bail!("{address} did not answer a moment ago, and is asked again within {} s", PAUSE.as_secs());
        }
        let Ok(read) = timeout(WAIT, self.run(read)).await else {
            *self.paused_until.lock() = Some(monotonic() + PAUSE);
            bail!("{address} did not answer within {} s", WAIT.as_secs());
        };
        read
    }
}

impl ReaderConnections {
    async fn open(&self) -> Result<Database> {
        let database = Database::connect(&self.access).await?;
        schema::require(&database, &self.access, Some(&self.fleet)).await?;
        Ok(database)
    }

    /// Reads over an idle connection, or a new one. A failed read drops its connection: the database may still be working
    /// on it.
    async fn read<T>(&self, read: impl AsyncFnOnce(&Database) -> Result<T>) -> anyhow::Result<T> {
        let idle = self.idle.lock().pop();
        let database = match idle.filter(Database::is_open) {
            Some(database) => database,
            None => self.open().await?,
        };
        let read = read(&database).await?;
        self.idle.lock().push(database);
        Ok(read)
    }
}

#[async_trait]
impl AvailabilityHistory for HistoryReader {
    async fn time_spent(&self, of: &AvailabilityScope, range: Interval) -> anyhow::Result<PastTime> {
        let (connections, of) = (self.connections.clone(), of.clone());
        self.run_for_page(async move {
            connections.read(async |database| report::time_spent(database, &of, range).await).await
        })
        .await
    }

    async fn days_of_unit(&self, unit: &Unit, days: Days) -> anyhow::Result<Vec<TimeSpent>> {
        let (connections, unit) = (self.connections.clone(), unit.clone());
        self.run_for_page(async move {
            connections.read(async |database| report::days_of_unit(database, &unit, days).await).await
        })
        .await
    }

    async fn report(&self, days: Days, group: &GroupBy) -> anyhow::Result<AvailabilityReport> {
        let (connections, group) = (self.connections.clone(), group.clone());
        self.run(async move {
            connections.read(async |database| report::report(database, days, &group).await).await
        })
        .await
    }

    /// Over a connection of its own, because this read may take many seconds, and only one runs at a time.
    async fn past_fleet(
        &self,
        kind: &Kind,
        time: (Duration, Option<Timestamp>),
        now: Timestamp,
    ) -> anyhow::Result<PastFleet> {
        let database = self.connections.open().await?;
        Ok(past_fleet(&database, kind, time, now).await?)
    }
}
