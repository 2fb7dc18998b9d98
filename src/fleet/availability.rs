//! How units spent times of which the store has no records any more. History has the answer; pages and mails read it
//! through this trait, wherever it is stored.

use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::presence::{Interval, Kind, TimeSpent, Unit};
use crate::reports::{AvailabilityReport, AvailabilityScope, Days, GroupBy};
use crate::routing::trial::PastFleet;

/// How units spent the begin of a range.
#[derive(Clone, Debug, PartialEq)]
pub struct PastTime {
    /// Up to when it is known; the begin of the range if nothing is known.
    pub until: Timestamp,
    pub units: u64,
    pub spent: TimeSpent,
    /// Whether no records of that time are lost.
    pub is_complete: bool,
    /// From when on there are records, summed or not; `None`: nothing is written yet.
    pub begins: Option<Timestamp>,
}

/// Reads of history. Each takes its time, and fails while the database is away.
#[async_trait]
pub trait AvailabilityHistory: Send + Sync {
    /// How units spent a range, up to the end of the last day that is summed.
    async fn time_spent(&self, of: &AvailabilityScope, range: Interval) -> anyhow::Result<PastTime>;

    /// How a unit spent each of these days, as far as they are summed.
    async fn days_of_unit(&self, unit: &Unit, days: Days) -> anyhow::Result<Vec<TimeSpent>>;

    /// The report of some days, without a target.
    async fn report(&self, days: Days, group: &GroupBy) -> anyhow::Result<AvailabilityReport>;

    /// The records of the time before a moment, or before now, for a trial of a kind's policy.
    async fn past_fleet(
        &self,
        kind: &Kind,
        time: (Duration, Option<Timestamp>),
        now: Timestamp,
    ) -> anyhow::Result<PastFleet>;
}
