//! The changes of a timer by a request, its moment, a step of the clock or an attempt.

use std::time::Duration;

use super::{NewTimer, Receipt, Timer, TimerLifecycle, TimerState};
use crate::clock::Timestamp;

/// After how long a timer that has ended is checked again, while a receiver has not got it yet.
const KEPT_LONGER: Duration = Duration::from_secs(3600);

/// The outcome of registering a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerRegistered {
    /// The id was unknown, or its timer has fired or was cancelled.
    Created,
    /// The timer was waiting, and has this moment, type and data now.
    Changed,
    /// Nothing is changed: the id is known, and only a new one was wanted.
    Exists,
    /// Nothing is changed: this timer has fired at this very moment, and `<timer>:<due ms>` fires once.
    HasFired,
}

/// The outcome of cancelling a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerCancelled {
    /// It was waiting, and never fires.
    Yes,
    /// The timer has changed since the caller read it; nothing is changed.
    Changed,
    /// It has fired, or was cancelled before.
    Ended,
    Unknown,
}

/// The result of a check of a timer that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DueTimer {
    Fires,
    /// It waits longer, as this timer.
    Waits(Timer),
    /// It does not wait any more.
    IsOver,
}

/// Whether a timer that has ended is removed when its time on record is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    Now,
    /// A receiver has not got the timer yet: it is checked again then.
    Later(Timestamp),
}

impl Timer {
    /// Registers a timer: the answer, and the timer that waits from now on; `None`: nothing is changed. `stepped`: the
    /// sum of the steps of the clock until now.
    pub fn registered(
        known: Option<&Timer>,
        new: NewTimer,
        only_new: bool,
        stepped: Duration,
    ) -> (TimerRegistered, Option<Timer>) {
        let answer = match known.map(|known| (&known.lifecycle, known.due)) {
            Some(_) if only_new => TimerRegistered::Exists,
            Some((TimerLifecycle::Waiting, _)) => TimerRegistered::Changed,
            Some((TimerLifecycle::Fired { .. }, due)) if due == new.due => TimerRegistered::HasFired,
            _ => TimerRegistered::Created,
        };
        let is_written = matches!(answer, TimerRegistered::Created | TimerRegistered::Changed);
        (answer, is_written.then(|| Timer::waiting(new, stepped)))
    }

    /// Cancels a timer, if it waits: the answer, and the timer as it is then; `None`: nothing is changed. `expected`:
    /// the only timer that is cancelled; `None`: any.
    pub fn cancelled(
        known: Option<&Timer>,
        expected: Option<&Timer>,
        now: Timestamp,
    ) -> (TimerCancelled, Option<Timer>) {
        let Some(known) = known else { return (TimerCancelled::Unknown, None) };
        if known.lifecycle != TimerLifecycle::Waiting {
            return (TimerCancelled::Ended, None);
        }
        if expected.is_some_and(|expected| expected != known) {
            return (TimerCancelled::Changed, None);
        }
        let lifecycle = TimerLifecycle::Cancelled { at: now };
        (TimerCancelled::Yes, Some(Timer { lifecycle, ..known.clone() }))
    }

    /// Checks whether the timer fires by `until`. `stepped`: the sum of the steps of the clock until now.
    pub fn looked_at(&self, until: Timestamp, stepped: Duration) -> DueTimer {
        if self.lifecycle != TimerLifecycle::Waiting {
            return DueTimer::IsOver;
        }
        match self.postponed(stepped) {
            Some(postponed) => DueTimer::Waits(postponed),
            None if self.due <= until => DueTimer::Fires,
            None => DueTimer::Waits(self.clone()),
        }
    }

    /// Whether the timer is removed when its time on record is over.
    pub fn forgotten(&self, now: Timestamp) -> Forgotten {
        if self.state() == TimerState::Fired { Forgotten::Later(now + KEPT_LONGER) } else { Forgotten::Now }
    }

    /// At how many receivers the only attempt has begun, and has no outcome.
    pub fn begun(&self) -> usize {
        match &self.lifecycle {
            TimerLifecycle::Fired { receipts, .. } => {
                receipts.iter().filter(|(_, one)| *one == Receipt::Begun).count()
            }
            _ => 0,
        }
    }

    /// The timer with its begun attempts given up: their outcomes are not recorded any more.
    pub fn given_up(mut self) -> Timer {
        if let TimerLifecycle::Fired { receipts, .. } = &mut self.lifecycle {
            let begun = receipts.iter_mut().filter(|(_, one)| *one == Receipt::Begun);
            begun.for_each(|(_, one)| *one = Receipt::Unknown);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: Timestamp = Timestamp::from_millis(1_764_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn new(due: Timestamp, data: &str) -> NewTimer {
        let (id, timer_type) = ("a".parse().unwrap(), "report".parse().unwrap());
        NewTimer { id, timer_type, due, is_span: false, data: data.parse().unwrap() }
    }

    fn timer(lifecycle: TimerLifecycle) -> Timer {
        Timer { lifecycle, ..Timer::waiting(new(DUE, "1"), Duration::ZERO) }
    }

    fn fired(receipt: Receipt) -> Timer {
        timer(TimerLifecycle::Fired { at: DUE, receipts: vec![("hook".to_owned(), receipt)] })
    }

    #[test]
    fn a_timer_is_registered_unless_its_id_is_taken_or_it_has_fired_at_that_moment() {
        use TimerRegistered::{Changed, Created, Exists, HasFired};
        let cancelled = timer(TimerLifecycle::Cancelled { at: DUE });
        let (waits, fired) = (timer(TimerLifecycle::Waiting), fired(Receipt::Delivered));
        let cases = [
            (None, DUE, false, Created),
            (None, DUE, true, Created),
            (Some(&waits), DUE, false, Changed),
            (Some(&waits), DUE, true, Exists),
            (Some(&cancelled), DUE, false, Created),
            (Some(&cancelled), DUE, true, Exists),
            (Some(&fired), DUE, false, HasFired),
            (Some(&fired), DUE, true, Exists),
            (Some(&fired), DUE + SECOND, false, Created),
        ];
        for (known, due, only_new, expected) in cases {
            let new = new(due, "2");
            let (answer, written) = Timer::registered(known, new.clone(), only_new, Duration::ZERO);
            let waits = Timer::waiting(new, Duration::ZERO);
            assert_eq!(answer, expected, "{known:?}");
            assert_eq!(written, matches!(expected, Created | Changed).then_some(waits), "{known:?}");
        }
    }

    #[test]
    fn a_timer_is_cancelled_while_it_waits_as_the_caller_knows_it() {
        let waits = timer(TimerLifecycle::Waiting);
        let other = Timer { due: DUE + SECOND, ..waits.clone() };
        let cancelled = timer(TimerLifecycle::Cancelled { at: DUE });
        let cases = [
            (None, None, TimerCancelled::Unknown),
            (Some(&waits), None, TimerCancelled::Yes),
            (Some(&waits), Some(&waits), TimerCancelled::Yes),
            (Some(&waits), Some(&other), TimerCancelled::Changed),
            (Some(&cancelled), None, TimerCancelled::Ended),
            (Some(&fired(Receipt::Pending)), Some(&waits), TimerCancelled::Ended),
        ];
        for (known, expected, answer) in cases {
            let after = (answer == TimerCancelled::Yes).then(|| cancelled.clone());
            assert_eq!(Timer::cancelled(known, expected, DUE), (answer, after), "{known:?}");
        }
    }

    #[test]
    fn a_due_timer_fires_and_a_span_waits_longer_by_what_the_clock_has_skipped() {
        let waits = timer(TimerLifecycle::Waiting);
        let span = Timer { stepped: Some(SECOND), ..waits.clone() };
        let postponed = Timer { due: DUE + SECOND, stepped: Some(2 * SECOND), ..waits.clone() };
        let cases = [
            (&waits, DUE, DueTimer::Fires),
            (&waits, DUE - SECOND, DueTimer::Waits(waits.clone())),
            (&span, DUE, DueTimer::Waits(postponed.clone())),
            (&postponed, DUE + SECOND, DueTimer::Fires),
            (&fired(Receipt::Pending), DUE, DueTimer::IsOver),
        ];
        for (timer, until, expected) in cases {
            assert_eq!(timer.looked_at(until, 2 * SECOND), expected, "{timer:?}");
        }
    }

    #[test]
    fn a_timer_is_forgotten_when_its_receivers_have_it_or_never_will() {
        for receipt in Receipt::ALL {
            let is_open = matches!(receipt, Receipt::Pending | Receipt::Begun);
            let expected = if is_open { Forgotten::Later(DUE + 3600 * SECOND) } else { Forgotten::Now };
            assert_eq!(fired(receipt).forgotten(DUE), expected, "{receipt:?}");
        }
        assert_eq!(timer(TimerLifecycle::Cancelled { at: DUE }).forgotten(DUE), Forgotten::Now);
    }

    #[test]
    fn attempts_that_have_begun_are_unknown_when_they_are_given_up() {
        for receipt in Receipt::ALL {
            let (is_begun, after) = (receipt == Receipt::Begun, fired(receipt).given_up());
            assert_eq!((fired(receipt).begun(), after.begun()), (usize::from(is_begun), 0));
            assert_eq!(after, fired(if is_begun { Receipt::Unknown } else { receipt }));
        }
    }
}
