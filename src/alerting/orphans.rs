//! Reports notifications for receivers that are not configured: no loop delivers them, so operators have to act.
//!
//! A receiver that was renamed or removed leaves its queue behind. When a receiver of that name is configured again,
//! silences that last still go out, and the others are left out; or a command discards the queue. Until then metrics,
//! the log and `rollcall check` name the receiver.
//!
//! # Why instances with different configurations do no harm
//! During a rolling restart some instances are configured with a receiver and others are not. The latter mark it as
//! absent, and the former deliver to it as before. Each instance that starts with the receiver brings its queue up to
//! date, which leaves out only silences that are over at that time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::due::DueWork;
use crate::clock::Clock;
use crate::store::{Backlog, Result, StoredDeliveries};
use crate::telemetry::Telemetry;

/// How often the engine is read; also how long the queue of a receiver of another instance may stay unseen.
const INTERVAL: Duration = Duration::from_secs(600);

pub(super) struct Orphans {
    /// Names of the receivers that are configured.
    pub configured: HashSet<String>,
    pub engine: StoredDeliveries,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
}

impl DueWork for Orphans {
    type Progress = ();

    fn begin(&self) {}

    async fn step(&self, (): &mut ()) -> Result<Duration> {
        self.telemetry.orphaned(&self.orphans().await?);
        Ok(INTERVAL)
    }
}

impl Orphans {
    /// The receivers that are not configured and have notifications, in the order of their names.
    async fn orphans(&self) -> Result<Vec<(String, Backlog)>> {
        let mut configured: Vec<String> = self.configured.iter().cloned().collect();
        configured.sort();
        self.engine.register_receivers(&configured, self.clock.now()).await?;
        let mut orphans = self.engine.kept().await?;
        orphans.retain(|(name, _)| !self.configured.contains(name));
        Ok(orphans)
    }
}
