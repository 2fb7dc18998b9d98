//! The last state of Sparkplug nodes: their sessions, the numbers of their messages, and their metrics.
//!
//! # Which death is that of the session
//! A node sets its death as the will of its connection, with a number (`bdSeq`) that its births repeat: the first one, and
//! those that a host asks for. A death with another number is that of a former session, and changes nothing. A death
//! without a number says of no session that it ended.
//!
//! Some libraries never change the number. If they are taken over, the death of the former session may come right after
//! the birth of the next one. A birth that a host asked for looks the same, so a death right after a birth whose number was
//! there already changes nothing, and timeouts find the node. Later a death with the number of the session is its own.
//!
//! Numbers are in memory only. While no birth of an open session is known, as after a start, a death may be that of any
//! session: it is a hint. And the first birth that is known may repeat a number.
//!
//! If a death overtakes the birth of its own session, its number is unknown when it arrives. If the next birth comes at
//! once and has that number, the node is dead.

use std::collections::VecDeque;
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::payload::{Definition, Payload};
use crate::clock::Timestamp;
use crate::intake::announcements::{SessionEnd, hash};
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
pub(in crate::intake) struct Nodes(Mutex<KnownNodes>);

#[derive(Default)]
struct KnownNodes {
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
    /// Whether it was there already when it was born, with the same number, as far as is known.
    is_repeated: bool,
    /// If its birth has no number, as one that is too large to be read, and the death of the former session has not
    /// come: the number of that session.
    former_number: Option<u64>,
    /// A death whose number was not that of the session.
    unmatched: Option<(u64, Timestamp)>,
    /// The number of the next message.
    next_seq: Option<u8>,
    asked: Option<Timestamp>,
}

impl Nodes {
    /// Notes the birth of a node, which arrives at `at`. Returns `false` if the death of this session has come already.
    pub fn born(&self, node: &Unit, birth: &Payload, at: Timestamp) -> bool {
        let (bd_seq, seq) = (birth.bd_seq(), birth.number());
        let mut state = self.0.lock();
        let known = state.node(node);
        let is_this =
            |(number, died): &(u64, Timestamp)| Some(*number) == bd_seq && at.since(*died) <= REORDERED;
        let overtaken = known.unmatched.filter(is_this);
        *known = SparkplugNode {
            bd_seq,
            born: Some(at),
            is_open: overtaken.is_none(),
            is_repeated: known.born.is_none() || known.is_open && known.bd_seq == bd_seq,
            former_number: known.bd_seq.filter(|_| known.is_open && bd_seq.is_none()),
            unmatched: None,
            next_seq: seq.map(|seq| seq.wrapping_add(1)),
            asked: None,
        };
        overtaken.is_none()
    }

    /// Notes the death of a node, which arrives at that moment: which session it ends. `None`: it does not say, though the
    /// births of its node have numbers.
    pub fn died(&self, node: &Unit, death: &Payload, at: Timestamp) -> Option<SessionEnd> {
        let mut state = self.0.lock();
        let known = state.node(node);
        let Some(born) = known.born else { return Some(SessionEnd::Unknown) };
        match (known.bd_seq, death.bd_seq()) {
            (Some(_), None) => return None,
            (Some(own), Some(number)) if own != number => {
                known.unmatched = Some((number, at));
                return Some(SessionEnd::Former);
            }
            (None, number @ Some(_)) if known.former_number == number => {
                known.former_number = None;
                return Some(SessionEnd::Former);
            }
            _ => {}
        }
        if known.is_repeated && at <= born + TAKEOVER {
            // The next death is that of this session.
            known.is_repeated = false;
            return Some(SessionEnd::Former);
        }
        let was_open = std::mem::replace(&mut known.is_open, false);
        (known.next_seq, known.unmatched) = (None, None);
        Some(if was_open { SessionEnd::Own } else { SessionEnd::Unknown })
    }

    /// Notes the number of a message of the node or of one of its devices. Returns whether messages before it are
    /// missing, or the birth of the node is unknown.
    pub fn is_broken(&self, node: &Unit, seq: Option<u8>) -> bool {
        let mut state = self.0.lock();
        let known = state.node(node);
        let expected = std::mem::replace(&mut known.next_seq, seq.map(|seq| seq.wrapping_add(1)));
        let is_next = seq.is_none() || expected.is_none_or(|expected| Some(expected) == seq);
        !is_next || known.born.is_none()
    }

    /// Returns whether to ask the node for its births now: once, and again if it does not answer.
    pub fn asks(&self, node: &Unit, now: Timestamp) -> bool {
        let mut state = self.0.lock();
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
        let mut state = self.0.lock();
        if state.defined.len() >= MAX_DEFINED {
            state.defined.clear();
        }
        state.defined.insert(hash(unit), definitions.into());
    }

    /// The metrics of a unit from its birth; empty if no birth is known.
    pub fn definitions(&self, unit: &Unit) -> Box<[Definition]> {
        self.0.lock().defined.get(&hash(unit)).cloned().unwrap_or_default()
    }
}

impl KnownNodes {
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
    const ZERO: Option<u64> = Some(0);
    const ONE: Option<u64> = Some(1);
    const TWO: Option<u64> = Some(2);

    fn node() -> Unit {
        "edge:plant.n1".parse().unwrap()
    }

    /// What births and deaths with these numbers and moments end: `own`, `former`, `unknown` or `none`; and `born` for a
    /// birth of a node that lives, `dead` for one that has died already.
    fn told(events: &[(char, Option<u64>, u64)]) -> Vec<&'static str> {
        let nodes = Nodes::default();
        let note = |(event, number, ms): &(char, Option<u64>, u64)| {
            let (at, payload) = (START + Duration::from_millis(*ms), payload(*number));
            if *event == 'b' {
                return if nodes.born(&node(), &payload, at) { "born" } else { "dead" };
            }
            match nodes.died(&node(), &payload, at) {
                Some(SessionEnd::Own) => "own",
                Some(SessionEnd::Former) => "former",
                Some(SessionEnd::Unknown) => "unknown",
                None => "none",
            }
        };
        events.iter().map(note).collect()
    }

    #[test]
    fn a_death_ends_the_session_whose_number_it_has() {
        type Case = (&'static str, &'static [(char, Option<u64>, u64)], &'static [&'static str]);
        let cases: [Case; 18] = [
            (
                "in order",
                &[('b', ONE, 0), ('d', ONE, 5000), ('b', TWO, 6000), ('d', TWO, 9000)],
                &["born", "own", "born", "own"],
            ),
            ("no birth since the start", &[('d', ZERO, 0), ('d', ZERO, 9000)], &["unknown", "unknown"]),
            (
                "its death comes twice",
                &[('b', ONE, 0), ('d', ONE, 5000), ('d', ONE, 9000)],
                &["born", "own", "unknown"],
            ),
            (
                "a stale death",
                &[('b', ONE, 0), ('b', TWO, 5000), ('d', ONE, 5001)],
                &["born", "born", "former"],
            ),
            ("a stale death that is late", &[('b', TWO, 0), ('d', ONE, 60_000)], &["born", "former"]),
            (
                "the numbers begin again",
                &[('b', TWO, 0), ('b', ZERO, 5), ('d', TWO, 6), ('d', ZERO, 900)],
                &["born", "born", "former", "own"],
            ),
            (
                "the next session dies right after its birth",
                &[('b', ONE, 0), ('b', TWO, 5000), ('d', TWO, 5010)],
                &["born", "born", "own"],
            ),
            (
                "a host asked for its births",
                &[('b', ONE, 0), ('b', ONE, 5000), ('d', ONE, 60_000)],
                &["born", "born", "own"],
            ),
            (
                "again and again",
                &[('b', ONE, 0), ('b', ONE, 5000), ('b', ONE, 9000), ('d', ONE, 9251)],
                &["born", "born", "born", "own"],
            ),
            (
                "a library that never changes its number",
                &[('b', ZERO, 0), ('b', ZERO, 5000), ('d', ZERO, 5010), ('d', ZERO, 5020)],
                &["born", "born", "former", "own"],
            ),
            (
                "right after the first birth since the start",
                &[('b', ZERO, 0), ('d', ZERO, 3), ('d', ZERO, 9)],
                &["born", "former", "own"],
            ),
            ("a moment after that birth", &[('b', ZERO, 0), ('d', ZERO, 251)], &["born", "own"]),
            (
                "it dies right after its next birth",
                &[('b', ZERO, 0), ('d', ZERO, 900), ('b', ZERO, 999), ('d', ZERO, 1003)],
                &["born", "own", "born", "own"],
            ),
            (
                "the death overtakes its birth",
                &[('b', ONE, 0), ('d', TWO, 5000), ('b', TWO, 5003)],
                &["born", "former", "dead"],
            ),
            (
                "a number is used again later",
                &[('b', ONE, 0), ('d', TWO, 100), ('b', TWO, 60_000)],
                &["born", "former", "born"],
            ),
            (
                "a death without a number",
                &[('b', ONE, 0), ('d', None, 5000), ('d', ONE, 9000)],
                &["born", "none", "own"],
            ),
            (
                "the birth is too large to be read",
                &[('b', ONE, 0), ('b', None, 5000), ('d', ONE, 60_000), ('d', TWO, 70_000)],
                &["born", "born", "former", "own"],
            ),
            (
                "a library without a number in its births",
                &[('b', None, 0), ('b', None, 9000), ('d', None, 9010), ('d', ONE, 60_000)],
                &["born", "born", "former", "own"],
            ),
        ];
        for (what, events, expected) in cases {
            assert_eq!(told(events), expected, "{what}");
        }
    }

    /// A birth or a death with this number of a session.
    fn payload(number: Option<u64>) -> Payload {
        let of = |number| Metric {
            name: Some("bdSeq".to_owned()),
            value: Some(MetricValue::Long(number)),
            ..Metric::default()
        };
        Payload { timestamp: None, metrics: number.map(of).into_iter().collect(), seq: Some(0) }
    }

    #[test]
    fn a_missing_message_breaks_the_sequence_once() {
        let nodes = Nodes::default();
        assert!(nodes.is_broken(&node(), Some(9)), "its birth is unknown");
        nodes.born(&node(), &payload(Some(0)), START);
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
        nodes.born(&node(), &payload(Some(1)), START + Duration::from_secs(61));
        assert!(asks(62), "it answered, and another message is missing");
        let later = START + Duration::from_secs(100);
        let others = (0..30).filter(|n| nodes.asks(&format!("edge:plant.{n}").parse().unwrap(), later));
        assert_eq!(others.count(), MAX_ASKED);
    }
}
