//! The value of one label for each unit of a partition: two bytes a unit.
//!
//! For counts and filters, and only for labels of `http.count_by_labels`. A value is stored once, for as long as a
//! unit has it. Values come from devices and may be endless: a unit whose value is beyond [`MAX_VALUES`] only has
//! "another value".

use std::sync::Arc;

use super::shared_values::SharedValues;

/// The most values of a label in a partition that have numbers of their own.
const MAX_VALUES: usize = 10_000;

/// The number of all further values.
const OTHER: u16 = 1;
/// The number of the first value; 0 is not a value.
const FIRST: u16 = 2;

/// Stands for all further values.
pub const OTHER_VALUE: &str = "other";

/// The values of one label, by slot.
#[derive(Default)]
pub struct LabelIndex {
    label: Arc<str>,
    /// The number of the value of each slot.
    numbers: Vec<u16>,
    /// The values; the first has the number [`FIRST`].
    values: SharedValues<Arc<str>>,
    /// How many times a number got another value.
    generation: u64,
}

impl LabelIndex {
    pub fn new(label: Arc<str>) -> LabelIndex {
        LabelIndex { label, ..LabelIndex::default() }
    }

    /// The index of the same label without any unit.
    pub fn cleared(&self) -> LabelIndex {
        LabelIndex { generation: self.generation + 1, ..LabelIndex::new(self.label.clone()) }
    }

    pub fn label(&self) -> &str {
        &self.label
    }

    /// The generation: while it stays equal, no number got another value.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Sets the value of the unit in this slot.
    pub fn set(&mut self, slot: u32, value: Option<&str>) {
        let slot = slot as usize;
        if self.numbers.len() <= slot {
            if value.is_none() {
                return;
            }
            // Doubling would leave half of the memory of a large fleet unused.
            let missing = slot + 1 - self.numbers.len();
            if self.numbers.capacity() <= slot {
                self.numbers.reserve_exact(missing + self.numbers.len() / 8 + 64);
            }
            self.numbers.resize(slot + 1, 0);
        }
        let number = value.map_or(0, |value| self.acquire(value));
        let before = std::mem::replace(&mut self.numbers[slot], number);
        self.release(before);
    }

    /// The number of the value of the unit in this slot; 0 if it has none.
    pub fn number_at(&self, slot: usize) -> u16 {
        self.numbers.get(slot).copied().unwrap_or_default()
    }

    /// All numbers are less than this.
    pub fn numbers(&self) -> usize {
        usize::from(FIRST) + self.values.numbers()
    }

    /// The number of a value, if a unit has it and it has its own number.
    pub fn number_of(&self, value: &str) -> Option<u16> {
        self.values.number_of(value).map(|number| FIRST + number as u16)
    }

    /// The number of units with a value; `None`: the value may have no number of its own.
    pub fn units_with(&self, value: &str) -> Option<u64> {
        match self.values.number_of(value) {
            Some(number) => Some(self.values.units(number).into()),
            None => (!self.is_full()).then_some(0),
        }
    }

    /// The values with their own numbers, and the number of units of each.
    pub fn counts(&self) -> impl Iterator<Item = (&Arc<str>, u32)> {
        self.values.iter().map(|(value, number)| (value, self.values.units(number)))
    }

    pub fn value(&self, number: u16) -> Arc<str> {
        match number.checked_sub(FIRST) {
            Some(number) => self.values.get(number.into()).clone(),
            None => OTHER_VALUE.into(),
        }
    }

    /// Whether the next new value gets no number of its own.
    pub fn is_full(&self) -> bool {
        self.values.len() >= MAX_VALUES
    }

    /// The approximate memory, without the values.
    pub fn bytes(&self) -> usize {
        self.numbers.capacity() * size_of::<u16>()
    }

    fn acquire(&mut self, value: &str) -> u16 {
        if let Some(known) = self.values.acquire(value) {
            return FIRST + known as u16;
        }
        if self.is_full() {
            return OTHER;
        }
        let (number, is_used_again) = self.values.enter(value.into());
        self.generation += u64::from(is_used_again);
        FIRST + number as u16 // At most MAX_VALUES.
    }

    fn release(&mut self, number: u16) {
        if let Some(number) = number.checked_sub(FIRST) {
            self.values.release(number.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_whose_value_changes_each_time_uses_one_number_and_the_generation_shows_reused_numbers() {
        let mut index = LabelIndex::new("site".into());
        index.set(7, Some("north"));
        let (number, generation) = (index.number_at(7), index.generation());
        assert_eq!((&*index.value(number), index.number_of("north")), ("north", Some(number)));
        for site in 0..1000 {
            index.set(7, Some(&site.to_string()));
        }
        assert!(index.values.numbers() <= 2 && index.values.len() == 1);
        assert_eq!(index.number_of("north"), None);
        assert!(index.generation() > generation);
        index.set(7, None);
        assert_eq!((index.number_at(7), index.number_at(9), index.values.len()), (0, 0, 0));
    }

    #[test]
    fn values_without_end_take_memory_with_an_end() {
        let mut index = LabelIndex::new("site".into());
        for slot in 0..MAX_VALUES as u32 + 100 {
            index.set(slot, Some(&slot.to_string()));
        }
        assert_eq!((index.values.len(), index.is_full()), (MAX_VALUES, true));
        let beyond = index.number_at(MAX_VALUES + 5);
        assert_eq!(&*index.value(beyond), OTHER_VALUE);
        index.set(0, None);
        index.set(MAX_VALUES as u32 + 5, Some("now there is room"));
        assert!(index.number_of("now there is room").is_some());
    }
}
