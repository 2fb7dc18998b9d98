//! A primary is killed while units come due one after the other: the time from the promotion of a replica to the first
//! record on it, in a cluster and with Sentinel.
//!
//! One loop asks the replicas for their role, their records, and whether they accept a write. `hearing.settle` is
//! zero, so that blind time moves deadlines only by its own length, and units are due right after it.

use std::time::{Duration, Instant};

use anyhow::Context;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Value, pipe};

use rollcall::clock::{Clock, monotonic};
use rollcall::store::redis::HashTags;

use crate::harness::figures::{Goal, Report};
use crate::harness::fleet::{Fleet, KIND, TIMEOUT};
use crate::harness::records::PARTITIONS;
use crate::harness::servers::{CLUSTER_PARTITIONS, begin, engine_on};
use crate::harness::world::connect;
use crate::harness::{World, quantile, say};
use crate::support::cluster::{Cluster, ClusterPlan};
use crate::support::sentinel::{Sentinel, SentinelPlan};

const ROUNDS: u32 = 5;
/// How long a primary may be silent.
const SILENT: Duration = Duration::from_millis(2000);
/// Units that come due in a round, and the time between two units: they begin before the primary dies, and go on for
/// longer than a failover takes.
const DUE: u32 = 3000;
const APART: Duration = Duration::from_millis(5);
/// The time between registering and the first deadline, and between that deadline and the death of the primary.
const SETTLE: Duration = Duration::from_secs(2);
const DYING: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The moments of a failover, in ms: the promotion since the death, the others since the promotion.
struct Failover {
    promoted: f64,
    accepted: f64,
    recorded: f64,
}

/// A replica of the primary that dies.
struct Replica {
    port: u16,
    client: MultiplexedConnection,
    /// The prefixes of the keys of the partitions that the replica takes over.
    begins: Vec<String>,
    records: i64,
    promoted: Option<Instant>,
    accepted: Option<Instant>,
    recorded: Option<Instant>,
}

pub async fn run(report: &mut Report) -> anyhow::Result<()> {
    cluster(report).await?;
    sentinel(report).await
}

async fn cluster(report: &mut Report) -> anyhow::Result<()> {
    let mut world = World::new()?;
    let plan = ClusterPlan { node_timeout: SILENT, ..ClusterPlan::new(1) };
    let mut cluster = Cluster::start(plan).await;
    let _rollcall = world.serve_on(&format!("url = \"{}\"", cluster.url()), &options()).await?;
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        say(format!("a primary of a cluster is killed, {} of {ROUNDS}", round + 1));
        let server_of = cluster.server_of_each_slot().await;
        let victim = cluster.primaries().await[(round % 3) as usize];
        let mut begins = Vec::new();
        for partition in 0..CLUSTER_PARTITIONS {
            let begin = begin(HashTags::Spread, partition, CLUSTER_PARTITIONS);
            if server_of[usize::from(cluster.slot_of(&begin).await)] == Some(victim) {
                begins.push(begin);
            }
        }
        let mut replicas = Vec::new();
        for replica in cluster.replicas_of(victim).await {
            replicas.push(Replica::connect(cluster.port(replica), &begins).await?);
        }
        let url = cluster.url();
        all.push(fail(round, &url, replicas, || cluster.nodes[victim].kill()).await?);
        cluster.nodes[victim].restart();
        cluster.until_whole().await;
    }
    add(report, "cluster-node-timeout 2000", &all, Goal::AtMost(1000.0));
    Ok(())
}

async fn sentinel(report: &mut Report) -> anyhow::Result<()> {
    let mut world = World::new()?;
    let mut sentinel = Sentinel::start(SentinelPlan { down_after: SILENT, ..SentinelPlan::new(2) }).await;
    let _rollcall = world.serve_on(&format!("url = \"{}\"", sentinel.url()), &options()).await?;
    let begins: Vec<String> = (0..PARTITIONS).map(|p| begin(HashTags::Plain, p, PARTITIONS)).collect();
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        say(format!("the primary of Sentinels is killed, {} of {ROUNDS}", round + 1));
        let victim = sentinel.primary().await;
        let mut replicas = Vec::new();
        for (number, server) in sentinel.servers.iter().enumerate() {
            if number != victim {
                replicas.push(Replica::connect(server.port(), &begins).await?);
            }
        }
        let url = sentinel.url();
        all.push(fail(round, &url, replicas, || sentinel.servers[victim].kill()).await?);
        sentinel.servers[victim].restart();
        sentinel.until_whole().await;
    }
    add(report, "Sentinel, down-after-milliseconds 2000", &all, Goal::None);
    Ok(())
}

/// Options of a process that gives units no extra time after blind time.
fn options() -> String {
    format!("hearing.settle = \"0s\"\n{KIND}")
}

/// Kills a primary while units come due.
async fn fail(
    round: u32,
    url: &str,
    mut replicas: Vec<Replica>,
    kill: impl FnOnce(),
) -> anyhow::Result<Failover> {
    let clock = Clock::system();
    let first = round * DUE;
    let begun = clock.now() + SETTLE;
    let due = |unit: u32| begun + APART * (unit - first) - TIMEOUT;
    Fleet(first..first + DUE).fill(&engine_on(url).await?, clock.now(), due).await?;
    tokio::time::sleep((begun + DYING).since(clock.now())).await;
    let killed = monotonic();
    kill();
    while monotonic().duration_since(killed) < MAX_WAIT {
        for replica in &mut replicas {
            replica.ask().await?;
            if let (Some(promoted), Some(accepted), Some(recorded)) =
                (replica.promoted, replica.accepted, replica.recorded)
            {
                let since = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
                return Ok(Failover {
                    promoted: since(killed, promoted),
                    accepted: since(promoted, accepted),
                    recorded: since(promoted, recorded),
                });
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    anyhow::bail!("no record within {MAX_WAIT:?} after a primary was killed")
}

impl Replica {
    async fn connect(port: u16, begins: &[String]) -> anyhow::Result<Replica> {
        let (client, begins) = (reader(port).await?, begins.to_vec());
        Ok(Replica { port, client, begins, records: 0, promoted: None, accepted: None, recorded: None })
    }

    /// Asks for the replica's role and its records, and tries a write if the replica was promoted.
    async fn ask(&mut self) -> anyhow::Result<()> {
        let mut ask = pipe();
        ask.cmd("ROLE");
        for begin in &self.begins {
            ask.zcard(format!("{begin}offline"));
        }
        let Ok(answers) = self.client.req_packed_commands(&ask, 0, ask.len()).await else {
            // A Sentinel ends the connections of a server whose role changes.
            self.client = reader(self.port).await?;
            return Ok(());
        };
        let role = answers.first().context("a role")?;
        let is_primary = matches!(role, Value::Array(role)
            if matches!(role.first(), Some(Value::BulkString(name)) if name == b"master"));
        // There is no count while the cluster is down.
        let count = |answer: &Value| if let Value::Int(count) = answer { Some(*count) } else { None };
        let records: Option<i64> = answers[1..].iter().map(count).sum();
        let now = monotonic();
        if !is_primary {
            self.records = records.unwrap_or(self.records);
            return Ok(());
        }
        self.promoted.get_or_insert(now);
        if records.is_some_and(|records| records > self.records) {
            self.recorded.get_or_insert(now);
        }
        if self.accepted.is_none() {
            let write = redis::cmd("SET").arg(format!("{}bench", self.begins[0])).arg(1).to_owned();
            let answer = self.client.req_packed_command(&write).await;
            self.accepted = matches!(answer, Ok(Value::Okay)).then_some(now);
        }
        Ok(())
    }
}

/// A connection that may read from a replica of a cluster.
async fn reader(port: u16) -> anyhow::Result<MultiplexedConnection> {
    let mut client = connect(port).await?;
    // The command is refused if there is no cluster.
    let _ = client.req_packed_command(&redis::cmd("READONLY")).await;
    Ok(client)
}

/// Adds the medians, and the worst value of the figure that has a goal.
fn add(report: &mut Report, with: &str, all: &[Failover], goal: Goal) {
    let middle = |of: fn(&Failover) -> f64| quantile(&mut all.iter().map(of).collect::<Vec<_>>(), 0.5);
    let title = format!("a primary is killed, {with}");
    report.add(format!("{title}: a replica is promoted after"), middle(|one| one.promoted), "ms", Goal::None);
    report.add(
        format!("{title}: it accepts writes after another"),
        middle(|one| one.accepted),
        "ms",
        Goal::None,
    );
    let what = format!("{title}: from the promotion to the first record there");
    report.add(&what, middle(|one| one.recorded), "ms", goal);
    let worst = quantile(&mut all.iter().map(|one| one.recorded).collect::<Vec<_>>(), 1.0);
    report.add(format!("{what}, the slowest of {}", all.len()), worst, "ms", goal);
}
