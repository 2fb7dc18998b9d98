//! Deadline checks: units that may be due are read, decided upon and written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};

use super::Roll;
use super::unheard::next_check_without_rules;
use crate::clock::Timestamp;
use crate::presence::{
    self, Change, Hearing, Heartbeat, IndexChange, KeyChange, KindRules, Snapshot, Unit, Verdict,
};
use crate::store::{CheckGuard, DeadlineCheck, EngineError, IndexState, PendingCheck, Result};
use crate::telemetry::{CheckOutcome, CheckSource, Stored};

/// Checks that are under way at once: while the engine reads for one, another is decided.
const CHECKS_AT_ONCE: usize = 2;

/// Checks that are under way at once where the engine is far away, and most of their time is spent on the network.
const FAR_CHECKS_AT_ONCE: usize = 32;

/// The next check of a unit of which the stored state cannot be read.
const UNREADABLE: Duration = Duration::from_secs(30);

/// The decision about one unit.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
enum Decision {
    /// The allowed silence of the unit is unknown: its next check is put off.
    Unreadable,
    /// Rollcall has not heard far enough to decide.
    Undecided,
    Change(Change, CheckOutcome),
}

/// The decisions about the units of one check.
#[derive(Default)]
struct Decisions {
    changes: Vec<(Snapshot, Change)>,
    /// One for each change.
    outcomes: Vec<CheckOutcome>,
    undecided: Vec<Unit>,
    unreadable: Vec<Unit>,
}

/// The units of a check as they were read.
pub(super) struct BegunCheck<'a> {
    pub units: Vec<Snapshot>,
    /// How far Rollcall had heard after they were read.
    pub hearing: Arc<Hearing>,
    pub guard: Box<dyn CheckGuard + 'a>,
}

impl Roll {
    /// Checks suspects of the walk, each at most once in the list, and opens the records of overdue units. Answers
    /// with the units that cannot be decided, because Rollcall has not heard far enough.
    pub async fn check_deadlines(&self, suspects: &[Unit], now: Timestamp) -> Result<Vec<Unit>> {
        self.check_suspects(suspects, CheckSource::Walk, || now).await
    }

    /// Checks suspects of any source, as [`Roll::check_deadlines`] does. The clock is read after each batch: a check of
    /// many units takes a while, and an absent key says less the later it is read.
    pub async fn check_suspects(
        &self,
        suspects: &[Unit],
        source: CheckSource,
        clock: impl Fn() -> Timestamp + Send + Sync,
    ) -> Result<Vec<Unit>> {
        let mut checks: Vec<BoxFuture<'_, Result<Vec<Unit>>>> = Vec::new();
        for pending in self.engine.check_deadlines(suspects) {
            checks.push(self.check(pending, source, &clock).boxed());
        }
        self.run_checks(checks).await
    }

    /// Runs checks, some at a time, and returns the units that they answer with. When a check fails, checks under way
    /// go on to their end and no more begin. A fault of one batch stops no other.
    pub(super) async fn run_checks(
        &self,
        checks: Vec<BoxFuture<'_, Result<Vec<Unit>>>>,
    ) -> Result<Vec<Unit>> {
        let has_failed = AtomicBool::new(false);
        let mut begun: Vec<BoxFuture<'_, Result<Vec<Unit>>>> = Vec::new();
        for check in checks {
            begun.push(unless(&has_failed, check).boxed());
        }
        let at_once = if self.round_trip().is_zero() { CHECKS_AT_ONCE } else { FAR_CHECKS_AT_ONCE };
        let checked: Vec<Result<Vec<Unit>>> = stream::iter(begun).buffer_unordered(at_once).collect().await;
        let units: Vec<Vec<Unit>> = checked.into_iter().collect::<Result<_>>()?;
        Ok(units.into_iter().flatten().collect())
    }

    /// Reads the units of a check, and how far Rollcall had heard then.
    pub(super) async fn begin_check<'a>(&self, pending: PendingCheck<'a>) -> Result<BegunCheck<'a>> {
        let read = self.begin_hearing();
        let DeadlineCheck { units, hearing, watermark, guard } = pending.await?;
        let mut hearing = self.keep_hearing(hearing, read);
        if let Some(watermark) = watermark.filter(|watermark| hearing.heard > Some(*watermark)) {
            hearing = Arc::new(hearing.up_to(watermark));
        }
        Ok(BegunCheck { units, hearing, guard })
    }

    async fn check(
        &self,
        pending: PendingCheck<'_>,
        source: CheckSource,
        clock: &(impl Fn() -> Timestamp + Send + Sync),
    ) -> Result<Vec<Unit>> {
        let BegunCheck { units, hearing, guard } = self.begin_check(pending).await?;
        let now = clock();
        let mut decisions = Decisions::default();
        for seen in units {
            match self.decide_check(&seen, source, &hearing, now) {
                Decision::Unreadable => decisions.unreadable.push(seen.unit),
                Decision::Undecided => decisions.undecided.push(seen.unit),
                Decision::Change(change, outcome) => {
                    decisions.changes.push((seen, change));
                    decisions.outcomes.push(outcome);
                }
            }
        }
        self.write_decisions(decisions, guard, source, now).await
    }

    fn decide_check(
        &self,
        seen: &Snapshot,
        source: CheckSource,
        hearing: &Hearing,
        now: Timestamp,
    ) -> Decision {
        if seen.is_unreadable() {
            let change = self.admit_anew(seen, hearing, now);
            return change
                .map_or(Decision::Unreadable, |change| Decision::Change(change, CheckOutcome::Alive));
        }
        let Some(rules) = self.rules.of(seen.unit.kind.as_str()) else {
            let next_check = next_check_without_rules(hearing, &seen.unit.kind, now);
            return Decision::Change(check_later(seen, next_check), CheckOutcome::Alive);
        };
        let believed = self.corrected_unit(seen, now);
        match self.verdict(seen, believed.as_ref(), &rules, hearing, now) {
            Verdict::Alive(change) | Verdict::Back(change) | Verdict::Gone(change) => {
                let change = match &believed {
                    None => change,
                    Some(believed) => presence::as_corrected(change, believed, &rules),
                };
                Decision::Change(change, CheckOutcome::Alive)
            }
            Verdict::Offline(change) => Decision::Change(change, CheckOutcome::Offline),
            // A unit of a hint may not be in the index, where the index is not swept: then it cannot be put off.
            Verdict::Undecided if source == CheckSource::Notification => Decision::Undecided,
            Verdict::Undecided => {
                let waits = self.wait_for_its_kind(seen, &rules, hearing, now);
                waits.map_or(Decision::Undecided, |change| Decision::Change(change, CheckOutcome::Undecided))
            }
        }
    }

    fn verdict(
        &self,
        seen: &Snapshot,
        believed: Option<&Snapshot>,
        rules: &KindRules,
        hearing: &Hearing,
        now: Timestamp,
    ) -> Verdict {
        let absent_since = self.absent_keys.since(seen, now);
        let verdict = presence::recheck_deadline(believed.unwrap_or(seen), absent_since, rules, hearing, now);
        match &verdict {
            Verdict::Undecided => self.absent_keys.keep(seen, absent_since),
            _ => self.absent_keys.forget(&seen.unit),
        }
        verdict
    }

    async fn write_decisions(
        &self,
        decisions: Decisions,
        guard: Box<dyn CheckGuard + '_>,
        source: CheckSource,
        now: Timestamp,
    ) -> Result<Vec<Unit>> {
        let Decisions { mut changes, outcomes, undecided, unreadable } = decisions;
        if !unreadable.is_empty() {
            self.engine.set_next_check(&unreadable, now + UNREADABLE, IndexState::Present).await?;
        }
        if !changes.is_empty() {
            self.close_lost(&mut changes, now).await?;
            let applied = self.apply_by(&changes, guard.apply(&changes)).await?;
            if source == CheckSource::Walk {
                self.add_to_index(&changes, &applied, now).await?;
            }
            for (outcome, applied) in outcomes.into_iter().zip(applied) {
                let outcome = if applied { outcome } else { CheckOutcome::Superseded };
                self.telemetry.deadlines_checked(source, outcome, 1);
            }
        }
        self.telemetry.deadlines_checked(source, CheckOutcome::Undecided, undecided.len() as u64);
        Ok(undecided)
    }

    /// Puts units back into the index whose silence the walk found and could not record, because the index does not
    /// hold them, as after a loss of the index. The next check records the silence.
    pub(super) async fn add_to_index(
        &self,
        changes: &[(Snapshot, Change)],
        applied: &[bool],
        now: Timestamp,
    ) -> Result<()> {
        let is_lost = |((_, change), applied): &(&(Snapshot, Change), &bool)| {
            !**applied && change.index == IndexChange::Take && change.record.is_some()
        };
        let lost = changes.iter().zip(applied).filter(is_lost);
        let lost: Vec<Unit> = lost.map(|((seen, _), _)| seen.unit.clone()).collect();
        if lost.is_empty() {
            Ok(())
        } else {
            self.engine.set_next_check(&lost, now, IndexState::Absent).await
        }
    }

    /// The change that admits a unit with unreadable facts again, if it was heard lately. Until then checks leave it
    /// out: its allowed silence is unknown.
    fn admit_anew(&self, seen: &Snapshot, hearing: &Hearing, now: Timestamp) -> Option<Change> {
        self.met_unreadable(seen);
        let (at, rules) = (seen.alive?, self.rules.of(seen.unit.kind.as_str())?);
        let is_late = at + rules.policy.allowed() < now;
        let heartbeat = Heartbeat::of(seen.unit.clone(), at);
        presence::hear(seen, &heartbeat, &rules, hearing, now).1.filter(|_| !is_late)
    }

    pub(super) fn met_unreadable(&self, seen: &Snapshot) {
        // The next message writes the declaration of the unit again.
        self.declared.forget(&seen.unit);
        let text: String = seen.stored.as_deref().unwrap_or_default().chars().take(80).collect();
        let why = format!(
            "{text:?}; its next heartbeat admits it again, with the settings of its kind; its own settings are lost: \
             set them again, or delete the unit"
        );
        self.telemetry.unreadable(Stored::Facts, &seen.unit.to_string(), &why);
    }
}

/// Runs a check unless another one has found that the engine is away.
async fn unless(has_failed: &AtomicBool, check: BoxFuture<'_, Result<Vec<Unit>>>) -> Result<Vec<Unit>> {
    if has_failed.load(Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let checked = check.await;
    use EngineError::{Passing, Unavailable, WrongType};
    let is_away = matches!(checked, Err(Unavailable(_) | Passing(_) | WrongType(_)));
    has_failed.fetch_or(is_away, Ordering::Relaxed);
    checked
}

/// A unit whose kind is no longer configured has no deadline; it is checked again later, because its kind may come
/// back.
fn check_later(seen: &Snapshot, next_check: Timestamp) -> Change {
    Change {
        key: KeyChange::Keep,
        index: IndexChange::CheckAt(next_check),
        facts: seen.facts.clone(),
        record: None,
    }
}
