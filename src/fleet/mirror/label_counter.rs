//! Units counted by the values of a label: how many of each site are offline?
//!
//! Values come from devices and may be many; series must be few. So the ten values with most units have counts of
//! their own, five of each label where there are two, and the rest count as `other`. Units without the label are not
//! counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::presence::{State, StateCounts};
use crate::store::table::{LabelIndex, OTHER_VALUE};

/// The most labels that may be counted by, so that all metrics together stay few.
pub const MAX_LABELS: usize = 2;

/// The most values with counts of their own, of all labels together.
pub(super) const TOP: usize = 10;

/// By label and value.
pub type CountsByLabel = BTreeMap<(String, String), StateCounts>;

/// Counts the units of one label, partition by partition.
#[derive(Default)]
pub(super) struct LabelCounter {
    by_value: HashMap<Arc<str>, StateCounts, FixedState>,
    /// Counts of the current partition, by the number of the value; the first is of units without a value.
    current: Vec<StateCounts>,
    /// The values of the current partition, by number.
    values: Vec<Arc<str>>,
    /// The current partition, and the generation of its numbers.
    partition: (u16, u64),
}

impl LabelCounter {
    /// Begins a partition, to which the units added next belong. The caller holds its lock meanwhile.
    pub fn begin(&mut self, partition: u16, index: &LabelIndex) {
        let partition = (partition, index.generation());
        if self.partition != partition {
            self.flush();
            self.partition = partition;
        }
        let known = self.values.len();
        self.values.extend((known..index.numbers()).map(|number| index.value(number as u16)));
        self.current.resize(self.values.len(), StateCounts::default());
    }

    /// Counts the unit in that slot.
    pub fn add(&mut self, index: &LabelIndex, slot: usize, state: State) {
        self.current[usize::from(index.number_at(slot))][state as usize] += 1;
    }

    /// Adds the counts of another thread.
    pub fn merge(&mut self, mut other: LabelCounter) {
        other.flush();
        for (value, counts) in other.by_value {
            add(self.by_value.entry(value).or_default(), &counts);
        }
    }

    /// The counts of each value, values with most units first.
    pub fn finish(mut self) -> Vec<(Arc<str>, StateCounts)> {
        self.flush();
        let mut values: Vec<(Arc<str>, StateCounts)> = self.by_value.into_iter().collect();
        // Values with as many units are sorted by name, so that always the same ones have counts of their own.
        values.sort_by(|a, b| (total(&b.1), &a.0).cmp(&(total(&a.1), &b.0)));
        values
    }

    fn flush(&mut self) {
        // Units of number 0 have no value.
        for (value, counts) in self.values.drain(..).zip(self.current.drain(..)).skip(1) {
            if total(&counts) > 0 {
                add(self.by_value.entry(value).or_default(), &counts);
            }
        }
    }
}

/// Adds the counts of a label to `into`; at most `most` values have counts of their own.
pub(super) fn add_top(
    label: &str,
    values: &[(Arc<str>, StateCounts)],
    most: usize,
    into: &mut CountsByLabel,
) {
    for (rank, (value, counts)) in values.iter().enumerate() {
        let value = if rank < most { value } else { OTHER_VALUE };
        add(into.entry((label.to_owned(), value.to_owned())).or_default(), counts);
    }
}

fn add(sum: &mut StateCounts, counts: &StateCounts) {
    sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}

fn total(counts: &StateCounts) -> u64 {
    counts.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_values_have_counts_of_their_own_and_the_rest_count_as_other() {
        let mut counter = LabelCounter::default();
        // Site 0 has twelve units, site 11 has one; half of each is in another partition.
        for partition in 0..2 {
            let mut index = LabelIndex::new("site".into());
            let sites: Vec<usize> = (0..12).flat_map(|site| vec![site; 12 - site]).collect();
            for (slot, site) in sites.iter().enumerate().filter(|(slot, _)| slot % 2 == partition) {
                index.set(slot as u32, Some(&format!("site-{site:02}")));
            }
            counter.begin(partition as u16, &index);
            for (slot, site) in sites.iter().enumerate() {
                counter.add(&index, slot, if *site == 11 { State::Offline } else { State::Online });
            }
        }
        let mut counts = CountsByLabel::new();
        add_top("site", &counter.finish(), TOP, &mut counts);
        let of = |value: &str| counts[&("site".to_owned(), value.to_owned())];
        assert_eq!(counts.len(), 11);
        assert_eq!(of("site-00"), [12, 0, 0, 0, 0, 0]);
        assert_eq!(of("site-09"), [3, 0, 0, 0, 0, 0]);
        assert_eq!(of("other"), [2, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn a_number_that_changes_its_value_between_two_chunks_is_counted_for_each() {
        let (mut counter, mut index) = (LabelCounter::default(), LabelIndex::new("site".into()));
        for site in ["north", "south"] {
            index.set(0, None);
            index.set(0, Some(site));
            counter.begin(0, &index);
            counter.add(&index, 0, State::Online);
        }
        let mut counts = CountsByLabel::new();
        add_top("site", &counter.finish(), TOP, &mut counts);
        let values: Vec<&str> = counts.keys().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["north", "south"]);
    }
}
