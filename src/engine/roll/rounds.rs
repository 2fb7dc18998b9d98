//! Rounds of admission: heartbeats that may be decided upon at the same time.

use std::collections::HashSet;

use crate::presence::{Heartbeat, Unit};

/// Cuts heartbeats into rounds in which no unit comes twice, in order: two decisions about one unit
/// cannot both be made from one snapshot.
pub(super) fn one_of_each_unit(beats: Vec<&Heartbeat>) -> Vec<Vec<&Heartbeat>> {
    let mut rounds: Vec<Vec<&Heartbeat>> = Vec::new();
    let mut inside: HashSet<&Unit> = HashSet::new();
    for beat in beats {
        if rounds.is_empty() || inside.contains(&beat.unit) {
            rounds.push(Vec::new());
            inside.clear();
        }
        inside.insert(&beat.unit);
        rounds.last_mut().expect("one was just made").push(beat);
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    #[test]
    fn no_unit_is_twice_in_a_round_and_its_heartbeats_stay_in_order() {
        let beat = |unit: &str, at| Heartbeat {
            unit: unit.parse().unwrap(),
            at: Timestamp::from_millis(at),
            not_before: None,
            declared: Default::default(),
        };
        let beats = [("a:1", 1), ("a:2", 2), ("a:1", 3), ("a:3", 4), ("a:1", 5)].map(|(u, at)| beat(u, at));
        let rounds = one_of_each_unit(beats.iter().collect());
        let times: Vec<Vec<i64>> =
            rounds.iter().map(|round| round.iter().map(|beat| beat.at.as_millis()).collect()).collect();
        assert_eq!(times, [vec![1, 2], vec![3, 4], vec![5]]);
    }
}
