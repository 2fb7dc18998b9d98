//! Change-sets: expectations on cells and entries of one partition, and the writes that apply if all of them hold.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::cell_tables::{Index, Table};

/// The expectation or the write of a part of a change-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// Expects a cell to have this value.
    Has(Table),
    /// Expects no such cell.
    Lacks(Table),
    /// Expects an entry to be at this number.
    IsAt(Index),
    /// Expects no such entry.
    IsOff(Index),
    Put(Table),
    Remove(Table),
    /// Adds to the number in a cell.
    Add(Table),
    Enter(Index),
    /// Enters a name that is not in the index; a name in the index keeps its number.
    EnterNew(Index),
    Leave(Index),
}

/// A part of a change-set, on one cell or entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangePart {
    pub what: What,
    pub name: Arc<str>,
    /// For `Has` and `Put`. Shared, because a seal has ten thousand values that would be copied on their way.
    pub value: Arc<[u8]>,
    /// For `IsAt`, `Enter` and `EnterNew`; for `Add`, the summand.
    pub at: i64,
}

impl ChangePart {
    /// The cell or entry, and whether the part only adds to it.
    fn touched(&self) -> (Touched<'_>, bool) {
        let (place, adds) = match self.what {
            What::Has(table) | What::Lacks(table) | What::Put(table) | What::Remove(table) => {
                (TouchedPlace::Of(table), false)
            }
            What::Add(table) => (TouchedPlace::Of(table), true),
            What::IsAt(index)
            | What::IsOff(index)
            | What::Enter(index)
            | What::EnterNew(index)
            | What::Leave(index) => (TouchedPlace::In(index), false),
        };
        ((place, &*self.name), adds)
    }
}

/// Changes of one partition that apply together if all expectations hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeSet {
    pub partition: u16,
    pub parts: Vec<ChangePart>,
}

impl ChangeSet {
    pub fn of(partition: u16) -> ChangeSet {
        ChangeSet { partition, parts: Vec::new() }
    }

    /// Expects a cell to have this value; `None`: to be absent.
    #[must_use]
    pub fn has(self, table: Table, name: &str, value: Option<&[u8]>) -> ChangeSet {
        self.has_stored(table, name, value.map(Arc::from).as_ref())
    }

    /// See [`ChangeSet::has`].
    #[must_use]
    pub(super) fn has_stored(self, table: Table, name: &str, value: Option<&Arc<[u8]>>) -> ChangeSet {
        let what = if value.is_some() { What::Has(table) } else { What::Lacks(table) };
        self.part(what, name, value.cloned().unwrap_or_default(), 0)
    }

    /// Expects an entry to be at this number; `None`: to be absent.
    #[must_use]
    pub fn is_at(self, index: Index, name: &str, at: Option<i64>) -> ChangeSet {
        let what = if at.is_some() { What::IsAt(index) } else { What::IsOff(index) };
        self.part(what, name, Arc::default(), at.unwrap_or_default())
    }

    /// Writes a cell; `None` removes it.
    #[must_use]
    pub fn put(self, table: Table, name: &str, value: Option<&[u8]>) -> ChangeSet {
        let what = if value.is_some() { What::Put(table) } else { What::Remove(table) };
        self.part(what, name, value.map(Arc::from).unwrap_or_default(), 0)
    }

    /// Writes a cell.
    #[must_use]
    pub(super) fn put_stored(self, table: Table, name: &str, value: &Arc<[u8]>) -> ChangeSet {
        self.part(What::Put(table), name, value.clone(), 0)
    }

    /// Adds to the number in a cell. An absent cell, or text that is no number, counts as zero; a cell that becomes
    /// zero is removed. Change-sets that only add to a cell never wait for one another, and expect nothing of it. No
    /// change-set adds to a cell that it also writes.
    #[must_use]
    pub fn add(self, table: Table, name: &str, more: i64) -> ChangeSet {
        self.part(What::Add(table), name, Arc::default(), more)
    }

    /// Enters a name into an index; `None` takes it out.
    #[must_use]
    pub fn enter(self, index: Index, name: &str, at: Option<i64>) -> ChangeSet {
        let what = if at.is_some() { What::Enter(index) } else { What::Leave(index) };
        self.part(what, name, Arc::default(), at.unwrap_or_default())
    }

    /// Enters a name into an index, unless it is there.
    #[must_use]
    pub fn enter_new(self, index: Index, name: &str, at: i64) -> ChangeSet {
        self.part(What::EnterNew(index), name, Arc::default(), at)
    }

    fn part(mut self, what: What, name: &str, value: Arc<[u8]>, at: i64) -> ChangeSet {
        self.parts.push(ChangePart { what, name: name.into(), value, at });
        self
    }

    /// Its expectations and writes, without names and values, and the number of equal ones in a row. Change-sets of
    /// one shape are written together.
    pub(super) fn shape(&self) -> Shape {
        let mut shape = Shape::new();
        for ChangePart { what, .. } in &self.parts {
            match shape.last_mut().filter(|(last, _)| last == what) {
                Some((_, times)) => *times += 1,
                None => shape.push((*what, 1)),
            }
        }
        shape
    }

    /// The cells and entries that the change-set reads or writes, and whether it only adds to them. An expectation
    /// right before the write of the same cell is left out.
    fn touched(&self) -> impl Iterator<Item = (Touched<'_>, bool)> {
        let next = self.parts.iter().skip(1).map(Some).chain([None]);
        self.parts.iter().zip(next).filter_map(|(part, next)| {
            let touched = part.touched();
            let is_repeated = !touched.1 && next.is_some_and(|next| next.touched() == touched);
            (!is_repeated).then_some(touched)
        })
    }
}

/// See [`ChangeSet::shape`].
pub(super) type Shape = Vec<(What, usize)>;

/// Where a cell or an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum TouchedPlace {
    Of(Table),
    In(Index),
}

/// A cell or an entry of a partition.
type Touched<'a> = (TouchedPlace, &'a str);

/// The positions of change-sets, in batches that are written one after the other. No two change-sets of a batch touch
/// the same cell or entry, so all expectations of a batch can be read before its first write. Change-sets that only
/// add to a cell may share a batch.
pub(super) fn batches(sets: &[ChangeSet]) -> Vec<Vec<usize>> {
    if let [_] = sets {
        return vec![vec![0]];
    }
    // For each cell or entry: the first batch after its last write, and after its last addition.
    let mut next: HashMap<(u16, Touched<'_>), [usize; 2], RandomState> = HashMap::default();
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for (at, set) in sets.iter().enumerate() {
        let mut batch = 0;
        for (name, adds) in set.touched() {
            let [written, added] = next.get(&(set.partition, name)).copied().unwrap_or_default();
            batch = batch.max(written).max(if adds { 0 } else { added });
        }
        for (name, adds) in set.touched() {
            let next = &mut next.entry((set.partition, name)).or_default()[usize::from(adds)];
            *next = (*next).max(batch + 1);
        }
        if batch == batches.len() {
            batches.push(Vec::new());
        }
        batches[batch].push(at);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_sets_that_touch_one_cell_are_written_one_after_the_other() {
        let put = |partition, name: &str| ChangeSet::of(partition).put(Table::Flaps, name, Some(b""));
        let enter = |name: &str| ChangeSet::of(0).enter(Index::FlapChecks, name, Some(1));
        let both = put(0, "a").enter(Index::FlapChecks, "b", None);
        let sets = [put(0, "a"), put(1, "a"), put(0, "b"), put(0, "a"), enter("b"), both, put(0, "b")];
        assert_eq!(batches(&sets), [vec![0, 1, 2, 4], vec![3, 6], vec![5]]);
        let add = || ChangeSet::of(0).add(Table::Flaps, "a", 1);
        assert_eq!(batches(&[add(), add(), put(0, "a"), add(), add()]), [vec![0, 1], vec![2], vec![3, 4]]);
        // An addition in an early batch does not hide one in a later batch.
        let late = put(0, "b").add(Table::Flaps, "a", 1);
        let sets = [put(0, "b"), late, add(), put(0, "a")];
        assert_eq!(batches(&sets), [vec![0, 2], vec![1], vec![3]]);
        assert_eq!(batches(&[]), Vec::<Vec<usize>>::new());
    }
}
