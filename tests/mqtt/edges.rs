//! The listener at its edges: connections that do not speak MQTT, certificates that are renewed, and the limits of a
//! client.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rollcall::simulate::servers::free_port;
use rollcall::trust::{TlsFiles, client};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::broker::{World, loopback};
use crate::served::Served;
use crate::support::certificates::Authority;
use crate::support::http::CLIENT;
use crate::wire::{Wire, five, four, packet, publish, subscribe, text};

/// The answer of the listener to these bytes before it closes.
fn answer(port: u16, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(loopback(port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// The begin of the first packet of a TLS client.
const HELLO: &[u8] = b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_mqtt_is_told_so_where_it_understands_an_answer_and_counted() {
    let port = free_port().unwrap();
    let world = World::new(|config, _| config.websocket_listen = Some(loopback(port))).await;
    let get = |more: &str| format!("GET /mqtt HTTP/1.1\r\nHost: x\r\n{more}\r\n").into_bytes();
    let upgrade =
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let asks = |version: u8, more: &str| get(&format!("{upgrade}Sec-WebSocket-Version: {version}\r\n{more}"));
    let post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".to_vec();
    let cases = [
        (get(""), 426, "MQTT within WebSockets"),
        (asks(8, "Sec-WebSocket-Protocol: mqtt\r\n"), 426, "version 13"),
        (asks(13, ""), 400, "protocol mqtt"),
        (asks(13, "Sec-WebSocket-Protocol: chat, soap\r\n"), 400, "protocol mqtt"),
        (post, 400, "no WebSocket"),
        (b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01a\r\n\r\n".to_vec(), 400, ""),
        (get(&format!("X: {}\r\n", "x".repeat(10_000))), 431, ""),
    ];
    let count = cases.len() as u64;
    for (bytes, status, why) in cases {
        let answer = answer(port, &bytes);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(why), "{answer}");
        assert!(status != 426 || answer.to_lowercase().contains("upgrade: websocket"), "{answer}");
    }
    assert_eq!(answer(port, HELLO), "");
    assert_eq!(world.counted("broker_refused_total login"), count + 1);
    // The listener speaks only MQTT here.
    assert_eq!(answer(world.port, HELLO), "");
    assert_eq!(world.counted("broker_refused_total login"), count + 2);
    let page = answer(world.port, &get(""));
    assert!(page.starts_with("HTTP/1.1 400 ") && page.contains("broker.websocket_listen"), "{page}");
    assert_eq!(world.counted("broker_refused_total packet"), 1);
    // Any path is accepted.
    let opened = asks(13, "Sec-WebSocket-Protocol: chat, mqtt\r\n");
    let mut stream = TcpStream::connect(loopback(port)).unwrap();
    stream.write_all(&opened).unwrap();
    let mut begin = vec![0; 100];
    stream.read_exact(&mut begin).unwrap();
    let begin = String::from_utf8_lossy(&begin).to_lowercase();
    assert!(begin.starts_with("http/1.1 101") && begin.contains("connection: upgrade"), "{begin}");
}

/// A device of MQTT within TLS, and the certificate that it was shown.
fn device(port: u16, dir: &std::path::Path) -> (StreamOwned<ClientConnection, TcpStream>, Vec<u8>) {
    let trusted = TlsFiles { ca: Some(dir.join("ca.pem")), ..TlsFiles::default() };
    let (config, _) = client("test", &trusted, |file| std::fs::read(file)).unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(session, TcpStream::connect(loopback(port)).unwrap());
    stream.write_all(&four("device", true)).unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [0x20, 2, 0, 0]);
    let shown = stream.conn.peer_certificates().unwrap()[0].to_vec();
    (stream, shown)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_shown_after_a_reload_which_a_wrong_one_refuses_and_connections_stay() {
    let (dir, port) = (tempfile::tempdir().unwrap(), free_port().unwrap());
    let authority = Authority::new(dir.path());
    authority.certify_server(dir.path(), false);
    let tls =
        format!("tls_listen = \"127.0.0.1:{port}\", cert_file = \"server.pem\", key_file = \"server.key\"");
    let served = Served::within(dir, 0, "type = \"embedded\", path = \"fleet\"", &tls, "").await;
    let dir = served.dir.path();
    let (mut old, first) = device(port, dir);
    let reload = async || {
        let answer = CLIENT.post(format!("http://127.0.0.1:{}/-/reload", served.http)).send().await.unwrap();
        (answer.status().is_success(), answer.text().await.unwrap())
    };
    let key = std::fs::read(dir.join("server.key")).unwrap();
    authority.certify_server(dir, false);
    let fresh_key = std::fs::read(dir.join("server.key")).unwrap();
    std::fs::write(dir.join("server.key"), key).unwrap();
    let (is_loaded, text) = reload().await;
    assert!(!is_loaded && text.contains("broker.key_file") && text.contains("does not belong to"), "{text}");
    assert_eq!(served.value("rollcall_config_last_reload_successful").await, 0.0);
    std::fs::write(dir.join("server.key"), fresh_key).unwrap();
    let (is_loaded, text) = reload().await;
    assert!(is_loaded, "{text}");
    old.write_all(b"\xc0\0").unwrap();
    let mut pong = [0; 2];
    old.read_exact(&mut pong).unwrap();
    assert_eq!(pong, [0xd0, 0]);
    assert_ne!(device(port, dir).1, first);
}

/// The properties that the listener grants to a client with these properties.
fn granted(world: &World, id: &str, properties: &[u8]) -> (Wire, Vec<u8>) {
    let (wire, answer) = Wire::connect_to(world.port, &five(id, true, properties));
    assert_eq!(answer[..4], [0x20, answer.len() as u8 - 2, 0, 0], "{answer:?}");
    (wire, answer[5..].to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_told_their_borders_and_may_go_up_to_them() {
    let world = World::new(|_, _| {}).await;
    // An endless session is cut to a day, and a client without a keep-alive gets an hour.
    let (mut device, told) = granted(&world, "a", b"\x11\xff\xff\xff\xff");
    let expected = b"\x21\0\x64\x27\0\0\x10\0\x22\0\x10\x11\0\x01\x51\x80\x13\x0e\x10";
    assert_eq!(told, expected, "{told:x?}");
    // The client may have as many aliases as it was told.
    device.send(&publish(0x32, "units/a/data", 1, Some(b"\x23\0\x10"), b"1"));
    assert_eq!(device.packet().unwrap(), [0x40, 2, 0, 1]);
    device.send(&publish(0x32, "units/a/data", 2, Some(b"\x23\0\x11"), b"1"));
    assert_eq!(device.packet().unwrap(), [0xe0, 1, 0x94]);
    // An alias belongs to its connection.
    let (mut device, _) = granted(&world, "a", b"");
    device.send(&publish(0x32, "", 1, Some(b"\x23\0\x10"), b"1"));
    assert_eq!(device.packet().unwrap(), [0xe0, 1, 0x82]);
    // The longest client ids: 256 bytes, and whatever fits into a text.
    let long = |length: usize| {
        let rest = [&b"\0\x04MQTT\x05\x02\0\0\0"[..], &text(&"x".repeat(length))].concat();
        let mut length = rest.len();
        let mut header = vec![0x10];
        while length >= 128 {
            header.push((length % 128) as u8 | 0x80);
            length /= 128;
        }
        header.push(length as u8);
        [&header[..], &rest].concat()
    };
    assert_eq!(Wire::connect_to(world.port, &long(256)).1[..4], [0x20, 17, 0, 0]);
    assert_eq!(Wire::connect_to(world.port, &long(257)).1, [0x20, 3, 0, 0x85, 0]);
    assert_eq!(answer(world.port, &long(65_535)), "");
    assert_eq!(world.counted("broker_refused_total client_id"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_are_bounded_in_number_and_levels_and_each_refusal_is_counted() {
    let world = World::new(|_, _| {}).await;
    let (mut device, _) = granted(&world, "a", b"");
    for number in 0..=100 {
        device.send(&subscribe(1, &format!("units/{number}/#"), 0, true));
        let code = if number < 100 { 0 } else { 0x97 };
        assert_eq!(device.packet().unwrap(), [0x90, 4, 0, 1, 0, code], "{number}");
    }
    let (mut other, _) = granted(&world, "b", b"");
    for (levels, code) in [(59, 0), (60, 0x97)] {
        other.send(&subscribe(1, &format!("a/a/a/a/a{}", "/".repeat(levels)), 0, true));
        assert_eq!(other.packet().unwrap(), [0x90, 4, 0, 1, 0, code]);
    }
    assert_eq!(world.counted("broker_refused_total subscribe"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_in_flight_than_either_side_allows() {
    let world = World::new(|_, _| {}).await;
    // The client takes one message at a time.
    let (mut one, _) = granted(&world, "one", b"\x21\0\x01");
    one.send(&subscribe(1, "units/#", 1, true));
    assert_eq!(one.packet().unwrap(), [0x90, 4, 0, 1, 0, 1]);
    let (mut device, _) = granted(&world, "device", b"");
    for id in 1..=2 {
        device.send(&publish(0x32, "units/a/data", id, Some(b""), &[id]));
        assert_eq!(device.packet().unwrap(), [0x40, 2, 0, id]);
    }
    assert_eq!(one.packet().unwrap(), publish(0x32, "units/a/data", 1, Some(b""), &[1]));
    one.send(&[0xc0, 0]);
    assert_eq!(one.packet().unwrap(), [0xd0, 0], "nothing before it is acknowledged");
    one.send(&[0x40, 2, 0, 1]);
    assert_eq!(one.packet().unwrap(), publish(0x32, "units/a/data", 2, Some(b""), &[2]));
    // A client may have a hundred messages at QoS 2 that it does not release.
    for id in 1..=100 {
        device.send(&publish(0x34, "elsewhere", id, Some(b""), b""));
        assert_eq!(device.packet().unwrap(), [0x50, 2, 0, id]);
    }
    device.send(&publish(0x34, "elsewhere", 101, Some(b""), b""));
    assert_eq!(device.packet().unwrap(), [0xe0, 1, 0x93]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_hold_for_shared_subscriptions_wills_and_reserved_topics() {
    let world = World::new(|config, dir| {
        let rules = dir.join("rules");
        std::fs::write(&rules, "topic readwrite #\ntopic deny secret/#\n").unwrap();
        config.rules_file = Some(rules);
    })
    .await;
    let (mut device, _) = granted(&world, "a", b"");
    for (filter, code) in [
        ("units/#", 0),
        ("$share/g/units/#", 0),
        ("#", 0x87),
        ("$share/g/#", 0x87),
        ("$share/g/secret/a", 0x87),
        ("+/a", 0x87),
        ("$SYS/#", 0x87),
        ("$share/g/$SYS/#", 0x87),
    ] {
        device.send(&subscribe(1, filter, 0, true));
        assert_eq!(device.packet().unwrap(), [0x90, 4, 0, 1, 0, code], "{filter}");
    }
    for (topic, code) in [
        ("secret/a", 0x87),
        ("$SYS/a", 0x87),
        ("$share/g/units/a", 0x87),
        ("rollcall/canary/rollcall-main", 0x87),
        ("rollcall/canary", 0x87),
    ] {
        device.send(&publish(0x32, topic, 1, Some(b""), b"{}"));
        assert_eq!(device.packet().unwrap(), [0x40, 3, 0, 1, code], "{topic}");
    }
    // The first will may not be published, the second may.
    let mut hears = granted(&world, "b", b"").0;
    hears.send(&subscribe(1, "$share/g/units/#", 0, true));
    hears.packet().unwrap();
    device.send(&[0xe0, 0]);
    assert_eq!(device.packet(), None);
    let refused = world.counted("broker_refused_total publish");
    for topic in ["rollcall/canary/rollcall-main", "secret/a", "units/a/status"] {
        let will =
            [&b"\0\x04MQTT\x05\x06\0\0\0"[..], &text("c"), b"\0", &text(topic), &text("gone")].concat();
        let (mut dies, answer) = Wire::connect_to(world.port, &packet(0x10, &[&will]));
        assert_eq!(answer[3], 0);
        dies.send(&[0xe0, 1, 4]);
        assert_eq!(dies.packet(), None);
    }
    assert_eq!(hears.packet().unwrap(), publish(0x30, "units/a/status", 0, Some(b""), b"gone"));
    assert_eq!(world.counted("broker_refused_total publish"), refused + 2);
}
