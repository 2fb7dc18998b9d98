//! Which value of one label each unit of a partition has: two bytes a unit.
//!
//! For counting and filtering, and only of the labels that were asked for. A value is kept once,
//! for as long as a unit has it. Values come from devices and may be without end, so beyond a number
//! of them units are only known to have another one.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// The most values of a label that are told apart in a partition.
pub(super) const MOST_VALUES: usize = 10_000;

/// The number of a value that is not told apart.
const OTHER: u16 = 1;
/// The number of the first value; 0 is no value.
const FIRST: u16 = 2;

/// What stands for values that are not told apart.
pub(super) const OTHER_VALUE: &str = "other";

/// The values of one label, by the places of the rows.
#[derive(Default)]
pub(super) struct LabelIndex {
    label: Arc<str>,
    numbers: Vec<u16>,
    /// Each value and how many units have it.
    values: Vec<(Arc<str>, u32)>,
    known: HashMap<Arc<str>, u16, FixedState>,
    free: Vec<u16>,
    /// How often a number was given to another value.
    generation: u64,
}

impl LabelIndex {
    /// No values of that label.
    pub fn new(label: Arc<str>) -> LabelIndex {
        LabelIndex { label, ..LabelIndex::default() }
    }

    /// The same without any unit.
    pub fn anew(&self) -> LabelIndex {
        LabelIndex { generation: self.generation + 1, ..LabelIndex::new(self.label.clone()) }
    }

    /// The label.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Says when numbers change their meaning: as long as it is the same they have not.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The unit at that place has this value from now on.
    pub fn set(&mut self, place: u32, value: Option<&str>) {
        let place = place as usize;
        if self.numbers.len() <= place {
            if value.is_none() {
                return;
            }
            // Doubling would leave half of the memory of a large fleet unused.
            let missing = place + 1 - self.numbers.len();
            if self.numbers.capacity() <= place {
                self.numbers.reserve_exact(missing + self.numbers.len() / 8 + 64);
            }
            self.numbers.resize(place + 1, 0);
        }
        let number = value.map_or(0, |value| self.take(value));
        let before = std::mem::replace(&mut self.numbers[place], number);
        self.give_back(before);
    }

    /// The number of the value of the unit at that place; 0 if it has none.
    pub fn number_at(&self, place: usize) -> u16 {
        self.numbers.get(place).copied().unwrap_or_default()
    }

    /// All numbers are less than this.
    pub fn numbers(&self) -> usize {
        usize::from(FIRST) + self.values.len()
    }

    /// The number of a value, if a unit has it and it is told apart.
    pub fn number_of(&self, value: &str) -> Option<u16> {
        self.known.get(value).copied()
    }

    /// The value with that number.
    pub fn value(&self, number: u16) -> Arc<str> {
        match number.checked_sub(FIRST) {
            Some(at) => self.values[usize::from(at)].0.clone(),
            None => OTHER_VALUE.into(),
        }
    }

    /// Whether there are units whose value is not told apart.
    pub fn is_full(&self) -> bool {
        self.known.len() >= MOST_VALUES
    }

    /// About how much memory it takes, without the values.
    pub fn bytes(&self) -> usize {
        self.numbers.capacity() * size_of::<u16>()
    }

    fn take(&mut self, value: &str) -> u16 {
        if let Some(&number) = self.known.get(value) {
            self.values[usize::from(number - FIRST)].1 += 1;
            return number;
        }
        if self.is_full() {
            return OTHER;
        }
        let value: Arc<str> = value.into();
        let number = match self.free.pop() {
            Some(number) => {
                self.generation += 1;
                self.values[usize::from(number - FIRST)] = (value.clone(), 1);
                number
            }
            None => {
                self.values.push((value.clone(), 1));
                FIRST + (self.values.len() - 1) as u16 // At most MOST_VALUES.
            }
        };
        self.known.insert(value, number);
        number
    }

    fn give_back(&mut self, number: u16) {
        let Some(at) = number.checked_sub(FIRST) else { return };
        let (value, units) = &mut self.values[usize::from(at)];
        *units -= 1;
        if *units == 0 {
            self.known.remove(value);
            self.free.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_whose_value_changes_each_time_uses_one_place_and_numbers_that_change_are_noticed() {
        let mut tags = LabelIndex::new("site".into());
        tags.set(7, Some("north"));
        let (number, generation) = (tags.number_at(7), tags.generation());
        assert_eq!((&*tags.value(number), tags.number_of("north")), ("north", Some(number)));
        for site in 0..1000 {
            tags.set(7, Some(&site.to_string()));
        }
        assert!(tags.values.len() <= 2 && tags.known.len() == 1);
        assert_eq!(tags.number_of("north"), None);
        assert!(tags.generation() > generation);
        tags.set(7, None);
        assert_eq!((tags.number_at(7), tags.number_at(9), tags.known.len()), (0, 0, 0));
    }

    #[test]
    fn values_without_end_take_memory_with_an_end() {
        let mut tags = LabelIndex::new("site".into());
        for place in 0..MOST_VALUES as u32 + 100 {
            tags.set(place, Some(&place.to_string()));
        }
        assert_eq!((tags.known.len(), tags.is_full()), (MOST_VALUES, true));
        let beyond = tags.number_at(MOST_VALUES + 5);
        assert_eq!(&*tags.value(beyond), OTHER_VALUE);
        tags.set(0, None);
        tags.set(MOST_VALUES as u32 + 5, Some("now there is room"));
        assert!(tags.number_of("now there is room").is_some());
    }
}
