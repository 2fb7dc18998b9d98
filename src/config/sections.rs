//! The sections of a configuration, to compare them with those of another configuration.

use std::collections::{BTreeMap, BTreeSet};

use ring::digest::{SHA256, digest};

/// The options of a kind that a reload replaces.
const OF_RULES: [&str; 12] = [
    "timeout",
    "grace",
    "accept_timeout",
    "accept_sleep",
    "max_sleep",
    "clock",
    "registry",
    "first_timeout",
    "archive_after",
    "forget_after",
    "max_units",
    "flapping",
];

/// The sections that are the same for all instances of a fleet.
const SHARED: [&str; 9] =
    ["breaker", "inhibit", "kind", "receiver", "report", "route", "time", "timer", "timers"];

/// Digests of the sections, because sections hold secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sections {
    /// The digest of each section, without the options of kinds that a reload replaces.
    each: BTreeMap<String, Vec<u8>>,
    /// The digest of the sections that all instances share, with all options.
    shared: Vec<u8>,
}

impl Sections {
    pub(super) fn of(table: &toml::Table) -> Sections {
        let of = |value: &toml::Value| digest(&SHA256, value.to_string().as_bytes()).as_ref().to_vec();
        let shared = table.iter().filter(|(name, _)| SHARED.contains(&name.as_str()));
        let shared: toml::Table = shared.map(|(name, value)| (name.clone(), value.clone())).collect();
        let shared = of(&toml::Value::Table(shared));
        let mut table = table.clone();
        let kinds = table.get_mut("kind").and_then(toml::Value::as_array_mut);
        for kind in kinds.into_iter().flatten().filter_map(toml::Value::as_table_mut) {
            kind.retain(|option, _| !OF_RULES.contains(&option));
        }
        Sections { each: table.iter().map(|(name, value)| (name.clone(), of(value))).collect(), shared }
    }

    /// A digest of the sections that are the same for all instances of a fleet: 48 bits.
    /// `started`: the configuration of the start, with the options of kinds that wait for a restart.
    pub fn shared(&self, started: &Sections) -> u64 {
        let kinds = started.each.get("kind").map_or(&[][..], Vec::as_slice);
        short_digest(&[&self.shared, kinds].concat())
    }

    /// The names of the sections that differ.
    pub fn changed<'a>(&'a self, other: &'a Sections) -> Vec<&'a str> {
        let names: BTreeSet<&String> = self.each.keys().chain(other.each.keys()).collect();
        let differs = |name: &&String| self.each.get(*name) != other.each.get(*name);
        names.into_iter().filter(differs).map(String::as_str).collect()
    }
}

/// 48 bits of the SHA-256 of `bytes`: instances exchange this digest among counts.
pub(super) fn short_digest(bytes: &[u8]) -> u64 {
    digest(&SHA256, bytes).as_ref()[..6].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_instances_share_has_a_digest_that_knows_of_a_restart_that_is_missing() {
        let of = |text: &str| Sections::of(&toml::from_str(text).unwrap());
        let before = of("[http]\nlisten = \"a\"\n[[kind]]\nname = \"a\"\ntimeout = \"1h\"");
        let elsewhere = of("[http]\nlisten = \"b\"\n[[kind]]\ntimeout = \"1h\"\nname = \"a\"");
        assert_eq!(before.shared(&before), elsewhere.shared(&elsewhere));
        let rule = of("[[kind]]\nname = \"a\"\ntimeout = \"2h\"");
        assert_ne!(rule.shared(&before), before.shared(&before));
        assert_eq!(rule.shared(&before), rule.shared(&rule), "a reload is enough");
        let kinds = of("[[kind]]\nname = \"a\"\ntimeout = \"1h\"\n[[kind]]\nname = \"b\"\ntimeout = \"1h\"");
        assert_ne!(kinds.shared(&before), kinds.shared(&kinds), "a restart is needed");
        assert!(kinds.shared(&kinds) < 1 << 48);
    }

    #[test]
    fn sections_that_differ_are_named() {
        let of = |text: &str| Sections::of(&toml::from_str(text).unwrap());
        let text = "a = 1\n[b]\nc = 2\n[[d]]\ne = 3\n[[d]]\ne = 4\n";
        let changed = |other: &str| of(text).changed(&of(other)).join(" ");
        assert_eq!(changed(&format!("# the same\n{text}")), "");
        let kind = |options: &str| of(&format!("[[kind]]\n{options}"));
        let none: [&str; 0] = [];
        assert_eq!(
            kind("name = 1")
                .changed(&kind("name = 1\ntimeout = 2\nmax_units = 3\nflapping = { transitions = 6 }")),
            none
        );
        assert_eq!(kind("name = 1\ntimeout = 2").changed(&kind("name = 2\ntimeout = 2")), ["kind"]);
        assert_eq!(changed(&text.replace("2", "5")), "b");
        assert_eq!(changed(&text.replace("4", "5")), "d");
        assert_eq!(changed(&text.replace("a = 1", "f.g = 1")), "a f");
    }
}
