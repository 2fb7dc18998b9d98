//! Slots that move to other primaries, some of them new.

use super::{SECOND, cluster, in_a_wave};
use crate::world::{Plan, TIMEOUT, World, crowd, now};

/// As many as a debug build notifies within seconds on a busy machine.
const MANY: usize = 3000;

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_while_a_crowd_falls_silent_lose_no_record_and_mark_no_unit_offline() {
    let mut world = World::new(Plan { units: 60, ..cluster() }).await;
    crowd::fill(&world, 0, MANY, now()).await;
    world.live(4 * TIMEOUT);
    world.pass(TIMEOUT - SECOND).await;
    let mark = world.disturb();
    world.move_slots().await;
    world.disturbed_since(mark);
    crowd::all_are_notified_once(&world, 0, MANY).await;
    world.resumes_and_rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_is_added_and_one_that_is_removed_mark_no_unit_offline() {
    let mut world = in_a_wave(cluster()).await;
    let mark = world.disturb();
    let leaves = world.some_primary().await.number;
    let cluster = world.redis.cluster();
    let added = cluster.add().await;
    cluster.remove(leaves, added).await;
    world.disturbed_since(mark);
    world.resumes_and_rests().await;
}
