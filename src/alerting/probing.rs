//! The probing of a receiver that takes nothing: it is probed, not hammered.
//!
//! It begins after [`BEGINS_AFTER`] failures in a row. From then on one delivery at a time is attempted, after waits that
//! grow to [`MAX_WAIT`]; all others stay in the engine. It ends with the first success, and what waits is attempted at
//! once, instead of when the backoff of each delivery says so.
//!
//! A receiver that asks for a wait (`Retry-After`) gets it: nothing is sent to it until then, and the next attempt is a
//! probe. [`Retry::asked`] limits the wait.
//!
//! This is state of one instance: others, and this one after a start, learn by failures of their own.

use std::time::Duration;

use super::Retry;
use crate::backoff::Backoff;
use crate::clock::Timestamp;

/// A single notification that the receiver refuses does not begin the probing of the others, if they succeed in between.
const BEGINS_AFTER: u32 = 5;
/// The longest wait between two probes.
const MAX_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Probing {
    /// Failures since the last success.
    failures: u32,
    probes: Option<ReceiverProbes>,
}

/// The probes of a receiver that takes nothing.
#[derive(Debug)]
struct ReceiverProbes {
    /// How many failed; the failure with which the probing began is the first.
    failed: u32,
    probe_at: Timestamp,
    /// The last failure.
    why: String,
    /// Begun by a wait that the receiver asked for, and not by failures in a row.
    is_asked: bool,
}

/// The change of the probing by an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbingChange {
    Began,
    Ended,
}

impl Probing {
    pub fn is_on(&self) -> bool {
        self.probes.is_some()
    }

    /// The last failure, while the receiver is probed.
    pub fn why(&self) -> Option<&str> {
        self.probes.as_ref().map(|probes| probes.why.as_str())
    }

    /// Whether an attempt may begin at that moment; while the receiver is probed, the attempt is a probe.
    pub fn admits(&self, now: Timestamp) -> bool {
        self.probes.as_ref().is_none_or(|probes| probes.probe_at <= now)
    }

    pub fn succeeded(&mut self) -> Option<ProbingChange> {
        self.failures = 0;
        self.probes.take().filter(|probes| !probes.is_asked).map(|_| ProbingChange::Ended)
    }

    /// The receiver took a part of a delivery, and asks for a wait before the rest.
    pub fn accepted_part(&mut self, why: &str, asked: Duration, now: Timestamp, retry: &Retry) {
        self.failures = 0;
        let is_asked = self.probes.as_ref().is_none_or(|probes| probes.is_asked);
        let probe_at = now + retry.asked(asked);
        self.probes = Some(ReceiverProbes { failed: 0, probe_at, why: why.to_owned(), is_asked });
    }

    /// `retry_after` is the wait that the receiver asked for; `jitter` is drawn from `0.0..1.0`.
    pub fn failed(
        &mut self,
        why: &str,
        retry_after: Option<Duration>,
        now: Timestamp,
        retry: &Retry,
        jitter: f64,
    ) -> Option<ProbingChange> {
        self.failures = self.failures.saturating_add(1);
        let asked = retry_after.map(|asked| retry.asked(asked)).filter(|asked| !asked.is_zero());
        if let Some(probes) = self.probes.as_mut().filter(|probes| now < probes.probe_at) {
            // Attempts that were under way when it began are no probes.
            probes.probe_at = probes.probe_at.max(now + asked.unwrap_or_default());
            return None;
        }
        let is_asked = self.failures < BEGINS_AFTER;
        if is_asked && asked.is_none() && self.probes.is_none() {
            return None;
        }
        let failed = self.probes.as_ref().map_or(0, |probes| probes.failed).saturating_add(1);
        let longest = retry.longest.min(MAX_WAIT);
        let wait = Backoff { first: retry.first.min(longest), longest }.wait(failed, jitter);
        let probe_at = now + wait.max(asked.unwrap_or_default());
        let was_on = self.probes.as_ref().is_some_and(|probes| !probes.is_asked);
        self.probes =
            Some(ReceiverProbes { failed, probe_at, why: why.to_owned(), is_asked: is_asked && !was_on });
        (!is_asked && !was_on).then_some(ProbingChange::Began)
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

    fn fail(probing: &mut Probing, seconds: u64) -> Option<ProbingChange> {
        probing.failed("down", None, at(seconds), &RETRY, 1.0)
    }

    fn begun() -> Probing {
        let mut probing = Probing::default();
        for _ in 1..BEGINS_AFTER {
            assert_eq!(fail(&mut probing, 0), None);
        }
        assert_eq!(fail(&mut probing, 0), Some(ProbingChange::Began));
        probing
    }

    #[test]
    fn probing_begins_after_failures_in_a_row_and_ends_with_a_success() {
        let mut probing = begun();
        assert_eq!(probing.why(), Some("down"));
        assert_eq!(probing.succeeded(), Some(ProbingChange::Ended));
        assert!(probing.admits(at(0)) && !probing.is_on());
        for second in 0..100 {
            assert_eq!(fail(&mut probing, second), None, "a success in between");
            assert_eq!(probing.succeeded(), None);
        }
    }

    #[test]
    fn a_probe_is_admitted_after_waits_that_grow_to_a_minute() {
        let mut probing = begun();
        let mut moment = 0;
        for wait in [5, 10, 20, 40, 60, 60] {
            assert!(!probing.admits(at(moment + wait - 1)) && probing.admits(at(moment + wait)), "{wait}");
            moment += wait;
            assert_eq!(fail(&mut probing, moment), None);
        }
    }

    #[test]
    fn failures_of_attempts_that_were_under_way_are_no_probes() {
        let mut probing = begun();
        for _ in 0..100 {
            assert_eq!(fail(&mut probing, 4), None);
        }
        assert!(probing.admits(at(5)));
    }

    #[test]
    fn a_receiver_that_asks_for_a_wait_is_probed_after_it() {
        let mut probing = begun();
        probing.failed("busy", Some(30 * SECOND), at(5), &RETRY, 1.0);
        assert!(!probing.admits(at(34)) && probing.admits(at(35)));
        probing.failed("busy", Some(100 * HOUR), at(35), &RETRY, 1.0);
        assert!(!probing.admits(at(3634)) && probing.admits(at(3635)), "not longer than an hour");
        assert_eq!(probing.succeeded(), Some(ProbingChange::Ended));
    }

    #[test]
    fn a_receiver_gets_the_wait_that_it_asks_for_from_its_first_failure_on() {
        let retry = Retry { first: SECOND, longest: SECOND, give_up_after: HOUR };
        let mut probing = Probing::default();
        assert_eq!(probing.failed("busy", Some(30 * SECOND), at(0), &retry, 1.0), None);
        assert!(!probing.admits(at(29)) && probing.admits(at(30)), "longer than its retries");
        // Another attempt was under way.
        assert_eq!(probing.failed("busy", Some(30 * SECOND), at(2), &retry, 1.0), None);
        assert_eq!(probing.failed("down", None, at(3), &retry, 1.0), None);
        assert!(!probing.admits(at(31)) && probing.admits(at(32)));
        assert_eq!(probing.succeeded(), None, "no failures in a row");
        assert!(probing.admits(at(2)));
        assert_eq!(probing.failed("busy", Some(Duration::ZERO), at(2), &retry, 1.0), None);
        assert!(probing.admits(at(2)), "it asks for no wait");
        for second in 2..6 {
            let changed = probing.failed("busy", Some(SECOND), at(second), &retry, 1.0);
            assert_eq!(changed, (second == 5).then_some(ProbingChange::Began), "{second}");
        }
        assert_eq!(probing.succeeded(), Some(ProbingChange::Ended));
    }

    #[test]
    fn a_receiver_that_takes_a_part_has_not_failed() {
        let mut probing = Probing::default();
        for second in 0..100 {
            probing.accepted_part("busy", SECOND, at(second), &RETRY);
            assert!(!probing.admits(at(second)) && probing.admits(at(second + 1)));
        }
        assert_eq!(probing.succeeded(), None);
        let mut probing = begun();
        probing.accepted_part("busy", SECOND, at(5), &RETRY);
        assert_eq!(probing.succeeded(), Some(ProbingChange::Ended));
    }
}
