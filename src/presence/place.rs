//! Where a unit is heard, if its name leaves captures of the topic out: two devices may have one id.
//!
//! With `sensors/{site}/{unit}/hb` and the name `{unit}`, the devices `north/pump-1` and `south/pump-1` are one unit,
//! and the heartbeats of one hide the silence of the other. Their messages come in turn, so the label `site` changes
//! and changes back. A device that moves to another site changes it once.

use std::time::Duration;

use super::{Labels, Place};
use crate::clock::Timestamp;

/// A unit was heard at one place, and before at another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The topics, the former one first.
    pub topics: [String; 2],
    /// The values of the labels, in the same order.
    values: [String; 2],
}

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
        Some(Move { topics: [topic(&before), topic(&after)], values: [before.join("/"), after.join("/")] })
    }
}

impl Move {
    /// Whether the unit was heard in turn at both places: it moved between them before, at `earlier`, and its timeout
    /// has not passed since then. A share delivers only some messages to an instance, so the earlier move may have
    /// been in either direction.
    pub fn is_in_turn(&self, at: Timestamp, before: &Move, earlier: Timestamp, timeout: Duration) -> bool {
        let [from, to] = &before.values;
        let is_between_both = self.values == before.values || self.values == [to.clone(), from.clone()];
        is_between_both && at <= earlier + timeout
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
    fn a_unit_that_goes_to_and_fro_within_its_timeout_is_two_devices_and_one_that_moves_is_not() {
        let (minute, at) = (Duration::from_secs(60), Timestamp::from_millis(1_732_147_200_000));
        let moved = |from: &str, to: &str| {
            place(&format!("s/{to}/7/data")).reached(&labels(from), &labels(to)).unwrap()
        };
        let there = moved("north", "south");
        for (next, seconds, expected) in [
            (moved("south", "north"), 60, true),
            (moved("south", "north"), 61, false),
            (moved("north", "south"), 30, true),
            (moved("south", "east"), 30, false),
        ] {
            let then = at + Duration::from_secs(seconds);
            assert_eq!(next.is_in_turn(then, &there, at, minute), expected, "{:?} {seconds}", next.topics);
        }
    }
}
