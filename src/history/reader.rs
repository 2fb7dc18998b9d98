//! Reads history for pages and mails, over connections of its own. A slow read holds up no other one, unless there are as
//! many slow ones as connections.

use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::database::{Database, DatabaseAccess, Result};
use super::{past_fleet, report, schema};
use crate::clock::Timestamp;
use crate::fleet::{AvailabilityHistory, PastTime};
use crate::presence::{Interval, Kind, TimeSpent, Unit};
use crate::reports::{AvailabilityReport, AvailabilityScope, Days, GroupBy};
use crate::routing::trial::PastFleet;

/// The most reads at once; others wait.
const READS: usize = 4;

pub struct HistoryReader {
    access: DatabaseAccess,
    fleet: String,
    reads: Semaphore,
    /// The connections of reads that went well.
    idle: Mutex<Vec<Database>>,
}

impl HistoryReader {
    /// `fleet`: see [`fleet_digest`](super::fleet_digest).
    pub fn new(access: DatabaseAccess, fleet: String) -> HistoryReader {
        HistoryReader { access, fleet, reads: Semaphore::new(READS), idle: Mutex::default() }
    }

    async fn open(&self) -> Result<Database> {
        let database = Database::connect(&self.access).await?;
        schema::require(&database, &self.access, Some(&self.fleet)).await?;
        Ok(database)
    }

    /// Reads over an idle connection, or a new one. A failed read drops its connection: the database may still be working
    /// on it.
    async fn read<T>(&self, read: impl AsyncFnOnce(&Database) -> Result<T>) -> anyhow::Result<T> {
        let _turn = self.reads.acquire().await?;
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
        self.read(async |database| report::time_spent(database, of, range).await).await
    }

    async fn days_of_unit(&self, unit: &Unit, days: Days) -> anyhow::Result<Vec<TimeSpent>> {
        self.read(async |database| report::days_of_unit(database, unit, days).await).await
    }

    async fn report(&self, days: Days, group: &GroupBy) -> anyhow::Result<AvailabilityReport> {
        self.read(async |database| report::report(database, days, group).await).await
    }

    /// Over a connection of its own, because this read may take many seconds, and only one runs at a time.
    async fn past_fleet(
        &self,
        kind: &Kind,
        time: (Duration, Option<Timestamp>),
        now: Timestamp,
    ) -> anyhow::Result<PastFleet> {
        let database = self.open().await?;
        Ok(past_fleet(&database, kind, time, now).await?)
    }
}
