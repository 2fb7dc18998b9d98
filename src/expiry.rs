//! From a silence to its record: finds the units that may be due and has the roll look at them.
//!
//! Two sources, one look. The deadline index is swept as soon as its first entry is due, at the
//! latest every tick. Expiry notifications of the engine are hints that come in between. Either
//! alone finds every silence; neither decides anything.
//!
//! # Why nothing is due further than Rollcall has heard
//! While no canary comes back, no unit can be called silent. Looking at those that come due would
//! cost a million looks in vain, so the sweep stays within what was heard and the longest slack.
//! Units that are due a little beyond that, with shorter slack, are looked at once, and again when Rollcall
//! has heard more. Until then they hold up nothing: sweeps leave them out, see `passes`.
//!
//! # Whose turn it is
//! Each partition is swept by its owner as soon as something in it is due. What is still due a second
//! later is swept by every instance, unless the owner moves on: then the first unit that was due is not due any
//! more, and rivals would only slow the owner down. If the owner does not move on, it is frozen, or not yet known to be
//! gone. No instance has to find out which, and as long as all is well no instance does the work of another.
//!
//! A storm concerns every instance until the last partition is swept: an instance that is done with its own partitions
//! leaves the engine to the others, before it tells what it found.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Timestamp};
use crate::fleet::{Mirror, Ownership, Roll};
use crate::presence::Unit;
use crate::store::{Hint, LARGEST_STEP, Result, UnitStore, partition_of};
use crate::telemetry::{CheckSource, Loop, Telemetry};

mod passes;

use passes::{Check, Done, Due, First, FirstCheck, Passes, Sweep, Taken};

/// Hints that wait to be acted upon; more are dropped, for the sweep finds their units.
const MOST_HINTS: usize = 16_384;

/// The longest slack of any policy: see `Policy::slack`.
const LONGEST_SLACK: Duration = Duration::from_secs(10);

/// How long what is due is left to the owner of its partition.
const OWNERS_TURN: Duration = Duration::from_secs(1);

const MILLISECOND: Duration = Duration::from_millis(1);

/// So many units of a partition that are due are a storm: see [`UnitStore::put_records_first`].
const MANY: usize = 1000;

/// Units that are due which one question of a sweep is answered with. Many, so that several are on
/// the same page of the engine and cost it one command.
const MOST_DUE: usize = 8000;

/// How silence is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The longest time between two looks at the deadline index.
    pub tick: Duration,
    /// Whether the deadline index is swept.
    pub sweep: bool,
    /// Whether expiry notifications are followed.
    pub hints: bool,
}

/// What expiry needs.
pub struct Expiry {
    /// How silence is found.
    pub config: Config,
    /// Where deadlines and hints come from.
    pub engine: Arc<dyn UnitStore>,
    /// Looks at suspects.
    pub roll: Arc<Roll>,
    /// Whose turn it is.
    pub ownership: Ownership,
    /// Knows which units are offline already.
    pub mirror: Arc<Mirror>,
    /// Tells the time.
    pub clock: Clock,
    /// Counts.
    pub telemetry: Arc<Telemetry>,
}

impl Expiry {
    /// Finds silences until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let (sender, mut hints) = mpsc::channel(MOST_HINTS);
        if self.config.sweep {
            self.telemetry.sweep_configured();
        }
        let expiry = Arc::new(self);
        let work = async {
            tokio::join!(expiry.listen(sender), expiry.keep_hearing(), expiry.check_deadlines(&mut hints))
        };
        stop.run_until_cancelled(work).await;
        Ok(())
    }

    /// Listens for hints, again and again.
    async fn listen(&self, hints: mpsc::Sender<Hint>) {
        if !self.config.hints {
            return;
        }
        while !hints.is_closed() {
            if let Err(error) = self.engine.listen(hints.clone()).await {
                tracing::warn!("expiry notifications are not heard, the deadline index is: {error}");
            }
            tokio::time::sleep(self.config.tick).await;
        }
    }

    /// Every tick: what other instances heard counts too.
    async fn keep_hearing(&self) {
        loop {
            let read = self.roll.refresh_hearing().await;
            self.say("how far was heard", &read);
            if let Ok(hearing) = read {
                let is_blind = |heard| self.clock.now().since(heard) > self.roll.gap();
                self.telemetry.blind(hearing.heard.is_none_or(is_blind), hearing.heard);
            }
            tokio::time::sleep(self.config.tick).await;
        }
    }

    async fn check_deadlines(self: &Arc<Self>, hints: &mut mpsc::Receiver<Hint>) {
        let mut passes = Passes::default();
        let mut work = JoinSet::new();
        let mut hinted = Vec::new();
        let mut ownership = self.ownership.clone();
        loop {
            self.recheck(&mut passes, &mut work);
            self.follow(&mut hinted, &mut passes, &mut work);
            self.ask(&mut passes, &mut work);
            let rest = passes.rest(self.clock.now(), self.config.tick);
            tokio::select! {
                Some(done) = work.join_next(), if !work.is_empty() => {
                    let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
                    self.done(done, &mut passes, &mut work);
                }
                // Cancel-safe: what was received is in `hinted`.
                _ = hints.recv_many(&mut hinted, LARGEST_STEP),
                    if self.config.hints && hinted.len() < LARGEST_STEP => {}
                () = self.roll.heard_more(), if passes.wait_for_hearing() => {}
                () = ownership.changed() => passes.ask_at_once(),
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// Notes what came of something that was under way. Each failure stops only what failed: others go on.
    fn done(self: &Arc<Self>, done: Done, passes: &mut Passes, work: &mut JoinSet<Done>) {
        let failed = match done {
            Done::Asked(answer) => match answer {
                Ok(firsts) => {
                    self.telemetry.swept();
                    passes.answered();
                    self.take(firsts, passes, work);
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
                    // The sweep finds those whose kind is not heard, and looks at them less often.
                    units.retain(|unit| !self.roll.is_behind(&unit.kind));
                }
                passes.checked(check, undecided, self.roll.hearing().heard).err()
            }
            Done::Swept(sweep, undecided) => passes.swept(sweep, undecided, self.roll.hearing().heard).err(),
        };
        match failed {
            Some(error) => self.telemetry.engine_failed(Loop::Sweep, "", &error),
            None if passes.nothing_fails() => self.telemetry.engine_answered(Loop::Sweep, ""),
            None => {}
        }
    }

    fn say<T>(&self, what: &str, result: &Result<T>) {
        match result {
            Ok(_) => self.telemetry.engine_answered(Loop::Sweep, what),
            Err(error) => self.telemetry.engine_failed(Loop::Sweep, what, error),
        }
    }

    /// Looks anew at those that wait, if Rollcall has heard more or a tick has passed.
    fn recheck(self: &Arc<Self>, passes: &mut Passes, work: &mut JoinSet<Done>) {
        let is_far = !self.roll.round_trip().is_zero();
        // Far away none waits for the records of others.
        let apart = |unit: &Unit| if is_far { partition_of(unit, self.engine.partitions()) } else { 0 };
        for check in passes.begin(self.roll.hearing().heard, self.config.tick, is_far, apart) {
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

    /// Asks what comes due, if there may be news.
    fn ask(self: &Arc<Self>, passes: &mut Passes, work: &mut JoinSet<Done>) {
        if self.config.sweep && passes.is_time_to_ask(self.clock.now(), self.config.tick) {
            let view = self.ownership.view();
            let after = passes
                .ask(self.roll.round_trip(), |partition| view.partitions.binary_search(&partition).is_ok());
            let expiry = self.clone();
            work.spawn(async move { Done::Asked(expiry.engine.first_checks(&after).await) });
        }
    }

    /// Sweeps those partitions whose turn it is. Tasks, for deciding and writing down a hundred thousand units is
    /// work for every core; they end with the set.
    fn take(
        self: &Arc<Self>,
        firsts: Vec<Option<(Timestamp, String)>>,
        passes: &mut Passes,
        work: &mut JoinSet<Done>,
    ) {
        let now = self.clock.now();
        // A deadline at exactly now is not yet passed.
        let latest = now - MILLISECOND;
        let firsts = self.first_checks(firsts, &mut passes.firsts, now);
        let heard = self.roll.hearing().heard;
        let round_trip = self.roll.round_trip();
        let is_far = !round_trip.is_zero();
        for due in passes.take(&firsts, latest, heard, round_trip) {
            let (expiry, taken) = (self.clone(), passes.taken.clone());
            work.spawn(async move {
                let mut sweep = Sweep { due, heard, held: Vec::new() };
                let undecided = expiry.sweep_partition(&mut sweep, &taken, is_far).await;
                Done::Swept(sweep, undecided)
            });
        }
        if !passes.is_storm() {
            self.engine.put_records_first(false);
        }
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
            // Nobody else's units are looked at in vain: those are decided that were surely heard of.
            let (patience, slack) =
                if is_own { (Duration::ZERO, LONGEST_SLACK) } else { (OWNERS_TURN, Duration::ZERO) };
            let Some((at, name)) = first else {
                known.remove(&partition);
                return None;
            };
            let since = match known.remove(&partition) {
                _ if is_own => at,
                Some(known) if known.name == name => known.since.max(at),
                // Somebody looked at the one that was first.
                Some(_) => now.max(at),
                None => at,
            };
            known.insert(partition, First { name, since });
            Some(FirstCheck { partition, at, since, patience, slack })
        };
        firsts.filter_map(first).collect()
    }

    /// Whether this instance acts on that hint. Hints of others' units are covered by the sweep.
    fn is_ours(&self, unit: &Unit) -> bool {
        !self.config.sweep || self.ownership.owns(partition_of(unit, self.engine.partitions()))
    }

    /// Looks at the units of hints whose silence is not known yet, but for those that are being looked at or wait for
    /// more hearing. Hints of partitions that are being swept wait: most of them come of that.
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

    /// Looks at every unit that is due, and answers with those that could not be decided.
    async fn sweep_partition(&self, sweep: &mut Sweep, taken: &Taken, is_far: bool) -> Result<Vec<Unit>> {
        let Due { partition, after, until } = sweep.due;
        let (mut undecided, mut left) = (Vec::new(), 0);
        loop {
            let skip = undecided.len() + left;
            let mut due = self.engine.due(partition, after, until, skip, MOST_DUE).await?;
            let count = due.len();
            if count >= MANY {
                self.engine.put_records_first(true);
            }
            taken.leave_out(&mut due);
            left += count - due.len();
            if is_far {
                // Another sweep may come upon them before this one is done.
                taken.add(&due);
                sweep.held.extend(due.iter().cloned());
            }
            if !due.is_empty() {
                undecided
                    .extend(self.roll.check_suspects(&due, CheckSource::Sweep, || self.clock.now()).await?);
            }
            if count < MOST_DUE {
                return Ok(undecided);
            }
        }
    }
}
