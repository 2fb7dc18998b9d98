//! A single process with the embedded engine and the broker within. When it dies, only the directory is left.

use std::time::Duration;

use crate::world::{Plan, TIMEOUT, World, crowd, now};

const SECOND: Duration = Duration::from_secs(1);

/// Kills the process, and starts it again a little later.
async fn crash(world: &mut World) {
    let mark = world.disturb();
    world.instances[0].kill();
    world.forget_unheard(now());
    world.pass_some(SECOND).await;
    world.instances[0].start();
    world.ready().await;
    world.broker_away_since(mark);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_again_and_again_loses_nothing_and_notifies_nothing_twice() {
    let mut world = World::new(Plan::alone()).await;
    world.live(5 * TIMEOUT);
    for _ in 0..4 {
        world.pass_some(2 * SECOND).await;
        crash(&mut world).await;
    }
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_in_a_mass_offline_takes_and_notifies_each_unit_once() {
    const MANY: usize = 20_000;
    let mut world = World::new(Plan { units: 40, ..Plan::alone() }).await;
    let mark = world.disturb();
    world.instances[0].stop();
    crowd::fill(&world, 0, MANY, now()).await;
    world.instances[0].start();
    world.ready().await;
    world.broker_away_since(mark);
    for taken in [MANY / 100, MANY / 4, MANY / 2] {
        let some = async |world: &World| world.open().await >= Some(taken);
        world.eventually("some are taken", some).await;
        crash(&mut world).await;
        println!("killed with {:?} of {MANY} taken, {:?} waiting", world.open().await, world.waiting().await);
    }
    crowd::all_are_notified_once(&world, 0, MANY).await;
    assert_eq!(world.open().await, Some(MANY), "no unit has two records");
    world.rests().await;
}
