//! Nothing that one device or the engine does changes anything for other devices.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::broker::{MAX_WAIT, bulk, loopback};
use crate::served::{Served, value};
use crate::support::redis::Redis;
use crate::wire::{Wire, five, four, packet, publish, subscribe};

const EMBEDDED: &str = "type = \"embedded\", path = \"fleet\"";
const TIMERS: &str = "mqtt.timers = true\ntimers.rate = 0\nroute.receivers = [\"hook\"]\n\
                      [[timer]]\ntype = \"report-due\"\nreceivers = [\"hook\"]\n\
                      [[receiver]]\nname = \"hook\"\ntype = \"webhook\"\nurl = \"http://127.0.0.1:9\"\n";

/// Sends heartbeats of `count` units, each when the previous one is acknowledged.
fn beats(wire: &mut Wire, count: u8) {
    for id in 1..=count {
        wire.send(&publish(0x32, &format!("units/{id}/heartbeat"), id, None, b"{}"));
        assert_eq!(wire.packet().unwrap(), [0x40, 2, 0, id]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_engine_is_away_nothing_to_record_is_acknowledged_connections_stay_and_nothing_is_lost() {
    let redis = Redis::start();
    let engine = format!("url = \"{}\"", redis.url());
    let served = Served::start(&engine, "", "hearing.canary_period = \"100ms\"\n").await;
    served.until("the fleet is heard", async || served.value("rollcall_blind").await == 0.0).await;
    let (mut device, _) = Wire::connect_to(served.port, &four("device", true));
    beats(&mut device, 1);
    let before = served.value("rollcall_blind_seconds_total").await;
    redis.signal("-STOP");
    for id in 2..=60 {
        device.send(&publish(0x32, &format!("units/{id}/heartbeat"), id, None, b"{}"));
    }
    let is_down = async || served.page("/readyz").await.is_some_and(|page| page.contains("engine_down"));
    served.until("the engine is down", is_down).await;
    // A message that is only for other clients waits for no engine, but for the acknowledgements of earlier messages.
    device.send(&publish(0x32, "commands/siren", 61, None, b"on"));
    device.send(&[0xc0, 0]);
    assert_eq!(device.packet().unwrap(), [0xd0, 0], "nothing before it is acknowledged");
    let (mut program, _) = Wire::connect_to(served.port, &four("program", true));
    program.send(&publish(0x32, "commands/siren", 1, None, b"on"));
    assert_eq!(program.packet().unwrap(), [0x40, 2, 0, 1]);
    let (mut other, answer) = Wire::connect_to(served.port, &four("other", true));
    assert_eq!(answer, [0x20, 2, 0, 0]);
    // A device that disconnects and returns holds no place meanwhile, and repeats its unacknowledged messages.
    other.send(&publish(0x32, "units/other/heartbeat", 1, None, b"{}"));
    drop(other);
    let (mut other, _) = Wire::connect_to(served.port, &four("other", true));
    other.send(&publish(0x3a, "units/other/heartbeat", 1, None, b"{}"));
    redis.signal("-CONT");
    for id in 2..=61 {
        assert_eq!(device.packet().unwrap(), [0x40, 2, 0, id]);
    }
    assert_eq!(other.packet().unwrap(), [0x40, 2, 0, 1]);
    served
        .until("that time was blind", async || served.value("rollcall_blind_seconds_total").await > before)
        .await;
    let page = served.page("/metrics").await.unwrap();
    assert_eq!(value(&page, "rollcall_units{kind=\"detector\",state=\"online\"}"), 61.0);
}

/// A device that publishes as fast as it can, until `is_over` is set.
fn flood(port: u16, is_over: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let (mut flood, _) = Wire::connect_to(port, &four("flood", true));
        let many = publish(0x30, "units/flood/data", 0, None, b"{}").repeat(500);
        while !is_over.load(Ordering::Relaxed) {
            flood.send(&many);
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn one_device_at_all_its_limits_blinds_nobody_and_others_are_acknowledged() {
    let served = Served::start(EMBEDDED, "max_rate = 2000", "[[kind]]\ntimeout = \"60s\"\n").await;
    let (port, is_over) = (served.port, Arc::new(AtomicBool::new(false)));
    served.until("the fleet is heard", async || served.value("rollcall_blind").await == 0.0).await;
    // The device does not read the messages that it subscribed to, and opens connections on which it sends nothing.
    let (mut deaf, _) = Wire::connect_to(port, &four("deaf", true));
    deaf.send(&subscribe(1, "units/#", 1, false));
    let _silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(loopback(port)).unwrap()).collect();
    let flood = flood(port, is_over.clone());
    let bulk = std::thread::spawn(move || bulk(port, 8));
    let before = served.page("/metrics").await.unwrap();
    let (mut device, _) = Wire::connect_to(port, &four("device", true));
    beats(&mut device, 250);
    bulk.join().unwrap();
    let canaries = "rollcall_canary_round_trip_seconds_count";
    served
        .until("it hears on", async || served.value(canaries).await >= value(&before, canaries) + 3.0)
        .await;
    let page = served.page("/metrics").await.unwrap();
    assert_eq!(value(&page, "rollcall_blind_seconds_total"), value(&before, "rollcall_blind_seconds_total"));
    assert!(value(&page, "rollcall_broker_held_back_total") > 0.0);
    is_over.store(true, Ordering::Relaxed);
    flood.join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_say_nothing_are_bounded_and_keep_no_other_address_out() {
    let served = Served::start(EMBEDDED, "", "").await;
    let mut silent = Vec::new();
    for _ in 0..600 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        silent.push(socket.connect(loopback(served.port)).await.unwrap());
    }
    let refused = "rollcall_broker_refused_total{reason=\"connection\"}";
    served.until("the rest is closed", async || served.value(refused).await == 88.0).await;
    let (mut device, _) = Wire::connect_to(served.port, &four("device", true));
    beats(&mut device, 3);
    // Silent connections have 10 s.
    let mut first = silent.swap_remove(0);
    let closed = tokio::time::timeout(MAX_WAIT, first.read(&mut [0; 1])).await;
    assert_eq!(closed.expect("it is closed").unwrap(), 0);
    let _ = first.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_no_connection_can_be_accepted_the_time_is_blind() {
    let served = Served::with_files(80, EMBEDDED, "", "hearing.canary_period = \"100ms\"\n").await;
    served.until("the fleet is heard", async || served.value("rollcall_blind").await == 0.0).await;
    let before = served.value("rollcall_blind_seconds_total").await;
    // A connection to the pages that stays open.
    let pages = TcpStream::connect(loopback(served.http)).unwrap();
    pages.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let is_blind = || {
        (&pages).write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
        let (mut page, mut part) = (Vec::new(), [0; 4096]);
        while !page.ends_with(b"\r\n0\r\n\r\n") && !is_whole(&page) {
            let count = (&pages).read(&mut part).unwrap();
            assert!(count > 0);
            page.extend(&part[..count]);
        }
        String::from_utf8_lossy(&page).contains("\nrollcall_blind 1")
    };
    assert!(!is_blind());
    let held: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(loopback(served.port)).unwrap()).collect();
    served.until("the time is blind", async || is_blind()).await;
    drop(held);
    let heard = async || {
        let blind = served.page("/metrics").await.map(|page| value(&page, "rollcall_blind"));
        blind == Some(0.0)
    };
    served.until("it hears again", heard).await;
    assert!(served.value("rollcall_blind_seconds_total").await > before);
}

/// Whether all of an answer that says its length has arrived.
fn is_whole(page: &[u8]) -> bool {
    let text = String::from_utf8_lossy(page);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    length.is_some_and(|length: usize| body.len() >= length)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_whose_cancellation_was_acknowledged_never_fires_also_beside_a_flood() {
    let served = Served::start(EMBEDDED, "rules_file = \"rules\", max_rate = 0", TIMERS);
    let served = served.await;
    let (port, is_over) = (served.port, Arc::new(AtomicBool::new(false)));
    let flood = flood(port, is_over.clone());
    let (mut planner, _) = Wire::connect_to(port, &five("planner", true, &[]));
    let name = |number: u8| format!("rollcall/timers/t-{number}");
    let mut ask = |id: u8, topic: &str, payload: &[u8]| {
        planner.send(&publish(0x32, topic, id, Some(b""), payload));
        assert_eq!(planner.packet().unwrap(), packet(0x40, &[&[0, id]]));
    };
    for number in 1..=40 {
        ask(number, &name(number), br#"{"type":"report-due","in":"4s"}"#);
        ask(number, &name(number), b"");
    }
    ask(41, &name(41), br#"{"type":"report-due","in":"4s"}"#);
    let state = async |number: u8| {
        let page = served.page(&format!("/api/v1/timers/t-{number}")).await.unwrap();
        serde_json::from_str::<Value>(&page).unwrap()["state"].as_str().unwrap().to_owned()
    };
    served.until("the last one fires", async || state(41).await != "waiting").await;
    for number in 1..=40 {
        assert_eq!(state(number).await, "cancelled", "t-{number}");
    }
    is_over.store(true, Ordering::Relaxed);
    flood.join().unwrap();
}
