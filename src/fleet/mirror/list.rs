//! Sorted lists of units: the first units that a query selects, in its order.
//!
//! # Why no index
//! A list reads every row of the mirror once and keeps as many units as its page has: some milliseconds for a million
//! units. Sorted indexes would cost every heartbeat more than lists cost in all, because the last seen time of a unit changes
//! with each of its heartbeats. Units with an open record come first in most lists; where they fill the page, other
//! units are not evaluated, and where they are few, only their rows are read.
//!
//! Numbers are compared first: the name of a unit is read only if its rank may be on the page, or if ids are selected.
//!
//! A page ends with a key and the next one begins after it, so a unit that does not change is on exactly one page.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Mirror;
use super::filter::{FleetShard, RowFilter, UnitFilter};
use super::id_match::IdMatch;
use super::partition_table::PartitionTable;
use super::row::Row;
use super::view::{Cursor, LockedRows, StateEvaluator};
use crate::clock::Timestamp;
use crate::presence::{Hearing, Kind, State, UnitId};

/// The order of a list. Units that are equal in it are in the order of kind and id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListOrder {
    /// What needs an operator first: offline, the newest first; then unknown, late, never seen, paused, online.
    #[default]
    #[serde(rename = "state")]
    State,
    /// By kind and id.
    #[serde(rename = "unit")]
    Unit,
    /// The unit first that was heard longest ago; those never heard are last.
    #[serde(rename = "last_seen")]
    LastSeen,
    #[serde(rename = "-last_seen")]
    NewestSeen,
    /// The unit first that has been offline for longest; those that are not offline are last.
    #[serde(rename = "offline_since")]
    OfflineSince,
    #[serde(rename = "-offline_since")]
    NewestOffline,
}

impl ListOrder {
    /// The first part of the key.
    fn rank(self, unit: &Ranked) -> (u8, i64) {
        let by = |moment: Option<Timestamp>, sign: i64| match moment {
            Some(moment) => (0, sign * moment.as_millis()),
            None => (1, 0),
        };
        match self {
            ListOrder::State => {
                let order = match unit.state {
                    State::Offline => 0,
                    State::Unknown => 1,
                    State::Late => 2,
                    State::NeverSeen => 3,
                    State::Paused => 4,
                    State::Online => 5,
                };
                (order, unit.offline_since.map_or(0, |since| -since.as_millis()))
            }
            ListOrder::Unit => (0, 0),
            ListOrder::LastSeen => by(unit.last_seen, 1),
            ListOrder::NewestSeen => by(unit.last_seen, -1),
            ListOrder::OfflineSince => by(unit.offline_since, 1),
            ListOrder::NewestOffline => by(unit.offline_since, -1),
        }
    }

    /// Whether units with an open record come before all others.
    fn begins_with_offline(self) -> bool {
        matches!(self, ListOrder::State | ListOrder::OfflineSince | ListOrder::NewestOffline)
    }
}

/// The units of a list, and where it begins.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    pub filter: UnitFilter,
    /// Empty: every state.
    pub states: Vec<State>,
    /// The first characters of the id.
    pub prefix: String,
    /// Characters anywhere in the id.
    pub contains: String,
    /// Only units whose last heartbeat, or registration, was longer ago.
    pub silent_longer: Option<Duration>,
    pub order: ListOrder,
    /// The last unit of the page before.
    pub after: Option<ListKey>,
    pub limit: usize,
}

/// The position of a unit in a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListKey {
    rank: (u8, i64),
    kind: Kind,
    unit: UnitId,
}

/// One unit of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedUnit {
    pub kind: Kind,
    pub unit: UnitId,
    pub state: State,
    /// `None` if it was never heard.
    pub last_seen: Option<Timestamp>,
    /// The deadline of its open record.
    pub offline_since: Option<Timestamp>,
}

impl ListedUnit {
    pub fn key(&self, order: ListOrder) -> ListKey {
        let Self { state, last_seen, offline_since, .. } = *self;
        let rank = order.rank(&Ranked { state, last_seen, offline_since });
        ListKey { rank, kind: self.kind.clone(), unit: self.unit.clone() }
    }
}

impl Mirror {
    /// The first units that the query selects, in its order. Reads every row of this instance: call it where a thread may
    /// work for some milliseconds.
    pub fn list(&self, query: &ListQuery, hearing: &Hearing, now: Timestamp) -> Vec<ListedUnit> {
        let only_offline = query.states == [State::Offline];
        let is_among_offline = query.after.as_ref().is_none_or(|after| after.rank.0 == 0);
        if only_offline || query.order.begins_with_offline() && is_among_offline {
            let first = self.first(query, true, hearing, now);
            if only_offline || first.len() == query.limit {
                return first;
            }
        }
        self.first(query, false, hearing, now)
    }

    /// The same of all units, or of those that are offline.
    fn first(&self, query: &ListQuery, offline: bool, hearing: &Hearing, now: Timestamp) -> Vec<ListedUnit> {
        if !query.states.is_empty() && offline && !query.states.contains(&State::Offline) {
            return Vec::new();
        }
        let mut page = Page::new(self, query, hearing, now);
        let filter = UnitFilter { offline, ..query.filter.clone() };
        if offline {
            for partition in self.partitions().filter(|partition| filter.has_partition(*partition)) {
                self.take_offline(partition, &filter, &mut page);
            }
        } else {
            let mut cursor = Cursor::new(filter);
            while self.read_rows(&mut cursor, |rows| page.take(rows)) {}
        }
        page.finish(self)
    }

    /// Of a partition where few units are offline, only their rows are read.
    fn take_offline(&self, partition: u16, filter: &UnitFilter, page: &mut Page<'_>) {
        let table = self.read(partition);
        if let Some(slots) = table.offline_slots() {
            let Some(filter) = RowFilter::new(filter, self, &table) else { return };
            page.ids.begin();
            let rows = slots.map(|slot| (slot, &table.rows[slot]));
            let selected = rows.filter(|(slot, row)| filter.matches(&table, *slot, row));
            return selected.for_each(|(slot, row)| page.take_row(&table, slot, row, &[]));
        }
        drop(table);
        let shard = Some(FleetShard { number: partition, of: self.partition_count() });
        let mut cursor = Cursor::new(UnitFilter { shard, ..filter.clone() });
        while self.read_rows(&mut cursor, |rows| page.take(rows)) {}
    }
}

/// What the order of a unit depends on, beside its name.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    state: State,
    last_seen: Option<Timestamp>,
    offline_since: Option<Timestamp>,
}

/// A unit that is on the page unless better ones come.
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
struct Page<'a> {
    query: &'a ListQuery,
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
}

impl<'a> Page<'a> {
    fn new(mirror: &Mirror, query: &'a ListQuery, hearing: &'a Hearing, now: Timestamp) -> Page<'a> {
        let after = query.after.as_ref().map(|after| mirror.kinds.partition_point(|kind| *kind < after.kind));
        Page {
            query,
            evaluator: mirror.evaluator(hearing, now),
            now,
            heard_before: query.silent_longer.map(|silence| now - silence),
            states: State::ALL.map(|state| query.states.is_empty() || query.states.contains(&state)),
            ids: IdMatch::new(&query.prefix, &query.contains),
            after_kind: after.unwrap_or_default() as u16,
            best: BinaryHeap::with_capacity(query.limit),
            highest: (u8::MAX, i64::MAX),
        }
    }

    fn take(&mut self, rows: &LockedRows<'_>) {
        let table = rows.table;
        let online_since = table.online_since(self.now);
        self.ids.begin();
        // Within the iterator a row costs a fraction of what it costs in a loop around it.
        rows.selected().for_each(|(slot, row)| self.take_row(table, slot, row, &online_since));
    }

    /// `online_since`: as [`PartitionTable::online_since`] answers, or nothing.
    fn take_row(&mut self, table: &PartitionTable, slot: usize, row: &Row, online_since: &[Timestamp]) {
        if self.heard_before.is_some_and(|before| row.last_seen >= before) {
            return;
        }
        let (is_heard, is_offline) = (row.state.is_heard(), row.state.is_offline());
        let is_online = is_heard
            && !is_offline
            && online_since.get(row.policy as usize).is_some_and(|since| row.last_seen >= *since);
        let state = if is_online { State::Online } else { self.evaluator.state(table, slot, row) };
        if !self.states[state as usize] {
            return;
        }
        let last_seen = is_heard.then_some(row.last_seen);
        let offline_since = if is_offline { table.offline_since(slot) } else { None };
        let ranked = Ranked { state, last_seen, offline_since };
        let rank = self.query.order.rank(&ranked);
        // Most units of a large fleet are left out here, before their names are read.
        if rank > self.highest || !self.ids.has_all() && !self.ids.has(table, row) {
            return;
        }
        let id = &table.rows.text_from(row)[..usize::from(row.length)];
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

    fn finish(self, mirror: &Mirror) -> Vec<ListedUnit> {
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
