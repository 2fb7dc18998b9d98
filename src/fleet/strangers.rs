//! Ids that this instance has heard and that are no units of the fleet. An operator may want to admit them.
//!
//! Memory holds up to `MAX_STRANGERS` of them: a device that invents ids fills neither the engine nor this list.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::presence::{HeartbeatResult, Kind, Unit};

/// The most strangers that are listed. The heartbeats of others are counted.
const MAX_STRANGERS: usize = 10_000;
/// A stranger that was not heard for this long leaves the list.
const KEPT: Duration = Duration::from_secs(86_400);
/// How long the list is taken to be full before it is searched for strangers to leave out.
const FULL_FOR: Duration = Duration::from_secs(60);

/// Why an id is not a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StrangerReason {
    /// The unit is not registered, and its kind has a closed registry.
    Unregistered,
    /// An operator has removed the unit.
    Removed,
    /// The kind of the unit has `max_units` units.
    TooManyUnits,
}

impl StrangerReason {
    /// `None` for a heartbeat of a unit.
    pub fn of(heard: HeartbeatResult) -> Option<StrangerReason> {
        match heard {
            HeartbeatResult::Unregistered => Some(StrangerReason::Unregistered),
            HeartbeatResult::Retired => Some(StrangerReason::Removed),
            HeartbeatResult::TooMany => Some(StrangerReason::TooManyUnits),
            HeartbeatResult::New
            | HeartbeatResult::Refreshed
            | HeartbeatResult::Back
            | HeartbeatResult::Stale => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            StrangerReason::Unregistered => "unregistered",
            StrangerReason::Removed => "removed",
            StrangerReason::TooManyUnits => "too_many_units",
        }
    }
}

/// The heartbeats of a stranger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stranger {
    pub reason: StrangerReason,
    pub first_heard: Timestamp,
    pub last_heard: Timestamp,
    pub heartbeats: u64,
}

impl Stranger {
    /// This stranger as two instances have heard it.
    pub fn and(self, other: Stranger) -> Stranger {
        let newer = if self.last_heard >= other.last_heard { &self } else { &other };
        Stranger {
            reason: newer.reason,
            first_heard: self.first_heard.min(other.first_heard),
            last_heard: newer.last_heard,
            heartbeats: self.heartbeats.saturating_add(other.heartbeats),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct StrangerFilter {
    pub kind: Option<Kind>,
    /// How ids begin; empty: any.
    pub prefix: String,
    /// Only strangers after this one.
    pub after: Option<Unit>,
}

/// The strangers of this instance.
#[derive(Default)]
pub struct Strangers {
    state: Mutex<StrangerList>,
}

#[derive(Default)]
struct StrangerList {
    by_unit: BTreeMap<Unit, Stranger>,
    /// The heartbeats of ids that are not listed.
    unlisted: u64,
    /// When the list was found to be full.
    full_since: Option<Timestamp>,
}

impl Strangers {
    /// Notes heartbeats of a unit that changed nothing, for that reason. `heartbeats`: their number.
    pub fn heard(&self, unit: &Unit, reason: StrangerReason, heartbeats: u64, now: Timestamp) {
        let mut state = self.state.lock();
        if let Some(known) = state.by_unit.get_mut(unit) {
            known.reason = reason;
            known.last_heard = known.last_heard.max(now);
            known.heartbeats = known.heartbeats.saturating_add(heartbeats);
        } else if state.has_room(now) {
            let stranger = Stranger { reason, first_heard: now, last_heard: now, heartbeats };
            state.by_unit.insert(unit.clone(), stranger);
        } else {
            state.unlisted = state.unlisted.saturating_add(heartbeats);
        }
    }

    /// Removes ids that became units.
    pub fn admitted<'a>(&self, units: impl IntoIterator<Item = &'a Unit>) {
        let mut state = self.state.lock();
        for unit in units {
            if state.by_unit.is_empty() {
                return;
            }
            state.by_unit.remove(unit);
        }
    }

    /// The first strangers in the order of their names, and how many heartbeats are of ids that are not listed.
    pub fn list(
        &self,
        wanted: &StrangerFilter,
        limit: usize,
        now: Timestamp,
    ) -> (Vec<(Unit, Stranger)>, u64) {
        let state = self.state.lock();
        let after = wanted.after.as_ref().map_or(Unbounded, Excluded);
        let is_wanted = |unit: &Unit, stranger: &Stranger| {
            wanted.kind.as_ref().is_none_or(|kind| *kind == unit.kind)
                && unit.id.as_str().starts_with(&wanted.prefix)
                && now.since(stranger.last_heard) < KEPT
        };
        let range = state.by_unit.range::<Unit, _>((after, Unbounded));
        let found = range.filter(|(unit, stranger)| is_wanted(unit, stranger)).take(limit);
        (found.map(|(unit, stranger)| (unit.clone(), stranger.clone())).collect(), state.unlisted)
    }
}

impl StrangerList {
    fn has_room(&mut self, now: Timestamp) -> bool {
        if self.by_unit.len() < MAX_STRANGERS {
            return true;
        }
        if self.full_since.is_some_and(|since| now.since(since) < FULL_FOR) {
            return false;
        }
        self.by_unit.retain(|_, stranger| now.since(stranger.last_heard) < KEPT);
        self.full_since = (self.by_unit.len() >= MAX_STRANGERS).then_some(now);
        self.full_since.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp::from_millis(1_772_366_400_000);

    fn unit(number: usize) -> Unit {
        format!("detector:{number:05}").parse().unwrap()
    }

    #[test]
    fn so_many_are_listed_and_the_others_are_counted_until_there_is_room() {
        let strangers = Strangers::default();
        let hear = |number, now| strangers.heard(&unit(number), StrangerReason::Unregistered, 1, now);
        (0..MAX_STRANGERS + 5).for_each(|number| hear(number, NOON));
        let listed = |now| strangers.list(&StrangerFilter::default(), usize::MAX, now);
        let (all, unlisted) = listed(NOON);
        assert_eq!((all.len(), unlisted), (MAX_STRANGERS, 5));
        let later = NOON + KEPT;
        hear(0, later);
        hear(MAX_STRANGERS, later);
        let (all, _) = listed(later);
        let names: Vec<Unit> = all.iter().map(|(unit, _)| unit.clone()).collect();
        assert_eq!(names, [unit(0), unit(MAX_STRANGERS)]);
        assert_eq!((all[0].1.heartbeats, all[0].1.first_heard), (2, NOON));
        strangers.admitted([&unit(0)]);
        assert_eq!(listed(later).0.len(), 1);
    }

    #[test]
    fn strangers_are_selected_by_kind_and_prefix_after_one() {
        let strangers = Strangers::default();
        for name in ["detector:a1", "detector:a2", "detector:b1", "meter:a1"] {
            strangers.heard(&name.parse().unwrap(), StrangerReason::Removed, 1, NOON);
        }
        let found = |filter: StrangerFilter, limit| {
            let (found, _) = strangers.list(&filter, limit, NOON);
            found.into_iter().map(|(unit, _)| unit.to_string()).collect::<Vec<_>>()
        };
        let of = |kind: &str| StrangerFilter { kind: Some(kind.parse().unwrap()), ..Default::default() };
        assert_eq!(found(of("meter"), 9), ["meter:a1"]);
        assert_eq!(found(StrangerFilter { prefix: "a".to_owned(), ..of("detector") }, 9).len(), 2);
        let after = Some("detector:a1".parse().unwrap());
        assert_eq!(found(StrangerFilter { after, ..Default::default() }, 2), ["detector:a2", "detector:b1"]);
    }
}
