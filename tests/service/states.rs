//! The states of units that Rollcall publishes, as other clients of the broker see them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollcall::simulate::servers::{Server, free_port};
use rumqttc::{AsyncClient, Event, Incoming, MqttOptions, PublishOptions, QoS, SubscribeFilterInput};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::world::World;
use crate::support::http::CLIENT;

const KINDS: &str = r#"
    mqtt.publish_state = true
    mqtt.homeassistant_discovery = true
    [[kind]]
    name = "detector"
    timeout = "2s"
    [[kind]]
    name = "lasting"
    topics = ["lasting/{unit}/heartbeat"]
"#;

/// A client that keeps the last message of each topic, and no empty ones.
struct Reader {
    seen: Arc<Mutex<BTreeMap<String, String>>>,
    client: AsyncClient,
    polled: JoinHandle<()>,
}

impl Reader {
    async fn start(port: u16) -> Reader {
        let seen: Arc<Mutex<BTreeMap<String, String>>> = Arc::default();
        let mut options =
            MqttOptions::new(format!("reader-{:x}", rand::random::<u32>()), ("127.0.0.1", port));
        options.set_clean_start(true);
        let (client, mut events) = AsyncClient::builder(options).capacity(64).build();
        for filter in ["rollcall/state/+/+", "homeassistant/#"] {
            client.subscribe_many([SubscribeFilterInput::new(filter, QoS::AtLeastOnce)]).await.unwrap();
        }
        let into = seen.clone();
        let polled = tokio::spawn(async move {
            loop {
                match events.poll().await {
                    Ok(Event::Incoming(Incoming::Publish(publish))) => {
                        let topic = String::from_utf8_lossy(&publish.topic).into_owned();
                        let mut seen = into.lock().unwrap();
                        match publish.payload.is_empty() {
                            true => drop(seen.remove(&topic)),
                            false => drop(
                                seen.insert(topic, String::from_utf8_lossy(&publish.payload).into_owned()),
                            ),
                        }
                    }
                    Ok(_) => {}
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        });
        Reader { seen, client, polled }
    }

    fn get(&self, topic: &str) -> Value {
        let text = self.seen.lock().unwrap().get(topic).cloned();
        text.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap_or(text.into()))
    }

    fn state(&self, unit: &str) -> Value {
        self.get(&format!("rollcall/state/{unit}"))
    }

    async fn is(&self, world: &World, unit: &str, state: &str) {
        let what = format!("{unit} is published as {state}");
        world.eventually(&what, async || self.state(unit)["state"] == state).await;
    }

    async fn retain(&self, topic: &str, payload: &str) {
        let options = PublishOptions::new(QoS::AtLeastOnce).retained();
        let notice = self.client.publish_tracked(topic, payload, options).await.unwrap();
        notice.wait_async().await.unwrap();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.polled.abort();
    }
}

const SENSOR: &str = "homeassistant/binary_sensor/rollcall/detector_a/config";
const SENSOR_B: &str = "homeassistant/binary_sensor/rollcall/lasting_b/config";
/// Of another fleet at the broker.
const SENSOR_OF_ANOTHER: &str = "homeassistant/binary_sensor/rollcall/valve_7/config";

#[tokio::test(flavor = "multi_thread")]
async fn the_states_at_the_broker_are_those_of_the_units_also_after_a_restart() {
    let mut world = World::new(KINDS, &[]).await;
    let reader = Reader::start(world.broker.port()).await;
    let beat = async |world: &World, unit: &str| world.beat(&[unit.to_owned()]).await;
    beat(&world, "a").await;
    reader.is(&world, "detector/a", "online").await;
    world.eventually("its sensor", async || !reader.get(SENSOR).is_null()).await;
    let sensor = reader.get(SENSOR);
    assert_eq!(
        (&sensor["device_class"], &sensor["state_topic"]),
        (&json!("connectivity"), &json!("rollcall/state/detector/a"))
    );
    reader.is(&world, "detector/a", "offline").await;
    let record = world.records().await.remove(0);
    let published = reader.state("detector/a");
    for (field, of_record) in [("since", "deadline"), ("last_seen", "last_seen"), ("cause", "cause")] {
        assert_eq!(published[field], record[of_record], "{published} {record}");
    }
    beat(&world, "a").await;
    reader.is(&world, "detector/a", "online").await;
    let record = world.records().await.into_iter().find(|record| record["back_at"] != Value::Null).unwrap();
    assert_eq!(reader.state("detector/a")["since"], record["back_at"]);

    world.beat_to("lasting", &["b".to_owned(), "c".to_owned()]).await;
    reader.is(&world, "lasting/b", "online").await;
    reader.is(&world, "lasting/c", "online").await;
    world.eventually("their sensors", async || !reader.get(SENSOR_B).is_null()).await;
    let sensor = reader.get(SENSOR_B);
    // While nothing runs, another client writes what is not true.
    world.stop().await;
    reader.retain(SENSOR_B, r#"{"name":"another"}"#).await;
    reader.retain("rollcall/state/valve/7", r#"{"state":"offline"}"#).await;
    reader.retain(SENSOR_OF_ANOTHER, r#"{"state_topic":"rollcall/state/valve/7"}"#).await;
    reader
        .retain(
            "rollcall/state/lasting/b",
            r#"{"state":"offline","since":"2026-03-01T12:00:00Z","last_seen":null,"cause":null}"#,
        )
        .await;
    reader.retain("rollcall/state/lasting/ghost", r#"{"state":"online"}"#).await;
    reader.retain("homeassistant/binary_sensor/rollcall/lasting_ghost/config", "{}").await;
    reader.retain("rollcall/state/lasting/c", "").await;
    reader.is(&world, "lasting/b", "offline").await;
    world.start().await;
    reader.is(&world, "lasting/b", "online").await;
    reader.is(&world, "lasting/c", "online").await;
    world.eventually("the ghost is gone", async || reader.state("lasting/ghost").is_null()).await;
    let ghost = "homeassistant/binary_sensor/rollcall/lasting_ghost/config";
    world.eventually("and its sensor", async || reader.get(ghost).is_null()).await;
    world.eventually("that of another one is right again", async || reader.get(SENSOR_B) == sensor).await;
    reader.retain(SENSOR_B, "[]").await;

    let path = world.url("/api/v1/units/detector/a");
    assert_eq!(CLIENT.delete(path).send().await.unwrap().status(), 204);
    world.eventually("it is removed", async || reader.state("detector/a").is_null()).await;
    assert_eq!(reader.get(SENSOR), Value::Null);
    // What is retained is what a client sees that comes later.
    let later = Reader::start(world.broker.port()).await;
    later.is(&world, "lasting/b", "online").await;
    assert_eq!(later.state("detector/a"), Value::Null);
    world.eventually("its sensor is right, too", async || later.get(SENSOR_B) == sensor).await;
    later.is(&world, "valve/7", "offline").await;
    world.eventually("and its sensor", async || !later.get(SENSOR_OF_ANOTHER).is_null()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_makes_no_units_of_a_kind_whose_topics_cover_it() {
    let home = r#"
    [[kind]]
    name = "home"
    topics = ["home/{unit}/heartbeat"]
    presence = { format = "homeassistant", topics = ["+/#"] }
    "#;
    let world = World::new(&format!("{KINDS}{home}"), &[]).await;
    let reader = Reader::start(world.broker.port()).await;
    world.beat(&["a".to_owned()]).await;
    world.eventually("its sensor", async || !reader.get(SENSOR).is_null()).await;
    // Each further state would be a report of its sensor.
    for unit in ["a", "b"] {
        world.beat(&[unit.to_owned()]).await;
        reader.is(&world, &format!("detector/{unit}"), "offline").await;
    }
    let units = world.json("/api/v1/units").await;
    let mut names: Vec<&str> =
        units["units"].as_array().unwrap().iter().map(|one| one["unit"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_is_late_again_is_published_as_it_is_now() {
    let presence =
        r#"presence = { format = "last_will", topics = ["lasting/{unit}/status"], settle = "5m" }"#;
    let world = World::new(&format!("{KINDS}{presence}"), &[]).await;
    let reader = Reader::start(world.broker.port()).await;
    let beat = async || world.beat_to("lasting", &["a".to_owned()]).await;
    let will = async || publish(world.broker.port(), "lasting/a/status", "offline").await;
    beat().await;
    reader.is(&world, "lasting/a", "online").await;
    will().await;
    reader.is(&world, "lasting/a", "late").await;
    let first = reader.state("lasting/a");
    assert_eq!(first["cause"], "last_will");
    beat().await;
    will().await;
    let is_again = async || {
        let now = reader.state("lasting/a");
        now["state"] == "late" && now["last_seen"] != first["last_seen"] && now["since"] != first["since"]
    };
    world.eventually("the new silence", is_again).await;
    let fail = CLIENT.post(world.url("/ping/lasting/a/fail")).send().await.unwrap();
    assert_eq!(fail.status(), 200);
    let is_disconnected = async || reader.state("lasting/a")["cause"] == "disconnected";
    world.eventually("the new cause", is_disconnected).await;
    assert_eq!(reader.state("lasting/a")["state"], "late");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_instance_publishes_the_states_of_one_that_is_gone() {
    let world = World::new(&format!("instance.name = \"stays\"\n{KINDS}"), &[]).await;
    let reader = Reader::start(world.broker.port()).await;
    let (stop, another) = world.start_another();
    let instances =
        async |count: usize| world.json("/readyz").await["instances"].as_array().unwrap().len() == count;
    world.eventually("both are there", async || instances(2).await).await;
    let units: Vec<String> = (0..20).map(|n| format!("u{n}")).collect();
    world.beat_to("lasting", &units).await;
    for unit in &units {
        reader.is(&world, &format!("lasting/{unit}"), "online").await;
    }
    stop.cancel();
    another.await.unwrap().unwrap();
    for unit in &units[..5] {
        let path = world.url(&format!("/api/v1/units/lasting/{unit}"));
        assert_eq!(CLIENT.delete(path).send().await.unwrap().status(), 204);
        world.eventually("it is removed", async || reader.state(&format!("lasting/{unit}")).is_null()).await;
    }
    assert_eq!(reader.state("lasting/u7")["state"], "online");
}

#[tokio::test(flavor = "multi_thread")]
async fn since_is_the_return_also_where_the_broker_has_lost_what_was_published() {
    let mut world = World::new(KINDS, &[]).await;
    let reader = Reader::start(world.broker.port()).await;
    world.beat(&["a".to_owned()]).await;
    reader.is(&world, "detector/a", "offline").await;
    let beat = CLIENT.post(world.url("/ping/detector/a")).body(r#"{"timeout": "1h"}"#).send();
    assert_eq!(beat.await.unwrap().status(), 200);
    reader.is(&world, "detector/a", "online").await;
    let back = world.records().await[0]["back_at"].clone();
    assert_eq!(reader.state("detector/a")["since"], back);
    world.stop().await;
    reader.retain("rollcall/state/detector/a", "").await;
    world.eventually("it is lost", async || reader.state("detector/a").is_null()).await;
    world.start().await;
    reader.is(&world, "detector/a", "online").await;
    assert_eq!(reader.state("detector/a")["since"], back);
}

/// Two regions; the broker `us` is at that port.
fn regions(us: u16) -> String {
    format!(
        r#"
    instance = {{ name = "stays", brokers = ["eu"] }}
    [[mqtt]]
    name = "eu"
    url = "mqtt://127.0.0.1:{{broker}}"
    publish_state = true
    homeassistant_discovery = true
    [[mqtt]]
    name = "us"
    url = "mqtt://127.0.0.1:{us}"
    publish_state = true
    [[kind]]
    name = "pump"
    brokers = ["eu"]
    timeout = "1h"
    [[kind]]
    name = "valve"
    brokers = ["us"]
    timeout = "1h"
    [[kind]]
    name = "meter"
    topics = ["meters/{{unit}}/heartbeat"]
    brokers = ["eu"]
    timeout = "2s"
    "#
    )
}

/// The owner of most units reaches one of the brokers only.
#[tokio::test(flavor = "multi_thread")]
async fn the_states_at_each_broker_are_those_of_all_units_also_if_no_instance_reaches_both() {
    let dir = tempfile::tempdir().unwrap();
    let us = Server::mosquitto(&dir.path().join("us"), free_port().unwrap(), "").unwrap();
    let world = World::new(&regions(us.port()), &[]).await;
    let of_us = |text: String| text.replace("brokers = [\"eu\"] }", "brokers = [\"us\"] }");
    let (stop, another) = world.start_another_by(of_us);
    let readers = [Reader::start(world.broker.port()).await, Reader::start(us.port()).await];
    let units = 0..12;
    let pumps: Vec<String> = units.clone().map(|n| format!("p{n}")).collect();
    world.beat_to("units", &pumps).await;
    world.beat_to("meters", &pumps).await;
    for n in units {
        let topic = format!("units/v{n}/heartbeat");
        let heard = async || world.status(&format!("/api/v1/units/valve/v{n}")).await == 200;
        let sent = async || {
            publish(us.port(), &topic, "{}").await;
            heard().await
        };
        world.eventually("the other region hears it", sent).await;
    }
    for reader in &readers {
        for n in 0..12 {
            reader.is(&world, &format!("pump/p{n}"), "online").await;
            reader.is(&world, &format!("valve/v{n}"), "online").await;
            reader.is(&world, &format!("meter/p{n}"), "offline").await;
        }
    }
    let remove = async |unit: &str| {
        let path = world.url(&format!("/api/v1/units/{unit}"));
        assert_eq!(CLIENT.delete(path).send().await.unwrap().status(), 204);
    };
    for n in 0..6 {
        remove(&format!("pump/p{n}")).await;
        for reader in &readers {
            let gone = async || reader.state(&format!("pump/p{n}")).is_null();
            world.eventually("it is removed at both", gone).await;
        }
    }
    let sensor = "homeassistant/binary_sensor/rollcall/pump_p0/config";
    assert_eq!(readers[0].get(sensor), Value::Null);
    // While no instance reaches us, its states are old. The next one that does makes them true.
    stop.cancel();
    another.await.unwrap().unwrap();
    for n in 6..12 {
        remove(&format!("pump/p{n}")).await;
        let gone = async || readers[0].state(&format!("pump/p{n}")).is_null();
        world.eventually("it is removed where it is reached", gone).await;
    }
    let (stop, another) = world.start_another_by(of_us);
    for n in 6..12 {
        let gone = async || readers[1].state(&format!("pump/p{n}")).is_null();
        world.eventually("it is removed at the other one, too", gone).await;
    }
    for reader in &readers {
        assert_eq!(reader.state("valve/v3")["state"], "online");
        assert_eq!(reader.state("meter/p3")["state"], "offline");
    }
    stop.cancel();
    another.await.unwrap().unwrap();
}

/// Publishes a message at the broker with that port.
async fn publish(port: u16, topic: &str, payload: &'static str) {
    let mut options = MqttOptions::new(format!("device-{:x}", rand::random::<u32>()), ("127.0.0.1", port));
    options.set_clean_start(true);
    let (client, mut events) = AsyncClient::builder(options).capacity(8).build();
    let follow = tokio::spawn(async move { while events.poll().await.is_ok() {} });
    let options = PublishOptions::new(QoS::AtLeastOnce);
    client.publish_tracked(topic, payload, options).await.unwrap().wait_async().await.unwrap();
    client.disconnect().await.unwrap();
    follow.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_in_process_broker_retains_the_states() {
    let port = free_port().unwrap();
    let engine = "engine = { type = \"embedded\", path = \"{dir}/data\" }\n# engine.type";
    let world = World::new(&format!("{engine}\nbroker.listen = \"127.0.0.1:{port}\"\n{KINDS}"), &[]).await;
    let mut options = MqttOptions::new("device", ("127.0.0.1", port));
    options.set_clean_start(true);
    let (client, mut events) = AsyncClient::builder(options).capacity(8).build();
    let follow = tokio::spawn(async move { while events.poll().await.is_ok() {} });
    client.publish("units/a/heartbeat", "{}", PublishOptions::new(QoS::AtLeastOnce)).await.unwrap();
    let reader = Reader::start(port).await;
    reader.is(&world, "detector/a", "online").await;
    reader.is(&world, "detector/a", "offline").await;
    let later = Reader::start(port).await;
    later.is(&world, "detector/a", "offline").await;
    let is_sensor = async || later.get(SENSOR)["device_class"] == "connectivity";
    world.eventually("its sensor is retained", is_sensor).await;
    let path = world.url("/api/v1/units/detector/a");
    assert_eq!(CLIENT.delete(path).send().await.unwrap().status(), 204);
    world.eventually("it is removed", async || reader.state("detector/a").is_null()).await;
    client.disconnect().await.unwrap();
    follow.await.unwrap();
}
