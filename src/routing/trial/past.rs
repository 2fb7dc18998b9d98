//! The records of a fleet in a range of time: the past on which a policy is tried.
//!
//! Silences are small here, and labels are stored once for each unit: a month of a large fleet has a million
//! silences.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::presence::{Cause, Closing, Interval, Kind, Labels, Ledger, OfflineRecord, Policy, Unit};
use crate::routing::AlertSilences;

/// The past of a fleet.
#[derive(Clone, Debug)]
pub struct PastFleet {
    /// The kind whose policy is tried. Units of other kinds may share its groups, inhibit its units and trip the
    /// breaker.
    pub kind: Kind,
    pub range: Interval,
    /// Up to when silences are on record.
    pub written: Timestamp,
    pub units: Vec<PastUnit>,
    /// The silences that lasted in the range, by the time of detection, which may be after the range.
    pub silences: Vec<PastSilence>,
    /// The policies of the kind that are on record, in order; each is in force until the next one.
    pub policies: Vec<PastPolicy>,
    /// Blind time of the kind and of the fleet.
    pub ledger: Ledger,
    pub alert_silences: AlertSilences,
    /// When operators released the mass-offline breaker, in order.
    pub releases: Vec<Timestamp>,
    pub sizes: FleetSizes,
    /// How many notifications with units of the kind each receiver took in the range, without reminders.
    pub sent: BTreeMap<String, u64>,
    /// What is not on record, in words.
    pub gaps: Vec<String>,
}

/// A unit with the labels that it had; a unit whose labels changed is there several times.
#[derive(Clone, Debug)]
pub struct PastUnit {
    pub unit: Unit,
    pub labels: Labels,
    /// `None`: it was always known.
    pub known_since: Option<Timestamp>,
    pub pauses: Vec<Interval>,
}

/// A silence that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastSilence {
    /// The place of its unit in [`PastFleet::units`].
    pub unit: u32,
    pub cause: Cause,
    pub last_seen: Timestamp,
    pub deadline: Timestamp,
    pub detected_at: Timestamp,
    /// When it was over, and why; `None`: it lasts.
    pub closed: Option<(Timestamp, Closing)>,
}

/// A policy from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastPolicy {
    pub since: Timestamp,
    pub policy: Policy,
}

/// How late the begin of a policy may be noted: the writer of history may wait before it connects again.
const NOTED_WITHIN: Duration = Duration::from_secs(60);

/// How many units a fleet had.
#[derive(Clone, Debug, Default)]
pub struct FleetSizes {
    known: Vec<Timestamp>,
    removed: Vec<Timestamp>,
}

impl FleetSizes {
    /// `units`: since when each unit is known, and when it was removed.
    pub fn new(units: impl IntoIterator<Item = (Timestamp, Option<Timestamp>)>) -> FleetSizes {
        let mut sizes = FleetSizes::default();
        for (known, removed) in units {
            sizes.known.push(known);
            sizes.removed.extend(removed);
        }
        sizes.known.sort_unstable();
        sizes.removed.sort_unstable();
        sizes
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.known.is_empty()
    }

    pub(super) fn at(&self, moment: Timestamp) -> u64 {
        let until = |all: &[Timestamp]| all.partition_point(|at| *at <= moment);
        until(&self.known).saturating_sub(until(&self.removed)) as u64
    }
}

impl PastSilence {
    pub(super) fn closed_at(&self) -> Option<Timestamp> {
        self.closed.map(|(at, _)| at)
    }

    /// Whether it was closed though its unit was not heard: its true end is not known.
    pub(super) fn has_unknown_end(&self) -> bool {
        matches!(self.closed, Some((_, Closing::Policy | Closing::KindRemoved)))
    }
}

impl PastFleet {
    /// A past of which nothing is on record.
    pub fn empty(kind: Kind, range: Interval) -> PastFleet {
        PastFleet {
            kind,
            range,
            written: range.to,
            units: Vec::new(),
            silences: Vec::new(),
            policies: Vec::new(),
            ledger: Ledger::default(),
            alert_silences: AlertSilences::default(),
            releases: Vec::new(),
            sizes: FleetSizes::default(),
            sent: BTreeMap::new(),
            gaps: Vec::new(),
        }
    }

    pub(super) fn unit_of(&self, silence: &PastSilence) -> &PastUnit {
        &self.units[silence.unit as usize]
    }

    pub(super) fn is_of_kind(&self, silence: &PastSilence) -> bool {
        self.unit_of(silence).unit.kind == self.kind
    }

    /// The policies that were in force in a time, by what is on record.
    pub(super) fn policies_in(&self, time: Interval) -> &[PastPolicy] {
        let begun = |by: Timestamp| self.policies.partition_point(|one| one.since <= by);
        let (first, end) = (begun(time.from).saturating_sub(1), begun(time.to));
        &self.policies[first.min(end)..end]
    }

    /// The policy that is in force at a moment, by what is on record.
    pub(super) fn policy_at(&self, moment: Timestamp) -> Option<Policy> {
        let time = Interval { from: moment, to: moment + NOTED_WITHIN };
        self.policies_in(time).last().map(|one| one.policy)
    }

    /// The policies that may have decided a silence: those of its time. A policy may have been in force before it was
    /// first noted, so the first one counts for all time before, too.
    pub(super) fn policies_of(&self, silence: &PastSilence) -> &[PastPolicy] {
        let time = Interval { from: silence.last_seen, to: silence.detected_at + NOTED_WITHIN };
        match self.policies_in(time) {
            [] => &self.policies[..self.policies.len().min(1)],
            some => some,
        }
    }

    /// Whether the policies of its time are on record.
    pub(super) fn has_policies_of(&self, silence: &PastSilence) -> bool {
        self.policies.first().is_some_and(|first| first.since <= silence.detected_at)
    }

    /// Blind time of the kind, and the pauses of the unit that may matter to a silence.
    pub(super) fn ledger_of(&self, silence: &PastSilence) -> Cow<'_, Ledger> {
        let pauses = self.unit_of(silence).pauses.iter().filter(|pause| pause.to > silence.last_seen);
        pauses.fold(Cow::Borrowed(&self.ledger), |ledger, pause| {
            Cow::Owned(ledger.with(Some(*pause)).into_owned())
        })
    }

    /// The record of a silence while it lasted.
    pub fn open_record(&self, silence: &PastSilence) -> OfflineRecord {
        let PastSilence { cause, last_seen, deadline, detected_at, .. } = *silence;
        let PastUnit { unit, labels, .. } = self.unit_of(silence);
        let open = OfflineRecord::open(unit.clone(), last_seen, deadline, detected_at);
        OfflineRecord { labels: labels.clone(), cause, ..open }
    }
}
