//! What the broker gave us: how old it may be, and whether we had it before.
//!
//! A broker keeps messages for a persistent session that is away, and a stalled wire keeps them for
//! anybody. When they come at last, the units that sent them may be dead, and another instance may have
//! said so: they must not count as heartbeats of now.
//!
//! # How old a message may be
//! Messages come in their old order, canaries between. What follows a canary was sent after it and
//! before the next one: that is less than a gap later, or the time up to it is blind. So a message that
//! comes more than a gap after the canary before it was sent has been under way, and was sent between that
//! canary and a gap after it. A unit that is present was heard at the later of the two: it is never told
//! too early. One that is offline is back only if it was silent at the earlier one already: its last word,
//! come by two ways, is one word. How far a process that is no more had come with the session that it
//! leaves behind, the engine knows. What a new session brings was sent after it began.
//!
//! A wire that stalls in both directions keeps our canaries from the broker as well: then messages come
//! first that were sent after them, and for how long nobody can say. So where no canary came for longer
//! than a gap before a heartbeat, those that were sent before it came vouch for nothing, and that time
//! is blind.
//!
//! # What comes again
//! A broker that loses a connection gives everything again of which it saw no acknowledgement. Most of
//! that was taken and recorded before. A message is remembered until the broker has surely seen its
//! acknowledgement: acknowledgements go out after recording, and a canary that is sent after that and
//! comes back has followed them all the way. So for a few seconds, and never more messages than the
//! broker may have unacknowledged.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::clock::Timestamp;

/// Messages that may come again.
pub struct Given {
    /// In order of arrival.
    messages: VecDeque<Message>,
    most: usize,
    hasher: RandomState,
    /// Everything that arrived up to the first moment was acknowledged at the second.
    acknowledged: Option<(Timestamp, Timestamp)>,
    /// When the last canary was sent that came, of this session.
    canary: Option<Timestamp>,
    /// When one last came.
    canary_came: Option<Timestamp>,
    /// Canaries further apart than this enclose a blind interval.
    gap: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Message {
    packet: u16,
    print: u64,
    arrived: Timestamp,
}

impl Given {
    /// Nothing yet by this process; `heard` is how far an earlier one has heard with this session.
    /// `most`: how many messages the broker may have unacknowledged.
    pub fn new(heard: Option<Timestamp>, most: u16, gap: Duration) -> Given {
        Given {
            messages: VecDeque::new(),
            most: most.into(),
            hasher: RandomState::default(),
            acknowledged: None,
            canary: heard,
            canary_came: None,
            gap,
        }
    }

    /// Canaries further apart than this enclose a blind interval from now on.
    pub fn hole(&mut self, gap: Duration) {
        self.gap = gap;
    }

    /// When a message that comes now was sent, at the earliest and at the latest, if it was under way
    /// for long.
    pub fn under_way(&self, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let canary = self.canary.filter(|canary| now.since(*canary) > self.gap)?;
        Some((canary, canary + self.gap))
    }

    /// Whether no canary says how old a heartbeat is that comes now.
    pub fn lacks_a_canary(&self, now: Timestamp) -> bool {
        self.canary.is_some() && self.canary_came.is_none_or(|came| now.since(came) > self.gap)
    }

    /// A message came that will be acknowledged. Whether it is a new one; what the broker says it gives
    /// again may be one that it never gave.
    pub fn is_new(
        &mut self,
        packet: u16,
        is_again: bool,
        topic: &[u8],
        payload: &[u8],
        now: Timestamp,
    ) -> bool {
        let print = self.hasher.hash_one((topic, payload));
        if is_again && self.messages.iter().any(|known| known.packet == packet && known.print == print) {
            return false;
        }
        if self.messages.len() >= self.most {
            self.messages.pop_front();
        }
        self.messages.push_back(Message { packet, print, arrived: now });
        true
    }

    /// Everything that came before that canary was sent is recorded and acknowledged.
    pub fn acknowledged(&mut self, canary: Timestamp, now: Timestamp) {
        self.acknowledged.get_or_insert((canary, now));
    }

    /// The broker kept nothing from before.
    pub fn session_began(&mut self, now: Timestamp) {
        self.messages.clear();
        self.acknowledged = None;
        self.canary = Some(now);
        self.canary_came = Some(now);
    }

    /// A canary came back. One that came before, or an older one, says nothing.
    pub fn canary_returned(&mut self, sent_at: Timestamp, now: Timestamp) {
        if self.canary.is_some_and(|known| sent_at <= known) {
            return;
        }
        self.canary_came = Some(now);
        self.canary = Some(sent_at);
        if let Some((until, at)) = self.acknowledged.filter(|(_, at)| sent_at > *at) {
            debug_assert!(until <= at, "nothing is acknowledged before it came");
            while self.messages.front().is_some_and(|message| message.arrived <= until) {
                self.messages.pop_front();
            }
            self.acknowledged = None;
        }
    }

    /// The connection is lost; what was acknowledged may not have reached the broker.
    pub fn connection_lost(&mut self) {
        self.acknowledged = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u16 = 3;
    const GAP: Duration = Duration::from_millis(30);

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn is_new(given: &mut Given, packet: u16, is_again: bool, text: &str, now: i64) -> bool {
        given.is_new(packet, is_again, b"units/a", text.as_bytes(), at(now))
    }

    #[test]
    fn a_message_that_was_under_way_was_sent_within_a_gap_after_the_canary_before_it() {
        let mut given = Given::new(None, MOST, GAP);
        assert_eq!(given.under_way(at(900)), None);
        given.canary_returned(at(100), at(100));
        assert_eq!(given.under_way(at(130)), None);
        assert_eq!(given.under_way(at(131)), Some((at(100), at(130))));
        // Canaries that were under way for as long say how it went on.
        given.canary_returned(at(120), at(120));
        assert_eq!(given.under_way(at(901)), Some((at(120), at(150))));
        given.canary_returned(at(110), at(110));
        assert_eq!(given.under_way(at(902)), Some((at(120), at(150))));
    }

    #[test]
    fn a_new_process_goes_by_how_far_the_one_before_had_heard() {
        assert_eq!(Given::new(Some(at(50)), MOST, GAP).under_way(at(900)), Some((at(50), at(80))));
    }

    #[test]
    fn a_heartbeat_lacks_a_canary_when_none_came_for_a_gap_however_old_those_are_that_come() {
        let mut given = Given::new(None, MOST, GAP);
        assert!(!given.lacks_a_canary(at(900)), "nothing is known, and it counts as of now");
        given.canary_returned(at(100), at(800));
        assert!(!given.lacks_a_canary(at(830)));
        assert!(given.lacks_a_canary(at(831)));
        given.session_began(at(900));
        assert!(!given.lacks_a_canary(at(930)));
        assert!(Given::new(Some(at(50)), MOST, GAP).lacks_a_canary(at(60)));
    }

    #[test]
    fn what_a_new_session_brings_was_sent_after_it_began() {
        let mut given = Given::new(Some(at(50)), MOST, GAP);
        is_new(&mut given, 1, false, "a", 100);
        given.connection_lost();
        given.session_began(at(900));
        assert_eq!(given.under_way(at(910)), None);
        assert_eq!(given.under_way(at(990)), Some((at(900), at(930))), "but not how long after it");
        assert!(is_new(&mut given, 1, true, "a", 910), "it is not what came before");
    }

    #[test]
    fn what_was_taken_and_comes_again_is_not_new() {
        let mut given = Given::new(None, MOST, GAP);
        assert!(is_new(&mut given, 1, false, "a", 100));
        given.connection_lost();
        assert!(!is_new(&mut given, 1, true, "a", 900));
        // The number is the same, the message is not.
        assert!(is_new(&mut given, 1, true, "b", 900));
        assert!(is_new(&mut given, 2, true, "a", 901));
    }

    #[test]
    fn a_message_is_forgotten_when_the_broker_has_surely_seen_its_acknowledgement() {
        let mut given = Given::new(None, MOST, GAP);
        is_new(&mut given, 1, false, "a", 100);
        given.acknowledged(at(150), at(200));
        given.canary_returned(at(200), at(200)); // may have been sent before the acknowledgement
        assert!(!is_new(&mut given, 1, true, "a", 900));
        given.canary_returned(at(201), at(201));
        assert!(is_new(&mut given, 1, true, "a", 901));
    }

    #[test]
    fn an_acknowledgement_that_a_lost_connection_took_along_settles_nothing() {
        let mut given = Given::new(None, MOST, GAP);
        is_new(&mut given, 1, false, "a", 100);
        given.acknowledged(at(150), at(200));
        given.connection_lost();
        given.canary_returned(at(950), at(950));
        assert!(!is_new(&mut given, 1, true, "a", 970));
    }

    #[test]
    fn no_more_is_remembered_than_may_come_again() {
        let mut given = Given::new(None, MOST, GAP);
        for packet in 1..=4 {
            is_new(&mut given, packet, false, "a", 100);
        }
        assert_eq!(given.messages.len(), 3);
        assert!(!is_new(&mut given, 2, true, "a", 900));
    }
}
