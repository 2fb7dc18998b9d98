//! Answers that requests share: in a storm, a hundred operators open the same page.
//!
//! An answer is computed once for all requests that wait for it. A request that accepts an older answer gets it at
//! once, and the first request that finds it old has the next one computed in the background. Without requests no
//! answer is computed.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use super::http_error::HttpError;
use crate::clock::monotonic;

/// The greatest age of an answer. The time of its computation is added, so slow answers are shared too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MaxAge {
    /// An older answer is served while the next one is computed.
    new: Duration,
    /// An older answer is not served.
    usable: Duration,
}

impl MaxAge {
    /// The computation begins after the request.
    pub const EXACT: MaxAge = MaxAge { new: Duration::ZERO, usable: Duration::ZERO };
    /// For pages and streams of a small fleet, of which many may be open.
    pub const RECENT: MaxAge = MaxAge { new: Duration::from_millis(900), usable: Duration::from_millis(900) };
    /// For counts that change once a minute.
    pub const PER_MINUTE: MaxAge = MaxAge { new: Duration::from_secs(5), usable: Duration::from_secs(15) };
    /// For pages that read many records.
    pub const OF_RECORDS: MaxAge = MaxAge { new: Duration::from_secs(2), usable: Duration::from_secs(2) };
    /// For figures of the last weeks.
    pub const AVAILABILITY: MaxAge =
        MaxAge { new: Duration::from_secs(10), usable: Duration::from_secs(120) };
    /// For a large fleet: a request shares an answer of the last second.
    pub const LARGE_FLEET: MaxAge =
        MaxAge { new: Duration::from_millis(700), usable: Duration::from_millis(1500) };

    /// Returns whether an answer from that moment may be served now.
    fn has_usable(self, made: Instant, now: Instant) -> bool {
        !self.usable.is_zero() && now.duration_since(made) < self.usable
    }
}

/// The last answers, by their questions. Cheap to share.
pub(super) struct SharedAnswers<T> {
    kept: Arc<Mutex<HashMap<String, Arc<CachedAnswer<T>>>>>,
    /// The most answers; a further one replaces the oldest.
    most: usize,
}

impl<T> Clone for SharedAnswers<T> {
    fn clone(&self) -> SharedAnswers<T> {
        SharedAnswers { kept: self.kept.clone(), most: self.most }
    }
}

struct CachedAnswer<T> {
    last: Mutex<Option<SharedAnswer<T>>>,
    /// Held while an answer is computed.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl<T> Default for CachedAnswer<T> {
    fn default() -> CachedAnswer<T> {
        CachedAnswer { last: Mutex::new(None), turn: Arc::default() }
    }
}

struct SharedAnswer<T> {
    answer: Arc<T>,
    /// When the computation of the answer began, and when it ended.
    began: Instant,
    made: Instant,
}

impl<T> Clone for SharedAnswer<T> {
    fn clone(&self) -> SharedAnswer<T> {
        SharedAnswer { answer: self.answer.clone(), ..*self }
    }
}

impl<T: Send + Sync + 'static> SharedAnswers<T> {
    /// `most`: the most answers.
    pub fn new(most: usize) -> SharedAnswers<T> {
        SharedAnswers { kept: Arc::default(), most }
    }

    /// The answer to `asked`; `make` computes it.
    ///
    /// # Errors
    /// The error of `make`: the next request calls it again.
    ///
    /// Cancel-safe: if a request is dropped, the next waiting request computes the answer.
    pub async fn get<F>(&self, asked: &str, age: MaxAge, make: F) -> Result<Arc<T>, HttpError>
    where
        F: Future<Output = Result<T, HttpError>> + Send + 'static,
    {
        let (kept, asked_at) = (self.kept(asked), monotonic());
        let is_usable =
            |last: &SharedAnswer<T>| last.began >= asked_at || age.has_usable(last.made, monotonic());
        if let Some(last) = kept.last().filter(is_usable) {
            if last.made + age.new <= asked_at
                && let Ok(turn) = kept.turn.clone().try_lock_owned()
            {
                // If the background task fails, the next request computes the answer itself and gets the error.
                tokio::spawn(async move { kept.renew(make, &turn).await });
            }
            return Ok(last.answer);
        }
        let turn = kept.turn.clone().lock_owned().await;
        let answer = match kept.last().filter(is_usable) {
            Some(last) => Ok(last.answer),
            None => kept.renew(make, &turn).await,
        };
        drop(turn);
        if age.usable.is_zero() {
            self.leave(asked, &kept);
        }
        answer
    }

    /// Removes an expired answer, unless a request waits for the next one.
    fn leave(&self, asked: &str, kept: &Arc<CachedAnswer<T>>) {
        let mut all = self.kept.lock();
        // The other holder is the map.
        if Arc::strong_count(kept) == 2 && all.get(asked).is_some_and(|of_map| Arc::ptr_eq(of_map, kept)) {
            all.remove(asked);
        }
    }

    /// Answers computed before this call are not served any more.
    pub fn forget(&self) {
        self.kept.lock().clear();
    }

    fn kept(&self, asked: &str) -> Arc<CachedAnswer<T>> {
        let mut all = self.kept.lock();
        if let Some(kept) = all.get(asked) {
            return kept.clone();
        }
        if all.len() >= self.most {
            // An answer that a request holds is being computed. Of the others, one without a result is removed first.
            let free = all.iter().filter(|(_, kept)| Arc::strong_count(kept) == 1);
            let oldest = free.min_by_key(|(_, kept)| kept.last().map(|last| last.began));
            // If all answers are being computed, the new one is not shared.
            let Some(oldest) = oldest.map(|(asked, _)| asked.clone()) else { return Arc::default() };
            all.remove(&oldest);
        }
        all.entry(asked.to_owned()).or_default().clone()
    }
}

impl<T> CachedAnswer<T> {
    /// Computes the next answer; holding `_turn` keeps other requests from computing it too.
    async fn renew(
        &self,
        make: impl Future<Output = Result<T, HttpError>>,
        _turn: &OwnedMutexGuard<()>,
    ) -> Result<Arc<T>, HttpError> {
        let began = monotonic();
        let answer = Arc::new(make.await?);
        *self.last.lock() = Some(SharedAnswer { answer: answer.clone(), began, made: monotonic() });
        Ok(answer)
    }

    fn last(&self) -> Option<SharedAnswer<T>> {
        self.last.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const NEW: MaxAge = MaxAge { new: HOUR, usable: HOUR };
    const DUE: MaxAge = MaxAge { new: Duration::ZERO, usable: HOUR };

    /// Counts the computed answers; each waits for a permit.
    struct Maker {
        made: Arc<AtomicU32>,
        permits: Arc<Semaphore>,
        answers: SharedAnswers<u32>,
    }

    impl Maker {
        fn new(permits: usize) -> Maker {
            Maker {
                made: Arc::default(),
                permits: Arc::new(Semaphore::new(permits)),
                answers: SharedAnswers::new(2),
            }
        }

        async fn ask(&self, asked: &str, age: MaxAge) -> Result<u32, HttpError> {
            let (made, permits) = (self.made.clone(), self.permits.clone());
            let make = async move {
                permits.acquire().await.expect("it stays open").forget();
                Ok(made.fetch_add(1, Ordering::SeqCst) + 1)
            };
            self.answers.get(asked, age, make).await.map(|answer| *answer)
        }

        /// Waits until the background task has stopped at a permit or at its end.
        async fn settle(&self) {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn requests_that_wait_share_one_answer_that_was_begun_after_they_asked() {
        let maker = Maker::new(0);
        let mut first = Box::pin(maker.ask("a", MaxAge::EXACT));
        assert!(futures_util::poll!(&mut first).is_pending());
        let mut others = Box::pin(join_all((0..9).map(|_| maker.ask("a", MaxAge::EXACT))));
        assert!(futures_util::poll!(&mut others).is_pending());
        maker.permits.add_permits(9);
        assert_eq!(first.await.unwrap(), 1);
        let others: Vec<u32> = others.await.into_iter().map(Result::unwrap).collect();
        assert_eq!(others, [2; 9], "the first answer may lack what they have done before they asked");
        assert_eq!(maker.ask("a", MaxAge::EXACT).await.unwrap(), 3);
        assert!(maker.answers.kept.lock().is_empty(), "no later request may have it");
    }

    #[tokio::test]
    async fn an_answer_is_given_while_the_next_one_is_made_and_no_longer_than_it_is_usable() {
        let maker = Maker::new(1);
        assert_eq!(maker.ask("a", NEW).await.unwrap(), 1);
        assert_eq!(maker.ask("a", NEW).await.unwrap(), 1);
        for _ in 0..3 {
            assert_eq!(maker.ask("a", DUE).await.unwrap(), 1, "nobody waits for the next one");
            maker.settle().await;
        }
        maker.permits.add_permits(5);
        maker.settle().await;
        assert_eq!(maker.ask("a", NEW).await.unwrap(), 2);
        maker.settle().await;
        assert_eq!(maker.made.load(Ordering::SeqCst), 2, "one of them made it");
        assert_eq!(maker.ask("a", MaxAge::EXACT).await.unwrap(), 3, "too old");
    }

    #[tokio::test]
    async fn a_request_that_is_given_up_lets_the_next_one_make_the_answer() {
        let maker = Maker::new(0);
        let mut first = Box::pin(maker.ask("a", NEW));
        assert!(futures_util::poll!(&mut first).is_pending());
        let mut second = Box::pin(maker.ask("a", NEW));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(first);
        maker.permits.add_permits(1);
        assert_eq!(second.await.unwrap(), 1);
    }

    #[tokio::test]
    async fn answers_whose_making_failed_or_was_given_up_take_no_room() {
        let maker = Maker::new(0);
        for number in 0..9 {
            let asked = number.to_string();
            let mut asking = Box::pin(maker.ask(&asked, NEW));
            assert!(futures_util::poll!(&mut asking).is_pending());
        }
        maker.permits.add_permits(2);
        assert_eq!(maker.ask("a", NEW).await.unwrap(), 1);
        assert_eq!(maker.ask("a", NEW).await.unwrap(), 1, "it is kept");
    }

    #[tokio::test]
    async fn an_answer_that_is_forgotten_while_it_is_made_is_given_to_no_later_request() {
        let maker = Maker::new(0);
        let mut first = Box::pin(maker.ask("a", NEW));
        assert!(futures_util::poll!(&mut first).is_pending());
        maker.answers.forget();
        maker.permits.add_permits(2);
        assert_eq!(first.await.unwrap(), 1);
        assert_eq!(maker.ask("a", NEW).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn the_oldest_answer_leaves_for_another_one() {
        let (maker, age) = (Maker::new(9), NEW);
        for (number, asked) in ["a", "b", "c"].into_iter().enumerate() {
            assert_eq!(maker.ask(asked, age).await.unwrap(), number as u32 + 1);
        }
        assert_eq!(maker.ask("b", age).await.unwrap(), 2);
        assert_eq!(maker.ask("a", age).await.unwrap(), 4, "it had left");
        assert_eq!(maker.answers.kept.lock().len(), 2);
    }
}
