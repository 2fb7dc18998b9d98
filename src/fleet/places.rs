//! Units that this instance hears at two places in turn: see [`crate::presence::Move`].
//!
//! Only a heartbeat whose labels differ from those of its unit comes here, so all other heartbeats cost nothing.
//! Memory holds the moves of up to `MAX_UNITS` units: those of others are ignored until there is room.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Timestamp;
use crate::presence::{Move, PlacesLeft, Unit};

/// The most units whose moves are stored.
const MAX_UNITS: usize = 10_000;
/// How long the list is taken to be full before it is searched for moves that are over.
const FULL_FOR: Duration = Duration::from_secs(60);

/// The last moves of each unit.
#[derive(Default)]
pub struct Places(Mutex<LastMoves>);

#[derive(Default)]
struct LastMoves {
    by_unit: HashMap<Unit, MovesOfUnit>,
    full_since: Option<Timestamp>,
}

#[derive(Default)]
struct MovesOfUnit {
    left: PlacesLeft,
    /// When all of them are over.
    until: Timestamp,
}

impl Places {
    /// Notes a move. Answers whether the unit is heard at several places in turn within its timeout.
    pub fn moved(&self, unit: &Unit, moved: &Move, timeout: Duration, at: Timestamp) -> bool {
        let mut moves = self.0.lock();
        if !moves.by_unit.contains_key(unit) && !moves.has_room(at) {
            return false;
        }
        let of_unit = moves.by_unit.entry(unit.clone()).or_default();
        of_unit.until = at + timeout;
        of_unit.left.moved(moved, at, timeout)
    }
}

impl LastMoves {
    fn has_room(&mut self, now: Timestamp) -> bool {
        if self.by_unit.len() < MAX_UNITS {
            return true;
        }
        if self.full_since.is_some_and(|since| now.since(since) < FULL_FOR) {
            return false;
        }
        self.by_unit.retain(|_, moves| now <= moves.until);
        self.full_since = (self.by_unit.len() >= MAX_UNITS).then_some(now);
        self.full_since.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::{Labels, Place};

    #[test]
    fn so_many_moves_are_kept_until_they_are_over() {
        let labels = |site: &str| Labels::from([("site".to_owned(), site.to_owned())]);
        let place = Place { topic: "b/7".into(), labels: [("site".into(), 0)].into() };
        let there = place.reached(&labels("a"), &labels("b")).unwrap();
        let back = place.reached(&labels("b"), &labels("a")).unwrap();
        let (minute, start) = (Duration::from_secs(60), Timestamp::from_millis(1_732_147_200_000));
        let unit = |n: usize| format!("pump:{n}").parse::<Unit>().unwrap();
        let places = Places::default();
        for n in 0..=MAX_UNITS {
            assert!(!places.moved(&unit(n), &there, minute, start));
        }
        assert!(places.moved(&unit(0), &back, minute, start + minute));
        assert!(!places.moved(&unit(MAX_UNITS), &back, minute, start + minute), "it is not kept");
        assert!(!places.moved(&unit(MAX_UNITS), &there, minute, start + 2 * minute));
        assert!(places.moved(&unit(MAX_UNITS), &back, minute, start + 3 * minute));
    }
}
