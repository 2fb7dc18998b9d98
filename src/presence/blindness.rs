//! Blind time is not silence: the ledger of blind intervals and the arithmetic of observed silence.
//!
//! A unit is offline after its timeout and grace of *observed* silence. Blind time does not count as silence, so a
//! deadline moves by the blind time inside the silence. After an interval each unit gets additional time (`settle`), so
//! that a device that reconnects with the broker can send a heartbeat.
//!
//! # How much hearing is owed
//! Each interval owes `min(timeout, settle, its own length)` of hearing after its end. An interval in which heartbeats
//! were given to another client owes `min(timeout, settle)`, however short it was: a unit whose heartbeat was taken
//! sends the next one up to a timeout later. Hearing is counted cumulatively: a later blind interval pauses the count
//! and does not restart it. And one silence is never owed more than `min(timeout, settle)` beyond its timeout and grace
//! in all, so that even with a link that is blind most of the time a dead unit is detected.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

/// A time in which no heartbeat could be heard: from `from` up to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    pub from: Timestamp,
    /// The moment at which hearing began again; [`Timestamp::NEVER`] while that is not known.
    pub to: Timestamp,
}

impl Interval {
    pub fn length(&self) -> Duration {
        self.to.since(self.from)
    }

    /// Whether it is known when hearing began again.
    pub fn is_over(&self) -> bool {
        self.to < Timestamp::NEVER
    }

    pub fn contains(&self, moment: Timestamp) -> bool {
        self.from <= moment && moment < self.to
    }

    /// How much of it lies outside the intervals of a ledger.
    pub fn length_outside(&self, ledger: &Ledger) -> Duration {
        let shared = |one: &Interval| one.to.min(self.to).since(one.from.max(self.from));
        self.length().saturating_sub(ledger.intervals.iter().map(shared).sum())
    }
}

/// The blind intervals that still matter, in order and disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    intervals: Vec<Interval>,
    /// The ends of the intervals in which heartbeats may have been given to another client, in order.
    taken: Vec<Timestamp>,
}

impl Ledger {
    /// Orders the intervals and joins intervals that touch; leaves out empty intervals.
    pub fn new(intervals: impl IntoIterator<Item = Interval>) -> Ledger {
        let mut all: Vec<Interval> = intervals.into_iter().filter(|i| i.from < i.to).collect();
        all.sort_by_key(|i| i.from);
        let mut joined: Vec<Interval> = Vec::with_capacity(all.len());
        for next in all {
            match joined.last_mut() {
                Some(last) if next.from <= last.to => last.to = last.to.max(next.to),
                _ => joined.push(next),
            }
        }
        Ledger { intervals: joined, taken: Vec::new() }
    }

    /// This ledger, where heartbeats may have been given to another client in intervals with these ends.
    pub fn with_taken(mut self, ends: impl IntoIterator<Item = Timestamp>) -> Ledger {
        self.taken.extend(ends);
        self.taken.sort_unstable();
        self.taken.dedup();
        self
    }

    /// The ends of intervals in which heartbeats may have been given to another client.
    pub fn taken(&self) -> &[Timestamp] {
        &self.taken
    }

    /// The intervals, oldest first.
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// This ledger and one interval more: a pause is a blind interval of one unit.
    pub fn with(&self, more: Option<Interval>) -> std::borrow::Cow<'_, Ledger> {
        match more {
            None => std::borrow::Cow::Borrowed(self),
            Some(more) => std::borrow::Cow::Owned(self.and([more])),
        }
    }

    /// This ledger and more intervals.
    pub fn and(&self, more: impl IntoIterator<Item = Interval>) -> Ledger {
        let mut more = more.into_iter().peekable();
        if more.peek().is_none() {
            return self.clone();
        }
        Ledger::new(self.intervals.iter().copied().chain(more)).with_taken(self.taken.iter().copied())
    }

    /// The latest moment up to `moment` at which a heartbeat could have been heard.
    pub fn latest_hearing(&self, moment: Timestamp) -> Timestamp {
        let after = self.intervals.partition_point(|i| i.from <= moment);
        match self.intervals[..after].last() {
            Some(interval) if interval.contains(moment) => interval.from,
            _ => moment,
        }
    }

    /// When a silence that began at `seen` has been observed for `allowed`.
    ///
    /// `owed` bounds the hearing after blind time: `min(timeout, settle)`.
    pub fn deadline(&self, seen: Timestamp, allowed: Duration, owed: Duration) -> Timestamp {
        let mut deadline = seen + allowed;
        let mut latest = deadline + owed;
        let first = self.intervals.partition_point(|i| i.to <= seen);
        for interval in &self.intervals[first..] {
            if interval.from >= deadline {
                break;
            }
            let unheard = interval.to.since(interval.from.max(seen));
            deadline = deadline + unheard;
            latest = latest + unheard;
            let owed = if self.was_taken(interval, seen) { owed } else { owed.min(unheard) };
            deadline = deadline.max(interval.to + owed).min(latest);
        }
        deadline
    }
}

impl Ledger {
    /// Whether a heartbeat that was sent after `seen` may have been given to another client in the interval.
    fn was_taken(&self, interval: &Interval, seen: Timestamp) -> bool {
        let first = self.taken.partition_point(|end| *end <= interval.from.max(seen));
        self.taken.get(first).is_some_and(|end| *end <= interval.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn ledger(intervals: &[(i64, i64)]) -> Ledger {
        Ledger::new(intervals.iter().map(|&(from, to)| Interval { from: at(from), to: at(to) }))
    }

    #[test]
    fn a_deadline_moves_by_the_blind_time_inside_the_silence() {
        /// Blind intervals, last seen, allowed, owed at most, deadline.
        type Case = (&'static [(i64, i64)], i64, u64, u64, i64);
        let cases: [Case; 10] = [
            (&[], 0, 100, 10, 100),
            (&[(10, 20)], 0, 100, 0, 110),
            (&[(0, 20)], 10, 100, 0, 120), // only the part after it was last seen
            (&[(10, 20)], 20, 100, 10, 120), // over before the silence began
            (&[(100, 200)], 0, 100, 50, 100), // begins at the deadline: too late to matter
            (&[(99, 200)], 0, 100, 50, 250), // 1 ms was left, 50 ms of hearing are owed
            (&[(99, 101)], 0, 100, 50, 103), // a short interval owes no more than its own length
            (&[(10, 20), (50, 60)], 0, 100, 10, 120), // owed long ago
            (&[(90, 100), (105, 115)], 0, 100, 10, 125), // the second interval pauses the count
            (&[(10, 20), (15, 30)], 0, 100, 0, 120), // the overlap counts once
        ];
        for (intervals, seen, allowed, owed, deadline) in cases {
            let got = ledger(intervals).deadline(at(seen), ms(allowed), ms(owed));
            assert_eq!(got, at(deadline), "{intervals:?} seen {seen}");
        }
    }

    #[test]
    fn the_length_outside_a_ledger_leaves_out_what_both_share() {
        let outside = |intervals: &[(i64, i64)], from, to| {
            Interval { from: at(from), to: at(to) }.length_outside(&ledger(intervals))
        };
        assert_eq!(outside(&[], 10, 30), ms(20));
        assert_eq!(outside(&[(0, 12), (20, 25), (29, 90)], 10, 30), ms(12));
        assert_eq!(outside(&[(0, 10), (30, 40)], 10, 30), ms(20), "they touch");
        assert_eq!(outside(&[(0, 90)], 10, 30), ms(0));
        assert_eq!(outside(&[(0, 90)], 30, 30), ms(0));
    }

    #[test]
    fn a_unit_whose_heartbeats_were_taken_is_owed_its_timeout_however_short_that_was() {
        let taken = |ends: &[i64]| {
            let intervals: Vec<_> = ends.iter().map(|end| (end - 1, *end)).collect();
            ledger(&intervals).with_taken(ends.iter().map(|end| at(*end)))
        };
        // The unit sends a heartbeat every 40 ms, and two are lost: the next heartbeat is heard at 120.
        assert_eq!(ledger(&[(39, 40), (79, 80)]).deadline(at(0), ms(100), ms(100)), at(102));
        assert_eq!(taken(&[40, 80]).deadline(at(0), ms(100), ms(100)), at(180));
        assert_eq!(taken(&[40, 80]).deadline(at(80), ms(100), ms(100)), at(180), "it was heard since");
        // A client that takes every heartbeat does not keep a dead unit from being detected.
        let all: Vec<i64> = (1..100).map(|n| n * 40).collect();
        assert_eq!(taken(&all).deadline(at(0), ms(100), ms(100)), at(205));
        let more = Interval { from: at(500), to: at(600) };
        assert_eq!(taken(&[40, 80]).with(Some(more)).deadline(at(0), ms(100), ms(100)), at(180));
    }

    #[test]
    fn a_link_that_is_mostly_blind_does_not_prevent_detection() {
        // Blind for 9 of every 10 ms, without end.
        let intervals: Vec<_> = (0..100_000).map(|n| (n * 10 + 1, n * 10 + 10)).collect();
        let deadline = ledger(&intervals).deadline(at(0), ms(100), ms(50));
        let heard = heard_between(&ledger(&intervals), at(0), deadline);
        assert!((100..=150).contains(&heard), "detected after {heard} ms of hearing");
    }

    #[test]
    fn the_latest_hearing_is_the_start_of_the_interval_around_a_moment() {
        let ledger = ledger(&[(10, 20), (30, 40)]);
        for (moment, expected) in [(5, 5), (10, 10), (15, 10), (20, 20), (39, 30), (40, 40)] {
            assert_eq!(ledger.latest_hearing(at(moment)), at(expected));
        }
    }

    fn heard_between(ledger: &Ledger, from: Timestamp, to: Timestamp) -> u64 {
        let blind: Duration = ledger.intervals().iter().map(|i| i.to.min(to).since(i.from.max(from))).sum();
        (to.since(from) - blind).as_millis() as u64
    }

    fn blindness() -> impl Strategy<Value = Ledger> {
        prop::collection::vec((0i64..5_000, 1i64..500), 0..20).prop_map(|pairs| {
            Ledger::new(
                pairs.into_iter().map(|(from, length)| Interval { from: at(from), to: at(from + length) }),
            )
        })
    }

    proptest! {
        #[test]
        fn a_silence_is_observed_for_the_allowed_time_and_at_most_the_owed_hearing(
            ledger in blindness(), seen in 0i64..5_000, allowed in 1u64..2_000, owed in 0u64..500,
        ) {
            let deadline = ledger.deadline(at(seen), ms(allowed), ms(owed));
            let heard = heard_between(&ledger, at(seen), deadline);
            prop_assert!(heard >= allowed, "only {heard} of {allowed} ms were heard");
            prop_assert!(heard <= allowed + owed, "{heard} ms heard, {allowed} allowed");
        }

        #[test]
        fn the_hearing_that_each_interval_owes_passes_before_the_deadline_or_the_most_does(
            ledger in blindness(), seen in 0i64..5_000, allowed in 1u64..2_000, owed in 0u64..500,
        ) {
            let deadline = ledger.deadline(at(seen), ms(allowed), ms(owed));
            let most = heard_between(&ledger, at(seen), deadline) == allowed + owed;
            for interval in ledger.intervals() {
                if interval.to <= at(seen) || interval.from >= deadline { continue; }
                let due = (interval.to.since(interval.from.max(at(seen))).as_millis() as u64).min(owed);
                prop_assert!(most || heard_between(&ledger, interval.to, deadline) >= due);
            }
        }

        #[test]
        fn a_later_heartbeat_never_has_an_earlier_deadline(
            ledger in blindness(), seen in 0i64..5_000, later in 0i64..500,
            allowed in 1u64..2_000, owed in 0u64..500,
        ) {
            // The owed hearing is never more than the timeout.
            let owed = owed.min(allowed);
            let first = ledger.deadline(at(seen), ms(allowed), ms(owed));
            let second = ledger.deadline(at(seen + later), ms(allowed), ms(owed));
            prop_assert!(second >= first);
        }

        #[test]
        fn blindness_after_the_deadline_changes_nothing(
            ledger in blindness(), seen in 0i64..5_000, allowed in 1u64..2_000, owed in 0u64..500,
            later in 0i64..500, length in 1i64..500,
        ) {
            let deadline = ledger.deadline(at(seen), ms(allowed), ms(owed));
            let from = deadline.as_millis() + later;
            let more = ledger.with(Some(Interval { from: at(from), to: at(from + length) })).into_owned();
            prop_assert_eq!(more.deadline(at(seen), ms(allowed), ms(owed)), deadline);
        }
    }
}
