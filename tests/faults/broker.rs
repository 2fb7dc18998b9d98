//! A broker that stops, dies or is saturated, and connections to it that break in every way.

use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::devices::{hello, publish};
use crate::world::proxy::Wire;
use crate::world::{MAX_WAIT, Plan, TIMEOUT, World, now, signal};
use rollcall::clock::monotonic;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_frozen_marks_no_unit_offline_and_loses_none() {
    let mut world = World::new(Plan::new(3)).await;
    world.live(3 * TIMEOUT);
    world.pass_some(SECOND).await;
    let mark = world.disturb();
    signal(world.broker.pid(), "STOP");
    world.pass(2 * TIMEOUT).await;
    signal(world.broker.pid(), "CONT");
    world.broker_away_since(mark);
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_and_forgets_all_sessions_marks_no_unit_offline_and_loses_none() {
    let mut world = World::new(Plan::new(3)).await;
    world.live(4 * TIMEOUT);
    for _ in 0..2 {
        world.pass_some(SECOND).await;
        let mark = world.disturb();
        world.kill_broker();
        world.pass_some(TIMEOUT).await;
        world.start_broker();
        world.broker_away_since(mark);
    }
    world.rests().await;
}

on_both_engines! {
    a_session_that_is_stolen_at_each_heartbeat_marks_no_unit_offline
    a_connection_that_stalls_marks_no_unit_offline_and_loses_none
    a_connection_that_stalls_and_is_not_lost_marks_no_unit_offline
    a_connection_that_is_half_open_is_noticed_and_marks_no_unit_offline
}

async fn a_session_that_is_stolen_at_each_heartbeat_marks_no_unit_offline(plan: Plan) {
    let world = World::new(plan).await;
    let port = world.broker.port();
    let mut unit = connect(port, "beating").await;
    // When the broker had the heartbeat for certain, and when the next one was sent.
    let (mut sent, mut longest) = (now(), Duration::ZERO);
    let mut speaks = async |unit: &mut TcpStream| {
        let next = now();
        speak(unit).await;
        longest = longest.max(now().since(sent));
        sent = next;
    };
    speaks(&mut unit).await;
    for _ in 0..9 {
        world.pass(TIMEOUT * 2 / 3).await;
        let thief = connect(port, "instance-0-main").await;
        // The broker acknowledges the heartbeat, and delivers it to the thief.
        speaks(&mut unit).await;
        world.pass(Duration::from_millis(150)).await;
        drop(thief);
    }
    let said = world.instances[0].page("/readyz").await;
    assert!(
        said.is_some_and(|(_, text)| text.contains("client_id_taken") && text.contains("instance-0-main"))
    );
    // The unit sends heartbeats until Rollcall hears it again.
    let hears = async || world.instances[0].metric("rollcall_mqtt_connected").await == Some(1.0);
    let until = now() + MAX_WAIT;
    while !hears().await && now() < until {
        world.pass(TIMEOUT / 3).await;
        speaks(&mut unit).await;
    }
    speaks(&mut unit).await;
    let of_unit = async || {
        let mut records = world.records().await.expect("it answers");
        records.retain(|record| record.unit.as_str() == "beating");
        records
    };
    // If the machine starved this test for a timeout, the unit was silent.
    assert!(of_unit().await.is_empty() || longest >= TIMEOUT, "silent for {longest:?} at most");
    assert_eq!(world.records_of_the_living().await, []);
    // From now on the unit is dead, and no client takes the session.
    while of_unit().await.is_empty() {
        assert!(now() < until, "it is told once the theft is over");
        world.pass(TIMEOUT / 3).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_that_waits_at_the_broker_while_the_connection_is_lost_is_no_silence() {
    let world = World::new(Plan { wires: true, ..Plan::new(1) }).await;
    let mut unit = connect(world.broker.port(), "beating").await;
    for _ in 0..3 {
        speak(&mut unit).await;
        let spoke = now();
        // Shorter before the deadline than proof may lag behind a deadline while the connection stands.
        world.pass((spoke + TIMEOUT - Duration::from_millis(80)).since(now())).await;
        world.wires[0].set(Wire::Cut);
        speak(&mut unit).await;
        let silent = now().since(spoke);
        world.pass(TIMEOUT / 10).await;
        world.wires[0].set(Wire::Whole);
        let hears = async || world.instances[0].metric("rollcall_mqtt_connected").await == Some(1.0);
        let until = now() + MAX_WAIT;
        while !hears().await {
            assert!(now() < until, "it connects again");
            world.pass(TIMEOUT / 10).await;
            speak(&mut unit).await;
        }
        let records = world.records().await.expect("it answers");
        let is_silent = records.iter().any(|record| record.unit.as_str() == "beating");
        // If the machine starved this test, the unit was silent.
        assert!(!is_silent || silent >= TIMEOUT, "silent for {silent:?}");
    }
}

/// A heartbeat that the broker has acknowledged.
async fn speak(unit: &mut TcpStream) {
    unit.write_all(&publish("units/beating/heartbeat", 1)).await.unwrap();
    let mut answer = [0; 4];
    unit.read_exact(&mut answer).await.unwrap();
}

/// The connection of each instance breaks in some way, one after the other and all together.
pub async fn broken(plan: Plan, wire: Wire, span: Duration) {
    let mut world = World::new(Plan { wires: true, ..plan }).await;
    world.live(3 * span + 2 * SECOND);
    let all = 0..world.wires.len();
    for broken in [0..1, all.end - 1..all.end, all] {
        let mark = world.disturb();
        world.wires[broken.clone()].iter().for_each(|proxy| proxy.set(wire));
        world.pass(span).await;
        world.wires[broken].iter().for_each(|proxy| proxy.set(Wire::Whole));
        world.disturbed_since(mark);
    }
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_mark_no_unit_offline_and_lose_none() {
    broken(Plan::new(3), Wire::Cut, SECOND).await;
}

async fn a_connection_that_stalls_marks_no_unit_offline_and_loses_none(plan: Plan) {
    broken(plan, Wire::Stalled, TIMEOUT.mul_f64(1.5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_stalls_beside_others_brings_no_dead_unit_back() {
    broken(Plan::new(3), Wire::Stalled, TIMEOUT.mul_f64(1.5)).await;
}

async fn a_connection_that_stalls_and_is_not_lost_marks_no_unit_offline(plan: Plan) {
    // Shorter than two keep-alives: waiting messages arrive on the same connection, and canaries after them.
    broken(plan, Wire::Stalled, TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_stall_together_and_are_not_lost_mark_no_unit_offline() {
    broken(Plan::new(3), Wire::Stalled, TIMEOUT).await;
}

async fn a_connection_that_is_half_open_is_noticed_and_marks_no_unit_offline(plan: Plan) {
    broken(plan, Wire::HalfOpen, 2 * TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_half_open_beside_others_brings_no_dead_unit_back() {
    broken(Plan::new(3), Wire::HalfOpen, 2 * TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_that_the_broker_drops_marks_no_unit_offline() {
    // The default of Mosquitto: it drops messages beyond a thousand, without an error.
    let broker = "max_inflight_messages 20\nmax_queued_messages 1000".to_owned();
    let mut world = World::new(Plan { broker, ..Plan::new(1) }).await;
    world.live(3 * TIMEOUT);
    world.pass_some(SECOND).await;
    let mark = world.disturb();
    flood(world.broker.port(), 3 * SECOND).await;
    passes_quickly(&world).await;
    // The broker dropped heartbeats that it had acknowledged; the diary cannot know which.
    // The broker was not away: how much of that time was blind depends on which canaries it dropped.
    world.disturbed_since(mark);
    world.forget_unheard_since(mark);
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_acknowledged_messages_that_overflows_marks_no_unit_offline_and_is_a_warning() {
    // Twenty in flight and a thousand queued, the defaults of Mosquitto.
    let broker = "max_inflight_messages 20\nmax_queued_messages 1000\nsys_interval 1".to_owned();
    let before = vec!["env".to_owned(), "ROLLCALL_MQTT__WATCH_SYS=true".to_owned()];
    let mut world = World::new(Plan { broker, before, ..Plan::new(1) }).await;
    world.live(3 * TIMEOUT);
    world.pass_some(SECOND).await;
    let mark = world.disturb();
    let port = world.broker.port();
    let mut floods = tokio::task::JoinSet::new();
    for _ in 0..4 {
        floods.spawn(flood_acknowledged(port, 2 * TIMEOUT));
    }
    let mut sent = 0;
    while let Some(flood) = floods.join_next().await {
        sent += flood.unwrap();
    }
    // The broker had acknowledged the dropped messages, and the diary cannot know which.
    world.forget_unheard_since(mark);
    world.disturbed_since(mark);
    let dropped = async |world: &World| {
        world.instances[0].metric("rollcall_broker_messages_dropped_total").await.unwrap_or_default()
    };
    let is_warned_of = async |world: &World| {
        let page = world.instances[0].page("/readyz").await;
        page.is_some_and(|(_, page)| page.contains("broker_drops_messages"))
    };
    world.eventually("the broker's drops are warned of", is_warned_of).await;
    println!("{} of {sent} messages were dropped", dropped(&world).await);
    // Nor may a unit be marked offline because its heartbeats were dropped.
    let living = world.records_of_the_living().await;
    assert!(living.is_empty(), "{} of them were never silent: {living:?}", living.len());
    world.rests().await;
}

/// Publishes as fast as a socket accepts it, to topics of no unit.
async fn flood(port: u16, span: Duration) {
    let mut stream = connect(port, "flood").await;
    let topic = b"units//heartbeat";
    let mut packet = vec![0x30, (2 + topic.len() + 2) as u8, 0, topic.len() as u8];
    packet.extend(topic);
    packet.extend(b"{}");
    let many = packet.repeat(1000);
    let until = monotonic() + span;
    while monotonic() < until {
        // A broker that stops reading limits the flood by itself.
        if let Ok(written) = tokio::time::timeout(span, stream.write_all(&many)).await {
            written.unwrap();
        }
    }
}

/// Waits until the broker's queue holds no message of a flood.
async fn passes_quickly(world: &World) {
    const OF_CANARIES: &str = "rollcall_canary_round_trip_seconds";
    let read = async |what: &str| {
        world.instances[0].metric(&format!("{OF_CANARIES}_{what}")).await.unwrap_or_default()
    };
    let before = Mutex::new((read("sum").await, read("count").await));
    let is_quick = async |_: &World| {
        let (sum, count) = (read("sum").await, read("count").await);
        let before = std::mem::replace(&mut *before.lock().unwrap(), (sum, count));
        (sum - before.0) / (count - before.1) < 0.1
    };
    world.eventually("canaries come back at once", is_quick).await;
}

/// Publishes at QoS 1 as fast as the broker acknowledges, to topics of no unit; returns how many it acknowledged.
async fn flood_acknowledged(port: u16, span: Duration) -> usize {
    const WINDOW: u16 = 500;
    let mut stream = connect(port, &format!("flood-{:08x}", rand::random::<u32>())).await;
    let many: Vec<u8> = (1..=WINDOW).flat_map(|packet| publish("units//heartbeat", packet)).collect();
    let until = monotonic() + span;
    let mut acknowledged = 0;
    while monotonic() < until {
        stream.write_all(&many).await.unwrap();
        // Each acknowledgement is four bytes long.
        let mut answers = vec![0; 4 * usize::from(WINDOW)];
        stream.read_exact(&mut answers).await.unwrap();
        acknowledged += usize::from(WINDOW);
    }
    acknowledged
}

/// A client of the broker without subscriptions.
async fn connect(port: u16, id: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(&hello(id)).await.unwrap();
    let mut welcome = [0; 4];
    stream.read_exact(&mut welcome).await.unwrap();
    stream
}
