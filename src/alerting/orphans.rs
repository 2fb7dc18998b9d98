//! What is kept for receivers that are not configured: nothing tells them, so operators have to know.
//!
//! A receiver that was renamed or removed leaves its queue behind. What waits there goes out when a receiver of that
//! name is configured again; until then it is shown.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::engine::{Backlog, Engine, Result};
use crate::telemetry::Telemetry;

/// How often is looked: an engine may have to go through the names of all its keys for it.
const EVERY: Duration = Duration::from_secs(600);

/// The loop and what it uses.
pub(super) struct Orphans {
    /// Names of the receivers that are configured.
    pub configured: HashSet<String>,
    pub engine: Arc<dyn Engine>,
    pub telemetry: Arc<Telemetry>,
    pub stop: CancellationToken,
}

impl Orphans {
    /// Runs until it is stopped.
    pub async fn run(self) -> anyhow::Result<()> {
        let mut every = tokio::time::interval(EVERY);
        loop {
            let look = async {
                every.tick().await;
                // An engine that is away is told of by the loops that need it more.
                if let Ok(orphans) = self.look().await {
                    self.telemetry.orphaned(&orphans);
                }
            };
            if self.stop.run_until_cancelled(look).await.is_none() {
                return Ok(());
            }
        }
    }

    /// What is kept for whom, in the order of their names.
    async fn look(&self) -> Result<Vec<(String, Backlog)>> {
        let partitions: Vec<u16> = (0..self.engine.partitions()).collect();
        let mut orphans = Vec::new();
        for name in self.engine.kept_for().await? {
            if !self.configured.contains(&name) {
                let backlog = self.engine.backlog(&partitions, &name).await?;
                orphans.push((name, backlog));
            }
        }
        Ok(orphans)
    }
}
