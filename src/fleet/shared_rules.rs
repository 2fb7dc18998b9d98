//! The rules of the configured kinds. A reload of the configuration replaces them while everything goes on; the kinds
//! themselves stay.

use std::sync::Arc;

use arc_swap::ArcSwap;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::Rules;
use crate::presence::{Kind, KindRules};

/// The rules of every configured kind, shared by the code that decides by them.
#[derive(Clone)]
pub struct SharedRules(Arc<ArcSwap<RulesVersion>>);

/// The rules as they are until the next reload.
struct RulesVersion {
    /// The number of replacements before this version.
    number: u64,
    rules: Arc<Rules>,
    by_name: HashMap<Box<str>, Arc<KindRules>, FixedState>,
}

impl RulesVersion {
    fn new(number: u64, rules: Arc<Rules>) -> RulesVersion {
        let shared = |rules: &KindRules| (rules.kind.as_str().into(), Arc::new(rules.clone()));
        RulesVersion { number, by_name: rules.values().map(shared).collect(), rules }
    }
}

impl SharedRules {
    pub fn rules(&self) -> Arc<Rules> {
        self.0.load().rules.clone()
    }

    /// The rules of the kind of that name.
    pub fn of(&self, kind: &str) -> Option<Arc<KindRules>> {
        self.0.load().by_name.get(kind).cloned()
    }

    /// A number that grows with each replacement.
    pub fn edition(&self) -> u64 {
        self.0.load().number
    }

    /// Replaces the rules of the known kinds; rules of other kinds are left out. Returns the kinds whose rules changed.
    pub fn replace(&self, wanted: &Rules) -> Vec<Kind> {
        let before = self.rules();
        let mut rules = (*before).clone();
        let mut changed = Vec::new();
        for (kind, rules) in &mut rules {
            let Some(wanted) = wanted.get(kind) else { continue };
            // The name of units waits for a restart, as their topics do.
            let wanted = KindRules { name: rules.name.clone(), ..wanted.clone() };
            if wanted == *rules {
                continue;
            }
            *rules = wanted;
            changed.push(kind.clone());
        }
        changed.sort();
        if !changed.is_empty() {
            self.0.store(Arc::new(RulesVersion::new(self.edition() + 1, Arc::new(rules))));
        }
        changed
    }
}

impl From<Arc<Rules>> for SharedRules {
    fn from(rules: Arc<Rules>) -> SharedRules {
        SharedRules(Arc::new(ArcSwap::from_pointee(RulesVersion::new(0, rules))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_changes_rules_and_neither_adds_nor_removes_kinds() {
        let kind = |name: &str| name.parse::<Kind>().unwrap();
        let of = |names: &[(&str, u64)]| -> Rules {
            let rules =
                names.iter().map(|(name, most)| KindRules { max_units: *most, ..KindRules::new(kind(name)) });
            rules.map(|rules| (rules.kind.clone(), rules)).collect()
        };
        let book = SharedRules::from(Arc::new(of(&[("pump", 1), ("meter", 2)])));
        assert_eq!((book.replace(&of(&[("pump", 1)])), book.edition()), (vec![], 0));
        assert_eq!(book.replace(&of(&[("pump", 7), ("valve", 3)])), [kind("pump")]);
        assert_eq!((book.edition(), book.rules().len(), book.of("valve").is_none()), (1, 2, true));
        assert_eq!(["pump", "meter"].map(|name| book.of(name).unwrap().max_units), [7, 2]);
        assert_eq!(book.rules()[&kind("pump")], *book.of("pump").unwrap());
    }
}
