//! The walk: slowly, again and again, over every unit of this instance's partitions.
//!
//! A partition that comes to this instance is read as fast as the engine answers; one that goes is
//! dropped. From then on the mirror is kept true by rounds, each spread evenly over a period:
//! - of most partitions they compare expiry keys only, which is a tenth of the work and brings the
//!   heartbeats that other instances recorded; where there are no others there is nothing to bring. A unit
//!   that is present and has no key is read whole: it may be offline, and the instance that found that out
//!   died before it could note it;
//! - of every tenth, another one each time, they read everything, and look at those units that nothing
//!   else would lead to: one with an open record whose expiry key stands (a crash came between the
//!   two), one with an open record that is allowed another silence than when it was written, one that is
//!   overdue although its next look is far away (its kind's timeout was shortened);
//! - open records of kinds that are configured no more, see `walk/removed.rs`.
//!
//! What other instances change otherwise (a unit is new, back, offline, removed) they note for the
//! owner, page by page, and the owner reads those pages every second. As often it has the roll ask about
//! changes whose reply was lost: see [`Roll::settle`].
//!
//! Holds a few pages at a time. It decides nothing: [`Roll::check_deadlines`] does. When the engine fails it
//! says so, waits a little and goes on with the next partition; a partition that was not walked
//! completely counts as not compared.
//!
//! # Which partitions are read again at once
//! One that came while there were others: while it moves, its old owner may apply a change and take
//! itself for the owner still; then it notes nothing. A round later all agree whose it is. And one in
//! which a unit differs that could not be put right, because Rollcall had not heard far enough, as after a
//! start with a shorter timeout. An instance that starts alone has just read everything; to read it all again
//! within half a minute cost more than a minute of everything else.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::mirror::Held;
use super::{Mirror, Ownership, Roll};
use crate::clock::Clock;
use crate::store::{Queries, Result, Roster};
use crate::telemetry::{Loop, Telemetry};

mod pace;
mod page;
mod removed;

use pace::Pace;
use page::Found;
pub use removed::Removed;
use removed::UnwatchedRecords;

/// How many pages are read before the next rest. Each rest costs a wake-up of several threads,
/// which for a single page of some sixty units is more than the page itself.
const PAGES_A_STEP: u32 = 16;

/// How many pages are under way at once, so that the engine works on one while another is compared.
const PAGES_AT_ONCE: usize = 8;

/// How many partitions are filled at once: unpacking takes the time, on as many threads.
const PARTITIONS_AT_ONCE: usize = 4;

/// How many expiry keys are read at a time.
const KEYS_A_STEP: usize = 500;

/// In how many rounds every partition is read whole once.
const WHOLE_EVERY: u32 = 10;

/// How often it is asked what others have noted.
const NOTES: Duration = Duration::from_secs(1);

/// The wait after the engine failed.
const REST: Duration = Duration::from_secs(1);

/// How many times a round old records are removed; each time the engine removes a bounded number.
const REMOVALS_A_ROUND: usize = 20;

/// What the walk needs.
pub struct Walk {
    /// The units and records of the store.
    pub engine: Arc<dyn Queries>,
    /// Which kinds other instances watch.
    pub roster: Arc<dyn Roster>,
    /// Which part of it.
    pub ownership: Ownership,
    /// Looks at suspects.
    pub roll: Arc<Roll>,
    /// What is filled and compared.
    pub mirror: Arc<Mirror>,
    /// Tells the time.
    pub clock: Clock,
    /// Says when the engine fails.
    pub telemetry: Arc<Telemetry>,
    /// How long a round takes, at the least.
    pub period: Duration,
    /// How long closed records are kept.
    pub keep_records: Duration,
    /// Open records of kinds that are not configured.
    pub removed: Removed,
}

/// What the tasks that fill and the task that goes round share.
#[derive(Default)]
struct Filled {
    /// Rung when every partition is filled.
    all: Notify,
    /// Partitions that the next round reads whole.
    again: Mutex<HashSet<u16>>,
}

impl Filled {
    fn again(&self) -> MutexGuard<'_, HashSet<u16>> {
        self.again.lock().expect("nothing panics under this lock")
    }
}

impl Walk {
    /// Walks until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let walk = Arc::new(self);
        let filled = Filled::default();
        let work = async { tokio::join!(walk.follow(&filled), walk.go_round(&filled)) };
        stop.run_until_cancelled(work).await;
        Ok(())
    }

    /// Keeps what is this instance's, and reads what others have noted for it.
    async fn follow(self: &Arc<Self>, filled: &Filled) {
        let mut ownership = self.ownership.clone();
        loop {
            self.mirror.keep(|partition| self.ownership.owns(partition));
            if let Err(error) = self.see_to_mirror(filled).await {
                self.telemetry.engine_failed(Loop::Mirror, "", &error);
                tokio::time::sleep(REST).await;
                continue;
            }
            self.telemetry.engine_answered(Loop::Mirror, "");
            tokio::select! {
                () = ownership.changed() => {}
                () = tokio::time::sleep(NOTES) => {}
            }
        }
    }

    /// Brings into the mirror what came, what is in doubt, and what others have noted.
    async fn see_to_mirror(self: &Arc<Self>, filled: &Filled) -> Result<()> {
        self.fill(filled).await?;
        self.roll.settle().await?;
        self.read_notes().await
    }

    /// Reads the partitions that came, as fast as that goes.
    async fn fill(self: &Arc<Self>, filled: &Filled) -> Result<()> {
        let unfilled = |partition: &u16| !self.mirror.is_partition_filled(*partition);
        let partitions: Vec<u16> = self.own().into_iter().filter(unfilled).collect();
        if !partitions.is_empty() {
            filled.again().extend(&partitions);
            let fill = |partition| {
                let walk = self.clone();
                // A task of its own; it ends soon, and by itself if this is cancelled.
                tokio::spawn(async move { (partition, walk.partition(partition, None).await) })
            };
            let mut fills = stream::iter(partitions).map(fill).buffer_unordered(PARTITIONS_AT_ONCE);
            while let Some(ended) = fills.next().await {
                let (partition, read) =
                    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
                if read? == Found::Nothing && self.is_alone() {
                    filled.again().remove(&partition);
                }
            }
            self.tell_removed();
        }
        if self.mirror.is_filled() {
            filled.all.notify_one();
        }
        Ok(())
    }

    async fn read_notes(&self) -> Result<()> {
        let noted = self.engine.noted(&self.own()).await?;
        let read = stream::iter(noted).map(|(partition, page)| self.page(partition, page));
        read.buffer_unordered(PAGES_AT_ONCE).try_for_each(|_| async { Ok(()) }).await
    }

    /// Goes round, once everything is filled.
    async fn go_round(&self, filled: &Filled) {
        let mut number = 0;
        let mut failed = HashSet::new();
        // What was filled while there were others is read again in any case.
        let mut was_alone = true;
        let mut fleet = self.engine.fleet_id();
        loop {
            while !self.mirror.is_filled() {
                filled.all.notified().await;
            }
            let pace = Pace::new(self.period);
            let is_alone = self.is_alone();
            let mut again = std::mem::take(&mut *filled.again());
            // What the mirror has is of a fleet that was lost.
            let found = self.engine.fleet_id();
            if std::mem::replace(&mut fleet, found.clone()) != found {
                again.extend(self.own());
            }
            let round = Round { number, again, is_alone: is_alone && was_alone };
            self.round(&round, &pace, &mut failed).await;
            self.tell_removed();
            number += 1;
            was_alone = is_alone;
            pace.rest(1.0).await;
        }
    }

    /// Walks over everything once. `failed` are the partitions that could not be compared when it was their
    /// turn last.
    async fn round(&self, round: &Round, pace: &Pace, failed: &mut HashSet<u16>) {
        let partitions = self.own();
        for (place, &partition) in partitions.iter().enumerate() {
            let part = Part { pace, done: place as f64, of: partitions.len() as f64 };
            let walked = if round.is_whole(partition) {
                self.partition(partition, Some(&part)).await.map(|_| ())
            } else if round.is_alone {
                // Every heartbeat comes through here.
                self.mirror.refreshed(partition, self.clock.now());
                Ok(())
            } else {
                self.keys(partition, &part).await
            };
            match walked {
                Ok(()) => drop(failed.remove(&partition)),
                Err(error) => {
                    failed.insert(partition);
                    self.telemetry.engine_failed(Loop::Walk, "", &error);
                    tokio::time::sleep(REST).await;
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
                tokio::time::sleep(REST).await;
            }
        }
    }

    /// Reads everything of a partition; as part of a round or, without one, as fast as it goes.
    async fn partition(&self, partition: u16, part: Option<&Part<'_>>) -> Result<Found> {
        let mut found = Found::Nothing;
        let mut unwatched = UnwatchedRecords::new();
        let began = self.clock.now();
        let whole = self.mirror.mark(partition);
        let pages = self.engine.pages();
        for from in (0..pages).step_by(PAGES_A_STEP as usize) {
            let step = from..pages.min(from + PAGES_A_STEP);
            let read = stream::iter(step.clone()).map(|page| self.page(partition, page));
            let mut read = read.buffer_unordered(PAGES_AT_ONCE);
            while let Some((page, of_page)) = read.try_next().await? {
                found = found.max(page);
                of_page.into_iter().for_each(|(kind, open)| *unwatched.entry(kind).or_default() += open);
            }
            if let Some(part) = part {
                part.rest(f64::from(step.end) / f64::from(pages)).await;
            }
        }
        self.mirror.finish(whole, began);
        self.removed.found(partition, unwatched);
        Ok(found)
    }

    /// Reads the expiry keys of the units that the mirror knows.
    async fn keys(&self, partition: u16, part: &Part<'_>) -> Result<()> {
        let began = self.clock.now();
        let mut held = Held::default();
        let mut steps = 0;
        while self.mirror.hold_next(partition, &mut held, KEYS_A_STEP) {
            let names: Vec<&str> = held.names().collect();
            let alive = self.engine.alive(partition, &names).await?;
            let odd = self.mirror.heard(partition, &held, &alive);
            self.check(&odd.with, self.clock.now()).await?;
            self.roll.compare(partition, &odd.without).await?;
            steps += 1;
            if steps % PAGES_A_STEP == 0 {
                part.rest(held.done()).await;
            }
        }
        self.mirror.refreshed(partition, began);
        Ok(())
    }

    async fn forget_records(&self) -> Result<()> {
        let before = self.clock.now() - self.keep_records;
        for _ in 0..REMOVALS_A_ROUND {
            if self.engine.forget_records(&self.own(), before).await? == 0 {
                break;
            }
        }
        Ok(())
    }

    fn tell_removed(&self) {
        self.telemetry.removed_kinds(&self.removed.open(&self.own()), self.removed.stay());
    }

    fn own(&self) -> Vec<u16> {
        self.ownership.view().partitions.clone()
    }

    fn is_alone(&self) -> bool {
        self.ownership.view().instances.len() <= 1
    }
}

/// What a round does.
struct Round {
    /// How many were before it.
    number: u32,
    /// Partitions that are read again.
    again: HashSet<u16>,
    /// Whether no other instance records heartbeats.
    is_alone: bool,
}

impl Round {
    fn is_whole(&self, partition: u16) -> bool {
        let is_its_turn = self.number.wrapping_add(partition.into()).is_multiple_of(WHOLE_EVERY);
        is_its_turn || self.again.contains(&partition)
    }
}

/// The part of a round that one partition is.
struct Part<'a> {
    pace: &'a Pace,
    done: f64,
    of: f64,
}

impl Part<'_> {
    /// Rests until it is time to go on, with so much of the part done, from 0 to 1.
    async fn rest(&self, done: f64) {
        self.pace.rest((self.done + done) / self.of).await;
    }
}
