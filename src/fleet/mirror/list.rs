//! Sorted lists of units: the first units that a query selects, in its order.
//!
//! # Why no index
//! Sorted indexes would cost more than all lists together, because the last seen time of a unit changes with each of
//! its heartbeats. A list reads every row once, which takes some milliseconds for a million, and requests for the same
//! page of a large fleet share one read.
//!
//! Numbers are compared first: the name of a unit is read only if its rank may be on the page.
//!
//! A page ends with a key and the next one begins after it, so a unit that does not change is on exactly one page.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Mirror;
use super::filter::UnitFilter;
use super::view::Cursor;
use crate::clock::Timestamp;
use crate::presence::{Hearing, Kind, State, UnitId};

mod page;

use page::Page;

/// The order of a list. Units that are equal in it are in the order of kind and id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListOrder {
    /// By urgency: offline, the newest first; then unknown, late, never seen, paused, online.
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
    /// The unit first that has been offline for longest; units that are not offline are last.
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
    /// Only units whose silence is unusual, or only the other units.
    pub unusual: Option<bool>,
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedUnit {
    pub kind: Kind,
    pub unit: UnitId,
    pub state: State,
    /// `None` if it was never heard.
    pub last_seen: Option<Timestamp>,
    /// The deadline of its open record.
    pub offline_since: Option<Timestamp>,
    /// Whether its silence is unusual by its rhythm.
    #[serde(default)]
    pub unusual: bool,
}

impl ListedUnit {
    pub fn key(&self, order: ListOrder) -> ListKey {
        let Self { state, last_seen, offline_since, .. } = *self;
        let rank = order.rank(&Ranked { state, last_seen, offline_since });
        ListKey { rank, kind: self.kind.clone(), unit: self.unit.clone() }
    }
}

impl Mirror {
    /// The first units that the query selects, in its order. Call it where a thread may work for some
    /// milliseconds.
    pub fn list(&self, query: &ListQuery, hearing: &Hearing, now: Timestamp) -> Vec<ListedUnit> {
        let only_offline = query.states == [State::Offline];
        let filter = UnitFilter { offline: only_offline || query.filter.offline, ..query.filter.clone() };
        let mut page = Page::new(self, query, hearing, now);
        let mut cursor = Cursor::new(filter);
        while self.read_rows(&mut cursor, |rows| page.take(rows)) {}
        page.finish(self)
    }
}

/// The values that a unit is ordered by, beside its name.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    state: State,
    last_seen: Option<Timestamp>,
    offline_since: Option<Timestamp>,
}
