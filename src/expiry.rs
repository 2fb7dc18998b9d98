//! From a silence to its record: finds the units that may be due, and lets the roll check their deadlines.
//!
//! Two sources, one check. The deadline index is swept as soon as its first entry is due, at the latest every tick.
//! Expiry notifications of the engine are hints that come in between. Either source alone finds every silence; neither
//! decides anything.
//!
//! # Why sweeps end where hearing ends
//! While no canary comes back, no unit can be declared offline, and checks of due units are useless. So a sweep ends at
//! the last moment that was heard plus the longest slack. A unit that is due within that slack, but has a shorter slack
//! itself, is checked once, and again when Rollcall has heard more. Until then sweeps leave it out, so that it delays
//! no other unit: see `passes`.
//!
//! # Which instance sweeps a partition
//! The owner sweeps its partition as soon as a unit in it is due. Every instance sweeps units that are still due a
//! second later, unless the owner makes progress: its first due unit changes, and other instances would only slow it
//! down. An owner without progress is frozen, or dead without its lease having ended. Other instances need not find
//! out which, and while all owners work, no instance does the work of another.
//!
//! A storm lasts for every instance until the last partition is swept: an instance whose own partitions are swept sends
//! no notifications yet, so that the others can write their records first.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Timestamp, monotonic};
use crate::fleet::{Mirror, Ownership, Roll};
use crate::presence::{Progress, Unit};
use crate::store::{Hint, MAX_STEP, Result, UnitStore, partition_of};
use crate::telemetry::{CheckSource, Loop, Telemetry};

mod passes;

use passes::{Check, Done, Due, Excluded, First, FirstCheck, Passes, Sweep};

/// The most hints that wait. More are dropped; the sweep finds their units.
const MAX_HINTS: usize = 16_384;

/// The time between two log lines about missing hints.
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// The longest slack of any policy: see `Policy::slack`.
const MAX_SLACK: Duration = Duration::from_secs(10);

/// How long only the owner of a partition checks its due units.
const OWNERS_TURN: Duration = Duration::from_secs(1);

const MILLISECOND: Duration = Duration::from_millis(1);

/// This many due units of a partition are a storm: see [`UnitStore::put_records_first`].
const MANY: usize = 1000;

/// The most due units that one request of a sweep returns. Many, so that several are on the same page of the engine
/// and cost it one command.
const MAX_DUE: usize = 8000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The longest time between two reads of the deadline index.
    pub tick: Duration,
    /// Whether the deadline index is swept.
    pub sweep: bool,
    /// Whether expiry notifications are followed.
    pub hints: bool,
}

pub struct Expiry {
    pub config: Config,
    /// The deadline index and the hints.
    pub engine: Arc<dyn UnitStore>,
    /// Checks the deadlines of suspects.
    pub roll: Arc<Roll>,
    pub ownership: Ownership,
    /// Whether units are nodes whose deaths are those of their devices.
    pub has_nodes: bool,
    /// Knows the units that are offline already.
    pub mirror: Arc<Mirror>,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
}

impl Expiry {
    /// Finds silences until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let (sender, mut hints) = mpsc::channel(MAX_HINTS);
        if self.config.sweep {
            self.telemetry.sweep_configured();
        }
        let expiry = Arc::new(self);
        let work = async {
            tokio::join!(
                expiry.listen(sender),
                expiry.keep_hearing(),
                expiry.mark_devices(),
                expiry.check_deadlines(&mut hints)
            )
        };
        stop.run_until_cancelled(work).await;
        Ok(())
    }

    /// Receives hints; listens again after an error.
    async fn listen(&self, hints: mpsc::Sender<Hint>) {
        if !self.config.hints {
            return;
        }
        let (mut logged, mut failures): (Option<Instant>, u32) = (None, 0);
        while !hints.is_closed() {
            let listened = self.engine.listen(hints.clone()).await;
            failures = if listened.is_err() { failures + 1 } else { 0 };
            // The connection is opened again; if the engine is down, another log line reports it.
            if let Err(error) = listened
                && failures > 1
                && !self.telemetry.is_dependency_down()
                && logged.is_none_or(|at| monotonic().duration_since(at) >= LOG_AGAIN)
            {
                logged = Some(monotonic());
                tracing::warn!(
                    "expiry notifications do not arrive; the sweep finds silences without them: {error}"
                );
            }
            tokio::time::sleep(self.config.tick).await;
        }
    }

    /// Reads every tick how far Rollcall has heard: proof of other instances counts too. Judges every tick whether it
    /// is blind, also while the engine does not answer: the last proof grows old.
    async fn keep_hearing(&self) {
        let mut progress = Progress::default();
        loop {
            let mut read = pin!(self.roll.refresh_hearing());
            // A read may take longer than a tick where the engine is far away, so it is not cancelled.
            let read = loop {
                match timeout(self.config.tick, &mut read).await {
                    Ok(read) => break read,
                    Err(_) => self.judge_hearing(&mut progress),
                }
            };
            self.report("how far was heard", &read);
            self.judge_hearing(&mut progress);
            tokio::time::sleep(self.config.tick).await;
        }
    }

    /// Reads every tick which nodes have died, and marks their devices: another instance may have heard it alone.
    async fn mark_devices(&self) {
        if !self.has_nodes {
            return;
        }
        loop {
            tokio::time::sleep(self.config.tick).await;
            let marked = self.roll.announce_devices(|| self.clock.now()).await;
            self.report("devices of dead nodes", &marked);
        }
    }

    fn judge_hearing(&self, progress: &mut Progress) {
        let (heard, now, pace) = (self.roll.hearing().heard, self.clock.now(), self.roll.pace());
        let is_blind = progress.is_blind(heard, now, pace.gap(), pace.round_trip());
        self.telemetry.blind(is_blind, heard);
    }

    async fn check_deadlines(self: &Arc<Self>, hints: &mut mpsc::Receiver<Hint>) {
        let mut passes = Passes::new(monotonic());
        let mut work = JoinSet::new();
        let mut hinted = Vec::new();
        let mut ownership = self.ownership.clone();
        loop {
            passes.turn(monotonic());
            self.recheck(&mut passes, &mut work);
            self.follow(&mut hinted, &mut passes, &mut work);
            self.ask(&mut passes, &mut work);
            let rest = passes.rest(self.clock.now(), self.config.tick);
            tokio::select! {
                Some(done) = work.join_next(), if !work.is_empty() => {
                    let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
                    passes.turn(monotonic());
                    self.done(done, &mut passes, &mut work);
                }
                // Cancel-safe: received hints are in `hinted`.
                _ = hints.recv_many(&mut hinted, MAX_STEP),
                    if self.config.hints && hinted.len() < MAX_STEP => {}
                () = self.roll.heard_more(), if passes.wait_for_hearing() => {}
                () = ownership.changed() => passes.ask_at_once(),
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// Notes the result of a step that has ended. A failure stops only its own step.
    fn done(self: &Arc<Self>, done: Done, passes: &mut Passes, work: &mut JoinSet<Done>) {
        let failed = match done {
            Done::Asked(answer) => match answer {
                Ok(firsts) => {
                    self.telemetry.swept();
                    passes.answered();
                    self.begin_sweeps(firsts, passes, work);
                    None
                }
                Err(error) => {
                    passes.not_answered();
                    Some(error)
                }
            },
            Done::Checked(check, mut undecided) => {
                if let (CheckSource::Notification, true, Ok(units)) =
                    (check.source, self.config.sweep, &mut undecided)
                {
                    // The sweep finds units whose kind is not heard, and checks them less often.
                    units.retain(|unit| !self.roll.is_behind(&unit.kind));
                }
                passes.checked(check, undecided, self.roll.hearing().heard).err()
            }
            Done::Swept(sweep, undecided) => passes.swept(sweep, undecided, self.roll.hearing().heard).err(),
        };
        match failed {
            Some(error) => self.telemetry.engine_failed(Loop::Sweep, "", &error),
            None => match passes.fails_for() {
                None => self.telemetry.engine_answered(Loop::Sweep, ""),
                Some(at_most) => self.telemetry.engine_fails_for(Loop::Sweep, "", at_most),
            },
        }
    }

    fn report<T>(&self, what: &str, result: &Result<T>) {
        match result {
            Ok(_) => self.telemetry.engine_answered(Loop::Sweep, what),
            Err(error) => self.telemetry.engine_failed(Loop::Sweep, what, error),
        }
    }

    /// Checks units that wait for hearing once more, if Rollcall has heard more or a tick has passed.
    fn recheck(self: &Arc<Self>, passes: &mut Passes, work: &mut JoinSet<Done>) {
        let is_far = !self.roll.round_trip().is_zero();
        // If the engine is far away, check units by partition, so that no unit waits for records of other partitions.
        let apart = |unit: &Unit| if is_far { partition_of(unit, self.engine.partitions()) } else { 0 };
        for check in passes.rechecks(self.roll.hearing().heard, self.config.tick, is_far, apart) {
            self.spawn_check(check, work);
        }
    }

    fn spawn_check(self: &Arc<Self>, check: Check, work: &mut JoinSet<Done>) {
        let expiry = self.clone();
        work.spawn(async move {
            let undecided =
                expiry.roll.check_suspects(&check.units, check.source, || expiry.clock.now()).await;
            Done::Checked(check, undecided)
        });
    }

    /// Reads the first check of each partition from the deadline index, if it may have changed.
    fn ask(self: &Arc<Self>, passes: &mut Passes, work: &mut JoinSet<Done>) {
        if self.config.sweep && passes.is_time_to_ask(self.clock.now(), self.config.tick) {
            let view = self.ownership.view();
            let after = passes
                .ask(self.roll.round_trip(), |partition| view.partitions.binary_search(&partition).is_ok());
            let expiry = self.clone();
            work.spawn(async move { Done::Asked(expiry.engine.first_checks(&after).await) });
        }
    }

    /// Sweeps the partitions that are due now. Each sweep is a task, because to check and record a hundred thousand
    /// units is work for every core; the tasks end with the set.
    fn begin_sweeps(
        self: &Arc<Self>,
        firsts: Vec<Option<(Timestamp, String)>>,
        passes: &mut Passes,
        work: &mut JoinSet<Done>,
    ) {
        let now = self.clock.now();
        // A deadline at exactly `now` has not passed yet.
        let latest = now - MILLISECOND;
        let firsts = self.first_checks(firsts, &mut passes.firsts, now);
        let heard = self.roll.hearing().heard;
        let round_trip = self.roll.round_trip();
        let is_far = !round_trip.is_zero();
        for due in passes.begin_sweeps(&firsts, latest, heard, round_trip) {
            let (expiry, excluded) = (self.clone(), passes.excluded.clone());
            work.spawn(async move {
                let mut sweep = Sweep { due, heard, held: Vec::new(), left_out: 0 };
                let undecided = expiry.sweep_partition(&mut sweep, &excluded, is_far).await;
                Done::Swept(sweep, undecided)
            });
        }
        self.engine.end_storms(&|partition| passes.may_be_storm(partition));
    }

    fn first_checks(
        &self,
        firsts: Vec<Option<(Timestamp, String)>>,
        known: &mut HashMap<u16, First>,
        now: Timestamp,
    ) -> Vec<FirstCheck> {
        let view = self.ownership.view();
        let firsts = (0..).zip(firsts);
        let first = |(partition, first): (u16, Option<(Timestamp, String)>)| {
            let is_own = view.partitions.binary_search(&partition).is_ok();
            // Units of other owners are checked only if the check is sure to decide them.
            let (patience, slack) =
                if is_own { (Duration::ZERO, MAX_SLACK) } else { (OWNERS_TURN, Duration::ZERO) };
            let Some((at, name)) = first else {
                known.remove(&partition);
                return None;
            };
            let since = match known.remove(&partition) {
                _ if is_own => at,
                Some(known) if known.name == name => known.since.max(at),
                // Another instance has checked the previous first unit.
                Some(_) => now.max(at),
                None => at,
            };
            known.insert(partition, First { name, since });
            Some(FirstCheck { partition, at, since, patience, slack })
        };
        firsts.filter_map(first).collect()
    }

    /// Returns whether this instance follows hints about this unit. The sweep covers the units of other owners.
    fn is_ours(&self, unit: &Unit) -> bool {
        !self.config.sweep || self.ownership.owns(partition_of(unit, self.engine.partitions()))
    }

    /// Checks the units of hints, except units that are already offline, are being checked or wait for hearing. Hints
    /// of partitions that are being swept wait, because the sweep itself causes most of them.
    fn follow(self: &Arc<Self>, hinted: &mut Vec<Hint>, passes: &mut Passes, work: &mut JoinSet<Done>) {
        let is_far = !self.roll.round_trip().is_zero();
        if hinted.is_empty() || !passes.has_room_for_hints(is_far) {
            return;
        }
        let mut suspects = HashSet::new();
        hinted.retain(|hint| {
            let Hint::Expired(unit) = hint else { return false };
            let partition = partition_of(unit, self.engine.partitions());
            let waits = !is_far && passes.is_being_swept(partition);
            if !waits && self.is_ours(unit) && !self.mirror.is_offline(unit) {
                suspects.insert(unit.clone());
            }
            waits
        });
        let check = passes.follow(suspects, self.roll.hearing().heard);
        check.into_iter().for_each(|check| self.spawn_check(check, work));
    }

    /// Checks every due unit, and returns the units that could not be decided.
    async fn sweep_partition(
        &self,
        sweep: &mut Sweep,
        excluded: &Excluded,
        is_far: bool,
    ) -> Result<Vec<Unit>> {
        let Due { partition, after, until } = sweep.due;
        let mut undecided = Vec::new();
        loop {
            let skip = undecided.len() + sweep.left_out;
            let mut due = self.engine.due(partition, after, until, skip, MAX_DUE).await?;
            let count = due.len();
            if count >= MANY {
                self.engine.put_records_first(partition);
            }
            excluded.remove_from(&mut due);
            sweep.left_out += count - due.len();
            if is_far {
                // Another sweep may read these units before this sweep has ended.
                excluded.add(&due);
                sweep.held.extend(due.iter().cloned());
            }
            if !due.is_empty() {
                undecided
                    .extend(self.roll.check_suspects(&due, CheckSource::Sweep, || self.clock.now()).await?);
            }
            if count < MAX_DUE {
                return Ok(undecided);
            }
        }
    }
}
