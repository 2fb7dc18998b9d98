//! The row of a unit, and the rule for which of two updates of it is newer.

use super::known::KnownSince;
use super::settings::{NO_SETTINGS, Settings};
use super::{Name, Row};
use crate::clock::Timestamp;
use crate::presence::{Cause, Departure, Facts, Interval, Labels, Lifecycle, Rhythm};

/// The state of a unit in its row, without the details of an open record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RowState {
    /// No unit: a new unit may take the slot.
    Free,
    /// A unit that is hidden from readers: it was removed, its facts are unreadable, or it is about to be added.
    Hidden,
    /// Heard, with unknown facts: a heartbeat was recorded before the facts were read.
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
    pub fn is_shown(self) -> bool {
        !matches!(self, RowState::Free | RowState::Hidden)
    }

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

/// One unit in 32 bytes, half of a line of the processor's cache.
pub struct UnitRow {
    /// The newest heartbeat, or the registration of a unit that was never heard.
    pub last_seen: Timestamp,
    /// The start of the unit's id in the names.
    name: u32,
    /// For a table that is a copy: the mark at the last update of the row from facts.
    pub mark: u32,
    /// The number of its settings.
    pub settings: u32,
    /// The number of its kind.
    pub kind: u16,
    /// The length of its id.
    length: u8,
    pub state: RowState,
    /// The rhythm from its heartbeats, beside `last_seen`, which every heartbeat reads anyway.
    pub rhythm: Rhythm,
}

const _: () = assert!(size_of::<UnitRow>() == 32);

impl UnitRow {
    /// A row with only a name, hidden from readers.
    pub fn hidden(Name { start, kind, length }: Name) -> UnitRow {
        UnitRow { name: start, kind, length, state: RowState::Hidden, ..UnitRow::vacant() }
    }
}

impl Row for UnitRow {
    fn vacant() -> UnitRow {
        let (last_seen, state) = (Timestamp::ZERO, RowState::Free);
        let rhythm = Rhythm::default();
        UnitRow { last_seen, name: 0, mark: 0, settings: NO_SETTINGS, kind: 0, length: 0, state, rhythm }
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

/// Intervals in which a unit need not be heard, or may have been heard unseen, and its announced end. Few units have
/// any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Absence {
    /// Planned by an operator.
    pub pause: Option<Interval>,
    /// Announced by the unit; void after a newer heartbeat.
    pub sleep: Option<Interval>,
    /// Void after a newer heartbeat.
    pub departure: Option<Departure>,
    /// Since when the unit is presumed to be silent.
    pub silent_from: Option<Timestamp>,
}

impl Absence {
    pub fn of(facts: &Facts) -> Absence {
        let Facts { pause, sleep, departure, silent_from, .. } = *facts;
        Absence { pause, sleep, departure, silent_from }
    }

    /// Whether to ignore the time between two heartbeats for the rhythm of the unit: a part of it was planned or
    /// announced, or a heartbeat in it may have come unseen.
    pub fn is_within(&self, from: Timestamp, to: Timestamp) -> bool {
        let overlaps = |interval: Interval| interval.from < to && from < interval.to;
        let is_after = |moment: Timestamp| from < moment;
        [self.pause, self.sleep].into_iter().flatten().any(overlaps)
            || self.departure.is_some_and(|departure| is_after(departure.at))
            || self.silent_from.is_some_and(is_after)
    }
}

/// A new state of a row, from facts and expiry key.
#[derive(Clone, Copy, Debug)]
pub struct RowUpdate<'a> {
    pub state: RowState,
    pub last_seen: Timestamp,
    pub settings: Settings,
    pub absence: Option<Absence>,
    /// The deadline of its open record.
    pub offline_since: Option<Timestamp>,
    /// `None`: labels are unchanged.
    pub labels: Option<&'a Labels>,
    /// The second since which the unit is known, see [`KnownSince`]; `None`: unchanged.
    pub known_since: Option<u32>,
}

impl RowUpdate<'_> {
    /// `None`: the unit was removed.
    pub fn of(facts: &Facts, alive: Option<Timestamp>) -> Option<RowUpdate<'_>> {
        let (state, offline_since) = match &facts.lifecycle {
            Lifecycle::Retired(_) => return None,
            Lifecycle::NeverSeen => (RowState::NeverSeen, None),
            Lifecycle::Present => (RowState::Present, None),
            Lifecycle::Offline(silence) => match silence.cause {
                Cause::NeverSeen => (RowState::OfflineUnheard, Some(silence.deadline)),
                _ => (RowState::Offline, Some(silence.deadline)),
            },
        };
        let absence = Absence::of(facts);
        Some(RowUpdate {
            state,
            last_seen: alive.map_or(facts.last_seen, |alive| alive.max(facts.last_seen)),
            settings: Settings::of(facts),
            absence: (absence != Absence::default()).then_some(absence),
            offline_since,
            labels: Some(&facts.labels),
            known_since: Some(KnownSince::of(facts)),
        })
    }

    /// An update from a heartbeat alone.
    pub fn heard(at: Timestamp) -> RowUpdate<'static> {
        RowUpdate {
            state: RowState::Assumed,
            last_seen: at,
            settings: Settings::default(),
            absence: None,
            offline_since: None,
            labels: None,
            known_since: None,
        }
    }

    /// Whether this update is older than the row. Two tasks may update the mirror in another order than the order in
    /// which they applied their changes: a silence that ended meanwhile must not come back.
    pub fn is_older_than(&self, row: &UnitRow) -> bool {
        let unheard = !self.state.is_heard();
        row.state.is_present() && (unheard || self.state.is_offline() && self.last_seen < row.last_seen)
    }

    /// The next last seen time of the row, which preserves a heartbeat that is newer than the update.
    pub fn newest(&self, row: &UnitRow) -> Timestamp {
        if self.state == RowState::Present && row.state.is_heard() {
            self.last_seen.max(row.last_seen)
        } else {
            self.last_seen
        }
    }
}
