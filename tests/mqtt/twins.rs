//! Two instances of one fleet that have the same name, or the same client id.

use std::sync::atomic::Ordering;

use crate::support::facts::until;
use crate::support::redis::Redis;
use crate::unheard::{DETECTORS, Engine, WRITES, World};

async fn world() -> (World, impl Fn()) {
    let mut world = World::new(Engine::Redis(Redis::start()));
    world.rules(&[WRITES, "topic read units/#\n"]);
    let dies = world.fleet();
    (world, move || dies.store(true, Ordering::Relaxed))
}

/// The second process has a copy of the configuration of the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_name_is_in_use_is_an_instance_of_its_own_and_each_silence_is_told_once() {
    let (world, die) = world().await;
    let kinds = format!("[instance]\nname = \"one\"\n{DETECTORS}");
    let one = world.serve("first", &kinds);
    one.is_ready().await;
    let two = world.serve("second", &kinds);
    two.is_ready().await;
    assert!(two.readyz(200, &["instance_name_taken", "runs as instance one"]).await);
    until("both are in the roster", async || one.readyz(200, &["\"one-"]).await).await;
    assert!(!one.readyz(200, &["instance_name_taken"]).await);
    for instance in [&one, &two] {
        assert!(instance.check().contains("instance.name of its own"), "{}", instance.check());
    }
    one.knows("detector/dies").await;
    let owned = "rollcall_partitions_owned";
    until("each partition has one owner", async || one.metric(owned).await + two.metric(owned).await == 16.0)
        .await;
    die();
    until("the dead unit is reported", async || !one.offline().await.is_empty()).await;
    for instance in [&one, &two] {
        instance.hears_on(40.0).await;
        assert_eq!(instance.offline().await, ["dies"]);
        assert_eq!(
            instance.metric("rollcall_mqtt_connections_lost_total").await,
            0.0,
            "each has a client id"
        );
    }
    drop(two);
    // The instance was killed, and starts again while its lease is valid: the name is its own.
    drop(one);
    let one = world.serve("first", &kinds);
    one.is_ready().await;
    until("it is alone", async || one.readyz(200, &["\"instances\":[\"one\"]"]).await).await;
    assert!(!one.readyz(200, &["instance_name_taken"]).await);
    assert_eq!(one.offline().await, ["dies"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_with_one_client_id_name_it_and_mark_no_living_unit_offline() {
    let (world, die) = world().await;
    let named = |name: &str| format!("[instance]\nname = \"{name}\"\n{DETECTORS}");
    let start =
        |name: &str| crate::unheard::Rollcall::start(&world, name, &named(name), "client_id = \"me\"");
    let one = start("one");
    one.is_ready().await;
    one.knows("detector/alive-19").await;
    let two = start("two");
    for instance in [&one, &two] {
        until("it says so", async || instance.readyz(503, &["client_id_shared", "client_id_taken"]).await)
            .await;
        let said = instance.check();
        assert!(said.contains("the same client id at the same broker"), "{said}");
    }
    assert_eq!(one.offline().await, Vec::<String>::new());
    drop(two);
    die();
    until("the dead unit is reported", async || !one.offline().await.is_empty()).await;
    assert_eq!(one.offline().await, ["dies"]);
}
