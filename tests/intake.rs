//! Intake against a real broker.

#[path = "intake/stand_in.rs"]
mod stand_in;
#[path = "intake/world.rs"]
mod world;

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use rollcall::clock::Clock;
use rollcall::presence::Standing;
use rollcall::simulate::fleet::{self, FleetConfig, Progress};
use world::{World, eventually, signal};

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_becomes_a_unit_with_its_labels_and_its_timeout() {
    let world = World::new("");
    let running = world.start().await;
    let device = world.device();
    device.says("units/7/heartbeat", "").await;
    device.says("fleet/pump/hall 3/9", "{\"timeout\":\"36h\",\"labels\":{\"floor\":2}}").await;
    eventually("both were admitted", || world.engine.units() == 2).await;
    let facts = world.engine.facts("pump:9").unwrap();
    assert_eq!(facts.standing, Standing::Present);
    assert_eq!(facts.declared_timeout, Some(Duration::from_secs(36 * 3600)));
    assert_eq!(format!("{:?}", facts.labels), "{\"floor\": \"2\", \"site\": \"hall 3\"}");
    assert!(world.engine.last_seen("detector:7").is_some());
    eventually("the lag is observed", || running.metric("heartbeat_lag_seconds", "") >= 1.0).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_heartbeat_is_counted_by_reason_and_holds_up_nobody() {
    let world = World::new("");
    let running = world.start().await;
    let device = world.device();
    device.says("fleet/lamp/hall/9", "").await;
    device.says("units//heartbeat", "").await;
    device.says(&format!("units/{}/heartbeat", "x".repeat(129)), "").await;
    device.says("units/7/heartbeat", "{\"timeout\":-1,\"labels\":{\"a b\":1}").await;
    eventually("the last came", || world.engine.last_seen("detector:7").is_some()).await;
    assert_eq!(running.heartbeats("unknown_kind"), 1.0);
    assert_eq!(running.heartbeats("bad_unit"), 2.0);
    assert_eq!(running.metric("payload_oddities_total", "broken_json"), 1.0);
    assert_eq!(world.engine.units(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_acknowledged_only_after_they_were_recorded() {
    let mut world = World::new("");
    // Far fewer than there are messages: the broker has to hold the rest as well.
    world.config.receive_maximum = 10;
    let running = world.start().await;
    world.engine.set_down(true);
    world.device().heartbeats("u", 50).await;
    let refusals = world.engine.refusals();
    eventually("the engine was tried again", || world.engine.refusals() > refusals + 1).await;
    running.crash().await;

    world.engine.set_down(false);
    let _running = world.start().await;
    eventually("all fifty were recorded", || world.engine.units() == 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_wait_for_the_engine_and_none_is_lost() {
    let mut world = World::new("");
    world.config.receive_maximum = 10;
    let running = world.start().await;
    let device = world.device();
    device.says("units/first/heartbeat", "").await;
    eventually("it works", || world.engine.units() == 1).await;
    world.engine.set_down(true);
    device.heartbeats("u", 200).await;
    let before = world.engine.heard();
    world.engine.set_down(false);
    eventually("all were recorded", || world.engine.units() == 201).await;
    eventually("it hears on", || world.engine.heard() > before).await;
    assert_eq!(world.connections("test-main"), 1, "one connection was enough");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_does_not_come_again() {
    let world = World::new("");
    let running = world.start().await;
    world.device().heartbeats("u", 30).await;
    eventually("all were recorded", || world.engine.units() == 30).await;
    running.stop().await;

    let running = world.start().await;
    let before = world.engine.heard();
    eventually("it hears on", || world.engine.heard() > before).await;
    assert_eq!(running.heartbeats("refreshed") + running.heartbeats("new"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_keeps_what_comes_while_rollcall_is_away() {
    let world = World::new("");
    world.start().await.stop().await;
    world.device().heartbeats("u", 100).await;
    let running = world.start().await;
    eventually("the backlog was recorded", || world.engine.units() == 100).await;
    eventually("its own canary comes too", || running.metric("canary_round_trip_seconds", "") >= 2.0).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_forgot_everything_is_subscribed_again() {
    let mut world = World::new("");
    let running = world.start().await;
    world.restart_broker("");
    eventually("the new one was found", || world.connections("test-main") == 2 && running.is_connected())
        .await;
    world.device().says("units/7/heartbeat", "").await;
    eventually("it was heard", || world.engine.units() == 1).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_freezes_is_left_and_found_again() {
    let mut world = World::new("");
    world.config.keep_alive = Duration::from_secs(1);
    // Canaries of QoS 0 are sent into the void for ever, so no ping would ever be due.
    world.config.qos = 0;
    let running = world.start().await;
    signal(&world.broker, "-STOP");
    eventually("it was noticed", || !running.is_connected()).await;
    signal(&world.broker, "-CONT");
    eventually("it was found again", || running.is_connected()).await;
    world.device().says("units/7/heartbeat", "").await;
    eventually("it was heard", || world.engine.units() == 1).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_of_ten_megabytes_is_counted_and_a_larger_one_stays_with_the_broker() {
    let world = World::new("");
    let running = world.start().await;
    let device = world.device();
    device.says("units/7/heartbeat", vec![b'x'; 10 << 20]).await;
    device.says("units/7/heartbeat", vec![b'x'; 20 << 20]).await;
    device.says("units/7/heartbeat", vec![b'x'; 257 << 10]).await;
    device.says("units/8/heartbeat", vec![b'x'; 256 << 10]).await;
    eventually("others are heard", || world.engine.last_seen("detector:8").is_some()).await;
    assert_eq!(running.heartbeats("too_large"), 2.0);
    assert!(world.engine.last_seen("detector:7").is_none());
    assert_eq!(world.connections("test-main"), 1, "the connection survived");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retained_message_of_the_past_is_no_heartbeat_and_a_live_one_is() {
    let world = World::new("");
    let device = world.device();
    device.retains("units/old/heartbeat", "alive").await;
    let running = world.start().await;
    device.retains("units/live/heartbeat", "alive").await;
    eventually("the live one came", || world.engine.last_seen("detector:live").is_some()).await;
    assert_eq!((world.engine.units(), running.heartbeats("retained")), (1, 0.0));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_messages_are_one_unit() {
    let world = World::new("");
    let running = world.start().await;
    let device = world.device();
    for _ in 0..10 {
        device.says("units/7/heartbeat", "").await;
    }
    let came = || running.heartbeats("new") + running.heartbeats("refreshed");
    eventually("all came", || came() >= 10.0).await;
    let heard = world.engine.heard();
    eventually("what follows them came too", || world.engine.heard() > heard).await;
    assert_eq!((running.heartbeats("new"), came()), (1.0, 10.0), "each came once");
    assert_eq!(world.engine.units(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_is_told_only_after_everything_before_it_was_recorded() {
    let world = World::new("");
    let running = world.start().await;
    eventually("canaries come", || world.engine.heard().is_some()).await;
    // A canary is held up by the engine; the fleet queues up behind it, and more canaries behind that.
    world.engine.set_down(true);
    let refused = || world.engine.refusals();
    eventually("it was tried", || refused() > 0).await;
    world.device().heartbeats("u", 20).await;
    let before = Clock::system().now();
    let tried = refused();
    eventually("it was tried again and again", || refused() > tried + 2).await;
    // Now the engine would take the canaries, but not the fleet.
    world.engine.set_deaf(true);
    let tried = refused();
    world.engine.set_down(false);
    eventually("the fleet was refused", || refused() > tried + 2).await;
    assert!(world.engine.heard().unwrap() <= before, "no canary overtook the fleet");
    world.engine.set_deaf(false);
    eventually("it hears on", || world.engine.heard().unwrap() > before).await;
    eventually("the fleet was recorded", || world.engine.units() == 20).await;
    // Every canary came, late: nothing was missed, so nothing was blind.
    let later = world.engine.heard();
    eventually("it goes on", || world.engine.heard() > later).await;
    assert_eq!(world.engine.blind(), []);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unacknowledged_messages_that_find_no_room_are_counted_and_that_time_is_blind() {
    let mut world = World::new("max_queued_messages 0");
    world.config.qos = 0;
    world.config.canary_period = Duration::from_millis(50);
    let running = world.start().await;
    eventually("canaries come", || world.engine.heard().is_some()).await;
    world.engine.set_down(true);
    let device = world.device();
    while running.heartbeats("overflow") == 0.0 {
        device.floods(10_000).await;
    }
    world.engine.set_down(false);
    eventually("it hears on, after blindness", || !world.engine.blind().is_empty()).await;
    device.says("units/after/heartbeat", "").await;
    eventually("it works again", || world.engine.last_seen("detector:after").is_some()).await;
    assert_eq!(world.connections("test-main"), 1, "the connection survived");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_whose_state_cannot_be_read_is_left_out_alone() {
    let world = World::new("");
    world.engine.damage("detector:u13");
    let running = world.start().await;
    world.device().heartbeats("u", 40).await;
    eventually("the others were recorded", || world.engine.units() == 39).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_shared_subscription_share_the_fleet_and_leave_no_session() {
    let mut world = World::new("");
    world.config.share = "rollcall".to_owned();
    let one = world.start().await;
    let two = world.start().await;
    world.device().heartbeats("u", 40).await;
    eventually("all were recorded", || world.engine.units() == 40).await;
    assert_eq!(one.heartbeats("new") + two.heartbeats("new"), 40.0, "each by one of them");
    one.stop().await;
    world.device().heartbeats("v", 40).await;
    eventually("the other has it all", || world.engine.units() == 80).await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_subscription_is_asked_for_again_until_it_is_granted() {
    let mut world = World::new("");
    world.guard_broker(false);
    let running = world.launch();
    eventually("it asked twice", || world.connections("test-main") >= 2).await;
    assert!(!running.is_connected());
    world.guard_broker(true);
    eventually("it was granted", || running.is_connected()).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_cannot_work_ends_with_what_to_do() {
    let mut world = World::new("");
    world.config.url = "mqtts://127.0.0.1".to_owned();
    assert!(world.launch().failure().await.contains("mqtts:// is not supported yet"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_unit_of_a_simulated_fleet_is_heard_within_its_interval() {
    let world = World::new("");
    let running = world.start().await;
    let interval = Duration::from_secs(2);
    let config = FleetConfig {
        units: 2000,
        topic: "fleet/pump/{site}/{unit}".to_owned(),
        interval,
        connections: 3,
        qos: 1,
        duration: Some(interval),
        ..FleetConfig::new(&world.config.url)
    };
    let (progress, seen) = watch::channel(Progress::default());
    let done = fleet::run(config, progress, CancellationToken::new()).await.unwrap();
    assert!(done.sent >= 2000 && done.missed == 0, "{done:?}");
    assert_eq!((seen.borrow().sent, seen.borrow().total), (done.sent, 2000));
    eventually("each is known", || world.engine.units() == 2000).await;
    let facts = world.engine.facts("pump:sim-002000").unwrap();
    assert_eq!(facts.labels["site"], "site-04");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_without_a_broker_says_so_at_once() {
    let mut world = World::new("");
    world.broker.kill();
    let (progress, _) = watch::channel(Progress::default());
    let failed = fleet::run(FleetConfig::new(&world.config.url), progress, CancellationToken::new()).await;
    assert!(failed.unwrap_err().to_string().contains("no connection to the MQTT broker"));
}
