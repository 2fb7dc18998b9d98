//! Claims about the channel to an MQTT broker.

use rollcall::alerting::{Example, MqttConfig, open, probe, send_test};
use rollcall::presence::{FiredTimer, Guarantee};
use rollcall::simulate::servers::{Server, free_port};
use rumqttc::{AsyncClient, Event, EventLoop, MqttOptions, Packet, QoS};
use serde_json::Value;

use super::world::until;
use super::*;

fn broker(dir: &std::path::Path, more: &str) -> Server {
    Server::mosquitto(dir, free_port().unwrap(), more).unwrap()
}

fn to(broker: &Server, config: MqttConfig) -> ReceiverConfig {
    let url = format!("mqtt://127.0.0.1:{}", broker.port());
    receiver("hook", ChannelConfig::Mqtt(Box::new(MqttConfig { url, ..config })))
}

async fn subscriber(broker: &Server, filter: &str) -> (AsyncClient, EventLoop) {
    let options = MqttOptions::new("reader", ("127.0.0.1", broker.port()));
    let (client, mut events) = AsyncClient::builder(options).capacity(10).build();
    client.subscribe(filter, QoS::AtLeastOnce).await.unwrap();
    while !matches!(events.poll().await.unwrap(), Event::Incoming(Packet::SubAck(_))) {}
    (client, events)
}

fn fired(guarantee: Guarantee) -> FiredTimer {
    FiredTimer {
        id: "reboot-7".parse().unwrap(),
        timer_type: "command".parse().unwrap(),
        due: now(),
        fired_at: now(),
        data: r#"{"do": "reboot", "to": "pump-7"}"#.parse().unwrap(),
        guarantee,
    }
}

/// The next messages: their topics, their payloads, and whether they were retained.
async fn next(events: &mut EventLoop, count: usize) -> Vec<(String, Value, bool)> {
    let mut found = Vec::new();
    let read = async {
        while found.len() < count {
            if let Event::Incoming(Packet::Publish(message)) = events.poll().await.unwrap() {
                let topic = String::from_utf8_lossy(&message.topic).into_owned();
                found.push((topic, serde_json::from_slice(&message.payload).unwrap(), message.retain));
            }
        }
    };
    tokio::time::timeout(MAX_WAIT, read).await.expect("the messages come");
    found
}

#[tokio::test]
async fn each_transition_is_published_on_its_topic() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path(), "");
    let (_client, mut events) = subscriber(&broker, "#").await;
    let receiver = to(&broker, MqttConfig::default());
    let channel = open(&receiver).unwrap();
    probe(&receiver).await.unwrap();
    let (down, up) = (silent("detector:a", now()), silent("detector:b", now()));
    let both = delivery(vec![down.clone()], vec![back(&up, now())]);
    channel.send(&both, now()).await.unwrap();
    let [(first, closed, _), (second, opened, _)] = &next(&mut events, 2).await[..] else { panic!() };
    assert_eq!([first.as_str(), second], ["rollcall/alerts/detector/b", "rollcall/alerts/detector/a"]);
    assert_eq!([&opened["action"], &closed["action"]], ["trigger", "resolve"]);
    assert_eq!(opened["key"], down.id.to_string());
    assert_eq!(opened["id"], both.id);
    // A unit that was back for a while is offline at the end.
    let again = OfflineRecord { detected_at: up.detected_at + HOUR, ..up.clone() };
    channel.send(&delivery(vec![again], vec![back(&up, now())]), now()).await.unwrap();
    let actions: Vec<Value> =
        next(&mut events, 2).await.into_iter().map(|(_, payload, _)| payload["action"].clone()).collect();
    assert_eq!(actions, ["resolve", "trigger"]);
    send_test(&receiver, now()).await.unwrap();
    assert_eq!(next(&mut events, 2).await[0].1["type"], "rollcall.test");
}

#[tokio::test]
async fn a_storm_arrives_whole_and_the_last_transition_is_retained() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path(), "");
    let topic = "fleet/{{ member.labels.site }}/{{ member.unit }}".to_owned();
    let channel = open(&to(&broker, MqttConfig { topic, retain: true, ..MqttConfig::default() }));
    // A blind interval has no site.
    assert!(channel.err().expect("no site").starts_with("topic, line 1: "));
    // A site may hold the wildcards of MQTT.
    let topic = "fleet/{{ member.labels.site | default('none') }}/{{ member.unit }}".to_owned();
    let channel = open(&to(&broker, MqttConfig { topic, retain: true, ..MqttConfig::default() }));
    assert!(channel.err().expect("no topic").contains("urlencode"));
    let topic = "fleet/{{ member.labels.site | default('none') | urlencode }}/{{ member.source }}".to_owned();
    let channel = open(&to(&broker, MqttConfig { topic, retain: true, ..MqttConfig::default() })).unwrap();
    let storm = Example::Storm.delivery("hook");
    channel.send(&storm, now()).await.unwrap();
    let (_client, mut events) = subscriber(&broker, "fleet/north/detector/+").await;
    let found = next(&mut events, storm.offline.len() + storm.online.len()).await;
    assert!(found.iter().all(|(_, _, retained)| *retained));
}

#[tokio::test]
async fn a_timer_is_published_in_the_form_that_the_receiver_wants() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path(), "");
    let (_client, mut events) = subscriber(&broker, "commands/#").await;
    let fired = fired(Guarantee::AtLeastOnce);
    let due = fired.due;
    let sent = Delivery {
        id: format!("{}.hook", fired.id.firing(fired.due)),
        timers: vec![fired],
        ..delivery(Vec::new(), Vec::new())
    };
    let topic = "commands/{{ timer.type }}/{{ timer.data.to }}".to_owned();
    let payload = r#"{"do": {{ timer.data.do | tojson }}, "id": {{ notification | tojson }}}"#.to_owned();
    let config = MqttConfig { topic: topic.clone(), payload, ..MqttConfig::default() };
    open(&to(&broker, config)).unwrap().send(&sent, now()).await.unwrap();
    open(&to(&broker, MqttConfig { topic, ..MqttConfig::default() }))
        .unwrap()
        .send(&sent, now())
        .await
        .unwrap();
    let [(where_to, short, _), (_, whole, _)] = &next(&mut events, 2).await[..] else { panic!() };
    assert_eq!(where_to, "commands/command/pump-7");
    let id = format!("reboot-7:{}", due.as_millis());
    assert_eq!(*short, serde_json::json!({ "do": "reboot", "id": id }));
    assert_eq!((&whole["id"], &whole["data"]["do"]), (&"reboot-7".into(), &"reboot".into()));
    assert_eq!(whole["notification"], id);
}

#[tokio::test]
async fn a_broker_that_refuses_us_or_is_away_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("acl"), "topic write other/#\n").unwrap();
    let acl = format!("acl_file {}", dir.path().join("acl").display());
    let refusing = broker(dir.path(), &acl);
    let away = receiver(
        "hook",
        ChannelConfig::Mqtt(Box::new(MqttConfig {
            url: format!("mqtt://127.0.0.1:{}", free_port().unwrap()),
            credentials: Some(("rollcall".to_owned(), "s3cret".to_owned())),
            ..MqttConfig::default()
        })),
    );
    for (receiver, expected) in
        [(to(&refusing, MqttConfig::default()), "NotAuthorized"), (away, "was not reached")]
    {
        let why = send_test(&receiver, now()).await.unwrap_err().to_string();
        assert!(why.contains(expected) && !why.contains("s3cret"), "{why}");
    }
}

/// The connections of the receiver up to now, by the broker's log.
async fn connections(broker: &Server, dir: &std::path::Path) -> usize {
    let log = || std::fs::read_to_string(dir.join("mosquitto.log")).unwrap();
    let markers = log().matches(" as marker ").count();
    let options = MqttOptions::new("marker", ("127.0.0.1", broker.port()));
    let (_client, mut events) = AsyncClient::builder(options).capacity(1).build();
    while !matches!(events.poll().await.unwrap(), Event::Incoming(Packet::ConnAck(_))) {}
    until("the marker is in the log", async || log().matches(" as marker ").count() > markers).await;
    log().matches(" as rollcall_alerts-hook-").count()
}

#[tokio::test]
async fn deliveries_share_a_connection_and_one_that_the_broker_ended_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let first = broker(dir.path(), "");
    let (port, receiver) = (first.port(), to(&first, MqttConfig::default()));
    let channel = open(&receiver).unwrap();
    let one = delivery(vec![silent("detector:a", now())], Vec::new());
    for _ in 0..20 {
        channel.send(&one, now()).await.unwrap();
    }
    assert_eq!(connections(&first, dir.path()).await, 1);
    drop(first);
    let dir = tempfile::tempdir().unwrap();
    let again = Server::mosquitto(dir.path(), port, "").unwrap();
    let all = (0..20).map(|_| channel.send(&one, now()));
    futures_util::future::try_join_all(all).await.unwrap();
    let at_once = connections(&again, dir.path()).await;
    assert!((1..=20).contains(&at_once), "each attempt has its own: {at_once}");
    for _ in 0..20 {
        channel.send(&one, now()).await.unwrap();
    }
    assert_eq!(connections(&again, dir.path()).await, at_once);
    // A delivery that must not be repeated has a connection of its own, so that no other delivery can cause its end.
    let once = Delivery { timers: vec![fired(Guarantee::AtMostOnce)], ..one };
    for _ in 0..3 {
        channel.send(&once, now()).await.unwrap();
    }
    assert_eq!(connections(&again, dir.path()).await, at_once + 3);
}

#[tokio::test]
async fn a_message_that_the_broker_does_not_take_ends_no_other_delivery() {
    let dir = tempfile::tempdir().unwrap();
    let broker = broker(dir.path(), "max_packet_size 2000");
    let payload = "{% if member.unit == 'large' %}{{ 'x' * 5000 }}{% else %}{}{% endif %}".to_owned();
    let channel = open(&to(&broker, MqttConfig { payload, ..MqttConfig::default() })).unwrap();
    let of = |unit: &str| delivery(vec![silent(unit, now())], Vec::new());
    let (large, small) = (of("detector:large"), of("detector:small"));
    channel.send(&small, now()).await.unwrap();
    for _ in 0..5 {
        let (refused, taken) = tokio::join!(channel.send(&large, now()), channel.send(&small, now()));
        assert!(refused.is_err());
        taken.unwrap();
    }
}
