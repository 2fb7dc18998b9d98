//! One page: compared with the mirror, and the deadlines of its suspects checked.

use super::Walk;
use super::removed::UnwatchedRecords;
use crate::clock::Timestamp;
use crate::fleet::Rules;
use crate::fleet::coverage::PartitionCount;
use crate::presence::{self, Hearing, Lifecycle, Snapshot, Unit, Verdict};
use crate::store::Result;

/// Whether the units of a page that need a check could be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PageOutcome {
    Resolved,
    /// The page holds a suspect that cannot be decided now.
    Unresolved,
}

impl Walk {
    /// Reads a page and compares it. Also returns the number of open records of kinds that are not configured.
    /// `checks_all`: the deadline of each unit that is present is checked. `covered` counts units that silences
    /// cover.
    pub(super) async fn compare_page(
        &self,
        partition: u16,
        page: u32,
        checks_all: bool,
        covered: Option<&PartitionCount>,
    ) -> Result<(PageOutcome, UnwatchedRecords)> {
        let mark = self.mirror.mark(partition);
        let snapshots = self.engine.walk(partition, page).await?;
        let unwatched = self.unwatched(&snapshots).await?;
        self.mirror.compare(mark, &snapshots);
        if let Some(covered) = covered {
            covered.add(&snapshots).await;
        }
        let (rules, now) = (self.roll.rules(), self.clock.now());
        for seen in &snapshots {
            if let (Some(facts), Some(rules)) = (&seen.facts, rules.get(&seen.unit.kind)) {
                self.roll.pace().met(facts, rules);
            }
        }
        let hearing = self.roll.hearing();
        let (present, others): (Vec<Snapshot>, Vec<Snapshot>) =
            snapshots.into_iter().partition(|seen| checks_all && is_present(seen));
        self.check(&present.into_iter().map(|seen| seen.unit).collect::<Vec<Unit>>(), now).await?;
        let suspects = others.into_iter().filter(|seen| is_suspect(seen, &rules, &hearing, now));
        // Most suspects cannot be decided now, such as a fleet that is due while Rollcall is blind; to read all of
        // them again would bring nothing.
        let (suspects, unresolved): (Vec<Snapshot>, Vec<Snapshot>) =
            suspects.partition(|seen| can_be_resolved(seen, &rules, &hearing, now));
        let suspects: Vec<Unit> = suspects.into_iter().map(|seen| seen.unit).collect();
        self.check(&suspects, now).await?;
        let outcome = if unresolved.is_empty() { PageOutcome::Resolved } else { PageOutcome::Unresolved };
        Ok((outcome, unwatched))
    }

    /// Checks the deadlines of suspects now.
    pub(super) async fn check(&self, suspects: &[Unit], now: Timestamp) -> Result<()> {
        if !suspects.is_empty() {
            self.roll.check_deadlines(suspects, now).await?;
        }
        Ok(())
    }
}

fn is_suspect(seen: &Snapshot, rules: &Rules, hearing: &Hearing, now: Timestamp) -> bool {
    if seen.is_unreadable() {
        return true;
    }
    let Some((facts, rules)) = seen.facts.as_ref().zip(rules.get(&seen.unit.kind)) else {
        return false;
    };
    match &facts.lifecycle {
        Lifecycle::Retired(_) => false,
        Lifecycle::Offline(silence) => {
            seen.alive.is_some() || silence.allowed != facts.policy(rules).allowed()
        }
        _ => presence::deadline(seen, rules, hearing).is_some_and(|deadline| deadline < now),
    }
}

fn can_be_resolved(seen: &Snapshot, rules: &Rules, hearing: &Hearing, now: Timestamp) -> bool {
    if seen.is_unreadable() {
        return true;
    }
    let Some(rules) = rules.get(&seen.unit.kind) else { return false };
    matches!(presence::check_deadline(seen, rules, hearing, now), Verdict::Offline(_) | Verdict::Back(_))
}

fn is_present(seen: &Snapshot) -> bool {
    seen.facts
        .as_ref()
        .is_some_and(|facts| matches!(facts.lifecycle, Lifecycle::Present | Lifecycle::NeverSeen))
}
