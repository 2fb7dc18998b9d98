//! Claims about the mass-offline breaker: when a large part of the fleet falls silent at once, operators get one
//! message, and notifications of single units are held.

use std::collections::BTreeSet;
use std::time::Duration;

use rollcall::fleet::MassBreaker;
use rollcall::fleet::deliveries::WantedState;
use rollcall::presence::{MassOfflineRule, Trip};
use rollcall::simulate::webhook_sink::{Answer, Received, WebhookSink};
use serde_json::Value;

use super::instances::Instance;
use super::world::{On, TIMEOUT, WAIT, World, hook, listed, until};
use super::*;

const SECOND: Duration = Duration::from_secs(1);
pub const RULE: MassOfflineRule = MassOfflineRule {
    share: 0.5,
    min_units: 20,
    window: Duration::from_secs(60),
    max_hold: Duration::from_secs(600),
};

pub fn names(from: usize, to: usize) -> Vec<String> {
    (from..to).map(|number| format!("unit-{number:02}")).collect()
}

fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// A fleet in which the silence of one half trips the breaker; its loops are stopped.
async fn world(on: On, sink: &WebhookSink) -> World {
    let mut world = World::on(on, "unit", vec![webhook_to(sink.url(), None)]).await;
    world.config.breaker = Some(RULE);
    world.stop().await;
    world
}

impl World {
    /// Twelve of these units are silent for longer than their timeout, and the others are heard.
    pub async fn lose_twelve(&self, all: &[String]) {
        self.hear(&refs(all)).await;
        self.advance(TIMEOUT / 2);
        self.hear(&refs(&all[12..])).await;
        self.advance(TIMEOUT / 2 + SECOND);
        self.check(&all[..12]).await;
    }

    pub fn breaker(&self) -> MassBreaker {
        let engine = self.engine.clone();
        MassBreaker::new(None, engine.clone(), engine, self.silences.clone(), self.telemetry.clone())
    }

    /// Waits for a trip of which operators are notified, and returns it.
    pub async fn notified(&self, is_held: bool) -> Trip {
        let notified = async || {
            let last = self.breaker().last().await.unwrap();
            last.is_some_and(|trip| trip.is_notified && trip.is_held() == is_held)
        };
        until("operators are notified of it", notified).await;
        self.breaker().last().await.unwrap().unwrap()
    }
}

/// The requests at the sink, each id once: a delivery that is under way when the clock moves beyond its lease, or its
/// instance is killed, is repeated.
fn arrived(sink: &WebhookSink) -> Vec<Received> {
    let mut ids = BTreeSet::new();
    sink.received().into_iter().filter(|one| ids.insert(one.header("webhook-id").to_owned())).collect()
}

/// The notifications at the sink, each id once, when there are at least `count`.
async fn wait_for(sink: &WebhookSink, count: usize) -> Vec<Received> {
    until("the sink has received them", async || arrived(sink).len() >= count).await;
    arrived(sink)
}

/// The messages of the breaker.
fn of_breaker(received: &[Received]) -> Vec<Value> {
    let bodies = received.iter().map(Received::json);
    bodies.filter(|json| json["type"] == "rollcall.breaker").map(|json| json["data"].clone()).collect()
}

/// The units that other messages list.
fn of_units(received: &[Received], which: &str) -> Vec<String> {
    let single = received.iter().filter(|one| one.json()["type"] == "rollcall.notification");
    let mut units: Vec<String> = single.flat_map(|one| listed(one, which)).collect();
    units.sort();
    units
}

#[tokio::test(flavor = "multi_thread")]
async fn one_message_of_two_instances_replaces_those_of_half_of_the_fleet_until_it_is_back() {
    tokio::join!(
        one_message_until_the_fleet_is_back(On::Redis),
        one_message_until_the_fleet_is_back(On::Directory)
    );
}

async fn one_message_until_the_fleet_is_back(on: On) {
    let sink = hook().await;
    let mut world = world(on, &sink).await;
    let both = ["a", "b"];
    let instances = [Instance::start(&world, "a", &both), Instance::start(&world, "b", &both)];
    let all = names(0, 20);
    // A single unit was notified before the storm.
    world.lose(&["old"]).await;
    world.joined().await;
    world.pass(WAIT).await;
    wait_for(&sink, 1).await;
    world.lose_twelve(&all).await;
    assert_eq!(world.metric("rollcall_breaker_tripped", &[]), 1.0);
    world.pass(3 * WAIT).await;
    let trip = world.notified(true).await;
    assert_eq!((trip.offline, trip.units), (12, 20));
    let received = wait_for(&sink, 2).await;
    let data = &of_breaker(&received)[0];
    let breaker = &data["breaker"];
    assert_eq!((&breaker["offline"], &breaker["units"]), (&12.into(), &20.into()), "{data}");
    assert_eq!(
        (&breaker["values"][0]["label"], &breaker["values"][0]["percent"]),
        (&"kind".into(), &100.into())
    );
    for part in ["12 of 20 units", "It may mean", "the broker", "the engine", "is heard"] {
        assert!(data["text"].as_str().unwrap().contains(part), "{part}: {data}");
    }

    // All instances end, and another one continues with the trip. Units return, among them the unit that was notified
    // before; one more falls silent. Nothing is notified of them yet.
    for instance in instances {
        instance.kill().await;
    }
    world.start();
    world.hear(&[&refs(&all[..10])[..], &["old"]].concat()).await;
    world.hear(&refs(&all[13..])).await;
    world.check(&all[12..13]).await;
    world.pass(6 * WAIT).await;
    assert_eq!(arrived(&sink).len(), 2);
    assert!(world.notified(true).await.is_held());

    // Most units are back: those still offline are notified as offline, and the unit that was notified before as back.
    world.hear(&refs(&all[10..11])).await;
    world.hear(&refs(&all[12..13])).await;
    world.joined().await;
    let trip = world.notified(false).await;
    assert_eq!(trip.released.unwrap().offline, 1);
    // The breaker's message waits for nothing, and comes before the notifications that it explains.
    assert_eq!(of_breaker(&wait_for(&sink, 3).await).len(), 2);
    world.pass(3 * WAIT).await;
    wait_for(&sink, 5).await;
    world.stop().await;
    let received = arrived(&sink);
    let over = &of_breaker(&received)[1]["breaker"]["released"];
    assert_eq!((&over["why"], &over["offline"]), (&"returned".into(), &1.into()));
    assert_eq!(of_units(&received, "offline"), ["old", "unit-11"]);
    assert_eq!(of_units(&received, "online"), ["old"]);
    assert_eq!(received.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_release_follows_a_dead_letter_of_the_breaker_that_is_delivered_again() {
    let sink = hook().await;
    sink.answer_with([Answer::Status(410)]);
    let mut world = world(On::Redis, &sink).await;
    world.start();
    let all = names(0, 20);
    world.lose_twelve(&all).await;
    world.pass(3 * WAIT).await;
    world.notified(true).await;
    world.dead("hook", 1).await;
    world.stop().await;
    world.start();
    world.hear(&refs(&all)).await;
    world.joined().await;
    world.notified(false).await;
    let before = wait_for(&sink, 2).await.len();
    world.delivered("hook").await;
    assert_eq!(world.replay(WantedState::Dead).await, 1);
    until("both are repeated", async || sink.received().len() >= before + 2).await;
    let released: Vec<Value> = of_breaker(&sink.received()[before..])
        .into_iter()
        .map(|data| data["breaker"]["released"]["why"].clone())
        .collect();
    assert_eq!(released, [Value::Null, "returned".into()]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_is_notified_once_when_it_is_released() {
    tokio::join!(
        held_until_its_release(On::Redis, "time"),
        held_until_its_release(On::Directory, "operator"),
        held_until_its_release(On::Redis, "disabled"),
    );
}

async fn held_until_its_release(on: On, how: &str) {
    let sink = hook().await;
    let mut world = world(on, &sink).await;
    world.start();
    let all = names(0, 20);
    world.lose_twelve(&all).await;
    world.pass(3 * WAIT).await;
    world.notified(true).await;
    assert_eq!(wait_for(&sink, 1).await.len(), 1);
    match how {
        "time" => world.pass(RULE.max_hold).await,
        "operator" => {
            let now = world.clock.now();
            assert!(world.breaker().release(("ana", "seen"), now).await.unwrap());
        }
        _ => {
            // A reload starts the loops again.
            world.stop().await;
            world.config.breaker = None;
            world.start();
        }
    }
    let why = world.notified(false).await.released.unwrap().why.as_str();
    assert_eq!(why, if how == "time" { "time" } else { "operator" });
    world.pass(3 * WAIT).await;
    wait_for(&sink, 14).await;
    // A unit that was held and notified is notified of its return, too.
    world.hear(&["unit-00"]).await;
    world.joined().await;
    world.pass(6 * WAIT).await;
    wait_for(&sink, 15).await;
    world.stop().await;
    let received = arrived(&sink);
    assert_eq!((received.len(), of_breaker(&received).len()), (15, 2), "{how}");
    assert_eq!(of_units(&received, "offline"), all[..12], "{how}");
    assert_eq!(of_units(&received, "online"), ["unit-00"], "{how}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_fleet_never_trips_it() {
    let sink = hook().await;
    let mut world = world(On::Redis, &sink).await;
    world.start();
    world.lose_twelve(&names(0, 19)).await;
    world.pass(WAIT).await;
    wait_for(&sink, 12).await;
    assert_eq!(world.metric("rollcall_breaker_tripped", &[]), 0.0);
    world.stop().await;
}
