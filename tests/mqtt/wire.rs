//! The listener, byte by byte: acknowledgements, sessions, takeover, and which messages reach which clients unchanged.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::broker::{World, loopback};
use rollcall::clock::monotonic;

/// A client that reads and writes packets as they are.
pub struct Wire(TcpStream);

impl Wire {
    /// Connects; also returns the client's CONNACK.
    fn connect(world: &World, packet: &[u8]) -> (Wire, Vec<u8>) {
        Wire::connect_to(world.port, packet)
    }

    pub fn connect_to(port: u16, packet: &[u8]) -> (Wire, Vec<u8>) {
        let stream = TcpStream::connect(loopback(port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut wire = Wire(stream);
        wire.send(packet);
        let answer = wire.packet().expect("an answer");
        (wire, answer)
    }

    pub fn send(&mut self, packet: &[u8]) {
        self.0.write_all(packet).unwrap();
    }

    /// The next packet; `None`: the connection has ended.
    pub fn packet(&mut self) -> Option<Vec<u8>> {
        let mut packet = vec![0; 2];
        self.0.read_exact(&mut packet).ok()?;
        let mut length = usize::from(packet[1]);
        if length >= 128 {
            // No packet of these tests is longer than two bytes of length allow.
            packet.push(0);
            self.0.read_exact(&mut packet[2..]).ok()?;
            length = length - 128 + 128 * usize::from(packet[2]);
        }
        let mut rest = vec![0; length];
        self.0.read_exact(&mut rest).ok()?;
        packet.extend(rest);
        Some(packet)
    }

    fn ends(&mut self) {
        assert_eq!(self.packet(), None);
    }
}

pub fn packet(first: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    [&[first, body.len() as u8], &body[..]].concat()
}

pub fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
}

/// CONNECT at 3.1.1, without a keep-alive.
pub fn four(id: &str, is_clean: bool) -> Vec<u8> {
    packet(0x10, &[b"\0\x04MQTT\x04", &[if is_clean { 2 } else { 0 }], b"\0\0", &text(id)])
}

/// CONNECT at MQTT 5 with these properties.
pub fn five(id: &str, is_clean: bool, properties: &[u8]) -> Vec<u8> {
    let (flags, length) = ([if is_clean { 2 } else { 0 }], [properties.len() as u8]);
    packet(0x10, &[b"\0\x04MQTT\x05", &flags, b"\0\0", &length, properties, &text(id)])
}

pub fn subscribe(id: u8, filter: &str, qos: u8, is_five: bool) -> Vec<u8> {
    let properties: &[u8] = if is_five { &[0] } else { &[] };
    packet(0x82, &[&[0, id], properties, &text(filter), &[qos]])
}

/// PUBLISH at 3.1.1, or at MQTT 5 with these properties.
pub fn publish(first: u8, topic: &str, id: u8, properties: Option<&[u8]>, payload: &[u8]) -> Vec<u8> {
    let id: &[u8] = if first & 6 == 0 { &[] } else { &[0, id] };
    let listed = properties.map(|listed| [&[listed.len() as u8], listed].concat()).unwrap_or_default();
    packet(first, &[&text(topic), id, &listed, payload])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_message_is_answered_as_its_version_says_and_costs_no_other() {
    let world = World::new(|_, _| {}).await;
    let (mut old, answer) = Wire::connect(&world, &four("old", true));
    assert_eq!(answer, [0x20, 2, 0, 0]);
    let (mut new, _) = Wire::connect(&world, &five("new", true, &[]));
    for (wire, properties, code) in [(&mut old, None, &[][..]), (&mut new, Some(&b""[..]), &[0x87][..])] {
        for (id, topic) in [(1, "units/a/data"), (2, "rollcall/canary/x"), (3, "$SYS/x"), (4, "units/a/data")]
        {
            wire.send(&publish(0x32, topic, id, properties, b"{}"));
            let code = if topic.starts_with("units") { &[][..] } else { code };
            assert_eq!(wire.packet().unwrap(), packet(0x40, &[&[0, id], code]), "{topic}");
        }
        // After a refusal at QoS 2 the id is free again; at 3.1.1 it is released like any other.
        wire.send(&publish(0x34, "rollcall/canary/x", 5, properties, b"{}"));
        assert_eq!(wire.packet().unwrap(), packet(0x50, &[&[0, 5], code]));
        wire.send(b"\xc0\0");
        assert_eq!(wire.packet().unwrap(), b"\xd0\0");
    }
    assert_eq!(world.counted("broker_refused_total publish"), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_that_are_not_spoken_are_refused_with_their_code_and_counted_and_a_bridge_is_let_in() {
    let world = World::new(|_, _| {}).await;
    let (mut old, answer) = Wire::connect(&world, b"\x10\x0f\0\x06MQIsdp\x03\x02\0\0\0\x01a");
    assert_eq!(answer, [0x20, 2, 0, 1]);
    old.ends();
    let (_, answer) = Wire::connect(&world, b"\x10\x0e\0\x04MQTT\x06\x02\0\0\0\0\x01a");
    assert_eq!(answer, [0x20, 3, 0, 0x84, 0]);
    assert_eq!(world.counted("broker_refused_total version"), 2);
    // A bridge of Mosquitto does not get its own messages back.
    let (mut bridge, answer) = Wire::connect(&world, b"\x10\x0d\0\x04MQTT\x84\x02\0\0\0\x01b");
    assert_eq!(answer, [0x20, 2, 0, 0]);
    bridge.send(&subscribe(1, "units/#", 0, false));
    assert_eq!(bridge.packet().unwrap(), [0x90, 3, 0, 1, 0]);
    bridge.send(&publish(0x30, "units/a/data", 0, None, b"own"));
    assert!(world.publish(&["-t", "units/b/data", "-m", "other"]).status.success());
    assert_eq!(bridge.packet().unwrap(), publish(0x30, "units/b/data", 0, None, b"other"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_breaks_the_protocol_is_told_why_at_mqtt_5_and_closed_at_3_1_1() {
    let world = World::new(|_, _| {}).await;
    for (first, code) in [(0x36_u8, 0x81), (0x00, 0x81), (0x20, 0x82)] {
        let (mut new, _) = Wire::connect(&world, &five("new", true, &[]));
        new.send(&[first, 2, 0, 0]);
        assert_eq!(new.packet().unwrap(), [0xe0, 1, code], "{first:x}");
        new.ends();
        let (mut old, _) = Wire::connect(&world, &four("old", true));
        old.send(&[first, 2, 0, 0]);
        old.ends();
    }
    assert_eq!(world.counted("broker_refused_total packet"), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_connection_takes_the_session_over_with_all_that_waits_and_is_counted() {
    let world = World::new(|_, _| {}).await;
    let (mut first, _) = Wire::connect(&world, &five("twin", true, b"\x11\0\0\0\x3c"));
    first.send(&subscribe(1, "units/#", 1, true));
    assert_eq!(first.packet().unwrap(), [0x90, 4, 0, 1, 0, 1]);
    assert!(world.publish(&["-q", "1", "-t", "units/a/data", "-m", "1"]).status.success());
    // The message is delivered, and the client does not acknowledge it.
    assert_eq!(first.packet().unwrap(), publish(0x32, "units/a/data", 1, Some(b""), b"1"));
    let (mut second, answer) = Wire::connect(&world, &five("twin", false, b"\x11\0\0\0\x3c"));
    assert_eq!(answer[2], 1, "the session is present");
    assert_eq!(first.packet().unwrap(), [0xe0, 1, 0x8e]);
    assert_eq!(second.packet().unwrap(), publish(0x3a, "units/a/data", 1, Some(b""), b"1"), "again");
    second.send(&[0x40, 2, 0, 1]);
    assert_eq!(world.counted("broker_refused_total taken_over"), 1);
    // Messages wait while the client is away, in order, also unacknowledged ones.
    second.send(&[0xe0, 0]);
    second.ends();
    for number in ["2", "3"] {
        assert!(world.publish(&["-q", "1", "-t", "units/a/data", "-m", number]).status.success());
    }
    let (mut third, answer) = Wire::connect(&world, &five("twin", false, b"\x11\0\0\0\x3c"));
    assert_eq!(answer[2], 1);
    for (id, payload) in [(2, b"2"), (3, b"3")] {
        assert_eq!(third.packet().unwrap(), publish(0x32, "units/a/data", id, Some(b""), payload));
    }
    let (_, answer) = Wire::connect(&world, &five("twin", true, &[]));
    assert_eq!(answer[2], 0, "a new session");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_reaches_its_subscribers_as_it_was_sent_with_nothing_added() {
    let world = World::new(|_, _| {}).await;
    let (mut new, _) = Wire::connect(&world, &five("new", true, &[]));
    new.send(&packet(0x82, &[&[0, 1, 2, 0x0b, 7], &text("units/+/data"), &[0]]));
    assert_eq!(new.packet().unwrap(), [0x90, 4, 0, 1, 0, 0]);
    let (mut old, _) = Wire::connect(&world, &four("old", true));
    old.send(&subscribe(1, "units/#", 1, false));
    assert_eq!(old.packet().unwrap(), [0x90, 3, 0, 1, 1]);
    let (mut device, _) = Wire::connect(&world, &five("device", true, &[]));
    // An alias for the topic, and everything that a message may have.
    let kept = b"\x01\x01\x03\0\x01c\x08\0\x01r\x09\0\x02dd\x26\0\x01k\0\x01v\x26\0\x01k\0\x01w";
    let sent = [&kept[..], b"\x23\0\x05"].concat();
    device.send(&publish(0x32, "units/a/data", 9, Some(&sent), b"\0\xff"));
    assert_eq!(device.packet().unwrap(), [0x40, 2, 0, 9]);
    let received = [&kept[..], b"\x0b\x07"].concat();
    let expected = publish(0x30, "units/a/data", 0, Some(&received), b"\0\xff");
    assert_eq!(new.packet().unwrap(), expected);
    assert_eq!(old.packet().unwrap(), publish(0x32, "units/a/data", 1, None, b"\0\xff"));
    // The next message uses the alias.
    device.send(&publish(0x30, "", 0, Some(b"\x23\0\x05"), b"2"));
    assert_eq!(new.packet().unwrap(), publish(0x30, "units/a/data", 0, Some(b"\x0b\x07"), b"2"));
    assert_eq!(old.packet().unwrap(), publish(0x30, "units/a/data", 0, None, b"2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_only_for_clients_is_acknowledged_before_its_sender_receives_it() {
    let world = World::new(|_, _| {}).await;
    let (mut both, _) = Wire::connect(&world, &five("both", true, &[]));
    both.send(&subscribe(1, "chat/#", 1, true));
    assert_eq!(both.packet().unwrap(), [0x90, 4, 0, 1, 0, 1]);
    for (id, first, answer) in [(1, 0x32, 0x40), (2, 0x34, 0x50), (3, 0x32, 0x40)] {
        both.send(&publish(first, "chat/a", id, Some(b""), b"1"));
        assert_eq!(both.packet().unwrap(), [answer, 2, 0, id]);
        assert_eq!(both.packet().unwrap(), publish(0x32, "chat/a", id, Some(b""), b"1"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_subscribes_before_another_one_publishes_receives_the_message() {
    let world = World::new(|_, _| {}).await;
    let (mut sender, _) = Wire::connect(&world, &four("sender", true));
    for number in 0..100 {
        let (mut receiver, _) = Wire::connect(&world, &four(&format!("receiver-{number}"), true));
        let topic = format!("chat/{number}");
        receiver.send(&subscribe(1, &topic, 0, false));
        sender.send(&publish(0x30, &topic, 0, None, b"1"));
        assert_eq!(receiver.packet().unwrap(), [0x90, 3, 0, 1, 0]);
        assert_eq!(receiver.packet().unwrap(), publish(0x30, &topic, 0, None, b"1"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_at_qos_2_is_taken_once_until_it_is_released() {
    let world = World::new(|_, _| {}).await;
    let heard = world.hear(&["-t", "units/#", "-q", "0"]).await;
    let (mut device, _) = Wire::connect(&world, &four("device", false));
    device.send(&publish(0x34, "units/a/data", 7, None, b"1"));
    assert_eq!(device.packet().unwrap(), [0x50, 2, 0, 7]);
    let (mut device, answer) = Wire::connect(&world, &four("device", false));
    assert_eq!(answer, [0x20, 2, 1, 0]);
    device.send(&publish(0x3c, "units/a/data", 7, None, b"1"));
    assert_eq!(device.packet().unwrap(), [0x50, 2, 0, 7]);
    device.send(&[0x62, 2, 0, 7]);
    assert_eq!(device.packet().unwrap(), [0x70, 2, 0, 7]);
    device.send(&publish(0x34, "units/a/data", 7, None, b"2"));
    assert_eq!(device.packet().unwrap(), [0x50, 2, 0, 7]);
    assert_eq!([heard.message(), heard.message()], ["units/a/data 1", "units/a/data 2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_timers_are_published_with_the_rights_of_their_client() {
    let world = World::new(|config, dir| {
        let rules = dir.join("rules");
        let text = "topic write rollcall/timers/+\ntopic readwrite planner/#\ntopic read commands/#\n";
        std::fs::write(&rules, text).unwrap();
        config.rules_file = Some(rules);
    })
    .await;
    let (mut planner, _) = Wire::connect(&world, &five("planner", true, &[]));
    for (id, filter) in [(1, "planner/#"), (2, "commands/#")] {
        planner.send(&subscribe(id, filter, 0, true));
        assert_eq!(planner.packet().unwrap(), [0x90, 4, 0, id, 0, 0]);
    }
    let asks = |id: u8, topic: &str| {
        let reply_to = [&[8][..], &text(topic)].concat();
        let payload = br#"{"type":"report-due","in":"1h"}"#;
        publish(0x32, "rollcall/timers/a", id, Some(&reply_to), payload)
    };
    planner.send(&asks(3, "commands/siren"));
    assert_eq!(planner.packet().unwrap(), [0x40, 2, 0, 3], "it is applied, and not answered there");
    assert_eq!(world.counted("broker_refused_total publish"), 1);
    planner.send(&asks(4, "planner/answers"));
    let answers = [planner.packet().unwrap(), planner.packet().unwrap()];
    let text = answers.iter().map(|answer| String::from_utf8_lossy(answer).into_owned()).collect::<String>();
    assert!(text.contains("planner/answers") && text.contains(r#""state":"waiting""#), "{text}");
    assert!(answers.contains(&vec![0x40, 2, 0, 4]) && !text.contains("siren"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_shared_subscription_receive_messages_in_turn_and_rules_hold_for_them() {
    let world = World::new(|_, _| {}).await;
    let members: Vec<Wire> = (0..2)
        .map(|number| {
            let (mut member, _) = Wire::connect(&world, &five(&format!("m{number}"), true, &[]));
            member.send(&subscribe(1, "$share/g/units/#", 0, true));
            assert_eq!(member.packet().unwrap(), [0x90, 4, 0, 1, 0, 0]);
            member.send(&subscribe(2, "$share/g/#", 0, true));
            assert_eq!(member.packet().unwrap(), [0x90, 4, 0, 2, 0, 0x87]);
            member
        })
        .collect();
    for number in ["1", "2", "3", "4"] {
        assert!(world.publish(&["-q", "1", "-t", "units/a/data", "-m", number]).status.success());
    }
    for mut member in members {
        let payloads =
            [member.packet().unwrap(), member.packet().unwrap()].map(|packet| packet[packet.len() - 1]);
        assert!(payloads == *b"13" || payloads == *b"24", "{payloads:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_and_pages_speak_mqtt_within_websockets() {
    let port = rollcall::simulate::servers::free_port().unwrap();
    let world = World::new(|config, _| config.websocket_listen = Some(loopback(port))).await;
    let heard = world.hear(&["-t", "units/#", "-q", "1"]).await;
    let broker = rumqttc::Broker::websocket(format!("ws://127.0.0.1:{port}/mqtt")).unwrap();
    let options = rumqttc::MqttOptions::new("page", broker);
    let (client, mut events) = rumqttc::AsyncClient::builder(options).capacity(10).build();
    let qos = rumqttc::PublishOptions::new(rumqttc::QoS::AtLeastOnce);
    let large = "x".repeat(3000);
    client.publish("units/a/data", large.clone(), qos).await.unwrap();
    let acknowledged = async {
        while !matches!(events.poll().await.unwrap(), rumqttc::Event::Incoming(rumqttc::Packet::PubAck(_))) {}
    };
    tokio::time::timeout(Duration::from_secs(60), acknowledged).await.expect("it is acknowledged");
    assert_eq!(heard.message(), format!("units/a/data {large}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_floods_with_bytes_is_read_more_slowly_and_loses_nothing() {
    let world = World::new(|config, _| config.max_bytes_per_second = 100_000).await;
    let heard = world.hear(&["-t", "units/#", "-q", "1"]).await;
    let (mut device, _) = Wire::connect(&world, &four("device", true));
    let payload = [b'x'; 100];
    let began = monotonic();
    for _ in 0..2000 {
        device.send(&publish(0x30, "units/a/data", 0, None, &payload));
    }
    for _ in 0..2000 {
        assert!(heard.message().starts_with("units/a/data x"));
    }
    assert!(
        monotonic().duration_since(began) > Duration::from_millis(900),
        "{:?}",
        monotonic().duration_since(began)
    );
    assert!(world.counted("broker_held_back_total") > 0);
}
