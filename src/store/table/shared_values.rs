//! Values that units share, each stored once in a partition, by number, with the number of its units.
//!
//! Values come from devices, which may send another one each time. So the number of an unused value is reused.

use std::borrow::Borrow;
use std::hash::Hash;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// Shared values, by number from 0.
pub(super) struct SharedValues<T> {
    /// Each value, and the number of units with it.
    values: Vec<(T, u32)>,
    numbers: HashMap<T, u32, FixedState>,
    free: Vec<u32>,
}

impl<T> Default for SharedValues<T> {
    fn default() -> SharedValues<T> {
        SharedValues { values: Vec::new(), numbers: HashMap::default(), free: Vec::new() }
    }
}

impl<T: Clone + Hash + Eq> SharedValues<T> {
    /// Counts one more unit with an existing value, and answers the number of the value.
    pub fn acquire<Q: Hash + Eq + ?Sized>(&mut self, value: &Q) -> Option<u32>
    where
        T: Borrow<Q>,
    {
        let number = self.number_of(value)?;
        self.values[number as usize].1 += 1;
        Some(number)
    }

    /// Adds a value for its first unit. Answers its number, and whether another value had that number before.
    pub fn enter(&mut self, value: T) -> (u32, bool) {
        let free = self.free.pop();
        let number = free.unwrap_or(self.values.len() as u32);
        match free {
            Some(number) => self.values[number as usize] = (value.clone(), 1),
            None => self.values.push((value.clone(), 1)),
        }
        self.numbers.insert(value, number);
        (number, free.is_some())
    }

    /// Counts one unit less with the value of this number.
    pub fn release(&mut self, number: u32) {
        let (value, units) = &mut self.values[number as usize];
        *units -= 1;
        if *units == 0 {
            self.numbers.remove(value);
            self.free.push(number);
        }
    }

    /// The number of a value, if a unit has it.
    pub fn number_of<Q: Hash + Eq + ?Sized>(&self, value: &Q) -> Option<u32>
    where
        T: Borrow<Q>,
    {
        self.numbers.get(value).copied()
    }

    pub fn get(&self, number: u32) -> &T {
        &self.values[number as usize].0
    }

    /// The number of units with the value of this number.
    pub fn units(&self, number: u32) -> u32 {
        self.values[number as usize].1
    }

    /// The values in use, and their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&T, u32)> {
        self.numbers.iter().map(|(value, number)| (value, *number))
    }

    /// The number of values in use.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// All numbers are less than this.
    pub fn numbers(&self) -> usize {
        self.values.len()
    }
}
