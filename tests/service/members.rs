//! Two whole services that share the fleet: when either starts, crashes or stops, no living unit is marked offline,
//! and each silent unit is marked once.

use std::collections::BTreeMap;
use std::time::Duration;

use rumqttc::{AsyncClient, Event, MqttOptions, Packet, PublishOptions, QoS};

use crate::fleet_world::{FleetWorld, Service};
use crate::support::facts::until;

const TIMEOUT: Duration = Duration::from_secs(1);
const UNITS: usize = 60;

/// Starts one more service, and waits until it has heard for two timeouts.
async fn serve(world: &FleetWorld) -> Service {
    let options = format!(
        "mqtt.share = \"all\"\nhearing.canary_period = \"100ms\"\n[[kind]]\nname = \"detector\"\ntimeout = \"{}s\"",
        TIMEOUT.as_secs()
    );
    let before = members(world);
    let service = world.serve(&world.redis.url(), &options);
    until("it is a member", async || members(world) > before).await;
    world.hears_for(2 * TIMEOUT).await;
    service
}

fn members(world: &FleetWorld) -> usize {
    let mut client = world.redis.client();
    ::redis::cmd("HLEN").arg("rollcall:{hearing}:members").query(&mut client).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn services_that_share_the_fleet_start_crash_and_stop_and_no_living_unit_is_marked_offline() {
    let world = FleetWorld::new().await;
    let fleet = world.fleet(UNITS, "units/{unit}/heartbeat", TIMEOUT / 4, 1);
    let mut one = serve(&world).await;
    for _ in 0..2 {
        let two = serve(&world).await;
        one.crash().await;
        until("the broker reports the end", async || members(&world) == 1).await;
        world.hears_for(2 * TIMEOUT).await;
        one = serve(&world).await;
        two.stop().await;
        world.hears_for(2 * TIMEOUT).await;
    }
    assert_eq!(world.records().await, []);
    drop(fleet);
    until("all are offline", async || world.records().await.len() >= UNITS).await;
    one.stop().await;
    assert_eq!(world.records().await.len(), UNITS);
}

/// The slowest member decides how far the fleet is heard. So each member must prove hearing as often as the shortest
/// timeout of any unit requires.
#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_that_one_unit_declares_speeds_up_the_canaries_of_every_member() {
    let world = FleetWorld::new().await;
    let services = ["one", "two"].map(|name| {
        let options = format!(
            "instance.name = \"{name}\"\nmqtt.share = \"all\"\nmqtt.client_id = \"{name}\"\n[[kind]]\nname = \"detector\""
        );
        world.serve(&world.redis.url(), &options)
    });
    let options = MqttOptions::new("device", ("127.0.0.1", world.broker.port()));
    let (client, mut events) = AsyncClient::builder(options).capacity(100).build();
    client.subscribe("rollcall/canary/+", QoS::AtMostOnce).await.unwrap();
    // For each member: its last canary, and how many in a row came faster than by default.
    let mut canaries: BTreeMap<Vec<u8>, (i64, u32)> = BTreeMap::new();
    let listened = async {
        while canaries.len() < 2 || canaries.values().any(|(_, fast)| *fast < 10) {
            let event = events.poll().await.unwrap();
            let Event::Incoming(Packet::Publish(canary)) = event else { continue };
            let body: serde_json::Value = serde_json::from_slice(&canary.payload).unwrap();
            let sent_at = body["sent_at"].as_i64().unwrap();
            let (last, fast) = canaries.entry(canary.topic.to_vec()).or_default();
            *fast = if sent_at - *last < 500 { *fast + 1 } else { 0 };
            *last = sent_at;
            // Repeated, because a member gets its share only when its canary has come back.
            if canaries.len() == 2 {
                let options = PublishOptions::new(QoS::AtLeastOnce);
                client.publish("units/fast/heartbeat", "{\"timeout\":\"2s\"}", options).await.unwrap();
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(90), listened).await.expect("canaries of both get faster");
    for service in services {
        service.stop().await;
    }
}
