//! The declarations of units as this instance last admitted them, so that a heartbeat that declares the same again
//! takes the fast path.
//!
//! Holds a fingerprint of eight bytes for each unit that declared anything. A full table is cleared: the next
//! heartbeat of each unit is then admitted once more, which is harmless.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::presence::{Declared, Heartbeat, Unit};

/// About 40 MB when full.
const MAX_UNITS: usize = 2_000_000;

/// Fingerprints of declarations by unit.
#[derive(Default)]
pub struct Declarations(Mutex<HashMap<u64, u64, FixedState>>);

impl Declarations {
    /// Whether the engine already knows everything that the heartbeat declares.
    pub fn declares_nothing_new(&self, heartbeat: &Heartbeat) -> bool {
        if heartbeat.declared.is_empty() {
            return true;
        }
        // An announced sleep is new each time: it begins with this heartbeat.
        heartbeat.declared.sleep.is_none()
            && self.0.lock().get(&hash(&heartbeat.unit)) == Some(&fingerprint(&heartbeat.declared))
    }

    /// The engine has applied this heartbeat and its declaration.
    pub fn admitted(&self, heartbeat: &Heartbeat) {
        if heartbeat.declared.is_empty() {
            return;
        }
        let mut known = self.0.lock();
        if known.len() >= MAX_UNITS {
            known.clear();
        }
        known.insert(hash(&heartbeat.unit), fingerprint(&heartbeat.declared));
    }

    /// The unit was removed; its next declaration is new.
    pub fn forget(&self, unit: &Unit) {
        self.0.lock().remove(&hash(unit));
    }
}

fn hash(unit: &Unit) -> u64 {
    FixedState::default().hash_one(unit)
}

fn fingerprint(declared: &Declared) -> u64 {
    FixedState::default().hash_one((&declared.timeout, &declared.labels, &declared.topic_labels))
}
