//! Recognises messages that the broker delivers again.
//!
//! After a lost connection the broker repeats every message whose acknowledgement it did not receive. Most of them are
//! recorded already. A message stays in memory until the broker has certainly received its acknowledgement:
//! acknowledgements are sent after recording, and a canary that is sent later and comes back has followed them to the
//! broker. So messages stay for a few seconds, and there are never more of them than can be unacknowledged.
//!
//! A broker repeats messages in their original order, so the search for each begins after the previous one.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;

use crate::clock::Timestamp;

/// Messages that may be delivered again.
pub struct RedeliveryFilter {
    /// In the order of arrival.
    deliveries: VecDeque<Delivery>,
    most: usize,
    hasher: RandomState,
    /// All messages that arrived up to the first moment were acknowledged at the second.
    acknowledged: Option<(Timestamp, Timestamp)>,
    /// The likely place of the next redelivered message.
    next: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Delivery {
    packet: u16,
    /// A hash of topic and payload.
    digest: u64,
    arrived: Timestamp,
}

impl RedeliveryFilter {
    /// `most`: how many messages the broker can have unacknowledged.
    pub fn new(most: usize) -> RedeliveryFilter {
        RedeliveryFilter {
            deliveries: VecDeque::new(),
            most,
            hasher: RandomState::default(),
            acknowledged: None,
            next: 0,
        }
    }

    /// Returns whether a message that will be acknowledged is new. The broker's flag alone does not decide: a flagged
    /// message may never have arrived before.
    pub fn is_new(
        &mut self,
        packet: u16,
        is_flagged: bool,
        topic: &[u8],
        payload: &[u8],
        now: Timestamp,
    ) -> bool {
        let digest = self.hasher.hash_one((topic, payload));
        if is_flagged && self.is_known(packet, digest) {
            return false;
        }
        if self.deliveries.len() >= self.most {
            self.deliveries.pop_front();
        }
        self.deliveries.push_back(Delivery { packet, digest, arrived: now });
        true
    }

    fn is_known(&mut self, packet: u16, digest: u64) -> bool {
        let is_it = |known: &Delivery| known.packet == packet && known.digest == digest;
        let next = self.next.min(self.deliveries.len());
        let behind = self.deliveries.range(next..).position(is_it).map(|index| next + index);
        let found = behind.or_else(|| self.deliveries.range(..next).position(is_it));
        self.next = found.map_or(next, |index| index + 1);
        found.is_some()
    }

    /// Notes that every message that arrived before this canary was sent is recorded and acknowledged.
    pub fn acknowledged(&mut self, canary: Timestamp, now: Timestamp) {
        self.acknowledged.get_or_insert((canary, now));
    }

    /// Notes a new session: the broker has no older messages.
    pub fn session_began(&mut self) {
        self.deliveries.clear();
        self.next = 0;
        self.acknowledged = None;
    }

    /// Notes that a canary newer than all before it came back.
    pub fn canary_returned(&mut self, sent_at: Timestamp) {
        if let Some((until, at)) = self.acknowledged.filter(|(_, at)| sent_at > *at) {
            debug_assert!(until <= at, "no message is acknowledged before it arrives");
            while self.deliveries.front().is_some_and(|delivery| delivery.arrived <= until) {
                self.deliveries.pop_front();
            }
            self.acknowledged = None;
        }
    }

    /// Notes that the connection is lost; its last acknowledgements may not have reached the broker.
    pub fn connection_lost(&mut self) {
        self.acknowledged = None;
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_MESSAGES: usize = 3;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn is_new(filter: &mut RedeliveryFilter, packet: u16, is_flagged: bool, text: &str, now: i64) -> bool {
        filter.is_new(packet, is_flagged, b"units/a", text.as_bytes(), at(now))
    }

    #[test]
    fn a_message_that_is_delivered_again_is_not_new() {
        let mut filter = RedeliveryFilter::new(MAX_MESSAGES);
        assert!(is_new(&mut filter, 1, false, "a", 100));
        filter.connection_lost();
        assert!(!is_new(&mut filter, 1, true, "a", 900));
        // The packet id is the same, the message is not.
        assert!(is_new(&mut filter, 1, true, "b", 900));
        assert!(is_new(&mut filter, 2, true, "a", 901));
    }

    #[test]
    fn a_new_session_delivers_no_message_of_an_earlier_one() {
        let mut filter = RedeliveryFilter::new(MAX_MESSAGES);
        is_new(&mut filter, 1, false, "a", 100);
        filter.connection_lost();
        filter.session_began();
        assert!(is_new(&mut filter, 1, true, "a", 910));
    }

    #[test]
    fn a_message_is_forgotten_when_the_broker_has_certainly_seen_its_acknowledgement() {
        let mut filter = RedeliveryFilter::new(MAX_MESSAGES);
        is_new(&mut filter, 1, false, "a", 100);
        filter.acknowledged(at(150), at(200));
        filter.canary_returned(at(200)); // may have been sent before the acknowledgement
        assert!(!is_new(&mut filter, 1, true, "a", 900));
        filter.canary_returned(at(201));
        assert!(is_new(&mut filter, 1, true, "a", 901));
    }

    #[test]
    fn an_acknowledgement_that_is_lost_with_its_connection_settles_nothing() {
        let mut filter = RedeliveryFilter::new(MAX_MESSAGES);
        is_new(&mut filter, 1, false, "a", 100);
        filter.acknowledged(at(150), at(200));
        filter.connection_lost();
        filter.canary_returned(at(950));
        assert!(!is_new(&mut filter, 1, true, "a", 970));
    }

    #[test]
    fn no_more_is_remembered_than_may_be_delivered_again() {
        let mut filter = RedeliveryFilter::new(MAX_MESSAGES);
        for packet in 1..=4 {
            is_new(&mut filter, packet, false, "a", 100);
        }
        assert_eq!(filter.deliveries.len(), 3);
        assert!(!is_new(&mut filter, 2, true, "a", 900));
    }
}
