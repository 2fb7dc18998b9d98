//! The roster: one process has the fleet to itself, so leases are kept in memory and end with it. The time of the fleet
//! is the time of the machine, and follows its clock by the rule of `clock/steps.rs`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::EmbeddedEngine;
use crate::clock::{Clock, Steps, Timestamp};
use crate::presence::{EngineTime, Renewed, RosterState};
use crate::store::roster::KindCounts;
use crate::store::{RenewalReply, Result, Roster};

/// The leases, addresses and counts of instances.
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
    /// The addresses for metrics, and until when they hold.
    addresses: BTreeMap<String, (String, Instant)>,
    /// The counted units, and until when the counts hold.
    counts: BTreeMap<String, (KindCounts, Instant)>,
}

impl Instances {
    /// The time of the fleet; `None` before the first renewal.
    fn time(&self) -> Option<Timestamp> {
        Some(self.roster.last? + self.renewed_at?.elapsed())
    }
}

impl Leases {
    /// The leases of a process that begins; `accepted`: the sum of the steps of the clock until now.
    pub fn begin(accepted: Duration) -> Leases {
        let leases = Leases::default();
        leases.lock().roster.steps.accepted = accepted;
        leases
    }

    /// The time of the fleet.
    pub fn now(&self) -> Timestamp {
        self.lock().time().unwrap_or_else(Clock::machine)
    }

    /// The sum of the steps of the clock.
    pub fn stepped(&self) -> Duration {
        self.lock().roster.steps.accepted
    }

    fn lock(&self) -> MutexGuard<'_, Instances> {
        self.instances.lock().expect("nothing panics under this lock")
    }
}

#[async_trait]
impl Roster for EmbeddedEngine {
    async fn renew(&self, instance: &str, lease: Duration, heard: Option<Timestamp>) -> Result<RenewalReply> {
        let engine_clock = Clock::machine();
        let (reply, accepted) = {
            let mut state = self.leases.lock();
            let (expected, passed) = (state.time(), state.renewed_at.map(|at| at.elapsed()));
            state.renewed_at = Some(Instant::now());
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
        let mut state = self.leases.lock();
        state.roster.ends.remove(instance);
        state.addresses.remove(instance);
        state.counts.remove(instance);
        self.leases.changed.notify_one();
        Ok(())
    }

    async fn announce(&self, instance: &str, address: &str, lease: Duration) -> Result<()> {
        let entry = (address.to_owned(), Instant::now() + lease);
        let mut state = self.leases.lock();
        state.addresses.insert(instance.to_owned(), entry);
        Ok(())
    }

    async fn addresses(&self, instances: &[String]) -> Result<Vec<Option<String>>> {
        let mut state = self.leases.lock();
        state.addresses.retain(|_, (_, until)| *until > Instant::now());
        let address = |instance: &String| state.addresses.get(instance).map(|(address, _)| address.clone());
        Ok(instances.iter().map(address).collect())
    }

    async fn announce_counts(&self, instance: &str, counts: &KindCounts, holds: Duration) -> Result<()> {
        let entry = (counts.clone(), Instant::now() + holds);
        let mut state = self.leases.lock();
        state.counts.insert(instance.to_owned(), entry);
        Ok(())
    }

    async fn counts(&self, instances: &[String]) -> Result<Vec<KindCounts>> {
        let mut state = self.leases.lock();
        state.counts.retain(|_, (_, until)| *until > Instant::now());
        Ok(instances
            .iter()
            .filter_map(|name| state.counts.get(name).map(|(counts, _)| counts.clone()))
            .collect())
    }

    async fn changed(&self) {
        self.leases.changed.notified().await;
    }
}
