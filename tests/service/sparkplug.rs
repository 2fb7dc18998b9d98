//! Nodes of Sparkplug B at Mosquitto: births, data, deaths, and Rollcall as their host application.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rumqttc::{AsyncClient, Event, Incoming, LastWill, MqttOptions, PublishOptions, QoS};
use tokio::task::JoinHandle;

use super::announcements::{counted, is, open};
use super::world::World;
use rollcall::clock::monotonic;
use rollcall::presence::TAKEOVER;
use rollcall::simulate::servers::{Server, free_port};

const EMBEDDED: &str = "engine = { type = \"embedded\", path = \"{dir}/data\" }\n# engine.type";

fn edges(presence: &str) -> String {
    format!(
        "[[kind]]\nname = \"detector\"\ntimeout = \"1h\"\npresence = {{ format = \"sparkplug\", {presence} }}\n"
    )
}

/// The messages that a client received, newest last, by topic.
type Received = Arc<Mutex<BTreeMap<String, Vec<Vec<u8>>>>>;

/// A client of the broker, connected once.
struct Client {
    client: AsyncClient,
    polled: JoinHandle<()>,
    received: Received,
}

impl Client {
    async fn start(port: u16, id: &str, will: Option<(&str, Vec<u8>)>, filter: &str) -> Client {
        let mut options = MqttOptions::new(id, ("127.0.0.1", port));
        options.set_clean_start(true).set_keep_alive(5);
        if let Some((topic, payload)) = will {
            options.set_last_will(LastWill::new(topic, payload, QoS::AtLeastOnce, false, None));
        }
        let (client, mut events) = AsyncClient::builder(options).capacity(64).build();
        let received = Received::default();
        let (subscribed, is_subscribed) = tokio::sync::oneshot::channel();
        let (mut subscribed, into) = (Some(subscribed), received.clone());
        client.subscribe(filter, QoS::AtLeastOnce).await.unwrap();
        let polled = tokio::spawn(async move {
            while let Ok(event) = events.poll().await {
                match event {
                    Event::Incoming(Incoming::SubAck(_)) => {
                        let _ = subscribed.take().map(|subscribed| subscribed.send(()));
                    }
                    Event::Incoming(Incoming::Publish(message)) => {
                        let topic = String::from_utf8(message.topic.to_vec()).unwrap();
                        into.lock().unwrap().entry(topic).or_default().push(message.payload.to_vec());
                    }
                    _ => {}
                }
            }
        });
        is_subscribed.await.unwrap();
        Client { client, polled, received }
    }

    async fn publish(&self, topic: &str, payload: Vec<u8>) {
        self.client.publish(topic, payload, PublishOptions::new(QoS::AtLeastOnce)).await.unwrap();
    }

    /// The last message on a topic, as text.
    fn last(&self, topic: &str) -> String {
        let received = self.received.lock().unwrap();
        let last = received.get(topic).and_then(|all| all.last()).cloned().unwrap_or_default();
        String::from_utf8_lossy(&last).into_owned()
    }

    async fn cut(self) {
        self.polled.abort();
        let _ = self.polled.await;
    }
}

/// A payload with its number and metrics: `(name, alias, value)`.
fn payload(seq: Option<u8>, metrics: &[(&str, u8, u8)]) -> Vec<u8> {
    let mut bytes = vec![0x08, 1];
    for (name, alias, value) in metrics {
        let name = [&[0x0a, name.len() as u8], name.as_bytes()].concat();
        let name = if name.len() > 2 { name } else { Vec::new() };
        // An alias, the type UInt64, and the value.
        let metric = [&name[..], &[0x10, *alias, 0x20, 8, 0x58, *value]].concat();
        bytes.extend([0x12, metric.len() as u8]);
        bytes.extend(metric);
    }
    bytes.extend(seq.into_iter().flat_map(|seq| [0x18, seq]));
    bytes
}

fn topic(of: &str, node: &str) -> String {
    format!("spBv1.0/plant/{of}/{node}")
}

/// A node that is born, with its devices.
async fn node(port: u16, name: &str, bd_seq: u8, devices: &[&str]) -> Client {
    let death = payload(None, &[("bdSeq", 9, bd_seq)]);
    let id = format!("{name}-{bd_seq}");
    let client = Client::start(port, &id, Some((&topic("NDEATH", name), death)), &topic("NCMD", name)).await;
    let birth = payload(Some(0), &[("bdSeq", 9, bd_seq), ("Inputs/Volts", 3, 12)]);
    client.publish(&topic("NBIRTH", name), birth).await;
    for (seq, device) in (1..).zip(devices) {
        client.publish(&topic("DBIRTH", &format!("{name}/{device}")), payload(Some(seq), &[])).await;
    }
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_takes_its_devices_along_and_a_stale_death_takes_none() {
    let options = format!("# redis\n{}", edges("trust = \"proof\", settle = \"2s\", host = \"rollcall\""));
    let mut world = World::new(&options, &[]).await;
    let port = world.broker.port();
    let n1 = node(port, "n1", 0, &["d1", "d2"]).await;
    let n2 = node(port, "n2", 7, &["d1"]).await;
    for unit in ["plant.n1", "plant.n1.d1", "plant.n1.d2", "plant.n2", "plant.n2.d1"] {
        is(&world, unit, "online").await;
    }
    let labels = world.json("/api/v1/units/detector/plant.n1.d2").await["labels"].clone();
    assert_eq!(labels, serde_json::json!({"group": "plant", "node": "n1", "device": "d2"}));

    n1.publish(&topic("DDEATH", "n1/d1"), payload(Some(3), &[])).await;
    is(&world, "plant.n1.d1", "offline").await;
    assert_eq!(open(&world).await, [("plant.n1.d1".to_owned(), "disconnected".to_owned())]);

    // The death of an earlier session.
    let other = Client::start(port, "other", None, "spBv1.0/STATE/+").await;
    other.publish(&topic("NDEATH", "n2"), payload(None, &[("bdSeq", 9, 6)])).await;
    world.eventually("the death is stale", async || counted(&world, "stale").await).await;

    // A process that has seen no birth of its devices.
    let host = "spBv1.0/STATE/rollcall";
    world.eventually("the host is online", async || other.last(host).contains("\"online\":true")).await;
    world.stop().await;
    world.eventually("the host is offline", async || other.last(host).contains("\"online\":false")).await;
    world.start().await;
    world.eventually("the host is online", async || other.last(host).contains("\"online\":true")).await;

    // And no birth of its nodes, so that a death is a hint: this one is stale, and the next one is not.
    other.publish(&topic("NDEATH", "n2"), payload(None, &[("bdSeq", 9, 6)])).await;
    for unit in ["plant.n2", "plant.n2.d1"] {
        is(&world, unit, "late").await;
    }
    n2.publish(&topic("DDATA", "n2/d1"), payload(Some(2), &[])).await;
    for unit in ["plant.n2", "plant.n2.d1"] {
        is(&world, unit, "online").await;
    }
    n1.cut().await;
    is(&world, "plant.n1", "late").await;
    for unit in ["plant.n1", "plant.n1.d2"] {
        is(&world, unit, "offline").await;
    }
    let mut records = open(&world).await;
    records.sort();
    let expected =
        [("plant.n1", "node_death"), ("plant.n1.d1", "disconnected"), ("plant.n1.d2", "node_death")];
    assert_eq!(records, expected.map(|(unit, cause)| (unit.to_owned(), cause.to_owned())));
    for unit in ["plant.n2", "plant.n2.d1"] {
        assert_eq!(world.state(unit).await, "online", "{unit}");
    }

    let n1 = node(port, "n1", 1, &["d1", "d2"]).await;
    for unit in ["plant.n1", "plant.n1.d1", "plant.n1.d2"] {
        is(&world, unit, "online").await;
    }
    drop((n1, n2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_takes_devices_along_whose_instance_does_not_hear_its_broker() {
    let dir = tempfile::tempdir().unwrap();
    let us = Server::mosquitto(&dir.path().join("us"), free_port().unwrap(), "").unwrap();
    let detectors = edges("trust = \"proof\"").replace("timeout", "brokers = [\"eu\"]\ntimeout");
    let options = format!(
        "instance = {{ name = \"stays\", brokers = [\"us\"] }}\n\
         [[mqtt]]\nname = \"eu\"\nurl = \"mqtt://127.0.0.1:{{broker}}\"\n\
         [[mqtt]]\nname = \"us\"\nurl = \"mqtt://127.0.0.1:{}\"\n{detectors}\
         [[kind]]\nname = \"pump\"\nbrokers = [\"us\"]\n",
        us.port()
    );
    let world = World::new(&options, &[]).await;
    let (stop, another) =
        world.start_another_by(|text| text.replace("brokers = [\"us\"] }", "brokers = [\"eu\"] }"));
    let both = "\"instances\":[\"comes\",\"stays\"]";
    world.eventually("both run", async || world.text_of("/readyz").await.contains(both)).await;
    let devices: Vec<String> = (0..20).map(|number| format!("d{number}")).collect();
    let node =
        node(world.broker.port(), "n1", 0, &devices.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for device in &devices {
        is(&world, &format!("plant.n1.{device}"), "online").await;
    }
    node.cut().await;
    world.eventually("all are offline", async || open(&world).await.len() == 21).await;
    assert!(open(&world).await.iter().all(|(_, cause)| cause == "node_death"), "{:?}", open(&world).await);
    stop.cancel();
    another.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_corrects_the_state_of_the_host_after_another_one_and_goes_on_hearing() {
    let options = format!("# redis\n{}", edges("trust = \"proof\", host = \"rollcall\""));
    let world = World::new(&options, &[]).await;
    let reader = Client::start(world.broker.port(), "reader", None, "spBv1.0/STATE/+").await;
    let state = || reader.last("spBv1.0/STATE/rollcall");
    let is_online_after = async |before: &str| state() != before && state().contains("\"online\":true");
    world.eventually("the host is online", async || is_online_after("").await).await;
    let first = state();
    let (stop, running) = world.start_another();
    world.eventually("another instance says so too", async || is_online_after(&first).await).await;
    let second = state();
    stop.cancel();
    running.await.unwrap().unwrap();
    world.eventually("the first one says so again", async || is_online_after(&second).await).await;
    let metrics = world.text_of("/metrics").await;
    let lost = metrics.lines().filter(|line| line.starts_with("rollcall_mqtt_connections_lost_total{"));
    let lost: Vec<&str> = lost.filter(|line| !line.ends_with(" 0")).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_which_messages_are_missing_is_asked_for_its_births() {
    let metric = "[[kind.metric]]\nname = \"volts\"\ntype = \"gauge\"\nhelp = \"Volts.\"\n\
                  pointer = \"/Inputs/Volts\"\n";
    let options = format!("{EMBEDDED}\n{}{metric}", edges("trust = \"proof\", rebirth = true"));
    let world = World::new(&options, &[]).await;
    let n1 = node(world.broker.port(), "n1", 0, &[]).await;
    n1.publish(&topic("NDATA", "n1"), payload(Some(1), &[("", 3, 13)])).await;
    let volts = async |value: &str| {
        let page = world.text_of("/metrics/units").await;
        page.lines().any(|line| line.starts_with("volts{") && line.ends_with(&format!(" {value}")))
    };
    world.eventually("the metric of an alias came", async || volts("13").await).await;
    assert_eq!(n1.last(&topic("NCMD", "n1")), "");

    n1.publish(&topic("NDATA", "n1"), payload(Some(5), &[("", 3, 14)])).await;
    let asked = async || n1.last(&topic("NCMD", "n1")).contains("Node Control/Rebirth");
    world.eventually("it is asked for its births", asked).await;
    is(&world, "plant.n1", "online").await;
    n1.publish(&topic("NBIRTH", "n1"), payload(Some(0), &[("bdSeq", 9, 0), ("Inputs/Volts", 3, 15)])).await;
    // A death right after it may be that of a session that was taken over.
    let until = monotonic() + 2 * TAKEOVER;
    world.eventually("it is born again", async || volts("15").await && monotonic() > until).await;
    n1.cut().await;
    is(&world, "plant.n1", "offline").await;
    assert_eq!(open(&world).await, [("plant.n1".to_owned(), "node_death".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_of_a_bridge_that_is_offline_are_unknown_and_not_dead() {
    let kind = "[[kind]]\nname = \"detector\"\ntopics = [\"zigbee2mqtt/{unit}\"]\ntimeout = \"2s\"\n\
                presence = { format = \"zigbee2mqtt\", trust = \"proof\" }\n";
    let world = World::new(&format!("{EMBEDDED}\n{kind}"), &[]).await;
    let port = world.broker.port();
    let state = |state: &str| format!("{{\"state\":\"{state}\"}}").into_bytes();
    let bridge_topic = "zigbee2mqtt/bridge/state";
    let bridge = Client::start(port, "bridge", Some((bridge_topic, state("offline"))), "none").await;
    bridge.publish(bridge_topic, state("online")).await;
    bridge.publish("zigbee2mqtt/lamp", b"{}".to_vec()).await;
    is(&world, "lamp", "online").await;
    bridge.cut().await;
    is(&world, "lamp", "unknown").await;
    assert_eq!(open(&world).await, []);

    let bridge = Client::start(port, "bridge", Some((bridge_topic, state("offline"))), "none").await;
    bridge.publish(bridge_topic, state("online")).await;
    bridge.publish("zigbee2mqtt/lamp", b"{}".to_vec()).await;
    is(&world, "lamp", "online").await;
    // An announcement that comes before the kind is proved to be heard again says nothing.
    let dies = async || {
        bridge.publish("zigbee2mqtt/lamp", b"{}".to_vec()).await;
        bridge.publish("zigbee2mqtt/lamp/availability", state("offline")).await;
        let until = monotonic() + std::time::Duration::from_secs(1);
        while monotonic() < until {
            if world.state("lamp").await == "offline" {
                return true;
            }
        }
        false
    };
    world.eventually("the lamp is offline", dies).await;
    assert_eq!(open(&world).await, [("lamp".to_owned(), "disconnected".to_owned())]);
}
