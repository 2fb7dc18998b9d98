//! Sorted lists of units: the first units that a query selects, in its order.
//!
//! # Why no index
//! A list reads every row of the mirror once and keeps as many units as its page has: some milliseconds for a million
//! units. Sorted indexes would cost every heartbeat more than lists cost in all, because the last seen time of a unit changes
//! with each of its heartbeats. Units with an open record come first in most lists; where they fill the page, other
//! units are not evaluated.
//!
//! A page ends with a key and the next one begins after it, so a unit that does not change is on exactly one page.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use memchr::memmem::Finder;
use serde::{Deserialize, Serialize};

use super::Mirror;
use super::filter::UnitFilter;
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
        let mut evaluator = self.evaluator(hearing, now);
        let mut page = Page::new(self, query);
        let filter = UnitFilter { offline, ..query.filter.clone() };
        let mut cursor = Cursor::new(filter);
        while self.read_rows(&mut cursor, |rows| page.take(rows, &mut evaluator, now)) {}
        page.finish(self)
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
    id: String,
    ranked: Ranked,
}

impl Candidate {
    fn key(&self) -> ((u8, i64), u16, &str) {
        (self.rank, self.kind, &self.id)
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Candidate) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Candidate {}

/// The best units so far, the worst of them on top.
struct Page<'a> {
    query: &'a ListQuery,
    contains: Option<Finder<'a>>,
    /// The number of the kind of `query.after`: units of lesser numbers are before it, also if the kind is gone.
    after_kind: u16,
    best: BinaryHeap<Candidate>,
}

impl<'a> Page<'a> {
    fn new(mirror: &Mirror, query: &'a ListQuery) -> Page<'a> {
        let after = query.after.as_ref().map(|after| mirror.kinds.partition_point(|kind| *kind < after.kind));
        Page {
            query,
            contains: (!query.contains.is_empty()).then(|| Finder::new(&query.contains)),
            after_kind: after.unwrap_or_default() as u16,
            best: BinaryHeap::with_capacity(query.limit),
        }
    }

    fn take(&mut self, rows: &LockedRows<'_>, evaluator: &mut StateEvaluator<'_>, now: Timestamp) {
        let (table, query) = (rows.table, self.query);
        let heard_before = query.silent_longer.map(|silence| now - silence);
        let online_since = table.online_since(now);
        for (slot, row) in rows.selected() {
            if heard_before.is_some_and(|before| row.last_seen >= before) {
                continue;
            }
            let is_heard = row.state.is_heard();
            let is_online = is_heard
                && !row.state.is_offline()
                && online_since.get(row.policy as usize).is_some_and(|since| row.last_seen >= *since);
            let state = if is_online { State::Online } else { evaluator.state(table, slot, row) };
            if !query.states.is_empty() && !query.states.contains(&state) {
                continue;
            }
            let last_seen = is_heard.then_some(row.last_seen);
            let ranked = Ranked { state, last_seen, offline_since: table.offline_since(slot) };
            let rank = query.order.rank(&ranked);
            // Most units of a large fleet are left out here, before their names are read.
            if self.is_full() && self.best.peek().is_some_and(|worst| rank > worst.rank) {
                continue;
            }
            let id = table.id(row);
            let is_meant = id.starts_with(&query.prefix)
                && self.contains.as_ref().is_none_or(|finder| finder.find(id.as_bytes()).is_some());
            if is_meant && self.is_after(rank, row.kind, id) {
                self.offer(Candidate { rank, kind: row.kind, id: String::new(), ranked }, id);
            }
        }
    }

    fn is_full(&self) -> bool {
        self.best.len() >= self.query.limit
    }

    fn is_after(&self, rank: (u8, i64), kind: u16, id: &str) -> bool {
        let Some(after) = &self.query.after else { return true };
        (rank, kind, id) > (after.rank, self.after_kind, after.unit.as_str())
    }

    /// Keeps the unit if it is better than the worst. The text of a unit that leaves the page is used again.
    fn offer(&mut self, mut candidate: Candidate, id: &str) {
        if !self.is_full() {
            candidate.id.push_str(id);
            return self.best.push(candidate);
        }
        let Some(mut worst) = self.best.peek_mut() else { return };
        if (candidate.rank, candidate.kind, id) < worst.key() {
            candidate.id = std::mem::take(&mut worst.id);
            candidate.id.clear();
            candidate.id.push_str(id);
            *worst = candidate;
        }
    }

    fn finish(self, mirror: &Mirror) -> Vec<ListedUnit> {
        let listed = |candidate: Candidate| {
            let Ranked { state, last_seen, offline_since } = candidate.ranked;
            let kind = mirror.kinds[usize::from(candidate.kind)].clone();
            // Ids were parsed before they came into the mirror.
            let unit = candidate.id.parse().ok()?;
            Some(ListedUnit { kind, unit, state, last_seen, offline_since })
        };
        self.best.into_sorted_vec().into_iter().filter_map(listed).collect()
    }
}
