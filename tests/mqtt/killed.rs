//! Acknowledged requests survive `kill -9` of the listener: timers and cancellations, beside a flood. `KILLS=1000`
//! tries longer.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use rand::Rng;
use serde_json::Value;

use crate::broker::{MAX_WAIT, loopback};
use crate::served::Served;

/// The most requests of a round that are on their way.
const AHEAD: u16 = 50;

/// A request about a timer, at QoS 1 of MQTT 3.1.1.
fn request(id: u16, timer: &str, payload: &[u8]) -> Vec<u8> {
    let topic = format!("rollcall/timers/{timer}");
    let length = 2 + topic.len() + 2 + payload.len();
    let header = [0x32, length as u8, 0, topic.len() as u8];
    [&header[..], topic.as_bytes(), &id.to_be_bytes(), payload].concat()
}

fn connect(port: u16, id: &str) -> TcpStream {
    let mut stream = TcpStream::connect(loopback(port)).unwrap();
    stream.set_read_timeout(Some(MAX_WAIT)).unwrap();
    let head = [0x10, 12 + id.len() as u8, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0, id.len() as u8];
    stream.write_all(&[&head[..], id.as_bytes()].concat()).unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [0x20, 2, 0, 0]);
    stream
}

/// Registers timers, and cancels every second one, until `most` requests are acknowledged; returns the timers whose
/// request was certainly acknowledged, and whether each was cancelled.
fn until_acknowledged(port: u16, round: usize, most: u16) -> BTreeMap<String, bool> {
    let mut stream = connect(port, "planner");
    let name = |number: u16| format!("t-{round}-{}", number / 2);
    let send = |stream: &mut TcpStream, number: u16| {
        let payload: &[u8] = if number % 4 == 1 { b"" } else { br#"{"type":"report-due","in":"1h"}"# };
        stream.write_all(&request(number + 1, &name(number), payload)).unwrap();
    };
    (0..AHEAD).for_each(|number| send(&mut stream, number));
    let mut acknowledged = BTreeMap::new();
    for number in 0..most {
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [&[0x40, 2][..], &(number + 1).to_be_bytes()].concat()[..]);
        acknowledged.insert(name(number), number % 4 == 1);
        send(&mut stream, number + AHEAD);
    }
    // The request after it may have been applied as well.
    acknowledged.remove(&name(most));
    acknowledged
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_timer_or_cancellation_survives_a_kill_at_any_moment() {
    let text = "mqtt.timers = true\ntimers.rate = 0\nroute.receivers = [\"hook\"]\n\
                [[timer]]\ntype = \"report-due\"\nreceivers = [\"hook\"]\n\
                [[receiver]]\nname = \"hook\"\ntype = \"webhook\"\nurl = \"http://127.0.0.1:9\"\n";
    let mut served =
        Served::start("type = \"embedded\", path = \"fleet\"", "rules_file = \"rules\", max_rate = 0", text)
            .await;
    let port = served.port;
    let rounds = std::env::var("KILLS").ok().map_or(4, |rounds| rounds.parse().expect("a number"));
    for round in 0..rounds {
        let most = rand::rng().random_range(1..400);
        let flood = std::thread::spawn(move || flood(port));
        let requests = tokio::task::spawn_blocking(move || until_acknowledged(port, round, most));
        let acknowledged = requests.await.unwrap();
        served.kill();
        flood.join().unwrap();
        served.restart().await;
        for (timer, is_cancelled) in &acknowledged {
            let known = served.page(&format!("/api/v1/timers/{timer}")).await.unwrap();
            let known: Value = serde_json::from_str(&known).unwrap();
            let state = if *is_cancelled { "cancelled" } else { "waiting" };
            assert_eq!(known["state"], state, "{timer} in round {round}: {known}");
        }
    }
}

/// Sends heartbeats at QoS 0 as fast as they are read, until the listener is gone.
fn flood(port: u16) {
    let mut stream = connect(port, "flood");
    let many = b"\x30\x12\0\x10units/flood/data".repeat(500);
    while stream.write_all(&many).is_ok() {}
}
