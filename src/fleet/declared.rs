//! The declarations of units as this instance last found them in the engine, so that a heartbeat that declares the same
//! again takes the fast path.
//!
//! Holds a fingerprint of each unit that declared anything, and the unit's newest heartbeat that this instance recorded.
//! A full table is cleared: the next heartbeat of each unit is then admitted once more, which is harmless.
//!
//! # Why the newest heartbeat
//! Another instance may admit another declaration of the unit. It records a heartbeat with it, so the heartbeat that the
//! next one replaces is not the newest of this instance. Then the facts of the unit are read again. What topics say
//! is not: a device cannot change it, and with it a fleet of several instances would read most units again. But a heartbeat
//! by another broker, which this instance may not hear, may have been on another topic: the unit moved, or two devices have
//! its id. So after it, what topics say is read again, too.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::Mutex;

use crate::clock::Timestamp;
use crate::presence::{Declared, Facts, Heartbeat, Unit, is_declared};
use crate::store::Replaced;

/// About 40 MB when full.
const MAX_UNITS: usize = 2_000_000;

/// Declarations by unit.
#[derive(Default)]
pub struct Declarations(Mutex<HashMap<u64, Declaration, FixedState>>);

/// Both cut to 32 bits, because there may be millions.
#[derive(Clone, Copy)]
struct Declaration {
    fingerprint: u32,
    newest: u32,
}

impl Declarations {
    /// Whether the engine already knows everything that the heartbeat declares. If not, nothing is known of its unit
    /// until it is admitted: a heartbeat of another batch that repeats the former declaration is admitted, too.
    pub fn declares_nothing_new(&self, heartbeat: &Heartbeat) -> bool {
        let declared = &heartbeat.declared;
        if declared.is_empty() {
            return true;
        }
        let (unit, fingerprint) = (hash(&heartbeat.unit), fingerprint(declared));
        let mut known = self.0.lock();
        // An announced sleep is new each time: it begins with this heartbeat.
        let is_known = declared.sleep.is_none()
            && known.get(&unit).is_some_and(|declaration| declaration.fingerprint == fingerprint);
        if !is_known {
            known.remove(&unit);
        }
        is_known
    }

    /// Notes heartbeats that the engine recorded, each with the one that it replaced. Answers those whose declarations
    /// the engine may not have any more.
    pub fn recorded<'a>(&self, heartbeats: &[(&'a Heartbeat, Replaced)]) -> Vec<&'a Heartbeat> {
        let mut known = self.0.lock();
        let mut unsure = Vec::new();
        for (heartbeat, replaced) in heartbeats {
            let of_unit = if known.is_empty() { None } else { known.get_mut(&hash(&heartbeat.unit)) };
            let own = of_unit.filter(|declaration| declaration.newest == moment(replaced.at));
            // Only the newest heartbeat says where its unit is.
            let has_moved = replaced.is_elsewhere && replaced.at <= heartbeat.at;
            let declared = &heartbeat.declared;
            let declares = declared.is_in_payload() || has_moved && !declared.topic_labels.is_empty();
            match own {
                Some(declaration) if !declares || declaration.fingerprint == fingerprint(declared) => {
                    declaration.newest = moment(heartbeat.at.max(replaced.at));
                }
                _ if declares => unsure.push(*heartbeat),
                _ => {}
            }
        }
        unsure
    }

    /// The engine has these facts of the unit and `newest` as its newest heartbeat, after this heartbeat was decided.
    pub fn decided(&self, heartbeat: &Heartbeat, facts: &Facts, newest: Timestamp) {
        if heartbeat.declared.is_empty() || !is_declared(facts, heartbeat) {
            return;
        }
        let fingerprint = fingerprint(&heartbeat.declared);
        let mut known = self.0.lock();
        if known.len() >= MAX_UNITS {
            known.clear();
        }
        match known.entry(hash(&heartbeat.unit)) {
            // If two heartbeats of a unit are admitted at once, only the engine knows which came last.
            Entry::Occupied(other) if other.get().fingerprint != fingerprint => drop(other.remove()),
            entry => drop(entry.insert(Declaration { fingerprint, newest: moment(newest) })),
        }
    }

    /// The unit was removed; its next declaration is new.
    pub fn forget(&self, unit: &Unit) {
        self.0.lock().remove(&hash(unit));
    }
}

fn hash(unit: &Unit) -> u64 {
    FixedState::default().hash_one(unit)
}

fn fingerprint(declared: &Declared) -> u32 {
    let Declared { timeout, labels, topic_labels, sleep: _ } = declared;
    FixedState::default().hash_one((timeout, labels, topic_labels)) as u32
}

fn moment(at: Timestamp) -> u32 {
    at.as_millis() as u32
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::presence::{Labels, Lifecycle};

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// A heartbeat of this moment, by the same broker as the one that replaces it.
    fn here(ms: i64) -> Replaced {
        Replaced { at: at(ms), is_elsewhere: false }
    }

    /// A heartbeat that declares this timeout, or nothing.
    fn heartbeat(ms: i64, timeout: u64) -> Heartbeat {
        let timeout = (timeout > 0).then(|| Duration::from_secs(timeout));
        let declared = Declared { timeout, ..Declared::default() };
        Heartbeat { declared, ..Heartbeat::of("a:1".parse().unwrap(), at(ms)) }
    }

    fn facts(timeout: u64) -> Facts {
        let declared_timeout = Some(Duration::from_secs(timeout));
        Facts { declared_timeout, ..Facts::new(Lifecycle::Present, at(0)) }
    }

    #[test]
    fn only_what_the_engine_has_is_known() {
        let known = Declarations::default();
        let (minute, hour) = (heartbeat(1, 60), heartbeat(1, 3600));
        assert!(known.declares_nothing_new(&heartbeat(1, 0)) && !known.declares_nothing_new(&minute));
        // Another heartbeat was newer, so this one was not admitted.
        known.decided(&minute, &facts(6), at(5));
        assert!(!known.declares_nothing_new(&minute));
        known.decided(&minute, &facts(60), at(1));
        assert!(known.declares_nothing_new(&minute));
        assert!(!known.declares_nothing_new(&hour));
        assert!(!known.declares_nothing_new(&minute), "until the other one is admitted");
        // Both are admitted at a time.
        known.decided(&hour, &facts(3600), at(2));
        known.decided(&minute, &facts(60), at(1));
        assert!(!known.declares_nothing_new(&minute) && !known.declares_nothing_new(&hour));
    }

    #[test]
    fn a_declaration_is_read_again_after_another_instance_heard_the_unit() {
        let known = Declarations::default();
        known.decided(&heartbeat(1, 60), &facts(60), at(1));
        // Each heartbeat, the one that it replaces, and whether the facts are to be read.
        for (ms, timeout, before, is_unsure) in [
            (2, 60, 1, false),
            (3, 0, 2, false),
            (4, 60, 3, false),
            (3, 60, 4, false),
            (5, 60, 4, false),
            (7, 60, 6, true),
            (8, 0, 7, false),
            (9, 60, 8, true),
        ] {
            let one = heartbeat(ms, timeout);
            assert_eq!(known.recorded(&[(&one, here(before))]).len(), usize::from(is_unsure), "{ms}");
        }
        known.decided(&heartbeat(9, 60), &facts(60), at(9));
        assert!(known.recorded(&[(&heartbeat(10, 60), here(9))]).is_empty());
        assert_eq!(
            known.recorded(&[(&heartbeat(11, 3), here(10))]).len(),
            1,
            "another batch has admitted 60 s"
        );
    }

    #[test]
    fn the_labels_of_a_topic_are_read_again_after_the_unit_was_heard_at_another_broker() {
        let labels = Labels::from([("site".to_owned(), "north".to_owned())]);
        let north = |ms: i64| {
            let declared = Declared { topic_labels: labels.clone(), ..Declared::default() };
            Heartbeat { declared, ..heartbeat(ms, 0) }
        };
        let facts = Facts { labels: labels.clone(), ..Facts::new(Lifecycle::Present, at(0)) };
        let elsewhere = |ms: i64| Replaced { is_elsewhere: true, ..here(ms) };
        // Each heartbeat, the one that it replaces, and whether the facts are to be read.
        let cases = [
            ("the own one before", 2, here(1), false),
            ("another one at this broker", 4, here(3), false),
            ("one at another broker", 6, elsewhere(5), true),
            ("one at another broker that is newer", 6, elsewhere(7), false),
            ("the own one, which two brokers delivered", 2, elsewhere(1), false),
        ];
        for (what, ms, replaced, is_unsure) in cases {
            let known = Declarations::default();
            known.decided(&north(1), &facts, at(1));
            let plain = heartbeat(ms, 0);
            assert_eq!(known.recorded(&[(&north(ms), replaced)]).len(), usize::from(is_unsure), "{what}");
            assert!(known.recorded(&[(&plain, replaced)]).is_empty(), "{what}: it has no labels");
        }
    }
}
