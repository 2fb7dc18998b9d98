//! Both engines change cells and indexes alike: generated change-sets are given to the script on Redis and to the
//! embedded engine, and both show the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rollcall::store::{Cell, ChangeSet, Engine, EntryOrder, Index, IndexRange, NameRange, Table};

use crate::both_engines::{PARTITIONS, engines};
use crate::support::redis::Redis;

const NAMES: [&str; 5] = ["door:1", "door:2", "lift:a b,%d [x]", "lift:Köln \"☃\"\\'", "-"];
const VALUES: [&[u8]; 6] = [b"-7", b"{\"last\":1}", b"{\"last\":2}", b"%s\n\"", b"", b"\xff\x00"];

const WORDS: [&str; 3] = ["0.abc", "0.ab", "%1."];

/// A part of a change-set: its name, and its expectation or its action.
#[derive(Clone, Debug)]
enum Part {
    HasAsRead(usize),
    Has(usize, Option<usize>),
    IsAtAsRead(usize),
    IsAt(usize, Option<i64>),
    Put(usize, Option<usize>),
    Add(usize, i64),
    Word(usize, usize, bool),
    Enter(usize, Option<i64>),
    EnterNew(usize, i64),
    /// Into the index that is found by its names.
    EnterName(usize, bool),
}

fn part() -> impl Strategy<Value = Part> {
    let name = || 0..NAMES.len();
    let value = || prop::option::weighted(0.7, 0..VALUES.len());
    let at = || prop::option::weighted(0.7, -5..30i64);
    prop_oneof![
        3 => name().prop_map(Part::HasAsRead),
        1 => (name(), value()).prop_map(|(name, value)| Part::Has(name, value)),
        2 => name().prop_map(Part::IsAtAsRead),
        1 => (name(), at()).prop_map(|(name, at)| Part::IsAt(name, at)),
        4 => (name(), value()).prop_map(|(name, value)| Part::Put(name, value)),
        4 => (name(), -8..9i64).prop_map(|(name, more)| Part::Add(name, more)),
        4 => (name(), 0..WORDS.len(), any::<bool>()).prop_map(|(name, word, is_in)| Part::Word(name, word, is_in)),
        4 => (name(), at()).prop_map(|(name, at)| Part::Enter(name, at)),
        3 => (name(), -5..30i64).prop_map(|(name, at)| Part::EnterNew(name, at)),
        3 => (name(), any::<bool>()).prop_map(|(name, is_in)| Part::EnterName(name, is_in)),
    ]
}

/// The cells and entries of a partition, by the numbers in their names.
type Shown = Vec<(Option<Vec<u8>>, Option<i64>)>;

/// A table, and one that Redis cuts into pages, each with an index of its names.
const TABLES: [(Table, Index); 2] = [(Table::Flaps, Index::FlapChecks), (Table::Timers, Index::Timers)];

fn change_set(of: (Table, Index), (partition, parts): &(u16, Vec<Part>), shown: &[Shown]) -> ChangeSet {
    let ((table, index), now) = (of, &shown[usize::from(*partition)]);
    parts.iter().fold(ChangeSet::of(*partition), |set, part| match part {
        Part::HasAsRead(name) => set.has(table, NAMES[*name], now[*name].0.as_deref()),
        Part::Has(name, value) => set.has(table, NAMES[*name], value.map(|value| VALUES[value])),
        Part::IsAtAsRead(name) => set.is_at(index, NAMES[*name], now[*name].1),
        Part::IsAt(name, at) => set.is_at(index, NAMES[*name], *at),
        Part::Put(name, value) => set.put(table, NAMES[*name], value.map(|value| VALUES[value])),
        Part::Add(name, more) => set.add(Table::Counts, NAMES[*name], *more),
        Part::Word(name, word, is_in) => set.word(Table::AttemptsOf, NAMES[*name], WORDS[*word], *is_in),
        Part::Enter(name, at) => set.enter(index, NAMES[*name], *at),
        Part::EnterNew(name, at) => set.enter_new(index, NAMES[*name], *at),
        Part::EnterName(name, is_in) => set.enter(Index::Waiting, NAMES[*name], is_in.then_some(0)),
    })
}

/// What an engine shows of its cells, as text and as values.
async fn shows(engine: &Arc<dyn Engine>, (table, index): (Table, Index), until: i64) -> (String, Vec<Shown>) {
    let (mut text, mut shown) = (String::new(), Vec::new());
    // The number after the last partition has the cells of the fleet.
    for partition in 0..=PARTITIONS {
        let cell = |name: &&str| Cell { table, partition, name: (*name).to_owned() };
        let values = engine.read_cells(&NAMES.iter().map(cell).collect::<Vec<_>>()).await.unwrap();
        let entries = engine.entries(index, &[partition], i64::MAX, usize::MAX).await.unwrap();
        let at = |name: &str| entries.iter().find(|entry| entry.name == name).map(|entry| entry.at);
        shown.push(values.into_iter().zip(NAMES).map(|(value, name)| (value, at(name))).collect());
        // A table on pages has many of them.
        let is_scanned = table == Table::Flaps || partition == 0 && until % 8 == 0;
        let cells =
            if is_scanned { engine.all_cells(table, partition).await.unwrap() } else { Default::default() };
        let counts = engine.all_cells(Table::Counts, partition).await.unwrap();
        // The words of a cell are in no order.
        let words =
            engine.all_cells(Table::AttemptsOf, partition).await.unwrap().into_iter().map(|(name, words)| {
                let mut words: Vec<Vec<u8>> = words.split(|byte| *byte == b' ').map(<[u8]>::to_vec).collect();
                words.sort_unstable();
                (name, words)
            });
        let words: Vec<_> = words.collect();
        let due = engine.entries(index, &[partition], until, 2).await.unwrap();
        let order = EntryOrder::OldestFirst;
        let after = IndexRange { index, from: until, after: NAMES[1], until: i64::MAX, limit: 2, order };
        let after = engine.range(&after, &[partition]).await.unwrap();
        text += &format!(
            "{partition}: {cells:?}, {counts:?}, {words:?}, {entries:?}, due {due:?}, then {after:?}\n"
        );
    }
    for partitions in [vec![], (0..=PARTITIONS).collect()] {
        let due = engine.entries(index, &partitions, until, 3).await.unwrap();
        let sizes = engine.sizes(index, &partitions).await.unwrap();
        text += &format!("{partitions:?}: due {due:?}, {sizes:?}\n");
    }
    let all: Vec<u16> = (0..=PARTITIONS).collect();
    let orders =
        [(EntryOrder::NewestFirst, ""), (EntryOrder::OldestFirst, ""), (EntryOrder::OldestFirst, NAMES[2])];
    for (order, after) in orders {
        for (from, limit) in [(until - 9, 4), (i64::MIN, usize::MAX)] {
            let range = IndexRange { index, from, after, until, limit, order };
            // Engines put entries at one number in any order of partitions.
            let found = engine.range(&range, &all).await.unwrap();
            let found: Vec<_> = found.iter().map(|entry| (entry.at, &entry.name)).collect();
            text += &format!("{range:?}: {found:?}\n");
        }
    }
    let begins = ["", "d", "door:1", "lift:K", "\u{10ffff}"];
    let begins = all.iter().flat_map(|partition| begins.map(|begin| NameRange::of(*partition, begin)));
    let ranges: Vec<NameRange> = begins.collect();
    let names = engine.names(Index::Waiting, &ranges, 3).await.unwrap();
    let counts = engine.count_names(Index::Waiting, &ranges).await.unwrap();
    (format!("{text}{shown:?} {names:?} {counts:?}"), shown)
}

#[test]
fn cells_are_changed_and_found_alike_on_both_engines() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = Redis::start();
    let number = AtomicUsize::new(0);
    let mut runner = TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    let set = (0..=PARTITIONS, prop::collection::vec(part(), 1..7));
    let calls = prop::collection::vec((prop::collection::vec(set, 0..8), -10..40i64), 1..16);
    let tried = runner.run(&calls, |calls| {
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let number = number.fetch_add(1, Ordering::Relaxed);
            let ([redis, embedded], of) = (engines(&redis, number, &dir).await, TABLES[number % 2]);
            let mut shown = vec![vec![(None, None); NAMES.len()]; usize::from(PARTITIONS) + 1];
            for (n, (sets, until)) in calls.iter().enumerate() {
                let sets: Vec<ChangeSet> = sets.iter().map(|set| change_set(of, set, &shown)).collect();
                let written =
                    [redis.write_cells(&sets).await, embedded.write_cells(&sets).await].map(Result::unwrap);
                prop_assert_eq!(&written[0], &written[1], "call {}: {:?}", n, sets);
                let (text, now) = shows(&redis, of, *until).await;
                prop_assert_eq!(text, shows(&embedded, of, *until).await.0, "after call {}: {:?}", n, sets);
                shown = now;
            }
            Ok::<(), TestCaseError>(())
        })
    });
    tried.unwrap();
}
