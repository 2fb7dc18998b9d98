//! How the units of this instance spent a range, from their closed records and from what the mirror knows of each.

use std::collections::HashMap;

use super::view::Cursor;
use super::{Mirror, UnitFilter};
use crate::clock::Timestamp;
use crate::presence::{Hearing, Interval, TimeSpent, UnitTimes};

/// The outages of a range that are over, by units as `<kind>:<unit>`.
pub type Outages = HashMap<String, Vec<Interval>>;

impl Mirror {
    /// How many units the filter selects, and how they spent a range together. `past`: their outages that are over.
    /// `hearing`: with the blind time that lasts. A unit that was never heard is left out.
    pub fn time_spent(
        &self,
        filter: UnitFilter,
        range: Interval,
        past: &Outages,
        hearing: &Hearing,
    ) -> (u64, TimeSpent) {
        let blind: Vec<&[Interval]> =
            self.kinds.iter().map(|kind| hearing.of(kind).ledger.intervals()).collect();
        let always = Interval { from: Timestamp::ZERO, to: Timestamp::NEVER };
        // Most units: known all the time, and never offline.
        let plain =
            |blind: &&[Interval]| TimeSpent::of(range, always, UnitTimes { blind, ..UnitTimes::default() });
        let plain: Vec<TimeSpent> = blind.iter().map(plain).collect();
        let (mut units, mut spent, mut name) = (0, TimeSpent::default(), String::new());
        let mut cursor = Cursor::new(filter);
        while self.read_rows(&mut cursor, |rows| {
            for (slot, rank, row) in rows.selected().filter(|(.., row)| row.state.is_heard()) {
                units += 1;
                name.clear();
                name.extend([self.kinds[rank].as_str(), ":", rows.table.id(row)]);
                let known = Interval { from: rows.table.known_since(slot), ..always };
                let past = past.get(&name).map_or(&[][..], Vec::as_slice);
                let open = rows.table.offline_since(slot);
                let pause = rows.table.absence(slot).pause;
                spent = spent
                    + match (past, open, pause) {
                        ([], None, None) if known.from <= range.from => plain[rank],
                        _ => {
                            let open = open.map(|from| Interval { from, ..always });
                            let outages: Vec<Interval> = past.iter().copied().chain(open).collect();
                            let pauses: Vec<Interval> = pause.into_iter().collect();
                            let times = UnitTimes {
                                outages: &outages,
                                pauses: &pauses,
                                blind: blind[rank],
                                unknown: &[],
                            };
                            TimeSpent::of(range, known, times)
                        }
                    };
            }
        }) {}
        (units, spent)
    }
}
