//! Reads of the mirror: every unit, chunk by chunk, and counts.
//!
//! A chunk is read under the lock of its partition, which is released before the next one, so that no heartbeat
//! waits for a list of a million units.

use std::ops::Range;
use std::time::Duration;

use super::filter::{FleetShard, RowFilter, UnitFilter};
use super::label_counter::{CountsByLabel, LabelCounter, StateCounts, TOP};
use super::partition_table::PartitionTable;
use super::row::{Absence, Row};
use super::{Mirror, row::RowState};
use crate::clock::Timestamp;
use crate::presence::{self, Facts, Hearing, Kind, KindRules, Override, Snapshot, Standing, State, Unit};
use crate::store::table::Key;

/// The rows of a chunk, which are read within some tens of microseconds.
const CHUNK_ROWS: usize = 1024;

/// The threads that count the units of a large fleet; each has a shard of it.
const COUNTERS: u16 = 4;

/// Fewer units are counted sooner than a thread is started.
const FEW: usize = 100_000;

/// The windows within which units are counted as seen: from a minute to a week.
pub const WINDOWS: [Duration; 8] = [
    Duration::from_secs(60),
    Duration::from_secs(5 * 60),
    Duration::from_secs(15 * 60),
    Duration::from_secs(3600),
    Duration::from_secs(6 * 3600),
    Duration::from_secs(24 * 3600),
    Duration::from_secs(48 * 3600),
    Duration::from_secs(7 * 86_400),
];

/// Counts of the units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// For each configured kind, in order, the number of units in each of [`State::ALL`].
    pub kinds: Vec<(Kind, StateCounts)>,
    /// For each kind, the last heartbeat of the unit that has been offline for longest.
    pub silent_since: Vec<Option<Timestamp>>,
    /// The numbers of units by the values of each of [`Mirror::labels`].
    pub labels: CountsByLabel,
    /// How many units were heard within each of [`WINDOWS`]; a longer one includes the shorter.
    pub seen_within: [u64; WINDOWS.len()],
    /// How many units were ever heard.
    pub heard: u64,
    /// The sum of their times since the last heartbeat.
    pub silence: Duration,
}

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
    /// There is no such unit.
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
    /// Reads the next units into `chunk`; false if there are none. A unit that is there from the first chunk to the
    /// last is read exactly once.
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
        let mut evaluator = StateEvaluator::new(&self.kinds, hearing, now);
        self.read_rows(cursor, |rows| {
            let table = rows.table;
            for (slot, row) in rows.units().filter(|(slot, row)| rows.filter.matches(table, *slot, row)) {
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
            let kind = self.kinds.iter().position(|rules| rules.kind.as_str() == kind)? as u16;
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

    /// The units of a chunk.
    pub fn units<'a>(&'a self, chunk: &'a Chunk) -> impl Iterator<Item = UnitView<'a>> {
        let labels = chunk.values.len() / chunk.units.len().max(1);
        chunk.units.iter().enumerate().map(move |(number, (kind, id, state, last_seen))| UnitView {
            kind: self.kinds[*kind].kind.as_str(),
            id: &chunk.text[id.clone()],
            state: *state,
            last_seen: *last_seen,
            values: Values {
                text: &chunk.text,
                ranges: &chunk.values[number * labels..(number + 1) * labels],
            },
        })
    }

    /// Counts all units, on a few threads. Takes some milliseconds for a million.
    pub fn summary(&self, hearing: &Hearing, now: Timestamp) -> Summary {
        let threads = if self.row_count() < FEW { 1 } else { COUNTERS };
        let count = |number| self.count(FleetShard { number, of: threads }, hearing, now);
        let sum = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|number| scope.spawn(move || count(number))).collect();
            let mut sum = count(0);
            for other in others {
                sum.merge(other.join().expect("counting does not panic"));
            }
            sum
        });
        // A unit that was heard in so many windows was heard in the longest ones.
        let seen_within = std::array::from_fn(|window| sum.heard_in[WINDOWS.len() - window..].iter().sum());
        let heard = sum.heard_in.iter().sum();
        let silence = Duration::from_millis(sum.silence_ms);
        let mut labels = CountsByLabel::new();
        let values = TOP / self.labels().len().max(1);
        for (label, counter) in self.labels().iter().zip(sum.counters) {
            counter.finish(label, values, &mut labels);
        }
        let kinds = self.kinds().cloned().zip(sum.states).collect();
        Summary { kinds, silent_since: sum.silent_since, labels, seen_within, heard, silence }
    }

    /// The number of rows, of which a few are free.
    fn row_count(&self) -> usize {
        self.partitions().map(|partition| self.read(partition).rows.len()).sum()
    }

    fn count(&self, shard: FleetShard, hearing: &Hearing, now: Timestamp) -> PartialSummary {
        let mut evaluator = StateEvaluator::new(&self.kinds, hearing, now);
        let mut count = PartialSummary {
            states: vec![StateCounts::default(); self.kinds.len()],
            silent_since: vec![None; self.kinds.len()],
            counters: self.labels().iter().map(|_| LabelCounter::default()).collect(),
            heard_in: Default::default(),
            silence_ms: 0,
        };
        let mut starts = WINDOWS.map(|length| now - length);
        starts.sort();
        let mut cursor = Cursor::new(UnitFilter { shard: Some(shard), ..UnitFilter::default() });
        while self.read_rows(&mut cursor, |rows| {
            let table = rows.table;
            for (counter, index) in count.counters.iter_mut().zip(&table.labels) {
                counter.begin(rows.partition, index);
            }
            let online_since = table.online_since(now);
            for (slot, row) in rows.units() {
                let is_online = !row.state.is_offline()
                    && row.state.is_heard()
                    && online_since.get(row.policy as usize).is_some_and(|since| row.last_seen >= *since);
                let state = if is_online { State::Online } else { evaluator.state(table, slot, row) };
                count.states[usize::from(row.kind)][state as usize] += 1;
                if row.state.is_heard() {
                    count.heard_in[starts.partition_point(|start| *start <= row.last_seen)] += 1;
                    count.silence_ms += (now.as_millis() - row.last_seen.as_millis()).max(0) as u64;
                }
                if row.state.is_offline() {
                    let since = &mut count.silent_since[usize::from(row.kind)];
                    *since = earlier(*since, Some(row.last_seen));
                }
                for (counter, index) in count.counters.iter_mut().zip(&table.labels) {
                    counter.add(index, slot, state);
                }
            }
        }) {}
        count
    }

    fn read_rows(&self, cursor: &mut Cursor, each: impl FnOnce(&LockedRows)) -> bool {
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

/// The counts of one shard of the fleet.
struct PartialSummary {
    /// By kind.
    states: Vec<StateCounts>,
    /// By kind.
    silent_since: Vec<Option<Timestamp>>,
    /// By label.
    counters: Vec<LabelCounter>,
    /// Units by the number of [`WINDOWS`] in which they were heard.
    heard_in: [u64; WINDOWS.len() + 1],
    /// The sum of their times since the last heartbeat.
    silence_ms: u64,
}

impl PartialSummary {
    fn merge(&mut self, other: PartialSummary) {
        for (sum, counts) in self.states.iter_mut().zip(other.states) {
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        for (since, other) in self.silent_since.iter_mut().zip(other.silent_since) {
            *since = earlier(*since, other);
        }
        self.counters.iter_mut().zip(other.counters).for_each(|(counter, other)| counter.merge(other));
        self.heard_in.iter_mut().zip(other.heard_in).for_each(|(sum, count)| *sum += count);
        self.silence_ms += other.silence_ms;
    }
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

/// Some rows of a partition, under its lock.
struct LockedRows<'a> {
    partition: u16,
    table: &'a PartitionTable,
    slots: Range<usize>,
    filter: RowFilter,
}

impl LockedRows<'_> {
    fn units(&self) -> impl Iterator<Item = (usize, &Row)> {
        self.table.units_in(self.slots.clone())
    }
}

/// Evaluates the state of rows by the rules of presence: copies each row into a snapshot that is made once.
struct StateEvaluator<'a> {
    kinds: &'a [KindRules],
    hearing: &'a Hearing,
    now: Timestamp,
    snapshot: Snapshot,
}

impl StateEvaluator<'_> {
    fn new<'a>(kinds: &'a [KindRules], hearing: &'a Hearing, now: Timestamp) -> StateEvaluator<'a> {
        let unit: Unit = "any:unit".parse().expect("a constant name");
        StateEvaluator {
            kinds,
            hearing,
            now,
            snapshot: Snapshot { unit, alive: None, facts: None, stored: None },
        }
    }

    fn state(&mut self, table: &PartitionTable, slot: usize, row: &Row) -> State {
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
        let facts = self.snapshot.facts.get_or_insert_with(|| Facts::new(Standing::Present, Timestamp::ZERO));
        facts.standing = match row.state {
            RowState::NeverSeen => Standing::NeverSeen,
            _ => Standing::Present,
        };
        facts.last_seen = row.last_seen;
        facts.set = Override { timeout: Some(policy.timeout), grace: Some(policy.grace) };
        facts.pause = absence.pause;
        facts.sleep = absence.sleep;
        facts.silent_from = absence.silent_from;
        let rules = &self.kinds[usize::from(row.kind)];
        presence::state(&self.snapshot, rules, self.hearing, self.now)
            .expect("only a unit that was removed has none")
    }
}
