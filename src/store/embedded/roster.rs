//! The roster: one process has the fleet to itself, so leases are kept in memory and end with it. The
//! time is that of the machine, and goes on where its clock went back.

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
use crate::store::{Attendance, Result, Roster};

/// The leases of instances, and what they tell of themselves.
#[derive(Default)]
pub(super) struct Leases {
    kept: Mutex<Kept>,
    /// Notified when an instance came or went.
    changed: Notify,
}

#[derive(Default)]
struct Kept {
    roster: RosterState,
    /// When a lease was renewed last, by a clock that is never set.
    renewed_at: Option<Instant>,
    /// Where instances are asked for metrics, and until when that holds.
    addresses: BTreeMap<String, (String, Instant)>,
    /// How many units they count, and until when that holds.
    counts: BTreeMap<String, (Counts, Instant)>,
}

#[async_trait]
impl Roster for EmbeddedEngine {
    async fn renew(&self, instance: &str, lease: Duration, heard: Option<Timestamp>) -> Result<Attendance> {
        let engine_clock = Clock::machine();
        let mut kept = self.leases.kept.lock().expect("nothing panics under this lock");
        let passed = kept.renewed_at.map(|at| at.elapsed()).unwrap_or_default();
        kept.renewed_at = Some(Instant::now());
        let Renewed { now, is_new, first_end, .. } =
            kept.roster.renew(instance, lease, heard, engine_clock, passed);
        if is_new {
            self.leases.changed.notify_one();
        }
        let instances = kept.roster.ends.keys().cloned().collect();
        Ok(Attendance { now, engine_clock, instances, first_end })
    }

    async fn resign(&self, instance: &str) -> Result<()> {
        let mut kept = self.leases.kept.lock().expect("nothing panics under this lock");
        kept.roster.ends.remove(instance);
        kept.addresses.remove(instance);
        kept.counts.remove(instance);
        self.leases.changed.notify_one();
        Ok(())
    }

    async fn announce(&self, instance: &str, address: &str, lease: Duration) -> Result<()> {
        let said = (address.to_owned(), Instant::now() + lease);
        let mut kept = self.leases.kept.lock().expect("nothing panics under this lock");
        kept.addresses.insert(instance.to_owned(), said);
        Ok(())
    }

    async fn addresses(&self, instances: &[String]) -> Result<Vec<Option<String>>> {
        let mut kept = self.leases.kept.lock().expect("nothing panics under this lock");
        kept.addresses.retain(|_, (_, until)| *until > Instant::now());
        let address = |instance: &String| kept.addresses.get(instance).map(|(address, _)| address.clone());
        Ok(instances.iter().map(address).collect())
    }

    async fn announce_counts(&self, instance: &str, counts: &Counts, holds: Duration) -> Result<()> {
        let said = (counts.clone(), Instant::now() + holds);
        let mut kept = self.leases.kept.lock().expect("nothing panics under this lock");
        kept.counts.insert(instance.to_owned(), said);
        Ok(())
    }

    async fn counts(&self, instances: &[String]) -> Result<Vec<Counts>> {
        let mut kept = self.leases.kept.lock().expect("nothing panics under this lock");
        kept.counts.retain(|_, (_, until)| *until > Instant::now());
        Ok(instances
            .iter()
            .filter_map(|name| kept.counts.get(name).map(|(counts, _)| counts.clone()))
            .collect())
    }

    async fn changed(&self) {
        self.leases.changed.notified().await;
    }
}
