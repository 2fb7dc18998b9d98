//! A policy tried on the past: which silences it would have recorded, when, and which messages receivers would have
//! got.
//!
//! A trial decides nothing by itself. Deadlines follow `presence/blindness.rs`; routes, mutes, alert silences and
//! inhibition follow this room; groups follow `presence/grouping.rs`, and the breaker `presence/mass_offline.rs`. A
//! trial replays the past by these rules (`simulation.rs`), once with the current policy and once with the tried one,
//! and compares both (`comparison.rs`).
//!
//! A silence that was recorded by the policy of its time is tried, whatever the policy of now is: history has the
//! policies that were.
//!
//! A silence may have several records: a longer timeout closes the record of a lasting one, and opens another at its own
//! deadline. They are tried as one silence.
//!
//! Silences that were shorter than the timeout of their time are not on record and cannot be tried. Reminders,
//! escalations, flapping and the limits of receivers are left out.

use std::time::Duration;

use super::{Inhibition, Routes};
use crate::clock::Timestamp;
use crate::presence::{Closing, MassOfflineRule, Policy};

mod breaker;
mod comparison;
mod group;
mod inhibition;
mod past;
mod simulation;

pub use comparison::{PolicyTrial, TrialCounts, TrialDifference, TrialSide};
pub use group::TrialMessage;
pub use past::{FleetSizes, PastFleet, PastPolicy, PastSilence, PastUnit};
use simulation::Simulation;
pub use simulation::TrialOutcome;

/// A policy, and the configuration by which receivers are notified.
#[derive(Clone, Copy, Debug)]
pub struct TrialRules<'a> {
    pub policy: Policy,
    /// The longest extra time after blind time: `hearing.settle`.
    pub settle: Duration,
    pub routes: &'a Routes,
    /// All receivers that are configured.
    pub receivers: &'a [String],
    pub inhibition: &'a Inhibition,
    /// `None`: the mass-offline breaker is not enabled.
    pub breaker: Option<MassOfflineRule>,
    /// Whether units of the kind may flap.
    pub has_flapping: bool,
    /// Whether a receiver has a rate limit.
    pub has_rate_limits: bool,
}

impl TrialRules<'_> {
    /// The deadline of a silence of the kind by a policy.
    fn deadline(&self, policy: Policy, past: &PastFleet, silence: &PastSilence) -> Timestamp {
        let owed = policy.timeout.min(self.settle);
        past.ledger_of(silence).deadline(silence.last_seen, policy.allowed(), owed)
    }

    /// Whether the policy of the kind at that time, and nothing else, decided when a silence was recorded: neither a
    /// timeout of the unit, nor a silence that the unit planned, nor an announcement. Without policies on record, the
    /// policy of now counts.
    pub fn has_decided(&self, past: &PastFleet, silence: &PastSilence) -> bool {
        if silence.cause.is_announced() || !past.is_of_kind(silence) {
            return false;
        }
        let decides = |policy| self.deadline(policy, past, silence) == silence.deadline;
        match past.policies_of(silence) {
            [] => decides(self.policy),
            some => some.iter().any(|one| decides(one.policy)),
        }
    }

    /// A silence of the kind as this policy records it. `None`: the unit was back before, or its deadline is after the
    /// range.
    pub fn tried(&self, past: &PastFleet, silence: &PastSilence) -> Option<PastSilence> {
        let deadline = self.deadline(self.policy, past, silence);
        let late = silence.detected_at.since(silence.deadline);
        // A deadline at exactly the moment of the return has not passed.
        let is_recorded = deadline < silence.closed_at().unwrap_or(past.range.to);
        is_recorded.then(|| PastSilence { deadline, detected_at: deadline + late, ..*silence })
    }

    /// When a silence was over at the latest, and why. A longer timeout closes a record though its unit was not heard.
    /// Without a further record, the unit was heard before the deadline of that timeout: it is taken to have been silent
    /// for as long as it may have been, and no receiver is notified of a return.
    pub(super) fn latest_end(&self, past: &PastFleet, silence: &PastSilence) -> Option<(Timestamp, Closing)> {
        let (at, why) = silence.closed?;
        if why != Closing::Policy {
            return Some((at, why));
        }
        let then = past.policy_at(at).unwrap_or(self.policy);
        Some((self.deadline(then, past, silence).max(at), Closing::Removed))
    }

    /// The messages that receivers would have got of these silences, which have the places of the past; `None`: a
    /// silence that is not recorded. `stop` is called now and then: if it returns true, the result is `None`.
    pub fn outcome(
        &self,
        past: &PastFleet,
        silences: &[Option<PastSilence>],
        stop: &dyn Fn() -> bool,
    ) -> Option<TrialOutcome> {
        Simulation::new(self, past, silences).run(stop)
    }
}

#[cfg(test)]
mod tests;
