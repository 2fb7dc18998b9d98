//! Groups: transitions that share a notification wait here until their group is sealed.
//!
//! Everything is a cell or an entry of an index, in the partition of the group. A caller reads a group, decides by
//! the rules of `presence/grouping.rs`, and writes the change if the group is unchanged; otherwise it reads and
//! decides again. Joining and sealing are the same step: a group that is due at once is sealed as transitions join.

use std::sync::Arc;

use super::{Cell, Cells, Documents, EngineError, Index, Result, Table, UnitStore, partition_of_group};
use crate::clock::Timestamp;

mod join;
mod load;
mod member;
mod members;
mod names;
mod remind;
mod reminding;
mod reschedule;
mod seal;
mod sealed;
mod step;
mod tidy;

pub use join::{Capacity, Join, JoinResult};
use member::StoredGroup;
pub use members::NotifiedSilence;
use names::member_name;

pub trait GroupEngine: Cells + UnitStore {}

impl<T: Cells + UnitStore> GroupEngine for T {}

/// The groups of a fleet. Cheap to clone.
#[derive(Clone)]
pub struct StoredGroups {
    engine: Arc<dyn GroupEngine>,
    documents: Documents,
}

impl StoredGroups {
    pub fn new(engine: Arc<dyn GroupEngine>) -> StoredGroups {
        StoredGroups { documents: Documents::new(engine.clone()), engine }
    }

    pub fn partitions(&self) -> u16 {
        self.engine.partitions()
    }

    /// When the next group of these partitions is due.
    pub async fn first_seal(&self, partitions: &[u16]) -> Result<Option<Timestamp>> {
        self.documents.first(Index::GroupsDue, partitions).await
    }

    /// When each of these groups, by key, is due; `None`: no member waits in it.
    pub async fn groups_due(&self, groups: &[String]) -> Result<Vec<Option<Timestamp>>> {
        let names: Vec<&str> = groups.iter().map(String::as_str).collect();
        self.documents.numbers::<StoredGroup>(Index::GroupsDue, &names).await
    }

    /// When a notification of each of these groups, by key, was sealed last; `None`: not for long, or never.
    pub async fn last_sealed(&self, groups: &[String]) -> Result<Vec<Option<Timestamp>>> {
        let groups = self.documents.read::<StoredGroup>(groups).await?;
        Ok(groups.iter().map(|group| group.value.as_ref().and_then(StoredGroup::sealed)).collect())
    }

    /// The next check of a group of these partitions for a reminder or an escalation.
    pub async fn first_reminder(&self, partitions: &[u16]) -> Result<Option<Timestamp>> {
        self.documents.first(Index::Reminders, partitions).await
    }
}

/// The cell of a member.
fn member_cell(group: &str, member: &str, partitions: u16) -> Cell {
    let (partition, name) = (partition_of_group(group, partitions), member_name(group, member));
    Cell { table: Table::Members, partition, name }
}

fn contended(group: &str) -> EngineError {
    EngineError::contended(format_args!("the group {group}"))
}
