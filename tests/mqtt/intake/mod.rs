//! Intake between a real broker and a real engine.

mod relay;
mod secure;
mod sessions;
mod shares;
mod world;

use std::time::Duration;

use rumqttc::QoS;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::redis::signal;
use rollcall::clock::Clock;
use rollcall::presence::Lifecycle;
use rollcall::simulate::fleet::{self, FleetConfig, FleetProgress};
use world::{World, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_becomes_a_unit_with_its_labels_and_its_timeout() {
    let world = World::new("").await;
    let running = world.start().await;
    let device = world.device();
    device.publishes("units/7/heartbeat", "").await;
    device.publishes("fleet/pump/hall 3/9", "{\"timeout\":\"36h\",\"labels\":{\"floor\":2}}").await;
    eventually("both were admitted", async || world.units().await == 2).await;
    let facts = world.facts("pump:9").await.unwrap();
    assert_eq!(facts.lifecycle, Lifecycle::Present);
    assert_eq!(facts.declared_timeout, Some(Duration::from_secs(36 * 3600)));
    assert_eq!(format!("{:?}", facts.labels), "{\"floor\": \"2\", \"site\": \"hall 3\"}");
    assert!(world.is_known("detector:7").await);
    eventually("the lag is observed", async || running.metric("heartbeat_lag_seconds", "") >= 1.0).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_message_is_counted_by_reason_and_delays_no_other() {
    let world = World::new("").await;
    let running = world.start().await;
    let device = world.device();
    device.publishes("fleet/lamp/hall/9", "").await;
    device.publishes("units//heartbeat", "").await;
    device.publishes(&format!("units/{}/heartbeat", "x".repeat(129)), "").await;
    device.publishes("units/7/heartbeat", "{\"timeout\":-1,\"labels\":{\"a b\":1}").await;
    eventually("the last came", async || world.is_known("detector:7").await).await;
    assert_eq!(running.heartbeats("unknown_kind"), 1.0);
    assert_eq!(running.heartbeats("bad_unit"), 2.0);
    assert_eq!(running.metric("payload_issues_total", "broken_json"), 1.0);
    assert_eq!(world.units().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_a_unit_are_kept_and_unusable_values_are_counted() {
    let world = World::new("").await;
    let running = world.start().await;
    let device = world.device();
    for pressure in ["1", "2", "[]", "3.5", "null"] {
        device.publishes("fleet/pump/hall/9", format!("{{\"pressure\":{pressure}}}")).await;
    }
    device.publishes("units/7/heartbeat", "{\"pressure\":9}").await;
    eventually("it is kept", async || world.pressure("pump:9").await.as_deref() == Some("3.5")).await;
    assert_eq!(running.metric("payload_issues_total", "bad_value"), 1.0);
    assert!(world.is_known("detector:7").await, "whose kind tells nothing");
    let written = async || running.metric("unit_values_total", "written") >= 1.0;
    eventually("that is counted", written).await;
    running.stop().await;
    assert_eq!(world.pressure("detector:7").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_units_are_written_when_the_engine_is_back() {
    let mut world = World::new("").await;
    let running = world.start().await;
    let device = world.device();
    device.publishes("fleet/pump/hall/9", "{\"pressure\":1}").await;
    eventually("it is kept", async || world.pressure("pump:9").await.as_deref() == Some("1")).await;
    world.redis.kill();
    eventually("the engine is missed", async || running.is_refused()).await;
    let before = running.asked("keep_values");
    device.publishes("fleet/pump/hall/9", "{\"pressure\":2}").await;
    eventually("it is tried without result", async || running.asked("keep_values") > before).await;
    world.redis.restart();
    eventually("the newest is kept", async || world.pressure("pump:9").await.as_deref() == Some("2")).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_implausible_time_or_timeout_is_ignored_and_the_unit_stays_alive() {
    let world = World::new("").await;
    let running = world.start().await;
    let device = world.device();
    let began = Clock::system().now();
    let times = ["1", "\"yesterday\"", "-5", "9999999999", "1e400", "[]"];
    let timeouts = ["-1", "0", "1e300", "\"500d\"", "\"-36h\"", "null"];
    for (n, (ts, timeout)) in times.iter().zip(timeouts).enumerate() {
        let payload = format!("{{\"ts\":{ts},\"timeout\":{timeout}}}");
        device.publishes(&format!("fleet/meter/hall/{n}"), payload).await;
    }
    eventually("all live", async || world.units().await == times.len()).await;
    for n in 0..times.len() {
        let facts = world.facts(&format!("meter:{n}")).await.unwrap();
        assert_eq!(facts.declared_timeout, None, "{}", timeouts[n]);
        assert!((began..=Clock::system().now()).contains(&facts.last_seen), "{}: {facts:?}", times[n]);
    }
    let odd = |why| running.metric("payload_issues_total", why);
    assert!(
        odd("bad_timestamp") >= 4.0 && odd("bad_timeout") >= 4.0,
        "{} {}",
        odd("bad_timestamp"),
        odd("bad_timeout")
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_acknowledged_only_after_they_were_recorded() {
    let mut world = World::new("").await;
    // The receive maximum is far smaller than the number of messages: the broker has to hold the rest.
    world.config.receive_maximum = 10;
    let running = world.start().await;
    // Canaries are still recorded, so that a heartbeat is the message that is retried.
    world.redis.permit(&["-set"]);
    world.device().heartbeats("u", 50).await;
    let tried = running.asked("refresh");
    eventually("the engine was tried again", async || running.asked("refresh") > tried + 1.0).await;
    running.crash().await;

    world.redis.permit(&["+set"]);
    let _running = world.start().await;
    eventually("all fifty were recorded", async || world.units().await == 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_wait_for_the_engine_and_none_is_lost() {
    let mut world = World::new("").await;
    world.config.receive_maximum = 10;
    let running = world.start().await;
    let device = world.device();
    device.publishes("units/first/heartbeat", "").await;
    eventually("it works", async || world.units().await == 1).await;
    let before = world.heard().await;
    world.redis.kill();
    device.heartbeats("u", 200).await;
    world.redis.restart();
    eventually("all were recorded", async || world.units().await == 201).await;
    eventually("it hears on", async || world.has_heard_more_than(before).await).await;
    assert_eq!(world.connections("test-main"), 1, "one connection was enough");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_message_does_not_come_again() {
    let world = World::new("").await;
    let running = world.start().await;
    world.device().heartbeats("u", 30).await;
    eventually("all were recorded", async || world.units().await == 30).await;
    running.stop().await;

    let running = world.start().await;
    let before = world.heard().await;
    eventually("it hears on", async || world.has_heard_more_than(before).await).await;
    assert_eq!(running.heartbeats("refreshed") + running.heartbeats("new"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_keeps_what_comes_while_rollcall_is_away() {
    let world = World::new("").await;
    world.start().await.stop().await;
    world.device().heartbeats("u", 100).await;
    let running = world.start().await;
    eventually("the backlog was recorded", async || world.units().await == 100).await;
    eventually("its own canary comes too", async || running.metric("canary_round_trip_seconds", "") >= 2.0)
        .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_forgot_everything_is_subscribed_again() {
    let mut world = World::new("").await;
    let running = world.start().await;
    world.restart_broker("");
    eventually("the new one was found", async || {
        world.connections("test-main") == 2 && running.is_connected()
    })
    .await;
    world.device().publishes("units/7/heartbeat", "").await;
    eventually("it was heard", async || world.units().await == 1).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_freezes_is_left_and_found_again() {
    let mut world = World::new("").await;
    world.config.keep_alive = Duration::from_secs(1);
    // Canaries of QoS 0 are sent all the time, so no ping would ever be due.
    world.config.qos = 0;
    let running = world.start().await;
    signal(&world.broker, "-STOP");
    eventually("it was noticed", async || !running.is_connected()).await;
    signal(&world.broker, "-CONT");
    eventually("it was found again", async || running.is_connected()).await;
    world.device().publishes("units/7/heartbeat", "").await;
    eventually("it was heard", async || world.units().await == 1).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_is_too_large_proves_life_and_is_counted_and_one_of_twenty_megabytes_stays_with_the_broker()
 {
    let world = World::new("").await;
    let running = world.start().await;
    let device = world.device();
    device.publishes("units/7/heartbeat", vec![b'x'; 10 << 20]).await;
    device.publishes("units/9/heartbeat", vec![b'x'; 20 << 20]).await;
    device.publishes("units/7/heartbeat", vec![b'x'; 257 << 10]).await;
    device.publishes("units/8/heartbeat", vec![b'x'; 256 << 10]).await;
    eventually("others are heard", async || world.is_known("detector:8").await).await;
    assert_eq!(running.metric("payload_issues_total", "too_large"), 2.0);
    assert!(world.is_known("detector:7").await && !world.is_known("detector:9").await);
    assert_eq!(world.connections("test-main"), 1, "the connection survived");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retained_message_of_the_past_is_no_heartbeat_and_a_live_one_is() {
    let world = World::new("").await;
    let device = world.device();
    device.retains("units/old/heartbeat", "alive").await;
    let running = world.start().await;
    device.retains("units/live/heartbeat", "alive").await;
    eventually("the live one came", async || world.is_known("detector:live").await).await;
    assert_eq!((world.units().await, running.heartbeats("retained")), (1, 0.0));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_messages_are_one_unit() {
    let world = World::new("").await;
    let running = world.start().await;
    let device = world.device();
    for _ in 0..10 {
        device.publishes("units/7/heartbeat", "").await;
    }
    // A heartbeat that the next one overtakes while both are written is stale.
    let came = || ["new", "refreshed", "stale"].map(|result| running.heartbeats(result)).iter().sum::<f64>();
    eventually("all came", async || came() >= 10.0).await;
    let heard = world.heard().await;
    eventually("what follows them came too", async || world.has_heard_more_than(heard).await).await;
    assert_eq!((running.heartbeats("new"), came()), (1.0, 10.0), "each came once");
    assert_eq!(world.units().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_is_recorded_only_after_everything_before_it() {
    no_canary_overtakes_the_fleet(50, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_does_not_overtake_the_batch_before_its_own() {
    no_canary_overtakes_the_fleet(2, 1).await;
}

async fn no_canary_overtakes_the_fleet(max_batch: usize, fleet: usize) {
    let mut world = World::new("").await;
    world.config.max_batch = max_batch;
    let running = world.start().await;
    eventually("canaries come", async || world.heard().await.is_some()).await;
    // The engine delays a canary; the fleet queues behind it, and more canaries behind that.
    world.redis.permit(&["-evalsha", "-set"]);
    eventually("a canary was refused", async || running.is_refused()).await;
    world.device().heartbeats("u", fleet).await;
    let before = Clock::system().now();
    // The check for lost data comes before this command, among the rare commands.
    let asked = || running.asked("advance") + running.asked("other");
    let tried = asked();
    eventually("it was tried again and again", async || asked() > tried + 2.0).await;
    // Now the engine accepts canaries, but not the fleet.
    let tried = running.asked("refresh");
    world.redis.permit(&["+evalsha"]);
    eventually("the fleet was refused", async || running.asked("refresh") > tried + 2.0).await;
    assert!(world.heard().await.unwrap() <= before, "no canary overtook the fleet");
    world.redis.permit(&["+set"]);
    eventually("it hears on", async || world.heard().await.unwrap() > before).await;
    eventually("the fleet was recorded", async || world.units().await == fleet).await;
    // Every canary came late: none was missing, so nothing was blind.
    let later = world.heard().await;
    eventually("it goes on", async || world.has_heard_more_than(later).await).await;
    assert_eq!(world.blind().await, []);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unacknowledged_messages_that_find_no_room_are_counted_and_that_time_is_blind() {
    let mut world = World::new("max_queued_messages 0").await;
    world.config.qos = 0;
    world.config.canary_period = Duration::from_millis(50);
    let running = world.start().await;
    eventually("canaries come", async || world.heard().await.is_some()).await;
    world.redis.kill();
    let device = world.device();
    while running.heartbeats("overflow") == 0.0 {
        device.floods(10_000, QoS::AtMostOnce).await;
    }
    world.redis.restart();
    eventually("it hears on, after blindness", async || !world.blind().await.is_empty()).await;
    device.publishes("units/after/heartbeat", "").await;
    eventually("it works again", async || world.is_known("detector:after").await).await;
    assert_eq!(world.connections("test-main"), 1, "the connection survived");
    running.stop().await;
}

/// Mosquitto does so when it has a backlog: each acknowledgement makes it send as many messages as it may.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_sends_more_than_it_may_is_throttled_and_keeps_its_connection() {
    // More messages than the queue holds.
    const BACKLOG: usize = 80_000;
    let mut world = World::new("").await;
    world.config.receive_maximum = 1000;
    world.config.max_batch = 1000;
    // The keep-alive is longer than the engine is away: a broker that is not read gets no ping either.
    world.config.keep_alive = Duration::from_secs(10);
    let running = world.start().await;
    world.redis.permit(&["-set"]);
    let device = world.device();
    device.floods(BACKLOG, QoS::AtLeastOnce).await;
    // Some messages are acknowledged, and then none for some seconds.
    world.redis.permit(&["+set"]);
    eventually("some were recorded", async || running.heartbeats("") > 500.0).await;
    world.redis.permit(&["-set"]);
    let tried = running.asked("refresh");
    eventually("it was tried again and again", async || running.asked("refresh") > tried + 4.0).await;
    world.redis.permit(&["+set"]);
    eventually("the last one was recorded", async || world.is_known("detector:last").await).await;
    assert_eq!(world.connections("test-main"), 1, "the connection survived");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_with_an_unreadable_state_is_admitted_anew_and_delays_no_other() {
    let world = World::new("").await;
    let running = world.start().await;
    let device = world.device();
    device.publishes("units/u13/heartbeat", "").await;
    eventually("it is known", async || world.is_known("detector:u13").await).await;
    world.redis.damage(&"detector:u13".parse().unwrap());
    device.heartbeats("u", 40).await;
    device.publishes("units/last/heartbeat", "").await;
    // Unit u13 was heard before and once more, the other 39 and the last one afterwards.
    eventually("all were recorded", async || running.heartbeats("new") == 42.0).await;
    assert_eq!(world.connections("test-main"), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_subscription_is_asked_for_again_until_it_is_granted() {
    let mut world = World::new("").await;
    world.guard_broker(false);
    let running = world.launch().await;
    eventually("it asked twice", async || world.connections("test-main") >= 2).await;
    assert!(!running.is_connected());
    world.guard_broker(true);
    eventually("it was granted", async || running.is_connected()).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_cannot_work_ends_with_a_remedy() {
    let mut world = World::new("").await;
    world.config.url = "http://127.0.0.1".to_owned();
    assert!(world.launch().await.failure().await.contains("a broker's address is written mqtt://"));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_the_broker_drops_are_a_warning_where_it_reports_them() {
    let mut world = World::new("sys_interval 1\nmax_queued_messages 5").await;
    world.config.watch_sys = true;
    let running = world.start().await;
    let dropped = || running.metric("broker_messages_dropped_total", "");
    // A disconnected client, for which the broker keeps five messages.
    let device = world.device();
    world.subscribes_and_goes_away("units/+/heartbeat").await;
    // Only a few at a time: the broker keeps as few for an instance that is slow.
    for group in 1..=6 {
        device.heartbeats(&format!("group-{group}-"), 5).await;
        eventually("they are recorded", async || world.units().await == 5 * group).await;
    }
    eventually("the broker says so", async || dropped() > 0.0).await;
    let warned = || running.telemetry.problems().into_iter().any(|it| it.name == "broker_drops_messages");
    eventually("it is a warning", async || warned()).await;
    assert_eq!((world.units().await, world.blind().await), (30, Vec::new()), "nothing of ours");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_was_stored_for_too_long_is_counted_and_proves_nothing() {
    let mut world = World::new("").await;
    world.config.max_age = Duration::from_secs(60);
    let running = world.start().await;
    let device = world.device();
    let ago = |seconds: i64| format!("{{\"ts\":{}}}", Clock::system().now().as_millis() - seconds * 1000);
    device.publishes("units/old/heartbeat", ago(90)).await;
    device.publishes("units/new/heartbeat", ago(5)).await;
    eventually("the new one came", async || world.is_known("detector:new").await).await;
    assert_eq!((world.units().await, running.heartbeats("too_old")), (1, 1.0));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_unit_of_a_simulated_fleet_is_heard_and_no_heartbeat_is_lost() {
    let world = World::new("").await;
    let running = world.start().await;
    let config = FleetConfig {
        units: 2000,
        topic: "fleet/pump/{site}/{unit}".to_owned(),
        interval: Duration::from_secs(2),
        connections: 3,
        qos: 1,
        ..FleetConfig::new(&world.config.url)
    };
    let (progress, seen) = watch::channel(FleetProgress::default());
    let enough = CancellationToken::new();
    let fleet = tokio::spawn(fleet::run(config, progress, enough.clone()));
    eventually("each is known", async || world.units().await == 2000).await;
    enough.cancel();
    let done = fleet.await.unwrap().unwrap();
    assert!(done.sent >= 2000 && done.missed == 0, "{done:?}");
    assert_eq!((seen.borrow().sent, seen.borrow().total), (done.sent, 2000));
    let came = || ["new", "refreshed", "stale"].map(|result| running.heartbeats(result)).iter().sum::<f64>();
    eventually("all came", async || came() >= done.sent as f64).await;
    assert_eq!(world.units().await, 2000, "no other unit is");
    let facts = world.facts("pump:sim-002000").await.unwrap();
    assert_eq!(facts.labels["site"], "site-04");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_without_a_broker_says_so_at_once() {
    let mut world = World::new("").await;
    world.broker.kill();
    let (progress, _) = watch::channel(FleetProgress::default());
    let failed = fleet::run(FleetConfig::new(&world.config.url), progress, CancellationToken::new()).await;
    assert!(failed.unwrap_err().to_string().contains("no connection to the MQTT broker"));
}
