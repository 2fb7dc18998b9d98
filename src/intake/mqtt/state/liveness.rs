//! The limits after which a silent or unproved connection is given up.

use std::time::{Duration, Instant};

use crate::intake::mqtt::failure;
use crate::intake::mqtt::session::SilenceLimits;

/// The round trips that a new member may take between two proofs, with one to spare.
pub const UNPROVED_TRIPS: u32 = 3;

/// The signs of life of a connection.
pub struct Liveness {
    limits: SilenceLimits,
    last_packet: Instant,
    /// When a canary was last recorded, or the member began to attend.
    last_proof: Instant,
    /// When the pending subscription was requested.
    requested: Option<Instant>,
    /// The limits of a member apply.
    is_attending: bool,
    /// The round trip of canaries that the limits of a member allow for.
    round_trip: Duration,
}

impl Liveness {
    pub fn new(limits: SilenceLimits, now: Instant) -> Liveness {
        Liveness {
            limits,
            last_packet: now,
            last_proof: now,
            requested: None,
            is_attending: false,
            round_trip: Duration::ZERO,
        }
    }

    pub fn packet_arrived(&mut self, at: Instant) {
        self.last_packet = at;
    }

    /// Notes that reading has stopped, so the broker does not count as silent.
    pub fn held_back(&mut self, now: Instant) {
        self.last_packet = now;
        self.requested = self.requested.map(|_| now);
    }

    /// Notes that a subscription was requested.
    pub fn requested(&mut self, at: Instant) {
        self.requested = Some(at);
    }

    /// Notes that the broker answered the request.
    pub fn answered(&mut self) {
        self.requested = None;
    }

    pub fn proved(&mut self, at: Instant) {
        self.last_proof = self.last_proof.max(at);
    }

    /// Applies the limits of an attending member from now on, if the connection is a member. Canaries take
    /// `round_trip`: the member receives nothing while its share is granted, and sends its next canary after that.
    pub fn attend(&mut self, now: Instant, round_trip: Duration) {
        (self.is_attending, self.round_trip) = (true, round_trip);
        self.last_proof = now;
    }

    /// Ends the limits of a member, which sends no more canaries and waits until all messages are recorded.
    pub fn close(&mut self) {
        self.is_attending = false;
    }

    /// The moment of the next exceeded limit, if nothing happens until then.
    pub fn limit(&self) -> Instant {
        let (silence, unproved) = self.longest();
        let unanswered = self.requested.map(|at| at + self.limits.silence);
        let unproved = unproved.map(|unproved| self.last_proof + unproved);
        unanswered.into_iter().chain(unproved).fold(self.last_packet + silence, Instant::min)
    }

    /// The reason why the connection is given up; `None` if no limit is exceeded.
    pub fn exceeded(&self, now: Instant) -> Option<String> {
        let (silence, unproved) = self.longest();
        if now.duration_since(self.last_packet) >= silence {
            return Some(failure::silence(silence));
        }
        if self.requested.is_some_and(|at| now.duration_since(at) >= self.limits.silence) {
            return Some(failure::unanswered(self.limits.silence));
        }
        unproved.filter(|most| now.duration_since(self.last_proof) >= *most).map(failure::unproved)
    }

    fn longest(&self) -> (Duration, Option<Duration>) {
        match self.limits.of_member.filter(|_| self.is_attending) {
            Some(of_member) => (
                of_member.silence + self.round_trip,
                Some(of_member.unproved + UNPROVED_TRIPS * self.round_trip),
            ),
            None => (self.limits.silence, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;
    use crate::intake::mqtt::Session;
    use crate::intake::mqtt::tests::config;
    use crate::intake::topic::FleetFilters;

    #[test]
    fn a_member_that_attends_has_shorter_limits_than_a_plain_subscription() {
        // (share, round trip, seconds without a packet, seconds without a proof, whether a limit is exceeded)
        let cases = [
            ("", 0, 19, 19, false),
            ("", 0, 20, 1, true),
            ("all", 0, 2, 9, false),
            ("all", 0, 3, 3, true),
            ("all", 0, 1, 10, true),
            ("all", 4, 6, 21, false),
            ("all", 4, 7, 7, true),
            ("all", 4, 1, 22, true),
        ];
        for (share, round_trip, silent, unproved, is_exceeded) in cases {
            let session = Session::new(&config(share), "main", FleetFilters::default()).unwrap();
            let began = monotonic();
            let mut liveness = Liveness::new(session.limits, began);
            liveness.attend(began, Duration::from_secs(round_trip));
            let now = began + Duration::from_secs(100);
            liveness.proved(now - Duration::from_secs(unproved));
            liveness.packet_arrived(now - Duration::from_secs(silent));
            assert_eq!(liveness.exceeded(now).is_some(), is_exceeded, "{share:?} {silent} {unproved}");
            assert_eq!(liveness.limit() <= now, is_exceeded, "{share:?} {silent} {unproved}");
        }
    }
}
