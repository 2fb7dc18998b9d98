//! Whether a broker stood still a moment ago: then its announcements that units are gone say nothing of them.
//!
//! A broker that stands still, as by a pause of its virtual machine, reads nothing meanwhile. When it goes on, it ends the
//! sessions whose keep-alive has passed, although their devices sent all the time, and those of devices that gave up waiting
//! for its answers: it publishes the wills of devices that are there. The timeout finds a unit that is truly gone.
//!
//! # How it is known
//! A broker that runs gives a sign within a known time, because canaries come back all the time. It stood still if a sign
//! comes later than that by [`LATE`]: with a canary each second, two seconds after the one before. A session ends after one
//! and a half keep-alives, and a device sends once in a keep-alive: a shorter standstill ends no session with a keep-alive of
//! four seconds or more.
//!
//! Until when its announcements are the consequence, the order of its messages says: until a canary comes back that was
//! sent [`AFTERMATH`] after the first sign.

use std::time::{Duration, Instant};

use crate::clock::Timestamp;

/// How late a sign may be; more than most pauses of a busy machine and of a network that loses a packet.
const LATE: Duration = Duration::from_secs(1);

/// How long after it goes on a broker may find out about sessions that end because it stood still.
const AFTERMATH: Duration = Duration::from_secs(1);

/// The signs of a broker that runs.
#[derive(Default)]
pub(super) struct Standstill {
    /// When the next sign is late; `None`: none is expected.
    late_from: Option<Instant>,
    /// When the broker went on, while announcements may be a consequence.
    went_on: Option<Timestamp>,
}

impl Standstill {
    /// Notes a sign. `next`: within which time the next sign comes; `None`: that is not known.
    pub fn sign(&mut self, now: Instant, clock: Timestamp, next: Option<Duration>) {
        if self.is_late(now) {
            self.went_on = Some(clock);
        }
        self.late_from = next.map(|next| now + next + LATE);
    }

    /// Notes that signs were not looked for: when the next one comes says nothing of the broker.
    pub fn looked_away(&mut self) {
        self.late_from = None;
    }

    /// Notes that a canary came back that was sent at this moment.
    pub fn canary_returned(&mut self, sent_at: Timestamp) {
        self.went_on.take_if(|at| sent_at > *at + AFTERMATH);
    }

    /// Whether an announcement that arrives now may be a consequence.
    pub fn is_recent(&self, now: Instant) -> bool {
        self.went_on.is_some() || self.is_late(now)
    }

    fn is_late(&self, now: Instant) -> bool {
        self.late_from.is_some_and(|late| now > late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    /// In milliseconds after the first sign of a broker that gives one each second.
    enum Then {
        Sign(u64),
        LookAway,
        /// A canary that was sent so long after that sign comes back.
        Canary(u64),
    }
    use Then::*;

    #[test]
    fn a_broker_that_gave_no_sign_for_long_stood_still_until_a_canary_from_after_it_is_back() {
        // What happens, and when an announcement comes: is it the consequence of a standstill?
        let cases: [(&[Then], u64, bool); 10] = [
            (&[], 2000, false),
            (&[], 2001, true),
            (&[Sign(2000)], 2000, false),
            (&[Sign(2001)], 2001, true),
            (&[Sign(1000), Sign(2000), Sign(3000)], 5000, false),
            (&[Sign(5000), Sign(6000), Canary(6000)], 6001, true),
            (&[Sign(5000), Sign(6001), Canary(6001)], 6002, false),
            // Canaries that waited with the others.
            (&[Sign(5000), Canary(1000), Canary(4000)], 5000, true),
            (&[LookAway, Sign(5000)], 7000, false),
            (&[LookAway, Sign(5000)], 7001, true),
        ];
        let (began, clock) = (monotonic(), Timestamp::from_millis(1_732_147_200_000));
        let ms = Duration::from_millis;
        for (number, (all, announced, expected)) in cases.iter().enumerate() {
            let mut broker = Standstill::default();
            let next = Some(ms(1000));
            broker.sign(began, clock, next);
            for one in *all {
                match one {
                    Sign(at) => broker.sign(began + ms(*at), clock + ms(*at), next),
                    LookAway => broker.looked_away(),
                    Canary(sent) => broker.canary_returned(clock + ms(*sent)),
                }
            }
            assert_eq!(broker.is_recent(began + ms(*announced)), *expected, "case {number}");
        }
        let mut unknown = Standstill::default();
        unknown.sign(began, clock, None);
        assert!(!unknown.is_recent(began + ms(3_600_000)));
    }
}
