//! The whole service over real servers. Times are short and real: every wait is for a fact.

mod alertmanager;
mod announcements;
mod archive;
mod breaker;
mod broken;
mod broker_faults;
mod brokers;
mod browser;
mod certificate;
mod cli;
mod deliveries;
mod demo;
mod distance;
mod edges;
mod fleet_world;
mod http;
mod identity;
mod members;
mod operators;
mod outage;
mod quiet;
mod reload;
mod rhythm;
mod route_times;
mod scrape;
mod silences;
mod sparkplug;
mod states;
#[path = "../support/mod.rs"]
mod support;
mod timers;
mod world;

use redis::cmd;
use world::{MAX_WAIT, World, units};

const ONE_SECOND: &str = "kind = [{ name = \"detector\", timeout = \"1s\" }]";

#[tokio::test(flavor = "multi_thread")]
async fn a_silence_is_one_record_and_one_notification_to_each_receiver_and_so_is_the_return() {
    let mut world = World::new(ONE_SECOND, &[]).await;
    let unit = units(1);
    world.beat(&unit).await;
    world.eventually("the unit is online", async || world.state("unit-000").await == "online").await;
    let key: String = world.ask::<Vec<String>>(cmd("KEYS").arg("*:alive:*")).await.remove(0);
    assert!(key.ends_with(":alive:detector:unit-000"), "{key}");

    let notified = world.hook.wait_for(1, MAX_WAIT).await.unwrap().remove(0).json();
    assert_eq!(notified["type"], "rollcall.notification");
    let record = &notified["data"]["offline"][0];
    assert_eq!((&record["unit"], &record["cause"]), (&"unit-000".into(), &"silence".into()));
    assert_eq!(world.state("unit-000").await, "offline");
    assert_eq!(world.ask::<u8>(cmd("EXISTS").arg(&key)).await, 0);
    let page = world.text_of("/metrics/units").await;
    assert!(page.contains("rollcall_unit_up{kind=\"detector\",unit=\"unit-000\"} 0\n"), "{page}");

    // The unit is heard before its next silence: its return is notified once, with the same id.
    world.beat(&unit).await;
    let notified = world.hook.wait_for(2, MAX_WAIT).await.unwrap().remove(1).json();
    assert_eq!(notified["data"]["online"][0]["id"], record["id"]);
    assert_eq!(notified["data"]["online"][0]["closed_by"], "return");

    // Then the unit is silent permanently, with another record.
    let notified = world.hook.wait_for(3, MAX_WAIT).await.unwrap().remove(2).json();
    assert_ne!(notified["data"]["offline"][0]["id"], record["id"]);
    let mails = world.mail.wait_for(3, MAX_WAIT).await.unwrap();
    assert!(mails[0].header("Subject").unwrap().starts_with("OFFLINE"));
    assert!(mails[1].header("Subject").unwrap().starts_with("BACK"));
    assert_eq!(world.records().await.len(), 2);
    world.stop().await;
    assert_eq!((world.hook.received().len(), world.mail.mails().len()), (3, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_every_hint_lost_ticks_alone_find_every_silence() {
    // This server refuses changes of its settings, and publishes no events.
    let redis = ["--notify-keyspace-events", "", "--rename-command", "CONFIG", ""];
    let options = format!("{ONE_SECOND}\nexpiry.hints = false");
    let world = World::new(&options, &redis).await;
    let all = units(100);
    world.beat(&all).await;
    world.eventually("every silence is recorded", async || world.records().await.len() == 100).await;
    assert_eq!(world.checks("notification").await, 0);
    let ready = world.text_of("/readyz").await;
    assert!(ready.contains("notifications_off"), "{ready}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_sweep_held_off_hints_alone_find_every_silence() {
    let options = format!("{ONE_SECOND}\nexpiry.sweep = false");
    let world = World::new(&options, &[]).await;
    world.beat(&units(100)).await;
    world.eventually("every silence is recorded", async || world.records().await.len() == 100).await;
    assert_eq!(world.checks("sweep").await, 0);
    let page = world.text_of("/metrics").await;
    assert!(!page.contains("rollcall_sweeps_total"), "nothing is to look stalled that is off: {page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keyspace_events_that_were_switched_off_are_switched_on_again() {
    let world = World::new(ONE_SECOND, &["--notify-keyspace-events", "Kg"]).await;
    let flags: Vec<String> = world.ask(cmd("CONFIG").arg("GET").arg("notify-keyspace-events")).await;
    assert!(flags[1].contains('E') && flags[1].contains('x'), "{flags:?}");
    assert!(flags[1].contains('K') && flags[1].contains('g'), "what others wanted stays: {flags:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_in_which_rollcall_was_stopped_is_blind_and_notified() {
    let mut world = World::new("", &[]).await;
    world.beat(&units(1)).await;
    world.eventually("the unit is online", async || world.state("unit-000").await == "online").await;
    let before = world.json("/api/v1/units/detector/unit-000").await;
    world.stop().await;
    // The state is as if the service had been stopped an hour ago: only `heard` shows that.
    let heard = "rollcall:{hearing}:heard";
    let at: i64 = world.ask(cmd("HGET").arg(heard).arg("at")).await;
    world.ask::<u8>(cmd("HSET").arg(heard).arg("at").arg(at - 3_600_000)).await;
    world.start().await;
    let notified = world.hook.wait_for(1, MAX_WAIT).await.unwrap().remove(0).json();
    assert_eq!(notified["type"], "rollcall.blind");
    let seconds = notified["data"]["intervals"][0]["seconds"].as_f64().unwrap();
    assert!((3600.0..3700.0).contains(&seconds), "{notified}");
    let after = world.json("/api/v1/units/detector/unit-000").await;
    assert_eq!(before["last_seen"], after["last_seen"]);
    assert!(before["deadline"].as_str() < after["deadline"].as_str(), "{before} {after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_broker_marks_no_unit_offline() {
    let options = "kind = [{ name = \"detector\", timeout = \"3s\" }]";
    let mut world = World::new(options, &[]).await;
    let unit = units(1);
    world.beat(&unit).await;
    // The broker takes a heartbeat before Rollcall has it.
    world.eventually("the unit is online", async || world.state("unit-000").await == "online").await;
    world.broker.kill();
    // The unit's deadline has passed, which Rollcall cannot know.
    world.eventually("the state is unknown", async || world.state("unit-000").await == "unknown").await;
    let ready = world.text_of("/readyz").await;
    assert!(ready.contains("mqtt_disconnected") && ready.contains("not_hearing"), "{ready}");
    world.restart_broker();
    world
        .eventually("it hears again", async || !world.text_of("/readyz").await.contains("not_hearing"))
        .await;
    world.beat(&unit).await;
    world.eventually("the unit is online", async || world.state("unit-000").await == "online").await;
    assert_eq!(world.records().await, Vec::<serde_json::Value>::new());
    // A real silence is noticed.
    world.hook.wait_for(1, MAX_WAIT).await.unwrap();
    assert_eq!(world.records().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_engine_is_frozen_or_gone_page_api_and_gauge_say_that_rollcall_is_blind() {
    let mut world = World::new("", &[]).await;
    let is_blind = async |world: &World, wanted: bool| {
        let gauge = format!("rollcall_blind {}\n", u8::from(wanted));
        world.text_of("/metrics").await.contains(&gauge)
            && world.json("/api/v1/summary").await["hearing"]["blind"] == wanted
            && world.text_of("/").await.contains("Rollcall is blind. ") == wanted
    };
    world.eventually("it hears", async || is_blind(&world, false).await).await;
    support::redis::signal(&world.redis, "-STOP");
    world.eventually("it is blind without an answer", async || is_blind(&world, true).await).await;
    support::redis::signal(&world.redis, "-CONT");
    world.eventually("it hears again", async || is_blind(&world, false).await).await;
    world.redis.kill();
    world.eventually("it is blind without an engine", async || is_blind(&world, true).await).await;
    world.restart_redis();
    world.eventually("it hears again", async || is_blind(&world, false).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_starts_takes_partitions_and_one_that_stops_gives_them_back() {
    let mut world = World::new("instance.name = \"stays\"", &[]).await;
    let sees = async |world: &World, instances: usize| {
        let ready = world.json("/readyz").await;
        let names = ready["instances"].as_array().unwrap();
        assert!(names.contains(&"stays".into()), "{ready}");
        (names.len() == instances).then(|| ready["partitions"].as_array().unwrap().len())
    };
    assert_eq!(sees(&world, 1).await, Some(16));
    // Two instances share the fleet; their names and partitions differ.
    let (stop, another) = world.start_another();
    world.eventually("both are there", async || sees(&world, 2).await.is_some_and(|own| own < 16)).await;
    let page = world.text_of("/metrics").await;
    assert!(page.contains("rollcall_instances 2\n"), "{page}");
    stop.cancel();
    another.await.unwrap().unwrap();
    world.eventually("it has everything again", async || sees(&world, 1).await == Some(16)).await;
    world.stop().await;
    let left: Vec<String> = world.ask(cmd("ZRANGE").arg("rollcall:{hearing}:roster").arg(0).arg(-1)).await;
    assert_eq!(left, Vec::<String>::new(), "an orderly end leaves no lease");
}
