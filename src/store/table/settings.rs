//! The settings by which units differ from the policies of their kinds, each stored once in a partition, with the
//! number of its units.
//!
//! Most units have no settings. But a device may declare another timeout with each heartbeat, so the number of unused
//! settings is reused.

use std::time::Duration;

use super::shared_values::SharedValues;
use crate::presence::{Facts, Override};

/// The difference of a unit from the policy of its kind.
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

    /// Puts the settings into facts.
    pub fn put(self, facts: &mut Facts) {
        facts.declared_timeout = self.declared_timeout;
        facts.set = Override { timeout: self.set_timeout, grace: self.set_grace };
    }
}

/// All settings of a partition, by number from 1.
#[derive(Default)]
pub(super) struct SettingsIndex(SharedValues<Settings>);

/// The number for units without settings.
pub const NO_SETTINGS: u32 = 0;

impl SettingsIndex {
    /// The number of these settings; counts one more unit with them.
    pub fn acquire(&mut self, settings: Settings) -> u32 {
        if settings == Settings::default() {
            return NO_SETTINGS;
        }
        1 + self.0.acquire(&settings).unwrap_or_else(|| self.0.enter(settings).0)
    }

    pub fn get(&self, number: u32) -> Settings {
        number.checked_sub(1).map_or(Settings::default(), |number| *self.0.get(number))
    }

    /// Counts one unit less with these settings.
    pub fn release(&mut self, number: u32) {
        number.checked_sub(1).into_iter().for_each(|number| self.0.release(number));
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
        assert!(index.0.numbers() <= 2 && index.0.len() == 1);
        assert_eq!(index.acquire(Settings::default()), NO_SETTINGS);
        index.release(NO_SETTINGS);
        assert_eq!(index.get(NO_SETTINGS), Settings::default());
    }
}
