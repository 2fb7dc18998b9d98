//! One page: compared with the mirror, and its suspects looked at.

use super::Walk;
use super::removed::UnwatchedRecords;
use crate::clock::Timestamp;
use crate::presence::{self, Hearing, Snapshot, Standing, Unit, Verdict};
use crate::store::Result;

/// What a page holds that the walk is there to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Found {
    /// Nothing that was left as it is.
    Nothing,
    /// A unit that differs and cannot be put right now.
    Unhelped,
}

impl Walk {
    /// Reads a page and compares it. Answers also how many open records of kinds that are not configured it holds.
    pub(super) async fn page(&self, partition: u16, page: u32) -> Result<(Found, UnwatchedRecords)> {
        let mark = self.mirror.mark(partition);
        let snapshots = self.engine.walk(partition, page).await?;
        let unwatched = self.unwatched(&snapshots).await?;
        self.mirror.compare(mark, &snapshots);
        snapshots.iter().for_each(|seen| self.roll.meet(&seen.unit, seen.facts.as_ref()));
        let now = self.clock.now();
        let hearing = self.roll.hearing();
        let odd = snapshots.into_iter().filter(|seen| self.is_odd(seen, &hearing, now));
        // Most of what is odd cannot be helped now, such as a fleet that is due while Rollcall is
        // blind; reading all of it again would be for nothing.
        let (suspects, unhelped): (Vec<Snapshot>, Vec<Snapshot>) =
            odd.partition(|seen| self.can_be_helped(seen, &hearing, now));
        let suspects: Vec<Unit> = suspects.into_iter().map(|seen| seen.unit).collect();
        self.check(&suspects, now).await?;
        let found = if unhelped.is_empty() { Found::Nothing } else { Found::Unhelped };
        Ok((found, unwatched))
    }

    /// Looks at units that nothing else would lead to.
    pub(super) async fn check(&self, suspects: &[Unit], now: Timestamp) -> Result<()> {
        if !suspects.is_empty() {
            self.roll.check_deadlines(suspects, now).await?;
        }
        Ok(())
    }

    fn is_odd(&self, seen: &Snapshot, hearing: &Hearing, now: Timestamp) -> bool {
        if seen.is_unreadable() {
            return true;
        }
        let Some((facts, rules)) = seen.facts.as_ref().zip(self.roll.rules().get(&seen.unit.kind)) else {
            return false;
        };
        match &facts.standing {
            Standing::Retired(_) => false,
            Standing::Offline(silence) => {
                seen.alive.is_some() || silence.allowed != facts.policy(rules).allowed()
            }
            _ => presence::deadline(seen, rules, hearing).is_some_and(|deadline| deadline < now),
        }
    }

    fn can_be_helped(&self, seen: &Snapshot, hearing: &Hearing, now: Timestamp) -> bool {
        if seen.is_unreadable() {
            return true;
        }
        let rules = &self.roll.rules()[&seen.unit.kind];
        matches!(presence::check_deadline(seen, rules, hearing, now), Verdict::Offline(_) | Verdict::Back(_))
    }
}
