//! A page while it is filled: the best units so far.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::{ListOrder, ListQuery, ListedUnit, Ranked};
use crate::clock::Timestamp;
use crate::fleet::Mirror;
use crate::fleet::mirror::block_bounds::Bounds;
use crate::fleet::mirror::filter::RowFilter;
use crate::fleet::mirror::id_match::IdMatch;
use crate::fleet::mirror::partition_table::PartitionTable;
use crate::fleet::mirror::row::{Row, RowState};
use crate::fleet::mirror::view::StateEvaluator;
use crate::presence::{Hearing, State};
use crate::store::table::BLOCK;

/// A unit that is on the page unless better units come.
struct Candidate {
    rank: (u8, i64),
    /// Kinds are numbered in the order of their names.
    kind: u16,
    id: Vec<u8>,
    ranked: Ranked,
}

impl Candidate {
    /// How a unit of that rank and name compares with this one.
    fn compare(&self, rank: (u8, i64), kind: u16, id: &[u8]) -> Ordering {
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
    /// Whether only units with an open record are selected.
    offline: bool,
    evaluator: StateEvaluator<'a>,
    now: Timestamp,
    /// Units that were heard at that moment or later are left out.
    heard_before: Option<Timestamp>,
    /// Whether units in each of [`State::ALL`] are selected.
    states: [bool; State::ALL.len()],
    ids: IdMatch<'a>,
    /// The number of the kind of `query.after`: units of lesser numbers are before it, also if the kind is gone.
    after_kind: u16,
    best: BinaryHeap<Candidate>,
    /// The rank of the worst unit of a full page: units of a higher rank are not on it.
    highest: (u8, i64),
    /// As [`PartitionTable::online_since`] answers for the table that is locked.
    online_since: Vec<Timestamp>,
    /// Units without absences that were heard then or later are online, whatever their policy.
    all_online_since: Option<Timestamp>,
    /// Places in the block of rows that may be on the page.
    picked: Vec<usize>,
}

impl<'a> Page<'a> {
    /// `offline`: only units with an open record are selected.
    pub fn new(
        mirror: &Mirror,
        query: &'a ListQuery,
        offline: bool,
        hearing: &'a Hearing,
        now: Timestamp,
    ) -> Page<'a> {
        let after = query.after.as_ref().map(|after| mirror.kinds.partition_point(|kind| *kind < after.kind));
        let states = State::ALL.map(|state| query.states.is_empty() || query.states.contains(&state));
        Page {
            query,
            offline,
            evaluator: mirror.evaluator(hearing, now),
            now,
            heard_before: query.silent_longer.map(|silence| now - silence),
            states,
            ids: IdMatch::new(&query.prefix, &query.contains),
            after_kind: after.unwrap_or_default() as u16,
            best: BinaryHeap::with_capacity(query.limit),
            highest: (u8::MAX, i64::MAX),
            online_since: Vec::new(),
            all_online_since: None,
            picked: Vec::new(),
        }
    }

    /// Begins with the rows of another table, which was locked just now.
    pub fn begin(&mut self, table: &PartitionTable) {
        self.ids.begin();
        self.online_since = table.online_since(self.now);
        self.all_online_since = self.online_since.iter().max().copied();
    }

    /// Takes the units of a block; `false`: no row was read, because none is on the page.
    pub fn take_block(&mut self, table: &PartitionTable, filter: &RowFilter, block: usize) -> bool {
        let Some(bounds) = table.bounds.of(block) else { return false };
        let rows = table.rows.block(block);
        if self.leaves_out(table, bounds, block, rows) {
            return false;
        }
        let first = block * BLOCK;
        match filter.label() {
            Some((index, number)) => {
                let slots = table.labels[index].slots_with(number, first..first + rows.len());
                slots.for_each(|slot| self.take_row(table, filter, slot, &table.rows[slot]));
            }
            None => {
                let mut picked = std::mem::take(&mut self.picked);
                self.pick(table, bounds, rows, &mut picked);
                picked.drain(..).for_each(|at| self.take_row(table, filter, first + at, &rows[at]));
                self.picked = picked;
            }
        }
        true
    }

    /// Picks rows by the cheapest condition: most rows are online where others are wanted, or have another id.
    fn pick(&mut self, table: &PartitionTable, bounds: &Bounds, rows: &[Row], picked: &mut Vec<usize>) {
        let has_online = self.states[State::Online as usize]
            && self.query.order.online_rank().is_none_or(|rank| rank <= self.highest);
        let online_since = if has_online || bounds.has_absent() { &[] } else { &*self.online_since };
        // On a full page of units that were heard, another one has to be as new as the last of them.
        let seen_since = match (self.query.order, self.highest) {
            (ListOrder::NewestSeen, (0, newest)) => Timestamp::from_millis(-newest),
            _ => Timestamp::ZERO,
        };
        let has_all = self.ids.has_all();
        for (at, row) in rows.iter().enumerate() {
            let is_left_out = self.offline && !row.state.is_offline()
                || row.last_seen < seen_since
                || is_online(row, online_since)
                || !has_all && (row.state == RowState::Free || !self.ids.has(table, row));
            if !is_left_out {
                picked.push(at);
            }
        }
    }

    /// Whether no unit of a block is on the page.
    fn leaves_out(&self, table: &PartitionTable, bounds: &Bounds, block: usize, rows: &[Row]) -> bool {
        if !bounds.has_units() || self.offline && !bounds.has_offline() {
            return true;
        }
        let heard_since = |moment: Option<Timestamp>| {
            bounds.has_only_present()
                && moment.is_some_and(|moment| bounds.oldest_seen(moment, rows) >= moment)
        };
        if heard_since(self.heard_before) {
            return true;
        }
        let has_online = self.states[State::Online as usize];
        if !self.is_full() {
            return !has_online && heard_since(self.all_online_since);
        }
        let is_online = heard_since(self.all_online_since);
        if is_online && !has_online {
            return true;
        }
        let (longest, newest) = bounds.offline_since();
        let least = match self.query.order {
            ListOrder::State if is_online => (5, 0),
            ListOrder::State | ListOrder::NewestOffline if bounds.has_offline() => (0, -newest.as_millis()),
            ListOrder::OfflineSince if bounds.has_offline() => (0, longest.as_millis()),
            ListOrder::State | ListOrder::OfflineSince | ListOrder::NewestOffline => (1, 0),
            ListOrder::Unit => (0, 0),
            ListOrder::LastSeen => {
                let wanted = Timestamp::from_millis(self.highest.1) + Duration::from_millis(1);
                (0, bounds.oldest_seen(wanted, rows).as_millis())
            }
            // Every heartbeat changes this rank.
            ListOrder::NewestSeen => (0, i64::MIN),
        };
        match least.cmp(&self.highest) {
            Ordering::Less => false,
            Ordering::Greater => true,
            Ordering::Equal => bounds.first(block, &table.rows).is_none_or(|slot| {
                let row = &table.rows[slot];
                let worst = self.best.peek();
                worst.is_some_and(|worst| worst.compare(least, row.kind, table.id(row).as_bytes()).is_ge())
            }),
        }
    }

    pub fn take_row(&mut self, table: &PartitionTable, filter: &RowFilter, slot: usize, row: &Row) {
        if row.state == RowState::Free
            || self.heard_before.is_some_and(|before| row.last_seen >= before)
            || !filter.matches(table, slot, row)
        {
            return;
        }
        let is_online = is_online(row, &self.online_since) && !table.is_absent(slot as u32);
        let state = if is_online { State::Online } else { self.evaluator.state(table, slot, row) };
        if !self.states[state as usize] {
            return;
        }
        let last_seen = row.state.is_heard().then_some(row.last_seen);
        let offline_since = if row.state.is_offline() { table.offline_since(slot) } else { None };
        let ranked = Ranked { state, last_seen, offline_since };
        let rank = self.query.order.rank(&ranked);
        // Most units of a large fleet are left out here, before their names are read.
        if rank > self.highest || !self.ids.has_all() && !self.ids.has(table, row) {
            return;
        }
        let id = table.id(row).as_bytes();
        let is_better = !self.is_full()
            || self.best.peek().is_some_and(|worst| worst.compare(rank, row.kind, id).is_lt());
        if is_better && self.is_after(rank, row.kind, id) {
            self.keep(Candidate { rank, kind: row.kind, id: Vec::new(), ranked }, id);
        }
    }

    fn is_full(&self) -> bool {
        self.best.len() >= self.query.limit
    }

    fn is_after(&self, rank: (u8, i64), kind: u16, id: &[u8]) -> bool {
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
            let kind = mirror.kinds[usize::from(candidate.kind)].clone();
            // Ids were parsed before they came into the mirror.
            let unit = std::str::from_utf8(&candidate.id).ok()?.parse().ok()?;
            Some(ListedUnit { kind, unit, state, last_seen, offline_since })
        };
        self.best.into_sorted_vec().into_iter().filter_map(listed).collect()
    }
}

/// Whether a unit that is not absent is online. `online_since`: by policy; a policy that is missing there may be any.
fn is_online(row: &Row, online_since: &[Timestamp]) -> bool {
    row.state.is_present()
        && online_since.get(row.policy as usize).is_some_and(|since| row.last_seen >= *since)
}
