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
use crate::store::roster::Counts;
use crate::store::roster::LONGEST;
use crate::store::{Attendance, Result, Roster};

/// While the machine's clock is behind, the time of the fleet goes by this much slower, in thousandths.
const SLOWER: u32 = 5;

/// Who is there.
#[derive(Default)]
pub(super) struct Leases {
    kept: Mutex<Kept>,
    /// Rung when somebody came or went.
    changed: Notify,
}

#[derive(Default)]
struct Kept {
    /// The end of each lease.
    ends: BTreeMap<String, Timestamp>,
    /// Where instances are asked for metrics, and until when that holds.
    addresses: BTreeMap<String, (String, Instant)>,
    /// How many units they count, and until when that holds.
    counts: BTreeMap<String, (Counts, Instant)>,
    /// The time of the fleet at the last renewal, and when that was by a clock that nobody sets.
    last: Option<(Instant, Timestamp)>,
}

impl Kept {
    /// The time of the fleet, which never goes back.
    fn now(&mut self, machine: Timestamp, heard: Option<Timestamp>) -> Timestamp {
        let mut now = machine.max(heard.unwrap_or(Timestamp::ZERO));
        if let Some((renewed, then)) = self.last {
            now = now.max(then + renewed.elapsed() * (1000 - SLOWER) / 1000);
        }
        self.last = Some((Instant::now(), now));
        now
    }
}

#[async_trait]
impl Roster for EmbeddedEngine {
    async fn renew(&self, instance: &str, lease: Duration, heard: Option<Timestamp>) -> Result<Attendance> {
        let engine_clock = Clock::machine();
        let mut kept = self.leases.kept.lock().expect("nothing panics under this lock");
        let now = kept.now(engine_clock, heard);
        // A lease longer than any instance asks for is not believed: its partitions would be nobody's.
        kept.ends.retain(|_, end| *end > now && *end <= now + LONGEST.max(lease));
        if kept.ends.insert(instance.to_owned(), now + lease).is_none() {
            self.leases.changed.notify_one();
        }
        let others = kept.ends.iter().filter(|(name, _)| *name != instance);
        let first_end = others.map(|(_, end)| *end).min();
        Ok(Attendance { now, engine_clock, instances: kept.ends.keys().cloned().collect(), first_end })
    }

    async fn resign(&self, instance: &str) -> Result<()> {
        let mut kept = self.leases.kept.lock().expect("nothing panics under this lock");
        kept.ends.remove(instance);
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

    async fn tell_counts(&self, instance: &str, counts: &Counts, holds: Duration) -> Result<()> {
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
