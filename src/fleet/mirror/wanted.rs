//! Which units a reader of the mirror wants to see.

use super::Mirror;
use super::row::Row;
use super::shard::Shard;
use crate::presence::Kind;

/// One of several parts of equal right that the partitions fall into; a unit stays in its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which, from 0.
    pub number: u16,
    /// Of how many.
    pub of: u16,
}

/// What units have to be like; everything, if nothing is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// In this part.
    pub part: Option<Part>,
    /// Of this kind.
    pub kind: Option<Kind>,
    /// With this value of a label, which has to be one of [`Mirror::labels`].
    pub label: Option<(String, String)>,
    /// With an open record.
    pub offline: bool,
}

impl Wanted {
    /// Whether units of that partition may be wanted.
    pub fn takes(&self, partition: u16) -> bool {
        self.part.is_none_or(|part| partition % part.of.max(1) == part.number)
    }
}

/// The same, in the numbers of one partition.
pub(super) struct Filter {
    kind: Option<u16>,
    /// The place of the label, and the number of its value.
    label: Option<(usize, u16)>,
    offline: bool,
}

impl Filter {
    /// `None`: no unit of this partition is wanted.
    pub fn new(wanted: &Wanted, mirror: &Mirror, shard: &Shard) -> Option<Filter> {
        let kind = match &wanted.kind {
            Some(kind) => Some(*mirror.numbers.get(kind)?),
            None => None,
        };
        let label = match &wanted.label {
            Some((label, value)) => {
                let place = shard.tags.iter().position(|tags| tags.label() == label)?;
                Some((place, shard.tags[place].number_of(value)?))
            }
            None => None,
        };
        Some(Filter { kind, label, offline: wanted.offline })
    }

    /// Whether the unit at that place is wanted.
    pub fn matches(&self, shard: &Shard, place: usize, row: &Row) -> bool {
        self.kind.is_none_or(|kind| kind == row.kind)
            && (!self.offline || row.state.is_offline())
            && self.label.is_none_or(|(at, number)| shard.tags[at].number_at(place) == number)
    }
}

impl Mirror {
    /// Whether a filter by that label may miss units, because the label has too many values to tell
    /// them all apart.
    pub fn is_vague(&self, label: &str) -> bool {
        let is_full = |shard: &Shard| shard.tags.iter().any(|tags| tags.label() == label && tags.is_full());
        self.kept().any(|partition| is_full(&self.read(partition)))
    }
}
