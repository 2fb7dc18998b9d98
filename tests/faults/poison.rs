//! Values in Redis that another program broke, while silences and returns go on.

use std::collections::BTreeSet;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rollcall::store::redis::sorts;

use crate::world::poison::{self, ALIVE, FACTS, How};
use crate::world::{Plan, TIMEOUT, World};

#[tokio::test(flavor = "multi_thread")]
async fn poisoned_keys_mark_no_unit_offline_and_each_silence_and_return_is_notified_once() {
    let mut world = World::new(Plan::new(3)).await;
    let mut chance = StdRng::from_rng(&mut world.chance);
    let is_notified = |world: &World, unit: &str| {
        world.notified_records().iter().any(|notified| notified.record.unit.as_str() == unit)
    };
    world.fleet.silence("unit-002");
    world.eventually("it is notified", async |world| is_notified(world, "unit-002")).await;
    world.live(3 * TIMEOUT);
    let mark = world.disturb();
    // One unit is silent and will be notified later, one is unknown until its next heartbeat, one has an open record.
    world.fleet.silence("unit-000");
    world.fleet.silence("unit-001");
    for (unit, sort, how) in [
        ("unit-000", ALIVE, How::WrongType),
        ("unit-001", FACTS, How::Missing),
        ("unit-002", FACTS, How::Unreadable),
    ] {
        poison::break_of(&mut world, unit, sort, how).await;
        poison::break_some(&mut world, &mut chance).await;
        world.pass_some(TIMEOUT / 3).await;
        poison::all_are_ready(&world).await;
    }
    world.disturbed_since(mark);
    world.eventually("a silence is notified", async |world| is_notified(world, "unit-000")).await;
    // The unknown unit stays silent: Rollcall knows nothing to notify.
    ["unit-000", "unit-002"].iter().for_each(|unit| world.fleet.wake(unit));
    world.rests().await;
    poison::all_are_ready(&world).await;
}

#[test]
fn every_type_of_key_is_poisoned_or_left_out_for_a_reason() {
    let left_out = poison::LEFT_OUT.iter().map(|(name, _)| *name);
    let named: Vec<&str> = poison::POISONED.into_iter().chain(left_out).collect();
    let once: BTreeSet<String> = named.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(once.len(), named.len(), "one is named twice");
    assert_eq!(once, sorts().into_iter().map(|(name, _)| name).collect(), "the key types in keys.rs differ");
}
