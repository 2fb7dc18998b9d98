//! Redis that stops, dies, comes back with old data or none, loses its scripts and settings, or
//! is full.

use std::cell::Cell;
use std::time::Duration;

use redis::cmd;

use crate::world::{Plan, TIMEOUT, World, crowd, now};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_is_frozen_under_load_marks_no_unit_offline_and_loses_none() {
    let mut world = World::new(Plan::new(3)).await;
    world.live(3 * TIMEOUT);
    world.pass_some(SECOND).await;
    let mark = world.disturb();
    world.redis.signal("STOP");
    world.pass(2 * TIMEOUT).await;
    world.redis.signal("CONT");
    world.disturbed_since(mark);
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_is_killed_and_has_everything_on_disk_marks_no_unit_offline_and_loses_none() {
    let mut world = World::new(Plan::new(3)).await;
    world.live(5 * TIMEOUT);
    for _ in 0..2 {
        world.pass_some(3 * SECOND).await;
        let mark = world.disturb();
        world.redis.kill();
        world.pass_some(2 * TIMEOUT).await;
        world.redis.restart();
        world.disturbed_since(mark);
    }
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_is_killed_is_one_problem_and_two_lines_in_the_log() {
    let mut world = World::new(Plan::new(1)).await;
    world.live(5 * TIMEOUT);
    world.pass_some(3 * SECOND).await;
    let before = world.instances[0].logged().len();
    let mark = world.disturb();
    world.redis.kill();
    world.pass(3 * TIMEOUT).await;
    let (status, page) = world.instances[0].page("/readyz").await.unwrap();
    let page: serde_json::Value = serde_json::from_str(&page).unwrap();
    let problems = page["problems"].as_array().unwrap();
    assert_eq!((status, problems.len()), (503, 1), "{page:#}");
    assert_eq!(problems[0]["name"], "engine_down");
    let text = problems[0]["text"].as_str().unwrap();
    assert!(text.starts_with("redis at ") && text.contains("; down since "), "{text}");
    let under = problems[0]["consequences"].as_array().unwrap();
    assert!(under.len() > 3, "{page:#}");
    assert!(["intake", "sweep", "lease"].iter().all(|work| text.contains(work)), "{text}");
    world.redis.restart();
    world.disturbed_since(mark);
    world.rests().await;
    let logged = world.instances[0].logged();
    let lines: Vec<&str> = logged[before..].lines().collect();
    let of = |word: &str| lines.iter().filter(|line| line.contains(word)).count();
    assert_eq!((of("the engine is down"), of("engine answers")), (1, 1), "{lines:#?}");
    // The blind time is a fact of its own.
    let loud = lines.iter().filter(|line| line.contains(" WARN ") || line.contains("ERROR "));
    let facts = ["was blind", "the engine is down", "unit offline", "more units went offline than are named"];
    let others: Vec<_> = loud.filter(|line| !facts.iter().any(|fact| line.contains(fact))).collect();
    assert!(others.is_empty(), "{others:#?}");
}

/// Redis comes back with an old state.
async fn rolls_back(instances: usize) {
    let mut world = World::new(Plan::new(instances).with_snapshots()).await;
    world.live(4 * TIMEOUT);
    world.pass_some(SECOND).await;
    let snapshot = now();
    world.redis.ask::<()>(&cmd("SAVE")).await;
    world.pass(2 * TIMEOUT).await;
    world.redis.kill();
    world.pass(SECOND).await;
    world.redis.restart();
    world.lost_since(snapshot, false);
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_comes_back_with_an_old_state_marks_no_unit_offline() {
    rolls_back(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_comes_back_with_an_old_state_to_several_instances_marks_no_unit_offline() {
    rolls_back(3).await;
}

/// Redis comes back empty.
async fn is_emptied(instances: usize) {
    let mut world = World::new(Plan::new(instances)).await;
    world.live(3 * TIMEOUT);
    world.pass_some(2 * SECOND).await;
    let begin = world.disturb();
    world.redis.wipe();
    world.redis.restart();
    world.lost_since(begin, true);
    world.rests().await;
    let (_, ready) = world.instances[0].page("/readyz").await.expect("it answers");
    println!("{ready}");
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_comes_back_empty_marks_no_unit_offline_and_knows_the_fleet_again() {
    is_emptied(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_comes_back_empty_to_several_instances_marks_no_unit_offline_and_knows_the_fleet_again() {
    is_emptied(3).await;
}

/// Redis is emptied while it runs, at random moments.
async fn is_emptied_while_running(instances: usize) {
    const TIMES: usize = 20;
    let mut world = World::new(Plan { units: 20, ..Plan::new(instances) }).await;
    for time in 1..=TIMES {
        world.pass_some(SECOND).await;
        for instance in &world.instances {
            let (_, ready) = instance.page("/readyz").await.expect("it answers");
            assert!(!ready.contains("is not heard"), "the broker withholds nothing: {ready}");
        }
        let mark = world.disturb();
        world.redis.ask::<()>(cmd("FLUSHALL").arg("SYNC")).await;
        world.lost_since(mark, true);
        world.eventually("the loss is notified", async |world| world.blindness_notified() >= time).await;
    }
    world.rests().await;
    assert_eq!(world.blindness_notified(), TIMES, "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_is_emptied_while_running_is_reported_each_time_and_once() {
    is_emptied_while_running(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_is_emptied_under_several_instances_is_reported_each_time_and_once() {
    is_emptied_while_running(3).await;
}

/// Connections break again and again while a crowd falls silent, and lose replies.
async fn connections_break_in_a_storm(instances: usize) {
    const MANY: usize = 3000;
    let mut world = World::new(Plan { units: 20, ..Plan::new(instances) }).await;
    crowd::fill(&world, 0, MANY, now()).await;
    let mark = world.disturb();
    let recorded = Cell::new(Some(0));
    let is_over = async |world: &World| {
        let open = world.open().await;
        // On a busy machine, cuts that do not wait for progress would leave no time for work between them.
        if open > recorded.replace(open) {
            let _ = world.redis.try_ask::<usize>(cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal")).await;
        }
        open >= Some(MANY)
    };
    world.eventually("every silence has its record", is_over).await;
    world.disturbed_since(mark);
    crowd::all_are_notified_once(&world, 0, MANY).await;
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_break_in_a_storm_leave_no_count_wrong() {
    connections_break_in_a_storm(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_several_instances_that_break_in_a_storm_leave_no_count_wrong() {
    connections_break_in_a_storm(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_scripts_connections_and_settings_are_restored_at_once() {
    let mut world = World::new(Plan::new(3)).await;
    world.live(3 * TIMEOUT);
    for round in 0..6 {
        world.pass_some(SECOND).await;
        world.redis.ask::<()>(cmd("SCRIPT").arg("FLUSH")).await;
        world.redis.ask::<usize>(cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub")).await;
        if round == 2 {
            world.redis.ask::<()>(cmd("CONFIG").arg("SET").arg("notify-keyspace-events").arg("")).await;
        }
        if round == 4 {
            // Cut every connection, not only subscriptions.
            let kill = world.redis.ask::<usize>(cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal")).await;
            assert!(kill >= 3, "{kill} connections were there to cut");
        }
    }
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_is_full_marks_no_unit_offline_and_goes_on_when_it_has_room() {
    let mut world = World::new(Plan::new(3)).await;
    world.live(4 * TIMEOUT);
    world.pass_some(SECOND).await;
    let mark = world.disturb();
    let limit = async |bytes: &str| {
        world.redis.ask::<()>(cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes)).await;
    };
    limit("1mb").await;
    let refused = world.redis.try_ask::<()>(cmd("SET").arg("of-another-program").arg("1")).await;
    assert!(refused.is_err_and(|why| why.contains("OOM")), "it is full");
    world.pass(2 * TIMEOUT).await;
    limit("0").await;
    world.disturbed_since(mark);
    world.rests().await;
}
