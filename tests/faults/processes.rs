//! Instances that are killed, frozen, stopped and started.

use std::time::Duration;

use rand::Rng;

use crate::world::{Plan, TIMEOUT, World, crowd, now};

const SECOND: Duration = Duration::from_secs(1);

on_both_engines! {
    one_instance_that_is_killed_again_and_again_loses_nothing_and_notifies_nothing_twice
    an_instance_that_is_frozen_for_longer_than_its_connections_live_goes_on
    a_silence_that_ends_within_its_wait_is_not_notified_if_the_instance_is_killed_meanwhile
}

/// Instances are killed at random moments, one after the other, while the fleet lives.
async fn kills(plan: Plan, times: usize) {
    let instances = plan.instances;
    let mut world = World::new(plan).await;
    world.live(3 * SECOND * times as u32);
    for _ in 0..times {
        world.pass_some(2 * SECOND).await;
        let victim = world.chance.random_range(0..instances);
        let mark = world.disturb();
        world.instances[victim].kill();
        world.pass_some(2 * SECOND).await;
        world.instances[victim].start();
        world.disturbed_since(mark);
    }
    world.rests().await;
}

async fn one_instance_that_is_killed_again_and_again_loses_nothing_and_notifies_nothing_twice(plan: Plan) {
    kills(plan, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_instances_that_are_killed_in_turn_lose_nothing_and_notify_nothing_twice() {
    kills(Plan::new(3), 4).await;
}

/// The first instance is frozen for longer than its connections and its lease live.
async fn freezes(plan: Plan) {
    let mut world = World::new(plan).await;
    world.live(3 * TIMEOUT);
    world.pass_some(SECOND).await;
    let mark = world.disturb();
    world.instances[0].freeze();
    world.pass(3 * TIMEOUT).await;
    world.instances[0].thaw();
    world.disturbed_since(mark);
    world.rests().await;
}

async fn an_instance_that_is_frozen_for_longer_than_its_connections_live_goes_on(plan: Plan) {
    freezes(plan).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_frozen_beside_others_brings_no_dead_unit_back() {
    freezes(Plan::new(3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_was_away_for_long_and_finds_a_backlog_brings_no_dead_unit_back() {
    let mut world = World::new(Plan::new(3)).await;
    world.live(3 * TIMEOUT);
    world.pass_some(SECOND).await;
    let mark = world.disturb();
    world.instances[0].kill();
    world.pass(4 * TIMEOUT).await;
    world.instances[0].start();
    world.disturbed_since(mark);
    world.rests().await;
}

/// How long a silence must last in [`end_within_their_wait`].
const LASTS: Duration = Duration::from_secs(20);

/// Silences end within their wait, some before an instance is killed and some while it is away.
async fn end_within_their_wait(plan: Plan) {
    let route = format!("for = \"{}s\"", LASTS.as_secs());
    let mut world = World::new(Plan { units: 40, route, ..plan }).await;
    let units: Vec<String> = (0..12).map(|number| format!("unit-{number:03}")).collect();
    units.iter().for_each(|unit| world.fleet.silence(unit));
    let recorded = async |world: &World| world.open().await >= Some(units.len());
    world.eventually("every silence has its record", recorded).await;
    let (before, meanwhile) = units.split_at(units.len() / 2);
    before.iter().for_each(|unit| world.fleet.wake(unit));
    world.pass_some(SECOND).await;
    let victim = world.chance.random_range(0..world.instances.len());
    let mark = world.disturb();
    world.instances[victim].kill();
    meanwhile.iter().for_each(|unit| world.fleet.wake(unit));
    world.pass_some(SECOND).await;
    world.instances[victim].start();
    world.disturbed_since(mark);
    // A probe falls silent after all of them, and is notified: their waits are over by then.
    world.rests().await;
    let records = world.records().await.expect("the engine answers");
    let within = records.iter().filter(|record| {
        let is_back = record.back_at.is_some_and(|back| back < record.deadline + LASTS);
        is_back && record.detected_at < mark && units.iter().any(|unit| unit == record.unit.as_str())
    });
    let within: Vec<String> = within.map(|record| record.id.to_string()).collect();
    assert!(!within.is_empty(), "some are back within their wait");
    let notified: Vec<String> =
        world.notified_records().iter().map(|notified| notified.record.id.to_string()).collect();
    for id in within {
        assert!(!notified.contains(&id), "{id} was notified");
    }
}

async fn a_silence_that_ends_within_its_wait_is_not_notified_if_the_instance_is_killed_meanwhile(plan: Plan) {
    end_within_their_wait(plan).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silence_that_ends_within_its_wait_is_not_notified_if_one_of_three_instances_is_killed_meanwhile() {
    end_within_their_wait(Plan::new(3)).await;
}

/// Two instances notify of a crowd one by one.
async fn while_delivering() -> World {
    let route = "group_by = [\"unit\"]".to_owned();
    let world = World::new(Plan { units: 20, route, ..Plan::new(2) }).await;
    crowd::fill(&world, 0, MANY, now()).await;
    let is_under_way = async |world: &World| world.sink.received().len() > MANY / 4;
    world.eventually("a part of it is delivered", is_under_way).await;
    world
}

/// The number of notifications that takes some seconds.
const MANY: usize = 6000;
/// How many attempts of a receiver run at once by default.
const CONCURRENCY: usize = 4;

/// The number of repeated notifications.
fn repeats(world: &World) -> usize {
    let notified_records = world.notified_records().into_iter();
    let mut ids: Vec<_> =
        notified_records.map(|notified| (notified.notification, notified.record.id.to_string())).collect();
    let count = ids.len();
    ids.sort();
    ids.dedup();
    count - ids.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_of_a_killed_instance_are_delivered_by_the_other_and_few_of_them_twice() {
    let mut world = while_delivering().await;
    let mark = world.disturb();
    world.instances[1].kill();
    crowd::all_are_notified_once(&world, 0, MANY).await;
    println!(
        "all delivered {} ms after the kill, {} repeated",
        now().since(mark).as_millis(),
        repeats(&world)
    );
    assert!(repeats(&world) <= CONCURRENCY, "{} were repeated", repeats(&world));
    world.instances[1].start();
    world.disturbed_since(mark);
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_of_a_frozen_instance_are_delivered_by_the_other_and_not_again_when_it_wakes() {
    let mut world = while_delivering().await;
    let mark = world.disturb();
    world.instances[1].freeze();
    crowd::all_are_notified_once(&world, 0, MANY).await;
    world.instances[1].thaw();
    world.disturbed_since(mark);
    world.rests().await;
    println!("{} repeated", repeats(&world));
    assert!(repeats(&world) <= CONCURRENCY, "{} were repeated", repeats(&world));
}
