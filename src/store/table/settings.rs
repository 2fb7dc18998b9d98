//! What units add to the policies of their kinds, each stored once in a partition, with the number of its units.
//!
//! Most units add nothing. But a device may declare another timeout with each heartbeat, so the number of settings
//! that no unit has any more is used again.

use std::collections::HashMap;
use std::time::Duration;

use crate::presence::{Facts, Override};

/// What a unit adds to the policy of its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settings {
    declared_timeout: Option<Duration>,
    set_timeout: Option<Duration>,
    set_grace: Option<Duration>,
}

impl Settings {
    pub fn of(facts: &Facts) -> Settings {
        let Override { timeout, grace } = facts.set;
        Settings { declared_timeout: facts.declared_timeout, set_timeout: timeout, set_grace: grace }
    }

    /// Puts them into facts.
    pub fn put(self, facts: &mut Facts) {
        facts.declared_timeout = self.declared_timeout;
        facts.set = Override { timeout: self.set_timeout, grace: self.set_grace };
    }
}

/// Settings, by number.
#[derive(Default)]
pub(super) struct SettingsIndex {
    /// Settings and the number of their units; the first are those of number 1.
    kept: Vec<(Settings, u32)>,
    numbers: HashMap<Settings, u32>,
    free: Vec<u32>,
}

/// The number of units that add nothing.
pub const NO_SETTINGS: u32 = 0;

impl SettingsIndex {
    /// The number of these settings, for one more unit.
    pub fn acquire(&mut self, settings: Settings) -> u32 {
        if settings == Settings::default() {
            return NO_SETTINGS;
        }
        if let Some(&number) = self.numbers.get(&settings) {
            self.kept[number as usize - 1].1 += 1;
            return number;
        }
        let number = match self.free.pop() {
            Some(number) => {
                self.kept[number as usize - 1] = (settings, 1);
                number
            }
            None => {
                self.kept.push((settings, 1));
                self.kept.len() as u32
            }
        };
        self.numbers.insert(settings, number);
        number
    }

    pub fn get(&self, number: u32) -> Settings {
        if number == NO_SETTINGS { Settings::default() } else { self.kept[number as usize - 1].0 }
    }

    /// Notes that one unit less has these settings.
    pub fn release(&mut self, number: u32) {
        if number == NO_SETTINGS {
            return;
        }
        let (settings, units) = &mut self.kept[number as usize - 1];
        *units -= 1;
        if *units == 0 {
            self.numbers.remove(settings);
            self.free.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_declares_another_timeout_each_time_uses_one_number() {
        let mut index = SettingsIndex::default();
        let declared = |s| Settings { declared_timeout: Some(Duration::from_secs(s)), ..Settings::default() };
        let mut number = index.acquire(declared(1));
        for seconds in 2..10_000 {
            let next = index.acquire(declared(seconds));
            index.release(number);
            assert_eq!(index.get(next), declared(seconds));
            number = next;
        }
        assert!(index.kept.len() <= 2 && index.numbers.len() == 1);
        assert_eq!(index.acquire(Settings::default()), NO_SETTINGS);
        index.release(NO_SETTINGS);
        assert_eq!(index.get(NO_SETTINGS), Settings::default());
    }
}
