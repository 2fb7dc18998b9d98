//! The row of a unit, and which of two updates of it is newer.

use super::known::KnownSince;
use crate::clock::Timestamp;
use crate::presence::{Cause, Facts, Interval, KindRules, Labels, Lifecycle, Policy};
use crate::store::table::{self, Name};

/// The state of a unit as a row holds it, without the details of an open record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RowState {
    /// No unit: the slot is free for the next one.
    Free,
    /// Heard, and not known otherwise: a heartbeat was recorded before any facts were read.
    Assumed,
    /// Heard, and not known to be offline.
    Present,
    /// Registered and not yet heard.
    NeverSeen,
    Offline,
    /// Offline without ever having been heard.
    OfflineUnheard,
}

impl RowState {
    /// Whether `last_seen` is the time of a heartbeat, not of a registration.
    pub fn is_heard(self) -> bool {
        matches!(self, RowState::Assumed | RowState::Present | RowState::Offline)
    }

    /// Whether the unit was heard, and has no open record.
    pub fn is_present(self) -> bool {
        matches!(self, RowState::Assumed | RowState::Present)
    }

    /// Whether the unit has an open record.
    pub fn is_offline(self) -> bool {
        matches!(self, RowState::Offline | RowState::OfflineUnheard)
    }
}

/// One unit in 24 bytes.
pub(super) struct Row {
    /// The newest heartbeat; of a unit that was never heard, its registration.
    pub last_seen: Timestamp,
    /// Where the id of the unit starts in the names.
    pub name: u32,
    /// The last mark of the table when the row was last updated from facts; see [`super::Mark`].
    pub mark: u32,
    /// The number of its policy.
    pub policy: u32,
    /// The number of its kind.
    pub kind: u16,
    /// The length of its id.
    pub length: u8,
    pub state: RowState,
}

const _: () = assert!(size_of::<Row>() == 24);

impl table::Row for Row {
    fn vacant() -> Row {
        let (last_seen, state) = (Timestamp::ZERO, RowState::Free);
        Row { last_seen, name: 0, mark: 0, policy: 0, kind: 0, length: 0, state }
    }

    fn is_vacant(&self) -> bool {
        self.state == RowState::Free
    }

    fn name(&self) -> Name {
        Name { start: self.name, kind: self.kind, length: self.length }
    }

    fn set_start(&mut self, start: u32) {
        self.name = start;
    }
}

/// Intervals in which a unit need not be heard, or may have been heard unseen; few units have any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Absence {
    /// Planned by an operator.
    pub pause: Option<Interval>,
    /// Announced by the unit; void after a newer heartbeat.
    pub sleep: Option<Interval>,
    /// Since when the unit is presumed to be silent.
    pub silent_from: Option<Timestamp>,
}

/// A new state of a row, from facts and expiry key.
pub(super) struct RowUpdate<'a> {
    pub state: RowState,
    pub last_seen: Timestamp,
    pub policy: Policy,
    pub absence: Option<Absence>,
    /// The deadline of its open record.
    pub offline_since: Option<Timestamp>,
    /// `None`: labels stay.
    pub labels: Option<&'a Labels>,
    /// See [`KnownSince`]; `None`: it stays.
    pub known_since: Option<u32>,
}

impl RowUpdate<'_> {
    /// `None`: the unit was removed.
    pub fn of<'a>(facts: &'a Facts, alive: Option<Timestamp>, rules: &KindRules) -> Option<RowUpdate<'a>> {
        let state = match &facts.lifecycle {
            Lifecycle::Retired(_) => return None,
            Lifecycle::NeverSeen => RowState::NeverSeen,
            Lifecycle::Present => RowState::Present,
            Lifecycle::Offline(silence) => match silence.cause {
                Cause::Silence | Cause::Flapping => RowState::Offline,
                Cause::NeverSeen => RowState::OfflineUnheard,
            },
        };
        let offline_since = match &facts.lifecycle {
            Lifecycle::Offline(silence) => Some(silence.deadline),
            _ => None,
        };
        let absent = facts.pause.is_some() || facts.sleep.is_some() || facts.silent_from.is_some();
        Some(RowUpdate {
            state,
            last_seen: alive.map_or(facts.last_seen, |alive| alive.max(facts.last_seen)),
            policy: facts.policy(rules),
            absence: absent.then_some(Absence {
                pause: facts.pause,
                sleep: facts.sleep,
                silent_from: facts.silent_from,
            }),
            offline_since,
            labels: Some(&facts.labels),
            known_since: Some(KnownSince::of(facts)),
        })
    }

    /// An update from a heartbeat alone.
    pub fn heard(at: Timestamp, policy: Policy) -> RowUpdate<'static> {
        let state = RowState::Assumed;
        RowUpdate {
            state,
            last_seen: at,
            policy,
            absence: None,
            offline_since: None,
            labels: None,
            known_since: None,
        }
    }

    /// Whether this update is older than the row. Two tasks apply their changes in one order and may update the
    /// mirror in the other: a silence that ended meanwhile must not come back.
    pub fn is_older_than(&self, row: &Row) -> bool {
        let unheard = !self.state.is_heard();
        row.state.is_present() && (unheard || self.state.is_offline() && self.last_seen < row.last_seen)
    }

    /// The next last seen time of the row: a heartbeat that is newer than the update is not lost.
    pub fn newest(&self, row: &Row) -> Timestamp {
        if self.state == RowState::Present && row.state.is_heard() {
            self.last_seen.max(row.last_seen)
        } else {
            self.last_seen
        }
    }
}
