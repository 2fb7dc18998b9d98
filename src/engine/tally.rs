//! Units counted by the values of a few labels: how many of each site are offline?
//!
//! Counted while the walk has every unit in hand, so the mirror need not hold labels. Values come
//! from devices and may be many, series may not: the ten values with most units are told, and the
//! rest together as `other`. Units without the label are not counted.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use crate::presence::{Labels, State};

/// The most labels that may be counted by, so that all metrics together stay few.
pub const MOST_LABELS: usize = 2;

/// How many values are told by name.
const TOP: usize = 10;

/// The most values that are told apart while counting; units with more are `other` at once.
const MOST_VALUES: usize = 10_000;

/// How many units are in each state, in the order of [`State::ALL`].
pub type Counts = [u64; State::ALL.len()];

/// What was counted: by label and value.
pub type Counted = BTreeMap<(String, String), Counts>;

/// The counts of one round.
pub struct Tally(Vec<(String, Mutex<HashMap<String, Counts>>)>);

impl Tally {
    /// Counts by these labels.
    pub fn new(labels: &[String]) -> Tally {
        Tally(labels.iter().map(|label| (label.clone(), Mutex::default())).collect())
    }

    /// Whether there is nothing to count by.
    pub fn is_idle(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts one unit.
    pub fn add(&self, labels: &Labels, state: State) {
        let place = State::ALL.iter().position(|one| *one == state).unwrap_or_default();
        for (label, values) in &self.0 {
            let Some(value) = labels.get(label) else { continue };
            let mut values = values.lock().expect("nothing panics under this lock");
            let is_known = values.len() < MOST_VALUES || values.contains_key(value);
            let value = if is_known { value.as_str() } else { OTHER };
            values.entry(value.to_owned()).or_default()[place] += 1;
        }
    }

    /// What was counted since the last time, and begins anew.
    pub fn take(&self) -> Counted {
        let mut counted = Counted::new();
        for (label, values) in &self.0 {
            let values = std::mem::take(&mut *values.lock().expect("nothing panics under this lock"));
            let mut values: Vec<(String, Counts)> = values.into_iter().collect();
            // Where two have as many units, always the same one is told by name.
            values.sort_by(|a, b| (total(&b.1), &a.0).cmp(&(total(&a.1), &b.0)));
            for (rank, (value, counts)) in values.into_iter().enumerate() {
                let value = if rank < TOP { value } else { OTHER.to_owned() };
                let sum = counted.entry((label.clone(), value)).or_default();
                sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
        }
        counted
    }
}

const OTHER: &str = "other";

fn total(counts: &Counts) -> u64 {
    counts.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_values_are_told_by_name_and_the_rest_as_other() {
        let tally = Tally::new(&["site".to_owned(), "row".to_owned()]);
        for site in 0..12 {
            // Site 0 has twelve units, site 11 has one.
            for _ in site..12 {
                let labels = Labels::from([("site".to_owned(), format!("site-{site:02}"))]);
                tally.add(&labels, if site == 11 { State::Offline } else { State::Online });
            }
        }
        tally.add(&Labels::new(), State::Online);
        let counted = tally.take();
        let of = |value: &str| counted[&("site".to_owned(), value.to_owned())];
        assert_eq!(counted.len(), 11);
        assert_eq!(of("site-00"), [12, 0, 0, 0, 0, 0]);
        assert_eq!(of("site-09"), [3, 0, 0, 0, 0, 0]);
        assert_eq!(of("other"), [2, 0, 1, 0, 0, 0]);
        assert_eq!(tally.take(), Counted::new());
    }

    #[test]
    fn values_without_end_take_memory_with_an_end() {
        let tally = Tally::new(&["site".to_owned()]);
        for site in 0..2 * MOST_VALUES {
            tally.add(&Labels::from([("site".to_owned(), site.to_string())]), State::Online);
        }
        assert_eq!(tally.0[0].1.lock().unwrap().len(), MOST_VALUES + 1);
        assert_eq!(tally.take().values().map(total).sum::<u64>(), 2 * MOST_VALUES as u64);
    }
}
