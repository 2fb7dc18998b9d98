//! The deadline index of a partition: of each zone of sixty-four rows the earliest look.
//!
//! A row holds its look itself. Whoever wants what is due passes over zones in which nothing is, and
//! reads the rows of the others; so what is due is found in the order of places, which is that of the
//! facts on disk.
//!
//! # Why not an ordered set
//! It cost twenty bytes a unit, a tenth of the memory of a million units, and two searches a look. Here
//! it is eight bytes a zone. To take a look out means to read a zone, two kilobytes that lie together;
//! to bring one forward is a comparison. The earliest of all is the least of a thousand numbers in a
//! row, which takes a microsecond.

use super::row::Row;
use crate::clock::Timestamp;
use crate::store::table::Blocks;

/// How many rows share an entry: as many as are read in the time that a search of a tree would take.
const ZONE: usize = 64;

/// Nothing of the zone is to be looked at.
const NEVER: i64 = i64::MAX;

/// The earliest look of each zone, in ms.
#[derive(Default)]
pub(super) struct DeadlineIndex {
    earliest: Vec<i64>,
}

impl DeadlineIndex {
    /// The look of the row at that place was another one, or there was none.
    pub fn moved(&mut self, rows: &Blocks<Row>, place: u32, before: Option<Timestamp>) {
        let (zone, row) = (place as usize / ZONE, &rows[place as usize]);
        if self.earliest.len() <= zone {
            self.earliest.resize(zone + 1, NEVER);
        }
        let (before, now) = (ms(before), ms(row.look.get()));
        let earliest = &mut self.earliest[zone];
        if now <= *earliest {
            *earliest = now;
        } else if before == *earliest {
            *earliest = check_batches_of(rows, zone).min().unwrap_or(NEVER);
        }
    }

    /// Makes room for so many rows.
    pub fn reserve(&mut self, rows: usize) {
        self.earliest.reserve_exact(rows.div_ceil(ZONE));
    }

    /// The earliest look after `after`, and the place of the row that it is for. Only zones that hold an earlier
    /// one are read for it.
    pub fn first(&self, rows: &Blocks<Row>, after: Option<Timestamp>) -> Option<(Timestamp, u32)> {
        let after = ms_after(after);
        let of_zone = |zone: usize, earliest: i64| match earliest > after {
            true => earliest,
            false => check_batches_of(rows, zone).filter(|look| *look > after).min().unwrap_or(NEVER),
        };
        let firsts =
            self.earliest.iter().enumerate().map(|(zone, earliest)| (of_zone(zone, *earliest), zone));
        let (first, zone) = firsts.min().filter(|(first, _)| *first < NEVER)?;
        let at = check_batches_of(rows, zone).position(|look| look == first)?;
        Some((Timestamp::from_millis(first), (zone * ZONE + at) as u32))
    }

    /// The places of the rows whose look is after `after` and at or before `until`, in order.
    pub fn due<'a>(
        &'a self,
        rows: &'a Blocks<Row>,
        after: Option<Timestamp>,
        until: Timestamp,
    ) -> impl Iterator<Item = u32> + 'a {
        let (after, until) = (ms_after(after), until.as_millis().min(NEVER - 1));
        let zones = (0..).zip(&self.earliest).filter(move |(_, look)| **look <= until);
        let places = zones.flat_map(|(zone, _)| ((zone * ZONE) as u32..).zip(check_batches_of(rows, zone)));
        places.filter(move |(_, look)| after < *look && *look <= until).map(|(place, _)| place)
    }
}

fn check_batches_of(rows: &Blocks<Row>, zone: usize) -> impl Iterator<Item = i64> {
    rows.range(zone * ZONE..(zone + 1) * ZONE).map(|row| ms(row.look.get()))
}

fn ms_after(after: Option<Timestamp>) -> i64 {
    after.map_or(i64::MIN, Timestamp::as_millis)
}

fn ms(look: Option<Timestamp>) -> i64 {
    look.map_or(NEVER, Timestamp::as_millis)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::store::{embedded::row::Marks, embedded::row::Moment};

    const ROWS: u32 = 200;
    const SPAN: i64 = 50;

    #[test]
    fn what_is_due_is_what_an_ordered_set_says() {
        let mut random = StdRng::seed_from_u64(1);
        let (mut rows, mut looks, mut set) = (Blocks::default(), DeadlineIndex::default(), BTreeSet::new());
        for _ in 0..20_000 {
            let place = random.random_range(0..ROWS);
            while rows.len() <= place as usize {
                rows.push(row());
            }
            let next = random.random_bool(0.7).then(|| at(random.random_range(0..SPAN)));
            let before = std::mem::replace(&mut rows[place as usize].look, next.into()).get();
            looks.moved(&rows, place, before);
            before.map(|look| set.remove(&(look, place)));
            next.map(|look| set.insert((look, place)));

            assert_eq!(looks.first(&rows, None), set.first().copied());
            let after = random.random_bool(0.7).then(|| at(random.random_range(0..SPAN)));
            let beyond = |look: Timestamp| after.is_none_or(|after| look > after);
            assert_eq!(looks.first(&rows, after), set.iter().copied().find(|(look, _)| beyond(*look)));
            let until = at(random.random_range(0..SPAN));
            let due = set.iter().filter(|(look, _)| beyond(*look) && *look <= until);
            let due: BTreeSet<u32> = due.map(|(_, place)| *place).collect();
            assert!(looks.due(&rows, after, until).eq(due), "what is due at {until:?} after {after:?}");
        }
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn row() -> Row {
        let (alive, look, marks) = (Moment::NONE, Moment::NONE, Marks::default());
        Row { alive, look, facts: 0, name: 0, kind: 0, length: 0, marks }
    }
}
