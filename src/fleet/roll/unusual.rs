//! Units of this instance whose silence is unusual.

use super::Roll;
use crate::clock::Timestamp;
use crate::fleet::mirror::ListQuery;
use crate::presence::Unit;

/// A unit whose silence is unusual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusualUnit {
    pub unit: Unit,
    pub last_seen: Timestamp,
    /// Since when its silence is unusual.
    pub since: Timestamp,
}

impl Roll {
    /// Up to `limit` units of this instance whose silence is unusual. Call it where a thread may work for some
    /// milliseconds.
    pub fn unusual(&self, now: Timestamp, limit: usize) -> Vec<UnusualUnit> {
        let (query, hearing) =
            (ListQuery { unusual: Some(true), limit, ..ListQuery::default() }, self.hearing());
        let listed = self.mirror.list(&query, &hearing, now).into_iter();
        let found = listed.filter_map(|listed| {
            let unit = Unit::new(listed.kind, listed.unit);
            let since = self.mirror.rhythm(&unit, &hearing, now)?.unusual_since?;
            Some(UnusualUnit { unit, last_seen: listed.last_seen?, since })
        });
        found.collect()
    }
}
