//! Clocks of an instance and of Redis that step by an hour. The monotonic clock goes on, as it does
//! when an operator sets the time. A step forward is not followed before it has lasted for a minute.

use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::presence::{Heartbeat, Unit};
use rollcall::simulate::servers::free_port;
use rollcall::store::{Engine, Queries, UnitStore};

use crate::world::clock::Clock;
use crate::world::redis::{DURABLE, Redis};
use crate::world::{Plan, TIMEOUT, World, crowd};

const SECOND: Duration = Duration::from_secs(1);

/// The clock of the first instance steps there and back while the fleet lives.
async fn steps(there: &str, plan: Plan) {
    let clock = Clock::right();
    let mut world = World::new(Plan { before: clock.before(), ..plan }).await;
    world.live(4 * TIMEOUT);
    for offset in [there, "+0"] {
        world.pass_some(SECOND).await;
        clock.step(offset);
        world.pass(TIMEOUT.mul_f64(1.5)).await;
    }
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_whose_clock_steps_forward_by_an_hour_marks_no_unit_offline() {
    steps("+3600", Plan::new(3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_whose_clock_steps_back_by_an_hour_loses_no_unit() {
    steps("-3600", Plan::new(3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_in_a_directory_goes_on_where_the_clock_steps_back_by_an_hour() {
    steps("-3600", Plan::embedded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_in_a_directory_goes_on_where_the_clock_steps_forward_by_an_hour() {
    steps("+3600", Plan::embedded()).await;
}

/// The clock of Redis, which all instances follow, steps there and back while the fleet lives. An instance is
/// restarted each time, so that this one knows no other time.
async fn steps_of_redis(offsets: [&str; 2], instances: usize, shown: (usize, &str)) {
    let clock = Clock::right();
    let mut world = World::new(Plan { before_redis: clock.before(), ..Plan::new(instances) }).await;
    world.live(6 * TIMEOUT);
    for (number, offset) in offsets.into_iter().enumerate() {
        world.pass_some(SECOND).await;
        let mark = world.disturb();
        clock.step(offset);
        // Wait until every instance knows of the step.
        world.pass(TIMEOUT).await;
        world.instances[0].kill();
        world.instances[0].start();
        world.disturbed_since(mark);
        if number == shown.0 {
            let is_noticed = async |world: &World| {
                let page = world.instances[0].page("/readyz").await;
                page.is_some_and(|(_, page)| page.contains(shown.1))
            };
            world.eventually("readyz reports that the clock of the engine was set", is_noticed).await;
        }
        world.probe().await;
    }
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_whose_clock_steps_forward_by_an_hour_and_back_marks_no_unit_offline_and_loses_none() {
    steps_of_redis(["+3600", "+0"], 3, (0, "clock_jumped")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_whose_clock_steps_back_by_an_hour_and_forward_marks_no_unit_offline_and_loses_none() {
    steps_of_redis(["-3600", "+0"], 3, (0, "behind the time of the fleet")).await;
}

/// The first part that meets a jump of the clock.
#[derive(Clone, Copy, PartialEq)]
enum First {
    Check,
    Renewal,
    OtherRenewal,
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_that_a_clock_jump_of_redis_removes_are_not_missed() {
    let clock = Clock::right();
    let dir = tempfile::TempDir::new().unwrap();
    let redis = Redis::start(dir.path(), free_port().unwrap(), &clock.before(), &DURABLE);
    let (engine, roll) = crowd::roll(redis.url()).await;
    let (other, _) = crowd::roll(redis.url()).await;
    let unit: Unit = "detector:turtle".parse().unwrap();
    // From the second round on the fleet is ahead already, and its time hardly jumps.
    let all = [First::Check, First::Check, First::Renewal, First::OtherRenewal];
    for (number, first) in (0..).zip(all) {
        // No blind time of one round reaches into the next.
        let begin = renew(&*engine).await + number * 100 * SECOND;
        renew(&*other).await;
        let at = |part: f64| begin + TIMEOUT.mul_f64(part);
        let beat = |at: Timestamp| [Heartbeat::of(unit.clone(), at)];
        let is_offline = async || !engine.records(true, None, 1).await.unwrap().is_empty();
        let hear_until = async |tenths: std::ops::Range<u32>| {
            for tenths in tenths {
                roll.canary_returned(at(f64::from(tenths) / 10.0)).await.unwrap();
            }
        };
        hear_until(0..1).await;
        roll.hear(&beat(begin), begin).await.unwrap();
        roll.hear(&beat(at(0.9)), at(0.9)).await.unwrap();
        hear_until(1..13).await;
        clock.step("+3600");
        // The unit's key is gone, and the last check did not see its last heartbeat.
        assert_eq!(engine.read(std::slice::from_ref(&unit)).await.unwrap()[0].alive, None);
        if first == First::Check {
            roll.check_deadlines(std::slice::from_ref(&unit), at(1.2)).await.unwrap();
            assert!(!is_offline().await, "before Rollcall handled the jump");
        }
        if first == First::OtherRenewal {
            renew(&*other).await;
        }
        renew(&*engine).await;
        roll.check_deadlines(std::slice::from_ref(&unit), at(1.2)).await.unwrap();
        assert!(!is_offline().await, "before anything was heard after it");
        hear_until(13..14).await;
        roll.check_deadlines(std::slice::from_ref(&unit), at(1.3)).await.unwrap();
        assert!(!is_offline().await, "when it is known to be blind time");
        // But a unit that stays silent is found.
        hear_until(14..60).await;
        roll.check_deadlines(std::slice::from_ref(&unit), at(5.7)).await.unwrap();
        assert!(is_offline().await, "it is silent");
        roll.hear(&beat(at(5.8)), at(5.8)).await.unwrap();
        clock.step("+0");
    }
}

pub async fn renew(engine: &dyn Engine) -> Timestamp {
    engine.renew("alone", Duration::from_secs(8), None).await.unwrap().now
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_starts_with_a_clock_that_is_an_hour_ahead_goes_by_the_engines() {
    let clock = Clock::right();
    clock.step("+3600");
    let mut world = World::new(Plan { before: clock.before(), ..Plan::new(1) }).await;
    world.live(2 * TIMEOUT);
    world.rests().await;
}
