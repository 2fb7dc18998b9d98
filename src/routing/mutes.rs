//! Which routes are muted at a moment, and until when their groups are held.
//!
//! Transitions of a muted route join their groups as usual, and the groups wait: they are not sealed before the mute
//! is over. So a unit that comes back before is never notified, and a unit that is still offline is notified once.
//!
//! # Why a group is held for ten seconds at a time
//! A mute may leave the configuration. A group that is held is checked again after [`MAX_HOLD`], and then it is
//! sealed, or held again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::RouteTimes;
use crate::clock::Timestamp;

const MAX_HOLD: Duration = Duration::from_secs(10);

/// The times of all routes that have any.
#[derive(Debug, Default)]
pub(super) struct Mutes {
    /// By the ids of the routes; the id of the root is empty.
    routes: HashMap<String, RouteTimes>,
    known: Mutex<LastAnswer>,
}

/// The routes that are muted, by their ids, and until when.
pub(super) type MutedRoutes = Arc<HashMap<String, Timestamp>>;

/// The last answer, valid in `from..until`.
#[derive(Debug, Default)]
struct LastAnswer {
    from: Timestamp,
    until: Timestamp,
    muted: MutedRoutes,
}

impl Mutes {
    pub fn new(routes: HashMap<String, RouteTimes>) -> Mutes {
        Mutes { routes, known: Mutex::default() }
    }

    /// The routes that are muted at that moment.
    pub fn at(&self, now: Timestamp) -> MutedRoutes {
        let mut known = self.known.lock();
        if !(known.from..known.until).contains(&now) {
            let until = |times: &RouteTimes| times.muted_until(now).unwrap_or_else(|| times.next_change(now));
            let muted = |(id, times): (&String, &RouteTimes)| Some((id.clone(), times.muted_until(now)?));
            *known = LastAnswer {
                from: now,
                until: self.routes.values().map(until).min().unwrap_or(Timestamp::NEVER),
                muted: Arc::new(self.routes.iter().filter_map(muted).collect()),
            };
        }
        known.muted.clone()
    }
}

/// Until when a group is held whose route is muted until `muted_until`.
pub(super) fn held_until(muted_until: Timestamp, now: Timestamp) -> Timestamp {
    muted_until.min(now + MAX_HOLD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::{Minutes, TimeInterval, zone};

    #[test]
    fn a_route_is_muted_in_its_times_and_its_groups_are_checked_again_soon() {
        let day = |hours: u64| Timestamp::from_millis(1_784_678_400_000) + Duration::from_secs(hours * 3600);
        let time = TimeInterval {
            name: "morning".to_owned(),
            times: vec![Minutes { from: 0, to: 360 }],
            weekdays: vec![],
            days_of_month: vec![],
            months: vec![],
            years: vec![],
            zone: zone("UTC").unwrap(),
        };
        let times = RouteTimes { mute: vec![Arc::new(time)], active: vec![] };
        let mutes = Mutes::new([("hook.0".to_owned(), times)].into());
        for _ in 0..2 {
            assert_eq!(mutes.at(day(1)).get("hook.0"), Some(&day(6)));
            assert_eq!(mutes.at(day(5)).get("hook.0"), Some(&day(6)));
            assert_eq!(mutes.at(day(6)).len(), 0);
            assert_eq!(mutes.at(day(23)).len(), 0);
            assert_eq!(mutes.at(day(24)).get("hook.0"), Some(&day(30)));
        }
        assert_eq!(held_until(day(6), day(1)), day(1) + MAX_HOLD);
        assert_eq!(held_until(day(1), day(1) - Duration::from_secs(1)), day(1));
    }
}
