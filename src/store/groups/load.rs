//! What a step of a group needs to know, read for many groups at once.

use std::collections::{BTreeMap, HashMap};

use super::member::{GroupVersion, StoredGroup, StoredMember};
use super::names::of_group;
use super::step::{GroupLane, GroupStep};
use super::{StoredGroups, member_cell};
use crate::clock::Timestamp;
use crate::store::documents::{Document, TableValue};
use crate::store::lane::Lane;
use crate::store::{Cell, Index, ReceiverName, Result, Table, partition_of_group};

impl StoredGroups {
    /// The members of these groups, as they are stored.
    pub(super) async fn load_members(
        &self,
        steps: &mut [GroupStep<'_>],
        names: &[(usize, String)],
    ) -> Result<()> {
        let cells = names.iter().map(|(at, name)| member_cell(&steps[*at].key, name, self.partitions()));
        let documents = self.documents.read_cells::<StoredMember>(cells.collect()).await?;
        for ((at, name), document) in names.iter().zip(documents) {
            steps[*at].know(name, document);
        }
        Ok(())
    }

    /// The groups with these keys, as they are stored.
    pub(super) async fn load_groups(&self, keys: &[String]) -> Result<Vec<Document<StoredGroup>>> {
        self.documents.read::<StoredGroup>(keys).await
    }

    pub(super) async fn load_versions(&self, steps: &mut [GroupStep<'_>], of: &[usize]) -> Result<()> {
        let keys: Vec<String> = of.iter().map(|at| steps[*at].key.clone()).collect();
        for (at, version) in of.iter().zip(self.documents.read::<GroupVersion>(&keys).await?) {
            steps[*at].version = Some(version);
        }
        Ok(())
    }

    /// How many silences last in the groups that keep that, and when groups are looked at again.
    pub(super) async fn load_lasting(&self, steps: &mut [GroupStep<'_>]) -> Result<()> {
        let of: Vec<usize> =
            (0..steps.len()).filter(|at| steps[*at].destination.pace.has_lasting()).collect();
        if of.is_empty() {
            return Ok(());
        }
        let ranges: Vec<_> = of.iter().map(|at| of_group(&steps[*at].key, self.partitions())).collect();
        for (at, count) in of.iter().zip(self.documents.count_names(Index::Lasting, &ranges).await?) {
            steps[*at].lasting = count;
        }
        let looks = |at: &&usize| steps[**at].destination.pace.looks_after.is_some();
        let of: Vec<usize> = of.iter().filter(looks).copied().collect();
        let next = self.numbers_of(Index::Reminders, steps, &of).await?;
        for (at, next) in of.into_iter().zip(next) {
            steps[at].reminder = next;
        }
        Ok(())
    }

    async fn numbers_of(
        &self,
        index: Index,
        steps: &[GroupStep<'_>],
        of: &[usize],
    ) -> Result<Vec<Option<Timestamp>>> {
        if of.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<&str> = of.iter().map(|at| steps[*at].key.as_str()).collect();
        self.documents.numbers::<StoredGroup>(index, &keys).await
    }

    /// The lanes of these receivers.
    pub(super) async fn load_lanes(
        &self,
        steps: &mut [GroupStep<'_>],
        of: Vec<(usize, String)>,
    ) -> Result<()> {
        let cell = |(at, receiver): &(usize, String)| {
            let name = steps[*at].key.clone();
            let partition = partition_of_group(&name, self.partitions());
            Cell { table: Table::Lanes(ReceiverName::of(receiver)), partition, name }
        };
        let lanes: Vec<Document<Lane>> = self.documents.read_cells(of.iter().map(cell).collect()).await?;
        let mut waiting: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (place, lane) in lanes.iter().enumerate().filter(|(_, lane)| lane.value.is_some()) {
            waiting.entry(of[place].1.as_str()).or_default().push(place);
            debug_assert_eq!(lane.name, steps[of[place].0].key);
        }
        let mut is_queued: HashMap<usize, bool> = HashMap::new();
        for (receiver, places) in waiting {
            let name =
                |place: &usize| (self.partition(&steps[of[*place].0].key), steps[of[*place].0].key.as_str());
            let names: Vec<(u16, &str)> = places.iter().map(name).collect();
            let at = self.engine.numbers(Index::Queue(ReceiverName::of(receiver)), &names).await?;
            is_queued.extend(places.into_iter().zip(at.into_iter().map(|at| at.is_some())));
        }
        for (place, ((at, receiver), lane)) in of.into_iter().zip(lanes).enumerate() {
            let is_queued = is_queued.get(&place).copied().unwrap_or(true);
            steps[at].lanes.insert(receiver, GroupLane { lane, is_queued });
        }
        Ok(())
    }

    pub(super) fn partition(&self, group: &str) -> u16 {
        partition_of_group(group, self.partitions())
    }

    /// A document that is expected not to be.
    pub(super) fn absent<T: TableValue<Name = String>>(&self, name: &str) -> Document<T> {
        let partition = T::TABLE.partition(name, self.partitions());
        Document::absent(Cell { table: T::TABLE, partition, name: name.to_owned() })
    }
}
