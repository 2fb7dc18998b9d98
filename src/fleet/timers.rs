//! Timers as clients register, cancel and read them: over HTTP, over MQTT, and from the pages.
//!
//! A client's timer is read ([`TimerRequest`]), compared with the configured classes and their limits, and written by
//! the store, which answers the outcome. Each timer of a batch is answered on its own: a bad one refuses no other.
//!
//! # How exact the limits are
//! The store counts the timers that wait; the counts are read again every second and before a timer is refused, and the
//! timers that this instance registers meanwhile are added to them. So one instance registers about as many as are
//! allowed, and several instances as many more as they register within a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::{Timestamp, monotonic};
use crate::presence::{NewTimer, Timer, TimerId, TimerState, TimerType};
use crate::reports::ReportPlan;
use crate::store::{
    EngineError, FindTimers, Result, StoredTimers, TimerCancelled, TimerClasses, TimerEngine, TimerPage,
    TimerPosition, TimerRegistered,
};
use crate::telemetry::{Telemetry, TimerOutcome};

mod request;

pub use request::{BadTimer, FARTHEST_DUE, TimerRequest};

/// How long counts are used.
const COUNTED: Duration = Duration::from_secs(1);

/// The most timers that one call of [`Timers::cancel_all`] reads.
const MAX_CANCEL: usize = 20_000;
/// How many timers one read covers.
const STEP: usize = 1000;

/// The classes of timers, and the limits of all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimerRules {
    /// The classes, also those of reports.
    pub classes: TimerClasses,
    /// The reports that are sent regularly: no client registers a timer of their classes.
    pub reports: Vec<ReportPlan>,
    /// The most timers of all classes together that wait.
    pub most: u64,
    /// How many timers one token may register, change and cancel in a second; 0: no limit.
    pub rate: u32,
}

/// Timers, by the current classes.
pub struct Timers {
    store: StoredTimers,
    rules: ArcSwap<TimerRules>,
    counts: Mutex<WaitingCounts>,
    /// Tells the loop that fires timers of new ones.
    registered: Arc<Notify>,
    telemetry: Arc<Telemetry>,
}

/// How many timers of each type wait.
#[derive(Default)]
struct WaitingCounts {
    waiting: BTreeMap<TimerType, u64>,
    /// When they were read.
    read_at: Option<Instant>,
}

/// Why a timer is not registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimerRefusal {
    pub reason: TimerOutcome,
    /// The reason in words.
    pub why: String,
}

/// The answer to registering a timer.
pub type TimerAnswer = std::result::Result<TimerRegistered, TimerRefusal>;

impl Timers {
    pub fn new(
        store: Arc<dyn TimerEngine>,
        rules: TimerRules,
        registered: Arc<Notify>,
        telemetry: Arc<Telemetry>,
    ) -> Timers {
        let (store, rules) = (StoredTimers::new(store), ArcSwap::from_pointee(rules));
        Timers { store, rules, counts: Mutex::default(), registered, telemetry }
    }

    /// The current classes and limits.
    pub fn rules(&self) -> Arc<TimerRules> {
        self.rules.load_full()
    }

    /// The stored timers.
    pub fn store(&self) -> StoredTimers {
        self.store.clone()
    }

    /// Notified when timers were registered in this process.
    pub fn registered(&self) -> Arc<Notify> {
        self.registered.clone()
    }

    /// Replaces the classes and limits.
    pub fn replace_rules(&self, rules: TimerRules) {
        self.rules.store(Arc::new(rules));
    }

    /// Registers timers, or changes waiting ones. Answers in order; if an id occurs twice, the last one counts. Safe
    /// to repeat.
    pub async fn register(&self, wanted: &[TimerRequest]) -> Result<Vec<TimerAnswer>> {
        let rules = self.rules();
        let mut answers: Vec<Option<TimerAnswer>> =
            wanted.iter().map(|one| unknown_class(&rules, &one.timer).map(Err)).collect();
        self.read_counts(COUNTED).await?;
        let mut beyond = self.reserve(wanted, &rules, &answers);
        if !beyond.is_empty() {
            // Some timers may have fired since they were counted.
            self.read_counts(Duration::ZERO).await?;
            beyond = self.reserve(wanted, &rules, &answers);
        }
        let is_reserved = |at: &usize| answers[*at].is_none() && !beyond.contains_key(at);
        let reserved: Vec<usize> = (0..wanted.len()).filter(is_reserved).collect();
        self.refuse_beyond(wanted, beyond, &mut answers).await?;
        self.write(wanted, &mut answers).await?;
        let is_new = |at: &usize| answers[*at] == Some(Ok(TimerRegistered::Created));
        self.release(reserved.into_iter().filter(|at| !is_new(at)).map(|at| &wanted[at].timer.timer_type));
        let answers: Vec<TimerAnswer> = answers.into_iter().flatten().collect();
        debug_assert_eq!(answers.len(), wanted.len());
        for answer in &answers {
            self.telemetry.timers_requested(outcome(answer), 1);
        }
        self.registered.notify_one();
        Ok(answers)
    }

    /// Takes room for the timers that have no answer yet. Answers the timers for which there is no room, and the limit
    /// that is reached: they may still be changes of waiting timers.
    fn reserve(
        &self,
        wanted: &[TimerRequest],
        rules: &TimerRules,
        answers: &[Option<TimerAnswer>],
    ) -> BTreeMap<usize, TimerRefusal> {
        let mut counts = self.counts.lock();
        let mut all: u64 = counts.waiting.values().sum();
        let mut beyond = BTreeMap::new();
        for (at, one) in wanted.iter().enumerate().filter(|(at, _)| answers[*at].is_none()) {
            let of = &one.timer.timer_type;
            let most = rules.classes.get(of).map_or(0, |class| class.most);
            let of_class = counts.waiting.entry(of.clone()).or_default();
            if *of_class >= most {
                let why = format!(
                    "{most} timers of the class {of} wait, which is its max; cancel some, or raise it"
                );
                beyond.insert(at, TimerRefusal { reason: TimerOutcome::ClassFull, why });
            } else if all >= rules.most {
                let why =
                    format!("{} timers wait, which is timers.max; cancel some, or raise it", rules.most);
                beyond.insert(at, TimerRefusal { reason: TimerOutcome::Full, why });
            } else {
                *of_class += 1;
                all += 1;
            }
        }
        beyond
    }

    /// Refuses the timers for which there is no room, except requests that only change a waiting timer.
    async fn refuse_beyond(
        &self,
        wanted: &[TimerRequest],
        beyond: BTreeMap<usize, TimerRefusal>,
        answers: &mut [Option<TimerAnswer>],
    ) -> Result<()> {
        if beyond.is_empty() {
            return Ok(());
        }
        let ids: Vec<TimerId> = beyond.keys().map(|at| wanted[*at].timer.id.clone()).collect();
        let stored = self.store.timers(&ids).await?;
        for ((at, refused), stored) in beyond.into_iter().zip(stored) {
            let is_change = stored.is_some_and(|timer| timer.state() == TimerState::Waiting);
            if !is_change {
                answers[at] = Some(Err(refused));
            }
        }
        Ok(())
    }

    /// Writes the timers that have no answer yet, in order: a call for each run of timers with the same `only_new`.
    async fn write(&self, wanted: &[TimerRequest], answers: &mut [Option<TimerAnswer>]) -> Result<()> {
        let open: Vec<usize> = (0..wanted.len()).filter(|at| answers[*at].is_none()).collect();
        for run in open.chunk_by(|one, next| wanted[*one].only_new == wanted[*next].only_new) {
            let timers: Vec<NewTimer> = run.iter().map(|at| wanted[*at].timer.clone()).collect();
            let only_new = wanted[run[0]].only_new;
            let registered = each(&timers, &|part| self.store.register(part, only_new).boxed()).await?;
            for (at, registered) in run.iter().zip(registered) {
                answers[*at] = Some(match registered {
                    Ok(TimerRegistered::Exists) => {
                        let why = format!("there is a timer {}, and if_absent is true", wanted[*at].timer.id);
                        Err(TimerRefusal { reason: TimerOutcome::Exists, why })
                    }
                    other => other,
                });
            }
        }
        Ok(())
    }

    /// Reads the counts again if they are older than `most`.
    async fn read_counts(&self, most: Duration) -> Result<()> {
        let is_old = self.counts.lock().read_at.is_none_or(|at| monotonic().duration_since(at) >= most);
        if is_old {
            let partitions: Vec<u16> = (0..self.store.partitions()).collect();
            let waiting = self.store.count_timers(&partitions).await?;
            *self.counts.lock() = WaitingCounts { waiting, read_at: Some(monotonic()) };
        }
        Ok(())
    }

    /// Gives room back.
    fn release<'a>(&self, types: impl Iterator<Item = &'a TimerType>) {
        let mut counts = self.counts.lock();
        for of in types {
            counts.waiting.entry(of.clone()).and_modify(|count| *count = count.saturating_sub(1));
        }
    }

    /// Counts a timer that was refused before it was passed to [`Timers::register`].
    pub fn refused(&self, why: TimerOutcome) {
        self.telemetry.timers_requested(why, 1);
    }

    /// Cancels timers. Answers, in order, which of them were waiting: a timer that was waiting never fires.
    pub async fn cancel(
        &self,
        ids: &[TimerId],
        now: Timestamp,
    ) -> Result<Vec<std::result::Result<bool, TimerRefusal>>> {
        let mut answers = Vec::with_capacity(ids.len());
        let rules = self.rules();
        for step in ids.chunks(STEP) {
            let cancelled = each(step, &|part| self.store.cancel(part, &rules.classes, now).boxed()).await?;
            answers.extend(cancelled.into_iter().map(|one| one.map(|one| one == TimerCancelled::Yes)));
        }
        for answer in &answers {
            let outcome = match answer {
                Ok(true) => TimerOutcome::Cancelled,
                Ok(false) => TimerOutcome::NotWaiting,
                Err(refused) => refused.reason,
            };
            self.telemetry.timers_requested(outcome, 1);
        }
        Ok(answers)
    }

    /// Cancels timers of a list that wait, a bounded number of them. Answers how many, and where to go on.
    pub async fn cancel_all(
        &self,
        mut find: FindTimers,
        now: Timestamp,
    ) -> Result<(usize, Option<TimerPosition>)> {
        find.states = vec![TimerState::Waiting];
        let (mut cancelled, mut looked_at) = (0, 0);
        while looked_at < MAX_CANCEL {
            let TimerPage { timers, next } = self.store.find_timers(&find, STEP).await?;
            if !timers.is_empty() {
                let ended = self.store.cancel_unchanged(&timers, &self.rules().classes, now).await?;
                cancelled += ended.iter().filter(|one| **one == TimerCancelled::Yes).count();
            }
            looked_at += STEP;
            find.after = next;
            if find.after.is_none() {
                break;
            }
        }
        self.telemetry.timers_requested(TimerOutcome::Cancelled, cancelled as u64);
        Ok((cancelled, find.after))
    }

    /// Timers, in order; `None`: unknown or removed.
    pub async fn read(&self, ids: &[TimerId]) -> Result<Vec<Option<Timer>>> {
        self.store.timers(ids).await
    }

    /// Up to `limit` timers of a list, and where the list goes on; fewer where many other timers lie between them.
    pub async fn list(&self, find: &FindTimers, limit: usize) -> Result<TimerPage> {
        self.store.find_timers(find, limit).await
    }
}

/// A call of the store about several timers.
type Ask<'a, 'b, T, A> = dyn Fn(&'a [T]) -> BoxFuture<'a, Result<Vec<A>>> + Send + Sync + 'b;

/// Calls the store for several timers. If a stored timer cannot be read, the others still get their answers.
async fn each<'a, T: Sync, A>(
    all: &'a [T],
    ask: &Ask<'a, '_, T, A>,
) -> Result<Vec<std::result::Result<A, TimerRefusal>>> {
    match ask(all).await {
        Ok(answers) => return Ok(answers.into_iter().map(Ok).collect()),
        Err(EngineError::Damaged(_)) => {}
        Err(error) => return Err(error),
    }
    let mut answers = Vec::with_capacity(all.len());
    for one in all.chunks(1) {
        match ask(one).await {
            Ok(answer) => answers.extend(answer.into_iter().map(Ok)),
            Err(EngineError::Damaged(why)) => {
                let why = format!("the stored timer cannot be read: {why}");
                answers.push(Err(TimerRefusal { reason: TimerOutcome::Unreadable, why }));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(answers)
}

fn outcome(answer: &TimerAnswer) -> TimerOutcome {
    match answer {
        Ok(TimerRegistered::Created) => TimerOutcome::Created,
        Ok(TimerRegistered::Changed) => TimerOutcome::Changed,
        Ok(TimerRegistered::HasFired) => TimerOutcome::HasFired,
        // A request that wants a new timer sees this answer as a refusal.
        Ok(TimerRegistered::Exists) => TimerOutcome::Exists,
        Err(refused) => refused.reason,
    }
}

fn unknown_class(rules: &TimerRules, timer: &NewTimer) -> Option<TimerRefusal> {
    let of = &timer.timer_type;
    let is_known = rules.classes.contains_key(of) && !rules.reports.iter().any(|one| one.timer_type == *of);
    let why = || format!("there is no class of timers {of}; configure a [[timer]] of that type");
    (!is_known).then(|| TimerRefusal { reason: TimerOutcome::UnknownClass, why: why() })
}
