//! Cells, indexes and change-sets.

use rollcall::store::{Cell, ChangeSet, Index, Table};

use super::ground::Ground;
use super::world::World;

fn cell(partition: u16, name: &str) -> Cell {
    Cell { table: Table::Flaps, partition, name: name.to_owned() }
}

fn put(partition: u16, name: &str, before: Option<&[u8]>, after: Option<&[u8]>) -> ChangeSet {
    ChangeSet::of(partition).has(Table::Flaps, name, before).put(Table::Flaps, name, after)
}

/// After a crash, a change-set is there in full or not at all.
pub async fn a_change_set_applies_in_full_if_all_that_it_expects_is_so<G: Ground>(mut world: World<G>) {
    let fleet = world.engine.partitions();
    for partition in [0, fleet] {
        let first = put(partition, "a", None, Some(b"1")).enter(Index::FlapChecks, "a", Some(7));
        assert_eq!(world.engine.write_cells(&[first]).await.unwrap(), [true]);
        // Each of these change-sets expects something false, beside something true.
        let late = [
            put(partition, "a", None, Some(b"2")),
            put(partition, "a", Some(b"2"), None),
            put(partition, "b", None, Some(b"2")).is_at(Index::FlapChecks, "a", Some(8)),
            put(partition, "b", None, Some(b"2")).is_at(Index::FlapChecks, "a", None),
            put(partition, "b", Some(b"1"), Some(b"2")).enter(Index::FlapChecks, "a", None),
        ];
        assert_eq!(world.engine.write_cells(&late).await.unwrap(), [false; 5], "partition {partition}");
        // Each of these change-sets sees the writes of the one before.
        let moved = put(partition, "b", None, Some(b"3")).is_at(Index::FlapChecks, "a", Some(7));
        let moved = moved.enter(Index::FlapChecks, "a", None).enter(Index::FlapChecks, "b", Some(-1));
        let sets = [moved, put(partition, "a", Some(b"1"), None), put(partition, "a", None, Some(b"\xff"))];
        assert_eq!(world.engine.write_cells(&sets).await.unwrap(), [true; 3], "partition {partition}");
    }
    world.crash().await;
    for partition in [0, fleet] {
        let read = world.engine.read_cells(&["a", "b", "c"].map(|name| cell(partition, name))).await.unwrap();
        assert_eq!(read, [Some(b"\xff".to_vec()), Some(b"3".to_vec()), None], "partition {partition}");
    }
    let entries = world.engine.entries(Index::FlapChecks, &[0, fleet], 0, 10).await.unwrap();
    let found: Vec<_> =
        entries.iter().map(|entry| (entry.at, entry.name.as_str(), entry.partition)).collect();
    assert_eq!(found, [(-1, "b", 0), (-1, "b", fleet)]);
}

/// Instances add to one cell at the same time, beside change-sets of their own, and no addition is lost.
pub async fn what_instances_add_to_a_cell_at_the_same_time_is_summed<G: Ground>(world: World<G>) {
    let (other, _) = world.another().await;
    let set = |name: String, more| {
        put(0, &name, None, Some(b"1")).add(Table::Flaps, "sum", more).add(Table::Flaps, "zero", 1)
    };
    // It is no number, and counts as zero.
    world.engine.write_cells(&[put(0, "sum", None, Some(b"{}"))]).await.unwrap();
    let sets: Vec<ChangeSet> = (0..1200).map(|n| set(format!("n{n}"), n)).collect();
    let (one, two) = tokio::join!(world.engine.write_cells(&sets[..800]), other.write_cells(&sets[400..]));
    // Each of the four hundred in the middle is written by one of them.
    assert_eq!(one.unwrap().into_iter().chain(two.unwrap()).filter(|written| *written).count(), 1200);
    world.engine.write_cells(&[ChangeSet::of(0).add(Table::Flaps, "zero", -1200)]).await.unwrap();
    let read = world.engine.read_cells(&["sum", "zero"].map(|name| cell(0, name))).await.unwrap();
    assert_eq!(read, [Some(b"719400".to_vec()), None]);
}

/// Two instances change one cell at the same time: in each pair, one change-set expects a value that is no longer
/// there.
pub async fn of_change_sets_that_expect_the_same_one_applies<G: Ground>(world: World<G>) {
    let (other, _) = world.another().await;
    let names: Vec<String> = (0..600).map(|n| format!("n{n}")).collect();
    let sets: Vec<ChangeSet> = names.iter().map(|name| put(0, name, None, Some(b"1"))).collect();
    let (one, two) = tokio::join!(world.engine.write_cells(&sets), other.write_cells(&sets));
    let both = one.unwrap().into_iter().zip(two.unwrap());
    assert!(both.map(|(one, two)| u8::from(one) + u8::from(two)).all(|written| written == 1));
    let (mut found, mut next) = (Vec::new(), None);
    loop {
        let page = world.engine.scan_cells(Table::Flaps, 0, next).await.unwrap();
        found.extend(page.cells.into_iter().map(|(name, _)| name));
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    let (mut expected, is_all) = (names.clone(), found.len());
    found.sort();
    expected.sort();
    found.dedup();
    assert_eq!((found, is_all >= 600), (expected, true));
}
