//! The age of an arriving message.
//!
//! A broker stores messages for a persistent session that is away, and a stalled connection delays messages for any
//! client. When they arrive, their units may be dead, and another instance may have declared them offline: such
//! messages must not count as current heartbeats.
//!
//! # The bounds
//! Here a gap includes the measured round trip: a canary passes the broker some time after it was sent, and messages
//! that the broker received right before it are younger by that time.
//!
//! Messages arrive in the order in which they were sent, with canaries between them. A message after a canary was sent
//! after that canary and before the next one: less than a gap later, or the time up to it is blind. So a message that
//! arrives more than a gap after the canary before it was sent has been in transit, and was sent between that canary
//! and a gap after it. For a present unit the later bound counts as the heartbeat, so it is never declared offline too
//! early. An offline unit is back only if it was already silent when the canary before the message was sent, however
//! old that canary is: its last heartbeat, delivered twice or late, is one heartbeat. The engine stores how far an
//! earlier process heard with the same session. A new session brings only messages that were sent after it began.
//!
//! A connection that stalls in both directions also delays canaries on their way to the broker. Then messages that were
//! sent after these canaries arrive first, with an unknown age. So if no canary arrived for longer than a gap before a
//! heartbeat, canaries that were sent before its arrival prove nothing, and that time is blind.

use std::time::Duration;

use crate::clock::Timestamp;

/// The canaries that bound the age of a message.
pub struct MessageAge {
    /// The send time of the last canary of this session that came back.
    canary: Option<Timestamp>,
    /// When a canary last came back.
    returned: Option<Timestamp>,
    /// Canaries further apart than this enclose a blind interval.
    gap: Duration,
}

impl MessageAge {
    /// `heard`: how far an earlier process has heard with this session.
    pub fn new(heard: Option<Timestamp>, gap: Duration) -> MessageAge {
        MessageAge { canary: heard, returned: None, gap }
    }

    pub fn set_gap(&mut self, gap: Duration) {
        self.gap = gap;
    }

    /// The earliest moment at which a message that arrives now was sent; `None` if it is unknown.
    pub fn sent_after(&self) -> Option<Timestamp> {
        self.canary
    }

    /// The latest moment at which a message that arrives now was sent, if it was in transit for longer than a gap.
    pub fn sent_before(&self, now: Timestamp) -> Option<Timestamp> {
        let canary = self.canary.filter(|canary| now.since(*canary) > self.gap)?;
        Some(canary + self.gap)
    }

    /// Returns whether no canary limits the age of a heartbeat that arrives now.
    pub fn is_unbounded(&self, now: Timestamp) -> bool {
        self.canary.is_some() && self.returned.is_none_or(|returned| now.since(returned) > self.gap)
    }

    /// Notes a new session: the broker has no older messages.
    pub fn session_began(&mut self, now: Timestamp) {
        self.canary = Some(now);
        self.returned = Some(now);
    }

    /// Notes that a canary came back. Returns `false` if it is no newer than the last one, and changes nothing.
    pub fn canary_returned(&mut self, sent_at: Timestamp, now: Timestamp) -> bool {
        let is_newer = self.canary.is_none_or(|known| sent_at > known);
        if is_newer {
            self.returned = Some(now);
            self.canary = Some(sent_at);
        }
        is_newer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: Duration = Duration::from_millis(30);

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_message_that_was_in_transit_was_sent_within_a_gap_after_the_canary_before_it() {
        let mut transit = MessageAge::new(None, GAP);
        assert_eq!((transit.sent_after(), transit.sent_before(at(900))), (None, None));
        assert!(transit.canary_returned(at(100), at(100)));
        assert_eq!((transit.sent_after(), transit.sent_before(at(130))), (Some(at(100)), None));
        assert_eq!(transit.sent_before(at(131)), Some(at(130)));
        // Canaries that were in transit for as long also move the bounds.
        assert!(transit.canary_returned(at(120), at(120)));
        assert_eq!(transit.sent_before(at(901)), Some(at(150)));
        assert!(!transit.canary_returned(at(110), at(110)));
        assert_eq!(transit.sent_before(at(902)), Some(at(150)));
    }

    #[test]
    fn a_new_process_goes_by_how_far_the_one_before_had_heard() {
        assert_eq!(MessageAge::new(Some(at(50)), GAP).sent_before(at(900)), Some(at(80)));
    }

    #[test]
    fn the_age_of_a_heartbeat_is_unbounded_when_no_canary_came_back_for_a_gap() {
        let mut transit = MessageAge::new(None, GAP);
        assert!(!transit.is_unbounded(at(900)), "nothing is known, and it counts as of now");
        transit.canary_returned(at(100), at(800));
        assert!(!transit.is_unbounded(at(830)));
        assert!(transit.is_unbounded(at(831)));
        transit.session_began(at(900));
        assert!(!transit.is_unbounded(at(930)));
        assert!(MessageAge::new(Some(at(50)), GAP).is_unbounded(at(60)));
    }

    #[test]
    fn the_messages_of_a_new_session_were_sent_after_it_began() {
        let mut transit = MessageAge::new(Some(at(50)), GAP);
        transit.session_began(at(900));
        assert_eq!(transit.sent_before(at(910)), None);
        assert_eq!(transit.sent_before(at(990)), Some(at(930)), "but not how long after it");
    }
}
