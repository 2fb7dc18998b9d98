//! Reads of the mirror: every unit, chunk by chunk.
//!
//! A chunk is read under the lock of its partition, which is released before the next one, so that no heartbeat
//! waits for a list of a million units.

use std::ops::Range;
use std::sync::Arc;

use super::filter::{RowFilter, UnitFilter};
use super::partition_table::PartitionTable;
use super::row::{Absence, Row};
use super::{Mirror, row::RowState};
use crate::clock::Timestamp;
use crate::presence::{self, Facts, Hearing, KindRules, Lifecycle, Override, Snapshot, State, Unit};
use crate::store::table::Key;

/// The rows of a chunk, which are read within some tens of microseconds.
const CHUNK_ROWS: usize = 1024;

/// The position of a reader of the mirror, and the units that it selects.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    partition: u16,
    slot: usize,
    filter: UnitFilter,
}

impl Cursor {
    /// A cursor before the first of those units.
    pub fn new(filter: UnitFilter) -> Cursor {
        Cursor { filter, ..Cursor::default() }
    }
}

/// Whether a named unit is in the mirror, and whether a filter selects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameMatch {
    Selected,
    NotSelected,
    /// The mirror has no such unit.
    Unknown,
}

/// One unit of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitView<'a> {
    pub kind: &'a str,
    pub id: &'a str,
    pub state: State,
    /// Its newest heartbeat; `None` if it was never heard.
    pub last_seen: Option<Timestamp>,
    /// Its value of each of [`Mirror::labels`] in a chunk [with values](Chunk::with_values); empty where it has none.
    pub values: Values<'a>,
}

/// Values of labels, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Values<'a> {
    text: &'a str,
    ranges: &'a [Range<usize>],
}

impl<'a> Values<'a> {
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let text = self.text;
        self.ranges.iter().map(move |range| &text[range.clone()])
    }
}

/// Some units of the mirror; the buffer is used again for the next chunk.
#[derive(Default)]
pub struct Chunk {
    /// Ids of units, and values of labels.
    text: String,
    units: Vec<(usize, Range<usize>, State, Option<Timestamp>)>,
    /// Whether values of labels are read too, which costs more than all the rest.
    with_values: bool,
    /// The values of all units, one unit after the other, as ranges of `text`.
    values: Vec<Range<usize>>,
}

impl Chunk {
    /// A chunk that also reads the values of labels.
    pub fn with_values() -> Chunk {
        Chunk { with_values: true, ..Chunk::default() }
    }
}

impl Mirror {
    /// Reads the next units into `chunk`; false if there are none. A unit that stays in the mirror is read exactly
    /// once.
    pub fn read_next(
        &self,
        cursor: &mut Cursor,
        chunk: &mut Chunk,
        hearing: &Hearing,
        now: Timestamp,
    ) -> bool {
        chunk.text.clear();
        chunk.units.clear();
        chunk.values.clear();
        let mut evaluator = self.evaluator(hearing, now);
        self.read_rows(cursor, |rows| {
            let table = rows.table;
            for (slot, row) in rows.selected() {
                let start = chunk.text.len();
                chunk.text.push_str(table.id(row));
                let id = start..chunk.text.len();
                let last_seen = row.state.is_heard().then_some(row.last_seen);
                chunk.units.push((usize::from(row.kind), id, evaluator.state(table, slot, row), last_seen));
                for index in table.labels.iter().filter(|_| chunk.with_values) {
                    let start = chunk.text.len();
                    match index.number_at(slot) {
                        0 => {}
                        number => chunk.text.push_str(&index.value(number)),
                    }
                    chunk.values.push(start..chunk.text.len());
                }
            }
        })
    }

    /// Applies a filter to units of a partition by their names, `<kind>:<unit>`, in order.
    pub fn match_names<'a>(
        &self,
        partition: u16,
        filter: &UnitFilter,
        names: impl Iterator<Item = &'a str>,
    ) -> Vec<NameMatch> {
        let table = self.read(partition);
        let is_there = filter.has_partition(partition);
        let filter = RowFilter::new(filter, self, &table).filter(|_| is_there);
        let find = |name: &str| {
            let (kind, id) = name.split_once(':')?;
            let kind = self.kinds.iter().position(|known| known.as_str() == kind)? as u16;
            table.find(Key::new(&self.hasher, kind, id))
        };
        let match_name = |name| match find(name) {
            None => NameMatch::Unknown,
            Some(slot) => match &filter {
                Some(filter) if filter.matches(&table, slot, &table.rows[slot]) => NameMatch::Selected,
                _ => NameMatch::NotSelected,
            },
        };
        names.map(match_name).collect()
    }

    pub fn units<'a>(&'a self, chunk: &'a Chunk) -> impl Iterator<Item = UnitView<'a>> {
        let labels = chunk.values.len() / chunk.units.len().max(1);
        chunk.units.iter().enumerate().map(move |(number, (kind, id, state, last_seen))| UnitView {
            kind: self.kinds[*kind].as_str(),
            id: &chunk.text[id.clone()],
            state: *state,
            last_seen: *last_seen,
            values: Values {
                text: &chunk.text,
                ranges: &chunk.values[number * labels..(number + 1) * labels],
            },
        })
    }

    pub(super) fn evaluator<'a>(&self, hearing: &'a Hearing, now: Timestamp) -> StateEvaluator<'a> {
        let rules = self.kinds.iter().filter_map(|kind| self.rules.of(kind.as_str())).collect();
        StateEvaluator::new(rules, hearing, now)
    }

    pub(super) fn read_rows(&self, cursor: &mut Cursor, each: impl FnOnce(&LockedRows)) -> bool {
        while usize::from(cursor.partition) < self.tables.len() {
            if cursor.filter.has_partition(cursor.partition) {
                let table = self.read(cursor.partition);
                let end = table.rows.len().min(cursor.slot + CHUNK_ROWS);
                let filter = RowFilter::new(&cursor.filter, self, &table);
                if let Some(filter) = filter.filter(|_| cursor.slot < end) {
                    let slots = cursor.slot..end;
                    each(&LockedRows { partition: cursor.partition, table: &table, slots, filter });
                    cursor.slot = end;
                    return true;
                }
            }
            cursor.partition += 1;
            cursor.slot = 0;
        }
        false
    }
}

/// Some rows of a partition, under its lock.
pub(super) struct LockedRows<'a> {
    pub partition: u16,
    pub table: &'a PartitionTable,
    slots: Range<usize>,
    filter: RowFilter,
}

impl LockedRows<'_> {
    pub fn units(&self) -> impl Iterator<Item = (usize, &Row)> {
        self.table.units_in(self.slots.clone())
    }

    /// The units that the filter of the cursor selects.
    pub fn selected(&self) -> impl Iterator<Item = (usize, &Row)> {
        self.units().filter(|(slot, row)| self.filter.matches(self.table, *slot, row))
    }
}

/// Evaluates the state of rows by the rules of presence: copies each row into a snapshot that is made once.
pub(super) struct StateEvaluator<'a> {
    /// By the number of the kind.
    rules: Vec<Arc<KindRules>>,
    hearing: &'a Hearing,
    now: Timestamp,
    snapshot: Snapshot,
}

impl StateEvaluator<'_> {
    fn new(rules: Vec<Arc<KindRules>>, hearing: &Hearing, now: Timestamp) -> StateEvaluator<'_> {
        let unit: Unit = "any:unit".parse().expect("a constant name");
        StateEvaluator {
            rules,
            hearing,
            now,
            snapshot: Snapshot { unit, alive: None, facts: None, stored: None },
        }
    }

    pub fn state(&mut self, table: &PartitionTable, slot: usize, row: &Row) -> State {
        if row.state.is_offline() {
            return State::Offline;
        }
        let policy = table.policy(row);
        let absence = table.absence(slot);
        // Most rows. Blind time only ever moves a deadline back, so a unit that was heard within its timeout has
        // time left by any ledger.
        if absence == Absence::default() && self.now.since(row.last_seen) <= policy.timeout {
            return if row.state.is_heard() { State::Online } else { State::NeverSeen };
        }
        let facts =
            self.snapshot.facts.get_or_insert_with(|| Facts::new(Lifecycle::Present, Timestamp::ZERO));
        facts.lifecycle = match row.state {
            RowState::NeverSeen => Lifecycle::NeverSeen,
            _ => Lifecycle::Present,
        };
        facts.last_seen = row.last_seen;
        facts.set = Override { timeout: Some(policy.timeout), grace: Some(policy.grace) };
        facts.pause = absence.pause;
        facts.sleep = absence.sleep;
        facts.silent_from = absence.silent_from;
        let rules = &self.rules[usize::from(row.kind)];
        presence::state(&self.snapshot, rules, self.hearing, self.now)
            .expect("only a unit that was removed has none")
    }
}
