//! The roster: one process has the fleet to itself, so leases are in memory and end with the process. The time of the
//! fleet is the time of the machine, and follows its clock by the rule of `clock/steps.rs`.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::Notify;

use super::EmbeddedEngine;
use crate::clock::{Clock, Steps, Timestamp, monotonic};
use crate::presence::{EngineTime, Renewed, RosterState};
use crate::store::{RenewalReply, Result, Roster};

/// The leases of instances.
#[derive(Default)]
pub(super) struct Leases {
    instances: Mutex<Instances>,
    /// Notified when a lease begins or ends.
    changed: Notify,
}

#[derive(Default)]
struct Instances {
    roster: RosterState,
    /// The last renewal, by a clock that is never set.
    renewed_at: Option<Instant>,
}

impl Instances {
    /// The time of the fleet; `None` before the first renewal.
    fn time(&self, now: Instant) -> Option<Timestamp> {
        Some(self.roster.last? + now.duration_since(self.renewed_at?))
    }
}

impl Leases {
    /// The leases of a new process; `accepted`: the sum of the accepted steps of the clock so far.
    pub fn begin(accepted: Duration) -> Leases {
        let leases = Leases::default();
        leases.instances.lock().roster.steps.accepted = accepted;
        leases
    }

    /// The time of the fleet.
    pub fn now(&self) -> Timestamp {
        self.instances.lock().time(monotonic()).unwrap_or_else(Clock::machine)
    }

    /// The sum of the accepted steps of the clock.
    pub fn stepped(&self) -> Duration {
        self.instances.lock().roster.steps.accepted
    }
}

#[async_trait]
impl Roster for EmbeddedEngine {
    async fn renew(&self, instance: &str, lease: Duration, heard: Option<Timestamp>) -> Result<RenewalReply> {
        let (engine_clock, now) = (Clock::machine(), monotonic());
        let (reply, accepted) = {
            let mut state = self.leases.instances.lock();
            let (expected, passed) = (state.time(now), state.renewed_at.map(|at| now.duration_since(at)));
            state.renewed_at = Some(now);
            let before = state.roster.steps.accepted;
            let time = EngineTime { clock: engine_clock, passed: passed.unwrap_or_default(), expected };
            let Renewed { now, is_new, first_end, .. } = state.roster.renew(instance, lease, heard, time);
            if is_new {
                self.leases.changed.notify_one();
            }
            let Steps { held, accepted } = state.roster.steps;
            let ahead = held.map(|step| step.ahead);
            let instances = state.roster.ends.keys().cloned().collect();
            let reply = RenewalReply { now, engine_clock, ahead, instances, is_new, first_end };
            (reply, (accepted != before).then_some(accepted))
        };
        if let Some(accepted) = accepted {
            let ms = accepted.as_millis() as i64;
            let write = move |database: &Connection| {
                database.execute("INSERT OR REPLACE INTO meta VALUES('stepped', ?)", [ms])?;
                Ok(())
            };
            self.writer.write("renew", write).await?;
        }
        Ok(reply)
    }

    fn stepped(&self) -> Duration {
        self.leases.stepped()
    }

    async fn resign(&self, instance: &str) -> Result<()> {
        let mut state = self.leases.instances.lock();
        state.roster.ends.remove(instance);
        self.leases.changed.notify_one();
        Ok(())
    }

    async fn changed(&self) {
        self.leases.changed.notified().await;
    }
}
