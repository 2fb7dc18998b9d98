//! Units that sweeps leave out.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::presence::Unit;

/// Units that are being checked, or wait for hearing.
#[derive(Clone, Default)]
pub struct Excluded(Arc<Mutex<HashSet<Unit>>>);

impl Excluded {
    pub fn remove_from(&self, units: &mut Vec<Unit>) {
        let excluded = self.0.lock();
        if !excluded.is_empty() {
            units.retain(|unit| !excluded.contains(unit));
        }
    }

    pub fn add<'a>(&self, units: impl IntoIterator<Item = &'a Unit>) {
        self.0.lock().extend(units.into_iter().cloned());
    }

    pub(super) fn release<'a>(&self, units: impl IntoIterator<Item = &'a Unit>) {
        let mut excluded = self.0.lock();
        for unit in units {
            excluded.remove(unit);
        }
    }

    pub(super) fn contains(&self, unit: &Unit) -> bool {
        self.0.lock().contains(unit)
    }
}
