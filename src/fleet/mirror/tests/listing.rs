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
