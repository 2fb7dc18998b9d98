//! Claims about flapping units: one message of the episode, none of its transitions, one of its end.

use std::time::Duration;

use rollcall::fleet::deliveries::WantedState;
use rollcall::presence::FlapRule;
use rollcall::simulate::webhook_sink::{Answer, Received, WebhookSink};
use rollcall::store::FollowUps;

use super::instances::Instance;
use super::silences::silence;
use super::world::{On, WAIT, World, hook, listed, unit, until};
use super::*;

const RULE: FlapRule = FlapRule { transitions: 4, window: HOUR, stable: Duration::from_secs(600) };

async fn world(group_by: &str, receiver: ReceiverConfig) -> World {
    world_on(On::Redis, group_by, receiver).await
}

async fn world_on(on: On, group_by: &str, receiver: ReceiverConfig) -> World {
    let mut world = World::on(on, group_by, vec![receiver]).await;
    world.config.flapping = [("detector".parse().unwrap(), RULE)].into();
    // Reminders would come every minute.
    world.config.route.again = FollowUps { repeat: Some(Duration::from_secs(60)), escalate: Vec::new() };
    world.stop().await;
    world.start();
    world
}

async fn lose(world: &World) {
    world.lose(&["g"]).await;
    world.joined().await;
}

async fn hear(world: &World) {
    world.hear(&["g"]).await;
    world.joined().await;
    world.pass(Duration::from_secs(1)).await;
}

/// The type of a message, and the transitions in it.
fn said(one: &Received) -> (String, Vec<String>) {
    let json = one.json();
    let each = |list: &str, field: &str| {
        let records = json["data"][list].as_array().unwrap().iter();
        records.map(|record| record[field].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let kind = json["type"].as_str().unwrap().to_owned();
    (kind, [each("offline", "cause"), each("online", "closed_by")].concat())
}

/// The last message, when there are `count`.
async fn told(sink: &WebhookSink, count: usize) -> (String, Vec<String>) {
    let received = sink.wait_for(count, MAX_WAIT).await.unwrap();
    let last = said(&received[count - 1]);
    assert_eq!(received.len(), count, "{last:?}");
    last
}

fn message(kind: &str, what: &[&str]) -> (String, Vec<String>) {
    (format!("rollcall.{kind}"), what.iter().map(|what| (*what).to_owned()).collect())
}

/// Four transitions: the last of them is a return, which is notified before the episode.
async fn flap(world: &World, sink: &WebhookSink) {
    let first = sink.received().len();
    transitions(world, sink).await;
    world.pass(5 * WAIT).await;
    assert_eq!(told(sink, first + 5).await, message("flapping", &["flapping"]));
}

async fn transitions(world: &World, sink: &WebhookSink) {
    let first = sink.received().len();
    for turn in 0..2 {
        lose(world).await;
        world.pass(2 * WAIT).await;
        assert_eq!(told(sink, first + 2 * turn + 1).await, message("notification", &["silence"]));
        hear(world).await;
        if turn == 0 {
            world.pass(6 * WAIT).await;
            assert_eq!(told(sink, first + 2).await, message("notification", &["return"]));
        }
    }
    world.pass(WAIT - Duration::from_secs(1)).await;
    assert_eq!(told(sink, first + 4).await, message("notification", &["return"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_episode_follows_its_dead_letter_that_is_delivered_again() {
    let sink = hook().await;
    let mut world = world("unit", webhook_to(sink.url(), None)).await;
    transitions(&world, &sink).await;
    sink.answer_with([Answer::Status(410)]);
    world.advance(5 * WAIT);
    world.dead("hook", 1).await;
    world.stop().await;
    world.start();
    assert_eq!(told(&sink, 5).await, message("flapping", &["flapping"]));
    world.pass(RULE.stable + Duration::from_secs(30)).await;
    assert_eq!(world.metric("rollcall_flapping_units", &["detector"]), 0.0);
    assert_eq!(sink.received().len(), 5, "its receiver was not notified of the episode");
    assert_eq!(world.replay(WantedState::Dead).await, 1);
    assert_eq!(told(&sink, 7).await, message("flapping", &["stable"]));
    assert_eq!(said(&sink.received()[5]), message("flapping", &["flapping"]));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_flaps_is_told_once_and_once_more_when_it_is_stable() {
    for group_by in ["kind", "unit"] {
        let sink = hook().await;
        let mut world = world(group_by, webhook_to(sink.url(), None)).await;
        flap(&world, &sink).await;
        assert_eq!(world.metric("rollcall_flapping_units", &["detector"]), 1.0);
        // The unit's transitions are on record and not notified, and no receiver is reminded, also after a crash.
        for _ in 0..2 {
            lose(&world).await;
            world.crash().await;
            world.start();
            world.pass(Duration::from_secs(300)).await;
            hear(&world).await;
        }
        lose(&world).await;
        world.pass(Duration::from_secs(590)).await;
        assert_eq!(sink.received().len(), 5, "{group_by}");
        assert_eq!(world.engine.records(false, None, 10).await.unwrap().len(), 5);
        // The unit stays offline. From then on it is a unit like any other.
        world.pass(Duration::from_secs(30)).await;
        assert_eq!(told(&sink, 6).await, message("flapping", &["silence", "stable_offline"]));
        assert_eq!(world.metric("rollcall_flapping_units", &["detector"]), 0.0);
        hear(&world).await;
        world.pass(6 * WAIT).await;
        assert_eq!(told(&sink, 7).await, message("notification", &["return"]));
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_is_stable_and_online_is_told_and_a_removed_one_is_not() {
    let sink = hook().await;
    let mut world = world("kind", webhook_to(sink.url(), None)).await;
    flap(&world, &sink).await;
    world.pass(RULE.stable).await;
    assert_eq!(told(&sink, 6).await, message("flapping", &["stable"]));

    // A silence covers the begin of the next episode; the unit still flaps when the silence is over.
    let covers = silence(&world, "unit=g", 2 * HOUR).await;
    for _ in 0..3 {
        lose(&world).await;
        hear(&world).await;
    }
    world.pass(WAIT).await;
    assert_eq!(world.metric("rollcall_flapping_units", &["detector"]), 1.0);
    lose(&world).await;
    world.silences.expire(covers, "anna", world.clock.now()).await.unwrap();
    let joined = async || world.groups().first_seal(&world.partitions()).await.unwrap().is_some();
    until("the episode joins when the silence is over", joined).await;
    world.pass(2 * WAIT).await;
    assert_eq!(told(&sink, 7).await, message("flapping", &["flapping"]));
    assert_eq!(listed(&sink.received()[6], "offline"), ["g"]);

    // The unit is removed while it flaps.
    assert!(world.roll.retire(&unit("g"), world.clock.now()).await.unwrap());
    world.joined().await;
    world.pass(2 * RULE.stable).await;
    assert_eq!(world.metric("rollcall_flapping_units", &["detector"]), 0.0);
    world.stop().await;
    assert_eq!(sink.received().len(), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_unit_that_is_removed_while_it_flaps_is_closed() {
    for on in [On::Redis, On::Directory] {
        let sink = hook().await;
        let mut world = world_on(on, "unit", services::pager(&sink)).await;
        for _ in 0..2 {
            lose(&world).await;
            world.pass(2 * WAIT).await;
            hear(&world).await;
            world.pass(2 * WAIT).await;
        }
        let flaps =
            |received: &Received| received.json()["payload"]["summary"].to_string().contains("FLAPPING");
        until("the episode is paged", async || sink.received().iter().any(flaps)).await;
        assert!(world.roll.retire(&unit("g"), world.clock.now()).await.unwrap());
        world.joined().await;
        world.pass(2 * RULE.stable).await;
        world.delivered("hook").await;
        world.stop().await;
        let received = sink.received();
        let page = received.iter().find(|one| flaps(one)).unwrap().json()["dedup_key"].clone();
        let last = received.last().unwrap().json();
        assert_eq!((&last["event_action"], &last["dedup_key"]), (&"resolve".into(), &page));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_episode_that_another_instance_takes_over_is_told_once_and_its_end_once() {
    tokio::join!(an_episode_is_taken_over(On::Redis), an_episode_is_taken_over(On::Directory));
}

async fn an_episode_is_taken_over(on: On) {
    let sink = hook().await;
    let mut world = world_on(on, "kind", webhook_to(sink.url(), None)).await;
    world.stop().await;
    let first = Instance::start(&world, "a", &["a"]);
    flap(&world, &sink).await;
    // The next instance runs already, and owns everything when the first is killed with a transition in the outbox.
    let next = Instance::start(&world, "b", &["a"]);
    world.lose(&["g"]).await;
    first.kill().await;
    next.sees(&world, &["b"]);
    world.joined().await;
    world.pass(WAIT).await;
    for _ in 0..RULE.transitions {
        hear(&world).await;
        world.pass(2 * WAIT).await;
        lose(&world).await;
        world.pass(2 * WAIT).await;
    }
    hear(&world).await;
    world.pass(RULE.stable - Duration::from_secs(60)).await;
    assert_eq!(sink.received().len(), 5, "the episode goes on");
    world.pass(Duration::from_secs(90)).await;
    assert_eq!(told(&sink, 6).await, message("flapping", &["stable"]));
    world.pass(RULE.stable).await;
    next.kill().await;
    assert_eq!(sink.received().len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_episode_waits_while_an_alert_silence_covers_a_unit_that_is_offline() {
    let sink = hook().await;
    let mut world = world("kind", webhook_to(sink.url(), None)).await;
    flap(&world, &sink).await;
    lose(&world).await;
    let covers = silence(&world, "unit=g", 2 * HOUR).await;
    world.pass(2 * RULE.stable).await;
    assert_eq!(sink.received().len(), 5, "nothing while it is covered");
    world.silences.expire(covers, "anna", world.clock.now()).await.unwrap();
    world.pass(Duration::from_secs(30)).await;
    assert_eq!(told(&sink, 6).await, message("flapping", &["silence", "stable_offline"]));
    hear(&world).await;
    world.pass(6 * WAIT).await;
    assert_eq!(told(&sink, 7).await, message("notification", &["return"]));
    world.stop().await;
}
