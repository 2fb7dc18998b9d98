//! Change-sets: expectations on cells and entries of one partition, and the writes that apply if all of them hold.

use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Range;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::cell_tables::{Index, Table};

/// The expectation or the write of a part of a change-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// Adds the value to the words of a cell.
    AddWord(Table),
    /// Removes the value from the words of a cell.
    RemoveWord(Table),
    Enter(Index),
    /// Enters a name that is not in the index; a name in the index keeps its number.
    EnterNew(Index),
    Leave(Index),
}

/// A part of a change-set, on one cell or entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangePart<'a> {
    pub what: What,
    pub name: &'a str,
    /// For `Has` and `Put`; for `AddWord` and `RemoveWord`, the word.
    pub value: &'a [u8],
    /// For `IsAt`, `Enter` and `EnterNew`; for `Add`, the summand.
    pub at: i64,
}

impl<'a> ChangePart<'a> {
    /// The cell or entry, and whether the part only adds to it.
    fn touched(&self) -> (Touched<'a>, bool) {
        let (place, adds) = match self.what {
            What::Has(table)
            | What::Lacks(table)
            | What::Put(table)
            | What::Remove(table)
            | What::RemoveWord(table) => (TouchedPlace::Of(table), false),
            What::Add(table) | What::AddWord(table) => (TouchedPlace::Of(table), true),
            What::IsAt(index)
            | What::IsOff(index)
            | What::Enter(index)
            | What::EnterNew(index)
            | What::Leave(index) => (TouchedPlace::In(index), false),
        };
        ((place, self.name), adds)
    }
}

/// A part without its texts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PartSpan {
    what: What,
    name: Range<usize>,
    value: Range<usize>,
    at: i64,
}

/// Changes of one partition that apply together if all expectations hold.
///
/// The names and values of all parts are in two buffers: a storm has a million parts, and an allocation for each text
/// would cost more than everything else about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeSet {
    pub partition: u16,
    parts: Vec<PartSpan>,
    names: String,
    values: Vec<u8>,
}

impl ChangeSet {
    pub fn of(partition: u16) -> ChangeSet {
        ChangeSet { partition, ..ChangeSet::default() }
    }

    /// Expects a cell to have this value; `None`: to be absent.
    #[must_use]
    pub fn has(self, table: Table, name: &str, value: Option<&[u8]>) -> ChangeSet {
        let what = if value.is_some() { What::Has(table) } else { What::Lacks(table) };
        self.with(what, name, value.unwrap_or_default(), 0)
    }

    /// Expects an entry to be at this number; `None`: to be absent.
    #[must_use]
    pub fn is_at(self, index: Index, name: &str, at: Option<i64>) -> ChangeSet {
        let what = if at.is_some() { What::IsAt(index) } else { What::IsOff(index) };
        self.with(what, name, &[], at.unwrap_or_default())
    }

    /// Writes a cell; `None` removes it.
    #[must_use]
    pub fn put(self, table: Table, name: &str, value: Option<&[u8]>) -> ChangeSet {
        let what = if value.is_some() { What::Put(table) } else { What::Remove(table) };
        self.with(what, name, value.unwrap_or_default(), 0)
    }

    /// Writes a cell with the value that `encode` appends to a buffer.
    ///
    /// # Errors
    /// The errors of `encode`.
    pub(super) fn put_encoded<E>(
        mut self,
        table: Table,
        name: &str,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<ChangeSet, E> {
        let from = self.values.len();
        encode(&mut self.values)?;
        let value = from..self.values.len();
        Ok(self.add_part(What::Put(table), name, value, 0))
    }

    /// Adds to the number in a cell. An absent cell, or text that is no number, counts as zero; a cell that becomes
    /// zero is removed. Change-sets that only add to a cell never wait for one another, and expect nothing of it. No
    /// change-set adds to a cell that it also writes.
    #[must_use]
    pub fn add(self, table: Table, name: &str, more: i64) -> ChangeSet {
        self.with(What::Add(table), name, &[], more)
    }

    /// Adds a word to the words in a cell, or removes it; a space separates two words. A cell without words is
    /// removed. Like [`ChangeSet::add`] it expects nothing, and change-sets that only add words do not wait for one
    /// another: the words are in no order.
    #[must_use]
    pub fn word(self, table: Table, name: &str, word: &str, is_in: bool) -> ChangeSet {
        let what = if is_in { What::AddWord(table) } else { What::RemoveWord(table) };
        self.with(what, name, word.as_bytes(), 0)
    }

    /// Enters a name into an index; `None` takes it out.
    #[must_use]
    pub fn enter(self, index: Index, name: &str, at: Option<i64>) -> ChangeSet {
        let what = if at.is_some() { What::Enter(index) } else { What::Leave(index) };
        self.with(what, name, &[], at.unwrap_or_default())
    }

    /// Enters a name into an index, unless it is there.
    #[must_use]
    pub fn enter_new(self, index: Index, name: &str, at: i64) -> ChangeSet {
        self.with(What::EnterNew(index), name, &[], at)
    }

    fn with(mut self, what: What, name: &str, value: &[u8], at: i64) -> ChangeSet {
        let from = self.values.len();
        self.values.extend_from_slice(value);
        let value = from..self.values.len();
        self.add_part(what, name, value, at)
    }

    /// Parts in a row that have one name share its text.
    fn add_part(mut self, what: What, name: &str, value: Range<usize>, at: i64) -> ChangeSet {
        let last = self.parts.last().map(|part| part.name.clone());
        let name = last.filter(|last| self.names[last.clone()] == *name).unwrap_or_else(|| {
            let from = self.names.len();
            self.names.push_str(name);
            from..self.names.len()
        });
        self.parts.push(PartSpan { what, name, value, at });
        self
    }

    /// How many parts it has.
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether it expects and changes nothing.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub fn parts(&self) -> impl Iterator<Item = ChangePart<'_>> {
        self.parts.iter().map(|part| self.shown(part))
    }

    /// The part at this place.
    pub(super) fn part(&self, at: usize) -> ChangePart<'_> {
        self.shown(&self.parts[at])
    }

    fn shown(&self, PartSpan { what, name, value, at }: &PartSpan) -> ChangePart<'_> {
        let (name, value) = (&self.names[name.clone()], &self.values[value.clone()]);
        ChangePart { what: *what, name, value, at: *at }
    }

    fn whats(&self) -> impl Iterator<Item = What> {
        self.parts.iter().map(|part| part.what)
    }

    /// Its expectations and writes, without names and values, and the number of equal ones in a row.
    pub(super) fn shape(&self) -> Shape {
        let mut shape = Shape::new();
        for what in self.whats() {
            match shape.last_mut().filter(|(last, _)| *last == what) {
                Some((_, times)) => *times += 1,
                None => shape.push((what, 1)),
            }
        }
        shape
    }

    /// The cells and entries that the change-set reads or writes, and whether it only adds to them. An expectation
    /// right before the write of the same cell is left out.
    fn touched(&self) -> impl Iterator<Item = (Touched<'_>, bool)> {
        let mut parts = self.parts().peekable();
        std::iter::from_fn(move || {
            loop {
                let touched = parts.next()?.touched();
                if touched.1 || parts.peek().is_none_or(|next| next.touched() != touched) {
                    return Some(touched);
                }
            }
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
    // For the hash of each cell or entry: the first batch after its last write, and after its last addition. Two
    // with one hash count as one: that costs a batch, and nothing else.
    let (hasher, parts) = (RandomState::default(), sets.iter().map(ChangeSet::len).sum());
    let mut next: HashMap<u64, [usize; 2], RandomState> =
        HashMap::with_capacity_and_hasher(parts, RandomState::default());
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut hashes: Vec<(u64, bool)> = Vec::new();
    for (at, set) in sets.iter().enumerate() {
        hashes.clear();
        hashes.extend(set.touched().map(|(name, adds)| (hasher.hash_one((set.partition, name)), adds)));
        let mut batch = 0;
        for (hash, adds) in &hashes {
            let [written, added] = next.get(hash).copied().unwrap_or_default();
            batch = batch.max(written).max(if *adds { 0 } else { added });
        }
        for (hash, adds) in &hashes {
            let next = &mut next.entry(*hash).or_default()[usize::from(*adds)];
            *next = (*next).max(batch + 1);
        }
        if batch == batches.len() {
            batches.push(Vec::new());
        }
        batches[batch].push(at);
    }
    batches
}

/// Sorts the positions of change-sets, so that those of one partition and one shape follow each other, and returns
/// each such row. They are written together, in each partition the shape that comes first in the call before others.
pub(super) fn alike<'a>(sets: &[ChangeSet], places: &'a mut [usize]) -> impl Iterator<Item = &'a [usize]> {
    let (hasher, mut ranks) = (RandomState::default(), HashMap::<u64, usize, RandomState>::default());
    places.sort_by_cached_key(|at| {
        let mut hash = hasher.build_hasher();
        sets[*at].whats().for_each(|what| what.hash(&mut hash));
        let rank = ranks.len();
        (sets[*at].partition, *ranks.entry(hash.finish()).or_insert(rank))
    });
    let is_alike = |a: &ChangeSet, b: &ChangeSet| a.partition == b.partition && a.whats().eq(b.whats());
    places.chunk_by(move |a, b| is_alike(&sets[*a], &sets[*b]))
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
        // A word that is removed waits for those that are added, and these for it.
        let word = |is_in| ChangeSet::of(0).word(Table::AttemptsOf, "a", "0.abc", is_in);
        let sets = [word(true), word(true), word(false), word(true)];
        assert_eq!(batches(&sets), [vec![0, 1], vec![2], vec![3]]);
        // An addition in an early batch does not hide one in a later batch.
        let late = put(0, "b").add(Table::Flaps, "a", 1);
        let sets = [put(0, "b"), late, add(), put(0, "a")];
        assert_eq!(batches(&sets), [vec![0, 2], vec![1], vec![3]]);
        assert_eq!(batches(&[]), Vec::<Vec<usize>>::new());
    }
}
