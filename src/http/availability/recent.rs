//! Answers of the last minutes: for the fleet, a kind or a label over the usual range thousands of records are read, and pages ask
//! for that again and again. An answer that is older than [`NEW`] is given once more while a newer one is made; `until` in it says
//! of which moment it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::Availability;

/// How long an answer is not made anew.
const NEW: Duration = Duration::from_secs(10);
/// How long it is given while it is made anew.
const USABLE: Duration = Duration::from_secs(120);
/// The most answers that are kept; the oldest leaves for another one.
const MOST: usize = 200;

/// A kind, and a label, as the request has them.
pub(super) type Asked = (Option<String>, Option<String>);

#[derive(Clone, Default)]
pub(super) struct Recent(Arc<Mutex<HashMap<Asked, Kept>>>);

struct Kept {
    answer: Arc<Availability>,
    made: Instant,
    is_renewed: bool,
}

impl Recent {
    /// The answer, and whether the caller has to make a newer one.
    pub fn find(&self, asked: &Asked) -> Option<(Arc<Availability>, bool)> {
        let mut kept = self.lock();
        let found = kept.get_mut(asked).filter(|kept| kept.made.elapsed() < USABLE)?;
        let is_due = found.made.elapsed() >= NEW && !found.is_renewed;
        found.is_renewed |= is_due;
        Some((found.answer.clone(), is_due))
    }

    pub fn keep(&self, asked: Asked, answer: Arc<Availability>) {
        let mut kept = self.lock();
        if kept.len() >= MOST && !kept.contains_key(&asked) {
            let oldest = kept.iter().min_by_key(|(_, one)| one.made).map(|(asked, _)| asked.clone());
            oldest.and_then(|oldest| kept.remove(&oldest));
        }
        kept.insert(asked, Kept { answer, made: Instant::now(), is_renewed: false });
    }

    /// Another request makes a newer answer: this one failed.
    pub fn give_up(&self, asked: &Asked) {
        if let Some(kept) = self.lock().get_mut(asked) {
            kept.is_renewed = false;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Asked, Kept>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(units: u64) -> Arc<Availability> {
        let range = crate::presence::Interval {
            from: crate::clock::Timestamp::ZERO,
            to: crate::clock::Timestamp::ZERO,
        };
        Arc::new(super::super::summed(range, units, Duration::ZERO, std::iter::empty()))
    }

    fn asked(kind: &str) -> Asked {
        (Some(kind.to_owned()), None)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_given_while_one_caller_makes_a_newer_one() {
        let recent = Recent::default();
        let found = |kind: &str| recent.find(&asked(kind)).map(|(answer, is_due)| (answer.units, is_due));
        assert_eq!(found("pump"), None);
        recent.keep(asked("pump"), answer(1));
        assert_eq!(found("pump"), Some((1, false)));
        tokio::time::advance(NEW).await;
        assert_eq!(found("pump"), Some((1, true)), "one makes it");
        assert_eq!(found("pump"), Some((1, false)), "and others wait for nothing");
        recent.give_up(&asked("pump"));
        assert_eq!(found("pump"), Some((1, true)));
        recent.keep(asked("pump"), answer(2));
        assert_eq!(found("pump"), Some((2, false)));
        tokio::time::advance(USABLE).await;
        assert_eq!(found("pump"), None, "too old");
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_leaves_for_another_one() {
        let recent = Recent::default();
        for number in 0..=MOST {
            recent.keep(asked(&number.to_string()), answer(1));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(recent.find(&asked("0")).is_none() && recent.find(&asked("1")).is_some());
    }
}
