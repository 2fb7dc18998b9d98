//! Sorted lists, page by page.

use super::*;

pub const ORDERS: [ListOrder; 6] = [
    ListOrder::State,
    ListOrder::Unit,
    ListOrder::LastSeen,
    ListOrder::NewestSeen,
    ListOrder::OfflineSince,
    ListOrder::NewestOffline,
];

fn snapshot(number: usize, lifecycle: usize, seen: u64) -> Snapshot {
    lifecycle_of(present(unit(number), at(seen)), lifecycle)
}

/// The unit in another lifecycle: 0 is present, 1 never seen, 2 offline, 3 offline without ever having been heard.
pub fn lifecycle_of(mut snapshot: Snapshot, lifecycle: usize) -> Snapshot {
    let facts = snapshot.facts.as_mut().unwrap();
    facts.lifecycle = match lifecycle {
        0 => Lifecycle::Present,
        1 => Lifecycle::NeverSeen,
        _ => {
            let cause = if lifecycle == 2 { Cause::Silence } else { Cause::NeverSeen };
            Lifecycle::Offline(Silence {
                deadline: facts.last_seen + 120 * SECOND,
                detected_at: facts.last_seen + 121 * SECOND,
                cause,
                allowed: 120 * SECOND,
            })
        }
    };
    if lifecycle > 0 {
        snapshot.alive = None;
    }
    snapshot
}

fn mirror_of(snapshots: &[Snapshot]) -> Mirror {
    let mirror = Mirror::new(rules(), 3);
    for seen in snapshots {
        mirror.compare(mirror.mark(partition_of(&seen.unit, 3)), std::slice::from_ref(seen));
    }
    mirror
}

/// All pages of a list.
fn pages(mirror: &Mirror, query: &ListQuery, hearing: &Hearing, now: Timestamp) -> Vec<ListedUnit> {
    let (mut all, mut query) = (Vec::new(), query.clone());
    loop {
        let page = mirror.list(&query, hearing, now);
        assert!(page.len() <= query.limit);
        let is_last = page.len() < query.limit;
        query.after = page.last().map(|last| last.key(query.order)).or(query.after);
        all.extend(page);
        if is_last {
            return all;
        }
    }
}

proptest! {
    #[test]
    fn the_pages_of_a_list_are_those_of_a_plain_sort_of_all_units_that_it_selects(
        units in prop::collection::vec((0..4_usize, 0..300_u64), 0..60),
        limit in 1..20_usize,
        states in prop::sample::subsequence(State::ALL.to_vec(), 0..4),
        first in prop::option::of(0..10_u8),
        digit in prop::option::of(0..10_u8),
        silent in prop::option::of(0..300_u64),
        order in 0..ORDERS.len(),
    ) {
        let snapshots: Vec<Snapshot> =
            units.iter().enumerate().map(|(number, (lifecycle, seen))| snapshot(number, *lifecycle, *seen)).collect();
        let mirror = mirror_of(&snapshots);
        let (hearing, now, order) = (Hearing { heard: Some(at(300)), ..Hearing::default() }, at(300), ORDERS[order]);
        let query = ListQuery {
            states: states.clone(),
            prefix: first.map(|first| format!("unit {first}")).unwrap_or_default(),
            contains: digit.map(|digit| digit.to_string()).unwrap_or_default(),
            silent_longer: silent.map(seconds),
            order,
            limit,
            ..ListQuery::default()
        };
        let expected = units.iter().zip(&snapshots).filter_map(|((lifecycle, seen), snapshot)| {
            let state = presence::state(snapshot, rules().values().next().unwrap(), &hearing, now).unwrap();
            let (kind, unit) = (snapshot.unit.kind.clone(), snapshot.unit.id.clone());
            let id = unit.as_str();
            let is_selected = (states.is_empty() || states.contains(&state))
                && id.starts_with(&query.prefix)
                && id.contains(&query.contains)
                && silent.is_none_or(|silent| at(*seen) < now - seconds(silent));
            let last_seen = [0, 2].contains(lifecycle).then_some(at(*seen));
            let offline_since = (*lifecycle >= 2).then_some(at(seen + 120));
            is_selected.then_some(ListedUnit { kind, unit, state, last_seen, offline_since })
        });
        let mut expected: Vec<ListedUnit> = expected.collect();
        expected.sort_by_key(|unit| unit.key(order));
        prop_assert_eq!(pages(&mirror, &query, &hearing, now), expected);
    }
}

#[test]
fn what_needs_an_operator_is_first_and_the_newest_of_it() {
    let hearing = Hearing { heard: Some(at(300)), ..Hearing::default() };
    let mirror = mirror_of(&[
        snapshot(1, 0, 300),
        snapshot(2, 2, 10),
        snapshot(3, 1, 290),
        snapshot(4, 2, 20),
        snapshot(5, 0, 190),
    ]);
    let list = |order, limit| {
        let query = ListQuery { order, limit, ..ListQuery::default() };
        let listed = mirror.list(&query, &hearing, at(300));
        listed
            .iter()
            .map(|unit| unit.unit.as_str().trim_start_matches("unit ").to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(list(ListOrder::State, 9), "4 2 5 3 1");
    assert_eq!(list(ListOrder::State, 1), "4");
    assert_eq!(list(ListOrder::OfflineSince, 9), "2 4 1 3 5");
    assert_eq!(list(ListOrder::LastSeen, 9), "2 4 5 1 3");
    assert_eq!(list(ListOrder::NewestSeen, 2), "1 5");
}

#[test]
fn a_list_is_selected_by_the_begin_of_ids_and_by_a_part_of_them() {
    let mirror = mirror_of(&[snapshot(7, 0, 1), snapshot(17, 0, 1), snapshot(71, 0, 1)]);
    let count = |prefix: &str, contains: &str| {
        let (prefix, contains) = (prefix.to_owned(), contains.to_owned());
        let query = ListQuery { prefix, contains, limit: 9, ..ListQuery::default() };
        mirror.list(&query, &Hearing::default(), at(2)).len()
    };
    let cases = [
        ("", "", 3),
        ("unit 7", "", 2),
        ("", "7", 3),
        ("", "17", 1),
        ("unit 1", "1", 1),
        ("7", "", 0),
        ("", "ü", 0),
    ];
    for (prefix, contains, expected) in cases {
        assert_eq!(count(prefix, contains), expected, "{prefix:?} {contains:?}");
    }
}

#[test]
fn a_part_is_found_within_an_id_and_not_across_two_that_lie_side_by_side() {
    let snapshots: Vec<Snapshot> = (0..1500).map(|number| snapshot(number, 0, 1)).collect();
    let mirror = mirror_of(&snapshots);
    for part in ["1u", "9unit", "t 1", "00", "123", "1499", "unit 77"] {
        let query = ListQuery { contains: part.to_owned(), limit: 2000, ..ListQuery::default() };
        let listed = mirror.list(&query, &Hearing::default(), at(2));
        let expected = snapshots.iter().filter(|seen| seen.unit.id.as_str().contains(part)).count();
        assert_eq!(listed.len(), expected, "{part:?}");
        assert!(listed.iter().all(|unit| unit.unit.as_str().contains(part)), "{part:?}");
    }
}
