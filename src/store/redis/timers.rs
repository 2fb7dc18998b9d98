//! Timers: their registration and cancellation, and the implementation of [`TimerStore`].
//!
//! A timer that waits lies on a page of its partition, like the facts of a unit; the page and the partition follow from
//! the checksum of its group. A batch is sorted by page, so that one command reads and writes what one page has. The
//! step in which it fires or is cancelled moves it to `past_timers`, a hash of its partition: its text is longer then,
//! and a page with one long value takes more memory for each timer on it.
//!
//! `timers` is the index of those that wait, by when they are looked at: their moment, but for those that an instance
//! put off. Those that fired or were cancelled are in `timers_ended`, by their moment, and in `timers_kept`, by until
//! when they are kept.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use redis::{ScriptInvocation, pipe};

use super::keys::PageId;
use super::timer_lists::unexpected;
use super::units::first_score;
use super::{RedisEngine, timer_attempts, timer_firing, timer_lists, timer_repair};
use crate::clock::Timestamp;
use crate::presence::{DEFAULT_TIMER_KEEP, NewTimer, Timer, TimerId, TimerType};
use crate::store::timer_text::{encode, encode_waiting, moment};
use crate::store::timers::CalledTimers;
use crate::store::{
    Delivery, FindTimers, Fired, Result, TimerCancelled, TimerCapacity, TimerClasses, TimerPage,
    TimerRegistered, TimerStore,
};

/// How many timers one script registers or cancels: about a millisecond, because Redis serves no other command
/// meanwhile.
const STEP: usize = 250;

#[async_trait]
impl TimerStore for RedisEngine {
    async fn register(
        &self,
        timers: &[NewTimer],
        only_new: bool,
        _now: Timestamp,
    ) -> Result<Vec<TimerRegistered>> {
        let called = CalledTimers::new(timers.iter().map(|timer| &timer.id));
        let mut answers = vec![TimerRegistered::Exists; timers.len()];
        let steps = self.timer_steps(called.once(only_new), |index| &timers[index].id);
        let steps = steps.iter().map(|step| {
            let register = async move {
                let script = self.register_script(step, timers, only_new);
                let answers: Vec<u8> = self.topology.run("register_timers", &script).await?;
                Ok(step.indices().zip(answers).collect::<Vec<_>>())
            };
            (self.keys.slot(step.partition), register)
        });
        for (index, answer) in self.topology.run_limited(steps.collect()).await?.into_iter().flatten() {
            answers[index] = match answer {
                1 => TimerRegistered::Created,
                2 => TimerRegistered::Changed,
                3 => TimerRegistered::Exists,
                4 => TimerRegistered::HasFired,
                other => return Err(unexpected("register_timers", other)),
            };
        }
        if !only_new {
            called.complete(&mut answers);
        }
        self.wait_for_replicas(self.partitions_of_timers(timers.iter().map(|timer| &timer.id))).await;
        Ok(answers)
    }

    async fn cancel(
        &self,
        ids: &[TimerId],
        classes: &TimerClasses,
        now: Timestamp,
    ) -> Result<Vec<TimerCancelled>> {
        let expected: Vec<(&TimerId, String)> = ids.iter().map(|id| (id, String::new())).collect();
        self.cancel_timers(&expected, classes, now).await
    }

    async fn cancel_unchanged(
        &self,
        timers: &[Timer],
        classes: &TimerClasses,
        now: Timestamp,
    ) -> Result<Vec<TimerCancelled>> {
        let expected: Vec<(&TimerId, String)> =
            timers.iter().map(|timer| (&timer.id, encode(timer))).collect();
        self.cancel_timers(&expected, classes, now).await
    }

    async fn timers(&self, ids: &[TimerId]) -> Result<Vec<Option<Timer>>> {
        timer_lists::read(self, ids).await
    }

    async fn find_timers(&self, find: &FindTimers, limit: usize) -> Result<TimerPage> {
        timer_lists::find(self, find, limit).await
    }

    async fn count_timers(&self, partitions: &[u16]) -> Result<BTreeMap<TimerType, u64>> {
        let mut read = pipe();
        for partition in partitions {
            read.hgetall(self.keys.in_partition(*partition, "timer_counts"));
        }
        let counts: Vec<Vec<(String, String)>> = self.topology.send("timer_counts", &read).await?;
        let mut by_type = BTreeMap::new();
        for (of, count) in counts.into_iter().flatten() {
            if let (Ok(of), Ok(count)) = (of.parse::<TimerType>(), count.parse::<u64>()) {
                *by_type.entry(of).or_default() += count;
            }
        }
        Ok(by_type)
    }

    async fn first_timer(&self, partitions: &[u16]) -> Result<Option<Timestamp>> {
        let keys = partitions.iter().map(|partition| self.keys.in_partition(*partition, "timers"));
        first_score(self, "first_timer", keys).await
    }

    async fn due_timers(&self, partitions: &[u16], until: Timestamp, limit: usize) -> Result<Vec<Timer>> {
        timer_firing::due(self, partitions, until, limit).await
    }

    async fn fire(
        &self,
        timers: &[Timer],
        classes: &TimerClasses,
        capacity: &TimerCapacity,
        now: Timestamp,
    ) -> Result<Fired> {
        timer_firing::fire(self, timers, classes, capacity, now).await
    }

    async fn put_off(&self, timers: &[Timer], until: Timestamp) -> Result<()> {
        timer_firing::put_off(self, timers, until).await
    }

    async fn begin_only_attempts(&self, deliveries: &[&Delivery], now: Timestamp) -> Result<Vec<bool>> {
        timer_attempts::begin(self, deliveries, now).await
    }

    async fn give_up_only_attempts(&self, partitions: &[u16], before: Timestamp) -> Result<Vec<TimerType>> {
        timer_attempts::give_up(self, partitions, before).await
    }

    async fn forget_timers(&self, partitions: &[u16], now: Timestamp) -> Result<usize> {
        timer_lists::forget(self, partitions, now).await
    }

    async fn repair_timers(&self, partitions: &[u16]) -> Result<()> {
        timer_repair::repair(self, partitions).await
    }
}

/// Timers of one partition, by page: the indices of the caller.
pub(super) struct TimerStep {
    pub partition: u16,
    pub pages: Vec<(u32, Vec<usize>)>,
}

impl TimerStep {
    /// In the order of the answers of a script.
    pub fn indices(&self) -> impl Iterator<Item = usize> {
        self.pages.iter().flat_map(|(_, on_page)| on_page.iter().copied())
    }
}

impl RedisEngine {
    /// The partition and the page of a timer: those of a unit whose name is the key of its group.
    pub(super) fn timer_page(&self, id: &TimerId) -> PageId {
        self.keys.page_of_timer(id)
    }

    /// The page of timers that wait.
    pub(super) fn timer_key(&self, (partition, page): PageId) -> String {
        self.keys.of(partition, "timer", &page.to_string())
    }

    /// Timers that fired or were cancelled.
    pub(super) fn past_timers(&self, partition: u16) -> String {
        self.keys.in_partition(partition, "past_timers")
    }

    pub(super) fn partitions_of_timers<'a>(
        &self,
        ids: impl Iterator<Item = &'a TimerId>,
    ) -> std::collections::BTreeSet<u16> {
        ids.map(|id| self.timer_page(id).0).collect()
    }

    /// Divides timers into steps of one partition each.
    pub(super) fn timer_steps<'a>(
        &self,
        indices: impl IntoIterator<Item = usize>,
        id: impl Fn(usize) -> &'a TimerId,
    ) -> Vec<TimerStep> {
        let located = indices.into_iter().map(|index| (self.timer_page(id(index)), index));
        let mut located: Vec<(PageId, usize)> = located.collect();
        located.sort_unstable();
        let of_partitions = located.chunk_by(|a, b| a.0.0 == b.0.0);
        let steps = of_partitions.flat_map(|located| located.chunks(STEP)).map(|located| {
            let pages = located.chunk_by(|a, b| a.0 == b.0);
            let pages = pages.map(|on| (on[0].0.1, on.iter().map(|(_, index)| *index).collect()));
            TimerStep { partition: located[0].0.0, pages: pages.collect() }
        });
        steps.collect()
    }

    /// Adds the keys that scripts of timers have first.
    pub(super) fn add_timer_keys(&self, script: &mut ScriptInvocation<'_>, partition: u16) {
        for name in ["timers", "timers_ended", "timers_kept", "timer_counts", "past_timers"] {
            script.key(self.keys.in_partition(partition, name));
        }
    }

    fn register_script(&self, step: &TimerStep, timers: &[NewTimer], only_new: bool) -> ScriptInvocation<'_> {
        let mut script = self.scripts.register_timers.prepare_invoke();
        self.add_timer_keys(&mut script, step.partition);
        script.arg(u8::from(only_new)).arg(step.pages.len());
        for (page, on_page) in &step.pages {
            script.key(self.timer_key((step.partition, *page))).arg(on_page.len());
            for index in on_page {
                script.arg(timers[*index].id.as_str());
            }
            for index in on_page {
                script.arg(timers[*index].due.as_millis());
            }
            for index in on_page {
                script.arg(encode_waiting(&timers[*index], self.stepped()));
            }
        }
        script
    }

    /// Cancels timers; each has its stored text as it was read, or an empty one.
    async fn cancel_timers(
        &self,
        timers: &[(&TimerId, String)],
        classes: &TimerClasses,
        now: Timestamp,
    ) -> Result<Vec<TimerCancelled>> {
        let indices = CalledTimers::new(timers.iter().map(|(id, _)| *id)).once(true);
        let firsts: HashMap<&TimerId, usize> =
            indices.iter().map(|index| (timers[*index].0, *index)).collect();
        let steps = self.timer_steps(indices, |index| timers[index].0);
        let steps = steps.iter().map(|step| {
            let cancel = async move {
                let script = self.cancel_script(step, timers, classes, now);
                let answers: Vec<u8> = self.topology.run("cancel_timers", &script).await?;
                Ok(step.indices().zip(answers).collect::<Vec<_>>())
            };
            (self.keys.slot(step.partition), cancel)
        });
        let mut cancelled = vec![TimerCancelled::Ended; timers.len()];
        for (index, answer) in self.topology.run_limited(steps.collect()).await?.into_iter().flatten() {
            cancelled[index] = match answer {
                1 => TimerCancelled::Yes,
                2 => TimerCancelled::Changed,
                3 => TimerCancelled::Ended,
                4 => TimerCancelled::Unknown,
                other => return Err(unexpected("cancel_timers", other)),
            };
        }
        // Of an id that is there several times, the first is cancelled.
        for (index, (id, _)) in timers.iter().enumerate() {
            let first = firsts[id];
            if first < index && cancelled[first] != TimerCancelled::Yes {
                cancelled[index] = cancelled[first];
            }
        }
        self.wait_for_replicas(self.partitions_of_timers(timers.iter().map(|(id, _)| *id))).await;
        Ok(cancelled)
    }

    fn cancel_script(
        &self,
        step: &TimerStep,
        timers: &[(&TimerId, String)],
        classes: &TimerClasses,
        now: Timestamp,
    ) -> ScriptInvocation<'_> {
        let mut script = self.scripts.cancel_timers.prepare_invoke();
        self.add_timer_keys(&mut script, step.partition);
        script.arg(now.as_millis()).arg(moment(now)).arg(DEFAULT_TIMER_KEEP.as_millis() as u64);
        script.arg(classes.len()).arg(classes.keys().map(TimerType::as_str).collect::<Vec<_>>());
        script.arg(classes.values().map(|class| class.keep.as_millis() as u64).collect::<Vec<_>>());
        script.arg(step.pages.len());
        for (page, on_page) in &step.pages {
            script.key(self.timer_key((step.partition, *page))).arg(on_page.len());
            for index in on_page {
                script.arg(timers[*index].0.as_str());
            }
            for index in on_page {
                script.arg(&timers[*index].1);
            }
        }
        script
    }
}
