//! The units that a reader of the mirror selects.

use super::Mirror;
use super::partition_table::PartitionTable;
use super::row::Row;
use crate::presence::Kind;

/// One of several equal shards of the fleet. A partition, and so a unit, stays in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetShard {
    /// From 0.
    pub number: u16,
    /// How many shards there are.
    pub of: u16,
}

/// The conditions that a unit meets to be selected; the default selects every unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitFilter {
    pub shard: Option<FleetShard>,
    pub kind: Option<Kind>,
    /// A label and its value; the label is one of [`Mirror::labels`].
    pub label: Option<(String, String)>,
    /// Only units with an open record.
    pub offline: bool,
}

impl UnitFilter {
    /// Whether units of that partition may be selected.
    pub fn has_partition(&self, partition: u16) -> bool {
        self.shard.is_none_or(|shard| partition % shard.of.max(1) == shard.number)
    }
}

/// A [`UnitFilter`] in the numbers of one partition.
pub(super) struct RowFilter {
    kind: Option<u16>,
    /// The index of the label, and the number of its value.
    label: Option<(usize, u16)>,
    offline: bool,
}

impl RowFilter {
    /// `None`: no unit of this partition is selected.
    pub fn new(filter: &UnitFilter, mirror: &Mirror, table: &PartitionTable) -> Option<RowFilter> {
        let kind = match &filter.kind {
            Some(kind) => Some(*mirror.numbers.get(kind)?),
            None => None,
        };
        let label = match &filter.label {
            Some((label, value)) => {
                let index = table.labels.iter().position(|index| index.label() == label)?;
                Some((index, table.labels[index].number_of(value)?))
            }
            None => None,
        };
        Some(RowFilter { kind, label, offline: filter.offline })
    }

    /// Whether the unit in that slot is selected.
    pub fn matches(&self, table: &PartitionTable, slot: usize, row: &Row) -> bool {
        self.kind.is_none_or(|kind| kind == row.kind)
            && (!self.offline || row.state.is_offline())
            && self.label.is_none_or(|(index, number)| table.labels[index].number_at(slot) == number)
    }
}

impl Mirror {
    /// Whether the label has more values than the mirror tells apart: a filter by it may miss units.
    pub fn has_too_many_values(&self, label: &str) -> bool {
        let is_full = |table: &PartitionTable| {
            table.labels.iter().any(|index| index.label() == label && index.is_full())
        };
        self.kept().any(|partition| is_full(&self.read(partition)))
    }
}
