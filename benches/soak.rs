//! The soak: a random walk over all faults, for any time, on a world that is not
//! rebuilt. `make soak MINUTES=10 [SEED=n] [FAULT=name] [TOPOLOGY=single|sentinel|cluster|embedded]`.
//!
//! The soak prints a line for each fault; after each fault the world settles and the oracle reports
//! violations. They are counted, and make the program end with 1.

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use redis::cmd;
use rollcall::clock::{Stopwatch, Timestamp, monotonic};

#[path = "../tests/faults/world/mod.rs"]
mod world;

use world::clock::Clock;
use world::cluster::ClusterPlan;
use world::node::Place;
use world::proxy::Wire;
use world::redis::Topology;
use world::sentinel::SentinelPlan;
use world::{Plan, TIMEOUT, World, now, signal};

/// A time longer than a lease, a keep-alive, and the wait for an answer of the engine.
const LONG: Duration = Duration::from_secs(30);
/// After this many faults a new world begins, so that worlds with every number of instances occur.
const FAULTS_A_WORLD: usize = 12;
/// How many units fall silent at once.
const MANY: usize = 100_000;
/// How many units fall silent while slots move, or in a directory, whose process also holds the database.
const STORM: usize = 20_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    KillAll,
    Freeze,
    Stop,
    RedisFreeze,
    RedisKill,
    RedisEmpty,
    RedisScripts,
    RedisSettings,
    RedisFull,
    BrokerFreeze,
    BrokerKill,
    WireCut,
    WireStall,
    WireHalfOpen,
    StolenSession,
    ForgedCanaries,
    PoisonedKeys,
    Everything,
    Crowd,
    PrimaryKill,
    PrimaryFreeze,
    PrimaryDiskLoss,
    PrimaryEmpty,
    PromoteByHand,
    PromoteLagging,
    PrimariesInTurn,
    ServerClock,
    SentinelsAway,
    ReplicaReset,
    QuorumLost,
    MoveSlots,
    ChangeMembers,
}

/// The faults that every engine has.
const FAULTS: [Fault; 13] = [
    Fault::Kill,
    Fault::KillAll,
    Fault::Freeze,
    Fault::Stop,
    Fault::BrokerFreeze,
    Fault::BrokerKill,
    Fault::WireCut,
    Fault::WireStall,
    Fault::WireHalfOpen,
    Fault::StolenSession,
    Fault::ForgedCanaries,
    Fault::Everything,
    Fault::Crowd,
];

/// The faults of every topology of Redis.
const FAULTS_OF_REDIS: [Fault; 6] = [
    Fault::RedisFreeze,
    Fault::RedisKill,
    Fault::RedisEmpty,
    Fault::RedisScripts,
    Fault::RedisSettings,
    Fault::RedisFull,
];

/// The faults that need several servers.
const FAULTS_OF_SERVERS: [Fault; 7] = [
    Fault::PrimaryKill,
    Fault::PrimaryFreeze,
    Fault::PrimaryDiskLoss,
    Fault::PrimaryEmpty,
    Fault::PromoteByHand,
    Fault::PromoteLagging,
    Fault::ServerClock,
];

const FAULTS_OF_SENTINEL: [Fault; 1] = [Fault::SentinelsAway];

const FAULTS_OF_A_CLUSTER: [Fault; 5] =
    [Fault::PrimariesInTurn, Fault::ReplicaReset, Fault::QuorumLost, Fault::MoveSlots, Fault::ChangeMembers];

/// The clock of one of several servers.
static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::right);

/// The world that `TOPOLOGY=` names, with this many instances. Servers of Redis have every answered write on disk. A
/// directory has one instance.
fn plan(instances: usize) -> Plan {
    let of = |topology| Plan { topology, ..Plan::new(instances) };
    match std::env::var("TOPOLOGY").as_deref().unwrap_or("single") {
        "single" => of(Topology::Single),
        "sentinel" => {
            of(Topology::Sentinel(SentinelPlan { places: places(), ..SentinelPlan::new(2).durable() }))
        }
        "cluster" => of(Topology::Cluster(ClusterPlan { places: places(), ..ClusterPlan::new(1).durable() })),
        "embedded" => Plan::embedded(),
        other => panic!("TOPOLOGY={other}: single, sentinel, cluster or embedded"),
    }
}

/// The places of the servers: the second server has a clock of its own.
fn places() -> Vec<Place> {
    vec![Place::default(), Place { before: CLOCK.before(), ..Place::default() }]
}

/// The faults of this world. Broken keys are chosen on a single server.
fn faults(plan: &Plan) -> Vec<Fault> {
    let mut faults = FAULTS.to_vec();
    if plan.embedded {
        return faults;
    }
    faults.extend(FAULTS_OF_REDIS);
    // The faults of several servers are added twice, because they are the reason for several servers.
    match &plan.topology {
        Topology::Single => faults.push(Fault::PoisonedKeys),
        Topology::Sentinel(_) => {
            faults.extend([&FAULTS_OF_SERVERS[..], &FAULTS_OF_SENTINEL].concat().repeat(2))
        }
        Topology::Cluster(_) => {
            faults.extend([&FAULTS_OF_SERVERS[..], &FAULTS_OF_A_CLUSTER].concat().repeat(2))
        }
    }
    faults
}

fn main() -> ExitCode {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let minutes = number("MINUTES").unwrap_or(10);
    let seed = number("SEED").unwrap_or_else(rand::random);
    let instances = number("INSTANCES").map(|instances| instances as usize);
    println!("a soak of {minutes} minutes; SEED={seed} repeats its choices");
    let runtime = tokio::runtime::Runtime::new().expect("threads can be made");
    let until = monotonic() + Duration::from_secs(60 * minutes);
    let violations = runtime.block_on(walk(seed, until, instances));
    println!("{violations} violations");
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Walks until the time is up; returns how many faults ended with violations.
async fn walk(seed: u64, until: Instant, instances: Option<usize>) -> usize {
    let mut chance = StdRng::seed_from_u64(seed);
    let (mut violations, mut number) = (0, 0);
    let mut next = Vec::new();
    while monotonic() < until {
        let instances = instances.unwrap_or_else(|| [1, 3, 3, 5][chance.random_range(0..4)]);
        let plan = plan(instances);
        // Several instances share the fleet, or each hears all of it and keeps a backlog.
        let shares = plan.instances > 1 && chance.random_bool(0.5);
        let share = if shares { "soak".to_owned() } else { String::new() };
        let has_other_clocks = !matches!(plan.topology, Topology::Single);
        let plan = Plan { share, wires: true, has_other_clocks, ..plan };
        let world_seed = chance.random();
        // A broken claim panics with the evidence; the walk goes on in a new world.
        let stretch = AssertUnwindSafe(stretch(plan, world_seed, &mut chance, &mut next, &mut number, until));
        if stretch.catch_unwind().await.is_err() {
            violations += 1;
        }
    }
    violations
}

/// The fault of `FAULT=`, if given.
fn only() -> Option<Fault> {
    let name = std::env::var("FAULT").ok()?;
    let faults = faults(&plan(1));
    let found = faults.iter().find(|fault| format!("{fault:?}") == name);
    Some(*found.unwrap_or_else(|| panic!("FAULT={name}: there are {faults:?}")))
}

/// Some faults in one world: each fault once, in random order, before any fault comes again.
async fn stretch(
    plan: Plan,
    seed: u64,
    chance: &mut StdRng,
    next: &mut Vec<Fault>,
    number: &mut usize,
    until: Instant,
) {
    let only = only();
    let mut world = World::with_seed(plan, seed).await;
    for _ in 0..FAULTS_A_WORLD {
        if monotonic() >= until {
            return;
        }
        *number += 1;
        if next.is_empty() {
            next.extend(faults(&world.plan));
            next.shuffle(chance);
        }
        let fault = only.or_else(|| next.pop()).expect("there are faults");
        let began = Stopwatch::start();
        world.live(3 * TIMEOUT);
        world.pass_some(TIMEOUT).await;
        happen(&mut world, fault, chance).await;
        world.are_whole().await;
        world.rests().await;
        let (instances, how) =
            (world.instances.len(), if world.plan.share.is_empty() { "plain" } else { "sharing" });
        println!("{number:4} {fault:?} with {instances} {how}: fine after {:.1?}", began.elapsed());
        // The oracle would read all of a crowd's records again and again. A server that was removed does not start
        // again with the others.
        if matches!(fault, Fault::Crowd | Fault::MoveSlots | Fault::ChangeMembers) {
            return;
        }
    }
}

async fn happen(world: &mut World, fault: Fault, chance: &mut StdRng) {
    let span = if chance.random_bool(0.2) { LONG } else { TIMEOUT.mul_f64(chance.random_range(0.3..3.0)) };
    let victim = chance.random_range(0..world.instances.len());
    let mark = world.disturb();
    match fault {
        Fault::Kill => {
            world.kill_member(victim);
            world.pass(span).await;
            world.instances[victim].start();
        }
        Fault::KillAll => {
            (0..world.instances.len()).for_each(|number| world.kill_member(number));
            world.pass(span).await;
            world.instances.iter_mut().for_each(world::Instance::start);
        }
        Fault::Freeze => {
            world.instances[victim].freeze();
            world.pass(span).await;
            world.instances[victim].thaw();
            may_be_lost(world, mark);
        }
        Fault::Stop => {
            world.instances[victim].stop();
            world.pass(span).await;
            world.instances[victim].start();
        }
        Fault::RedisFreeze => {
            world.redis.signal("STOP");
            world.pass(span).await;
            world.redis.signal("CONT");
        }
        Fault::RedisKill => {
            world.redis.kill();
            world.pass(span).await;
            world.redis.restart();
        }
        Fault::RedisEmpty => {
            world.redis.wipe();
            world.pass(span).await;
            world.redis.restart();
            world.lost_since(mark, true);
        }
        Fault::RedisScripts => {
            world.redis.tell_all(cmd("SCRIPT").arg("FLUSH")).await;
            world.redis.tell_all(cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub")).await;
            world.redis.tell_all(cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal")).await;
        }
        Fault::RedisSettings => {
            world.redis.tell_all(cmd("CONFIG").arg("SET").arg("notify-keyspace-events").arg("")).await;
        }
        Fault::RedisFull => {
            world.redis.tell_all(cmd("CONFIG").arg("SET").arg("maxmemory").arg("1mb")).await;
            world.pass(span).await;
            world.redis.tell_all(cmd("CONFIG").arg("SET").arg("maxmemory").arg("0")).await;
        }
        Fault::BrokerFreeze => {
            signal(world.broker.pid(), "STOP");
            world.pass(span).await;
            signal(world.broker.pid(), "CONT");
            may_be_lost(world, mark);
            world.broker_away_since(mark);
        }
        Fault::BrokerKill => {
            world.kill_broker();
            world.pass(span).await;
            world.start_broker();
            world.broker_away_since(mark);
        }
        Fault::WireCut => broken(world, victim, Wire::Cut, span).await,
        Fault::WireStall => broken(world, victim, Wire::Stalled, span).await,
        Fault::WireHalfOpen => broken(world, victim, Wire::HalfOpen, span).await,
        Fault::StolenSession => {
            let id = format!("instance-{victim}-main");
            for _ in 0..4 {
                let hold = Duration::from_millis(chance.random_range(20..600));
                assert!(
                    world::intruder::steal_session(world.broker.port(), &id, hold).await,
                    "the broker answers"
                );
                world.pass_some(TIMEOUT / 3).await;
            }
            // Messages that the broker delivered to the other client, or to no client, never reached Rollcall.
            world.forget_unheard_since(mark);
        }
        Fault::ForgedCanaries => {
            let id = format!("instance-{victim}-main");
            let forged = world::intruder::forge_canaries(world.broker.port(), &id, span).await;
            assert!(forged > 0, "the broker takes them");
        }
        Fault::PoisonedKeys => {
            for _ in 0..chance.random_range(3..9) {
                world::poison::break_some(world, chance).await;
                world.pass_some(TIMEOUT / 2).await;
                world::poison::all_are_ready(world).await;
            }
        }
        Fault::PrimaryKill => {
            let (victim, _) = world.kill_a_primary().await;
            world.pass(span).await;
            world.node(victim.number).restart();
        }
        Fault::PrimaryFreeze => world.freeze_a_primary(span).await,
        Fault::PrimaryDiskLoss => {
            let (victim, heir) = world.kill_a_primary().await;
            world.pass(span).await;
            world.come_back_empty(victim.number, heir).await;
        }
        Fault::PrimaryEmpty => {
            world.empty_a_primary().await;
            world.lost_since(mark, true);
        }
        Fault::PromoteByHand => world.promote_by_hand().await,
        Fault::PromoteLagging => {
            world.promote_one_that_lags(Duration::from_secs(5)).await;
            world.lost_since(mark, false);
        }
        Fault::PrimariesInTurn => {
            let (first, _) = world.kill_a_primary().await;
            let (second, _) = world.kill_a_primary().await;
            world.pass(span).await;
            [first, second].into_iter().for_each(|victim| world.node(victim.number).restart());
        }
        Fault::ServerClock => {
            for offset in [["+3600", "-3600"][chance.random_range(0..2)], "+0"] {
                CLOCK.step(offset);
                // A server regards the others as away until they answer again.
                world.pass(Duration::from_secs(1)).await;
                world.are_whole().await;
                world.pass(span).await;
            }
        }
        Fault::SentinelsAway => sentinels_away(world, span).await,
        Fault::ReplicaReset => {
            let primary = world.some_primary().await;
            let replica = world.replicas_of(primary).await[0];
            world.node(replica).ask::<()>(cmd("CLUSTER").arg("RESET").arg("HARD")).await;
            world.pass(span).await;
            world.come_back_empty(replica, primary.number).await;
        }
        Fault::QuorumLost => quorum_lost(world, span).await,
        Fault::ChangeMembers => {
            let leaves = world.some_primary().await.number;
            let cluster = world.redis.cluster();
            let added = cluster.add().await;
            cluster.remove(leaves, added).await;
        }
        Fault::MoveSlots => {
            world::crowd::fill(world, 0, STORM, now()).await;
            world.pass(TIMEOUT - Duration::from_secs(1)).await;
            world.move_slots().await;
            world::crowd::all_are_notified_once(world, 0, STORM).await;
        }
        Fault::Crowd => {
            // A directory is open in one process at a time.
            if world.plan.embedded {
                world.instances[0].stop();
            }
            let many = if world.plan.embedded { STORM } else { MANY };
            world::crowd::fill(world, 0, many, now()).await;
            if world.plan.embedded {
                world.instances[0].start();
            }
            world::crowd::all_are_notified_once(world, 0, many).await;
        }
        Fault::Everything => {
            world.instances.iter_mut().for_each(world::Instance::kill);
            world.kill_broker();
            world.redis.kill();
            world.pass(span).await;
            world.start_broker();
            world.redis.restart();
            world.instances.iter_mut().for_each(world::Instance::start);
            world.broker_away_since(mark);
        }
    }
    world.disturbed_since(mark);
}

/// A primary dies while most sentinels are away, so that no replica is promoted.
async fn sentinels_away(world: &mut World, span: Duration) {
    [0, 1].into_iter().for_each(|number| world.redis.sentinel().sentinels[number].kill());
    let victim = world.some_primary().await;
    world.node(victim.number).kill();
    world.pass(span).await;
    let sentinels = &mut world.redis.sentinel().sentinels;
    [0, 1].into_iter().for_each(|number| sentinels[number].restart());
    world.until_replaced(victim).await;
    world.node(victim.number).restart();
}

/// All but one primary and its replica die.
async fn quorum_lost(world: &mut World, span: Duration) {
    let stays = world.some_primary().await.number;
    let cluster = world.redis.cluster();
    let mut stopped = Vec::new();
    for primary in cluster.primaries().await.into_iter().filter(|number| *number != stays) {
        stopped.extend(cluster.replicas_of(primary).await);
        stopped.push(primary);
    }
    stopped.iter().for_each(|number| cluster.nodes[*number].kill());
    world.pass(span).await;
    let cluster = world.redis.cluster();
    stopped.iter().for_each(|number| cluster.nodes[*number].restart());
    cluster.until_whole().await;
}

async fn broken(world: &mut World, victim: usize, wire: Wire, span: Duration) {
    let mark = now();
    world.wires[victim].set(wire);
    world.pass(span).await;
    world.wires[victim].set(Wire::Whole);
    may_be_lost(world, mark);
}

/// Notes that messages may be lost: a message that one member of a share received reaches no other member.
fn may_be_lost(world: &World, mark: Timestamp) {
    if !world.plan.share.is_empty() {
        world.forget_unheard_since(mark);
    }
}
