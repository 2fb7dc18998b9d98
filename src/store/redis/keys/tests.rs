//! The names of keys, with both forms of tags.

use super::*;
use crate::store::ReceiverName;

const BOTH: [HashTags; 2] = [HashTags::Plain, HashTags::Spread];

#[test]
fn a_unit_is_found_again_from_its_expiry_key_and_from_no_other() {
    let unit: Unit = "detector:a}:alive:b".parse().unwrap();
    for keys in BOTH.map(|tags| Keys::new("rollcall", 16, tags)) {
        let key = keys.alive(&unit);
        assert_eq!(keys.unit_of_alive(&key), Some(unit.clone()));
        let mut written = "of another".to_owned();
        keys.begin_alive(keys.partition(&unit), &mut written);
        unit.write_into(&mut written);
        assert_eq!(written, key);
        let other_partition = key.replacen("{p", "{p9", 1);
        for other in [key.replacen("rollcall", "other", 1), other_partition, "x".into()] {
            assert_eq!(keys.unit_of_alive(&other), None, "{other}");
        }
    }
    let [plain, spread] = BOTH.map(|tags| Keys::new("rollcall", 16, tags).alive(&unit));
    assert_ne!(plain, spread);
    assert_eq!(Keys::new("rollcall", 16, HashTags::Plain).unit_of_alive(&spread), None);
}

#[test]
fn all_keys_of_a_partition_have_its_tag_and_their_rule_is_found() {
    for keys in BOTH.map(|tags| Keys::new("a:b", 3, tags)) {
        for partition in 0..3 {
            let tag = format!("{{{}}}", keys.tags().tag(partition, 3));
            let begin = format!("a:b:{tag}:");
            assert_eq!(keys.begin(partition), begin);
            let lane = keys.cells(partition, Table::Lanes(ReceiverName::of("hook")));
            assert_eq!(lane, format!("{begin}cells:lanes:hook"));
            assert_eq!(keys.facts_page(partition, 7), format!("{begin}facts:7"));
            assert_eq!(keys.data_page(partition, "level", 7), format!("{begin}data:level:7"));
            assert_eq!(keys.outbox(partition), format!("{begin}outbox"));
            assert_eq!(keys.unreadable_of(&lane), format!("{begin}unreadable"));
            assert_eq!(keys.sort(&lane).map(|rule| rule.name), Some("cells"));
        }
        assert_eq!(keys.outbox(3), "a:b:{hearing}:outbox");
        assert!(keys.one_of_each().iter().skip(1).all(|key| keys.sort(key).is_some()));
    }
}

#[test]
fn units_spread_evenly_over_partitions_and_pages() {
    let keys = Keys::new("rollcall", 16, HashTags::Plain);
    let mut pages = std::collections::HashMap::<String, u32>::new();
    for n in 0..160_000 {
        let unit: Unit = format!("detector:unit-{n:06}").parse().unwrap();
        let (partition, page) = keys.page_id(&unit);
        assert_eq!(partition, keys.partition(&unit));
        *pages.entry(keys.facts_page(partition, page)).or_default() += 1;
    }
    // About ten units to a page. Redis packs up to 128 fields of a hash.
    assert!(pages.len() > 16_000, "only {} pages are used", pages.len());
    let fullest = pages.values().max();
    assert!(fullest <= Some(&30), "{fullest:?} units on one page");
}

#[test]
fn the_pages_for_operators_name_every_table_and_index() {
    let any = [ReceiverName::of("any")];
    let tables = Table::all(&any).map(|table| (":cells:<", table.as_str()));
    let indexes = Index::all(&any).map(|index| (":index:<", index.as_str()));
    let pages = [include_str!("../keys.rs"), include_str!("../../../../docs/broken-values.md")];
    for (key, name) in tables.chain(indexes) {
        let is_named =
            |page: &&str| page.lines().any(|row| row.contains(key) && row.contains(&format!("`{name}`")));
        let named = pages.iter().filter(|page| is_named(page)).count();
        assert_eq!(named, 2, "{name} stands in the row {key} of keys.rs and of docs/broken-values.md");
    }
}

#[test]
fn a_key_of_cells_has_the_word_of_its_table() {
    let keys = Keys::new("a:b", 3, HashTags::Plain);
    let hook = ReceiverName::of("hook");
    for (key, what) in [
        (keys.cells(3, Table::Silences), Stored::AlertSilence),
        (keys.cells(1, Table::DeadLetters(hook)), Stored::DeadLetter),
        (keys.cell(1, Table::Timers, "a"), Stored::Timer),
        (keys.index(1, Index::Queue(hook)), Stored::Delivery),
        (keys.index(1, Index::Noted), Stored::Notes),
        (keys.in_partition(1, "cells:of_another_program"), Stored::Other),
        (keys.facts_page(1, 7), Stored::Facts),
        ("a:b:x".to_owned(), Stored::Other),
    ] {
        assert_eq!(keys.what(&key), what, "{key}");
    }
}
