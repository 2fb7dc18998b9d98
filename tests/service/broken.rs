//! Unreadable values in the engine of a running service: other units are notified, and `/readyz` warns.

use std::time::Duration;

use redis::cmd;
use rusqlite::Connection;

use crate::world::{World, units};

const TWO_SECONDS: &str = "kind = [{ name = \"detector\", timeout = \"2s\" }]";

/// Waits until `/readyz` warns of an unreadable value, with 200, and all units but the first are notified.
async fn the_others_are_notified(world: &World, count: usize) {
    world
        .eventually("readyz warns of it", async || {
            let ready = world.json("/readyz").await.to_string();
            ready.contains("unreadable_values") && world.status("/readyz").await == 200
        })
        .await;
    let notified = async || {
        let notified = world.hook.received().into_iter().flat_map(|hit| {
            let notified = hit.json();
            notified["data"]["offline"].as_array().cloned().unwrap_or_default()
        });
        let mut notified: Vec<String> =
            notified.map(|record| record["unit"].as_str().unwrap().to_owned()).collect();
        notified.sort();
        notified
    };
    world.eventually("the others are notified", async || notified().await == units(count)[1..]).await;
    assert_eq!(world.records().await.len(), count - 1);
    assert_eq!(world.status("/readyz").await, 200);
    let metrics = world.text_of("/metrics").await;
    assert!(metrics.contains("rollcall_unreadable_values{what=\"facts\"} 1\n"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn readyz_warns_of_facts_that_cannot_be_read_in_redis() {
    let world = World::new(TWO_SECONDS, &[]).await;
    world.beat(&units(5)).await;
    world.eventually("they are known", async || world.state("unit-004").await == "online").await;
    let pages: Vec<String> = world.ask(cmd("KEYS").arg("*:facts:*")).await;
    for page in pages {
        let name = "detector:unit-000";
        if world.ask::<bool>(cmd("HEXISTS").arg(&page).arg(name)).await {
            world.ask::<u8>(cmd("HSET").arg(&page).arg(name).arg("garbage{")).await;
            // Without its expiry key, the unit was not heard lately, so it is checked.
            let key = page.split(":facts").next().unwrap().to_owned() + ":alive:" + name;
            world.ask::<u8>(cmd("DEL").arg(key)).await;
        }
    }
    the_others_are_notified(&world, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readyz_warns_of_facts_that_cannot_be_read_in_a_directory() {
    let options = format!("{TWO_SECONDS}\nengine.type = \"embedded\"\nengine.path = \"{{dir}}/fleet\"");
    let mut world = World::new(&options, &[]).await;
    world.beat(&units(5)).await;
    world.eventually("they are known", async || world.state("unit-004").await == "online").await;
    world.stop().await;
    let database = Connection::open(world.dir.path().join("fleet/rollcall.db")).unwrap();
    let update = "UPDATE units SET facts = 'garbage{', alive = NULL WHERE name = 'detector:unit-000'";
    assert_eq!(database.execute(update, []).unwrap(), 1);
    drop(database);
    world.start().await;
    the_others_are_notified(&world, 5).await;
}

/// A sweep whose records are refused fails, and no other loop may hide that.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_may_not_write_records_is_never_ready_until_it_may_again() {
    let user = ["--user", "roll", "on", ">secret", "~*", "&*", "+@all"];
    let world = World::new(&format!("{TWO_SECONDS}\n# user roll"), &user).await;
    world.beat(&units(5)).await;
    world.eventually("they are known", async || world.state("unit-004").await == "online").await;
    world.ask::<String>(cmd("ACL").arg("SETUSER").arg("roll").arg("-xadd")).await;
    world.eventually("it is not ready", async || world.status("/readyz").await == 503).await;
    let mut every = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..60 {
        every.tick().await;
        let ready = world.text_of("/readyz").await;
        assert_eq!(world.status("/readyz").await, 503, "{ready}");
    }
    let ready = world.text_of("/readyz").await;
    assert!(ready.contains("xadd") || ready.contains("XADD"), "it says what is missing: {ready}");
    assert_eq!(world.records().await, Vec::<serde_json::Value>::new());
    world.ask::<String>(cmd("ACL").arg("SETUSER").arg("roll").arg("+xadd")).await;
    world.eventually("it is ready by itself", async || world.status("/readyz").await == 200).await;
    world.eventually("all are recorded", async || world.records().await.len() == 5).await;
    let notified = async || {
        let notified = world.hook.received();
        notified.iter().map(|hit| hit.json()["data"]["offline"].as_array().map_or(0, Vec::len)).sum::<usize>()
    };
    world.eventually("all are notified", async || notified().await == 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_roster_entry_of_the_far_future_leaves_no_partition_without_a_sweep() {
    let mut world = World::new(&format!("{TWO_SECONDS}\ninstance.name = \"stays\""), &[]).await;
    let (stop, another) = world.start_another();
    let two = async |world: &World| {
        let ready = world.json("/readyz").await;
        ready["instances"].as_array().is_some_and(|names| names.len() == 2)
    };
    world.eventually("both are there", async || two(&world).await).await;
    let roster = "rollcall:{hearing}:roster";
    world.ask::<u8>(cmd("ZADD").arg(roster).arg(4_102_444_800_000i64).arg("ghost")).await;
    world.beat(&units(60)).await;
    world.eventually("all silences are recorded", async || world.records().await.len() == 60).await;
    let notified = async || {
        let notified = world.hook.received();
        notified.iter().map(|hit| hit.json()["data"]["offline"].as_array().map_or(0, Vec::len)).sum::<usize>()
            == 60
    };
    world.eventually("all silences are notified", notified).await;
    let gone = async || world.ask::<Option<f64>>(cmd("ZSCORE").arg(roster).arg("ghost")).await.is_none();
    world.eventually("the entry is gone", gone).await;
    let ready = world.json("/readyz").await.to_string();
    assert!(!ready.contains("ghost") || ready.contains("unreadable_values"), "{ready}");
    stop.cancel();
    another.await.unwrap().unwrap();
    world.stop().await;
}
