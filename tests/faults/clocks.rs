//! Clocks of an instance and of Redis that step by an hour. The monotonic clock goes on, as it does
//! when an operator sets the time.

use std::path::PathBuf;
use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::presence::{Declared, Heartbeat, Unit};
use rollcall::simulate::servers::free_port;
use rollcall::store::{Engine, Queries, UnitStore};

use crate::world::redis::{DURABLE, Redis};
use crate::world::{Plan, TIMEOUT, World, crowd};

const SECOND: Duration = Duration::from_secs(1);

/// The path of the library that fakes clocks, as Debian installs it, in a directory named after the architecture.
fn library() -> PathBuf {
    let found = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut found = found.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    found.find(|path| path.exists()).expect("libfaketime is missing; install the package faketime")
}

/// A clock with an offset from the machine's, which a file holds.
struct Clock {
    file: tempfile::TempPath,
}

impl Clock {
    fn right() -> Clock {
        let clock = Clock { file: tempfile::NamedTempFile::new().unwrap().into_temp_path() };
        clock.step("+0");
        clock
    }

    /// The offset from now on, such as `+3600` or `-3600`.
    fn step(&self, offset: &str) {
        // In one step, so that no process reads half of it.
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("{offset}\n")).unwrap();
        std::fs::rename(&next, &self.file).unwrap();
    }

    /// The prefix of a command line that uses this clock.
    fn before(&self) -> Vec<String> {
        vec![
            "env".to_owned(),
            // The allocator of Redis reads the time before the library can answer; libc's does not.
            format!("LD_PRELOAD={} libc.so.6", library().display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.file.display()),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "FAKETIME_NO_CACHE=1".to_owned(),
        ]
    }
}

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

/// The clock of Redis, which all instances follow, steps there and back while the fleet lives.
/// An instance is restarted each time, so that one knows no other time.
async fn steps_of_redis(offsets: [&str; 2], instances: usize, behind: usize) {
    let clock = Clock::right();
    let mut world = World::new(Plan { before_redis: clock.before(), ..Plan::new(instances) }).await;
    world.live(6 * TIMEOUT);
    for (number, offset) in offsets.into_iter().enumerate() {
        world.pass_some(SECOND).await;
        let mark = world.disturb();
        clock.step(offset);
        // Until every instance knows of it.
        world.pass(TIMEOUT).await;
        world.instances[0].kill();
        world.instances[0].start();
        world.disturbed_since(mark);
        if number == behind {
            let is_noticed = async |world: &World| {
                let page = world.instances[0].page("/readyz").await;
                page.is_some_and(|(_, page)| page.contains("behind the time of the fleet"))
            };
            world.eventually("readyz reports that the clock of the engine was set back", is_noticed).await;
        }
        world.probe().await;
    }
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_whose_clock_steps_forward_by_an_hour_and_back_marks_no_unit_offline_and_loses_none() {
    steps_of_redis(["+3600", "+0"], 3, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_whose_clock_steps_back_by_an_hour_and_forward_marks_no_unit_offline_and_loses_none() {
    steps_of_redis(["-3600", "+0"], 3, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_that_a_clock_jump_of_redis_removes_are_not_missed() {
    let clock = Clock::right();
    let dir = tempfile::TempDir::new().unwrap();
    let redis = Redis::start(dir.path(), free_port().unwrap(), &clock.before(), &DURABLE);
    let (engine, roll) = crowd::roll(redis.port()).await;
    let unit: Unit = "detector:turtle".parse().unwrap();
    // The second time the fleet is ahead already, and its time hardly jumps.
    for _ in 0..2 {
        let begin = renew(&*engine).await;
        let at = |part: f64| begin + TIMEOUT.mul_f64(part);
        let beat = |at: Timestamp| {
            [Heartbeat { unit: unit.clone(), at, not_before: None, declared: Declared::default() }]
        };
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
        // Its key is gone, and the last check did not see its last heartbeat.
        assert_eq!(engine.read(std::slice::from_ref(&unit)).await.unwrap()[0].alive, None);
        roll.check_deadlines(std::slice::from_ref(&unit), at(1.2)).await.unwrap();
        assert!(!is_offline().await, "before Rollcall handled the jump");
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

/// As in instances: the clock is read before.
async fn renew(engine: &dyn Engine) -> Timestamp {
    engine.hearing().await.unwrap();
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
