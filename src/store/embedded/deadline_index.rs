//! The deadline index of a partition: the earliest next check of each zone of sixty-four rows.
//!
//! The next checks of all rows lie in a list, by slot. A search for due units skips the zones without a due unit, and
//! reads the next checks of the others. So it finds due units in the order of slots, which is the order of their
//! facts on disk.
//!
//! # Why not an ordered set
//! A set cost twenty bytes a unit, a tenth of the memory of a million units, and two searches a check. This index
//! costs eight bytes a zone. Removing an entry reads a zone: half a kilobyte of adjacent memory. Bringing an entry
//! forward is one comparison. The earliest check of all is the least of a thousand adjacent numbers, which takes a
//! microsecond.

use super::row::MaybeTimestamp;
use crate::clock::Timestamp;
use crate::store::table::Blocks;

/// The number of rows that share an entry: as many as are read in the time of a search in a tree.
const ZONE: usize = 64;

/// The entry of a zone without a next check.
const NEVER: i64 = i64::MAX;

/// The earliest next check of each zone, in ms.
#[derive(Default)]
pub(super) struct DeadlineIndex {
    earliest: Vec<i64>,
    /// The number of rows with a next check.
    len: usize,
}

impl DeadlineIndex {
    /// Notes that the next check of the row at `slot` changed from `before`.
    pub fn moved(&mut self, checks: &Blocks<MaybeTimestamp>, slot: u32, before: Option<Timestamp>) {
        let (zone, next) = (slot as usize / ZONE, checks[slot as usize].get());
        if self.earliest.len() <= zone {
            self.earliest.resize(zone + 1, NEVER);
        }
        self.len = self.len + usize::from(next.is_some()) - usize::from(before.is_some());
        let (before, now) = (ms(before), ms(next));
        let earliest = &mut self.earliest[zone];
        if now <= *earliest {
            *earliest = now;
        } else if before == *earliest {
            *earliest = next_checks(checks, zone).min().unwrap_or(NEVER);
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Reserves memory for this many rows.
    pub fn reserve(&mut self, rows: usize) {
        self.earliest.reserve_exact(rows.div_ceil(ZONE));
    }

    /// The earliest next check after `after`, and the slot of its row. Reads only the zones that may hold an earlier
    /// one.
    pub fn first(
        &self,
        checks: &Blocks<MaybeTimestamp>,
        after: Option<Timestamp>,
    ) -> Option<(Timestamp, u32)> {
        let after = ms_after(after);
        let of_zone = |zone: usize, earliest: i64| match earliest > after {
            true => earliest,
            false => next_checks(checks, zone).filter(|check| *check > after).min().unwrap_or(NEVER),
        };
        let firsts =
            self.earliest.iter().enumerate().map(|(zone, earliest)| (of_zone(zone, *earliest), zone));
        let (first, zone) = firsts.min().filter(|(first, _)| *first < NEVER)?;
        let at = next_checks(checks, zone).position(|check| check == first)?;
        Some((Timestamp::from_millis(first), (zone * ZONE + at) as u32))
    }

    /// The slots of the rows whose next check is after `after` and not after `until`, in order.
    pub fn due<'a>(
        &'a self,
        checks: &'a Blocks<MaybeTimestamp>,
        after: Option<Timestamp>,
        until: Timestamp,
    ) -> impl Iterator<Item = u32> + 'a {
        let (after, until) = (ms_after(after), until.as_millis().min(NEVER - 1));
        let zones = (0..).zip(&self.earliest).filter(move |(_, earliest)| **earliest <= until);
        let slots = zones.flat_map(|(zone, _)| ((zone * ZONE) as u32..).zip(next_checks(checks, zone)));
        slots.filter(move |(_, check)| after < *check && *check <= until).map(|(slot, _)| slot)
    }
}

fn next_checks(checks: &Blocks<MaybeTimestamp>, zone: usize) -> impl Iterator<Item = i64> {
    checks.range(zone * ZONE..(zone + 1) * ZONE).map(|check| ms(check.get()))
}

fn ms_after(after: Option<Timestamp>) -> i64 {
    after.map_or(i64::MIN, Timestamp::as_millis)
}

fn ms(next_check: Option<Timestamp>) -> i64 {
    next_check.map_or(NEVER, Timestamp::as_millis)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const ROWS: u32 = 200;
    const SPAN: i64 = 50;

    #[test]
    fn due_rows_are_those_of_an_ordered_set() {
        let mut random = StdRng::seed_from_u64(1);
        let (mut rows, mut index, mut set) = (Blocks::default(), DeadlineIndex::default(), BTreeSet::new());
        for _ in 0..20_000 {
            let slot = random.random_range(0..ROWS);
            while rows.len() <= slot as usize {
                rows.push(MaybeTimestamp::NONE);
            }
            let next = random.random_bool(0.7).then(|| at(random.random_range(0..SPAN)));
            let before = std::mem::replace(&mut rows[slot as usize], next.into()).get();
            index.moved(&rows, slot, before);
            before.map(|check| set.remove(&(check, slot)));
            next.map(|check| set.insert((check, slot)));

            assert_eq!((index.first(&rows, None), index.len()), (set.first().copied(), set.len()));
            let after = random.random_bool(0.7).then(|| at(random.random_range(0..SPAN)));
            let beyond = |check: Timestamp| after.is_none_or(|after| check > after);
            assert_eq!(index.first(&rows, after), set.iter().copied().find(|(check, _)| beyond(*check)));
            let until = at(random.random_range(0..SPAN));
            let due = set.iter().filter(|(check, _)| beyond(*check) && *check <= until);
            let due: BTreeSet<u32> = due.map(|(_, slot)| *slot).collect();
            assert!(index.due(&rows, after, until).eq(due), "what is due at {until:?} after {after:?}");
        }
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }
}
