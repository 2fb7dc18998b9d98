//! The operations on timers: each timer is read, `presence/timer` decides, and the change is written if the timer is
//! unchanged. A timer that another caller changed meanwhile is read and decided again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::stored::{PastTimer, TimerCount, WaitingTimer};
use super::{FindTimers, Fired, TimerCapacity, TimerClasses, TimerEngine, TimerPage, TimerPosition};
use crate::clock::Timestamp;
use crate::presence::{
    DEFAULT_TIMER_KEEP, DueTimer, FiredTimer, Forgotten, NewTimer, Timer, TimerCancelled, TimerClass,
    TimerId, TimerRegistered, TimerType,
};
use crate::store::cell_tables::{Index, Table};
use crate::store::change_set::ChangeSet;
use crate::store::documents::{Document, Documents, TableValue};
use crate::store::json::to_json;
use crate::store::lane::{Lane, append, owe};
use crate::store::notification::Notification;
use crate::store::{Cell, Delivery, EngineError, MAX_CHANGES, Result, group_of_timer};

/// The most timers of a page.
const MAX_OF_PAGE: usize = 1000;
/// The number of timers that one call forgets, or whose attempts it gives up.
const FORGOTTEN: usize = 2000;

/// The timers of a fleet. Cheap to clone.
#[derive(Clone)]
pub struct StoredTimers {
    documents: Documents,
    engine: Arc<dyn TimerEngine>,
}

/// The state of a timer that was read: waiting, past or unknown.
struct ReadTimer {
    waiting: Document<WaitingTimer>,
    past: Document<PastTimer>,
}

impl ReadTimer {
    fn unknown(id: &TimerId) -> Result<ReadTimer> {
        let (waiting, past) = (Document::expected(id.clone(), None)?, Document::expected(id.clone(), None)?);
        Ok(ReadTimer { waiting, past })
    }

    /// A waiting timer in the state that the caller read.
    fn waiting(timer: &Timer) -> Result<ReadTimer> {
        let waiting = Document::expected(timer.id.clone(), Some(WaitingTimer::of(timer)))?;
        Ok(ReadTimer { waiting, ..ReadTimer::unknown(&timer.id)? })
    }

    fn timer(&self) -> Option<Timer> {
        let id = || self.waiting.name.clone();
        let waits = self.waiting.value.as_ref().map(|waiting| waiting.timer(id()));
        waits.or_else(|| Some(self.past.value.as_ref()?.timer(id())))
    }
}

/// The firing of a timer: its change, and its notification.
struct Firing {
    /// Expects the timer to wait unchanged.
    changes: ChangeSet,
    /// The key of its group.
    group: String,
    /// The id of its notification.
    id: String,
    /// Its notification (JSON).
    notification: String,
    /// The receivers of its class, and whether the caller takes the delivery to each.
    receivers: Vec<(String, bool)>,
}

impl Firing {
    fn lane(&self, receiver: &str) -> Cell {
        Lane::cell(receiver, self.changes.partition, &self.group)
    }

    fn empty_lanes(&self) -> Vec<Document<Lane>> {
        self.receivers.iter().map(|(receiver, _)| Document::absent(self.lane(receiver))).collect()
    }

    /// The change-set, and which deliveries are leased.
    fn set(
        &self,
        lanes: &[Document<Lane>],
        until: Timestamp,
        now: Timestamp,
    ) -> Result<(ChangeSet, Vec<bool>)> {
        let (mut set, mut leased) = (self.changes.clone(), Vec::with_capacity(lanes.len()));
        for ((receiver, takes), lane) in self.receivers.iter().zip(lanes) {
            let is_leased = *takes && lane.value.is_none();
            let at = if is_leased { until } else { now };
            set = append(set, lane, receiver, &[&self.id], (at, is_leased))?;
            leased.push(is_leased);
        }
        if !lanes.is_empty() {
            set = set.put(Table::Notifications, &self.id, Some(self.notification.as_bytes()));
        }
        Ok((owe(set, &self.id, lanes.len()), leased))
    }
}

/// A decision on one timer: the answer, and the change; `None`: nothing changes.
type TimerDecision<A> = (A, Option<ChangeSet>);

impl StoredTimers {
    pub fn new(engine: Arc<dyn TimerEngine>) -> StoredTimers {
        StoredTimers { documents: Documents::new(engine.clone()), engine }
    }

    pub fn partitions(&self) -> u16 {
        self.engine.partitions()
    }

    /// Registers timers, each in one step: adds a new timer, or changes moment, type and data of a waiting timer.
    /// With `only_new`, a known id, waiting or not, is refused. Answers in order; the last of several timers with one
    /// id counts. Safe to repeat.
    pub async fn register(&self, timers: &[NewTimer], only_new: bool) -> Result<Vec<TimerRegistered>> {
        let ids: Vec<TimerId> = timers.iter().map(|timer| timer.id.clone()).collect();
        let stepped = self.engine.stepped();
        let decide = |at: usize, known: &ReadTimer| {
            let (answer, waits) =
                Timer::registered(known.timer().as_ref(), timers[at].clone(), only_new, stepped);
            Ok((answer, waits.map(|timer| self.waits(known, &timer, timer.due)).transpose()?))
        };
        // Most timers are new.
        let unknown = ids.iter().map(ReadTimer::unknown).collect::<Result<_>>()?;
        let answers = self.change(&ids, Some(unknown), decide).await?;
        self.replicated(&ids).await;
        Ok(answers)
    }

    /// Cancels waiting timers, each in one step. They can be read for as long as fired timers. Answers in order.
    pub async fn cancel(
        &self,
        ids: &[TimerId],
        classes: &TimerClasses,
        now: Timestamp,
    ) -> Result<Vec<TimerCancelled>> {
        let decide = |_: usize, known: &ReadTimer| self.cancelled(known, None, classes, now);
        let answers = self.change(ids, None, decide).await?;
        self.replicated(ids).await;
        Ok(answers)
    }

    /// Cancels timers that are as the caller read them. A timer with a new moment, type or data stays.
    pub async fn cancel_unchanged(
        &self,
        timers: &[Timer],
        classes: &TimerClasses,
        now: Timestamp,
    ) -> Result<Vec<TimerCancelled>> {
        let ids: Vec<TimerId> = timers.iter().map(|timer| timer.id.clone()).collect();
        let decide = |at: usize, known: &ReadTimer| self.cancelled(known, Some(&timers[at]), classes, now);
        let answers = self.change(&ids, None, decide).await?;
        self.replicated(&ids).await;
        Ok(answers)
    }

    fn cancelled(
        &self,
        known: &ReadTimer,
        expected: Option<&Timer>,
        classes: &TimerClasses,
        now: Timestamp,
    ) -> Result<TimerDecision<TimerCancelled>> {
        let (answer, after) = Timer::cancelled(known.timer().as_ref(), expected, now);
        let ends = |timer: Timer| {
            let keep = classes.get(&timer.timer_type).map_or(DEFAULT_TIMER_KEEP, |class| class.keep);
            self.ends(known, &timer, now + keep)
        };
        Ok((answer, after.map(ends).transpose()?))
    }

    /// Reads timers, in order; `None`: unknown, or forgotten.
    pub async fn timers(&self, ids: &[TimerId]) -> Result<Vec<Option<Timer>>> {
        Ok(self.known(ids).await?.iter().map(ReadTimer::timer).collect())
    }

    /// A page of timers by moment and id, after a check of about `limit` timers. Timers that change meanwhile may be
    /// missing.
    pub async fn find_timers(&self, find: &FindTimers, limit: usize) -> Result<TimerPage> {
        let limit = limit.clamp(1, MAX_OF_PAGE);
        let begin = find.from.unwrap_or(Timestamp::ZERO);
        let after = match &find.after {
            Some(place) if place.due >= begin => (place.due.as_millis(), place.id.as_str()),
            _ => (begin.as_millis(), ""),
        };
        let until = find.until.map_or(i64::MAX, |until| until.as_millis() - 1);
        let partitions: Vec<u16> = (0..self.partitions()).collect();
        let (waits, ended) = find.wants();
        let mut places: Vec<TimerPosition> = Vec::new();
        for (is_wanted, index) in [(waits, Index::Timers), (ended, Index::TimersEnded)] {
            if is_wanted {
                let listed = self.documents.listed::<PastTimer>(index, &partitions, after, until, limit);
                let place = |(at, id)| TimerPosition { due: Timestamp::from_millis(at), id };
                places.extend(listed.await?.into_iter().map(place));
            }
        }
        places.sort_unstable();
        let next = places.get(limit - 1).cloned();
        places.truncate(limit);
        let ids: Vec<TimerId> = places.into_iter().map(|place| place.id).collect();
        let timers = self.timers(&ids).await?.into_iter().flatten();
        Ok(TimerPage { timers: timers.filter(|timer| find.matches(timer)).collect(), next })
    }

    /// The number of waiting timers of each type in these partitions. The numbers are stored, so reading costs
    /// little.
    pub async fn count_timers(&self, partitions: &[u16]) -> Result<BTreeMap<TimerType, u64>> {
        let mut counts: BTreeMap<TimerType, i64> = BTreeMap::new();
        for (of, TimerCount(count)) in self.documents.each::<TimerCount>(partitions).await? {
            *counts.entry(of).or_default() += count;
        }
        Ok(counts.into_iter().map(|(of, count)| (of, count.max(0) as u64)).collect())
    }

    /// The moment of the first waiting timer of these partitions.
    pub async fn first_timer(&self, partitions: &[u16]) -> Result<Option<Timestamp>> {
        self.documents.first(Index::Timers, partitions).await
    }

    /// Up to about `limit` timers of these partitions whose moment is not after `until`, the first of each partition
    /// first, for [`StoredTimers::fire`]. A span is postponed by the steps of the clock that were accepted since, and
    /// is left out.
    pub async fn due_timers(&self, partitions: &[u16], until: Timestamp, limit: usize) -> Result<Vec<Timer>> {
        if partitions.is_empty() || limit == 0 {
            return Ok(Vec::new());
        }
        let due = self.documents.due::<WaitingTimer>(Index::Timers, partitions, until, limit).await?;
        let (mut fire, mut later) = (Vec::new(), Vec::new());
        for waiting in due {
            let id = waiting.name.clone();
            let known = ReadTimer { waiting, ..ReadTimer::unknown(&id)? };
            // A fault left an entry without a waiting timer.
            let Some(timer) = known.timer() else {
                let set = self.documents.expect(self.of(&id), &known.waiting);
                later.push(set.enter(Index::Timers, id.as_str(), None));
                continue;
            };
            match timer.looked_at(until, self.engine.stepped()) {
                DueTimer::Fires => fire.push(timer),
                DueTimer::IsOver => {}
                DueTimer::Waits(timer) => later.push(self.waits(&known, &timer, timer.due)?),
            }
        }
        self.documents.write(&later).await?;
        Ok(fire)
    }

    /// Fires timers that wait unchanged, each in one step: ends the wait, and queues a notification for each receiver
    /// of its class, of which the caller gets up to `capacity` leased. A timer of a type that is not in `classes`
    /// stays.
    pub async fn fire(
        &self,
        timers: &[Timer],
        classes: &TimerClasses,
        capacity: &TimerCapacity,
        now: Timestamp,
    ) -> Result<Fired> {
        let (mut free, mut seen) = (capacity.most.clone(), HashSet::new());
        let mut takes = |receiver: &String| {
            let free = free.get_mut(receiver).filter(|free| **free > 0);
            free.map(|free| *free -= 1).is_some()
        };
        let (mut fire, mut firings) = (Vec::new(), Vec::new());
        for timer in timers.iter().filter(|timer| timer.due <= now && seen.insert(&timer.id)) {
            let Some(class) = classes.get(&timer.timer_type) else { continue };
            let fired = timer.clone().fired(class, now);
            let receivers = class.receivers.iter().map(|name| (name.clone(), takes(name))).collect();
            firings.push(Firing {
                changes: self.ends(&ReadTimer::waiting(timer)?, &fired, now + class.keep)?,
                group: group_of_timer(&timer.id),
                id: timer.firing(),
                notification: to_json(&notification(timer, class, now))?,
                receivers,
            });
            fire.push((fired, class));
        }
        let mut done = Fired::default();
        if firings.is_empty() {
            return Ok(done);
        }
        let answers = self.write_firings(&firings, capacity.until, now).await?;
        for ((timer, class), leased) in fire.into_iter().zip(answers) {
            let Some(leased) = leased else { continue };
            for (receiver, is_leased) in class.receivers.iter().zip(leased) {
                match is_leased {
                    true => done.deliveries.push(delivery(&timer, class, receiver, now)),
                    false => done.has_queued = true,
                }
            }
            done.timers.push(timer);
        }
        // Before any receiver is notified.
        let leased = done.deliveries.iter().flat_map(|one| &one.timers).map(|timer| timer.id.clone());
        let leased: Vec<TimerId> = leased.collect();
        self.replicated(&leased).await;
        Ok(done)
    }

    /// Fires timers, each in one step: writes its change, and puts its notification into the lane of each receiver,
    /// leased until `until` if the caller takes it and the lane was empty. Answers for each receiver whether the
    /// delivery is leased; `None`: the timer does not wait unchanged.
    async fn write_firings(
        &self,
        firings: &[Firing],
        until: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<Option<Vec<bool>>>> {
        let mut fired = vec![None; firings.len()];
        // Most lanes of timers are empty: lanes are read only after a write failed.
        let mut open: Vec<(usize, Vec<Document<Lane>>)> =
            firings.iter().map(Firing::empty_lanes).enumerate().collect();
        for _ in 0..MAX_CHANGES {
            let (mut sets, mut leased) = (Vec::with_capacity(open.len()), Vec::with_capacity(open.len()));
            for (at, lanes) in &open {
                let (set, taken) = firings[*at].set(lanes, until, now)?;
                sets.push(set);
                leased.push(taken);
            }
            let written = self.documents.write(&sets).await?;
            let mut lost = Vec::new();
            for (((at, _), taken), is_written) in open.into_iter().zip(leased).zip(written) {
                if is_written { fired[at] = Some(taken) } else { lost.push(at) }
            }
            open = Vec::new();
            for at in lost {
                open.extend(self.lanes_of(&firings[at]).await?.map(|lanes| (at, lanes)));
            }
            if open.is_empty() {
                return Ok(fired);
            }
        }
        Err(EngineError::contended("the timers that are due"))
    }

    /// The lanes of a timer; `None`: it does not wait unchanged.
    async fn lanes_of(&self, firing: &Firing) -> Result<Option<Vec<Document<Lane>>>> {
        let (partition, expected) = (firing.changes.partition, firing.changes.part(0));
        let timer = Cell { table: Table::Timers, partition, name: expected.name.to_owned() };
        let mut cells = vec![timer];
        cells.extend(firing.receivers.iter().map(|(receiver, _)| firing.lane(receiver)));
        let mut stored = self.engine.read_cells(&cells).await?.into_iter().zip(cells);
        let is_same = stored.next().is_some_and(|(stored, _)| stored.as_deref() == Some(expected.value));
        let mut lanes = Vec::with_capacity(firing.receivers.len());
        for (stored, cell) in stored {
            lanes.push(self.documents.document(cell, stored).await?);
        }
        Ok(is_same.then_some(lanes))
    }

    /// Checks timers again at `until`, because no instance can fire them now: a class is not configured here. Their
    /// moment is unchanged.
    pub async fn put_off(&self, timers: &[Timer], until: Timestamp) -> Result<()> {
        let put_off = timers.iter().map(|timer| self.waits(&ReadTimer::waiting(timer)?, timer, until));
        self.documents.write(&put_off.collect::<Result<Vec<ChangeSet>>>()?).await?;
        Ok(())
    }

    /// Gives up the outcomes of the only attempts of these partitions that began before `before` and have none.
    /// Answers the types of their timers, one for each attempt.
    pub async fn give_up_only_attempts(
        &self,
        partitions: &[u16],
        before: Timestamp,
    ) -> Result<Vec<TimerType>> {
        let until = before.as_millis() - 1;
        let begun = self
            .documents
            .listed::<PastTimer>(Index::OnlyAttempts, partitions, (0, ""), until, FORGOTTEN)
            .await?;
        let ids: Vec<TimerId> = begun.into_iter().map(|(_, id)| id).collect();
        let decide = |at: usize, known: &ReadTimer| {
            let past = known.past.value.as_ref().map(|past| past.timer(ids[at].clone()));
            let given_up = past.as_ref().map(|timer| vec![timer.timer_type.clone(); timer.begun()]);
            let after = past.and_then(|timer| PastTimer::of(&timer.given_up()));
            let set = self.documents.change(&known.past, after.as_ref())?;
            let set = set.enter(Index::OnlyAttempts, ids[at].as_str(), None);
            Ok((given_up.unwrap_or_default(), Some(set)))
        };
        Ok(self.change(&ids, None, decide).await?.into_iter().flatten().collect())
    }

    /// Forgets a bounded number of past timers of these partitions whose time in the store is over. Answers how many.
    pub async fn forget_timers(&self, partitions: &[u16], now: Timestamp) -> Result<usize> {
        let mut sets = Vec::new();
        for past in self.documents.due::<PastTimer>(Index::TimersKept, partitions, now, FORGOTTEN).await? {
            let id = past.name.as_str();
            let after = past.value.as_ref().map(|value| value.timer(past.name.clone()).forgotten(now));
            let (forgets, set) = match after {
                Some(Forgotten::Later(at)) => {
                    let set = self.documents.expect(self.of(&past.name), &past);
                    (false, set.enter(Index::TimersKept, id, Some(at.as_millis())))
                }
                _ => (past.value.is_some(), self.leaves(self.documents.change(&past, None)?, id)),
            };
            sets.push((forgets, set));
        }
        let (forgets, sets): (Vec<bool>, Vec<ChangeSet>) = sets.into_iter().unzip();
        let written = self.documents.write(&sets).await?;
        Ok(forgets.into_iter().zip(written).filter(|both| *both == (true, true)).count())
    }

    /// Compares the index and the counts of waiting timers in these partitions, and rebuilds both from the timers
    /// where they differ. Both are written in the steps that write a timer, so they are wrong only after a fault:
    /// another program removed or changed a key, or it was quarantined.
    pub async fn repair_timers(&self, partitions: &[u16]) -> Result<()> {
        let sizes = self.engine.sizes(Index::Timers, partitions).await?;
        for (partition, in_index) in partitions.iter().zip(sizes) {
            let counted = self.documents.each::<TimerCount>(&[*partition]).await?;
            if counted.iter().map(|(_, TimerCount(count))| count).sum::<i64>() != in_index {
                self.repair(*partition, counted).await?;
            }
        }
        Ok(())
    }

    /// A count that changes meanwhile is left to the next call.
    async fn repair(&self, partition: u16, counted: Vec<(TimerType, TimerCount)>) -> Result<()> {
        let counted: BTreeMap<TimerType, TimerCount> = counted.into_iter().collect();
        let mut waiting: BTreeMap<TimerType, i64> = counted.keys().map(|of| (of.clone(), 0)).collect();
        let mut from = None;
        loop {
            let page = self.engine.scan_cells(Table::Timers, partition, from).await?;
            let mut sets = Vec::new();
            for (name, stored) in page.cells {
                let Ok(timer) = WaitingTimer::decode(&stored) else { continue };
                *waiting.entry(timer.timer_type.clone()).or_default() += 1;
                let set = ChangeSet::of(partition).has(Table::Timers, &name, Some(&stored));
                let set = set.is_at(Index::Timers, &name, None);
                sets.push(set.enter(Index::Timers, &name, Some(timer.due.as_millis())));
            }
            self.documents.write(&sets).await?;
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        let mut sets = Vec::new();
        for (of, waits) in waiting {
            let before = counted.get(&of).map(TimerCount::encode).transpose()?;
            let set = ChangeSet::of(partition).has(Table::TimerCounts, of.as_str(), before.as_deref());
            let after = TimerCount(waits).encode()?;
            sets.push(set.put(Table::TimerCounts, of.as_str(), Some(&after)));
        }
        self.documents.write(&sets).await?;
        Ok(())
    }

    /// Decides about timers, and again about timers that others changed meanwhile. `known`: the expected timers;
    /// `None`: reads them first. Several decisions on one id are made in order.
    async fn change<A>(
        &self,
        ids: &[TimerId],
        mut known: Option<Vec<ReadTimer>>,
        decide: impl Fn(usize, &ReadTimer) -> Result<TimerDecision<A>>,
    ) -> Result<Vec<A>> {
        let mut answers: Vec<Option<A>> = ids.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..ids.len()).collect();
        let mut in_vain = 0;
        while !open.is_empty() {
            let mut seen = HashSet::new();
            let (now, later): (Vec<usize>, Vec<usize>) =
                open.iter().copied().partition(|at| seen.insert(&ids[*at]));
            let expected = match known.take() {
                Some(expected) => first_of_each(expected, &now),
                None => {
                    let ids: Vec<TimerId> = now.iter().map(|at| ids[*at].clone()).collect();
                    self.known(&ids).await?
                }
            };
            let (mut decided, mut sets) = (Vec::new(), Vec::new());
            for (at, known) in now.iter().zip(&expected) {
                let (answer, set) = decide(*at, known)?;
                match set {
                    None => answers[*at] = Some(answer),
                    Some(set) => {
                        decided.push((*at, answer));
                        sets.push(set);
                    }
                }
            }
            let (before, mut lost) = (open.len(), later);
            for ((at, answer), is_written) in decided.into_iter().zip(self.documents.write(&sets).await?) {
                if is_written { answers[at] = Some(answer) } else { lost.push(at) }
            }
            lost.sort_unstable();
            open = lost;
            in_vain = if open.len() == before { in_vain + 1 } else { 0 };
            if in_vain == MAX_CHANGES {
                return Err(EngineError::contended(format_args!("the timer {}", ids[open[0]])));
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    async fn known(&self, ids: &[TimerId]) -> Result<Vec<ReadTimer>> {
        let (waiting, past) = tokio::try_join!(
            self.documents.read::<WaitingTimer>(ids),
            self.documents.read::<PastTimer>(ids)
        )?;
        Ok(waiting.into_iter().zip(past).map(|(waiting, past)| ReadTimer { waiting, past }).collect())
    }

    fn of(&self, id: &TimerId) -> ChangeSet {
        ChangeSet::of(Table::Timers.partition(id.as_str(), self.partitions()))
    }

    /// The change-set of a timer that begins to wait, or waits longer; its next check is at `at`.
    fn waits(&self, known: &ReadTimer, timer: &Timer, at: Timestamp) -> Result<ChangeSet> {
        let (id, of) = (timer.id.as_str(), timer.timer_type.as_str());
        let set = self.documents.change(&known.waiting, Some(&WaitingTimer::of(timer)))?;
        let set = set.enter(Index::Timers, id, Some(at.as_millis()));
        let Some(before) = &known.waiting.value else {
            let set = self.documents.expect(set, &known.past).add(Table::TimerCounts, of, 1);
            let is_past = known.past.value.is_some();
            return Ok(if is_past { self.leaves(set.put(Table::PastTimers, id, None), id) } else { set });
        };
        let is_counted = before.timer_type == timer.timer_type;
        let before = before.timer_type.as_str();
        Ok(if is_counted {
            set
        } else {
            set.add(Table::TimerCounts, before, -1).add(Table::TimerCounts, of, 1)
        })
    }

    /// The change-set of a waiting timer that has fired or is cancelled.
    fn ends(&self, known: &ReadTimer, timer: &Timer, kept: Timestamp) -> Result<ChangeSet> {
        let id = timer.id.as_str();
        let set = self.documents.change(&known.waiting, None)?.enter(Index::Timers, id, None);
        let set = self.documents.put(set, &timer.id, PastTimer::of(timer).as_ref())?;
        let set = set.enter(Index::TimersEnded, id, Some(timer.due.as_millis()));
        let set = set.enter(Index::TimersKept, id, Some(kept.as_millis()));
        Ok(set.add(Table::TimerCounts, timer.timer_type.as_str(), -1))
    }

    /// Removes a past timer from the indexes.
    fn leaves(&self, set: ChangeSet, id: &str) -> ChangeSet {
        let indexes = [Index::TimersEnded, Index::TimersKept, Index::OnlyAttempts];
        indexes.into_iter().fold(set, |set, index| set.enter(index, id, None))
    }

    async fn replicated(&self, ids: &[TimerId]) {
        let partition = |id: &TimerId| Table::Timers.partition(id.as_str(), self.partitions());
        let partitions: BTreeSet<u16> = ids.iter().map(partition).collect();
        self.engine.replicated(partitions).await;
    }
}

/// The values at these positions, which are in order.
fn first_of_each<T>(values: Vec<T>, places: &[usize]) -> Vec<T> {
    let mut places = places.iter().peekable();
    let mut is_wanted = |at: &usize| places.next_if(|place| **place == *at).is_some();
    values.into_iter().enumerate().filter_map(|(at, value)| is_wanted(&at).then_some(value)).collect()
}

fn notification(timer: &Timer, class: &TimerClass, now: Timestamp) -> Notification {
    Notification::of_timer(FiredTimer::new(timer, class, now))
}

/// The first attempt to deliver a timer to a receiver.
fn delivery(timer: &Timer, class: &TimerClass, receiver: &str, now: Timestamp) -> Delivery {
    let id = Delivery::id_of(&timer.firing(), receiver);
    notification(timer, class, now).delivery(id, receiver, 1)
}
