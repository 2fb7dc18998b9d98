//! From a silence to its record: finds the units that may be due and has the roll look at them.
//!
//! Two sources, one look. The deadline index is swept as soon as its first entry is due, at the
//! latest every tick. Expiry notifications of the engine are hints that come in between. Either
//! alone finds every silence; neither decides anything.
//!
//! # Why nothing is due further than Rollcall has heard
//! While no canary comes back, no unit can be called silent. Looking at those that come due would
//! cost a million looks in vain, so the sweep stays within what was heard and the longest slack.
//! Units that are due a little beyond that, with shorter slack, are passed over within a pass and
//! looked at again when Rollcall has heard more.
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
}

impl Expiry {
    /// Finds silences until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let (sender, mut hints) = mpsc::channel(MOST_HINTS);
        if self.config.sweep {
            self.telemetry.sweep_configured();
        }
        let expiry = Arc::new(self);
        let work = async { tokio::join!(expiry.listen(sender), expiry.look(&mut hints)) };
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

    async fn look(self: &Arc<Self>, hints: &mut mpsc::Receiver<Hint>) {
        let mut waiting = HashSet::new();
        let mut known = HashMap::new();
        let mut hinted = Vec::new();
        let mut hearing_read = None;
        let mut ownership = self.ownership.clone();
        loop {
            if hearing_read.is_none_or(|read: Instant| read.elapsed() >= self.config.tick) {
                let read = self.read_hearing().await;
                self.say("how far was heard", &read);
                hearing_read = read.is_ok().then(Instant::now);
            }
            let passed = self.pass(&mut hinted, &mut waiting, &mut known, self.clock.now()).await;
            self.say("", &passed);
            let rest = match passed {
                Ok(Some(next)) => next.since(self.clock.now()).min(self.config.tick),
                // Something is due and cannot be decided, or the engine failed.
                Ok(None) | Err(_) => self.config.tick,
            };
            tokio::select! {
                // Cancel-safe: what was received is in `hinted`.
                _ = hints.recv_many(&mut hinted, LARGEST_STEP), if self.config.hints => {}
                () = self.roll.heard_more(), if !matches!(passed, Ok(Some(_))) || !waiting.is_empty() => {}
                () = ownership.changed() => {}
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    fn say<T>(&self, what: &str, result: &Result<T>) {
        match result {
            Ok(_) => self.telemetry.engine_answered(Loop::Sweep, what),
            Err(error) => self.telemetry.engine_failed(Loop::Sweep, what, error),
        }
    }

    /// Every tick: what other instances heard counts too.
    async fn read_hearing(&self) -> Result<()> {
        let hearing = self.roll.refresh_hearing().await?;
        let is_blind = |heard| self.clock.now().since(heard) > self.roll.gap();
        self.telemetry.blind(hearing.heard.is_none_or(is_blind), hearing.heard);
        Ok(())
    }

    /// Looks at what was hinted at and at what is due. Answers when to look again; `None` if
    /// something is due that can only be decided when Rollcall has heard more.
    async fn pass(
        self: &Arc<Self>,
        hinted: &mut Vec<Hint>,
        waiting: &mut HashSet<Unit>,
        known: &mut HashMap<u16, First>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>> {
        self.follow(hinted, waiting).await?;
        if !self.config.sweep {
            return Ok(Some(now + self.config.tick));
        }
        // A deadline at exactly now is not yet passed.
        let latest = now - MILLISECOND;
        let firsts = self.first_looks(known, now).await?;
        self.telemetry.swept();
        let passed = self.take(&firsts, latest).await;
        let is_with_others = |first: &FirstLook| first.at <= latest && first.our_turn() > latest;
        if firsts.iter().any(is_with_others) {
            return passed.map(|next| next.map(|next| next.min(now + MEANWHILE)));
        }
        self.engine.storm(false);
        passed
    }

    /// Sweeps those partitions whose turn it is by `latest`. Answers as [`Expiry::pass`] does.
    async fn take(self: &Arc<Self>, firsts: &[FirstLook], latest: Timestamp) -> Result<Option<Timestamp>> {
        let Some(next) = firsts.iter().map(FirstLook::our_turn).min() else {
            return Ok(Some(Timestamp::NEVER));
        };
        if next > latest {
            return Ok(Some(next + MILLISECOND));
        }
        let Some(heard) = self.roll.hearing().heard else { return Ok(None) };
        let mut due = Vec::new();
        let mut is_held_up = false;
        for first in firsts.iter().filter(|first| first.our_turn() <= latest) {
            let wanted = latest - first.patience;
            let until = wanted.min(heard + first.slack);
            // What is due beyond what was heard waits for more hearing.
            is_held_up |= until < wanted;
            if first.at <= until {
                due.push((first.partition, until));
            }
        }
        let undecided = self.sweep(due).await?;
        // What came due meanwhile is seen at once.
        Ok((undecided == 0 && !is_held_up).then_some(latest))
    }

    async fn first_looks(&self, known: &mut HashMap<u16, First>, now: Timestamp) -> Result<Vec<FirstLook>> {
        let view = self.ownership.view();
        let firsts = (0..).zip(self.engine.first_looks().await?);
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

    /// Looks at the units of hints, and at those that waited, if their silence is not known yet.
    async fn follow(&self, hinted: &mut Vec<Hint>, waiting: &mut HashSet<Unit>) -> Result<()> {
        let named = hinted.iter().filter_map(|hint| match hint {
            Hint::Expired(unit) => Some(unit.clone()),
            Hint::Doubt => None,
        });
        let mut suspects: HashSet<Unit> = waiting.iter().cloned().collect();
        suspects.extend(named.filter(|unit| self.is_ours(unit) && !self.mirror.is_offline(unit)));
        let suspects: Vec<Unit> = suspects.into_iter().collect();
        if !suspects.is_empty() {
            let undecided = self.roll.look_by(&suspects, Source::Notification, || self.clock.now()).await?;
            *waiting = undecided.into_iter().take(MOST_WAITING).collect();
        }
        hinted.clear();
        Ok(())
    }

    /// Looks at every unit of these partitions whose next look is at or before the time beside it.
    /// Answers how many could not be decided.
    async fn sweep(self: &Arc<Self>, due: Vec<(u16, Timestamp)>) -> Result<usize> {
        let mut due = due.into_iter();
        let mut undecided = 0;
        // Tasks, for deciding and writing down a hundred thousand units is work for every core; they
        // end with the set.
        let mut swept = JoinSet::new();
        loop {
            for (partition, until) in due.by_ref().take(AT_ONCE - swept.len()) {
                let expiry = self.clone();
                swept.spawn(async move { expiry.sweep_partition(partition, until).await });
            }
            match swept.join_next().await {
                Some(Ok(of_partition)) => undecided += of_partition?,
                Some(Err(panicked)) => std::panic::resume_unwind(panicked.into_panic()),
                None => return Ok(undecided),
            }
        }
    }

    async fn sweep_partition(&self, partition: u16, until: Timestamp) -> Result<usize> {
        let mut undecided = 0;
        loop {
            let due = self.engine.due(partition, until, undecided, MOST_DUE).await?;
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
