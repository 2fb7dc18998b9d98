//! The mass-offline breaker: when a large part of the fleet falls silent at once, one cause is likelier than many, and
//! one message says more than thousands.
//!
//! It trips when at least a share of the units that were not offline before fell silent within a window. While it is
//! tripped, notifications of single units are held; records are written as usual. It is released when most of the
//! units are back, after a time, or by an operator. Receivers are then notified of units that are still offline, as
//! usual, and not of units that came back.
//!
//! Units count only if the fleet has had them for longer than the window when they fell silent, and no alert silence
//! covers them at the trip. So neither a device that invents a hundred units, each silent after a second, nor an import
//! of units that never publish holds anything. The same units count for the trip, in its message and for its release.
//!
//! After a release only silences that were detected later count: silences that were held do not trip the breaker again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Facts;
use crate::clock::Timestamp;

/// The breaker is released when no more than one in this many units is still silent.
const SILENT_ONE_IN: u64 = 10;

/// For how long a trip holds a group at a time: after a release every group is due within that time.
pub const HELD_FOR: Duration = Duration::from_secs(10);

/// When the breaker trips, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MassOfflineRule {
    /// The share of the units that were not offline before; more than 0 and at most 1.
    pub share: f64,
    /// A fleet with fewer units never trips the breaker.
    pub min_units: u64,
    /// Silences that were detected within this time count.
    pub window: Duration,
    /// The breaker is released after this time at the latest.
    pub max_hold: Duration,
}

/// How many units of the fleet are not offline, and how many fell silent since a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetCount {
    /// How many watched units are not offline.
    pub online: u64,
    /// How many units are offline by a record that was detected since that moment.
    pub silent: u64,
}

impl FleetCount {
    /// This count without units that are not known for longer than the window: `units_before` units were known when it
    /// began, the silent ones among them.
    pub fn known(self, units_before: u64) -> FleetCount {
        FleetCount { online: self.online.min(units_before.saturating_sub(self.silent)), ..self }
    }

    /// The units that were not offline before.
    pub fn units(&self) -> u64 {
        self.online + self.silent
    }
}

/// Why the breaker is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseReason {
    /// Units are back.
    Returned,
    /// The longest time is over.
    Time,
    Operator,
}

impl ReleaseReason {
    pub fn as_str(self) -> &'static str {
        match self {
            ReleaseReason::Returned => "returned",
            ReleaseReason::Time => "time",
            ReleaseReason::Operator => "operator",
        }
    }
}

/// The end of a trip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    pub at: Timestamp,
    pub why: ReleaseReason,
    /// How many of the units are still offline.
    pub offline: u64,
}

/// One time that the breaker tripped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trip {
    pub at: Timestamp,
    /// Silences that were detected since then count.
    pub since: Timestamp,
    /// How many units fell silent, of how many.
    pub offline: u64,
    pub units: u64,
    /// When the breaker is released at the latest.
    pub until: Timestamp,
    #[serde(default)]
    pub released: Option<Release>,
    /// Whether operators were notified of the trip or, once it is released, of its end.
    #[serde(default)]
    pub is_notified: bool,
}

impl Trip {
    pub fn is_held(&self) -> bool {
        self.released.is_none()
    }

    /// Until when a group that is checked now is held.
    pub fn holds_until(&self, now: Timestamp) -> Timestamp {
        self.until.min(now + HELD_FOR)
    }

    /// The trip with its end, of which operators are to be notified.
    pub fn released(&self, why: ReleaseReason, offline: u64, at: Timestamp) -> Trip {
        let offline = offline.min(self.offline);
        Trip { released: Some(Release { at, why, offline }), is_notified: false, ..self.clone() }
    }

    /// The trip once operators are notified of it. More of its units may have fallen silent meanwhile.
    pub fn notified(&self, silent: u64) -> Trip {
        Trip { offline: self.offline.max(silent.min(self.units)), is_notified: true, ..self.clone() }
    }
}

impl MassOfflineRule {
    /// Silences that were detected since then count; `last`: the last trip, which is over.
    pub fn counts_since(&self, last: Option<&Trip>, now: Timestamp) -> Timestamp {
        let released = last.and_then(|trip| trip.released.as_ref()).map(|release| release.at);
        released.map_or(now - self.window, |at| at.max(now - self.window))
    }

    /// Whether a unit that fell silent counts: the fleet had it when the window of its silence began, so that the size
    /// of the fleet at that time has it, too.
    pub fn counts(&self, facts: &Facts, detected_at: Timestamp) -> bool {
        // The moment is rounded down to a second.
        facts.known.is_none_or(|known| detected_at.since(known.since) >= self.window + Duration::from_secs(1))
    }

    /// Whether this many silent units trip the breaker.
    pub fn is_mass(&self, count: FleetCount) -> bool {
        let FleetCount { silent, .. } = count;
        count.units() >= self.min_units && silent > 0 && silent as f64 >= self.share * count.units() as f64
    }

    pub fn trip(&self, since: Timestamp, count: FleetCount, now: Timestamp) -> Trip {
        let (offline, units) = (count.silent, count.units());
        Trip {
            at: now,
            since,
            offline,
            units,
            until: now + self.max_hold,
            released: None,
            is_notified: false,
        }
    }
}

/// Why a trip ends now; `None`: it lasts. `silent`: how many of the units are still offline.
pub fn release(trip: &Trip, silent: u64, now: Timestamp) -> Option<ReleaseReason> {
    if silent * SILENT_ONE_IN <= trip.offline {
        return Some(ReleaseReason::Returned);
    }
    (now >= trip.until).then_some(ReleaseReason::Time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::{Known, Lifecycle};

    const RULE: MassOfflineRule = MassOfflineRule {
        share: 0.5,
        min_units: 50,
        window: Duration::from_secs(60),
        max_hold: Duration::from_secs(600),
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_732_147_200_000 + seconds * 1000)
    }

    #[test]
    fn half_of_a_fleet_that_is_large_enough_trips_it() {
        for (silent, online, expected) in [
            (25, 25, true),
            (24, 26, false),
            (49, 0, false),
            (50, 0, true),
            (0, 50, false),
            (26, 26, true),
            (25, 26, false),
            (50_000, 50_000, true),
        ] {
            assert_eq!(RULE.is_mass(FleetCount { online, silent }), expected, "{silent} and {online}");
        }
    }

    #[test]
    fn units_count_that_are_known_longer_than_the_window_however_they_became_known() {
        for (known_at, expected) in
            [(None, true), (Some(0), true), (Some(39), true), (Some(40), false), (Some(99), false)]
        {
            for known in [Known::admitted, Known::registered] {
                let known = known_at.map(at).map(known);
                let facts = Facts { known, ..Facts::new(Lifecycle::Present, at(0)) };
                assert_eq!(RULE.counts(&facts, at(100)), expected, "{known:?}");
            }
        }
        let count = FleetCount { online: 1000, silent: 30 };
        assert!(!RULE.is_mass(count) && RULE.is_mass(count.known(60)), "invented units hide no mass");
        assert_eq!(count.known(20), FleetCount { online: 0, silent: 30 });
    }

    #[test]
    fn it_is_released_when_units_return_or_after_a_time_and_counts_anew_then() {
        assert_eq!(RULE.counts_since(None, at(100)), at(40));
        let trip = RULE.trip(at(40), FleetCount { online: 40, silent: 60 }, at(100));
        assert_eq!((trip.offline, trip.units, trip.is_held()), (60, 100, true));
        let cases = [
            (60, 699, None),
            (90, 101, None),
            (7, 699, None),
            (6, 101, Some(ReleaseReason::Returned)),
            (60, 700, Some(ReleaseReason::Time)),
        ];
        for (silent, seconds, expected) in cases {
            assert_eq!(release(&trip, silent, at(seconds)), expected, "{silent} at {seconds}");
        }
        let notified = trip.notified(110);
        assert_eq!((notified.offline, notified.units, notified.is_notified), (100, 100, true));
        let over = notified.released(ReleaseReason::Time, 120, at(700));
        assert_eq!(
            (over.is_held(), over.is_notified, over.released.as_ref().unwrap().offline),
            (false, false, 100)
        );
        assert_eq!(RULE.counts_since(Some(&over), at(710)), at(700));
        assert_eq!(RULE.counts_since(Some(&over), at(800)), at(740));
    }
}
