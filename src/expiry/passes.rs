//! The steps that are under way to find silences, and their results: decides which step begins next, without I/O.
//!
//! # Why no step waits for another
//! Each unit takes three calls of the engine: to read the due units, to check them, to record the result. A call may
//! take half a second. A unit that comes due in that time must not wait for the last answer, and proof that arrives in
//! that time must find the units that wait for it. So requests, sweeps and checks run at the same time. No unit is
//! checked twice at a time: a sweep begins where the last one of its partition ends, and leaves out units that hints
//! named or that wait for hearing.
//!
//! With an engine near by, a partition has one sweep at a time: units that come due meanwhile are checked together,
//! which costs less.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::clock::Timestamp;
use crate::presence::Unit;
use crate::store::Result;
use crate::telemetry::CheckSource;

mod excluded;
#[cfg(test)]
mod tests;

pub(super) use excluded::Excluded;

/// The most undecided units that wait here; the sweep finds more of them every tick.
const MAX_WAITING: usize = 100_000;

const MILLISECOND: Duration = Duration::from_millis(1);

/// How soon the index is read again while sweeps are under way, or units of other owners are due.
const ASK_SOON: Duration = Duration::from_millis(10);

/// How soon the index is read again after a failed read, or a partition is swept again after a failed sweep.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// The most partitions that are swept at the same time, each on its own task. One of two instances owns this many of
/// a new fleet; a partition that waits would seem unswept to the other instance.
const AT_ONCE: usize = 8;

/// The most sweeps where the engine is far away: in all, and of one partition.
const FAR_AT_ONCE: usize = 128;
const FAR_OF_ONE: usize = 8;

/// A sweep reads the due units, checks them, records the results, and may wait for a free slot.
const ROUND_TRIPS_OF_A_SWEEP: u32 = 4;

/// The most checks of hinted units at once, near by and far away.
const HINTS_AT_ONCE: usize = 1;
const FAR_HINTS_AT_ONCE: usize = 8;

/// The unit that is first in a partition.
pub(super) struct First {
    pub name: String,
    /// Since when no instance has checked this unit, though an instance could have checked it.
    pub since: Timestamp,
}

/// The first check that a partition needs, and when this instance does it.
#[derive(Clone, Copy)]
pub(super) struct FirstCheck {
    pub partition: u16,
    pub at: Timestamp,
    /// See [`First::since`].
    pub since: Timestamp,
    /// How long this check is left to the owner of the partition.
    pub patience: Duration,
    /// How far beyond the last moment that was heard units are checked.
    pub slack: Duration,
}

impl FirstCheck {
    /// When this instance does the check.
    fn our_turn(&self) -> Timestamp {
        self.since + self.patience
    }

    fn is_own(&self) -> bool {
        self.patience.is_zero()
    }
}

/// Units of a partition whose next check is after `after` and at or before `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub partition: u16,
    pub after: Option<Timestamp>,
    pub until: Timestamp,
}

/// A check of all due units of a partition.
pub(super) struct Sweep {
    pub due: Due,
    /// How far Rollcall had heard when the sweep began.
    pub heard: Option<Timestamp>,
    /// Units that no other sweep checks until this one ends.
    pub held: Vec<Unit>,
    /// How many due units the sweep has left out, because they are being checked or wait for hearing.
    pub left_out: usize,
}

/// A check of units by their names.
pub(super) struct Check {
    pub units: Vec<Unit>,
    pub source: CheckSource,
    /// How far Rollcall had heard when the check began.
    pub heard: Option<Timestamp>,
}

/// A step that has ended.
pub(super) enum Done {
    /// The index answered with the first check of each partition.
    Asked(Result<Vec<Option<(Timestamp, String)>>>),
    /// A check by names has ended, with its undecided units.
    Checked(Check, Result<Vec<Unit>>),
    /// A sweep has ended, with its undecided units.
    Swept(Sweep, Result<Vec<Unit>>),
}

/// The steps that are under way, and their results.
pub(super) struct Passes {
    /// The unit that was first in each partition.
    pub firsts: HashMap<u16, First>,
    pub excluded: Excluded,
    /// Units that wait for hearing, with the source of their check.
    waiting: HashMap<Unit, CheckSource>,
    /// More units wait for hearing than `waiting` may hold.
    has_overflowed: bool,
    /// The moment of this turn, set by the loop: see [`Passes::turn`].
    moment: Instant,
    /// The last recheck of waiting units because of a tick.
    last_tick: Option<Instant>,
    /// How far Rollcall had heard at the last recheck.
    heard: Option<Timestamp>,
    /// Rollcall heard more during a check of units that still wait.
    is_stale: bool,
    /// Units are due later than Rollcall has heard.
    needs_hearing: bool,
    /// Up to when partitions were swept, or are being swept.
    swept: HashMap<u16, Timestamp>,
    /// How many sweeps of a partition are under way.
    sweeping: HashMap<u16, usize>,
    /// How many checks of hinted units are under way.
    hints: usize,
    /// Partitions whose sweep failed, and when: they rest until Rollcall has heard more, or for [`ASK_AGAIN`].
    resting: HashMap<u16, Instant>,
    /// Partitions whose last sweep failed, and since when no sweep of them succeeded. The key `None` stands for checks
    /// by names.
    failing: HashMap<Option<u16>, Instant>,
    /// A request to the index is under way.
    is_asking: bool,
    /// When the last request to the index ended.
    asked: Option<Instant>,
    /// The last request to the index was not answered: the next one follows when Rollcall has heard more, or soon.
    is_unanswered: bool,
    /// The index may have changed since the last request.
    has_changed: bool,
    /// The index is about to change.
    changes_soon: bool,
    /// The partitions of other owners with due units.
    left_to_owners: HashSet<u16>,
    /// When the next unit comes due that no step covers yet.
    next: Timestamp,
}

/// The beginning of the next sweep of a partition that was swept up to `until`. A check sets the next check to the
/// deadline of its unit; where the engine is far away, sweeps may have passed that moment when it is written.
fn behind(until: Timestamp, round_trip: Duration) -> Timestamp {
    until - ROUND_TRIPS_OF_A_SWEEP * round_trip
}

impl Passes {
    pub fn new(moment: Instant) -> Passes {
        Passes {
            moment,
            firsts: HashMap::new(),
            excluded: Excluded::default(),
            waiting: HashMap::new(),
            has_overflowed: false,
            last_tick: None,
            heard: None,
            is_stale: false,
            needs_hearing: false,
            swept: HashMap::new(),
            sweeping: HashMap::new(),
            hints: 0,
            resting: HashMap::new(),
            failing: HashMap::new(),
            is_asking: false,
            asked: None,
            is_unanswered: false,
            has_changed: true,
            changes_soon: false,
            left_to_owners: HashSet::new(),
            next: Timestamp::NEVER,
        }
    }

    /// Sets the moment of the calls that follow.
    pub fn turn(&mut self, moment: Instant) {
        self.moment = moment;
    }

    /// The checks of waiting units, if Rollcall has heard more or a tick has passed. With a tick the index is read
    /// from its beginning again, which finds entries that were written behind a sweep.
    /// `apart`: units with different numbers are in different checks.
    pub fn rechecks(
        &mut self,
        heard: Option<Timestamp>,
        tick: Duration,
        is_far: bool,
        apart: impl Fn(&Unit) -> u16,
    ) -> Vec<Check> {
        let is_tick = self.last_tick.is_none_or(|last_tick| self.since(last_tick) >= tick);
        if !is_tick && !self.is_stale && self.heard == heard {
            return Vec::new();
        }
        self.has_changed |= self.needs_hearing || self.is_unanswered || !self.resting.is_empty();
        self.resting.clear();
        if is_tick || self.has_overflowed {
            let sweeping = &self.sweeping;
            self.swept.retain(|partition, _| !is_far && sweeping.contains_key(partition));
            self.has_changed = true;
        }
        if is_tick {
            self.last_tick = Some(self.moment);
        }
        (self.heard, self.is_stale, self.has_overflowed) = (heard, false, false);
        let mut checks: HashMap<(CheckSource, u16), Vec<Unit>> = HashMap::new();
        for (unit, source) in self.waiting.drain() {
            let part = apart(&unit);
            checks.entry((source, part)).or_default().push(unit);
        }
        self.hints += checks.keys().filter(|(source, _)| *source == CheckSource::Notification).count();
        checks.into_iter().map(|((source, _), units)| Check { units, source, heard }).collect()
    }

    /// Whether more hearing would lead to a check.
    pub fn wait_for_hearing(&self) -> bool {
        self.needs_hearing
            || self.is_unanswered
            || self.has_overflowed
            || !self.waiting.is_empty()
            || !self.resting.is_empty()
    }

    /// Lets the index be read at once, after a change of ownership.
    pub fn ask_at_once(&mut self) {
        self.has_changed = true;
    }

    /// Whether to read the index now.
    pub fn is_time_to_ask(&self, now: Timestamp, tick: Duration) -> bool {
        !self.is_asking && self.until_asking(now, tick).is_zero()
    }

    /// The time until the next step, unless a step ends or Rollcall hears more before.
    pub fn rest(&self, now: Timestamp, tick: Duration) -> Duration {
        if self.is_asking { tick } else { self.until_asking(now, tick) }
    }

    fn until_asking(&self, now: Timestamp, tick: Duration) -> Duration {
        let Some(asked) = self.asked.filter(|_| !self.has_changed) else { return Duration::ZERO };
        let soon = match (self.changes_soon, self.is_unanswered || !self.resting.is_empty()) {
            (true, _) => ASK_SOON,
            (false, true) => ASK_AGAIN,
            (false, false) => tick,
        };
        soon.min(tick).saturating_sub(self.since(asked)).min(self.next.since(now))
    }

    /// Notes that a read of the index begins. Returns for each own partition that was swept the moment after which
    /// the index is read: see [`behind`].
    pub fn ask(&mut self, round_trip: Duration, is_own: impl Fn(u16) -> bool) -> HashMap<u16, Timestamp> {
        (self.is_asking, self.has_changed, self.changes_soon) = (true, false, false);
        self.next = Timestamp::NEVER;
        let own = self.swept.iter().filter(|(partition, _)| is_own(**partition));
        own.map(|(partition, until)| (*partition, behind(*until, round_trip))).collect()
    }

    pub fn answered(&mut self) {
        (self.is_asking, self.is_unanswered, self.asked) = (false, false, Some(self.moment));
    }

    pub fn not_answered(&mut self) {
        self.answered();
        (self.is_unanswered, self.has_changed, self.next) = (true, false, Timestamp::NEVER);
    }

    /// The sweeps that begin now, of partitions that this instance sweeps by `latest`.
    pub fn begin_sweeps(
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
        self.needs_hearing = false;
        self.left_to_owners.clear();
        let is_due = |failing: &Option<u16>| {
            failing.is_none_or(|partition| {
                firsts.iter().any(|first| first.partition == partition && first.at <= latest)
            })
        };
        self.failing.retain(|failing, _| is_due(failing));
        let now = self.moment;
        self.resting.retain(|_, failed| now.duration_since(*failed) < ASK_AGAIN);
        for first in firsts {
            if first.our_turn() > latest {
                self.next = self.next.min(first.our_turn() + MILLISECOND);
                if first.at <= latest {
                    self.left_to_owners.insert(first.partition);
                }
                continue;
            }
            let wanted = latest - first.patience;
            let until = heard.map_or(Timestamp::ZERO, |heard| wanted.min(heard + first.slack));
            // Units that are due later than Rollcall has heard wait for hearing, and so will the next due units.
            self.needs_hearing |= until < wanted && first.is_own();
            let after = self.swept.get(&first.partition).copied();
            if first.at > until || after.is_some_and(|after| after >= until) {
                continue;
            }
            let of_one = self.sweeping.get(&first.partition).copied().unwrap_or_default();
            // The index is read again when a sweep that is under way ends.
            if self.resting.contains_key(&first.partition) || of_one >= most_of_one || under_way >= most {
                continue;
            }
            under_way += 1;
            *self.sweeping.entry(first.partition).or_default() += 1;
            self.swept.insert(first.partition, until);
            let after = after.map(|after| behind(after, round_trip));
            due.push(Due { partition: first.partition, after, until });
        }
        self.changes_soon = !self.left_to_owners.is_empty() || !due.is_empty();
        due
    }

    /// Whether many units of a partition may still be due.
    pub fn may_be_storm(&self, partition: u16) -> bool {
        self.left_to_owners.contains(&partition) || self.is_being_swept(partition)
    }

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
        self.excluded.release(&sweep.held);
        self.has_changed = true;
        match undecided {
            Ok(undecided) => {
                self.failing.remove(&Some(partition));
                // Keep the mark while units are still due: they would be first in the index at every sweep.
                if undecided.is_empty() && sweep.left_out == 0 && after.is_none() && others == 0 {
                    self.swept.remove(&partition);
                }
                self.wait(undecided, CheckSource::Sweep, sweep.heard != heard);
                Ok(())
            }
            Err(error) => {
                self.swept.remove(&partition);
                self.resting.insert(partition, self.moment);
                self.failing.entry(Some(partition)).or_insert(self.moment);
                Err(error)
            }
        }
    }

    /// Whether one more check of hinted units may begin.
    pub fn has_room_for_hints(&self, is_far: bool) -> bool {
        self.hints < if is_far { FAR_HINTS_AT_ONCE } else { HINTS_AT_ONCE }
    }

    /// Begins a check of the hinted units that no other step checks; `None`: there are none.
    pub fn follow(&mut self, mut suspects: HashSet<Unit>, heard: Option<Timestamp>) -> Option<Check> {
        suspects.retain(|unit| !self.excluded.contains(unit));
        if suspects.is_empty() {
            return None;
        }
        self.hints += 1;
        self.excluded.add(&suspects);
        Some(Check { units: suspects.into_iter().collect(), source: CheckSource::Notification, heard })
    }

    /// A check by names has ended.
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
        self.excluded.release(&units);
        let (undecided, failed) = match undecided {
            Ok(undecided) => (undecided, None),
            Err(error) => (units, Some(error)),
        };
        let is_stale = before != heard && failed.is_none();
        self.wait(undecided, source, is_stale);
        match failed {
            None => {
                self.failing.remove(&None);
                Ok(())
            }
            Some(error) => {
                self.failing.entry(None).or_insert(self.moment);
                Err(error)
            }
        }
    }

    fn wait(&mut self, undecided: Vec<Unit>, source: CheckSource, is_stale: bool) {
        self.is_stale |= is_stale && !undecided.is_empty();
        let room = MAX_WAITING.saturating_sub(self.waiting.len());
        self.has_overflowed |= undecided.len() > room;
        let undecided: Vec<Unit> = undecided.into_iter().take(room).collect();
        self.excluded.add(&undecided);
        self.waiting.extend(undecided.into_iter().map(|unit| (unit, source)));
    }

    /// The longest time for which a step has not succeeded; `None`: the last attempt of every step succeeded.
    ///
    /// While slots of a cluster move, one partition after another fails for a moment, but no partition fails for
    /// long.
    pub fn fails_for(&self) -> Option<Duration> {
        self.failing.values().map(|since| self.since(*since)).max()
    }

    fn since(&self, moment: Instant) -> Duration {
        self.moment.duration_since(moment)
    }
}
