//! Units counted by the values of labels: how many of each site are offline?
//!
//! Values come from devices and may be many, series may not: the ten values with most units are
//! told, five of each where there are two labels, and the rest together as `other`. Units without the label are not counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::label_index::{LabelIndex, OTHER_VALUE};
use crate::presence::State;

/// The most labels that may be counted by, so that all metrics together stay few.
pub const MOST_LABELS: usize = 2;

/// How many values are told by name, of all labels together.
pub(super) const TOP: usize = 10;

/// How many units are in each state, in the order of [`State::ALL`].
pub type Counts = [u64; State::ALL.len()];

/// What was counted: by label and value.
pub type Counted = BTreeMap<(String, String), Counts>;

/// Counts the units of one label, partition by partition.
#[derive(Default)]
pub(super) struct Tally {
    counted: HashMap<Arc<str>, Counts, FixedState>,
    /// Those of the partition in hand, by the number of their value; the first are without one.
    in_hand: Vec<Counts>,
    /// The values, by number.
    values: Vec<Arc<str>>,
    /// That partition, and what the numbers mean there.
    at: (u16, u64),
}

impl Tally {
    /// What is added from now on is of that partition, as long as its lock is held.
    pub fn go_on(&mut self, partition: u16, tags: &LabelIndex) {
        let at = (partition, tags.generation());
        if self.at != at {
            self.put_down();
            self.at = at;
        }
        let known = self.values.len();
        self.values.extend((known..tags.numbers()).map(|number| tags.value(number as u16)));
        self.in_hand.resize(self.values.len(), Counts::default());
    }

    /// Counts the unit at that place.
    pub fn add(&mut self, tags: &LabelIndex, place: usize, state: State) {
        self.in_hand[usize::from(tags.number_at(place))][state as usize] += 1;
    }

    /// The same counted elsewhere is added.
    pub fn absorb(&mut self, mut other: Tally) {
        other.put_down();
        for (value, counts) in other.counted {
            add(self.counted.entry(value).or_default(), &counts);
        }
    }

    /// Everything, under the label's name, with at most so many values by theirs.
    pub fn finish(mut self, label: &str, most: usize, into: &mut Counted) {
        self.put_down();
        let mut values: Vec<(Arc<str>, Counts)> = self.counted.into_iter().collect();
        // Where two have as many units, always the same one is told by name.
        values.sort_by(|a, b| (total(&b.1), &a.0).cmp(&(total(&a.1), &b.0)));
        for (rank, (value, counts)) in values.into_iter().enumerate() {
            let value = if rank < most { &value } else { OTHER_VALUE };
            add(into.entry((label.to_owned(), value.to_owned())).or_default(), &counts);
        }
    }

    fn put_down(&mut self) {
        // Those of number 0 have no value.
        for (value, counts) in self.values.drain(..).zip(self.in_hand.drain(..)).skip(1) {
            if total(&counts) > 0 {
                add(self.counted.entry(value).or_default(), &counts);
            }
        }
    }
}

fn add(sum: &mut Counts, counts: &Counts) {
    sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}

fn total(counts: &Counts) -> u64 {
    counts.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_values_are_told_by_name_and_the_rest_as_other() {
        let mut tally = Tally::default();
        // Site 0 has twelve units, site 11 has one; half of each is in another partition.
        for partition in 0..2 {
            let mut tags = LabelIndex::new("site".into());
            let sites: Vec<usize> = (0..12).flat_map(|site| vec![site; 12 - site]).collect();
            for (place, site) in sites.iter().enumerate().filter(|(place, _)| place % 2 == partition) {
                tags.set(place as u32, Some(&format!("site-{site:02}")));
            }
            tally.go_on(partition as u16, &tags);
            for (place, site) in sites.iter().enumerate() {
                tally.add(&tags, place, if *site == 11 { State::Offline } else { State::Online });
            }
        }
        let mut counted = Counted::new();
        tally.finish("site", TOP, &mut counted);
        let of = |value: &str| counted[&("site".to_owned(), value.to_owned())];
        assert_eq!(counted.len(), 11);
        assert_eq!(of("site-00"), [12, 0, 0, 0, 0, 0]);
        assert_eq!(of("site-09"), [3, 0, 0, 0, 0, 0]);
        assert_eq!(of("other"), [2, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn a_number_that_is_given_to_another_value_between_two_pieces_is_counted_for_each() {
        let (mut tally, mut tags) = (Tally::default(), LabelIndex::new("site".into()));
        for site in ["north", "south"] {
            tags.set(0, None);
            tags.set(0, Some(site));
            tally.go_on(0, &tags);
            tally.add(&tags, 0, State::Online);
        }
        let mut counted = Counted::new();
        tally.finish("site", TOP, &mut counted);
        let values: Vec<&str> = counted.keys().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["north", "south"]);
    }
}
