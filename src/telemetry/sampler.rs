//! A sampler of log lines.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};

use super::labels::{BrokerRefusal, CutReason, Loop, PayloadIssue, Rejection, TOO_MANY, TWO_PLACES};
use super::timers::WITHOUT_CLASS;
use crate::clock::Clock;

/// Lets one line per reason and ten seconds through, so that a flood of bad messages cannot flood
/// the log.
pub(super) struct Sampler {
    clock: Clock,
    reasons: HashMap<&'static str, (AtomicI64, AtomicI64)>,
    /// Refusals have a map of their own, because some of their words are reasons too.
    refusals: HashMap<BrokerRefusal, (AtomicI64, AtomicI64)>,
}

impl Sampler {
    const EVERY_MS: i64 = 10_000;

    pub(super) fn new(clock: Clock) -> Sampler {
        let labels =
            Rejection::ALL.iter().map(|r| r.as_str()).chain(PayloadIssue::ALL.iter().map(|o| o.as_str()));
        let labels = labels.chain(CutReason::ALL.iter().map(|cut| cut.as_str()));
        let reasons = labels
            .chain(Loop::ALL.iter().map(|one| one.as_str()))
            .chain(["held_back", TOO_MANY, TWO_PLACES, "timer_answer", WITHOUT_CLASS])
            .map(|word| (word, Default::default()))
            .collect();
        let refusals = BrokerRefusal::ALL.iter().map(|what| (*what, Default::default())).collect();
        Sampler { clock, reasons, refusals }
    }

    /// `Some` with the number of lines suppressed since the last one, if a line may be written.
    pub(super) fn admit(&self, reason: &'static str) -> Option<i64> {
        self.sample(self.reasons.get(reason)?)
    }

    /// `Some` with the number of lines suppressed since the last one, if a line about a refusal may be written.
    pub(super) fn admit_refusal(&self, what: BrokerRefusal) -> Option<i64> {
        self.sample(self.refusals.get(&what)?)
    }

    fn sample(&self, (next, held): &(AtomicI64, AtomicI64)) -> Option<i64> {
        let now = self.clock.now().as_millis();
        let due = next.load(Ordering::Relaxed);
        let won = now >= due
            && next.compare_exchange(due, now + Self::EVERY_MS, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if won {
            Some(held.swap(0, Ordering::Relaxed))
        } else {
            held.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}
