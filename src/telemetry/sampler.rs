//! A sampler of log lines.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::labels::BrokerRefusal;
use crate::clock::{Clock, Timestamp};

/// Admits one line per reason in ten seconds, so that a flood of bad messages cannot flood the log.
pub(super) struct Sampler {
    clock: Clock,
    lines: Mutex<HashMap<Reason, Lines>>,
}

/// Refusals by themselves, because some of their words are reasons too.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Reason {
    Word(&'static str),
    Refusal(BrokerRefusal),
}

#[derive(Default)]
struct Lines {
    /// When the next line may be written.
    next: Timestamp,
    suppressed: i64,
}

impl Sampler {
    const EVERY: Duration = Duration::from_secs(10);

    pub(super) fn new(clock: Clock) -> Sampler {
        Sampler { clock, lines: Mutex::default() }
    }

    /// `Some` with the number of lines suppressed since the last one, if a line may be written.
    pub(super) fn admit(&self, reason: &'static str) -> Option<i64> {
        self.sample(Reason::Word(reason))
    }

    /// `Some` with the number of lines suppressed since the last one, if a line about a refusal may be written.
    pub(super) fn admit_refusal(&self, what: BrokerRefusal) -> Option<i64> {
        self.sample(Reason::Refusal(what))
    }

    fn sample(&self, reason: Reason) -> Option<i64> {
        let now = self.clock.now();
        let mut all = self.lines.lock();
        let lines = all.entry(reason).or_default();
        if now < lines.next {
            lines.suppressed += 1;
            return None;
        }
        lines.next = now + Self::EVERY;
        Some(std::mem::take(&mut lines.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_line_in_ten_seconds_and_the_next_one_counts_the_others() {
        let clock = Clock::by_hand(Timestamp::from_millis(1_000_000));
        let sampler = Sampler::new(clock.clone());
        let refusal = BrokerRefusal::ALL[0];
        assert_eq!(sampler.admit("a reason of no list"), Some(0));
        assert_eq!(sampler.admit("another"), Some(0));
        assert_eq!((sampler.admit_refusal(refusal), sampler.admit(refusal.as_str())), (Some(0), Some(0)));
        clock.advance(Sampler::EVERY - Duration::from_millis(1));
        assert_eq!([0; 3].map(|_| sampler.admit("another")), [None; 3]);
        assert_eq!(sampler.admit_refusal(refusal), None);
        clock.advance(Duration::from_millis(1));
        assert_eq!(sampler.admit("another"), Some(3));
        assert_eq!(sampler.admit("a reason of no list"), Some(0));
        assert_eq!(sampler.admit_refusal(refusal), Some(1));
    }
}
