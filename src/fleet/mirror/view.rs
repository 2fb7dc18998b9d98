//! Reads of the mirror: every unit, chunk by chunk.
//!
//! A chunk is read under the lock of its partition, which is released before the next one, so that no heartbeat
//! waits for a list of a million units.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLockReadGuard;

use super::Mirror;
use super::filter::{RowFilter, UnitFilter};
use crate::clock::Timestamp;
use crate::presence::{self, Facts, Hearing, KindRules, Lifecycle, Snapshot, State, Unit};
use crate::store::table::{Absence, NO_SETTINGS, RowState, UnitKey, UnitRow, UnitTable};

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
    /// When it was announced as gone, if it is late; that may be before its newest heartbeat.
    pub announced_at: Option<Timestamp>,
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

/// When a unit was heard, and when its end was announced, if it is late for that.
type Moments = [Option<Timestamp>; 2];

/// Some units of the mirror; the buffer is used again for the next chunk.
#[derive(Default)]
pub struct Chunk {
    /// Ids of units, and values of labels.
    text: String,
    units: Vec<(usize, Range<usize>, State, Moments)>,
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
            for (slot, rank, row) in rows.selected() {
                let start = chunk.text.len();
                chunk.text.push_str(table.id(row));
                let id = start..chunk.text.len();
                let last_seen = row.state.is_heard().then_some(row.last_seen);
                let state = evaluator.state(table, slot, row);
                let departure = if state == State::Late { table.absence(slot).departure } else { None };
                let announced_at = departure.map(|departure| departure.at);
                chunk.units.push((rank, id, state, [last_seen, announced_at]));
                for index in table.labels().iter().filter(|_| chunk.with_values) {
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
            let (_, number) = self.numbers.iter().find(|(known, _)| known.as_str() == kind)?;
            let slot = table.find(UnitKey::new(self.tables.hasher(), *number, id))?;
            table[slot].state.is_shown().then_some(slot)
        };
        let match_name = |name| match find(name) {
            None => NameMatch::Unknown,
            Some(slot) => match &filter {
                Some(filter) if filter.matches(&table, slot as usize, &table[slot]) => NameMatch::Selected,
                _ => NameMatch::NotSelected,
            },
        };
        names.map(match_name).collect()
    }

    pub fn units<'a>(&'a self, chunk: &'a Chunk) -> impl Iterator<Item = UnitView<'a>> {
        let labels = chunk.values.len() / chunk.units.len().max(1);
        chunk.units.iter().enumerate().map(move |(number, (kind, id, state, moments))| UnitView {
            kind: self.kinds[*kind].as_str(),
            id: &chunk.text[id.clone()],
            state: *state,
            last_seen: moments[0],
            announced_at: moments[1],
            values: Values {
                text: &chunk.text,
                ranges: &chunk.values[number * labels..(number + 1) * labels],
            },
        })
    }

    pub(super) fn evaluator<'a>(&self, hearing: &'a Hearing, now: Timestamp) -> StateEvaluator<'a> {
        StateEvaluator::new(self.by_number(|kind| self.rules.of(kind.as_str())), hearing, now)
    }

    /// Locks the units of a partition, to judge their silences.
    pub(super) fn read_known(&self, partition: u16) -> KnownUnits<'_> {
        // Before the units are locked: a writer locks the state first.
        let until = self.known_until(partition);
        KnownUnits { units: self.read(partition), until }
    }

    pub(super) fn read_rows(&self, cursor: &mut Cursor, each: impl FnOnce(&LockedRows)) -> bool {
        while cursor.partition < self.partition_count() {
            if cursor.filter.has_partition(cursor.partition) {
                let table = self.read_known(cursor.partition);
                let end = table.len().min(cursor.slot + CHUNK_ROWS);
                let filter = RowFilter::new(&cursor.filter, self, &table);
                if let Some(filter) = filter.filter(|_| cursor.slot < end) {
                    let slots = cursor.slot..end;
                    each(&LockedRows {
                        mirror: self,
                        partition: cursor.partition,
                        table: &table,
                        slots,
                        filter,
                    });
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

/// The units of a partition under its lock, and up to when their silences are known.
pub(super) struct KnownUnits<'a> {
    units: RwLockReadGuard<'a, UnitTable>,
    until: Timestamp,
}

impl Deref for KnownUnits<'_> {
    type Target = UnitTable;
    fn deref(&self) -> &UnitTable {
        &self.units
    }
}

/// Some rows of a partition, under its lock.
pub(super) struct LockedRows<'a> {
    mirror: &'a Mirror,
    pub partition: u16,
    pub table: &'a KnownUnits<'a>,
    slots: Range<usize>,
    filter: RowFilter,
}

impl LockedRows<'_> {
    /// The units: the slot of each, the place of its kind among the configured kinds, and its row.
    pub fn units(&self) -> impl Iterator<Item = (usize, usize, &UnitRow)> {
        let rows = self.table.indexed(self.slots.clone());
        rows.filter_map(|(slot, row)| Some((slot, self.mirror.rank(row)?, row)))
    }

    /// The units that the filter of the cursor selects.
    pub fn selected(&self) -> impl Iterator<Item = (usize, usize, &UnitRow)> {
        self.units().filter(|(slot, _, row)| self.filter.matches(self.table, *slot, row))
    }
}

/// Evaluates the state of rows by the rules of presence: copies each row into a snapshot that is built once. A silence
/// is judged at the moment up to which it is known: a unit that other instances heard since then is neither late, unknown
/// nor unusually silent.
pub(super) struct StateEvaluator<'a> {
    /// By the number of the kind: its rules, and the timeout of a unit that was heard and has no settings.
    rules: Vec<Option<(Arc<KindRules>, Duration)>>,
    hearing: &'a Hearing,
    now: Timestamp,
    snapshot: Snapshot,
}

impl StateEvaluator<'_> {
    fn new(rules: Vec<Option<Arc<KindRules>>>, hearing: &Hearing, now: Timestamp) -> StateEvaluator<'_> {
        let unit: Unit = "any:unit".parse().expect("a constant name");
        let with_timeout = |rules: Arc<KindRules>| {
            let timeout = rules.policy.timeout;
            (rules, timeout)
        };
        let rules = rules.into_iter().map(|rules| rules.map(with_timeout)).collect();
        let snapshot = Snapshot { unit, alive: None, alive_at: None, facts: None, stored: None };
        StateEvaluator { rules, hearing, now, snapshot }
    }

    /// The state of a unit of [`LockedRows::units`].
    pub fn state(&mut self, table: &KnownUnits<'_>, slot: usize, row: &UnitRow) -> State {
        if row.state.is_offline() {
            return State::Offline;
        }
        let (rules, timeout) = self.rules[usize::from(row.kind)].as_ref().expect("its kind is configured");
        let known = self.now.min(table.until);
        let silence = known.since(row.last_seen);
        // Most rows end here. Blind time only ever moves a deadline back, so a unit that was heard within its timeout
        // has time left by any ledger.
        let is_plain = row.settings == NO_SETTINGS && row.state.is_present();
        if is_plain && silence <= *timeout && !table.is_absent(slot) {
            return State::Online;
        }
        let absence = table.absence(slot);
        let facts =
            self.snapshot.facts.get_or_insert_with(|| Facts::new(Lifecycle::Present, Timestamp::ZERO));
        facts.lifecycle = match row.state {
            RowState::NeverSeen => Lifecycle::NeverSeen,
            _ => Lifecycle::Present,
        };
        facts.last_seen = row.last_seen;
        table.settings(row).put(facts);
        if absence == Absence::default() && silence <= facts.policy(rules).timeout {
            return if row.state.is_heard() { State::Online } else { State::NeverSeen };
        }
        facts.pause = absence.pause;
        facts.sleep = absence.sleep;
        facts.departure = absence.departure;
        facts.silent_from = absence.silent_from;
        let state_at = |now| {
            let state = presence::state(&self.snapshot, rules, self.hearing, now);
            state.expect("only a unit that was removed has none")
        };
        match state_at(self.now) {
            State::Late | State::Unknown if known < self.now => {
                // An announcement is known as soon as it is in the row.
                let announced = absence.departure.map(|departure| departure.at + Duration::from_millis(1));
                state_at(announced.map_or(known, |at| at.clamp(known, self.now)))
            }
            state => state,
        }
    }

    /// Since when the silence of a unit in that state is unusual; `None`: it is not.
    pub fn unusual_since(
        &self,
        table: &KnownUnits<'_>,
        slot: usize,
        row: &UnitRow,
        state: State,
    ) -> Option<Timestamp> {
        let known = self.now.min(table.until);
        // Most rows end here.
        if !row.rhythm.may_be_unusual(known.since(row.last_seen))
            || !matches!(state, State::Online | State::Late)
        {
            return None;
        }
        let (rules, _) = self.rules[usize::from(row.kind)].as_ref()?;
        let hearing = self.hearing.of(&rules.kind);
        let Absence { pause, sleep, silent_from, .. } = table.absence(slot);
        let sleep = hearing.sleep(sleep, row.last_seen);
        let silent = silent_from.map_or(row.last_seen, |from| from.max(row.last_seen));
        // Time that was not heard may have held a heartbeat.
        let heard = hearing.heard?.min(known);
        row.rhythm.unusual_from(silent, [pause, sleep], hearing).filter(|since| *since < heard)
    }
}
