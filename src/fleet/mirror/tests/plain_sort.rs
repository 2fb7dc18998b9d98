//! Lists of a fleet while units come, go and change, compared with a plain sort of all units.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::listing::{ORDERS, lifecycle_of};
use super::*;

const PARTITIONS: u16 = 2;
const NOW: u64 = 1000;

/// Units as the engine holds them, and a mirror of them.
struct Fleet {
    random: StdRng,
    /// How many of 100 units are offline.
    offline: u32,
    rules: Arc<Rules>,
    units: BTreeMap<Unit, Snapshot>,
    mirror: Mirror,
}

impl Fleet {
    /// Two kinds, of which one archives units.
    fn new(seed: u64, offline: u32) -> Fleet {
        let policy = Policy { timeout: 100 * SECOND, grace: 20 * SECOND };
        let kind = |name: &str, archive_after| {
            let kind: Kind = name.parse().unwrap();
            (kind.clone(), KindRules { policy, archive_after, ..KindRules::new(kind) })
        };
        let rules = Arc::new(Rules::from_iter([kind("detector", None), kind("pump", Some(seconds(500)))]));
        let mirror = Mirror::new(rules.clone(), PARTITIONS).with_labels(&["site".to_owned()]);
        Fleet { random: StdRng::seed_from_u64(seed), offline, rules, units: BTreeMap::new(), mirror }
    }

    /// Units of that kind with ids of different lengths, in no order.
    fn come(&mut self, count: usize, kind: &str) {
        for _ in 0..count {
            let number = self.random.random_range(0..9000_usize);
            let unit: Unit =
                format!("{kind}:{}u{number}", "long".repeat(number % 4 / 3 * 9)).parse().unwrap();
            let seen = self.unit(unit);
            self.put(seen);
        }
    }

    /// A random state of the unit.
    fn unit(&mut self, unit: Unit) -> Snapshot {
        let is_offline = self.random.random_range(0..100) < self.offline;
        let lifecycle =
            if is_offline { self.random.random_range(2..4) } else { self.random.random_range(0..20) / 19 };
        // Most units were heard within the timeout.
        let ago =
            if is_offline { self.random.random_range(0..900) } else { self.random.random_range(0..102) };
        let before = self.units.get(&unit).map_or(Timestamp::ZERO, last_seen);
        let last_seen = at(NOW - ago).max(before);
        let mut seen = lifecycle_of(present(unit, last_seen), lifecycle);
        let facts = seen.facts.as_mut().unwrap();
        let site = self.random.random_range(0..5);
        facts.labels = [("site".to_owned(), site.to_string())].into_iter().filter(|_| site > 0).collect();
        if self.random.random_range(0..500) == 0 {
            facts.set = Override { timeout: Some(SECOND), grace: None };
        }
        if self.random.random_range(0..500) == 0 {
            facts.pause = Some(Interval { from: at(0), to: at(NOW + 5) });
        }
        seen
    }

    fn put(&mut self, seen: Snapshot) {
        self.mirror
            .compare(self.mirror.mark(partition_of(&seen.unit, PARTITIONS)), std::slice::from_ref(&seen));
        self.units.insert(seen.unit.clone(), seen);
    }

    /// Removes, hears or changes one of `one_of` units.
    fn change(&mut self, one_of: u32) {
        let all: Vec<Snapshot> = self.units.values().cloned().collect();
        for seen in all {
            if self.random.random_range(0..one_of) > 0 {
                continue;
            }
            let is_present = seen.facts.as_ref().is_some_and(|facts| facts.lifecycle == Lifecycle::Present);
            match self.random.random_range(0..3) {
                0 => {
                    self.units.remove(&seen.unit);
                    let mark = self.mirror.mark(partition_of(&seen.unit, PARTITIONS));
                    self.mirror.compare(mark, &[stranger(seen.unit)]);
                }
                1 if is_present => {
                    self.mirror.seen(&[RecordedHeartbeat::of(&seen.unit, at(NOW))]);
                    self.units.get_mut(&seen.unit).unwrap().alive = Some(at(NOW));
                }
                _ => {
                    let seen = self.unit(seen.unit);
                    self.put(seen);
                }
            }
        }
    }

    fn query(&mut self) -> ListQuery {
        let one = |random: &mut StdRng, texts: &[&str]| (*texts.choose(random).unwrap()).to_owned();
        let random = &mut self.random;
        let archive = [Archive::Included, Archive::LeftOut(at(NOW)), Archive::Only(at(NOW))];
        let label = ["", "", "2", "none"].choose(random).filter(|site| !site.is_empty());
        let kinds = [None, None, Some("pump".parse().unwrap())];
        let states: [&[State]; 6] = [
            &[],
            &[],
            &[State::Offline],
            &[State::Late, State::Unknown],
            &[State::Online],
            &State::ALL[1..4],
        ];
        ListQuery {
            unusual: None,
            filter: UnitFilter {
                kind: kinds.choose(random).unwrap().clone(),
                label: label.map(|site| ("site".to_owned(), (*site).to_owned())),
                archive: *archive.choose(random).unwrap(),
                ..UnitFilter::default()
            },
            states: states.choose(random).unwrap().to_vec(),
            prefix: one(
                random,
                &["", "", "", "u", "u12", "long", "longlonglonglonglonglonglonglonglong", "x"],
            ),
            contains: one(random, &["", "", "", "77", "gu"]),
            silent_longer: [None, None, Some(99), Some(400)].choose(random).unwrap().map(seconds),
            order: *ORDERS.choose(random).unwrap(),
            after: None,
            limit: random.random_range(1..150),
        }
    }

    /// The list by a plain sort of all units that are selected.
    fn expected(&self, query: &ListQuery, hearing: &Hearing) -> Vec<ListedUnit> {
        let listed = self.units.values().filter_map(|seen| {
            let rules = self.rules.get(&seen.unit.kind)?;
            let state = presence::state(seen, rules, hearing, at(NOW))?;
            let facts = seen.facts.as_ref()?;
            let offline_since = match &facts.lifecycle {
                Lifecycle::Offline(silence) => Some(silence.deadline),
                _ => None,
            };
            let is_archived = offline_since
                .zip(rules.archives_before(at(NOW)))
                .is_some_and(|(since, limit)| since <= limit);
            let id = seen.unit.id.as_str();
            let is_selected = self.mirror.keeps(partition_of(&seen.unit, PARTITIONS))
                && query.filter.kind.as_ref().is_none_or(|kind| *kind == seen.unit.kind)
                && query
                    .filter
                    .label
                    .as_ref()
                    .is_none_or(|(name, value)| facts.labels.get(name) == Some(value))
                && match query.filter.archive {
                    Archive::Included => true,
                    Archive::LeftOut(_) => !is_archived,
                    Archive::Only(_) => is_archived,
                }
                && (query.states.is_empty() || query.states.contains(&state))
                && id.starts_with(&query.prefix)
                && id.contains(&query.contains)
                && query.silent_longer.is_none_or(|silent| last_seen(seen) < at(NOW) - silent);
            let (kind, unit) = (seen.unit.kind.clone(), seen.unit.id.clone());
            is_selected.then_some(ListedUnit {
                unusual: false,
                kind,
                unit,
                state,
                last_seen: seen.last_heard(),
                offline_since,
            })
        });
        let mut listed: Vec<ListedUnit> = listed.collect();
        listed.sort_by_key(|unit| unit.key(query.order));
        listed
    }

    fn check(&mut self, queries: usize) {
        let hearing = Hearing { heard: Some(at(NOW)), ..Hearing::default() };
        for _ in 0..queries {
            let mut query = self.query();
            let expected = self.expected(&query, &hearing);
            for page in expected.chunks(query.limit).chain([&[][..]]).take(3) {
                let listed = self.mirror.list(&query, &hearing, at(NOW));
                assert_eq!(listed, page, "{query:?}");
                query.after = listed.last().map(|last| last.key(query.order)).or(query.after);
            }
        }
    }
}

/// The newest heartbeat, or the registration.
fn last_seen(seen: &Snapshot) -> Timestamp {
    seen.alive.max(seen.facts.as_ref().map(|facts| facts.last_seen)).unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn the_pages_of_a_list_are_those_of_a_plain_sort_of_all_units_that_it_selects(
        seed: u64, count in 0..2500_usize, offline in prop::sample::select(vec![0, 0, 1, 30, 100]),
    ) {
        let mut fleet = Fleet::new(seed, offline);
        fleet.come(count, "detector");
        fleet.check(12);
        fleet.come(count / 4, "pump");
        fleet.change(2);
        fleet.check(12);
        fleet.come(count / 8, "detector");
        fleet.offline = 0;
        fleet.change(9);
        fleet.check(12);
        fleet.change(1);
        fleet.check(6);
        fleet.mirror.keep(|partition| partition == 1);
        fleet.check(6);
    }
}
