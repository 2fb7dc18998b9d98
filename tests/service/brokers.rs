//! A fleet on several brokers: each blinds its own kinds only, and a unit at two of them is one unit.

use std::process::Command;
use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::simulate::servers::{Server, free_port};
use serde_json::{Value, json};

use super::cli::{rollcall, text};
use super::world::{MAX_WAIT, World};

/// Units that are heard at one broker or at both; the broker `us` is at that port.
fn several(us: u16) -> String {
    format!(
        r#"
    [[mqtt]]
    name = "eu"
    url = "mqtt://127.0.0.1:{{broker}}"
    [[mqtt]]
    name = "us"
    url = "mqtt://127.0.0.1:{us}"
    [[kind]]
    name = "pump"
    brokers = ["eu"]
    timeout = "2s"
    [[kind]]
    name = "valve"
    brokers = ["us"]
    timeout = "2s"
    [[kind]]
    name = "truck"
    topics = ["trucks/{{unit}}/heartbeat"]
    timeout = "1h"
    "#
    )
}

/// Publishes a heartbeat at the broker with that port.
fn beat(port: u16, topic: &str) {
    publish(port, topic, "{}");
}

fn publish(port: u16, topic: &str, text: &str) {
    let port = port.to_string();
    let sent = Command::new("mosquitto_pub").args(["-p", &port, "-q", "1", "-t", topic, "-m", text]).status();
    assert!(sent.unwrap().success(), "{topic}");
}

async fn state(world: &World, unit: &str) -> Value {
    world.json(&format!("/api/v1/units/{unit}")).await["state"].clone()
}

async fn is(world: &World, unit: &str, wanted: &str) {
    world.eventually(&format!("{unit} is {wanted}"), async || state(world, unit).await == wanted).await;
}

/// Two brokers; `eu` is killed, and then comes back.
async fn one_broker_is_down(engine: &str) {
    let dir = tempfile::tempdir().unwrap();
    let us = Server::mosquitto(&dir.path().join("us"), free_port().unwrap(), "").unwrap();
    let mut world = World::new(&format!("{engine}\n{}", several(us.port())), &[]).await;
    let eu = world.broker.port();
    // The topics are the same, and the brokers tell the kinds apart.
    beat(eu, "units/a/heartbeat");
    beat(us.port(), "units/b/heartbeat");
    is(&world, "pump/a", "online").await;
    is(&world, "valve/b", "online").await;
    for unit in ["pump/b", "valve/a"] {
        assert_eq!(world.status(&format!("/api/v1/units/{unit}")).await, 404, "{unit}");
    }
    beat(eu, "trucks/7/heartbeat");
    is(&world, "truck/7", "online").await;
    let first = world.json("/api/v1/units/truck/7").await["last_seen"].clone();
    beat(us.port(), "trucks/7/heartbeat");
    let heard = async || world.json("/api/v1/units/truck/7").await["last_seen"] != first;
    world.eventually("it is one unit at both", heard).await;

    beat(eu, "units/a/heartbeat");
    world.broker.kill();
    beat(us.port(), "units/b/heartbeat");
    is(&world, "pump/a", "unknown").await;
    is(&world, "valve/b", "offline").await;
    assert_eq!(state(&world, "pump/a").await, "unknown");
    let ready = world.text_of("/readyz").await;
    assert!(ready.contains("connection eu is down") && !ready.contains("connection us"), "{ready}");
    let metrics = world.text_of("/metrics").await;
    assert!(metrics.contains("rollcall_mqtt_connected{broker=\"eu\",connection=\"eu\"} 0"), "{metrics}");
    assert!(metrics.contains("rollcall_mqtt_connected{broker=\"us\",connection=\"us\"} 1"), "{metrics}");
    world.hook.wait_for(1, MAX_WAIT).await.unwrap();
    let records = world.records().await;
    assert_eq!(records.iter().map(|record| &record["unit"]).collect::<Vec<_>>(), [&json!("b")]);

    world.restart_broker();
    beat_when_up(eu).await;
    is(&world, "pump/a", "online").await;
    // And its silence is found again.
    is(&world, "pump/a", "offline").await;
    assert_eq!(world.records().await.len(), 2);
}

async fn beat_when_up(port: u16) {
    let up = async {
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(MAX_WAIT, up).await.expect("the broker is up");
    beat(port, "units/a/heartbeat");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_down_blinds_its_own_kinds_on_redis() {
    one_broker_is_down("# redis").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_down_blinds_its_own_kinds_with_the_embedded_engine() {
    one_broker_is_down("engine = { type = \"embedded\", path = \"{dir}/data\" }\n# engine.type").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_listener_is_one_more_broker_and_check_has_a_line_for_each() {
    let dir = tempfile::tempdir().unwrap();
    let us = Server::mosquitto(&dir.path().join("us"), free_port().unwrap(), "").unwrap();
    let port = free_port().unwrap();
    let options = several(us.port()).replace("brokers = [\"us\"]", "brokers = [\"listener\"]");
    let mut world = World::new(&format!("broker.listen = \"127.0.0.1:{port}\"\n{options}"), &[]).await;
    beat(world.broker.port(), "units/a/heartbeat");
    beat(port, "units/b/heartbeat");
    is(&world, "pump/a", "online").await;
    is(&world, "valve/b", "online").await;
    world.broker.kill();
    is(&world, "valve/b", "offline").await;
    is(&world, "pump/a", "unknown").await;
    let file = world.file();
    let output = rollcall(world.dir.path(), &["check", "--config", file.to_str().unwrap()], &[]);
    let said = text(&output.stdout);
    assert!(said.contains("FAIL  mqtt eu: ") && said.contains("ok    mqtt us: "), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_of_a_region_connects_to_its_brokers_only() {
    let dir = tempfile::tempdir().unwrap();
    let us = Server::mosquitto(&dir.path().join("us"), free_port().unwrap(), "").unwrap();
    let options = format!("instance = {{ name = \"stays\", brokers = [\"eu\"] }}\n{}", several(us.port()));
    let world = World::new(&options, &[]).await;
    beat(us.port(), "units/b/heartbeat");
    beat(world.broker.port(), "units/a/heartbeat");
    is(&world, "pump/a", "online").await;
    assert_eq!(world.status("/api/v1/units/valve/b").await, 404);
    assert!(!world.text_of("/metrics").await.contains("connection=\"us\""));
    is(&world, "pump/a", "offline").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_hangs_is_named_as_one_that_answers_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let us = Server::mosquitto(&dir.path().join("us"), free_port().unwrap(), "").unwrap();
    let world = World::new(&several(us.port()), &[]).await;
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &world.broker.pid().to_string()]).status();
        assert!(sent.unwrap().success(), "{name}");
    };
    signal("-STOP");
    let mut ready = String::new();
    let named = async || {
        ready = world.text_of("/readyz").await;
        assert!(!ready.contains("allow the anonymous user"), "no right is missing: {ready}");
        ready.contains("eu/units/+/heartbeat is not heard")
            && ready.contains("eu/trucks/+/heartbeat is not heard")
    };
    world.eventually("it is named", named).await;
    assert!(ready.contains("the broker answers nothing"), "{ready}");
    let truck = "no unit of kind truck, unless it was last heard at another broker, is declared offline";
    assert!(ready.contains(truck) && ready.contains("no unit of kind pump is declared offline"), "{ready}");
    signal("-CONT");
    world.eventually("it is heard again", async || world.status("/readyz").await == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_will_of_a_session_at_a_broker_that_the_unit_left_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let us = Server::mosquitto(&dir.path().join("us"), free_port().unwrap(), "").unwrap();
    let announces = "timeout = \"1h\"\n    presence = { format = \"last_will\", trust = \"proof\", \
                     topics = [\"trucks/{unit}/status\"] }";
    let options = several(us.port()).replace("timeout = \"1h\"", announces);
    let world = World::new(&options, &[]).await;
    let (eu, us) = (world.broker.port(), us.port());
    let stale = "rollcall_announcements_total{result=\"stale\"} 1";
    for (broker, name) in [(eu, "eu"), (us, "us")] {
        let is_there = async || {
            beat(broker, "trucks/7/heartbeat");
            world.json("/api/v1/units/truck/7").await["broker"] == name
        };
        world.eventually(&format!("it is heard at {name}"), is_there).await;
    }
    publish(eu, "trucks/7/status", "offline");
    world.eventually("it is stale", async || world.text_of("/metrics").await.contains(stale)).await;
    assert_eq!(state(&world, "truck/7").await, "online");

    publish(us, "trucks/7/status", "offline");
    is(&world, "truck/7", "offline").await;
    let timeline = world.json("/api/v1/units/truck/7/timeline").await;
    let sentence = timeline["sentence"].as_str().unwrap();
    assert!(sentence.contains("Its last will was published at broker us, and nothing"), "{sentence}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_will_from_a_broker_that_the_unit_left_before_a_restart_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let us = Server::mosquitto(&dir.path().join("us"), free_port().unwrap(), "").unwrap();
    let announces = "timeout = \"1h\"\n    presence = { format = \"last_will\", trust = \"proof\", \
                     topics = [\"trucks/{unit}/status\"] }";
    let embedded = "engine = { type = \"embedded\", path = \"{dir}/data\" }\n# engine.type";
    let options = several(us.port()).replace("timeout = \"1h\"", announces);
    let mut world = World::new(&format!("{embedded}\n{options}"), &[]).await;
    let (eu, us) = (world.broker.port(), us.port());
    for (broker, name) in [(eu, "eu"), (us, "us")] {
        let is_there = async || {
            beat(broker, "trucks/7/heartbeat");
            world.json("/api/v1/units/truck/7").await["broker"] == name
        };
        world.eventually(&format!("it is heard at {name}"), is_there).await;
    }
    world.stop().await;
    world.start().await;
    assert_eq!(world.json("/api/v1/units/truck/7").await["broker"], "us");
    publish(eu, "trucks/7/status", "offline");
    let stale = "rollcall_announcements_total{result=\"stale\"} 1";
    world.eventually("it is stale", async || world.text_of("/metrics").await.contains(stale)).await;
    assert_eq!(state(&world, "truck/7").await, "online");
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_follow_a_unit_between_regions_and_two_devices_with_one_id_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let us = Server::mosquitto(&dir.path().join("us"), free_port().unwrap(), "").unwrap();
    let here = "instance = { name = \"stays\", brokers = [\"eu\"] }";
    let ships = "[[kind]]\nname = \"ship\"\ntopics = [\"ships/{site}/{unit}/heartbeat\"]\ntimeout = \"1h\"\n";
    let world = World::new(&format!("{here}\n{}{ships}", several(us.port())), &[]).await;
    let of_us = |text: String| text.replace("brokers = [\"eu\"] }", "brokers = [\"us\"] }");
    let (stop, another) = world.start_another_by(of_us);
    let (eu, us) = (world.broker.port(), us.port());
    let moves = async |port: u16, broker: &str, site: &str| {
        let is_there = async || {
            beat(port, &format!("ships/{site}/7/heartbeat"));
            let page = world.json("/api/v1/units/ship/7").await;
            page["labels"]["site"] == site && page["broker"] == broker
        };
        world.eventually(&format!("it is at {site}"), is_there).await;
    };
    let warned = async || world.text_of("/readyz").await.contains("unit_at_two_places");
    moves(eu, "eu", "north").await;
    moves(us, "us", "south").await;
    moves(eu, "eu", "north").await;
    assert!(!warned().await, "it may have come back");
    moves(us, "us", "south").await;
    moves(eu, "eu", "north").await;
    world.eventually("it is named", warned).await;
    stop.cancel();
    another.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_will_of_a_session_that_a_unit_left_for_http_says_nothing() {
    let announces = "[[kind]]\nname = \"detector\"\ntimeout = \"1h\"\npresence = { format = \"last_will\", \
                     trust = \"proof\", topics = [\"units/{unit}/status\"] }";
    let world = World::new(announces, &[]).await;
    let port = world.broker.port();
    beat(port, "units/7/heartbeat");
    is(&world, "detector/7", "online").await;
    assert_eq!(world.json("/api/v1/units/detector/7").await["broker"], Value::Null);
    assert_eq!(world.status("/ping/detector/7").await, 200);
    let page = world.json("/api/v1/units/detector/7").await;
    assert_eq!((&page["state"], &page["broker"]), (&json!("online"), &json!("http")));
    publish(port, "units/7/status", "offline");
    let stale = "rollcall_announcements_total{result=\"stale\"} 1";
    world.eventually("it is stale", async || world.text_of("/metrics").await.contains(stale)).await;
    assert_eq!(state(&world, "detector/7").await, "online");
    let timeline = world.json("/api/v1/units/detector/7/timeline").await;
    assert!(timeline["sentence"].as_str().unwrap().contains(" ago over HTTP, within"), "{timeline}");
    // What it says itself counts.
    assert_eq!(world.status("/ping/detector/7/fail").await, 200);
    assert_eq!(state(&world, "detector/7").await, "offline");
    // A message that may have been sent before that does not.
    let is_back = async || {
        beat(port, "units/7/heartbeat");
        state(&world, "detector/7").await == "online"
    };
    world.eventually("it is back over MQTT", is_back).await;
    assert_eq!(world.json("/api/v1/units/detector/7").await["broker"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_instance_with_a_listener_is_named_and_one_that_leaves_it_out_does_not_listen() {
    let dir = tempfile::tempdir().unwrap();
    let us = Server::mosquitto(&dir.path().join("us"), free_port().unwrap(), "").unwrap();
    let (port, another_port) = (free_port().unwrap(), free_port().unwrap());
    let here = "instance = { name = \"stays\", brokers = [\"eu\", \"us\", \"listener\"] }";
    let options = format!("{here}\nbroker.listen = \"127.0.0.1:{port}\"\n{}", several(us.port()));
    let world = World::new(&options, &[]).await;
    let ready = async |status: u16, says: &str| {
        world.status("/readyz").await == status && world.text_of("/readyz").await.contains(says)
    };
    let without = |text: String| text.replace("\"us\", \"listener\"]", "\"us\"]");
    let (stop, another) = world.start_another_by(without);
    world.eventually("it runs", async || ready(200, "\"comes\"").await).await;
    stop.cancel();
    another.await.unwrap().unwrap();

    let listens = |text: String| text.replace(&port.to_string(), &another_port.to_string());
    let (stop, another) = world.start_another_by(listens);
    world.eventually("it is named", async || ready(503, "several_listen").await).await;
    stop.cancel();
    another.await.unwrap().unwrap();
    world.eventually("it is alone", async || ready(200, "\"instances\":[\"stays\"]").await).await;
    assert!(!world.text_of("/readyz").await.contains("several_listen"));
}

const SHIPS: &str = r#"
    [[kind]]
    name = "ship"
    topics = ["ships/{unit}/heartbeat"]
    brokers = ["eu"]
    timeout = "1h"
    [[kind]]
    name = "boat"
    topics = ["boats/{unit}/heartbeat"]
    brokers = ["us"]
    timeout = "1h"
"#;

/// How much later than an hour after its last heartbeat a unit is due.
async fn blind_time(world: &World, unit: &str) -> Duration {
    let page = world.json(&format!("/api/v1/units/{unit}")).await;
    let at = |name: &str| -> Timestamp { serde_json::from_value(page[name].clone()).unwrap() };
    at("deadline").since(at("last_seen") + Duration::from_secs(3600))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_the_session_at_one_broker_blinds_its_kinds_only() {
    let dir = tempfile::tempdir().unwrap();
    let us = Server::mosquitto(&dir.path().join("us"), free_port().unwrap(), "").unwrap();
    let options = several(us.port()).replacen("name = \"eu\"", "name = \"eu\"\nclient_id = \"rc\"", 1);
    let world = World::new(&format!("{options}{SHIPS}"), &[]).await;
    beat(world.broker.port(), "ships/1/heartbeat");
    beat(us.port(), "boats/1/heartbeat");
    is(&world, "ship/1", "online").await;
    is(&world, "boat/1", "online").await;
    for unit in ["ship/1", "boat/1"] {
        assert_eq!(blind_time(&world, unit).await, Duration::ZERO, "{unit}");
    }
    // It takes the session, and gives it up a second later.
    let port = world.broker.port().to_string();
    let thief = ["-p", &port, "-i", "rc-eu", "-c", "-V", "mqttv5", "-x", "3600", "-t", "any", "-W", "1"];
    let mut thief = Command::new("mosquitto_sub").args(thief).spawn().unwrap();
    tokio::task::spawn_blocking(move || thief.wait()).await.unwrap().unwrap();
    let is_blind = async || blind_time(&world, "ship/1").await > Duration::ZERO;
    world.eventually("the time is blind for the ship", is_blind).await;
    assert_eq!(blind_time(&world, "boat/1").await, Duration::ZERO);
    assert_eq!(world.records().await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_of_two_regions_are_members_of_the_shares_of_their_own_brokers() {
    let dir = tempfile::tempdir().unwrap();
    let us = Server::mosquitto(&dir.path().join("us"), free_port().unwrap(), "").unwrap();
    let mut options = several(us.port());
    for broker in ["eu", "us"] {
        let name = format!("name = \"{broker}\"");
        options = options.replacen(&name, &format!("{name}\nshare = \"all\""), 1);
    }
    let here = "instance = { name = \"stays\", brokers = [\"eu\"] }";
    let world = World::new(&format!("{here}\n{options}"), &[]).await;
    let eu = world.broker.port();
    let of_us = |text: String| text.replace("brokers = [\"eu\"] }", "brokers = [\"us\"] }");
    let (stop, another) = world.start_another_by(of_us);
    let valves = async || {
        beat(us.port(), "units/b/heartbeat");
        state(&world, "valve/b").await == "online"
    };
    world.eventually("the other instance hears us", valves).await;
    beat(eu, "units/a/heartbeat");
    is(&world, "pump/a", "online").await;
    is(&world, "pump/a", "offline").await;
    is(&world, "valve/b", "offline").await;
    assert_eq!(world.records().await.len(), 2, "each silence once, whatever instance has its unit");
    let unheard = async || world.text_of("/readyz").await.contains("broker_not_heard");
    world.eventually("both brokers are heard", async || !unheard().await).await;
    beat(us.port(), "units/b/heartbeat");
    is(&world, "valve/b", "online").await;
    // The only member of the share at us leaves, and its partitions go to the instance that does not hear us.
    stop.cancel();
    another.await.unwrap().unwrap();
    is(&world, "valve/b", "unknown").await;
    beat(eu, "units/a/heartbeat");
    is(&world, "pump/a", "online").await;
    is(&world, "pump/a", "offline").await;
    assert_eq!(world.records().await.len(), 3);
    assert_eq!(state(&world, "valve/b").await, "unknown");
    // The instance that has its unit now says so, though it hears its own broker.
    world.eventually("it is named", unheard).await;
    assert_eq!(world.status("/readyz").await, 200, "a warning");
    let ready = world.text_of("/readyz").await;
    assert!(ready.contains("no instance hears the broker us") && ready.contains("of kind valve"), "{ready}");
    let blind = "rollcall_mqtt_blind{broker=\"us\"} 1";
    assert!(world.text_of("/metrics").await.contains(blind), "{ready}");
    let (stop, another) = world.start_another_by(of_us);
    world.eventually("it is heard again", async || !unheard().await).await;
    stop.cancel();
    another.await.unwrap().unwrap();
}
