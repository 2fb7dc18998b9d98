//! The live instances, and the clock that they share.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Cell, Cells, ChangeSet, Result, Table};
use crate::clock::Timestamp;

/// The counts of an instance's own units, by the name of the kind.
pub type KindCounts = BTreeMap<String, KindCount>;

/// The count of an instance's own units of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindCount {
    pub units: u64,
    /// The shortest timeout that any of the units declared or was given (ms).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortest_ms: Option<u64>,
}

/// The answer to the renewal of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewalReply {
    /// The time of the fleet: the engine's clock, except after that clock went back. The time of the fleet never goes
    /// back.
    pub now: Timestamp,
    pub engine_clock: Timestamp,
    /// How far the engine's clock is ahead of the time of the fleet, because the clock stepped and the step is not
    /// accepted yet: see `clock/steps.rs`.
    pub ahead: Option<Duration>,
    /// The instances with a valid lease, in order, the caller included.
    pub instances: Vec<String>,
    /// The caller's lease was new or had ended: other instances may have taken its partitions meanwhile.
    pub is_new: bool,
    /// When the first lease of another instance ends.
    pub first_end: Option<Timestamp>,
}

/// The live instances, and the clock that they share.
#[async_trait]
pub trait Roster: Cells {
    /// Takes or renews the lease of an instance. The other instances are notified of a new lease.
    ///
    /// Leases end by the engine's clock, so that all instances agree on the valid leases. If that clock goes back,
    /// the time of the fleet continues from its last value; it is never before `heard`, up to when Rollcall has
    /// heard. Time in which no instance could renew, because the engine stood still, counts for no lease.
    async fn renew(&self, instance: &str, lease: Duration, heard: Option<Timestamp>) -> Result<RenewalReply>;

    /// Gives up the lease of an instance, and notifies the other instances.
    async fn resign(&self, instance: &str) -> Result<()>;

    /// The sum of the accepted steps of the clock, at the last renewal: see `clock/steps.rs`.
    fn stepped(&self) -> Duration;

    /// Ends when an instance starts or stops. The notification may be lost, so a caller also renews from time to
    /// time.
    async fn changed(&self);
}

/// The announcements of instances about themselves. An announcement is valid for as long as its instance has a lease.
impl<'a> dyn Roster + 'a {
    /// Announces the address of an instance for metrics.
    pub async fn announce(&self, instance: &str, address: &str) -> Result<()> {
        self.put(&[(Table::Addresses, instance)], Some(address.as_bytes())).await
    }

    /// The addresses of instances for metrics, in order; `None` for an instance without one.
    pub async fn addresses(&self, instances: &[String]) -> Result<Vec<Option<String>>> {
        let stored = self.announced(Table::Addresses, instances).await?;
        Ok(stored.into_iter().map(|address| String::from_utf8(address?).ok()).collect())
    }

    /// Announces the counts of an instance's own units.
    pub async fn announce_counts(&self, instance: &str, counts: &KindCounts) -> Result<()> {
        let text = serde_json::to_vec(counts).expect("names and numbers are always JSON");
        self.put(&[(Table::InstanceCounts, instance)], Some(&text)).await
    }

    /// The counts of instances, in order; none of an instance that has announced none, or whose counts cannot be read.
    pub async fn counts(&self, instances: &[String]) -> Result<Vec<KindCounts>> {
        let stored = self.announced(Table::InstanceCounts, instances).await?;
        let counts = |text: Option<Vec<u8>>| serde_json::from_slice(&text?).ok();
        Ok(stored.into_iter().map(|text| counts(text).unwrap_or_default()).collect())
    }

    /// Removes the announcements of all instances but these.
    pub async fn forget_all_but(&self, instances: &[String]) -> Result<()> {
        let mut gone = Vec::new();
        for table in [Table::Addresses, Table::InstanceCounts] {
            let names = self.all_cells(table, self.partitions()).await?.into_keys();
            gone.extend(names.filter(|name| !instances.contains(name)).map(|name| (table, name)));
        }
        let gone: Vec<(Table, &str)> = gone.iter().map(|(table, name)| (*table, name.as_str())).collect();
        self.put(&gone, None).await
    }

    async fn announced(&self, table: Table, instances: &[String]) -> Result<Vec<Option<Vec<u8>>>> {
        let cell = |name: &String| Cell { table, partition: self.partitions(), name: name.clone() };
        self.read_cells(&instances.iter().map(cell).collect::<Vec<_>>()).await
    }

    async fn put(&self, cells: &[(Table, &str)], value: Option<&[u8]>) -> Result<()> {
        let put = |set: ChangeSet, (table, name): &(Table, &str)| set.put(*table, name, value);
        let set = cells.iter().fold(ChangeSet::of(self.partitions()), put);
        self.write_cells(&[set]).await?;
        Ok(())
    }
}
