//! The whole service while the engine is away: no living unit is marked offline, and a unit that falls silent
//! afterwards is found.

use std::time::Duration;

use rollcall::clock::Clock;

use crate::fleet_world::{Fleet, FleetWorld, Service};
use crate::support::facts::until;
use crate::support::redis::signal;
use crate::world::{World, units};

const TIMEOUT: Duration = Duration::from_secs(2);
const UNITS: usize = 50;
/// How many heartbeats the fleet sends while the engine is away: five of its timeouts.
const MEANWHILE: u64 = 20 * UNITS as u64;

/// A service, and a fleet that it knows.
async fn start(world: &FleetWorld) -> (Service, Fleet) {
    let options = format!(
        "hearing.canary_period = \"200ms\"\n[[kind]]\nname = \"detector\"\ntimeout = \"{}s\"",
        TIMEOUT.as_secs()
    );
    let service = world.serve(&world.redis.url(), &options);
    let fleet = world.fleet(UNITS, "units/{unit}/heartbeat", TIMEOUT / 4, 0);
    until("the fleet is known", async || world.units().await == Some(UNITS)).await;
    (service, fleet)
}

/// Once the engine is back and Rollcall has heard for two timeouts, there is no record; then the fleet falls silent,
/// and each unit has one.
async fn proves_that_no_unit_went_offline(world: &FleetWorld, (service, fleet): (Service, Fleet)) {
    world.hears_for(2 * TIMEOUT).await;
    assert_eq!(world.records().await, []);
    drop(fleet);
    until("all are offline", async || world.records().await.len() >= UNITS).await;
    service.stop().await;
    assert_eq!(world.records().await.len(), UNITS);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_frozen_for_five_timeouts_marks_no_unit_offline() {
    let world = FleetWorld::new().await;
    let (service, fleet) = start(&world).await;
    world.redis.signal("-STOP");
    fleet.sends(MEANWHILE).await;
    world.redis.signal("-CONT");
    proves_that_no_unit_went_offline(&world, (service, fleet)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_gone_for_five_timeouts_marks_no_unit_offline() {
    let mut world = FleetWorld::new().await;
    let (service, fleet) = start(&world).await;
    world.redis.kill();
    fleet.sends(MEANWHILE).await;
    world.redis.restart();
    proves_that_no_unit_went_offline(&world, (service, fleet)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_frozen_for_longer_than_the_timeout_marks_no_unit_offline_that_is_heard_over_http()
{
    let world = World::new("[[kind]]\nname = \"detector\"\ntimeout = \"4s\"", &[]).await;
    let ping = async |unit: &str| world.status(&format!("/ping/detector/{unit}")).await;
    let over_http = units(5);
    world.beat(&["over-mqtt".to_owned()]).await;
    world.eventually("it is known", async || world.state("over-mqtt").await == "online").await;
    for unit in &over_http {
        assert_eq!(ping(unit).await, 200);
    }
    signal(&world.redis, "-STOP");
    let enough = Clock::system().now() + Duration::from_secs(6);
    let is_long = async || ping(&over_http[0]).await != 200 && Clock::system().now() > enough;
    world.eventually("requests are refused for longer than the timeout", is_long).await;
    signal(&world.redis, "-CONT");

    // The broker kept what devices sent over MQTT, so that unit fell silent.
    world.eventually("it is offline", async || world.state("over-mqtt").await == "offline").await;
    for unit in &over_http {
        assert_ne!(world.state(unit).await, "offline", "{unit}");
    }
    for unit in &over_http {
        assert_eq!(ping(unit).await, 200);
    }
    assert_eq!(world.records().await.len(), 1);
    world.eventually("all are offline", async || world.records().await.len() == 1 + over_http.len()).await;
}
