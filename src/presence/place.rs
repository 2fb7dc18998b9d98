//! Where a unit is heard, if its name leaves captures of the topic out: two devices may have one id.
//!
//! With `sensors/{site}/{unit}/hb` and the name `{unit}`, the devices `north/pump-1` and `south/pump-1` are one unit,
//! and the heartbeats of one hide the silence of the other. Their messages come in turn, so the label `site` changes
//! and changes back, at once or, with more devices, after other sites. A device that moves to another site changes it
//! once.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::fast::FixedState;

use super::{Labels, Place};
use crate::clock::Timestamp;

/// A unit was heard at one place, and before at another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The topics, the former one first.
    pub topics: [String; 2],
    /// The values of the labels in the same order, as hashes.
    values: [u64; 2],
}

/// The most places in memory for a unit. With more in turn, some of them are still left twice.
const MAX_PLACES: usize = 16;

/// The places that a unit left within its timeout, oldest first.
#[derive(Debug, Default)]
pub struct PlacesLeft(VecDeque<(u64, Timestamp)>);

impl Place {
    /// The move of a unit whose labels were `before` and are `after` with a heartbeat from here.
    pub fn reached(&self, before: &Labels, after: &Labels) -> Option<Move> {
        let values = |labels: &Labels| -> Option<Vec<String>> {
            self.labels.iter().map(|(label, _)| labels.get(&**label).cloned()).collect()
        };
        let (before, after) = (values(before)?, values(after)?);
        if before == after {
            return None;
        }
        let topic = |values: &[String]| {
            let mut levels: Vec<&str> = self.topic.split('/').collect();
            for ((_, level), value) in self.labels.iter().zip(values) {
                levels[*level] = value;
            }
            levels.join("/")
        };
        let values = [&before, &after].map(|values| FixedState::default().hash_one(values));
        Some(Move { topics: [topic(&before), topic(&after)], values })
    }
}

impl PlacesLeft {
    /// Notes a move. Answers whether the unit is heard in turn at several places: it left one of both before, and its
    /// timeout has not passed since then. A share delivers only some messages to an instance, so it may leave one place
    /// twice and never be seen to return.
    pub fn moved(&mut self, moved: &Move, at: Timestamp, timeout: Duration) -> bool {
        self.0.retain(|(_, left)| at <= *left + timeout);
        let [from, _] = moved.values;
        let is_in_turn = self.0.iter().any(|(place, _)| moved.values.contains(place));
        self.0.retain(|(place, _)| *place != from);
        if self.0.len() >= MAX_PLACES {
            self.0.pop_front();
        }
        self.0.push_back((from, at));
        is_in_turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(site: &str) -> Labels {
        [("floor".to_owned(), "3".to_owned()), ("site".to_owned(), site.to_owned())].into()
    }

    fn place(topic: &str) -> Place {
        Place { topic: topic.into(), labels: [("site".into(), 1)].into() }
    }

    #[test]
    fn a_move_is_a_change_of_a_label_that_the_topic_has() {
        let here = place("s/south/7/hb");
        let moved = here.reached(&labels("north"), &labels("south")).unwrap();
        assert_eq!(moved.topics, ["s/north/7/hb", "s/south/7/hb"]);
        assert_eq!(here.reached(&labels("south"), &labels("south")), None);
        assert_eq!(here.reached(&Labels::new(), &labels("south")), None, "its first heartbeat");
    }

    #[test]
    fn a_unit_that_returns_within_its_timeout_is_several_devices_and_one_that_moves_is_not() {
        let (minute, start) = (Duration::from_secs(60), Timestamp::from_millis(1_732_147_200_000));
        let moved = |from: &str, to: &str| {
            place(&format!("s/{to}/7/data")).reached(&labels(from), &labels(to)).unwrap()
        };
        // Moves with their seconds, and which of them show that the unit is heard in turn.
        type Case = (&'static [(&'static str, &'static str, u64)], &'static [bool]);
        let cases: [Case; 7] = [
            (&[("north", "south", 0), ("south", "north", 60)], &[false, true]),
            (&[("north", "south", 0), ("south", "north", 61)], &[false, false]),
            (&[("north", "south", 0), ("north", "south", 30)], &[false, true]),
            (&[("north", "south", 0), ("south", "east", 30), ("east", "west", 40)], &[false; 3]),
            (
                &[("a", "b", 0), ("b", "c", 20), ("c", "a", 40), ("a", "b", 60), ("b", "c", 80)],
                &[false, false, true, true, true],
            ),
            (&[("a", "b", 0), ("b", "c", 30), ("c", "d", 60), ("d", "a", 90)], &[false; 4]),
            (&[("a", "b", 0), ("c", "d", 10), ("e", "a", 20)], &[false, false, true]),
        ];
        for (moves, expected) in cases {
            let mut left = PlacesLeft::default();
            let note = |(from, to, seconds): &(&str, &str, u64)| {
                left.moved(&moved(from, to), start + Duration::from_secs(*seconds), minute)
            };
            assert_eq!(moves.iter().map(note).collect::<Vec<_>>(), expected, "{moves:?}");
        }
        let mut left = PlacesLeft::default();
        for n in 0..100 {
            assert!(!left.moved(&moved(&n.to_string(), &(n + 1).to_string()), start, minute));
        }
        assert_eq!(left.0.len(), MAX_PLACES);
    }
}
