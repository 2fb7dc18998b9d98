//! Last wills of real clients, at Mosquitto and at the broker within the process: a device that is cut off is found
//! within moments, and one that is taken over, or whose broker ends, is not.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::TAKEOVER;
use rollcall::simulate::servers::{Server, free_port};
use rumqttc::{AsyncClient, Event, Incoming, LastWill, MqttOptions, PublishOptions, QoS};
use serde_json::Value;
use tokio::task::JoinHandle;

use super::world::World;

const REDIS: &str = "# redis";
const EMBEDDED: &str = "engine = { type = \"embedded\", path = \"{dir}/data\" }\n# engine.type";

/// The lamps, which announce their presence on a topic of their own.
fn lamps(presence: &str) -> String {
    format!(
        "[[kind]]\nname = \"detector\"\ntopics = [\"lamps/{{unit}}/data\"]\ntimeout = \"1h\"\n\
         presence = {{ format = \"last_will\", {presence} }}\n"
    )
}

const STATUS: &str = "topics = [\"lamps/{unit}/status\"]";

/// A client with a will, which says that it is there whenever it is connected.
struct Device {
    client: AsyncClient,
    polled: JoinHandle<()>,
}

impl Device {
    fn start(port: u16, unit: &str, (status, here, gone): (&str, &str, &str)) -> Device {
        let mut options = MqttOptions::new(unit, ("127.0.0.1", port));
        let topic = format!("lamps/{unit}/{status}");
        options.set_last_will(LastWill::new(&topic, gone.to_owned(), QoS::AtLeastOnce, true, None));
        options.set_clean_start(true).set_keep_alive(5);
        let (client, mut events) = AsyncClient::builder(options).capacity(64).build();
        let (publisher, here) = (client.clone(), here.to_owned());
        let polled = tokio::spawn(async move {
            loop {
                match events.poll().await {
                    Ok(Event::Incoming(Incoming::ConnAck(_))) => {
                        let _ = publisher.try_publish(
                            &topic,
                            here.clone(),
                            PublishOptions::new(QoS::AtLeastOnce),
                        );
                    }
                    Ok(_) => {}
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        });
        Device { client, polled }
    }

    /// Cuts the connection, as a power cut does.
    async fn cut(self) {
        self.polled.abort();
        let _ = self.polled.await;
    }

    async fn says(&self, topic: &str, payload: &str) {
        let options = PublishOptions::new(QoS::AtLeastOnce);
        self.client.publish(topic, payload.to_owned(), options).await.unwrap();
    }

    async fn leave(self) {
        self.client.disconnect().await.unwrap();
    }
}

const WORDS: (&str, &str, &str) = ("status", "online", "offline");

/// Awaits a state; of a unit that is online, also that a will would be that of its session: a will right after a birth may
/// be that of the session before.
pub async fn is(world: &World, unit: &str, state: &str) {
    let is = async || {
        let page = world.json(&format!("/api/v1/units/detector/{unit}")).await;
        let seen: Option<Timestamp> = serde_json::from_value(page["last_seen"].clone()).ok();
        let is_past = || seen.is_some_and(|seen| Clock::system().now().since(seen) > TAKEOVER);
        page["state"] == state && (state != "online" || is_past())
    };
    world.eventually(&format!("{unit} is {state}"), is).await;
}

pub async fn open(world: &World) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let records = world.records().await;
    records.iter().map(|record| (text(&record["unit"]), text(&record["cause"]))).collect()
}

pub async fn counted(world: &World, result: &str) -> bool {
    let line = format!("rollcall_announcements_total{{result=\"{result}\"}} ");
    let page = world.text_of("/metrics").await;
    page.lines().any(|one| one.strip_prefix(&line).is_some_and(|count| count != "0"))
}

/// Devices that are cut off, taken over and disconnected, at any broker and with any engine.
async fn devices_come_and_go(world: &World, port: u16) {
    let device = |unit: &str| Device::start(port, unit, WORDS);
    let (cut, moves, stays) = (device("cut"), device("moves"), device("stays"));
    for unit in ["cut", "moves", "stays"] {
        is(world, unit, "online").await;
    }
    // The broker publishes the will of the former session around the birth of the new one.
    let again = device("moves");
    cut.cut().await;
    is(world, "cut", "late").await;
    let page = world.json("/api/v1/units/detector/cut").await;
    assert_eq!(page["late_cause"], "last_will");
    let timeline = world.json("/api/v1/units/detector/cut/timeline").await;
    assert!(timeline["sentence"].as_str().unwrap().contains("Its last will was published"), "{timeline}");
    is(world, "cut", "offline").await;
    moves.cut().await;
    stays.leave().await;

    assert_eq!(open(world).await, [("cut".to_owned(), "last_will".to_owned())]);
    let record = world.json("/api/v1/units/detector/cut").await["record"].clone();
    assert_eq!((&record["cause"], &record["back_at"]), (&"last_will".into(), &Value::Null));

    world.eventually("it is told", async || !world.hook.received().is_empty()).await;

    let back = device("cut");
    is(world, "cut", "online").await;
    for unit in ["moves", "stays"] {
        assert_eq!(world.state(unit).await, "online", "{unit}");
    }
    world.eventually("its return is told", async || world.hook.received().len() > 1).await;
    assert_eq!(world.hook.received().len(), 2);
    back.leave().await;
    again.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_is_checked_at_mosquitto_and_with_redis() {
    let options = format!("{REDIS}\n{}", lamps(&format!("settle = \"2s\", {STATUS}")));
    let world = World::new(&options, &[]).await;
    devices_come_and_go(&world, world.broker.port()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_is_checked_at_the_listener_and_with_the_embedded_engine() {
    let port = free_port().unwrap();
    let options = format!(
        "{EMBEDDED}\nbroker.listen = \"127.0.0.1:{port}\"\n{}",
        lamps(&format!("settle = \"2s\", {STATUS}"))
    );
    let world = World::new(&options, &[]).await;
    devices_come_and_go(&world, port).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wills_that_a_broker_publishes_because_it_ends_mark_no_unit_offline() {
    let options = format!("{EMBEDDED}\n{}", lamps(&format!("trust = \"proof\", {STATUS}")));
    let mut world = World::new(&options, &[]).await;
    let port = world.broker.port();
    let devices: Vec<Device> = (0..20).map(|n| Device::start(port, &format!("lamp-{n}"), WORDS)).collect();
    for n in 0..20 {
        is(&world, &format!("lamp-{n}"), "online").await;
    }
    let pid = world.broker.pid().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    world
        .eventually("wills came", async || {
            let page = world.text_of("/metrics").await;
            page.contains("rollcall_mqtt_connected{broker=\"main\",connection=\"main\"} 0")
        })
        .await;
    world.restart_broker();
    world
        .eventually("the announcements are lost", async || {
            counted(&world, "lost").await || counted(&world, "blind").await
        })
        .await;
    // A device that is cut off now is found, and with it all that would have been found before.
    let last = Device::start(port, "last", WORDS);
    is(&world, "last", "online").await;
    last.cut().await;
    is(&world, "last", "offline").await;
    assert_eq!(open(&world).await, [("last".to_owned(), "last_will".to_owned())]);
    for device in devices {
        device.leave().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wills_that_cross_the_bridge_of_a_broker_that_ends_mark_no_unit_offline() {
    let presence = format!("trust = \"proof\", {STATUS}, bridge = \"bridges/north\"");
    let world = World::new(&format!("{EMBEDDED}\n{}", lamps(&presence)), &[]).await;
    let (dir, port) = (world.dir.path().join("north"), free_port().unwrap());
    let bridge = format!(
        "connection north\naddress 127.0.0.1:{}\ntopic lamps/# out 1\nnotification_topic bridges/north\n\
         restart_timeout 1\n",
        world.broker.port()
    );
    let north = Server::mosquitto(&dir, port, &bridge).unwrap();
    let devices: Vec<Device> = (0..50).map(|n| Device::start(port, &format!("lamp-{n}"), WORDS)).collect();
    for n in 0..50 {
        is(&world, &format!("lamp-{n}"), "online").await;
    }
    assert!(Command::new("kill").args(["-TERM", &north.pid().to_string()]).status().unwrap().success());
    let is_offline = async || {
        world.text_of("/readyz").await.contains("the bridge of kind detector says that it is offline")
    };
    world.eventually("the bridge is offline", is_offline).await;
    world.eventually("wills that had crossed it are void", async || counted(&world, "lost").await).await;
    drop(north);
    let _north = Server::mosquitto(&dir, port, &bridge).unwrap();
    world.eventually("it is back", async || !is_offline().await).await;
    let last = Device::start(port, "last", WORDS);
    is(&world, "last", "online").await;
    last.cut().await;
    is(&world, "last", "offline").await;
    assert_eq!(open(&world).await, [("last".to_owned(), "last_will".to_owned())]);
    for device in devices {
        device.leave().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_says_offline_on_the_topic_of_heartbeats_is_no_heartbeat() {
    let options = format!("{EMBEDDED}\n{}", lamps("trust = \"proof\", field = \"state\""));
    let world = World::new(&options, &[]).await;
    let port = world.broker.port();
    let words = ("data", "{\"state\":\"online\"}", "{\"state\":\"offline\"}");
    let (one, _other) = (Device::start(port, "one", words), Device::start(port, "other", words));
    is(&world, "one", "online").await;
    is(&world, "other", "online").await;
    let seen = world.json("/api/v1/units/detector/one").await["last_seen"].clone();
    one.cut().await;
    is(&world, "one", "offline").await;
    let page = world.json("/api/v1/units/detector/one").await;
    assert_eq!((&page["last_seen"], &page["record"]["cause"]), (&seen, &"last_will".into()));
    assert_eq!(world.state("other").await, "online");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_will_right_after_the_first_birth_since_a_start_marks_no_unit_offline() {
    let options = format!("{EMBEDDED}\n{}", lamps(&format!("trust = \"proof\", {STATUS}")));
    let mut world = World::new(&options, &[]).await;
    let device = Device::start(world.broker.port(), "a", WORDS);
    is(&world, "a", "online").await;
    world.stop().await;
    world.start().await;
    // A broker may publish the will of a session that is taken over after the birth of the next one.
    for word in ["online", "offline"] {
        device.says("lamps/a/status", word).await;
    }
    world.eventually("the will is stale", async || counted(&world, "stale").await).await;
    is(&world, "a", "online").await;
    device.cut().await;
    is(&world, "a", "offline").await;
    assert_eq!(open(&world).await, [("a".to_owned(), "last_will".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_whose_clock_is_behind_is_there_when_it_is_heard_after_its_announcement() {
    let kind = lamps(&format!("settle = \"2s\", {STATUS}"));
    let world = World::new(&format!("{EMBEDDED}\n{kind}clock = \"device\"\n"), &[]).await;
    let device = Device::start(world.broker.port(), "device", WORDS);
    let behind = || format!("{{\"ts\":{}}}", Clock::system().now().as_millis() - 60_000);
    for unit in ["back", "gone"] {
        device.says(&format!("lamps/{unit}/data"), &behind()).await;
        is(&world, unit, "online").await;
        device.says(&format!("lamps/{unit}/status"), "offline").await;
        is(&world, unit, "late").await;
        if unit == "back" {
            device.says("lamps/back/data", &behind()).await;
            is(&world, unit, "online").await;
        }
    }
    // The check of the other one is later.
    is(&world, "gone", "offline").await;
    assert_eq!(open(&world).await, [("gone".to_owned(), "last_will".to_owned())]);
    device.says("lamps/gone/data", &behind()).await;
    is(&world, "gone", "online").await;
    assert_eq!(world.state("back").await, "online");
    device.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_freezes_is_found_when_its_keep_alive_is_over() {
    let options = format!("{EMBEDDED}\n{}", lamps(&format!("trust = \"proof\", {STATUS}")));
    let world = World::new(&options, &[]).await;
    let mut socket = TcpStream::connect(("127.0.0.1", world.broker.port())).unwrap();
    // MQTT 3.1.1 with a will and a keep-alive of one second; then nothing more than its birth.
    let text = |text: &str| [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat();
    let parts =
        [text("MQTT"), vec![4, 0b0000_1110, 0, 1], text("frozen"), text("lamps/f/status"), text("offline")];
    let connect = parts.concat();
    let birth = [text("lamps/f/status"), b"online".to_vec()].concat();
    for (kind, packet) in [(0x10, connect), (0x30, birth)] {
        socket.write_all(&[&[kind, packet.len() as u8], &packet[..]].concat()).unwrap();
    }
    is(&world, "f", "online").await;
    is(&world, "f", "offline").await;
    assert_eq!(open(&world).await, [("f".to_owned(), "last_will".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_mosquitto_says_which_clients_come_and_end() {
    let dir = tempfile::TempDir::new().unwrap();
    let log = "log_dest topic\nlog_dest stderr\nlog_type notice\nlog_type error\nlog_type information\n\
               connection_messages true";
    let broker = Server::mosquitto(dir.path(), free_port().unwrap(), log).unwrap();
    let port = broker.port();
    let kind = "[[kind]]\nname = \"detector\"\ntopics = [\"lamps/{unit}/data\"]\ntimeout = \"1h\"\n\
                presence = { format = \"mosquitto\", trust = \"proof\", on_planned = \"pause\" }\n";
    let options = format!("{EMBEDDED}\nmqtt.url = \"mqtt://127.0.0.1:{port}\" # not broker.listen\n{kind}");
    let world = World::new(&options, &[]).await;
    let device = |unit: &str| Device::start(port, unit, WORDS);
    let (cut, leaves, stays) = (device("cut"), device("leaves"), device("stays"));
    for unit in ["cut", "leaves", "stays"] {
        is(&world, unit, "online").await;
    }
    let again = device("stays");
    // Clients whose ids make lines that another version would write of another client.
    device("stays [127.0.0.1:5]").leave().await;
    let crafted = "stays [127.0.0.1:5] disconnected: x";
    let forger = device(crafted);
    is(&world, &crafted.replace(' ', "%20"), "online").await;
    forger.cut().await;
    cut.cut().await;
    leaves.leave().await;
    is(&world, "cut", "offline").await;
    is(&world, "leaves", "paused").await;
    is(&world, &crafted.replace(' ', "%20"), "offline").await;
    let mut records = open(&world).await;
    records.sort();
    assert_eq!(records, ["cut", crafted].map(|unit| (unit.to_owned(), "disconnected".to_owned())));
    assert_eq!(world.state("stays").await, "online");
    assert_eq!(world.state("rollcall-main").await, "none", "Rollcall is no unit");
    drop((again, stays));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_of_home_assistant_is_named_by_its_discovery() {
    let kind = "[[kind]]\nname = \"detector\"\ntopics = [\"home/{unit}/heartbeat\"]\ntimeout = \"1h\"\n\
                presence = { format = \"homeassistant\", trust = \"proof\", topics = [\"lamps/+/status\"] }\n\
                # Messages that mean nothing to a kind still mean what they do to another.\n\
                [[kind]]\nname = \"other\"\ntopics = [\"other/{unit}/heartbeat\"]\ntimeout = \"1h\"\n\
                presence = { format = \"esphome\", topics = [\"lamps/{unit}/status\"] }\n";
    let broker_first = format!("{EMBEDDED}\n{kind}");
    let mut world = World::new(&broker_first, &[]).await;
    let port = world.broker.port();
    world.stop().await;
    // Discovery messages are retained: they came before Rollcall.
    let publisher = Device::start(port, "publisher", WORDS);
    let message = "{\"avty_t\":\"lamps/a/status\",\"pl_avail\":\"up\",\"pl_not_avail\":\"down\",\"dev\":{\"ids\":[\"0x01\"],\"name\":\"Porch\"}}";
    let options = PublishOptions::new(QoS::AtLeastOnce).retained();
    publisher.client.publish("homeassistant/light/a/config", message, options).await.unwrap();
    world.start().await;
    let lamp = Device::start(port, "a", ("status", "up", "down"));
    is(&world, "0x01", "online").await;
    assert_eq!(
        world.json("/api/v1/units/detector/0x01").await["labels"],
        serde_json::json!({"name": "Porch"})
    );
    lamp.cut().await;
    is(&world, "0x01", "offline").await;
    assert_eq!(open(&world).await, [("0x01".to_owned(), "disconnected".to_owned())]);
    publisher.leave().await;
}
