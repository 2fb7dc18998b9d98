//! A page while it is filled: the best units so far.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use memchr::memmem::Finder;

use super::{ListQuery, ListedUnit, Ranked};
use crate::clock::Timestamp;
use crate::fleet::Mirror;
use crate::fleet::mirror::view::{KnownUnits, LockedRows, StateEvaluator};
use crate::presence::{Hearing, State};
use crate::store::table::UnitRow;

/// A unit that is on the page unless better units come.
struct Candidate {
    rank: (u8, i64),
    /// The place of its kind among the configured kinds.
    kind: usize,
    id: Vec<u8>,
    ranked: Ranked,
    unusual: bool,
}

impl Candidate {
    /// How a unit of that rank and name compares with this one.
    fn compare(&self, rank: (u8, i64), kind: usize, id: &[u8]) -> Ordering {
        rank.cmp(&self.rank).then_with(|| kind.cmp(&self.kind)).then_with(|| id.cmp(&self.id))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> Ordering {
        other.compare(self.rank, self.kind, &self.id)
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Candidate) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

/// The best units so far, the worst of them on top.
pub(super) struct Page<'a> {
    query: &'a ListQuery,
    evaluator: StateEvaluator<'a>,
    /// Units that were heard at that moment or later are left out.
    heard_before: Option<Timestamp>,
    /// Whether units in each of [`State::ALL`] are selected.
    states: [bool; State::ALL.len()],
    /// The text that ids contain.
    part: Option<Finder<'a>>,
    /// The place of the kind of `query.after`: units of kinds before it are before it, also if the kind is gone.
    after_kind: usize,
    best: BinaryHeap<Candidate>,
    /// The rank of the worst unit of a full page: units of a higher rank are not on it.
    highest: (u8, i64),
}

impl<'a> Page<'a> {
    pub fn new(mirror: &Mirror, query: &'a ListQuery, hearing: &'a Hearing, now: Timestamp) -> Page<'a> {
        let after = query.after.as_ref().map(|after| mirror.kinds.partition_point(|kind| *kind < after.kind));
        let states = State::ALL.map(|state| query.states.is_empty() || query.states.contains(&state));
        Page {
            query,
            evaluator: mirror.evaluator(hearing, now),
            heard_before: query.silent_longer.map(|silence| now - silence),
            states,
            part: (!query.contains.is_empty()).then(|| Finder::new(&query.contains)),
            after_kind: after.unwrap_or_default(),
            best: BinaryHeap::with_capacity(query.limit),
            highest: (u8::MAX, i64::MAX),
        }
    }

    /// Takes the units of some rows that are better than the worst of the page.
    pub fn take(&mut self, rows: &LockedRows) {
        // Within the iterator a row costs a fraction of what it costs in a loop around it.
        rows.selected().for_each(|(slot, kind, row)| self.take_row(rows.table, slot, kind, row));
    }

    fn take_row(&mut self, table: &KnownUnits<'_>, slot: usize, kind: usize, row: &UnitRow) {
        if self.heard_before.is_some_and(|before| row.last_seen >= before) {
            return;
        }
        let state = self.evaluator.state(table, slot, row);
        if !self.states[state as usize] {
            return;
        }
        if self.query.unusual.is_some_and(|wanted| wanted != self.is_unusual(table, slot, row, state)) {
            return;
        }
        let last_seen = row.state.is_heard().then_some(row.last_seen);
        let offline_since = if row.state.is_offline() { table.offline_since(slot) } else { None };
        let ranked = Ranked { state, last_seen, offline_since };
        let rank = self.query.order.rank(&ranked);
        // Most units of a large fleet are left out here, before their names are read.
        if rank > self.highest {
            return;
        }
        let id = table.id(row).as_bytes();
        let is_better =
            !self.is_full() || self.best.peek().is_some_and(|worst| worst.compare(rank, kind, id).is_lt());
        if is_better && self.selects(id) && self.is_after(rank, kind, id) {
            let unusual = self.is_unusual(table, slot, row, state);
            self.keep(Candidate { rank, kind, id: Vec::new(), ranked, unusual }, id);
        }
    }

    fn is_unusual(&self, table: &KnownUnits<'_>, slot: usize, row: &UnitRow, state: State) -> bool {
        self.evaluator.unusual_since(table, slot, row, state).is_some()
    }

    fn selects(&self, id: &[u8]) -> bool {
        id.starts_with(self.query.prefix.as_bytes())
            && self.part.as_ref().is_none_or(|part| part.find(id).is_some())
    }

    fn is_full(&self) -> bool {
        self.best.len() >= self.query.limit
    }

    fn is_after(&self, rank: (u8, i64), kind: usize, id: &[u8]) -> bool {
        let Some(after) = &self.query.after else { return true };
        (rank, kind, id) > (after.rank, self.after_kind, after.unit.as_str().as_bytes())
    }

    /// Keeps the unit, in the place of the worst of a full page. The text of a unit that leaves the page is used again.
    fn keep(&mut self, mut candidate: Candidate, id: &[u8]) {
        if self.is_full()
            && let Some(worst) = self.best.pop()
        {
            candidate.id = worst.id;
            candidate.id.clear();
        }
        candidate.id.extend_from_slice(id);
        self.best.push(candidate);
        if self.is_full() {
            self.highest = self.best.peek().map_or(self.highest, |worst| worst.rank);
        }
    }

    pub fn finish(self, mirror: &Mirror) -> Vec<ListedUnit> {
        let listed = |candidate: Candidate| {
            let Ranked { state, last_seen, offline_since } = candidate.ranked;
            let unusual = candidate.unusual;
            let kind = mirror.kinds[candidate.kind].clone();
            // Ids were parsed before they came into the mirror.
            let unit = std::str::from_utf8(&candidate.id).ok()?.parse().ok()?;
            Some(ListedUnit { kind, unit, state, last_seen, offline_since, unusual })
        };
        self.best.into_sorted_vec().into_iter().filter_map(listed).collect()
    }
}
