//! Answers of the last minutes. For the fleet, a kind or a label over the usual range, an answer needs thousands of
//! records, and pages request it often. An answer older than [`FRESH`] is served once more while a newer one is
//! computed; its `until` gives its moment.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::AvailabilityAnswer;

/// How long an answer is served before a newer one is computed.
const FRESH: Duration = Duration::from_secs(10);
/// How long an answer is served while a newer one is computed.
const USABLE: Duration = Duration::from_secs(120);
/// The most answers that are kept; a further one replaces the oldest.
const MAX_ANSWERS: usize = 200;

/// A kind, and a label, as the request has them.
pub(super) type AnswerKey = (Option<String>, Option<String>);

#[derive(Clone, Default)]
pub(super) struct RecentAnswers(Arc<Mutex<HashMap<AnswerKey, CachedAvailability>>>);

struct CachedAvailability {
    answer: Arc<AvailabilityAnswer>,
    /// When the computation of the answer began.
    made: Instant,
    is_renewed: bool,
}

impl RecentAnswers {
    /// The answer, and whether the caller has to compute a newer one.
    pub fn find(&self, asked: &AnswerKey, now: Instant) -> Option<(Arc<AvailabilityAnswer>, bool)> {
        let mut kept = self.lock();
        let found = kept.get_mut(asked).filter(|kept| now - kept.made < USABLE)?;
        let is_due = now - found.made >= FRESH && !found.is_renewed;
        found.is_renewed |= is_due;
        Some((found.answer.clone(), is_due))
    }

    /// Stores an answer whose computation began at `made`, unless a newer one is stored already.
    pub fn keep(&self, asked: AnswerKey, answer: Arc<AvailabilityAnswer>, made: Instant) {
        let mut kept = self.lock();
        if kept.get(&asked).is_some_and(|newer| newer.made > made) {
            return;
        }
        if kept.len() >= MAX_ANSWERS && !kept.contains_key(&asked) {
            let oldest = kept.iter().min_by_key(|(_, one)| one.made).map(|(asked, _)| asked.clone());
            oldest.and_then(|oldest| kept.remove(&oldest));
        }
        kept.insert(asked, CachedAvailability { answer, made, is_renewed: false });
    }

    /// Notes that the caller failed to compute a newer answer, so that another request tries.
    pub fn give_up(&self, asked: &AnswerKey) {
        if let Some(kept) = self.lock().get_mut(asked) {
            kept.is_renewed = false;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AnswerKey, CachedAvailability>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    fn answer(units: u64) -> Arc<AvailabilityAnswer> {
        let range = crate::presence::Interval {
            from: crate::clock::Timestamp::ZERO,
            to: crate::clock::Timestamp::ZERO,
        };
        let spent = crate::presence::TimeSpent::default();
        Arc::new(super::super::AvailabilityPart { units, spent, is_complete: true }.answer(range, None))
    }

    fn asked(kind: &str) -> AnswerKey {
        (Some(kind.to_owned()), None)
    }

    #[test]
    fn an_answer_is_given_while_one_caller_makes_a_newer_one() {
        let (recent, begin) = (RecentAnswers::default(), monotonic());
        let found =
            |at: Instant| recent.find(&asked("pump"), at).map(|(answer, is_due)| (answer.units, is_due));
        assert_eq!(found(begin), None);
        recent.keep(asked("pump"), answer(1), begin);
        assert_eq!(found(begin), Some((1, false)));
        let later = begin + FRESH;
        assert_eq!(found(later), Some((1, true)), "one makes it");
        assert_eq!(found(later), Some((1, false)), "and others wait for nothing");
        recent.give_up(&asked("pump"));
        assert_eq!(found(later), Some((1, true)));
        recent.keep(asked("pump"), answer(2), later);
        assert_eq!(found(later), Some((2, false)));
        recent.keep(asked("pump"), answer(1), begin);
        assert_eq!(found(later), Some((2, false)), "a slow answer does not set it back");
        assert_eq!(found(later + USABLE), None, "too old");
    }

    #[test]
    fn the_oldest_leaves_for_another_one() {
        let (recent, begin) = (RecentAnswers::default(), monotonic());
        for number in 0..=MAX_ANSWERS {
            recent.keep(asked(&number.to_string()), answer(1), begin + Duration::from_millis(number as u64));
        }
        assert!(recent.find(&asked("0"), begin + FRESH).is_none());
        assert!(recent.find(&asked("1"), begin + FRESH).is_some());
    }
}
