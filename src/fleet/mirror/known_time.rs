//! For how much of a range units were known: the time before that is neither online nor offline.

use std::time::Duration;

use super::view::Cursor;
use super::{Mirror, UnitFilter};
use crate::presence::Interval;

/// Units, and for how long they were known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownTime {
    pub units: u64,
    /// The time of the range before each unit was known, summed over all units.
    pub unknown: Duration,
}

impl Mirror {
    /// How many units the filter selects, and how much of the range passed before each was known.
    pub fn known_time(&self, filter: UnitFilter, range: Interval) -> KnownTime {
        let (mut units, mut unknown_ms) = (0, 0);
        let mut cursor = Cursor::new(filter);
        while self.read_rows(&mut cursor, |rows| {
            for (slot, ..) in rows.selected() {
                units += 1;
                let since = rows.table.known_since(slot).min(range.to);
                unknown_ms += (since.as_millis() - range.from.as_millis()).max(0) as u64;
            }
        }) {}
        KnownTime { units, unknown: Duration::from_millis(unknown_ms) }
    }
}
