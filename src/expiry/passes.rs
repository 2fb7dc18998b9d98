//! What is under way to find silences, and what it left: decides what is begun next, and does nothing itself.
//!
//! # Why nothing waits for anything else
//! To ask what is due, to look at it and to write it down takes the engine three answers. Where each takes
//! half a second, a unit that comes due meanwhile must not wait for the last of them, and proof that
//! arrives meanwhile must find the units that wait for it. So asking, sweeping and looking go on side by side. No unit is
//! looked at twice at a time: a sweep goes on where the one before it in its partition ends, and leaves
//! out those units that hints named or that wait for more hearing.
//!
//! Near by, a partition has one sweep at a time: what comes due meanwhile is looked at together, which costs less.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::presence::Unit;
use crate::store::{EngineError, Result};
use crate::telemetry::CheckSource;

/// Units that could not be decided upon; the sweep finds more of them every tick.
const MOST_WAITING: usize = 100_000;

const MILLISECOND: Duration = Duration::from_millis(1);

/// How long after one look it is seen whether others are done with what is due in theirs, and what came due since
/// sweeps began.
const MEANWHILE: Duration = Duration::from_millis(10);

/// Partitions that are swept at the same time, each on a task of its own: all that an instance has of a new
/// fleet beside another one, for a partition that waits looks to the other instance as if it were not swept.
const AT_ONCE: usize = 8;

/// The same where the engine is far away, and how many sweeps one partition has there.
const FAR_AT_ONCE: usize = 128;
const FAR_OF_ONE: usize = 8;

/// To ask for what is due, to look at it, to write it down, and to wait for a turn.
const ROUND_TRIPS_OF_A_SWEEP: u32 = 4;

/// How many looks at units of hints are under way at once, near by and far away.
const HINTS_AT_ONCE: usize = 1;
const FAR_HINTS_AT_ONCE: usize = 8;

/// The unit that is first in a partition.
pub(super) struct First {
    pub name: String,
    /// Since when no instance checks it that could.
    pub since: Timestamp,
}

/// The first look that a partition needs, and when this instance takes it on.
#[derive(Clone, Copy)]
pub(super) struct FirstCheck {
    pub partition: u16,
    pub at: Timestamp,
    /// See [`First::since`].
    pub since: Timestamp,
    /// How long it is left to another instance.
    pub patience: Duration,
    /// How far beyond what was heard units are looked at.
    pub slack: Duration,
}

impl FirstCheck {
    /// When this instance takes it on.
    fn our_turn(&self) -> Timestamp {
        self.since + self.patience
    }

    fn is_own(&self) -> bool {
        self.patience.is_zero()
    }
}

/// Units of a partition whose look is after one moment and not after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub partition: u16,
    pub after: Option<Timestamp>,
    pub until: Timestamp,
}

/// A look at every unit that is due.
pub(super) struct Sweep {
    pub due: Due,
    /// How far Rollcall had heard when it began.
    pub heard: Option<Timestamp>,
    /// Units that no other sweep looks at until this one ends.
    pub held: Vec<Unit>,
}

/// A look at units that are known by name.
pub(super) struct Check {
    pub units: Vec<Unit>,
    pub source: CheckSource,
    /// How far Rollcall had heard when it began.
    pub heard: Option<Timestamp>,
}

/// Something has ended.
pub(super) enum Done {
    /// The index was asked what is due first in each partition.
    Asked(Result<Vec<Option<(Timestamp, String)>>>),
    /// With the units that could not be decided.
    Checked(Check, Result<Vec<Unit>>),
    /// With the units that could not be decided.
    Swept(Sweep, Result<Vec<Unit>>),
}

/// Units that sweeps leave out: they are being looked at, or wait for more hearing.
#[derive(Clone, Default)]
pub(super) struct Taken(Arc<Mutex<HashSet<Unit>>>);

impl Taken {
    pub fn leave_out(&self, units: &mut Vec<Unit>) {
        let taken = self.lock();
        if !taken.is_empty() {
            units.retain(|unit| !taken.contains(unit));
        }
    }

    pub fn add<'a>(&self, units: impl IntoIterator<Item = &'a Unit>) {
        self.lock().extend(units.into_iter().cloned());
    }

    fn free<'a>(&self, units: impl IntoIterator<Item = &'a Unit>) {
        let mut taken = self.lock();
        for unit in units {
            taken.remove(unit);
        }
    }

    fn contains(&self, unit: &Unit) -> bool {
        self.lock().contains(unit)
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Unit>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

/// What is under way, and what it left.
pub(super) struct Passes {
    /// The unit that was first in each partition.
    pub firsts: HashMap<u16, First>,
    pub taken: Taken,
    /// Units that wait for more hearing, by what named them.
    waiting: HashMap<Unit, CheckSource>,
    /// More of them than are kept.
    is_overfull: bool,
    /// When those that wait were looked at last though nothing new was heard.
    began: Option<Instant>,
    /// How far Rollcall had heard when they were looked at last.
    heard: Option<Timestamp>,
    /// More was heard while some were looked at that still wait.
    is_stale: bool,
    /// Something is due further than Rollcall has heard.
    is_deaf: bool,
    /// Up to when partitions were swept, or are being swept.
    swept: HashMap<u16, Timestamp>,
    /// How many sweeps of a partition are under way.
    sweeping: HashMap<u16, usize>,
    /// How many looks at units of hints are.
    hints: usize,
    /// Partitions whose sweep failed: they rest until more was heard, or for a tick.
    resting: HashSet<u16>,
    /// What failed the last time that it was tried; `None` is a look at units that are known by name.
    failing: HashSet<Option<u16>>,
    /// The index is being asked.
    is_asking: bool,
    /// When it was asked last.
    asked: Option<Instant>,
    /// There may be news in it.
    is_news: bool,
    /// There may be, in a little while.
    is_news_soon: bool,
    /// Some is due that is others'.
    is_with_others: bool,
    /// When the next unit comes due that no step checks yet.
    next: Timestamp,
}

/// Where a sweep begins of a partition that was swept up to `until`. A look sets the next one for when the unit
/// comes due; where the engine is far away, sweeps may have gone past that when it is written.
fn behind(until: Timestamp, round_trip: Duration) -> Timestamp {
    until - ROUND_TRIPS_OF_A_SWEEP * round_trip
}

impl Default for Passes {
    fn default() -> Passes {
        Passes {
            firsts: HashMap::new(),
            taken: Taken::default(),
            waiting: HashMap::new(),
            is_overfull: false,
            began: None,
            heard: None,
            is_stale: false,
            is_deaf: false,
            swept: HashMap::new(),
            sweeping: HashMap::new(),
            hints: 0,
            resting: HashSet::new(),
            failing: HashSet::new(),
            is_asking: false,
            asked: None,
            is_news: true,
            is_news_soon: false,
            is_with_others: false,
            next: Timestamp::NEVER,
        }
    }
}

impl Passes {
    /// The looks at those that wait, if Rollcall has heard more or a tick has passed. With the tick the index is read
    /// from its beginning again: what was put in behind a sweep is found so.
    /// `apart` says which of them are looked at apart from each other.
    pub fn begin(
        &mut self,
        heard: Option<Timestamp>,
        tick: Duration,
        is_far: bool,
        apart: impl Fn(&Unit) -> u16,
    ) -> Vec<Check> {
        let is_tick = self.began.is_none_or(|began| began.elapsed() >= tick);
        if !is_tick && !self.is_stale && self.heard == heard {
            return Vec::new();
        }
        self.is_news |= self.is_deaf || !self.resting.is_empty();
        self.resting.clear();
        if is_tick || self.is_overfull {
            let sweeping = &self.sweeping;
            self.swept.retain(|partition, _| !is_far && sweeping.contains_key(partition));
            self.is_news = true;
        }
        if is_tick {
            self.began = Some(Instant::now());
        }
        (self.heard, self.is_stale, self.is_overfull) = (heard, false, false);
        let mut checks: HashMap<(CheckSource, u16), Vec<Unit>> = HashMap::new();
        for (unit, source) in self.waiting.drain() {
            let part = apart(&unit);
            checks.entry((source, part)).or_default().push(unit);
        }
        self.hints += checks.keys().filter(|(source, _)| *source == CheckSource::Notification).count();
        checks.into_iter().map(|((source, _), units)| Check { units, source, heard }).collect()
    }

    /// Whether more hearing would have something looked at.
    pub fn wait_for_hearing(&self) -> bool {
        self.is_deaf || self.is_overfull || !self.waiting.is_empty() || !self.resting.is_empty()
    }

    /// Something has changed: the index is asked at once.
    pub fn ask_at_once(&mut self) {
        self.is_news = true;
    }

    /// Whether the index is to be asked now.
    pub fn is_time_to_ask(&self, now: Timestamp, tick: Duration) -> bool {
        !self.is_asking && self.until_asking(now, tick).is_zero()
    }

    /// For how long there is nothing to do, unless something ends or is heard.
    pub fn rest(&self, now: Timestamp, tick: Duration) -> Duration {
        if self.is_asking { tick } else { self.until_asking(now, tick) }
    }

    fn until_asking(&self, now: Timestamp, tick: Duration) -> Duration {
        let Some(asked) = self.asked.filter(|_| !self.is_news) else { return Duration::ZERO };
        let soon = if self.is_news_soon { MEANWHILE.min(tick) } else { tick };
        soon.saturating_sub(asked.elapsed()).min(self.next.since(now))
    }

    /// The index is asked. Answers after when, in partitions that are being swept or whose rest waits: see
    /// [`behind`].
    pub fn ask(&mut self, round_trip: Duration, is_own: impl Fn(u16) -> bool) -> HashMap<u16, Timestamp> {
        (self.is_asking, self.is_news, self.is_news_soon) = (true, false, false);
        self.next = Timestamp::NEVER;
        let own = self.swept.iter().filter(|(partition, _)| is_own(**partition));
        own.map(|(partition, until)| (*partition, behind(*until, round_trip))).collect()
    }

    /// The index has answered.
    pub fn answered(&mut self) {
        (self.is_asking, self.asked) = (false, Some(Instant::now()));
    }

    /// It has not: it is asked again after a tick.
    pub fn not_answered(&mut self) {
        self.answered();
        (self.is_news, self.next) = (false, Timestamp::NEVER);
    }

    /// The sweeps that begin, of those partitions whose turn it is by `latest`.
    pub fn take(
        &mut self,
        firsts: &[FirstCheck],
        latest: Timestamp,
        heard: Option<Timestamp>,
        round_trip: Duration,
    ) -> Vec<Due> {
        let is_far = !round_trip.is_zero();
        let (most, most_of_one) = if is_far { (FAR_AT_ONCE, FAR_OF_ONE) } else { (AT_ONCE, 1) };
        let mut under_way: usize = self.sweeping.values().sum();
        let mut due = Vec::new();
        (self.is_deaf, self.is_with_others) = (false, false);
        let is_due = |failing: &Option<u16>| {
            failing.is_none_or(|partition| {
                firsts.iter().any(|first| first.partition == partition && first.at <= latest)
            })
        };
        self.failing.retain(is_due);
        for first in firsts {
            if first.our_turn() > latest {
                self.next = self.next.min(first.our_turn() + MILLISECOND);
                self.is_with_others |= first.at <= latest;
                continue;
            }
            let wanted = latest - first.patience;
            let until = heard.map_or(Timestamp::ZERO, |heard| wanted.min(heard + first.slack));
            // All that is due beyond what was heard waits for more hearing, and so will what comes due next.
            self.is_deaf |= until < wanted && first.is_own();
            let after = self.swept.get(&first.partition).copied();
            if first.at > until || after.is_some_and(|after| after >= until) {
                continue;
            }
            let of_one = self.sweeping.get(&first.partition).copied().unwrap_or_default();
            // When one of those that are under way ends it is asked again.
            if self.resting.contains(&first.partition) || of_one >= most_of_one || under_way >= most {
                continue;
            }
            under_way += 1;
            *self.sweeping.entry(first.partition).or_default() += 1;
            self.swept.insert(first.partition, until);
            let after = after.map(|after| behind(after, round_trip));
            due.push(Due { partition: first.partition, after, until });
        }
        self.is_news_soon = self.is_with_others || !due.is_empty();
        due
    }

    /// Whether very many units may still be due.
    pub fn is_storm(&self) -> bool {
        self.is_with_others || !self.sweeping.is_empty()
    }

    /// Whether a sweep of that partition is under way.
    pub fn is_being_swept(&self, partition: u16) -> bool {
        self.sweeping.contains_key(&partition)
    }

    /// A sweep has ended.
    pub fn swept(
        &mut self,
        sweep: Sweep,
        undecided: Result<Vec<Unit>>,
        heard: Option<Timestamp>,
    ) -> Result<()> {
        let Due { partition, after, .. } = sweep.due;
        let others = self.sweeping.get(&partition).copied().unwrap_or_default().saturating_sub(1);
        if others == 0 {
            self.sweeping.remove(&partition);
        } else {
            self.sweeping.insert(partition, others);
        }
        self.taken.free(&sweep.held);
        self.is_news = true;
        match undecided {
            Ok(undecided) => {
                self.failing.remove(&Some(partition));
                if undecided.is_empty() && after.is_none() && others == 0 {
                    self.swept.remove(&partition);
                }
                self.wait(undecided, CheckSource::Sweep, sweep.heard != heard);
                Ok(())
            }
            Err(error) => {
                self.swept.remove(&partition);
                self.resting.insert(partition);
                self.failing.insert(Some(partition));
                Err(error)
            }
        }
    }

    /// Whether there is room for one more look at units of hints.
    pub fn has_room_for_hints(&self, is_far: bool) -> bool {
        self.hints < if is_far { FAR_HINTS_AT_ONCE } else { HINTS_AT_ONCE }
    }

    /// The look at units that hints named.
    pub fn follow(&mut self, mut suspects: HashSet<Unit>, heard: Option<Timestamp>) -> Option<Check> {
        suspects.retain(|unit| !self.taken.contains(unit));
        if suspects.is_empty() {
            return None;
        }
        self.hints += 1;
        self.taken.add(&suspects);
        Some(Check { units: suspects.into_iter().collect(), source: CheckSource::Notification, heard })
    }

    /// A look has ended.
    pub fn checked(
        &mut self,
        check: Check,
        undecided: Result<Vec<Unit>>,
        heard: Option<Timestamp>,
    ) -> Result<()> {
        let Check { units, source, heard: before } = check;
        if source == CheckSource::Notification {
            self.hints = self.hints.saturating_sub(1);
        }
        self.taken.free(&units);
        let (undecided, failed) = match undecided {
            Ok(undecided) => (undecided, None),
            Err(error) => (units, Some(error)),
        };
        let is_stale = before != heard && failed.is_none();
        self.wait(undecided, source, is_stale);
        match failed {
            None => drop(self.failing.remove(&None)),
            Some(_) => drop(self.failing.insert(None)),
        }
        failed.map_or(Ok(()), Err::<(), EngineError>)
    }

    fn wait(&mut self, undecided: Vec<Unit>, source: CheckSource, is_stale: bool) {
        self.is_stale |= is_stale && !undecided.is_empty();
        let room = MOST_WAITING.saturating_sub(self.waiting.len());
        self.is_overfull |= undecided.len() > room;
        let undecided: Vec<Unit> = undecided.into_iter().take(room).collect();
        self.taken.add(&undecided);
        self.waiting.extend(undecided.into_iter().map(|unit| (unit, source)));
    }

    /// Whether everything that was tried last worked.
    pub fn nothing_fails(&self) -> bool {
        self.failing.is_empty()
    }
}
