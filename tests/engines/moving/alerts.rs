//! States that decide after a migration which receivers are notified, and when: receivers that take nothing, and
//! sources of inhibition.

use super::*;
use rollcall::fleet::Inhibitions;
use rollcall::routing::{InhibitRule, Inhibition, parse_matchers};
use rollcall::store::{StoredDeliveries, StoredGroups};

fn silence(name: &str) -> OutboxEvent {
    OutboxEvent::Record(OfflineRecord::open(format!("detector:{name}").parse().unwrap(), BEGIN, BEGIN, BEGIN))
}

/// Notifications of one silence each, for that receiver, in that group.
async fn seal<E: Engine + 'static>(engine: &Arc<E>, receiver: &str, names: &[&str], of: &str) {
    let to = Destinations::all(Pace::AT_ONCE, &[receiver.to_owned()]);
    let partitions: Vec<u16> = (0..engine.partitions()).collect();
    for name in names {
        StoredGroups::new(engine.clone())
            .join(&joins(&[silence(name)], &group(of)), &to, &Capacity::NONE, hours(1))
            .await
            .unwrap();
        StoredGroups::new(engine.clone()).seal(&partitions, &to, hours(1)).await.unwrap();
    }
}

/// Delivers what waits for a receiver. Answers the units, in the order of the groups.
async fn delivered(engine: Arc<dyn Engine>, receiver: &str, now: Timestamp) -> Vec<String> {
    let partitions: Vec<u16> = (0..engine.partitions()).collect();
    let mut units = Vec::new();
    loop {
        let mut leased = StoredDeliveries::new(engine.clone())
            .lease(&partitions, receiver, now, now + MINUTE, 100)
            .await
            .unwrap();
        if leased.is_empty() {
            return units;
        }
        leased.sort_by(|a, b| a.group.key.cmp(&b.group.key));
        StoredDeliveries::new(engine.clone()).delivered(&leased, now).await.unwrap();
        let records = leased.iter().flat_map(|delivery| &delivery.offline);
        units.extend(records.map(|record| record.unit.as_str().to_owned()));
    }
}

/// The fallback of "hook" gets what waits. Answers how many notifications.
async fn fall_back(engine: Arc<dyn Engine>, since: Timestamp, now: Timestamp) -> usize {
    let partitions: Vec<u16> = (0..engine.partitions()).collect();
    let meant_for = MeantFor { receiver: "hook".to_owned(), since };
    StoredDeliveries::new(engine.clone()).fall_back(&partitions, &meant_for, "spare", now).await.unwrap()
}

#[tokio::test]
async fn after_a_migration_a_receiver_is_down_since_the_same_moment_and_its_fallback_gets_nothing_twice() {
    let places = Places::new();
    let here = places.open("here").await;
    roll(here.clone()).await.canary_returned(BEGIN).await.unwrap();
    seal(&here, "hook", &["a", "b"], "one").await;
    seal(&here, "hook", &["c"], "two").await;
    let since = StoredDeliveries::new(here.clone()).down_since("hook", hours(1)).await.unwrap();
    assert_eq!((since, fall_back(here.clone(), since, hours(2)).await), (hours(1), 3));
    assert_eq!(delivered(here.clone(), "spare", hours(3)).await, ["a", "c", "b"]);
    // This one waits, and the fallback has not got it.
    seal(&here, "hook", &["d"], "one").await;

    carry(&*here, &places.to_redis().await.unwrap()).await;
    let there = places.connect().await.unwrap();
    assert_eq!(StoredDeliveries::new(there.clone()).down_since("hook", hours(4)).await.unwrap(), since);
    assert_eq!(fall_back(there.clone(), since, hours(4)).await, 1);
    assert_eq!(delivered(there.clone(), "spare", hours(4)).await, ["d"]);
    seal(&there, "hook", &["e"], "two").await;

    carry(&*there, &places.to_directory("back").await.unwrap()).await;
    let back = places.open("back").await;
    assert_eq!(StoredDeliveries::new(back.clone()).down_since("hook", hours(5)).await.unwrap(), since);
    assert_eq!(fall_back(back.clone(), since, hours(5)).await, 1);
    assert_eq!(delivered(back.clone(), "spare", hours(5)).await, ["e"]);
    assert_eq!(delivered(back.clone(), "hook", hours(6)).await, ["a", "c", "b", "e", "d"]);
    assert_eq!(fall_back(back.clone(), since, hours(7)).await, 0);
}

#[tokio::test]
async fn after_a_migration_targets_are_held_while_a_source_that_is_back_owes_them_time() {
    let places = Places::new();
    let inhibitions = |engine: Arc<dyn Engine>| {
        let [source, target] = ["unit=gate", "unit=~\".+\""].map(|text| parse_matchers(text).unwrap());
        let rules = [InhibitRule { source, target, equal: Vec::new() }].into();
        Inhibitions::new(engine, Inhibition { rules, longest: 3 * HOUR }, telemetry())
    };
    let sensor =
        OfflineRecord::open("detector:sensor".parse().unwrap(), BEGIN, BEGIN + 2 * HOUR, BEGIN + 2 * HOUR);
    let held = async |engine: Arc<dyn Engine>, now| {
        let inhibitions = inhibitions(engine.clone());
        // As at the start of an instance.
        inhibitions.compare(&*engine, now).await.unwrap();
        inhibitions.current().await.unwrap().held(&sensor, now).map(|held| held.until)
    };
    let here = places.open("here").await;
    roll(here.clone()).await.canary_returned(BEGIN).await.unwrap();
    let OutboxEvent::Record(gate) = silence("gate") else { unreachable!() };
    let gate = OfflineRecord { back_at: Some(hours(3)), closed_by: Some(Closing::Return), ..gate };
    inhibitions(here.clone()).enter([&gate].into_iter(), hours(3)).await.unwrap();
    assert_eq!(held(here.clone(), hours(4)).await, Some(hours(5)));

    carry(&*here, &places.to_redis().await.unwrap()).await;
    let there = places.connect().await.unwrap();
    assert_eq!(held(there.clone(), hours(4)).await, Some(hours(5)));
    carry(&*there, &places.to_directory("back").await.unwrap()).await;
    let back = places.open("back").await;
    assert_eq!(held(back.clone(), hours(4)).await, Some(hours(5)));
    assert_eq!(held(back, hours(5)).await, None);
}

/// Alert silences, sources of inhibition, the last trip of the breaker, rate limits with their digests, and others.
#[tokio::test]
async fn what_instances_share_is_the_same_after_a_migration_and_changes_from_there() {
    let places = Places::new();
    let all: Vec<Table> = Table::all(&[]).filter(|table| table.partition("one", 1) == 1).collect();
    let cells = async |engine: &dyn Engine| {
        let mut found = Vec::new();
        for table in all.clone() {
            let mut cells = engine.scan_cells(table, engine.partitions(), None).await.unwrap().cells;
            cells.sort();
            found.push(cells);
        }
        let audited = engine.entries(Index::Audited, &[engine.partitions()], i64::MAX, 10).await.unwrap();
        (found, audited)
    };
    let put = async |engine: &dyn Engine, table: Table, name: &str| {
        let value = format!(r#"{{"of":"{}"}}"#, table.as_str());
        let set = ChangeSet::of(engine.partitions()).has(table, name, None);
        let set = set.put(table, name, Some(value.as_bytes())).enter(Index::Audited, name, Some(7));
        assert_eq!(engine.write_cells(&[set]).await.unwrap(), [true]);
    };
    let here = places.open("here").await;
    roll(here.clone()).await.canary_returned(BEGIN).await.unwrap();
    for table in all.clone() {
        put(&*here, table, "one").await;
        put(&*here, table, "two").await;
    }
    let before = cells(&*here).await;
    assert!(before.0.iter().all(|cells| cells.len() == 2), "{before:?}");
    assert_eq!(before.1.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    carry(&*here, &places.to_redis().await.unwrap()).await;
    let there = places.connect().await.unwrap();
    assert_eq!(cells(&*there).await, before);
    carry(&*there, &places.to_directory("back").await.unwrap()).await;
    let back = places.open("back").await;
    assert_eq!(cells(&*back).await, before);
    for engine in [there as Arc<dyn Engine>, back] {
        put(&*engine, Table::Sources, "three").await;
    }
}
