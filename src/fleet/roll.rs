//! The roll of the fleet: heartbeats in, looks at suspects, and what came of them.
//!
//! The one place where stored state meets the rules: it reads snapshots, lets [`crate::presence`]
//! decide, and applies the changes. A change that comes too late, because the unit changed in
//! between, is decided again from what is there now.
//!
//! # Why heartbeats take two roads
//! Almost every heartbeat is of a unit that is present and says nothing new. Those are written
//! straight into their expiry keys in one pipeline. Only what that pipeline did not apply, and
//! heartbeats that declare something new, are read, decided and applied as changes.
//!
//! # Why the fast road is travelled in batches
//! The engine is to have work at every moment. While it writes one batch, the next is made and what
//! came of the one before goes into the mirror; only the making of the first and the end of the last
//! find it idle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use tokio::sync::Notify;

use super::census::Census;
use super::declared::Declarations;
use super::{CanaryPace, Mirror};
use crate::clock::Timestamp;
use crate::presence::{
    self, Change, Declared, Facts, Filters, Heard, Hearing, Heartbeat, IndexChange, KeyChange, Kind,
    KindRules, OfflineRecord, Probed, Registration, RemovedFilter, Snapshot, Standing, Transition, Unit,
    Verdict,
};
use crate::store::{
    Advance, Engine, EngineError, Gap, LARGEST_STEP, Member, Reading, Refresh, Result, Subscription,
    partition_of,
};
use crate::telemetry::{CheckOutcome, CheckSource, Loop, Stored, Telemetry};

mod gone;
mod lost;
mod rounds;
mod unheard;
mod unsettled;
mod unwatched;

use gone::Gone;
use rounds::{OfOneUnit, by_unit};
use unsettled::Unsettled;

/// The rules of every configured kind.
pub type Rules = HashMap<Kind, KindRules>;

/// How often a decision is made again when the unit keeps changing under it. A unit whose
/// heartbeats come faster than two round trips still gets its turn within a few.
const ATTEMPTS: usize = 8;

/// Looks that are under way at once: while the engine reads for one, another is decided.
const LOOKS_AT_ONCE: usize = 2;

/// The same where the engine is far away, which has most of them under way to it.
const FAR_LOOKS_AT_ONCE: usize = 32;

/// Round trips from a look that sets the next one to that next one, beyond what it set: it is written, it is asked
/// what is due, that is asked for and read, and what comes due while it is asked waits for the next time.
const LATE_BY: u32 = 4;

/// Heartbeats that take the fast road together, see the head of this file.
const BATCH: usize = 200;

/// Steps of admission that are under way at once; no unit is in two of them.
const STEPS_AT_ONCE: usize = 4;

/// When to look again at a unit of which something is stored that cannot be read.
const LEFT_OUT: Duration = Duration::from_secs(30);

/// How blindness is measured and owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HearingConfig {
    /// Two canaries further apart than this enclose a blind interval.
    pub gap: Duration,
    /// Whether that gets shorter with the shortest timeout that is met.
    pub follows: bool,
    /// The most hearing owed after one.
    pub settle: Duration,
    /// Blind intervals longer than this are told to operators.
    pub tell: Duration,
}

/// The roll of the fleet.
pub struct Roll {
    engine: Arc<dyn Engine>,
    rules: Arc<Rules>,
    mirror: Arc<Mirror>,
    telemetry: Arc<Telemetry>,
    config: HearingConfig,
    pace: Arc<CanaryPace>,
    census: Arc<Census>,
    filters: Filters,
    hearing: RwLock<Arc<Hearing>>,
    declared: Declarations,
    gone: Gone,
    unsettled: Unsettled,
    heard_more: Notify,
    news: Arc<Notify>,
}

impl Roll {
    /// A roll over `engine`. `news` is rung whenever something went into the outbox.
    pub fn new(
        engine: Arc<dyn Engine>,
        rules: Arc<Rules>,
        mirror: Arc<Mirror>,
        telemetry: Arc<Telemetry>,
        config: HearingConfig,
        news: Arc<Notify>,
    ) -> Roll {
        let pace =
            if config.follows { CanaryPace::following(config.gap) } else { CanaryPace::fixed(config.gap) };
        let pace = Arc::new(pace);
        let census = Arc::new(Census::new(&rules, mirror.clone(), telemetry.clone(), pace.clone()));
        Roll {
            census,
            engine,
            rules,
            mirror,
            telemetry,
            config,
            pace,
            filters: Filters::default(),
            hearing: RwLock::default(),
            declared: Declarations::default(),
            gone: Gone::default(),
            unsettled: Unsettled::default(),
            heard_more: Notify::new(),
            news,
        }
    }

    /// How many units there are, and whether there is room for more.
    pub fn census(&self) -> &Arc<Census> {
        &self.census
    }

    /// The rules of every kind.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Two canaries further apart than this enclose a blind interval.
    pub fn gap(&self) -> Duration {
        self.pace.gap()
    }

    /// How often hearing is to be proved.
    pub fn pace(&self) -> &Arc<CanaryPace> {
        &self.pace
    }

    /// How far Rollcall has heard, as of the last [`Roll::refresh_hearing`] or canary.
    pub fn hearing(&self) -> Arc<Hearing> {
        self.hearing.read().expect("nothing panics under this lock").clone()
    }

    /// Ends when Rollcall has heard further than before.
    pub async fn heard_more(&self) {
        self.heard_more.notified().await;
    }

    /// Reads from the engine how far Rollcall has heard.
    pub async fn refresh_hearing(&self) -> Result<Arc<Hearing>> {
        Ok(self.keep_hearing(self.engine.hearing().await?))
    }

    fn keep_hearing(&self, hearing: Hearing) -> Arc<Hearing> {
        let (settle, delay) = (self.config.settle, LATE_BY * self.round_trip());
        let hearing = Hearing { settle, delay, ..hearing }.by_filters(&self.filters);
        let removed = self.removed_filters(&hearing);
        let hearing = Arc::new(hearing.held_back(&removed));
        let mut current = self.hearing.write().expect("nothing panics under this lock");
        let of_kind = |(kind, of_kind): (&Kind, &Hearing)| of_kind.heard > current.of(kind).heard;
        let further = hearing.heard > current.heard || hearing.kinds.iter().any(of_kind);
        *current = hearing.clone();
        drop(current);
        if further {
            self.heard_more.notify_one();
        }
        hearing
    }

    /// A canary of a plain subscription that was sent at `sent_at` has come all the way, and so have everything
    /// before it and a probe of each filter.
    pub async fn canary_returned(&self, sent_at: Timestamp) -> Result<()> {
        let probed = Probed::all(&self.filters, sent_at, self.pace.gap());
        self.canary_of(&Subscription::Plain, sent_at, self.pace.gap(), &probed).await.map(|_| ())
    }

    /// A canary that was sent at `sent_at` has come all the way to this ear, and so has everything
    /// before it that was for this ear. Up to `unbroken` before it, it has missed nothing since the canary that was
    /// told before. `probed`: what probes have proved that came before it. `false`: of a member that does not attend
    /// (any more).
    pub async fn canary_of(
        &self,
        ear: &Subscription,
        sent_at: Timestamp,
        unbroken: Duration,
        probed: &[Probed],
    ) -> Result<bool> {
        let gap = Gap { blind: unbroken, tell: self.config.tell };
        let prove = async { if probed.is_empty() { Ok(()) } else { self.engine.prove(probed).await } };
        // In this order: whoever sees that the fleet was heard further sees the same of its kinds. And without waiting
        // for the first, for the engine may be far away.
        let (proved, advanced) = tokio::join!(prove, self.engine.advance_and_hear(ear, sent_at, gap));
        proved?;
        let (advance, hearing) = advanced?;
        let Advance::Heard(blind) = advance else { return Ok(false) };
        if let Some(interval) = blind {
            self.telemetry.was_blind(&interval);
            self.news.notify_one();
        }
        self.keep_hearing(hearing);
        Ok(true)
    }

    /// Kinds are heard by these filters, and no further than the least of theirs.
    pub fn with_filters(self, filters: Filters) -> Roll {
        Roll { filters, ..self }
    }

    /// The filters that are configured no more and hold back their kinds.
    pub fn removed_filters(&self, hearing: &Hearing) -> Vec<RemovedFilter> {
        let timeout = |kind: &Kind| self.rules.get(kind).map_or(Duration::ZERO, |rules| rules.policy.timeout);
        hearing.removed(&self.filters, timeout)
    }

    /// How far away the engine is: see [`Engine::round_trip`].
    pub fn round_trip(&self) -> Duration {
        self.engine.round_trip()
    }

    /// What the canaries of the fleet are signed by.
    pub fn key(&self) -> &str {
        self.engine.key()
    }

    /// Up to when a session that the broker keeps has heard, if that is known.
    pub async fn heard_by(&self, client_id: &str) -> Result<Option<Timestamp>> {
        self.engine.heard_by(client_id).await
    }

    /// Writes what units tell of themselves: see [`super::DataStore::keep_values`].
    pub async fn keep_values(&self, readings: &[Reading<'_>]) -> Result<Vec<bool>> {
        self.engine.keep_values(readings).await
    }

    /// A member of a shared subscription begins: see [`super::HearingStore::attend`].
    pub async fn attend(&self, member: &Member, now: Timestamp, release: Duration) -> Result<()> {
        self.engine.attend(member, now, release).await
    }

    /// A member has recorded everything that it was given, and is given nothing more.
    pub async fn leave(&self, member: &Member) -> Result<()> {
        self.engine.leave(member).await
    }

    /// The broker has dropped a member at `at` or earlier. Whether it was one.
    pub async fn gone(&self, member: &Member, at: Timestamp) -> Result<bool> {
        self.engine.gone(member, at).await
    }

    /// Records heartbeats. When this returns, each is applied or known to change nothing. Safe to
    /// repeat. Heartbeats of kinds without rules are passed over.
    pub async fn hear(&self, beats: &[Heartbeat], now: Timestamp) -> Result<()> {
        let batches = beats.chunks(BATCH).map(|batch| self.refresh(batch, now));
        let mut refreshed = 0;
        let (mut rest, mut left) = (Vec::new(), Vec::new());
        // Each goes on to its end, also if another fails: what it recorded goes into the mirror.
        for batch in join_all(batches).await.into_iter().collect::<Result<Vec<Batch>>>()? {
            refreshed += batch.refreshed;
            rest.extend(batch.news);
            left.extend(batch.left);
        }
        rest.append(&mut left);
        self.telemetry.heartbeats(Heard::Refreshed, refreshed);
        let mut units = by_unit(rest);
        for steps in units.chunks_mut(STEPS_AT_ONCE * LARGEST_STEP) {
            let steps = steps.chunks_mut(LARGEST_STEP).map(|step| self.admit(step, now));
            // Each goes on to its end, also if another fails: what it applied is told.
            join_all(steps).await.into_iter().collect::<Result<()>>()?;
        }
        Ok(())
    }

    /// Takes one batch along the fast road.
    async fn refresh<'a>(&self, beats: &'a [Heartbeat], now: Timestamp) -> Result<Batch<'a>> {
        let mut batch = Batch::default();
        let mut plain = Vec::with_capacity(beats.len());
        let mut refreshes = Vec::with_capacity(beats.len());
        for beat in beats {
            let Some(rules) = self.rules.get(&beat.unit.kind) else { continue };
            if !is_timely(beat, rules, now) || !self.declared.says_nothing_new(beat) {
                batch.news.push(beat);
                continue;
            }
            let policy = rules.resolve(beat.declared.timeout, Default::default());
            plain.push(beat);
            refreshes.push(Refresh {
                unit: &beat.unit,
                at: beat.at,
                ttl: policy.allowed(),
                look: policy.first_check(beat.at),
            });
        }
        if refreshes.is_empty() {
            return Ok(batch);
        }
        for (beat, applied) in plain.into_iter().zip(self.engine.refresh(&refreshes).await?) {
            if applied {
                batch.refreshed += 1;
                self.mirror.seen(&beat.unit, beat.at);
            } else {
                batch.left.push(beat);
            }
        }
        Ok(batch)
    }

    /// Decides upon heartbeats that the fast road did not take.
    async fn admit(&self, units: &mut [OfOneUnit<'_>], now: Timestamp) -> Result<()> {
        let hearing = self.hearing();
        let mut open: Vec<&mut OfOneUnit> = units.iter_mut().collect();
        let mut in_vain = 0;
        while in_vain < ATTEMPTS {
            let names: Vec<Unit> = open.iter().map(|unit| unit.unit().clone()).collect();
            let mut decided = Vec::new();
            for (unit, seen) in open.drain(..).zip(self.engine.read(&names).await?) {
                let rules = &self.rules[&seen.unit.kind];
                let count = |heard, number| self.telemetry.heartbeats(heard, number);
                if seen.is_unreadable() {
                    self.met_unreadable(&seen);
                }
                let believed = self.believed(&seen, now);
                let as_told = believed.as_ref().unwrap_or(&seen);
                let Some(step) = unit.next(as_told, rules, &hearing, now, count) else { continue };
                let is_known = seen.is_known() || seen.is_unreadable();
                let place = if is_known { None } else { self.census.place(&seen.unit) };
                if place.is_some() || is_known {
                    let change = step.change.clone();
                    decided.push(((unit, step, place), (seen, change)));
                }
            }
            let (steps, mut changes): (Vec<_>, Vec<_>) = decided.into_iter().unzip();
            self.close_lost(&mut changes, now).await?;
            in_vain += 1;
            for ((unit, step, place), applied) in steps.into_iter().zip(self.apply(&changes).await?) {
                if !applied {
                    open.push(unit);
                    continue;
                }
                in_vain = 0;
                if let Some(place) = place {
                    place.taken();
                }
                self.declared.admitted(step.beat);
                step.counts()
                    .into_iter()
                    .for_each(|(heard, number)| self.telemetry.heartbeats(heard, number));
                if unit.done(&step) {
                    open.push(unit);
                }
            }
            if open.is_empty() {
                return Ok(());
            }
        }
        Err(EngineError::Unavailable(format!(
            "{} units changed {ATTEMPTS} times while they were admitted, the first is {}",
            open.len(),
            open[0].unit()
        )))
    }

    /// Looks at suspects of the walk, each at most once in the list, and opens the records of those whose time
    /// is up. Answers with those about whom Rollcall has not heard far enough to say.
    pub async fn check_deadlines(&self, suspects: &[Unit], now: Timestamp) -> Result<Vec<Unit>> {
        self.look_by(suspects, CheckSource::Walk, || now).await
    }

    /// The same for suspects of any source, asking for the time whenever some of them were read: a look at many takes a while,
    /// and a key that is gone by then says less the later it is read.
    pub async fn look_by(
        &self,
        suspects: &[Unit],
        source: CheckSource,
        clock: impl Fn() -> Timestamp + Send + Sync,
    ) -> Result<Vec<Unit>> {
        let has_failed = AtomicBool::new(false);
        let look = async |units| {
            let looked = self.look_at(units, source, &clock).await;
            // What is broken of one look stops no other.
            let is_away = matches!(looked, Err(EngineError::Unavailable(_)));
            has_failed.fetch_or(is_away, Ordering::Relaxed);
            looked
        };
        // Those that are under way go on to their end when one fails, and no more begin.
        let units = self
            .engine
            .check_batches(suspects)
            .into_iter()
            .take_while(|_| !has_failed.load(Ordering::Relaxed));
        let at_once = if self.round_trip().is_zero() { LOOKS_AT_ONCE } else { FAR_LOOKS_AT_ONCE };
        let looks: Vec<Result<Vec<Unit>>> =
            stream::iter(units).map(look).buffer_unordered(at_once).collect().await;
        let undecided: Vec<Vec<Unit>> = looks.into_iter().collect::<Result<_>>()?;
        Ok(undecided.into_iter().flatten().collect())
    }

    async fn look_at(
        &self,
        units: Vec<Unit>,
        source: CheckSource,
        clock: impl Fn() -> Timestamp,
    ) -> Result<Vec<Unit>> {
        let looked = self.engine.check_deadlines(&units).await?;
        let now = clock();
        let hearing = self.keep_hearing(looked.hearing);
        let (mut undecided, mut changes, mut results) = (Vec::new(), Vec::new(), Vec::new());
        let mut left_out = Vec::new();
        for seen in looked.units {
            if seen.is_unreadable() {
                match self.admit_anew(&seen, &hearing, now) {
                    None => left_out.push(seen.unit),
                    Some(change) => {
                        results.push(CheckOutcome::Alive);
                        changes.push((seen, change));
                    }
                }
                continue;
            }
            let Some(rules) = self.rules.get(&seen.unit.kind) else {
                results.push(CheckOutcome::Alive);
                let look = unheard::look_without_rules(&hearing, &seen.unit.kind, now);
                changes.push(put_off(seen, look));
                continue;
            };
            let gone_since = self.gone.since(&seen, now);
            let believed = self.believed(&seen, now);
            let as_told = believed.as_ref().unwrap_or(&seen);
            let verdict = presence::recheck_deadline(as_told, gone_since, rules, &hearing, now);
            let change_of = |change| match &believed {
                None => change,
                Some(believed) => presence::as_corrected(change, believed, rules),
            };
            match &verdict {
                Verdict::Undecided => self.gone.keep(&seen, gone_since),
                _ => self.gone.forget(&seen.unit),
            }
            match verdict {
                Verdict::Alive(change) | Verdict::Back(change) | Verdict::Gone(change) => {
                    results.push(CheckOutcome::Alive);
                    let change = change_of(change);
                    changes.push((seen, change));
                }
                Verdict::Offline(change) => {
                    results.push(CheckOutcome::Offline);
                    changes.push((seen, change));
                }
                Verdict::Undecided => {
                    let off = self.wait_for_its_kind(&seen, rules, &hearing, now);
                    // Of a hint nothing may be in the index to put off, where that is not swept.
                    match off.filter(|_| source != CheckSource::Notification) {
                        None => undecided.push(seen.unit),
                        Some(change) => {
                            results.push(CheckOutcome::Undecided);
                            changes.push((seen, change));
                        }
                    }
                }
            }
        }
        if !left_out.is_empty() {
            self.engine.put_off(&left_out, now + LEFT_OUT).await?;
        }
        if !changes.is_empty() {
            self.close_lost(&mut changes, now).await?;
            let applying = self.unsettled.applying(&changes);
            let applied = self.records(&changes, looked.hold.apply(&changes).await)?;
            applying.answered(&applied);
            self.applied(&changes, &applied).await;
            if source == CheckSource::Walk {
                self.put_in(&changes, &applied, now).await?;
            }
            for (result, applied) in results.into_iter().zip(applied) {
                let result = if applied { result } else { CheckOutcome::Superseded };
                self.telemetry.deadlines_checked(source, result, 1);
            }
        }
        self.telemetry.deadlines_checked(source, CheckOutcome::Undecided, undecided.len() as u64);
        Ok(undecided)
    }

    /// The walk found silences that nobody could take: the index does not hold their units, as after it was
    /// lost. They are put in, and taken by the next look.
    async fn put_in(&self, changes: &[(Snapshot, Change)], applied: &[bool], now: Timestamp) -> Result<()> {
        let is_lost = |((_, change), applied): &(&(Snapshot, Change), &bool)| {
            !**applied && change.index == IndexChange::Take && change.record.is_some()
        };
        let lost = changes.iter().zip(applied).filter(is_lost);
        let lost: Vec<Unit> = lost.map(|((seen, _), _)| seen.unit.clone()).collect();
        if lost.is_empty() { Ok(()) } else { self.engine.put_in(&lost, now).await }
    }

    /// What admits a unit anew of which something is stored that cannot be read, if it was heard lately. Until
    /// then it is left out of looks: nothing that is known of it says what it is allowed.
    fn admit_anew(&self, seen: &Snapshot, hearing: &Hearing, now: Timestamp) -> Option<Change> {
        self.met_unreadable(seen);
        let (at, rules) = (seen.alive?, self.rules.get(&seen.unit.kind)?);
        let is_late = at + rules.policy.allowed() < now;
        let beat = Heartbeat { unit: seen.unit.clone(), at, not_before: None, declared: Declared::default() };
        presence::hear(seen, &beat, rules, hearing, now).1.filter(|_| !is_late)
    }

    fn met_unreadable(&self, seen: &Snapshot) {
        // What its next message declares is written again.
        self.declared.forget(&seen.unit);
        let text: String = seen.stored.as_deref().unwrap_or_default().chars().take(80).collect();
        let why = format!(
            "{text:?}; its next heartbeat admits it anew, with what its kind allows; what was set for it is lost: \
             set it again, or delete the unit"
        );
        self.telemetry.unreadable(Stored::Facts, &seen.unit.to_string(), &why);
    }

    /// Registers a unit or changes what was set for it; not one with the id of a probe.
    pub async fn register(&self, unit: &Unit, wanted: &Registration, now: Timestamp) -> Result<bool> {
        let Some(rules) = self.rules.get(&unit.kind).filter(|_| !unit.id.is_reserved()) else {
            return Ok(false);
        };
        let hearing = self.hearing();
        self.decide(unit, |seen| Some(presence::register(seen, wanted, rules, &hearing, now))).await
    }

    /// Removes a unit from the fleet; its later heartbeats are counted and change nothing.
    pub async fn retire(&self, unit: &Unit, now: Timestamp) -> Result<bool> {
        let retired = self.decide(unit, |seen| presence::retire(seen, now)).await?;
        self.declared.forget(unit);
        Ok(retired)
    }

    async fn decide(&self, unit: &Unit, decision: impl Fn(&Snapshot) -> Option<Change>) -> Result<bool> {
        for _ in 0..ATTEMPTS {
            for seen in self.engine.read(std::slice::from_ref(unit)).await? {
                let Some(change) = decision(&seen) else { return Ok(false) };
                if self.apply(&[(seen, change)]).await? == [true] {
                    return Ok(true);
                }
            }
        }
        Err(EngineError::Unavailable(format!("{unit} changed {ATTEMPTS} times while it was decided upon")))
    }

    async fn apply(&self, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let applying = self.unsettled.applying(changes);
        let applied = self.records(changes, self.engine.apply(changes).await)?;
        applying.answered(&applied);
        self.applied(changes, &applied).await;
        Ok(applied)
    }

    /// Tells whether records can be written, of changes that hold any. A refusal is not forgotten because
    /// nothing was to be written the next time; what is only away fails again with the same loop.
    fn records<T>(&self, changes: &[(Snapshot, Change)], answer: Result<T>) -> Result<T> {
        if changes.iter().any(|(_, change)| change.record.is_some()) {
            match &answer {
                Ok(_) => self.telemetry.engine_answered(Loop::Records, ""),
                Err(error @ EngineError::Refused(_)) => {
                    self.telemetry.engine_failed(Loop::Records, "", error);
                }
                Err(_) => {}
            }
        }
        answer
    }

    /// What follows from changes beside what the engine did. Nothing of it can fail: the changes stand.
    /// What the mirror and the counters need comes first, before anything is awaited: a task that ends early
    /// leaves out the rest.
    async fn applied(&self, changes: &[(Snapshot, Change)], applied: &[bool]) {
        let mut told = false;
        let mut foreign = Vec::new();
        let mut gone = Vec::new();
        for ((seen, change), _) in changes.iter().zip(applied).filter(|(_, applied)| **applied) {
            if !self.mirror.changed(seen, change) {
                self.unsettled.doubt([&seen.unit]);
            }
            self.meet(&seen.unit, change.facts.as_ref());
            if seen.is_unreadable() {
                self.telemetry.readable(Stored::Facts, &seen.unit.to_string());
            }
            if !self.mirror.keeps(partition_of(&seen.unit, self.engine.partitions())) {
                foreign.push(&seen.unit);
            }
            if let Some(record) = &change.record {
                self.tell(record);
                told = true;
            }
            if change.facts.as_ref().is_none_or(|facts| matches!(facts.standing, Standing::Retired(_))) {
                gone.push(seen.unit.clone());
            }
        }
        if told {
            self.news.notify_one();
        }
        // Without this the owner's mirror learns of them when it next reads that partition whole.
        if !foreign.is_empty()
            && let Err(error) = self.engine.note(&foreign).await
        {
            self.unsettled.doubt(foreign);
            self.telemetry.engine_failed(Loop::Notes, "", &error);
        }
        // Nobody shows the values of a unit that is gone; whoever meets them removes them, too.
        if !gone.is_empty()
            && let Err(error) = self.engine.forget_values(&gone).await
        {
            self.telemetry.engine_failed(Loop::Notes, "values of units that are gone", &error);
        }
    }

    /// A unit that is watched: hearing is proved as often as it needs.
    pub(super) fn meet(&self, unit: &Unit, facts: Option<&Facts>) {
        if let Some((facts, rules)) = facts.zip(self.rules.get(&unit.kind)) {
            self.pace.met(facts, rules);
        }
    }

    fn tell(&self, record: &OfflineRecord) {
        match record.transition() {
            Transition::Offline => self.telemetry.went_offline(record),
            Transition::Online => self.telemetry.came_back(record),
        }
    }
}

/// What became of a batch on the fast road.
#[derive(Default)]
struct Batch<'a> {
    refreshed: u64,
    /// Those that say something new or are late.
    news: Vec<&'a Heartbeat>,
    /// Those that the engine left as they were.
    left: Vec<&'a Heartbeat>,
}

/// Whether it may overwrite a newer heartbeat for the moment until that is put back, as happens on
/// the fast road: somebody who looks just then must not find the unit's time up.
fn is_timely(beat: &Heartbeat, rules: &KindRules, now: Timestamp) -> bool {
    now.since(beat.at) < rules.policy.timeout / 2
}

/// A unit whose kind is configured no more has no deadline; it is looked at again later, in case
/// its kind comes back.
fn put_off(seen: Snapshot, look: Timestamp) -> (Snapshot, Change) {
    let change = Change {
        key: KeyChange::Keep,
        index: IndexChange::LookAt(look),
        facts: seen.facts.clone(),
        record: None,
    };
    (seen, change)
}
