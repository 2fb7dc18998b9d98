//! The walk: slowly, again and again, over every unit that the engine holds.
//!
//! Fills the mirror at the start as fast as the engine answers, then compares it with the engine,
//! spread evenly over a period. Having every unit in hand anyway, it looks at those that nothing
//! else would lead to:
//! - a unit with an open record whose expiry key stands: a crash came between the two;
//! - a unit with an open record that is allowed another silence than when it was written;
//! - a unit that is overdue although its next look is far away: its kind's timeout was shortened.
//!
//! Holds a few pages at a time. It decides nothing: [`Roll::look`] does. When the engine fails it
//! says so, waits a little and goes on with the next partition; a partition that was not walked
//! completely counts as not compared.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::tally::Tally;
use super::{Engine, Mirror, Result, Roll};
use crate::clock::{Clock, Timestamp};
use crate::presence::{self, Hearing, Snapshot, Standing, Unit, Verdict};
use crate::telemetry::{Source, Telemetry};

/// How many pages are read before the next rest. Each rest costs a wake-up of several threads,
/// which for a single page of some sixty units is more than the page itself.
const PAGES_A_STEP: u32 = 16;

/// How many pages are under way at once, so that the engine works on one while another is compared.
const PAGES_AT_ONCE: usize = 8;

/// The wait after the engine failed.
const REST: Duration = Duration::from_secs(1);

/// How many times a round old records are removed; each time the engine removes a bounded number.
const REMOVALS_A_ROUND: usize = 20;

/// What the walk needs.
pub struct Walk {
    /// What is walked over.
    pub engine: Arc<dyn Engine>,
    /// Looks at suspects.
    pub roll: Arc<Roll>,
    /// What is filled and compared.
    pub mirror: Arc<Mirror>,
    /// Tells the time.
    pub clock: Clock,
    /// Counts suspects, says when the engine fails.
    pub telemetry: Arc<Telemetry>,
    /// How long a round takes, at the least.
    pub period: Duration,
    /// How long closed records are kept.
    pub keep_records: Duration,
    /// Counts units by labels, once a round.
    pub tally: Tally,
}

impl Walk {
    /// Walks until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        stop.run_until_cancelled(async {
            loop {
                self.round().await;
            }
        })
        .await;
        Ok(())
    }

    /// Walks over everything once.
    async fn round(&self) {
        let partitions = self.engine.partitions();
        let mut pace = Pace::new(self.period, u64::from(partitions) * u64::from(self.engine.pages()));
        let mut whole = true;
        for partition in 0..partitions {
            if let Err(error) = self.partition(partition, &mut pace).await {
                whole = false;
                self.telemetry.engine_up(Some(&error));
                tokio::time::sleep(REST).await;
            }
        }
        let counted = self.tally.take();
        if whole {
            self.telemetry.units_by_label(counted);
        }
        if let Err(error) = self.forget_records().await {
            self.telemetry.engine_up(Some(&error));
            tokio::time::sleep(REST).await;
        }
        // Fast rounds end with the one that fills the mirror.
        if self.mirror.is_filled() {
            pace.finish().await;
        }
    }

    async fn partition(&self, partition: u16, pace: &mut Pace) -> Result<()> {
        let began = self.clock.now();
        let whole = self.mirror.mark(partition);
        let first = !self.mirror.is_partition_filled(partition);
        let pages = self.engine.pages();
        for from in (0..pages).step_by(PAGES_A_STEP as usize) {
            let step = from..pages.min(from + PAGES_A_STEP);
            pace.take(step.len());
            let read = stream::iter(step).map(|page| self.page(partition, page));
            read.buffer_unordered(PAGES_AT_ONCE).try_collect::<()>().await?;
            if !first {
                pace.rest().await;
            }
        }
        self.mirror.finish(whole, began);
        Ok(())
    }

    async fn page(&self, partition: u16, page: u32) -> Result<()> {
        let mark = self.mirror.mark(partition);
        let snapshots = self.engine.walk(partition, page).await?;
        self.telemetry.engine_up(None);
        self.mirror.compare(mark, &snapshots);
        let now = self.clock.now();
        let hearing = self.roll.hearing();
        self.count(&snapshots, &hearing, now);
        let suspects: Vec<Unit> = snapshots
            .into_iter()
            .filter(|seen| self.is_suspect(seen, &hearing, now))
            .map(|seen| seen.unit)
            .collect();
        if !suspects.is_empty() {
            self.telemetry.suspects(Source::Walk, suspects.len() as u64);
            self.roll.look(&suspects, now).await?;
        }
        Ok(())
    }

    fn count(&self, snapshots: &[Snapshot], hearing: &Hearing, now: Timestamp) {
        if self.tally.is_idle() {
            return;
        }
        for seen in snapshots {
            let Some((facts, rules)) = seen.facts.as_ref().zip(self.roll.rules().get(&seen.unit.kind)) else {
                continue;
            };
            if let Some(state) = presence::state(seen, rules, hearing, now) {
                self.tally.add(&facts.labels, state);
            }
        }
    }

    fn is_suspect(&self, seen: &Snapshot, hearing: &Hearing, now: Timestamp) -> bool {
        let Some((facts, rules)) = seen.facts.as_ref().zip(self.roll.rules().get(&seen.unit.kind)) else {
            return false;
        };
        let odd = match &facts.standing {
            Standing::Retired(_) => false,
            Standing::Offline(silence) => {
                seen.alive.is_some() || silence.allowed != facts.policy(rules).allowed()
            }
            _ => presence::deadline(seen, rules, hearing).is_some_and(|deadline| deadline < now),
        };
        // Most of what is odd cannot be helped now, such as a fleet that is due while Rollcall is
        // blind; reading all of it again would be for nothing.
        odd && matches!(presence::look(seen, rules, hearing, now), Verdict::Offline(_) | Verdict::Back(_))
    }

    async fn forget_records(&self) -> Result<()> {
        let before = self.clock.now() - self.keep_records;
        for _ in 0..REMOVALS_A_ROUND {
            if self.engine.forget_records(before).await? == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Spreads steps evenly over a period. Behind its time it goes on without a wait.
struct Pace {
    began: Instant,
    period: Duration,
    steps: u64,
    taken: u64,
}

impl Pace {
    fn new(period: Duration, steps: u64) -> Pace {
        Pace { began: Instant::now(), period, steps: steps.max(1), taken: 0 }
    }

    fn take(&mut self, steps: usize) {
        self.taken += steps as u64;
    }

    async fn rest(&self) {
        sleep_until(self.began + self.period.mul_f64(self.taken as f64 / self.steps as f64)).await;
    }

    async fn finish(&self) {
        sleep_until(self.began + self.period).await;
    }
}
