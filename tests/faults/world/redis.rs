//! The Redis of a world, which tests freeze, kill, start with other data, and query as another program: one server, or
//! several with Sentinel or as a cluster.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Pipeline, RedisResult, Value, cmd};
use rollcall::presence::{OfflineRecord, Unit};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::encoding;
use rollcall::store::redis::{HashTags, facts_key};

use super::client::client;
use super::cluster::{Cluster, ClusterPlan, slot_of_tag};
use super::instance::signal;
use super::node::Node;
use super::sentinel::{Sentinel, SentinelPlan};

/// The options under which every answered write is on disk.
pub const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
/// The options for snapshots on request, and nothing else on disk.
pub const SNAPSHOTS: [&str; 4] = ["--save", "900000 1", "--appendonly", "no"];

/// The number of partitions of a new fleet, on one primary.
pub const PARTITIONS: u16 = 16;
/// The number of partitions of a new fleet in a cluster.
const CLUSTER_PARTITIONS: u16 = 48;
/// How long a server may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// The servers of a plan.
#[derive(Clone, Default)]
pub enum Topology {
    #[default]
    Single,
    Sentinel(SentinelPlan),
    Cluster(ClusterPlan),
}

/// The servers of a world.
pub(super) enum Servers {
    /// The world runs on the embedded engine, without servers.
    None,
    Single(Single),
    Sentinel(Sentinel),
    Cluster(Cluster),
}

pub(super) struct Single {
    server: Server,
    before: Vec<String>,
    args: Vec<String>,
    dir: PathBuf,
}

/// The Redis of a world. In worlds on the embedded engine, killing and starting it does nothing.
pub struct Redis(pub(super) Servers);

impl Redis {
    /// Starts a single server. `before`: a prefix of its command line.
    pub fn start(dir: &Path, port: u16, before: &[String], args: &[&str]) -> Redis {
        let server = Server::redis_after(before, dir, port, args).unwrap();
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Redis(Servers::Single(Single { server, before: before.to_vec(), args, dir: dir.to_owned() }))
    }

    /// Starts the servers of this topology. `before` and `args` are for a single server.
    pub async fn of(topology: &Topology, dir: &Path, before: &[String], args: &[&str]) -> Redis {
        match topology {
            Topology::Single => Redis::start(dir, free_port().unwrap(), before, args),
            Topology::Sentinel(plan) => Redis(Servers::Sentinel(Sentinel::start(plan.clone()).await)),
            Topology::Cluster(plan) => Redis(Servers::Cluster(Cluster::start(plan.clone()).await)),
        }
    }

    pub fn none() -> Redis {
        Redis(Servers::None)
    }

    fn single(&self) -> &Single {
        match &self.0 {
            Servers::Single(single) => single,
            _ => panic!("this world has not one Redis"),
        }
    }

    pub fn is_cluster(&self) -> bool {
        matches!(self.0, Servers::Cluster(_))
    }

    pub fn cluster(&mut self) -> &mut Cluster {
        match &mut self.0 {
            Servers::Cluster(cluster) => cluster,
            _ => panic!("this world has no cluster"),
        }
    }

    pub fn sentinel(&mut self) -> &mut Sentinel {
        match &mut self.0 {
            Servers::Sentinel(sentinel) => sentinel,
            _ => panic!("this world has no Sentinel"),
        }
    }

    /// The port of the only server.
    pub fn port(&self) -> u16 {
        self.single().server.port()
    }

    /// The ports of all servers with data.
    pub fn ports(&self) -> Vec<u16> {
        match &self.0 {
            Servers::Single(single) => vec![single.server.port()],
            _ => self.nodes().iter().map(Node::port).collect(),
        }
    }

    /// The value of `engine.url`.
    pub fn url(&self) -> String {
        match &self.0 {
            Servers::Sentinel(sentinel) => sentinel.url(),
            Servers::Cluster(cluster) => cluster.url(),
            _ => format!("redis://127.0.0.1:{}/0", self.port()),
        }
    }

    /// More options of the engine: the options of TLS.
    pub fn more_options(&self) -> String {
        let options = self.nodes().iter().find_map(Node::tls_options);
        options.map(|options| format!(", {options}")).unwrap_or_default()
    }

    /// The servers with data, if there are several.
    fn nodes(&self) -> &[Node] {
        match &self.0 {
            Servers::Sentinel(sentinel) => &sentinel.servers,
            Servers::Cluster(cluster) => &cluster.nodes,
            _ => &[],
        }
    }

    pub(super) fn nodes_mut(&mut self) -> &mut [Node] {
        match &mut self.0 {
            Servers::Sentinel(sentinel) => &mut sentinel.servers,
            Servers::Cluster(cluster) => &mut cluster.nodes,
            _ => &mut [],
        }
    }

    /// Sends all servers a signal.
    pub fn signal(&self, name: &str) {
        match &self.0 {
            Servers::Single(single) => signal(single.server.pid(), name),
            _ => self.nodes().iter().for_each(|node| signal(node.pid(), name)),
        }
    }

    /// Ends all servers like a power cut.
    pub fn kill(&mut self) {
        match &mut self.0 {
            Servers::None => {}
            Servers::Single(single) => single.server.kill(),
            _ => self.nodes_mut().iter_mut().for_each(Node::kill),
        }
    }

    /// Starts the servers again on their ports with the data on their disks.
    pub fn restart(&mut self) {
        match &mut self.0 {
            Servers::None => {}
            Servers::Single(Single { server, before, args, dir }) => {
                server.kill();
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                *server = Server::redis_after(before, dir, server.port(), &args).unwrap();
            }
            _ => self.nodes_mut().iter_mut().for_each(Node::restart),
        }
    }

    /// Kills the servers and removes their data from disk.
    pub fn wipe(&mut self) {
        self.kill();
        self.nodes_mut().iter_mut().for_each(Node::wipe);
        let Servers::Single(single) = &self.0 else { return };
        // Redis 6.2 has one file instead of the directory.
        for name in ["appendonlydir", "appendonly.aof", "dump.rdb"] {
            let path = single.dir.join(name);
            let _ = std::fs::remove_dir_all(&path);
            let _ = std::fs::remove_file(&path);
        }
    }

    /// Sends the only server a command; an error if it does not answer in time.
    pub async fn try_ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, String> {
        in_time(async { command.query_async(&mut client(self.port()).await?).await }).await
    }

    pub async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        self.try_ask(command).await.unwrap()
    }

    /// Sends a command to every server with data that answers.
    pub async fn tell_all(&self, command: &Cmd) {
        if let Servers::Single(_) = &self.0 {
            self.ask::<Value>(command).await;
        }
        for node in self.nodes().iter().filter(|node| node.answers()) {
            let _ = node.try_ask::<Value>(command).await;
        }
    }

    // --- The fleet ------------------------------------------------------------------------------

    fn partitions(&self) -> (u16, HashTags) {
        match &self.0 {
            Servers::Cluster(_) => (CLUSTER_PARTITIONS, HashTags::Spread),
            _ => (PARTITIONS, HashTags::Plain),
        }
    }

    /// The hash tags of all partitions.
    fn tags(&self) -> Vec<String> {
        let (partitions, tags) = self.partitions();
        (0..partitions).map(|partition| tags.tag(partition, partitions)).collect()
    }

    /// The number of the primary of each tag.
    async fn primaries(&self, tags: &[String]) -> Option<Vec<usize>> {
        let primary = match &self.0 {
            Servers::Cluster(cluster) => {
                let of_slot = cluster.server_of_each_slot().await;
                return tags.iter().map(|tag| of_slot[usize::from(slot_of_tag(tag))]).collect();
            }
            Servers::Sentinel(sentinel) => sentinel.primary_now().await?,
            _ => 0,
        };
        Some(vec![primary; tags.len()])
    }

    /// Sends a batch to a server; an error if it does not answer in time.
    async fn send<T: FromRedisValue>(&self, number: usize, batch: &Pipeline) -> Result<T, String> {
        let connected = async {
            match self.nodes().get(number) {
                Some(node) => node.connect().await,
                None => client(self.port()).await,
            }
        };
        in_time(async { batch.query_async(&mut connected.await?).await }).await
    }

    /// Sends commands, each to the primary of its tag. Returns the answers in order; `None` while a server does not
    /// answer.
    async fn ask_each<T: FromRedisValue>(&self, asked: &[(String, Cmd)]) -> Option<Vec<T>> {
        let tags: Vec<String> = asked.iter().map(|(tag, _)| tag.clone()).collect();
        let primaries = self.primaries(&tags).await?;
        let mut answers: Vec<Option<T>> = asked.iter().map(|_| None).collect();
        for primary in primaries.iter().collect::<BTreeSet<_>>() {
            let part: Vec<usize> = (0..asked.len()).filter(|index| primaries[*index] == *primary).collect();
            let mut batch = redis::pipe();
            for index in &part {
                batch.add_command(asked[*index].1.clone());
            }
            for (index, answer) in part.into_iter().zip(self.send::<Vec<T>>(*primary, &batch).await.ok()?) {
                answers[index] = Some(answer);
            }
        }
        answers.into_iter().collect()
    }

    /// Sends a command to every partition: `ask` makes it from the prefix of the partition's keys.
    async fn ask_partitions<T: FromRedisValue>(&self, ask: impl Fn(String) -> Cmd) -> Option<Vec<T>> {
        let asked = self.tags().into_iter().map(|tag| {
            let command = ask(format!("rollcall:{{{tag}}}"));
            (tag, command)
        });
        self.ask_each(&asked.collect::<Vec<_>>()).await
    }

    /// Every record of a unit with a diary; `None` while Redis does not answer.
    pub async fn records(&self) -> Option<Vec<OfflineRecord>> {
        let names: Vec<Vec<String>> = self
            .ask_partitions(|begin| cmd("ZRANGE").arg(format!("{begin}:offline")).arg(0).arg(-1).to_owned())
            .await?;
        let mut asked = Vec::new();
        for (tag, names) in self.tags().into_iter().zip(names) {
            let names = names.into_iter().filter(|name| !name.contains(super::CROWD));
            asked.extend(names.map(|name| (tag.clone(), name)));
        }
        let mut open = self.open_records(&asked).await?;
        let texts: Vec<Vec<String>> =
            self.ask_partitions(|begin| cmd("HVALS").arg(format!("{begin}:archive")).to_owned()).await?;
        let read = |text: &String| serde_json::from_str(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        let mut records: Vec<OfflineRecord> = texts.iter().flatten().map(read).collect();
        // A record may be closed between the two queries.
        open.retain(|open| records.iter().all(|closed| closed.id != open.id));
        records.extend(open);
        records.retain(|record| !record.unit.as_str().starts_with(super::CROWD));
        Some(records)
    }

    /// The open records of units that still have one, each with its tag.
    async fn open_records(&self, units: &[(String, String)]) -> Option<Vec<OfflineRecord>> {
        let (partitions, tags) = self.partitions();
        let ask = |(tag, name): &(String, String)| {
            let unit: Unit = name.parse().unwrap();
            let command =
                cmd("HGET").arg(facts_key("rollcall", partitions, tags, &unit)).arg(name).to_owned();
            (tag.clone(), command)
        };
        let facts: Vec<Option<String>> = self.ask_each(&units.iter().map(ask).collect::<Vec<_>>()).await?;
        let open = facts
            .into_iter()
            .zip(units)
            .filter_map(|(facts, (_, name))| encoding::decode(&facts?)?.open_record(&name.parse().unwrap()));
        Some(open.collect())
    }

    /// The backlog: entries of outboxes, members of groups, deliveries.
    pub async fn waiting(&self) -> Option<usize> {
        let blind = ("hearing".to_owned(), cmd("XLEN").arg("rollcall:{hearing}:outbox").to_owned());
        let mut waiting = self.ask_each::<usize>(&[blind]).await?.into_iter().sum();
        for (command, name) in
            [("XLEN", "outbox"), ("ZCARD", "index:groups_due"), ("HLEN", "cells:notifications")]
        {
            waiting += self.sum(command, name).await?;
        }
        Some(waiting)
    }

    /// How many units are watched.
    pub async fn known(&self) -> Option<usize> {
        self.sum("ZCARD", "deadlines").await
    }

    /// Whether this unit is watched.
    pub async fn knows(&self, name: &str) -> Option<bool> {
        let checks: Vec<Option<f64>> = self
            .ask_partitions(|begin| cmd("ZSCORE").arg(format!("{begin}:deadlines")).arg(name).to_owned())
            .await?;
        Some(checks.iter().any(Option::is_some))
    }

    /// How many records are open.
    pub async fn open(&self) -> Option<usize> {
        self.sum("ZCARD", "offline").await
    }

    /// How many records there are.
    pub async fn recorded(&self) -> Option<usize> {
        Some(self.open().await? + self.sum("HLEN", "archive").await?)
    }

    /// The sizes of a collection of every partition.
    async fn sum(&self, command: &str, name: &str) -> Option<usize> {
        let sizes: Vec<usize> =
            self.ask_partitions(|begin| cmd(command).arg(format!("{begin}:{name}")).to_owned()).await?;
        Some(sizes.into_iter().sum())
    }
}

async fn in_time<T>(asked: impl Future<Output = RedisResult<T>>) -> Result<T, String> {
    match tokio::time::timeout(ANSWER, asked).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}
