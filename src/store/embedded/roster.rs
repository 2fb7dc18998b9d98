//! The roster: one process has the fleet to itself, so leases are in memory and end with the process. The time of the
//! fleet is the time of the machine, and follows its clock by the rule of `clock/steps.rs`.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{EmbeddedEngine, database};
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
    /// The steps of the clock that are on disk.
    written: Steps,
}

impl Instances {
    /// The time of the fleet; `None` before the first renewal.
    fn time(&self, now: Instant) -> Option<Timestamp> {
        Some(self.roster.last? + now.duration_since(self.renewed_at?))
    }
}

impl Leases {
    /// The leases of a new process; `steps`: the steps of the clock so far.
    pub fn begin(steps: Steps) -> Leases {
        let leases = Leases::default();
        {
            let mut instances = leases.instances.lock();
            (instances.roster.steps, instances.written) = (steps, steps);
        }
        leases
    }

    /// The time of the fleet.
    pub fn now(&self) -> Timestamp {
        self.instances.lock().time(monotonic()).unwrap_or_else(Clock::machine)
    }

    /// The steps of the clock.
    pub fn steps(&self) -> Steps {
        self.instances.lock().roster.steps
    }
}

#[async_trait]
impl Roster for EmbeddedEngine {
    async fn renew(&self, instance: &str, lease: Duration, heard: Option<Timestamp>) -> Result<RenewalReply> {
        let (engine_clock, now) = (Clock::machine(), monotonic());
        let (reply, steps, written) = {
            let mut state = self.leases.instances.lock();
            let (expected, passed) = (state.time(now), state.renewed_at.map(|at| now.duration_since(at)));
            state.renewed_at = Some(now);
            let time = EngineTime { clock: engine_clock, passed: passed.unwrap_or_default(), expected };
            let Renewed { now, is_new, first_end, .. } = state.roster.renew(instance, lease, heard, time);
            if is_new {
                self.leases.changed.notify_one();
            }
            let steps = state.roster.steps;
            let ahead = steps.held.map(|step| step.ahead);
            let instances = state.roster.ends.keys().cloned().collect();
            let reply = RenewalReply { now, engine_clock, ahead, instances, is_new, first_end };
            (reply, steps, state.written)
        };
        // A step that a full disk refused is written with a later renewal.
        if steps != written {
            self.writer.write("renew", move |database| database::write_steps(database, steps)).await?;
            self.leases.instances.lock().written = steps;
        }
        Ok(reply)
    }

    fn stepped(&self) -> Duration {
        self.leases.steps().accepted
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
