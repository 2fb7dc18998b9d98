//! The roster: one process has the fleet to itself, so leases are kept in memory and end with it. The
//! time is that of the machine, and never goes back when its clock does.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::EmbeddedEngine;
use crate::clock::{Clock, Timestamp};
use crate::presence::{Renewed, RosterState};
use crate::store::roster::Counts;
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
    counts: BTreeMap<String, (Counts, Instant)>,
}

#[async_trait]
impl Roster for EmbeddedEngine {
    async fn renew(&self, instance: &str, lease: Duration, heard: Option<Timestamp>) -> Result<RenewalReply> {
        let engine_clock = Clock::machine();
        let mut state = self.leases.instances.lock().expect("nothing panics under this lock");
        let passed = state.renewed_at.map(|at| at.elapsed()).unwrap_or_default();
        state.renewed_at = Some(Instant::now());
        let Renewed { now, is_new, first_end, .. } =
            state.roster.renew(instance, lease, heard, engine_clock, passed);
        if is_new {
            self.leases.changed.notify_one();
        }
        let instances = state.roster.ends.keys().cloned().collect();
        Ok(RenewalReply { now, engine_clock, instances, is_new, first_end })
    }

    async fn resign(&self, instance: &str) -> Result<()> {
        let mut state = self.leases.instances.lock().expect("nothing panics under this lock");
        state.roster.ends.remove(instance);
        state.addresses.remove(instance);
        state.counts.remove(instance);
        self.leases.changed.notify_one();
        Ok(())
    }

    async fn announce(&self, instance: &str, address: &str, lease: Duration) -> Result<()> {
        let entry = (address.to_owned(), Instant::now() + lease);
        let mut state = self.leases.instances.lock().expect("nothing panics under this lock");
        state.addresses.insert(instance.to_owned(), entry);
        Ok(())
    }

    async fn addresses(&self, instances: &[String]) -> Result<Vec<Option<String>>> {
        let mut state = self.leases.instances.lock().expect("nothing panics under this lock");
        state.addresses.retain(|_, (_, until)| *until > Instant::now());
        let address = |instance: &String| state.addresses.get(instance).map(|(address, _)| address.clone());
        Ok(instances.iter().map(address).collect())
    }

    async fn announce_counts(&self, instance: &str, counts: &Counts, holds: Duration) -> Result<()> {
        let entry = (counts.clone(), Instant::now() + holds);
        let mut state = self.leases.instances.lock().expect("nothing panics under this lock");
        state.counts.insert(instance.to_owned(), entry);
        Ok(())
    }

    async fn counts(&self, instances: &[String]) -> Result<Vec<Counts>> {
        let mut state = self.leases.instances.lock().expect("nothing panics under this lock");
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
