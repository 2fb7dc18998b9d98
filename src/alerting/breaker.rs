//! The breaker of a receiver: a receiver that takes nothing is probed, not hammered.
//!
//! After [`OPENS_AFTER`] failures in a row it opens. From then on one delivery at a time is attempted, after waits that
//! grow to [`MAX_WAIT`]; all others stay in the engine. The first success closes it, and what waits is attempted at
//! once, instead of when the backoff of each delivery says so.
//!
//! A receiver that asks for a wait (`Retry-After`) gets it: nothing is sent to it until then, and the next attempt is a
//! probe. [`Retry::asked`] limits the wait.
//!
//! The breaker is state of one instance: others, and this one after a start, learn by failures of their own.

use std::time::Duration;

use super::Retry;
use crate::backoff::Backoff;
use crate::clock::Timestamp;

/// A single notification that the receiver refuses does not open the breaker of the others, if they succeed in between.
const OPENS_AFTER: u32 = 5;
/// The longest wait between two probes.
const MAX_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Failures since the last success.
    failures: u32,
    open: Option<Open>,
}

/// The state of an open breaker.
#[derive(Debug)]
struct Open {
    /// How many probes failed; the failure that opened it is the first.
    probes: u32,
    probe_at: Timestamp,
    /// The last failure.
    why: String,
    /// Opened by a wait that the receiver asked for, and not by failures in a row.
    is_asked: bool,
}

/// The change of the breaker by an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BreakerChange {
    Opened,
    Closed,
}

impl Breaker {
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The last failure, while it is open.
    pub fn why(&self) -> Option<&str> {
        self.open.as_ref().map(|open| open.why.as_str())
    }

    /// Whether an attempt may begin at that moment; while the breaker is open, the attempt is a probe.
    pub fn admits(&self, now: Timestamp) -> bool {
        self.open.as_ref().is_none_or(|open| open.probe_at <= now)
    }

    pub fn succeeded(&mut self) -> Option<BreakerChange> {
        self.failures = 0;
        self.open.take().filter(|open| !open.is_asked).map(|_| BreakerChange::Closed)
    }

    /// The receiver took a part of a delivery, and asks for a wait before the rest.
    pub fn accepted_part(&mut self, why: &str, asked: Duration, now: Timestamp, retry: &Retry) {
        self.failures = 0;
        let is_asked = self.open.as_ref().is_none_or(|open| open.is_asked);
        let probe_at = now + retry.asked(asked);
        self.open = Some(Open { probes: 0, probe_at, why: why.to_owned(), is_asked });
    }

    /// `retry_after` is the wait that the receiver asked for; `jitter` is drawn from `0.0..1.0`.
    pub fn failed(
        &mut self,
        why: &str,
        retry_after: Option<Duration>,
        now: Timestamp,
        retry: &Retry,
        jitter: f64,
    ) -> Option<BreakerChange> {
        self.failures = self.failures.saturating_add(1);
        let asked = retry_after.map(|asked| retry.asked(asked)).filter(|asked| !asked.is_zero());
        if let Some(open) = self.open.as_mut().filter(|open| now < open.probe_at) {
            // Attempts that were under way when it opened are no probes.
            open.probe_at = open.probe_at.max(now + asked.unwrap_or_default());
            return None;
        }
        let is_asked = self.failures < OPENS_AFTER;
        if is_asked && asked.is_none() && self.open.is_none() {
            return None;
        }
        let probes = self.open.as_ref().map_or(0, |open| open.probes).saturating_add(1);
        let longest = retry.longest.min(MAX_WAIT);
        let wait = Backoff { first: retry.first.min(longest), longest }.wait(probes, jitter);
        let probe_at = now + wait.max(asked.unwrap_or_default());
        let was_opened = self.open.as_ref().is_some_and(|open| !open.is_asked);
        self.open = Some(Open { probes, probe_at, why: why.to_owned(), is_asked: is_asked && !was_opened });
        (!is_asked && !was_opened).then_some(BreakerChange::Opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3600);
    const RETRY: Retry = Retry { first: Duration::from_secs(5), longest: HOUR, give_up_after: HOUR };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    fn fail(breaker: &mut Breaker, seconds: u64) -> Option<BreakerChange> {
        breaker.failed("down", None, at(seconds), &RETRY, 1.0)
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 1..OPENS_AFTER {
            assert_eq!(fail(&mut breaker, 0), None);
        }
        assert_eq!(fail(&mut breaker, 0), Some(BreakerChange::Opened));
        breaker
    }

    #[test]
    fn a_breaker_opens_after_failures_in_a_row_and_closes_with_a_success() {
        let mut breaker = opened();
        assert_eq!(breaker.why(), Some("down"));
        assert_eq!(breaker.succeeded(), Some(BreakerChange::Closed));
        assert!(breaker.admits(at(0)) && !breaker.is_open());
        for second in 0..100 {
            assert_eq!(fail(&mut breaker, second), None, "a success in between");
            assert_eq!(breaker.succeeded(), None);
        }
    }

    #[test]
    fn an_open_breaker_admits_a_probe_after_waits_that_grow_to_a_minute() {
        let mut breaker = opened();
        let mut moment = 0;
        for wait in [5, 10, 20, 40, 60, 60] {
            assert!(!breaker.admits(at(moment + wait - 1)) && breaker.admits(at(moment + wait)), "{wait}");
            moment += wait;
            assert_eq!(fail(&mut breaker, moment), None);
        }
    }

    #[test]
    fn failures_of_attempts_that_were_under_way_are_no_probes() {
        let mut breaker = opened();
        for _ in 0..100 {
            assert_eq!(fail(&mut breaker, 4), None);
        }
        assert!(breaker.admits(at(5)));
    }

    #[test]
    fn a_receiver_that_asks_for_a_wait_is_probed_after_it() {
        let mut breaker = opened();
        breaker.failed("busy", Some(30 * SECOND), at(5), &RETRY, 1.0);
        assert!(!breaker.admits(at(34)) && breaker.admits(at(35)));
        breaker.failed("busy", Some(100 * HOUR), at(35), &RETRY, 1.0);
        assert!(!breaker.admits(at(3634)) && breaker.admits(at(3635)), "not longer than an hour");
        assert_eq!(breaker.succeeded(), Some(BreakerChange::Closed));
    }

    #[test]
    fn a_receiver_gets_the_wait_that_it_asks_for_from_its_first_failure_on() {
        let retry = Retry { first: SECOND, longest: SECOND, give_up_after: HOUR };
        let mut breaker = Breaker::default();
        assert_eq!(breaker.failed("busy", Some(30 * SECOND), at(0), &retry, 1.0), None);
        assert!(!breaker.admits(at(29)) && breaker.admits(at(30)), "longer than its retries");
        // Another attempt was under way.
        assert_eq!(breaker.failed("busy", Some(30 * SECOND), at(2), &retry, 1.0), None);
        assert_eq!(breaker.failed("down", None, at(3), &retry, 1.0), None);
        assert!(!breaker.admits(at(31)) && breaker.admits(at(32)));
        assert_eq!(breaker.succeeded(), None, "no failures in a row");
        assert!(breaker.admits(at(2)));
        assert_eq!(breaker.failed("busy", Some(Duration::ZERO), at(2), &retry, 1.0), None);
        assert!(breaker.admits(at(2)), "it asks for no wait");
        for second in 2..6 {
            let changed = breaker.failed("busy", Some(SECOND), at(second), &retry, 1.0);
            assert_eq!(changed, (second == 5).then_some(BreakerChange::Opened), "{second}");
        }
        assert_eq!(breaker.succeeded(), Some(BreakerChange::Closed));
    }

    #[test]
    fn a_receiver_that_takes_a_part_has_not_failed() {
        let mut breaker = Breaker::default();
        for second in 0..100 {
            breaker.accepted_part("busy", SECOND, at(second), &RETRY);
            assert!(!breaker.admits(at(second)) && breaker.admits(at(second + 1)));
        }
        assert_eq!(breaker.succeeded(), None);
        let mut breaker = opened();
        breaker.accepted_part("busy", SECOND, at(5), &RETRY);
        assert_eq!(breaker.succeeded(), Some(BreakerChange::Closed));
    }
}
