//! Primaries that die or freeze, and replicas that are promoted.

use super::{SECOND, Survivor, cluster, sentinel};
use crate::world::World;

pub(super) async fn killed(world: &mut World) {
    let (victim, _) = world.kill_a_primary().await;
    world.pass_some(SECOND).await;
    world.node(victim.number).restart();
}

pub(super) async fn replaced_by_hand(world: &mut World) {
    world.promote_by_hand().await;
}

/// Freezes a primary for longer than the promotion of its replica takes.
async fn frozen(world: &mut World) {
    world.freeze_a_primary(6 * SECOND).await;
}

/// A notification that is sent meanwhile waits for the replica without result, and its record is lost with the primary.
async fn replaced_by_one_that_lags(world: &mut World) {
    let mark = world.disturb();
    world.promote_one_that_lags(5 * SECOND).await;
    world.lost_since(mark, false);
}

async fn killed_in_turn(world: &mut World) {
    let (first, _) = world.kill_a_primary().await;
    let (second, _) = world.kill_a_primary().await;
    world.pass_some(SECOND).await;
    [first, second].into_iter().for_each(|victim| world.node(victim.number).restart());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_of_a_cluster_that_fails_is_replaced_and_marks_no_unit_offline() {
    let world = Survivor::new(cluster()).await.of("it is killed", killed).await;
    let world = world.of("it freezes", frozen).await.of("its replica lags", replaced_by_one_that_lags).await;
    world.of("by hand", replaced_by_hand).await.of("two in turn", killed_in_turn).await.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_with_sentinel_that_fails_is_replaced_and_marks_no_unit_offline() {
    let world = Survivor::new(sentinel()).await.of("it is killed", killed).await;
    let world = world.of("it freezes", frozen).await.of("its replicas lag", replaced_by_one_that_lags).await;
    world.of("by hand", replaced_by_hand).await.rests().await;
}
