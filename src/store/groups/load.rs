//! Reads the state that the steps of groups need, for many groups at once.

use super::member::{GroupVersion, StoredGroup, StoredMember};
use super::names::of_group;
use super::step::GroupStep;
use super::{StoredGroups, member_cell};
use crate::store::documents::{Document, TableValue};
use crate::store::lane::Lane;
use crate::store::{Cell, Index, Result, partition_of_group};

/// The number of members that are read at once.
const MEMBERS_READ: usize = 2000;

impl StoredGroups {
    /// Reads the members of these groups in parts: memory has room for ten thousand members, but not for their stored
    /// texts as well.
    pub(super) async fn load_members(
        &self,
        steps: &mut [GroupStep<'_>],
        names: &[(usize, String)],
    ) -> Result<()> {
        for names in names.chunks(MEMBERS_READ) {
            let cell = |(at, name): &(usize, String)| member_cell(steps[*at].key(), name, self.partitions());
            let documents =
                self.documents.read_cells::<StoredMember>(names.iter().map(cell).collect()).await?;
            for ((at, name), document) in names.iter().zip(documents) {
                steps[*at].know(name, document);
            }
        }
        Ok(())
    }

    pub(super) async fn load_versions(&self, steps: &mut [GroupStep<'_>], of: &[usize]) -> Result<()> {
        let keys: Vec<String> = of.iter().map(|at| steps[*at].key().to_owned()).collect();
        for (at, version) in of.iter().zip(self.documents.read::<GroupVersion>(&keys).await?) {
            steps[*at].version = Some(version);
        }
        Ok(())
    }

    /// Reads the number of lasting silences of the groups that store them, and the next checks of the groups.
    pub(super) async fn load_lasting(&self, steps: &mut [GroupStep<'_>]) -> Result<()> {
        let of: Vec<usize> =
            (0..steps.len()).filter(|at| steps[*at].destination.pace.has_lasting()).collect();
        if of.is_empty() {
            return Ok(());
        }
        let ranges: Vec<_> = of.iter().map(|at| of_group(steps[*at].key(), self.partitions())).collect();
        for (at, count) in of.iter().zip(self.documents.count_names(Index::Lasting, &ranges).await?) {
            steps[*at].lasting = count;
        }
        let looks = |at: &&usize| steps[**at].destination.pace.looks_after.is_some();
        let of: Vec<usize> = of.iter().filter(looks).copied().collect();
        if of.is_empty() {
            return Ok(());
        }
        let keys: Vec<&str> = of.iter().map(|at| steps[*at].key()).collect();
        let next = self.documents.numbers::<StoredGroup>(Index::Reminders, &keys).await?;
        for (at, next) in of.into_iter().zip(next) {
            steps[at].reminder = next;
        }
        Ok(())
    }

    /// Reads the lanes of these receivers.
    pub(super) async fn load_lanes(
        &self,
        steps: &mut [GroupStep<'_>],
        of: Vec<(usize, String)>,
    ) -> Result<()> {
        let cell = |(at, receiver): &(usize, String)| {
            let key = steps[*at].key();
            Lane::cell(receiver, self.partition(key), key)
        };
        let lanes = self.documents.read_cells(of.iter().map(cell).collect()).await?;
        for ((at, receiver), lane) in of.into_iter().zip(lanes) {
            steps[at].lanes.insert(receiver, lane);
        }
        Ok(())
    }

    pub(super) fn partition(&self, group: &str) -> u16 {
        partition_of_group(group, self.partitions())
    }

    /// A document that is expected to be absent.
    pub(super) fn absent<T: TableValue<Name = String>>(&self, name: &str) -> Document<T> {
        let partition = T::TABLE.partition(name, self.partitions());
        Document::absent(Cell { table: T::TABLE, partition, name: name.to_owned() })
    }
}
