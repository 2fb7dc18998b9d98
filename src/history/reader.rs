//! Reads history for pages and mails, over one connection of its own, one read at a time.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::database::{Database, DatabaseAccess, Result};
use super::{past_fleet, report, schema};
use crate::clock::Timestamp;
use crate::fleet::{AvailabilityHistory, PastTime};
use crate::presence::{Interval, Kind, TimeSpent, Unit};
use crate::reports::{AvailabilityReport, AvailabilityScope, Days, GroupBy};
use crate::routing::trial::PastFleet;

pub struct HistoryReader {
    access: DatabaseAccess,
    fleet: String,
    /// The connection of the last read that went well.
    kept: Mutex<Option<Database>>,
}

impl HistoryReader {
    /// `fleet`: see [`fleet_digest`](super::fleet_digest).
    pub fn new(access: DatabaseAccess, fleet: String) -> HistoryReader {
        HistoryReader { access, fleet, kept: Mutex::default() }
    }

    /// The kept connection if it is still open, or a new one.
    async fn open(&self, kept: Option<Database>) -> Result<Database> {
        if let Some(database) = kept.filter(Database::is_open) {
            return Ok(database);
        }
        let database = Database::connect(&self.access).await?;
        schema::require(&database, &self.access, Some(&self.fleet)).await?;
        Ok(database)
    }
}

/// A failed read drops its connection: the database may still be working on it.
#[async_trait]
impl AvailabilityHistory for HistoryReader {
    async fn time_spent(&self, of: &AvailabilityScope, range: Interval) -> anyhow::Result<PastTime> {
        let mut kept = self.kept.lock().await;
        let database = self.open(kept.take()).await?;
        let spent = report::time_spent(&database, of, range).await?;
        *kept = Some(database);
        Ok(spent)
    }

    async fn days_of_unit(&self, unit: &Unit, days: Days) -> anyhow::Result<Vec<TimeSpent>> {
        let mut kept = self.kept.lock().await;
        let database = self.open(kept.take()).await?;
        let spent = report::days_of_unit(&database, unit, days).await?;
        *kept = Some(database);
        Ok(spent)
    }

    async fn report(&self, days: Days, group: &GroupBy) -> anyhow::Result<AvailabilityReport> {
        let mut kept = self.kept.lock().await;
        let database = self.open(kept.take()).await?;
        let made = report::report(&database, days, group).await?;
        *kept = Some(database);
        Ok(made)
    }

    /// Opens a new connection, because this read may take many seconds.
    async fn past_fleet(
        &self,
        kind: &Kind,
        time: (Duration, Option<Timestamp>),
        now: Timestamp,
    ) -> anyhow::Result<PastFleet> {
        let database = self.open(None).await?;
        Ok(past_fleet(&database, kind, time, now).await?)
    }
}
