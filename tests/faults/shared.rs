//! Members of a shared subscription: each hears a part, and every part counts.

use std::time::Duration;

use rand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::broker::broken;
use crate::world::proxy::Wire;
use crate::world::{Plan, TIMEOUT, World};

const SECOND: Duration = Duration::from_secs(1);

fn plan(members: usize) -> Plan {
    Plan { share: "rollcall".to_owned(), ..Plan::new(members) }
}

#[tokio::test(flavor = "multi_thread")]
async fn five_members_that_are_killed_in_turn_lose_no_unit_and_mark_none_offline() {
    let mut world = World::new(plan(5)).await;
    world.live(10 * SECOND);
    for _ in 0..4 {
        world.pass_some(2 * SECOND).await;
        let victim = world.chance.random_range(0..5);
        world.kill_member(victim);
        let mark = world.disturb();
        world.pass_some(2 * SECOND).await;
        world.instances[victim].start();
        world.disturbed_since(mark);
    }
    world.rests().await;
}

/// As a Deployment replaces its pods: the next instance is ready before another gets SIGTERM. No disturbance is noted, so
/// every silence meanwhile has to be found in time.
#[tokio::test(flavor = "multi_thread")]
async fn instances_that_are_replaced_one_after_the_other_leave_no_blind_time() {
    let mut world = World::new(plan(3)).await;
    world.instances[2].stop();
    world.live(5 * TIMEOUT);
    let mut stops = Vec::new();
    for (next, gone) in [(2, 0), (0, 1), (1, 2), (2, 0), (0, 1)] {
        world.instances[next].start();
        let is_ready = async |world: &World| {
            world.instances[next].page("/readyz").await.is_some_and(|(status, _)| status == 200)
        };
        world.eventually("the next one is ready", is_ready).await;
        let from = world.disturb();
        world.instances[gone].stop();
        stops.push((from, world.disturb()));
        world.pass_some(SECOND).await;
    }
    let blind: Vec<_> = world.instances.iter().flat_map(|instance| instance.blind()).collect();
    for (from, to) in stops {
        let meanwhile: Vec<_> = blind.iter().filter(|(began, ended)| *began < to && *ended > from).collect();
        assert!(meanwhile.is_empty(), "stopped from {from} to {to}, blind {meanwhile:?}");
    }
    world.instances[1].start();
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_frozen_beyond_its_keep_alive_marks_no_unit_offline() {
    let mut world = World::new(plan(3)).await;
    world.live(4 * TIMEOUT);
    world.pass_some(SECOND).await;
    let mark = world.disturb();
    world.instances[1].freeze();
    // Meanwhile the owners of its partitions hear of new units, which the frozen instance never hears itself.
    for number in 0..24 {
        world.fleet.join(&format!("new-{number}"), &format!("units/new-{number}/heartbeat"));
    }
    world.pass(2 * TIMEOUT).await;
    for number in 0..24 {
        world.fleet.silence(&format!("new-{number}"));
    }
    world.pass(TIMEOUT).await;
    world.instances[1].thaw();
    world.disturbed_since(mark);
    // The messages that the broker had sent to the frozen instance were not heard in time.
    world.forget_unheard_since(mark);
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_members_that_are_cut_mark_no_unit_offline() {
    broken(plan(3), Wire::Cut, SECOND).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_members_that_stall_mark_no_unit_offline() {
    broken(plan(3), Wire::Stalled, 2 * TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_members_that_are_half_open_mark_no_unit_offline() {
    broken(plan(3), Wire::HalfOpen, 2 * TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deaf_member_marks_no_unit_offline() {
    // A client joins the share that receives messages and never acknowledges them.
    let mut world = World::new(plan(2)).await;
    world.live(3 * TIMEOUT);
    let mark = world.disturb();
    let mut deaf = TcpStream::connect(("127.0.0.1", world.broker.port())).await.unwrap();
    deaf.write_all(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x00\x00\x04deaf").await.unwrap();
    let filter = b"$share/rollcall/units/+/heartbeat";
    let mut subscribe = vec![0x82, (2 + 2 + filter.len() + 1) as u8, 0, 1, 0, filter.len() as u8];
    subscribe.extend(filter);
    subscribe.push(1);
    deaf.write_all(&subscribe).await.unwrap();
    let mut answers = [0; 4096];
    assert!(deaf.read(&mut answers).await.unwrap() > 0);
    world.pass(TIMEOUT / 2).await;
    drop(deaf);
    world.disturbed_since(mark);
    world.forget_unheard_since(mark);
    world.rests().await;
}
