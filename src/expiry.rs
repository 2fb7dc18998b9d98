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
//! has heard more. Until then they hold up nothing: a pass begins behind them, and the next one is when
//! something else comes due.
//!
//! # Whose turn it is
//! Each partition is swept by its owner as soon as something in it is due. What is still due a second
//! later is swept by everybody, unless the owner moves on: then what was due first is not so any more,
//! and rivals would only slow it down. If it does not, the owner is frozen, or not known to be gone
//! yet. So nobody has to find out which, and as long as all is well nobody does the work of another.
//!
//! A storm is everybody's until the last partition is swept: whoever is done with its own still leaves
//! the engine to those who are not, before it tells what it found.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Timestamp};
use crate::engine::{Engine, Hint, LARGEST_STEP, Mirror, Ownership, Result, Roll, partition_of};
use crate::presence::Unit;
use crate::telemetry::{Loop, Source, Telemetry};

/// Hints that wait to be acted upon; more are dropped, for the sweep finds their units.
const MOST_HINTS: usize = 16_384;

/// Units that a hint named and that could not be decided upon; the same holds for more of them.
const MOST_WAITING: usize = 100_000;

/// The longest slack of any policy: see `Policy::slack`.
const LONGEST_SLACK: Duration = Duration::from_secs(10);

/// How long what is due is left to the owner of its partition.
const OWNERS_TURN: Duration = Duration::from_secs(1);

const MILLISECOND: Duration = Duration::from_millis(1);

/// How long after one look it is seen whether others are done with what is due in theirs.
const MEANWHILE: Duration = Duration::from_millis(10);

/// Partitions that are swept at the same time, each on a task of its own: all that an instance has of a new
/// fleet beside another one, for a partition that waits looks to the other as if nobody swept it.
const AT_ONCE: usize = 8;

/// So many units of a partition that are due are a storm: see [`Engine::storm`].
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
    pub engine: Arc<dyn Engine>,
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

/// The unit that is first in a partition.
struct First {
    name: String,
    /// Since when nobody looks at it who could.
    since: Timestamp,
}

/// The first look that a partition needs, and when this instance takes it on.
struct FirstLook {
    partition: u16,
    at: Timestamp,
    /// See [`First::since`].
    since: Timestamp,
    /// How long it is left to somebody else.
    patience: Duration,
    /// How far beyond what was heard units are looked at.
    slack: Duration,
}

impl FirstLook {
    /// When this instance takes it on.
    fn our_turn(&self) -> Timestamp {
        self.since + self.patience
    }

    fn is_own(&self) -> bool {
        self.patience.is_zero()
    }
}

/// Units of a partition whose look is after one moment and not after another.
struct Due {
    partition: u16,
    after: Option<Timestamp>,
    until: Timestamp,
}

/// For how long there is nothing to do.
struct Rest {
    /// Until something comes due.
    until: Timestamp,
    /// Something is due that can only be decided when Rollcall has heard more.
    is_for_hearing: bool,
}

/// What passes leave to the next one.
#[derive(Default)]
struct Passes {
    /// The unit that was first in each partition.
    firsts: HashMap<u16, First>,
    /// Since when `hinted` and `swept` are kept, and how far Rollcall had heard then.
    began: Option<Instant>,
    heard: Option<Timestamp>,
    /// Units that hints named and that wait for more hearing.
    hinted: HashSet<Unit>,
    /// Up to when partitions were swept in which units wait for more hearing.
    swept: HashMap<u16, Timestamp>,
}

impl Passes {
    /// A pass begins. Whether it looks anew at those that wait: Rollcall has heard more, or a tick has passed.
    fn begin(&mut self, heard: Option<Timestamp>, tick: Duration) -> bool {
        if self.heard == heard && self.began.is_some_and(|began| began.elapsed() < tick) {
            return false;
        }
        (self.began, self.heard) = (Some(Instant::now()), heard);
        self.swept.clear();
        true
    }
}

impl Expiry {
    /// Finds silences until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let (sender, mut hints) = mpsc::channel(MOST_HINTS);
        if self.config.sweep {
            self.telemetry.sweep_configured();
        }
        let expiry = Arc::new(self);
        let work =
            async { tokio::join!(expiry.listen(sender), expiry.keep_hearing(), expiry.look(&mut hints)) };
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

    async fn look(self: &Arc<Self>, hints: &mut mpsc::Receiver<Hint>) {
        let mut passes = Passes::default();
        let mut hinted = Vec::new();
        let mut ownership = self.ownership.clone();
        loop {
            let passed = self.pass(&mut hinted, &mut passes, self.clock.now()).await;
            self.say("", &passed);
            let rest = passed.unwrap_or(Rest { until: Timestamp::NEVER, is_for_hearing: true });
            let length = rest.until.since(self.clock.now()).min(self.config.tick);
            tokio::select! {
                // Cancel-safe: what was received is in `hinted`.
                _ = hints.recv_many(&mut hinted, LARGEST_STEP), if self.config.hints => {}
                () = self.roll.heard_more(), if rest.is_for_hearing => {}
                () = ownership.changed() => {}
                () = tokio::time::sleep(length) => {}
            }
        }
    }

    fn say<T>(&self, what: &str, result: &Result<T>) {
        match result {
            Ok(_) => self.telemetry.engine_answered(Loop::Sweep, what),
            Err(error) => self.telemetry.engine_failed(Loop::Sweep, what, error),
        }
    }

    /// Looks at what was hinted at and at what is due. Answers for how long there is nothing to do.
    async fn pass(
        self: &Arc<Self>,
        hinted: &mut Vec<Hint>,
        passes: &mut Passes,
        now: Timestamp,
    ) -> Result<Rest> {
        let is_anew = passes.begin(self.roll.hearing().heard, self.config.tick);
        self.follow(hinted, &mut passes.hinted, is_anew).await?;
        let is_for_hearing = !passes.hinted.is_empty();
        if !self.config.sweep {
            return Ok(Rest { until: now + self.config.tick, is_for_hearing });
        }
        // A deadline at exactly now is not yet passed.
        let latest = now - MILLISECOND;
        let firsts = self.first_looks(&mut passes.firsts, now).await?;
        self.telemetry.swept();
        let taken = self.take(&firsts, passes, latest).await;
        let is_with_others = |first: &FirstLook| first.at <= latest && first.our_turn() > latest;
        let until = if firsts.iter().any(is_with_others) {
            now + MEANWHILE
        } else {
            self.engine.storm(false);
            Timestamp::NEVER
        };
        taken.map(|rest| Rest {
            until: rest.until.min(until),
            is_for_hearing: rest.is_for_hearing || is_for_hearing,
        })
    }

    /// Sweeps those partitions whose turn it is by `latest`. Answers as [`Expiry::pass`] does.
    async fn take(
        self: &Arc<Self>,
        firsts: &[FirstLook],
        passes: &mut Passes,
        latest: Timestamp,
    ) -> Result<Rest> {
        let next = firsts.iter().map(FirstLook::our_turn).min().unwrap_or(Timestamp::NEVER);
        if next > latest {
            return Ok(Rest { until: next + MILLISECOND, is_for_hearing: false });
        }
        let Some(heard) = passes.heard else {
            return Ok(Rest { until: Timestamp::NEVER, is_for_hearing: true });
        };
        let mut due = Vec::new();
        let mut is_deaf = false;
        for first in firsts.iter().filter(|first| first.our_turn() <= latest) {
            let wanted = latest - first.patience;
            let until = wanted.min(heard + first.slack);
            // All that is due beyond what was heard waits for more hearing, and so will what comes due next.
            is_deaf |= until < wanted && first.is_own();
            let after = passes.swept.get(&first.partition).copied();
            if first.at <= until && after.is_none_or(|after| after < until) {
                due.push(Due { partition: first.partition, after, until });
            }
        }
        self.sweep(due, &mut passes.swept).await?;
        if is_deaf {
            return Ok(Rest { until: Timestamp::NEVER, is_for_hearing: true });
        }
        if passes.swept.is_empty() {
            // What came due meanwhile is seen at once.
            return Ok(Rest { until: latest, is_for_hearing: false });
        }
        // What waits for more hearing holds up nothing else.
        let own = self.ownership.view();
        let next = (0..).zip(self.engine.first_looks(Some(latest)).await?);
        let next = next.filter(|(partition, _)| own.partitions.binary_search(partition).is_ok());
        let next = next.filter_map(|(_, first)| first).map(|(at, _)| at).min();
        Ok(Rest { until: next.map_or(Timestamp::NEVER, |at| at + MILLISECOND), is_for_hearing: true })
    }

    async fn first_looks(&self, known: &mut HashMap<u16, First>, now: Timestamp) -> Result<Vec<FirstLook>> {
        let view = self.ownership.view();
        let firsts = (0..).zip(self.engine.first_looks(None).await?);
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
            Some(FirstLook { partition, at, since, patience, slack })
        };
        Ok(firsts.filter_map(first).collect())
    }

    /// Whether this instance acts on that hint. Hints of others' units are covered by the sweep.
    fn is_ours(&self, unit: &Unit) -> bool {
        !self.config.sweep || self.ownership.owns(partition_of(unit, self.engine.partitions()))
    }

    /// Looks at the units of hints whose silence is not known yet, and if it `is_anew` at those that wait for more
    /// hearing.
    async fn follow(&self, hinted: &mut Vec<Hint>, waiting: &mut HashSet<Unit>, is_anew: bool) -> Result<()> {
        let named = hinted.iter().filter_map(|hint| match hint {
            Hint::Expired(unit) => Some(unit),
            Hint::Doubt => None,
        });
        let is_news = |unit: &&Unit| self.is_ours(unit) && !self.mirror.is_offline(unit);
        let mut suspects: HashSet<Unit> = named.filter(is_news).cloned().collect();
        if is_anew {
            suspects.extend(waiting.iter().cloned());
        } else {
            suspects.retain(|unit| !waiting.contains(unit));
        }
        let suspects: Vec<Unit> = suspects.into_iter().collect();
        if !suspects.is_empty() {
            let undecided = self.roll.look_by(&suspects, Source::Notification, || self.clock.now()).await?;
            if is_anew {
                waiting.clear();
            }
            // The sweep finds those whose kind is not heard, and looks at them less often.
            waiting.extend(
                undecided.into_iter().filter(|unit| !self.config.sweep || !self.roll.is_behind(&unit.kind)),
            );
            if waiting.len() > MOST_WAITING {
                *waiting = waiting.drain().take(MOST_WAITING).collect();
            }
        }
        hinted.clear();
        Ok(())
    }

    /// Looks at every unit that is due, and notes in `swept` up to when that was done in partitions in which some
    /// could not be decided.
    async fn sweep(self: &Arc<Self>, due: Vec<Due>, swept: &mut HashMap<u16, Timestamp>) -> Result<()> {
        let mut due = due.into_iter();
        let mut ended = Ok(());
        // Tasks, for deciding and writing down a hundred thousand units is work for every core; they
        // end with the set.
        let mut sweeps = JoinSet::new();
        loop {
            // Those that are under way go on to their end when one fails, and no more begin.
            let free = if ended.is_ok() { AT_ONCE - sweeps.len() } else { 0 };
            for due in due.by_ref().take(free) {
                let expiry = self.clone();
                sweeps.spawn(
                    async move { expiry.sweep_partition(&due).await.map(|undecided| (due, undecided)) },
                );
            }
            match sweeps.join_next().await {
                Some(Ok(Ok((due, undecided)))) => {
                    if undecided > 0 || due.after.is_some() {
                        swept.insert(due.partition, due.until);
                    }
                }
                Some(Ok(Err(error))) => ended = ended.and(Err(error)),
                Some(Err(panicked)) => std::panic::resume_unwind(panicked.into_panic()),
                None => return ended,
            }
        }
    }

    /// Answers how many could not be decided.
    async fn sweep_partition(&self, due: &Due) -> Result<usize> {
        let Due { partition, after, until } = *due;
        let mut undecided = 0;
        loop {
            let due = self.engine.due(partition, after, until, undecided, MOST_DUE).await?;
            if due.is_empty() {
                return Ok(undecided);
            }
            if due.len() >= MANY {
                self.engine.storm(true);
            }
            undecided += self.roll.look_by(&due, Source::Sweep, || self.clock.now()).await?.len();
            if due.len() < MOST_DUE {
                return Ok(undecided);
            }
        }
    }
}
