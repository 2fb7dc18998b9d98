//! The walk: slow, repeated rounds over every unit of this instance's partitions.
//!
//! With the embedded engine the mirror needs none of this, because it is a view of the engine's own table; the walk
//! then only finds what nothing else would find.
//!
//! A new partition of this instance is read as fast as the engine answers; a partition that it loses is dropped. Then
//! rounds keep the mirror true, each spread evenly over a period, which is longer for a large fleet (`walk/pace.rs`):
//! - of most partitions a round compares expiry keys only, which is a tenth of the work and brings the heartbeats
//!   that other instances recorded; without other instances there is nothing to bring. A present unit without a key
//!   is read whole: it may be offline, and the instance that opened its record died before it noted the page;
//! - of every tenth partition, another one each time, a round reads everything, and checks the units that nothing
//!   else would find: a unit with an open record and an expiry key (a crash came between the two), a unit with an
//!   open record that is allowed another silence than when the record was written, and a unit that is overdue though
//!   its next check is far away (the timeout of its kind was shortened);
//! - open records of kinds that are no longer configured are found, too: see `walk/removed.rs`.
//!
//! Where everything of a partition is read, the units that alert silences cover are counted: see [`super::coverage`].
//! While there are silences, a round over a small fleet reads everything, so that the numbers are of the last minute.
//!
//! After a reload with other rules the next round begins at once, reads everything, checks every unit that is present,
//! and takes no longer than the engine can bear: by the new rules a unit may be overdue, or its next check too late.
//!
//! Other changes of other instances (a unit is new, back, offline or removed) are noted for the owner, page by page,
//! and the owner reads those pages every second. As often it lets the roll settle changes whose reply was lost: see
//! [`Roll::settle`].
//!
//! The walk holds a few pages at a time. It decides nothing: [`Roll::check_deadlines`] does. When the engine fails, the
//! walk reports it, waits a little and goes on with the next partition; a partition that was not read completely
//! counts as not compared.
//!
//! # Which partitions are read again in the next round
//! - A partition that came while there were other instances, or came back because the lease of this one had ended: its
//!   old owner may apply a change, still believe that it is the owner, and note nothing. A round later all instances
//!   agree on the owner. A partition of a large fleet waits for its turn, because to read all of them takes a minute of
//!   a server.
//! - A partition with a unit that differs and could not be decided, because Rollcall had not heard far enough, as
//!   after a start with a shorter timeout.
//!
//! An instance that starts alone has just read everything. Reading it again within half a minute would cost more than
//! all other work of a minute.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::coverage::Coverage;
use super::mirror::KeyBatch;
use super::{Attempts, Mirror, Ownership, Roll};
use crate::clock::Clock;
use crate::store::{Queries, Result, Roster, noted_pages, remove_notes};
use crate::telemetry::{Loop, Telemetry};

mod pace;
mod page;
mod removed;

use pace::WalkPace;
use page::PageOutcome;
pub use removed::Removed;
use removed::UnwatchedRecords;

/// Units that a round reads before its next rest, as whole pages or as expiry keys: records wait for a step in the
/// worst case, and each rest wakes several threads, which costs more than a single page of some sixty units.
const UNITS_A_STEP: usize = 600;

/// The most pages of a step, where they have few units.
const PAGES_A_STEP: u32 = 16;

/// Pages that are under way at once where a partition is filled, so that the engine reads one while another is
/// compared. In a round it is one: checks of deadlines wait for no more than a page.
const PAGES_AT_ONCE: usize = 8;

/// Partitions that are filled at once: the time goes into decoding, on as many threads.
const PARTITIONS_AT_ONCE: usize = 4;

/// Expiry keys that are read at a time: a server with millions takes half a millisecond.
const KEYS_A_STEP: usize = 150;
const _: () = assert!(UNITS_A_STEP.is_multiple_of(KEYS_A_STEP));

/// The most units of this instance that a round reads again because there are other instances.
const MAX_AGAIN: u64 = 300_000;

/// The most units of a small fleet: to read all of it in each round takes less than a
/// hundredth of a core.
const SMALL_FLEET: u64 = 20_000;

/// In this number of rounds every partition is read whole once.
const WHOLE_EVERY: u32 = 10;

/// How often the notes of other instances are read.
const READ_NOTES_EVERY: Duration = Duration::from_secs(1);

/// The wait after the engine failed.
const RETRY_WAIT: Duration = Duration::from_secs(1);

/// The most removals of old records in a round; each removes a bounded number.
const REMOVALS_A_ROUND: usize = 20;

pub struct Walk {
    pub engine: Arc<dyn Queries>,
    pub attempts: Attempts,
    /// The kinds that other instances are configured with.
    pub roster: Arc<dyn Roster>,
    pub ownership: Ownership,
    /// Checks the deadlines of suspects.
    pub roll: Arc<Roll>,
    pub mirror: Arc<Mirror>,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
    /// The shortest time of a round.
    pub period: Duration,
    /// How long closed records are kept.
    pub keep_records: Duration,
    /// How long attempts to deliver are on record.
    pub keep_deliveries: Duration,
    /// Open records of kinds that are not configured.
    pub removed: Removed,
    /// Counts the units that alert silences cover.
    pub coverage: Arc<Coverage>,
}

/// The state that two tasks share: one fills the mirror, the other compares it in rounds.
#[derive(Default)]
struct Filled {
    /// Notified when every partition is filled.
    all: Notify,
    /// Partitions that the next round reads whole.
    again: Mutex<HashSet<u16>>,
}

impl Walk {
    /// Walks until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let walk = Arc::new(self);
        let filled = Filled::default();
        let work = async { tokio::join!(walk.follow_ownership(&filled), walk.run_rounds(&filled)) };
        stop.run_until_cancelled(work).await;
        Ok(())
    }

    /// Keeps the mirror to the partitions of this instance, and reads the notes of others.
    async fn follow_ownership(self: &Arc<Self>, filled: &Filled) {
        let mut ownership = self.ownership.clone();
        let (mut terms, mut noted) = (ownership.view().terms, BTreeSet::new());
        loop {
            // Others had its partitions while its lease had ended, and have noted nothing for this instance.
            let current = self.ownership.view().terms;
            if std::mem::replace(&mut terms, current) != current && !self.is_alone() {
                self.mirror.keep(|_| false);
            }
            self.mirror.keep(|partition| self.ownership.owns(partition));
            if !self.is_alone() {
                self.mirror.has_others(true);
            }
            if let Err(error) = self.update_mirror(filled, &mut noted).await {
                self.telemetry.engine_failed(Loop::Mirror, "", &error);
                tokio::time::sleep(RETRY_WAIT).await;
                continue;
            }
            self.telemetry.engine_answered(Loop::Mirror, "");
            tokio::select! {
                () = ownership.changed() => {}
                () = tokio::time::sleep(READ_NOTES_EVERY) => {}
            }
        }
    }

    /// Brings new partitions, unconfirmed changes and noted pages into the mirror.
    async fn update_mirror(
        self: &Arc<Self>,
        filled: &Filled,
        noted: &mut BTreeSet<(u16, u32)>,
    ) -> Result<()> {
        self.fill(filled).await?;
        self.roll.settle().await?;
        self.read_notes(noted).await
    }

    /// Reads the new partitions as fast as the engine answers.
    async fn fill(self: &Arc<Self>, filled: &Filled) -> Result<()> {
        let unfilled = |partition: &u16| !self.mirror.is_partition_filled(*partition);
        let partitions: Vec<u16> = self.own_partitions().into_iter().filter(unfilled).collect();
        if !partitions.is_empty() {
            filled.again.lock().extend(&partitions);
            let fill = |partition| {
                let walk = self.clone();
                // The read is a task of its own, and ends soon by itself, also if this future is dropped.
                tokio::spawn(async move { (partition, walk.read_partition(partition, None).await) })
            };
            let mut fills = stream::iter(partitions).map(fill).buffer_unordered(PARTITIONS_AT_ONCE);
            while let Some(ended) = fills.next().await {
                let (partition, read) =
                    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
                if read? == PageOutcome::Resolved && (self.is_alone() || self.is_large(partition)) {
                    filled.again.lock().remove(&partition);
                }
            }
            self.report_removed();
        }
        if self.mirror.is_walked() {
            filled.all.notify_one();
        }
        Ok(())
    }

    /// Compares the pages that other instances changed. A page stays in `noted` until it was compared: the reply that
    /// its note is removed may be lost.
    async fn read_notes(&self, noted: &mut BTreeSet<(u16, u32)>) -> Result<()> {
        noted.retain(|(partition, _)| self.ownership.owns(*partition));
        let found = noted_pages(&*self.engine, &self.own_partitions()).await?;
        noted.extend(&found);
        // Remove the notes before the pages are read: a later change is noted again.
        remove_notes(&*self.engine, &found).await?;
        let read = stream::iter(noted.clone()).map(async |(partition, page)| {
            let compared = self.compare_page(partition, page, false, None).await;
            compared.map(|_| (partition, page))
        });
        let mut read = read.buffer_unordered(PAGES_AT_ONCE);
        while let Some(page) = read.try_next().await? {
            noted.remove(&page);
        }
        Ok(())
    }

    /// Runs rounds once everything is filled.
    async fn run_rounds(&self, filled: &Filled) {
        let mut number = 0;
        let mut failed = HashSet::new();
        // A partition that was filled while there were others is read again in any case.
        let mut was_alone = true;
        let mut fleet = self.engine.fleet_id();
        let mut edition = Some(self.roll.shared_rules().edition());
        loop {
            while !self.mirror.is_walked() {
                filled.all.notified().await;
            }
            let newest = self.roll.shared_rules().edition();
            let has_new_rules = edition.replace(newest) != Some(newest);
            let shortest = if has_new_rules { Duration::ZERO } else { self.period };
            let pace = WalkPace::new(self.paced_period(shortest));
            let is_alone = self.is_alone();
            let mut again = std::mem::take(&mut *filled.again.lock());
            if has_new_rules {
                again.extend(self.own_partitions());
            }
            // If the fleet id changes, the mirror holds units of a fleet that the engine has lost.
            let current = self.engine.fleet_id();
            if std::mem::replace(&mut fleet, current.clone()) != current {
                again.extend(self.own_partitions());
            }
            if self.fleet_units() <= SMALL_FLEET && self.coverage.has_silences(self.clock.now()).await {
                again.extend(self.own_partitions());
            }
            let round =
                WalkRound { number, again, is_alone: is_alone && was_alone, edition: newest, has_new_rules };
            if round.is_alone {
                // The round before has compared what the other instances recorded last.
                self.mirror.has_others(false);
            }
            self.round(&round, &pace, &mut failed).await;
            if has_new_rules && !failed.is_empty() {
                edition = None;
            }
            self.report_removed();
            number += 1;
            was_alone = is_alone;
            while !pace.is_over() && self.is_current(&round) {
                pace.rest_at_most(READ_NOTES_EVERY).await;
            }
        }
    }

    /// Whether partitions like this one have so many units that no round reads all of them again.
    fn is_large(&self, partition: u16) -> bool {
        self.mirror.units_in(partition) * self.own_partitions().len() as u64 > MAX_AGAIN
    }

    /// Whether the rules are still the same as at the beginning of the round.
    fn is_current(&self, round: &WalkRound) -> bool {
        round.edition == self.roll.shared_rules().edition()
    }

    /// Runs one round over all partitions. `failed`: the partitions whose last comparison failed.
    async fn round(&self, round: &WalkRound, pace: &WalkPace, failed: &mut HashSet<u16>) {
        let partitions = self.own_partitions();
        for (index, &partition) in partitions.iter().enumerate() {
            if !self.is_current(round) {
                break;
            }
            let progress =
                RoundProgress { walk: self, round, pace, done: index as f64, of: partitions.len() as f64 };
            let walked = if round.is_whole(partition) {
                self.read_partition(partition, Some(&progress)).await.map(|_| ())
            } else if round.is_alone {
                // The keys need no comparison: all heartbeats come through this instance.
                self.mirror.refreshed(partition, self.clock.now());
                Ok(())
            } else {
                self.compare_keys(partition, &progress).await
            };
            match walked {
                Ok(()) => drop(failed.remove(&partition)),
                Err(error) => {
                    failed.insert(partition);
                    self.telemetry.engine_failed(Loop::Walk, "", &error);
                    tokio::time::sleep(RETRY_WAIT).await;
                }
            }
            if failed.is_empty() {
                self.telemetry.engine_answered(Loop::Walk, "");
            }
        }
        failed.retain(|partition| partitions.contains(partition));
        match self.forget_records().await {
            Ok(()) => self.telemetry.engine_answered(Loop::Walk, "old records"),
            Err(error) => {
                self.telemetry.engine_failed(Loop::Walk, "old records", &error);
                tokio::time::sleep(RETRY_WAIT).await;
            }
        }
    }

    /// Reads a whole partition: with `progress` at the pace of its round, else as fast as the engine answers.
    async fn read_partition(
        &self,
        partition: u16,
        progress: Option<&RoundProgress<'_>>,
    ) -> Result<PageOutcome> {
        let mut outcome = PageOutcome::Resolved;
        let mut unwatched = UnwatchedRecords::new();
        let began = self.clock.now();
        let whole = self.mirror.mark(partition);
        let covered = self.coverage.begin(self.engine.partitions(), began).await;
        let pages = self.engine.pages();
        let length = if progress.is_some() { self.pages_a_step(partition) } else { PAGES_A_STEP };
        for step in self.engine.occupied(partition, length).await? {
            let checks_all = progress.is_some_and(|progress| progress.round.has_new_rules);
            let read = stream::iter(step.clone())
                .map(|page| self.compare_page(partition, page, checks_all, covered.as_ref()));
            let mut read = read.buffer_unordered(if progress.is_some() { 1 } else { PAGES_AT_ONCE });
            while let Some((of_page, records)) = read.try_next().await? {
                outcome = outcome.max(of_page);
                records.into_iter().for_each(|(kind, open)| *unwatched.entry(kind).or_default() += open);
            }
            if let Some(progress) = progress {
                progress.rest(f64::from(step.end) / f64::from(pages)).await;
            }
        }
        self.mirror.finish(whole, began);
        self.removed.counted(partition, unwatched);
        if let Some(covered) = covered {
            self.coverage.counted(partition, covered);
        }
        Ok(outcome)
    }

    /// The pages of a step of a round.
    fn pages_a_step(&self, partition: u16) -> u32 {
        let each = self.mirror.units_in(partition) / u64::from(self.engine.pages());
        (UNITS_A_STEP as u64 / each.max(1)).clamp(1, u64::from(PAGES_A_STEP)) as u32
    }

    /// Compares the expiry keys of the units in the mirror.
    async fn compare_keys(&self, partition: u16, progress: &RoundProgress<'_>) -> Result<()> {
        let began = self.clock.now();
        let mut batch = KeyBatch::default();
        let mut steps = 0;
        while self.mirror.next_batch(partition, &mut batch, KEYS_A_STEP) {
            let names: Vec<&str> = batch.names().collect();
            let alive = self.engine.alive(partition, &names).await?;
            let mismatch = self.mirror.apply_keys(partition, &batch, &alive);
            self.check(&mismatch.unexpected, self.clock.now()).await?;
            self.roll.compare(partition, &mismatch.missing).await?;
            steps += 1;
            if (steps * KEYS_A_STEP).is_multiple_of(UNITS_A_STEP) {
                progress.rest(batch.done()).await;
            }
        }
        self.mirror.refreshed(partition, began);
        Ok(())
    }

    async fn forget_records(&self) -> Result<()> {
        let attempts_before = self.clock.now() - self.keep_deliveries;
        self.attempts.forget(&self.own_partitions(), attempts_before).await?;
        let before = self.clock.now() - self.keep_records;
        for _ in 0..REMOVALS_A_ROUND {
            if self.engine.forget_records(&self.own_partitions(), before).await? == 0 {
                break;
            }
        }
        Ok(())
    }

    fn report_removed(&self) {
        self.telemetry.removed_kinds(&self.removed.open(&self.own_partitions()), self.removed.stay());
    }

    fn own_partitions(&self) -> Vec<u16> {
        self.ownership.view().partitions.clone()
    }

    fn is_alone(&self) -> bool {
        self.ownership.view().instances.len() <= 1
    }
}

struct WalkRound {
    /// From 0.
    number: u32,
    /// Partitions that are read again.
    again: HashSet<u16>,
    /// Whether no other instance records heartbeats.
    is_alone: bool,
    /// The edition of the rules: see [`SharedRules::edition`](super::SharedRules::edition).
    edition: u64,
    /// Whether the rules have changed since the round before.
    has_new_rules: bool,
}

impl WalkRound {
    fn is_whole(&self, partition: u16) -> bool {
        let is_its_turn = self.number.wrapping_add(partition.into()).is_multiple_of(WHOLE_EVERY);
        is_its_turn || self.again.contains(&partition)
    }
}

/// The progress of a round before one of its partitions.
struct RoundProgress<'a> {
    walk: &'a Walk,
    round: &'a WalkRound,
    pace: &'a WalkPace,
    /// Partitions that are done.
    done: f64,
    of: f64,
}

impl RoundProgress<'_> {
    /// Rests until it is time to go on, or the rules change. `done`: how much of the partition is done, from 0 to 1.
    async fn rest(&self, done: f64) {
        let goes_on = || self.walk.is_current(self.round);
        self.pace.rest((self.done + done) / self.of, goes_on, READ_NOTES_EVERY).await;
    }
}
