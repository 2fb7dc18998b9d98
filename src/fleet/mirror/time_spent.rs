//! How the units of this instance spent a range, from their closed records and from what the mirror knows of each.

use std::collections::HashMap;

use super::view::Cursor;
use super::{Mirror, UnitFilter};
use crate::clock::Timestamp;
use crate::presence::{Hearing, Interval, TimeSpent, UnitTimes};

/// Times of units, by their names as `<kind>:<unit>`.
pub type TimesOfUnits = HashMap<String, Vec<Interval>>;

/// What units did in a range, as far as the mirror does not know it: it has the open record and the last pause of each.
#[derive(Default)]
pub struct UnitPasts {
    /// Outages that are over.
    pub outages: TimesOfUnits,
    pub pauses: TimesOfUnits,
}

impl Mirror {
    /// How many units that the filter selects were there in a range, and how they spent it together. `hearing`: with the
    /// blind time that lasts. A unit that was never heard is left out.
    pub fn time_spent(
        &self,
        filter: UnitFilter,
        range: Interval,
        past: &UnitPasts,
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
                let known = Interval { from: rows.table.known_since(slot), ..always };
                if known.from >= range.to {
                    continue;
                }
                units += 1;
                name.clear();
                name.extend([self.kinds[rank].as_str(), ":", rows.table.id(row)]);
                let (outages, pauses) = (of_unit(&past.outages, &name), of_unit(&past.pauses, &name));
                let open = rows.table.offline_since(slot);
                let pause = rows.table.absence(slot).pause;
                spent = spent
                    + match (outages, pauses, open, pause) {
                        ([], [], None, None) if known.from <= range.from => plain[rank],
                        _ => {
                            let open = open.map(|from| Interval { from, ..always });
                            let outages: Vec<Interval> = outages.iter().copied().chain(open).collect();
                            let pauses: Vec<Interval> = pauses.iter().copied().chain(pause).collect();
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

fn of_unit<'a>(times: &'a TimesOfUnits, name: &str) -> &'a [Interval] {
    times.get(name).map_or(&[], Vec::as_slice)
}
