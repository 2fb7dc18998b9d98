//! The units that a reader of the mirror selects.

use super::Mirror;
use crate::clock::Timestamp;
use crate::presence::Kind;
use crate::store::table::{UnitRow, UnitTable};

/// One of several equal shards of the fleet. A partition, and so a unit, stays in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetShard {
    /// From 0.
    pub number: u16,
    /// How many shards there are.
    pub of: u16,
}

/// Whether units that are archived are selected: see
/// [`KindRules::is_archived`](crate::presence::KindRules::is_archived).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Archive {
    /// Archived units are selected like all others.
    #[default]
    Included,
    /// Units that are archived at that moment are left out.
    LeftOut(Timestamp),
    /// Only units that are archived at that moment are selected.
    Only(Timestamp),
}

/// By the number of the kind: up to which deadline its units are archived.
pub(super) struct ArchiveLimits(Vec<Option<Timestamp>>);

impl ArchiveLimits {
    /// `None`: no kind archives units.
    pub fn new(mirror: &Mirror, now: Timestamp) -> Option<ArchiveLimits> {
        let limit = |kind: &Kind| mirror.rules.of(kind.as_str())?.archives_before(now);
        let limits = mirror.by_number(limit);
        limits.iter().any(Option::is_some).then_some(ArchiveLimits(limits))
    }

    /// Whether the unit in that slot is archived.
    pub fn has(&self, table: &UnitTable, slot: usize, row: &UnitRow) -> bool {
        row.state.is_offline()
            && self.0[usize::from(row.kind)]
                .is_some_and(|limit| table.offline_since(slot).is_some_and(|since| since <= limit))
    }
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
    pub archive: Archive,
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
    /// Whether units within these limits are selected, or all others.
    archive: Option<(bool, ArchiveLimits)>,
}

impl RowFilter {
    /// `None`: no unit of this partition is selected.
    pub fn new(filter: &UnitFilter, mirror: &Mirror, table: &UnitTable) -> Option<RowFilter> {
        let kind = match &filter.kind {
            Some(kind) => Some(*mirror.numbers.get(kind)?),
            None => None,
        };
        let label = match &filter.label {
            Some((label, value)) => {
                let index = table.labels().iter().position(|index| index.label() == label)?;
                Some((index, table.labels()[index].number_of(value)?))
            }
            None => None,
        };
        let archive = match filter.archive {
            Archive::Included => None,
            Archive::LeftOut(now) => ArchiveLimits::new(mirror, now).map(|limits| (false, limits)),
            Archive::Only(now) => Some((true, ArchiveLimits::new(mirror, now)?)),
        };
        Some(RowFilter { kind, label, offline: filter.offline, archive })
    }

    /// Whether the unit in that slot is selected.
    pub fn matches(&self, table: &UnitTable, slot: usize, row: &UnitRow) -> bool {
        self.kind.is_none_or(|kind| kind == row.kind)
            && (!self.offline || row.state.is_offline())
            && self.label.is_none_or(|(index, number)| table.labels()[index].number_at(slot) == number)
            && self.archive.as_ref().is_none_or(|(wanted, limits)| limits.has(table, slot, row) == *wanted)
    }
}

impl Mirror {
    /// Whether the label has more values than the mirror tells apart: a filter by it may miss units.
    pub fn has_too_many_values(&self, label: &str) -> bool {
        let is_full =
            |table: &UnitTable| table.labels().iter().any(|index| index.label() == label && index.is_full());
        self.kept().any(|partition| is_full(&self.read(partition)))
    }
}
