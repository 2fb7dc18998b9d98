//! What is kept for receivers that are not configured: nothing tells them, so operators have to know.
//!
//! A receiver that was renamed or removed leaves its queue behind. When a receiver of that name is configured again,
//! what of it is still so goes out, and the rest is left out; or it is discarded by a command. Until then it is shown.
//!
//! # Why instances that differ do no harm
//! While some instances are configured with a receiver and others are not, as during a rolling restart, the latter
//! mark it as absent, and the former tell it as ever. Each that starts with it brings its queue up to date, which
//! leaves out only what is over by then.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::store::{Backlog, Engine, Result};
use crate::telemetry::Telemetry;

/// How often is looked; also how long a queue may stay unseen whose receiver another instance still has.
const EVERY: Duration = Duration::from_secs(600);

/// The loop and what it uses.
pub(super) struct Orphans {
    /// Names of the receivers that are configured.
    pub configured: HashSet<String>,
    pub engine: Arc<dyn Engine>,
    pub clock: Clock,
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
                // An engine that is away is reported by the loops that need it more.
                if let Ok(orphans) = self.look().await {
                    self.telemetry.orphaned(&orphans);
                }
            };
            if self.stop.run_until_cancelled(look).await.is_none() {
                return Ok(());
            }
        }
    }

    /// What is kept for receivers that are not configured, in the order of their names.
    async fn look(&self) -> Result<Vec<(String, Backlog)>> {
        let mut configured: Vec<String> = self.configured.iter().cloned().collect();
        configured.sort();
        self.engine.enlist(&configured, self.clock.now()).await?;
        let mut orphans = self.engine.kept().await?;
        orphans.retain(|(name, _)| !self.configured.contains(name));
        Ok(orphans)
    }
}
