//! Writes how attempts at receivers ended, and shows on this instance which receivers fail for all: see
//! `fleet/receivers.rs`.
//!
//! So `/readyz` and the pages of an instance name a failing receiver also after a restart, and although another instance
//! makes the attempts.

use std::sync::Arc;
use std::time::Duration;

use super::due::DueWork;
use crate::fleet::ReceiverHealths;
use crate::fleet::receivers::ReceiverHealth;
use crate::store::Result;
use crate::telemetry::Telemetry;

/// How often outcomes are written, if there are new ones.
const INTERVAL: Duration = Duration::from_secs(1);
/// The outcomes of all instances are read in every step of this number.
const READ_EVERY: u32 = 10;
/// How long the last write may take after the stop.
const LAST_WRITE: Duration = Duration::from_secs(2);

pub(super) struct SharedHealth {
    pub healths: Arc<ReceiverHealths>,
    /// The receivers that are configured.
    pub receivers: Vec<String>,
    pub telemetry: Arc<Telemetry>,
}

/// Outcomes that were not written stay for the next step.
impl DueWork for SharedHealth {
    /// The steps until the next read.
    type Progress = u32;

    fn begin(&self) -> u32 {
        0
    }

    async fn step(&self, until_read: &mut u32) -> Result<Duration> {
        self.healths.write().await?;
        if *until_read == 0 {
            let show = |receiver: &str, health: &ReceiverHealth| {
                self.telemetry.receiver_state(receiver, health.failing_since.map(|_| health.why.as_str()));
            };
            self.healths.show(&self.receivers, show).await?;
            *until_read = READ_EVERY;
        }
        *until_read -= 1;
        Ok(INTERVAL)
    }

    async fn stopped(&self) {
        // Without this operators miss the last second.
        let _ = tokio::time::timeout(LAST_WRITE, self.healths.write()).await;
    }
}
