//! Primaries that die or freeze, and replicas that are promoted.

use super::{SECOND, cluster, in_a_wave};
use crate::world::Plan;

on_both_topologies! {
    a_primary_that_is_killed_is_replaced_and_marks_no_unit_offline
    a_primary_that_freezes_is_replaced_and_marks_no_unit_offline
    a_replica_that_is_promoted_by_hand_marks_no_unit_offline
    a_replica_that_lags_and_is_promoted_marks_no_unit_offline
}

async fn a_primary_that_is_killed_is_replaced_and_marks_no_unit_offline(plan: Plan) {
    let mut world = in_a_wave(plan).await;
    let mark = world.disturb();
    let (victim, _) = world.kill_a_primary().await;
    world.pass_some(SECOND).await;
    world.node(victim.number).restart();
    world.disturbed_since(mark);
    world.resumes_and_rests().await;
}

/// For longer than its replica takes until it is promoted.
async fn a_primary_that_freezes_is_replaced_and_marks_no_unit_offline(plan: Plan) {
    let mut world = in_a_wave(plan).await;
    let mark = world.disturb();
    world.freeze_a_primary(6 * SECOND).await;
    world.disturbed_since(mark);
    world.resumes_and_rests().await;
}

async fn a_replica_that_is_promoted_by_hand_marks_no_unit_offline(plan: Plan) {
    let mut world = in_a_wave(plan).await;
    let mark = world.disturb();
    world.promote_by_hand().await;
    world.disturbed_since(mark);
    world.resumes_and_rests().await;
}

/// A notification that is sent meanwhile waits for the replica in vain, and its record is lost with the primary.
async fn a_replica_that_lags_and_is_promoted_marks_no_unit_offline(plan: Plan) {
    let mut world = in_a_wave(plan).await;
    let mark = world.disturb();
    world.promote_one_that_lags(5 * SECOND).await;
    world.lost_since(mark, false);
    world.resumes_and_rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_primaries_of_a_cluster_that_are_killed_in_turn_are_replaced_and_mark_no_unit_offline() {
    let mut world = in_a_wave(cluster()).await;
    let mark = world.disturb();
    let (first, _) = world.kill_a_primary().await;
    let (second, _) = world.kill_a_primary().await;
    world.pass_some(SECOND).await;
    [first, second].into_iter().for_each(|victim| world.node(victim.number).restart());
    world.disturbed_since(mark);
    world.resumes_and_rests().await;
}
