//! Servers whose clocks are an hour off from the others: from the start, set while the servers run, or at a replica
//! that is promoted.

use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::presence::{Heartbeat, Unit};
use rollcall::store::redis::{HashTags, RedisEngine, facts_key};
use rollcall::store::{Layout, Queries, UnitStore};

use super::failover::replaced_by_hand;
use super::{SECOND, Survivor, in_a_wave};
use crate::clocks::renew;
use crate::world::clock::Clock;
use crate::world::cluster::{Cluster, ClusterPlan, slot_of_tag};
use crate::world::node::{Place, until};
use crate::world::redis::Topology;
use crate::world::sentinel::SentinelPlan;
use crate::world::{Plan, TIMEOUT, World, crowd};

const PRIMARIES: usize = 3;

/// A clock with this offset.
fn clock(offset: &str) -> Clock {
    let clock = Clock::right();
    clock.step(offset);
    clock
}

fn place(clock: &Clock) -> Place {
    Place { before: clock.before(), ..Place::default() }
}

/// Two instances on a cluster in which the servers of `with_it` have this clock.
fn cluster(clock: &Clock, with_it: impl Fn(usize) -> bool, replicas: usize) -> Plan {
    let place = |number| if with_it(number) { place(clock) } else { Place::default() };
    let places = (0..PRIMARIES * (1 + replicas)).map(place).collect();
    let topology = Topology::Cluster(ClusterPlan { places, ..ClusterPlan::new(replicas) });
    Plan { topology, has_other_clocks: true, ..Plan::new(2) }
}

/// A plan with Sentinel, where the replicas have this clock.
fn sentinel(clock: &Clock) -> Plan {
    let places = vec![Place::default(), place(clock), place(clock)];
    let topology = Topology::Sentinel(SentinelPlan { places, ..SentinelPlan::new(2) });
    Plan { topology, has_other_clocks: true, ..Plan::new(2) }
}

/// The primary that keeps hearing in a new cluster.
fn of_hearing() -> usize {
    usize::from(slot_of_tag("hearing")) * PRIMARIES / 16384
}

fn another() -> usize {
    (of_hearing() + 1) % PRIMARIES
}

async fn lives_and_rests(plan: Plan) {
    let mut world = in_a_wave(plan).await;
    world.resumes_and_rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_whose_clock_is_an_hour_ahead_from_the_start_marks_no_unit_offline() {
    lives_and_rests(cluster(&clock("+3600"), |number| number == another(), 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_keeps_hearing_with_a_clock_an_hour_ahead_marks_no_unit_offline() {
    lives_and_rests(cluster(&clock("+3600"), |number| number == of_hearing(), 0)).await;
}

/// The clock of a primary is set to this offset, and right again.
async fn set_and_right_again(offset: &str) {
    let clock = Clock::right();
    let mut world = in_a_wave(cluster(&clock, |number| number == another(), 0)).await;
    for offset in [offset, "+0"] {
        let mark = world.disturb();
        clock.step(offset);
        // A server regards the others as away until they answer again.
        world.pass(SECOND).await;
        world.are_whole().await;
        world.disturbed_since(mark);
        world.live(TIMEOUT);
        world.probe().await;
    }
    world.resumes_and_rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_whose_clock_is_set_an_hour_forward_and_back_marks_no_unit_offline() {
    set_and_right_again("+3600").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_whose_clock_is_set_an_hour_back_and_right_again_marks_no_unit_offline() {
    set_and_right_again("-3600").await;
}

/// A replica is promoted by hand, another one takes the place of a primary that dies.
async fn promoted(plan: Plan) {
    let dies = async |world: &mut World| {
        let (victim, _) = world.kill_a_primary().await;
        world.node(victim.number).restart();
    };
    let world = Survivor::new(plan).await;
    world.of("by hand", replaced_by_hand).await.of("its primary dies", dies).await.rests().await;
}

fn is_replica(number: usize) -> bool {
    number >= PRIMARIES
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_a_cluster_whose_clocks_are_an_hour_ahead_are_promoted_and_mark_no_unit_offline() {
    promoted(cluster(&clock("+3600"), is_replica, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_a_cluster_whose_clocks_are_an_hour_behind_are_promoted_and_lose_no_unit() {
    promoted(cluster(&clock("-3600"), is_replica, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_with_sentinel_whose_clocks_are_an_hour_ahead_are_promoted_and_mark_no_unit_offline() {
    promoted(sentinel(&clock("+3600"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_with_sentinel_whose_clocks_are_an_hour_behind_are_promoted_and_lose_no_unit() {
    promoted(sentinel(&clock("-3600"))).await;
}

/// A unit whose partition is at another primary than hearing, and that primary.
pub(super) async fn unit_apart(cluster: &Cluster, engine: &RedisEngine) -> (Unit, usize) {
    for number in 0.. {
        let unit: Unit = format!("detector:turtle-{number}").parse().unwrap();
        let key = facts_key("rollcall", engine.partitions(), HashTags::Spread, &unit);
        let primary = cluster.primary_of(&key).await;
        if primary != of_hearing() {
            return (unit, primary);
        }
    }
    unreachable!("units are spread over the primaries")
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_that_a_promoted_replica_with_another_clock_removes_are_not_missed() {
    let ahead = clock("+3600");
    let places = [vec![Place::default(); PRIMARIES], vec![place(&ahead); PRIMARIES]].concat();
    let cluster = Cluster::start(ClusterPlan { places, ..ClusterPlan::new(1) }).await;
    let (engine, roll) = crowd::roll(cluster.url()).await;
    let (unit, primary) = unit_apart(&cluster, &engine).await;
    let begin = renew(&*engine).await;
    let at = |part: f64| begin + TIMEOUT.mul_f64(part);
    let beat = |at: Timestamp| [Heartbeat::of(unit.clone(), at)];
    let is_offline = async || !engine.records(true, None, 1).await.unwrap().is_empty();
    let hear_until = async |tenths: std::ops::Range<u32>| {
        for tenths in tenths {
            roll.canary_returned(at(f64::from(tenths) / 10.0)).await.unwrap();
        }
    };
    let check = async |at: Timestamp| {
        // A call to a server that is not a primary any more is repeated.
        while roll.check_deadlines(std::slice::from_ref(&unit), at).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    hear_until(0..1).await;
    roll.hear(&beat(begin), begin).await.unwrap();
    roll.hear(&beat(at(0.9)), at(0.9)).await.unwrap();
    hear_until(1..13).await;
    cluster.failover(cluster.replicas_of(primary).await[0]).await;
    // The last check did not see the unit's last heartbeat.
    let is_gone = async || {
        let read = engine.read(std::slice::from_ref(&unit)).await;
        read.is_ok_and(|read| read[0].alive.is_none())
    };
    until("its key is gone", is_gone).await;
    check(at(1.2)).await;
    assert!(!is_offline().await, "its key may have held a later heartbeat");
    let (late, late_roll) = crowd::roll(cluster.url()).await;
    renew(&*late).await;
    late_roll.check_deadlines(std::slice::from_ref(&unit), at(1.2)).await.unwrap();
    assert!(!is_offline().await, "by an instance that knows no earlier time");
    hear_until(13..14).await;
    check(at(1.3)).await;
    assert!(!is_offline().await, "as long as it may have been heard");
    // But a unit that stays silent is found.
    hear_until(14..60).await;
    check(at(5.7)).await;
    assert!(is_offline().await, "it is silent");
}
