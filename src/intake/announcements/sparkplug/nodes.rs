//! The last state of Sparkplug nodes: their sessions, the numbers of their messages, and their metrics.
//!
//! # Which death belongs to the session
//! A node sets its death as the will of its connection, with a number (`bdSeq`) that its birth repeats. A broker may
//! publish the death of a former session after the birth of the next one: its number differs, so it changes nothing.
//! Some libraries never change the number. So a death right after the birth of a node that was already present belongs
//! to the former session, whatever its number.
//!
//! A node with a new client id at each start has two sessions for a while after a power cut. If its library restarts
//! the numbers, both sessions have one number. A node writes its death before it connects, and its birth afterwards. So
//! a death whose timestamp is not after the birth of the former session belongs to the former session. This applies
//! once, because a library may write one timestamp into the deaths of all its sessions.
//!
//! If a death overtakes the birth of its own session, its number is unknown when it arrives. If the next birth comes at
//! once and has that number, the node is dead.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::payload::{Definition, Payload};
use crate::clock::Timestamp;
use crate::intake::announcements::hash;
use crate::presence::{TAKEOVER, Unit};

/// The most nodes and units in memory; a full table is cleared.
const MAX_NODES: usize = 200_000;
const MAX_DEFINED: usize = 1_000_000;
/// How long after a death with an unknown number its birth may come.
const REORDERED: Duration = Duration::from_secs(1);
/// The wait before a node is asked for its births again.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// The most nodes that are asked within a second. Other nodes are asked at their next message.
const MAX_ASKED: usize = 20;

#[derive(Default)]
pub(in crate::intake) struct Nodes(Mutex<State>);

#[derive(Default)]
struct State {
    nodes: HashMap<u64, SparkplugNode, FixedState>,
    /// The metrics of nodes and devices from their births.
    defined: HashMap<u64, Box<[Definition]>, FixedState>,
    /// When nodes were asked for their births, in the last second.
    asked: VecDeque<Timestamp>,
}

#[derive(Default)]
struct SparkplugNode {
    /// The number of the session; `None` without a birth, or with a birth without a number.
    bd_seq: Option<u64>,
    born: Option<Timestamp>,
    is_open: bool,
    /// The node was already present at its birth.
    took_over: bool,
    /// The number of the former session, if this birth has no number (it may be too large to be read) and the former
    /// death has not come.
    former_number: Option<u64>,
    /// The timestamp of the birth.
    stamp: Option<u64>,
    /// The timestamp of the former birth, if the former session has the same number and its death has not come.
    former: Option<u64>,
    /// A death with a number other than that of the session.
    unmatched: Option<(u64, Timestamp)>,
    /// The number of the next message.
    next_seq: Option<u8>,
    asked: Option<Timestamp>,
}

impl Nodes {
    /// Notes the birth of a node, which arrives at `at`. Returns `false` if the death of this session has come already.
    pub fn born(&self, node: &Unit, birth: &Payload, at: Timestamp) -> bool {
        let (bd_seq, seq, stamp) = (birth.bd_seq(), birth.number(), birth.timestamp);
        let mut state = self.lock();
        let known = state.node(node);
        let is_this =
            |(number, died): &(u64, Timestamp)| Some(*number) == bd_seq && at.since(*died) <= REORDERED;
        let overtaken = known.unmatched.filter(is_this);
        let has_twin = known.is_open && bd_seq.is_some() && known.bd_seq == bd_seq;
        // The clock of the node may have gone back at its start.
        let former = known.stamp.filter(|former| has_twin && stamp.is_some_and(|stamp| *former < stamp));
        *known = SparkplugNode {
            bd_seq,
            born: Some(at),
            is_open: overtaken.is_none(),
            took_over: known.is_open,
            former_number: known.bd_seq.filter(|_| known.is_open && bd_seq.is_none()),
            stamp,
            former,
            unmatched: None,
            next_seq: seq.map(|seq| seq.wrapping_add(1)),
            asked: None,
        };
        overtaken.is_none()
    }

    /// Notes the death of a node, which arrives at `at`. Returns whether it belongs to the session.
    pub fn died(&self, node: &Unit, death: &Payload, at: Timestamp) -> bool {
        let bd_seq = death.bd_seq();
        let mut state = self.lock();
        let known = state.node(node);
        if let (Some(own), Some(number)) = (known.bd_seq, bd_seq)
            && own != number
        {
            known.unmatched = Some((number, at));
            return false;
        }
        if bd_seq.is_some() && known.former_number == bd_seq {
            known.former_number = None;
            return false;
        }
        let is_former = known.former.is_some_and(|birth| death.timestamp.is_some_and(|death| death <= birth));
        let is_soon = known.took_over && known.born.is_some_and(|born| at <= born + TAKEOVER);
        if is_former || is_soon {
            // The next death belongs to this session.
            (known.took_over, known.former) = (false, None);
            return false;
        }
        (known.is_open, known.next_seq, known.unmatched) = (false, None, None);
        true
    }

    /// Notes the number of a message of the node or of one of its devices. Returns whether messages before it are
    /// missing, or the birth of the node is unknown.
    pub fn is_broken(&self, node: &Unit, seq: Option<u8>) -> bool {
        let mut state = self.lock();
        let known = state.node(node);
        let expected = std::mem::replace(&mut known.next_seq, seq.map(|seq| seq.wrapping_add(1)));
        let is_next = seq.is_none() || expected.is_none_or(|expected| Some(expected) == seq);
        !is_next || known.born.is_none()
    }

    /// Returns whether to ask the node for its births now: once, and again if it does not answer.
    pub fn asks(&self, node: &Unit, now: Timestamp) -> bool {
        let mut state = self.lock();
        let is_asked = state.node(node).asked.is_some_and(|asked| now.since(asked) < ASK_AGAIN);
        while state.asked.front().is_some_and(|at| now.since(*at) >= Duration::from_secs(1)) {
            state.asked.pop_front();
        }
        if is_asked || state.asked.len() >= MAX_ASKED {
            return false;
        }
        state.asked.push_back(now);
        state.node(node).asked = Some(now);
        true
    }

    /// Stores the metrics of a unit from its birth.
    pub fn define(&self, unit: &Unit, definitions: Vec<Definition>) {
        let mut state = self.lock();
        if state.defined.len() >= MAX_DEFINED {
            state.defined.clear();
        }
        state.defined.insert(hash(unit), definitions.into());
    }

    /// The metrics of a unit from its birth; empty if no birth is known.
    pub fn definitions(&self, unit: &Unit) -> Box<[Definition]> {
        self.lock().defined.get(&hash(unit)).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn node(&mut self, node: &Unit) -> &mut SparkplugNode {
        if self.nodes.len() >= MAX_NODES {
            self.nodes.clear();
        }
        self.nodes.entry(hash(node)).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intake::announcements::sparkplug::payload::{Metric, MetricValue};

    const START: Timestamp = Timestamp::from_millis(1_732_147_200_000);

    fn node() -> Unit {
        "edge:plant.n1".parse().unwrap()
    }

    #[test]
    fn a_death_counts_only_for_the_session_whose_number_it_has() {
        // Births and deaths with their numbers and moments; `true` for each one that counts.
        type Case = (&'static str, &'static [(char, u64, u64)], &'static [bool]);
        let cases: [Case; 9] = [
            ("in order", &[('b', 1, 0), ('d', 1, 5000), ('b', 2, 6000), ('d', 2, 9000)], &[true; 4]),
            ("a death without a birth", &[('d', 7, 0)], &[true]),
            ("a stale death", &[('b', 1, 0), ('b', 2, 5000), ('d', 1, 5001)], &[true, true, false]),
            ("a stale death that is late", &[('b', 2, 0), ('d', 1, 60_000)], &[true, false]),
            (
                "the numbers begin again",
                &[('b', 255, 0), ('b', 0, 5), ('d', 255, 6), ('d', 0, 900)],
                &[true, true, false, true],
            ),
            (
                "a library that never changes its number",
                &[('b', 0, 0), ('b', 0, 5000), ('d', 0, 5010), ('d', 0, 9000)],
                &[true, true, false, true],
            ),
            ("it dies right after its first birth", &[('b', 0, 0), ('d', 0, 3)], &[true, true]),
            (
                "the death overtakes its birth",
                &[('b', 1, 0), ('d', 2, 5000), ('b', 2, 5003)],
                &[true, false, false],
            ),
            (
                "a number is used again later",
                &[('b', 1, 0), ('d', 2, 100), ('b', 2, 60_000)],
                &[true, false, true],
            ),
        ];
        for (what, events, expected) in cases {
            let nodes = Nodes::default();
            let note = |(event, number, ms): &(char, u64, u64)| {
                let at = START + Duration::from_millis(*ms);
                let payload = payload(*number, None);
                match event {
                    'b' => nodes.born(&node(), &payload, at),
                    _ => nodes.died(&node(), &payload, at),
                }
            };
            assert_eq!(events.iter().map(note).collect::<Vec<_>>(), expected, "{what}");
        }
    }

    #[test]
    fn of_two_sessions_with_one_number_the_timestamps_say_which_ends() {
        // Births and deaths with their arrival and their timestamp, and whether each counts. All have one number.
        type Case = (&'static str, &'static [(char, u64, Option<u64>)], &'static [bool]);
        let cases: [Case; 8] = [
            (
                "the death of the former session comes late, and then that of this one",
                &[
                    ('b', 0, Some(10)),
                    ('b', 5000, Some(5010)),
                    ('d', 60_000, Some(9)),
                    ('d', 70_000, Some(5009)),
                ],
                &[true, true, false, true],
            ),
            (
                "only this session dies",
                &[('b', 0, Some(10)), ('b', 5000, Some(5010)), ('d', 60_000, Some(5009))],
                &[true, true, true],
            ),
            (
                "one timestamp for the deaths of all sessions",
                &[
                    ('b', 0, Some(10)),
                    ('b', 5000, Some(5010)),
                    ('d', 60_000, Some(9)),
                    ('d', 70_000, Some(9)),
                ],
                &[true, true, false, true],
            ),
            (
                "and the former death came before",
                &[('b', 0, Some(10)), ('d', 3000, Some(9)), ('b', 5000, Some(5010)), ('d', 60_000, Some(9))],
                &[true; 4],
            ),
            (
                "right after the birth, once",
                &[('b', 0, Some(10)), ('b', 5000, Some(5010)), ('d', 5100, Some(9)), ('d', 60_000, Some(9))],
                &[true, true, false, true],
            ),
            (
                "the clock of the node went back",
                &[('b', 0, Some(9000)), ('b', 5000, Some(10)), ('d', 60_000, Some(9))],
                &[true, true, true],
            ),
            (
                "a death without a timestamp",
                &[('b', 0, Some(10)), ('b', 5000, Some(5010)), ('d', 60_000, None)],
                &[true, true, true],
            ),
            (
                "timestamps of a forger",
                &[('b', 0, Some(u64::MAX)), ('b', 5000, Some(u64::MAX)), ('d', 60_000, Some(u64::MAX))],
                &[true, true, true],
            ),
        ];
        for (what, events, expected) in cases {
            let nodes = Nodes::default();
            let note = |(event, ms, stamp): &(char, u64, Option<u64>)| {
                let (at, payload) = (START + Duration::from_millis(*ms), payload(0, *stamp));
                match event {
                    'b' => nodes.born(&node(), &payload, at),
                    _ => nodes.died(&node(), &payload, at),
                }
            };
            assert_eq!(events.iter().map(note).collect::<Vec<_>>(), expected, "{what}");
        }
    }

    #[test]
    fn the_birth_of_a_session_may_be_too_large_to_be_read() {
        let nodes = Nodes::default();
        let (at, unread) = (|ms| START + Duration::from_millis(ms), Payload::default());
        assert!(nodes.born(&node(), &payload(4, None), at(0)));
        assert!(nodes.born(&node(), &unread, at(5000)));
        assert!(!nodes.died(&node(), &payload(4, None), at(60_000)), "that of the session before");
        assert!(nodes.died(&node(), &payload(5, None), at(70_000)));
        // A library without a number in its births.
        assert!(nodes.born(&node(), &unread, at(80_000)) && nodes.born(&node(), &unread, at(90_000)));
        assert!(nodes.died(&node(), &payload(4, None), at(100_000)));
    }

    /// A birth or a death with this number of a session.
    fn payload(number: u64, timestamp: Option<u64>) -> Payload {
        let metric = Metric {
            name: Some("bdSeq".to_owned()),
            value: Some(MetricValue::Long(number)),
            ..Metric::default()
        };
        Payload { timestamp, metrics: vec![metric], seq: Some(0) }
    }

    #[test]
    fn a_missing_message_breaks_the_sequence_once() {
        let nodes = Nodes::default();
        assert!(nodes.is_broken(&node(), Some(9)), "its birth is unknown");
        nodes.born(&node(), &payload(0, None), START);
        let cases = [(1, false), (2, false), (4, true), (5, false), (255, true), (0, false)];
        for (seq, is_broken) in cases {
            assert_eq!(nodes.is_broken(&node(), Some(seq)), is_broken, "{seq}");
        }
    }

    #[test]
    fn a_node_is_asked_once_a_minute_and_few_within_a_second() {
        let nodes = Nodes::default();
        let asks = |seconds: u64| nodes.asks(&node(), START + Duration::from_secs(seconds));
        assert_eq!([0, 1, 59, 60].map(asks), [true, false, false, true]);
        nodes.born(&node(), &payload(1, None), START + Duration::from_secs(61));
        assert!(asks(62), "it answered, and another message is missing");
        let later = START + Duration::from_secs(100);
        let others = (0..30).filter(|n| nodes.asks(&format!("edge:plant.{n}").parse().unwrap(), later));
        assert_eq!(others.count(), MAX_ASKED);
    }
}
