//! Tracks which probes came back through a shared subscription, which delivers them to any member.
//!
//! A foreign member, which is no instance of the fleet, takes its share of the messages, and their units seem silent.
//! Instances cannot see such a member, but it also takes its share of the probes. So each probe must come to an
//! instance: an instance that receives the probe of another one sends it back, on the answer topic in the probe. A
//! filter is proved up to the first probe that is missing, and further when many in a row have come back. Each proving
//! probe is reported, so that the time between two of them is blind only if one is missing.
//!
//! # When a probe is missing
//! A probe is missing when every instance has received all messages that the broker had before it, which canaries
//! prove, and then this instance has received all answers, which its own canary proves. Then only a loss explains the
//! missing probe. If an instance ended with unrecorded messages, that time is blind anyway, and the probe counts as
//! lost with them. So instances may start, stop, be slow or be far away.
//!
//! An engine that lost its data has forgotten the members. No canary waits for an instance that is frozen meanwhile, and
//! the broker gives it probes until it drops it: probes that were sent before that accuse nobody.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::presence::Hearing;

/// This many probes in a row have to come back before the filter is heard again. They take longer than any gap between
/// two probes that is not blind time.
const IN_A_ROW: u32 = 8;

/// This many missing probes are no coincidence.
const MISSING: u32 = 3;

/// The most probes in memory; a further one replaces the oldest.
const MAX_SENT: usize = 1000;

/// The probes of one filter that this process sent.
#[derive(Clone, Debug, Default)]
pub(super) struct ProbeReturns {
    sent: VecDeque<SentProbe>,
    /// The proving probes that are not reported yet; at most [`MAX_SENT`].
    proved: Vec<Timestamp>,
    /// The probes since the first missing one, until enough have come back in a row.
    gap: Option<ProbeGap>,
    /// Members that the engine has forgotten may get the probes that were sent before this moment.
    forgotten_until: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct SentProbe {
    at: Timestamp,
    came: bool,
    /// When it was noticed that every instance has received everything that the broker had before the probe, and more.
    passed: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ProbeGap {
    missing: u32,
    came: u32,
    in_a_row: u32,
}

impl ProbeReturns {
    /// Notes that a probe was sent at `at`.
    pub fn sent(&mut self, at: Timestamp) {
        if self.sent.len() == MAX_SENT {
            self.sent.pop_front();
        }
        self.sent.push_back(SentProbe { at, came: false, passed: None });
    }

    /// Notes that the probe sent at `at` came to an instance. Returns the probes that now prove the filter, in order.
    pub fn came(&mut self, at: Timestamp) -> Vec<Timestamp> {
        self.sent.iter_mut().filter(|probe| probe.at == at).for_each(|probe| probe.came = true);
        self.advance();
        std::mem::take(&mut self.proved)
    }

    /// Forgets the pending probes: they are refused, or may be lost with the connection.
    pub fn forget(&mut self) {
        self.sent.clear();
    }

    /// Notes that the engine has forgotten the members; the broker has dropped those that do not attend again by
    /// `until`.
    pub fn members_forgotten(&mut self, until: Timestamp) {
        self.forgotten_until = until;
    }

    /// Whether a member that the engine has forgotten may get a probe of this moment.
    pub fn may_be_forgotten(&self, at: Timestamp) -> bool {
        at < self.forgotten_until
    }

    /// Notes at `now` which probes are missing; `hearing` is the hearing of the fleet, and a probe takes less than
    /// `wait` to the broker. Returns whether a probe is missing that was not lost with an instance.
    pub fn judge(&mut self, hearing: &Hearing, wait: Duration, now: Timestamp) -> bool {
        let Some(heard) = hearing.heard else { return false };
        for probe in self.sent.iter_mut().filter(|probe| !probe.came && heard.since(probe.at) > wait) {
            probe.passed.get_or_insert(now);
        }
        let is_lost = |probe: &SentProbe| !probe.came && probe.passed.is_some_and(|passed| heard > passed);
        // A blind interval that begins before the probe reached the broker may include the loss of the probe.
        let is_blind =
            |at: Timestamp| hearing.ledger.intervals().iter().any(|one| one.from <= at + wait && at < one.to);
        let mut is_missing = false;
        while let Some(probe) = self.sent.front().copied().filter(is_lost) {
            self.sent.pop_front();
            if !is_blind(probe.at) {
                let gap = self.gap.get_or_insert_default();
                (gap.missing, gap.in_a_row) = (gap.missing + 1, 0);
                is_missing |= !self.may_be_forgotten(probe.at);
            }
            self.advance();
        }
        is_missing
    }

    /// Returns whether some probes come to instances and others do not.
    pub fn are_taken(&self) -> bool {
        self.gap.is_some_and(|gap| gap.missing >= MISSING && gap.came > 0)
    }

    /// Returns whether a probe came that was sent after a missing one.
    pub fn are_partial(&self) -> bool {
        self.gap.is_some_and(|gap| gap.came > 0) || self.sent.iter().any(|probe| probe.came)
    }

    fn advance(&mut self) {
        while let Some(probe) = self.sent.pop_front_if(|probe| probe.came) {
            if let Some(gap) = &mut self.gap {
                (gap.came, gap.in_a_row) = (gap.came + 1, gap.in_a_row + 1);
            }
            self.gap.take_if(|gap| gap.in_a_row >= IN_A_ROW);
            if self.gap.is_none() {
                self.proved.truncate(MAX_SENT - 1);
                self.proved.push(probe.at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::{Interval, Ledger};

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn heard(ms: i64, blind: &[(i64, i64)]) -> Hearing {
        let intervals = blind.iter().map(|(from, to)| Interval { from: at(*from), to: at(*to) });
        Hearing { heard: Some(at(ms)), ledger: Ledger::new(intervals), ..Hearing::default() }
    }

    const WAIT: Duration = Duration::from_millis(10);

    /// Judges twice: the first call notes what every instance has received; at the second call all answers have
    /// arrived.
    fn judge(returns: &mut ProbeReturns, until: i64, blind: &[(i64, i64)]) -> bool {
        let first = returns.judge(&heard(until, blind), WAIT, at(until));
        returns.judge(&heard(until + 1, blind), WAIT, at(until + 1)) || first
    }

    #[test]
    fn a_filter_is_proved_up_to_the_first_probe_that_is_missing() {
        let mut returns = ProbeReturns::default();
        (1..=5).for_each(|n| returns.sent(at(n * 10)));
        assert_eq!(returns.came(at(10)), [at(10)]);
        assert!(!returns.are_partial());
        assert_eq!(returns.came(at(30)), [], "the one before has not come yet");
        assert!(returns.are_partial());
        assert_eq!(returns.came(at(20)), [at(20), at(30)], "nothing is missing between them");
        assert_eq!(returns.came(at(20)), [], "it came before");
        assert_eq!(returns.came(at(50)), []);
        assert!(!returns.judge(&heard(50, &[]), WAIT, at(60)), "it may still be on its way to the broker");
        assert!(!returns.judge(&heard(51, &[]), WAIT, at(60)), "an answer may still be on its way");
        assert!(!returns.judge(&heard(60, &[]), WAIT, at(61)));
        assert!(returns.judge(&heard(61, &[]), WAIT, at(62)));
        assert!(!returns.are_taken(), "one is a coincidence");
        // The filter is heard again after eight probes in a row, counting the last one of the earlier round.
        (6..=13).for_each(|n| returns.sent(at(n * 10)));
        let proofs: Vec<Timestamp> = (6..=13).flat_map(|n| returns.came(at(n * 10))).collect();
        assert_eq!(proofs, [at(120), at(130)]);
    }

    #[test]
    fn a_stranger_that_takes_a_part_is_told_from_a_broker_that_withholds_all() {
        for (share, is_taken) in [(2, true), (3, true), (1, false)] {
            let mut returns = ProbeReturns::default();
            for n in 1..=30 {
                returns.sent(at(n * 10));
                if n % share != 0 {
                    returns.came(at(n * 10));
                }
            }
            assert!(judge(&mut returns, 1000, &[]));
            assert_eq!(returns.are_taken(), is_taken, "{share}");
            (31..=40).for_each(|n| returns.sent(at(n * 10)));
            let last = (31..=40).flat_map(|n| returns.came(at(n * 10))).last();
            assert_eq!((last, returns.are_taken()), (Some(at(400)), false), "it is over");
        }
    }

    #[test]
    fn probes_that_a_forgotten_member_may_have_got_accuse_nobody() {
        // The last probe that came to nobody, and whether it accuses a stranger.
        for (last, is_accused) in [(190, false), (200, true)] {
            let mut returns = ProbeReturns::default();
            returns.members_forgotten(at(200));
            for n in (10..=300).step_by(10) {
                returns.sent(at(n));
                if n % 20 == 0 && n != last || n > last {
                    returns.came(at(n));
                }
            }
            assert_eq!(judge(&mut returns, 1000, &[]), is_accused, "{last}");
        }
    }

    #[test]
    fn probes_that_are_lost_with_an_instance_or_a_connection_are_not_missing() {
        let mut returns = ProbeReturns::default();
        (1..=6).for_each(|n| returns.sent(at(n * 10)));
        assert_eq!(returns.came(at(50)), []);
        assert_eq!(returns.came(at(60)), []);
        assert!(!judge(&mut returns, 1000, &[(18, 55)]));
        returns.sent(at(70));
        assert_eq!(returns.came(at(70)), [at(50), at(60), at(70)], "each bounds the time that was blind");
        returns.sent(at(80));
        returns.forget();
        assert!(!judge(&mut returns, 2000, &[]));
    }
}
