//! A Redis Cluster of a test's own, with `config/redis/cluster.conf`, as `make cluster` starts it. A test may end its
//! servers and start them again, promote replicas, add and remove servers, and move slots.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, FromRedisValue, cmd};

use super::certificates::Authority;
use super::node::{Node, Place, in_parallel, shipped, until};
use rollcall::clock::{Stopwatch, monotonic};

const SLOTS: u16 = 16384;

#[derive(Clone)]
pub struct ClusterPlan {
    pub primaries: usize,
    /// The number of replicas of each primary.
    pub replicas: usize,
    pub node_timeout: Duration,
    /// Further lines for the file of every server.
    pub settings: String,
    /// The places of the first servers; the others are on loopback.
    pub places: Vec<Place>,
}

impl ClusterPlan {
    /// Three primaries, each with `replicas` replicas.
    pub fn new(replicas: usize) -> ClusterPlan {
        let node_timeout = Duration::from_millis(2000);
        ClusterPlan { primaries: 3, replicas, node_timeout, settings: String::new(), places: Vec::new() }
    }

    /// Gives all servers certificates of this authority.
    pub fn with_tls(mut self, authority: &Arc<Authority>) -> ClusterPlan {
        let place = Place { authority: Some(authority.clone()), ..Place::default() };
        self.places = vec![place; self.primaries * (1 + self.replicas)];
        self
    }

    /// Makes every server write to disk before it answers.
    pub fn durable(mut self) -> ClusterPlan {
        self.settings += "appendfsync always\n";
        self
    }

    fn text(&self) -> String {
        let timeout = self.node_timeout.as_millis();
        format!("{}\ncluster-node-timeout {timeout}\n{}", shipped("cluster.conf"), self.settings)
    }
}

/// The servers of the cluster by number: the primaries first, then a round of replicas, then another round.
pub struct Cluster {
    pub nodes: Vec<Node>,
    plan: ClusterPlan,
    // The last field, so that the servers have ended when the directory is removed.
    dir: tempfile::TempDir,
}

/// A server as a server of the cluster sees it: a line of CLUSTER NODES.
#[derive(Clone, Debug)]
pub struct Seen {
    pub id: String,
    pub port: u16,
    pub is_primary: bool,
    is_itself: bool,
    /// The id of its primary.
    pub follows: Option<String>,
    epoch: u64,
    pub slots: Vec<RangeInclusive<u16>>,
}

impl Seen {
    fn parse(line: &str) -> Option<Seen> {
        let mut words = line.split(' ');
        let (id, address, flags, follows) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let port = address.split('@').next()?.rsplit(':').next()?.parse().ok()?;
        let mut words = words.skip(2);
        let epoch = words.next()?.parse().ok()?;
        // A slot that is being moved is in brackets.
        let slots = words.skip(1).filter(|word| !word.starts_with('['));
        let range = |word: &str| {
            let (from, to) = word.split_once('-').unwrap_or((word, word));
            Some(from.parse().ok()?..=to.parse().ok()?)
        };
        let flags: Vec<&str> = flags.split(',').collect();
        Some(Seen {
            id: id.to_owned(),
            port,
            is_primary: flags.contains(&"master"),
            is_itself: flags.contains(&"myself"),
            follows: (follows != "-").then(|| follows.to_owned()),
            epoch,
            slots: slots.filter_map(range).collect(),
        })
    }

    pub fn serves(&self, slot: u16) -> bool {
        self.is_primary && self.slots.iter().any(|range| range.contains(&slot))
    }

    /// How many slots the server serves.
    pub fn count(&self) -> usize {
        self.slots.iter().map(|range| range.len()).sum()
    }
}

impl Cluster {
    /// Starts the cluster and waits until every slot is served, every replica follows, and every server knows so. A
    /// server that starts refuses writes for two seconds, so that takes a little longer.
    pub async fn start(plan: ClusterPlan) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let count = plan.primaries * (1 + plan.replicas);
        let text = plan.text();
        let nodes = in_parallel(0..count, |number| {
            let place = plan.places.get(number).cloned().unwrap_or_default();
            Node::start_in(&of(dir.path(), number), &text, &place)
        });
        let cluster = Cluster { nodes, plan, dir };
        cluster.join_all().await;
        cluster.until_whole().await;
        cluster.until_all_know_the_replicas().await;
        cluster
    }

    async fn join_all(&self) {
        let primaries = self.plan.primaries;
        let begin = |number: usize| (number * usize::from(SLOTS) / primaries) as u16;
        for (number, node) in self.nodes.iter().enumerate() {
            node.ask::<()>(cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(number + 1)).await;
            if number < primaries {
                let slots: Vec<u16> = (begin(number)..begin(number + 1)).collect();
                node.ask::<()>(cmd("CLUSTER").arg("ADDSLOTS").arg(slots)).await;
            }
            if number > 0 {
                self.meet(number).await;
            }
        }
        self.until_all_are_known().await;
        for number in primaries..self.nodes.len() {
            self.follow(number, number % primaries).await;
        }
    }

    /// Introduces a server to another one, which tells the rest of it.
    async fn meet(&self, number: usize) {
        let other = self.nodes.iter().enumerate().find(|(at, node)| *at != number && node.answers());
        let (_, other) = other.expect("another server runs");
        let node = &self.nodes[number];
        other.ask::<()>(cmd("CLUSTER").arg("MEET").arg(node.host()).arg(node.port())).await;
    }

    async fn until_all_are_known(&self) {
        let ports: Vec<u16> = self.answering().map(|(_, node)| node.port()).collect();
        for (_, node) in self.answering() {
            until("every server knows every other one", async || {
                let seen = seen_by(node).await;
                ports.iter().all(|port| seen.iter().any(|one| one.port == *port))
            })
            .await;
        }
    }

    async fn until_all_know_the_replicas(&self) {
        let mut following = Vec::new();
        for (_, node) in self.answering() {
            following.extend(itself(node).await.and_then(|itself| Some((itself.id, itself.follows?))));
        }
        for (_, node) in self.answering() {
            until("every server knows every replica", async || {
                let seen = seen_by(node).await;
                let is_known = |id: &String, primary: &String| {
                    seen.iter().any(|one| one.id == *id && one.follows.as_ref() == Some(primary))
                };
                following.iter().all(|(id, primary)| is_known(id, primary))
            })
            .await;
        }
    }

    /// Makes a server the replica of another.
    pub async fn follow(&self, number: usize, primary: usize) {
        let id = self.id(primary).await;
        let ask = cmd("CLUSTER").arg("REPLICATE").arg(id).to_owned();
        let replica = &self.nodes[number];
        until("the replica knows its primary", async || replica.try_ask::<()>(&ask).await.is_ok()).await;
    }

    fn answering(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.answers())
    }

    /// Waits until every server that is not killed or frozen says that all slots are served, and every replica among
    /// them follows its primary.
    pub async fn until_whole(&self) {
        for (_, node) in self.answering() {
            until("the cluster is whole", async || {
                let info: String = node.try_ask(cmd("CLUSTER").arg("INFO")).await.unwrap_or_default();
                info.contains("cluster_state:ok") && node.is_linked().await
            })
            .await;
        }
    }

    /// The value of `engine.url`.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.nodes.iter().map(Node::address).collect();
        let scheme =
            if self.plan.places.iter().any(|place| place.authority.is_some()) { "rediss" } else { "redis" };
        format!("{scheme}-cluster://{}", addresses[..self.plan.primaries].join(","))
    }

    pub fn port(&self, number: usize) -> u16 {
        self.nodes[number].port()
    }

    /// The cluster's name of a server.
    pub async fn id(&self, number: usize) -> String {
        self.nodes[number].ask(cmd("CLUSTER").arg("MYID")).await
    }

    pub async fn slot_of(&self, key: &str) -> u16 {
        let (_, node) = self.answering().next().expect("a server runs");
        node.ask(cmd("CLUSTER").arg("KEYSLOT").arg(key)).await
    }

    /// The server that serves the slot of this key: if several claim to, the server that was promoted last.
    pub async fn primary_of(&self, key: &str) -> usize {
        let slot = self.slot_of(key).await;
        let mut found = None;
        until("a server serves the slot", async || {
            found = self.serving(slot).await;
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// The server that serves each slot, as [`Cluster::primary_of`] answers; `None`: no server does now.
    pub async fn server_of_each_slot(&self) -> Vec<Option<usize>> {
        let mut found = Vec::new();
        for (number, node) in self.answering() {
            let itself = itself(node).await.filter(|itself| itself.is_primary);
            found.extend(itself.map(|itself| (itself.epoch, number, itself.slots)));
        }
        found.sort_by_key(|(epoch, ..)| *epoch);
        let mut servers = vec![None; usize::from(SLOTS)];
        for (_, number, slots) in found {
            for slot in slots.into_iter().flatten() {
                servers[usize::from(slot)] = Some(number);
            }
        }
        servers
    }

    async fn serving(&self, slot: u16) -> Option<usize> {
        let mut found: Vec<(u64, usize)> = Vec::new();
        for (number, node) in self.answering() {
            let itself = itself(node).await.filter(|itself| itself.serves(slot));
            found.extend(itself.map(|itself| (itself.epoch, number)));
        }
        found.into_iter().max().map(|(_, number)| number)
    }

    /// The servers that serve slots.
    pub async fn primaries(&self) -> Vec<usize> {
        let mut found = Vec::new();
        for (number, node) in self.answering() {
            let serves = itself(node).await.is_some_and(|itself| itself.is_primary && itself.count() > 0);
            found.extend(serves.then_some(number));
        }
        found
    }

    /// The replicas of a server that are not killed or frozen.
    pub async fn replicas_of(&self, primary: usize) -> Vec<usize> {
        let id = self.id(primary).await;
        let mut found = Vec::new();
        for (number, node) in self.answering() {
            let follows = itself(node).await.and_then(|itself| itself.follows);
            found.extend((follows.as_deref() == Some(&id)).then_some(number));
        }
        found
    }

    /// A slot that this server serves.
    pub async fn slot_at(&self, number: usize) -> u16 {
        let itself = itself(&self.nodes[number]).await.expect("it answers");
        *itself.slots.first().expect("it serves slots").start()
    }

    /// Waits until another server than `former` serves the slot of this key.
    pub async fn until_promoted(&self, key: &str, former: usize) -> usize {
        self.until_moved(self.slot_of(key).await, former).await
    }

    /// Waits until another server than `former` serves this slot.
    pub async fn until_moved(&self, slot: u16, former: usize) -> usize {
        let mut found = None;
        until("a replica is promoted", async || {
            found = self.serving(slot).await.filter(|number| *number != former);
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// Sends a command to the server of its key.
    pub async fn ask<T: FromRedisValue>(&self, key: &str, command: &Cmd) -> T {
        self.nodes[self.primary_of(key).await].ask(command).await
    }

    /// Promotes a replica by hand, without loss: its primary stops and waits for it. An attempt ends after five
    /// seconds, whether it succeeded or not.
    pub async fn failover(&self, replica: usize) {
        let node = &self.nodes[replica];
        let mut asked: Option<Instant> = None;
        until("the replica is promoted", async || {
            if asked.is_none_or(|at| monotonic().duration_since(at) > Duration::from_secs(6)) {
                asked = Some(monotonic());
                let _ = node.try_ask::<()>(cmd("CLUSTER").arg("FAILOVER")).await;
            }
            itself(node).await.is_some_and(|itself| itself.is_primary && itself.count() > 0)
        })
        .await;
    }

    /// Replaces a killed server by a new one that the cluster does not know, without data and without a name, which
    /// follows the primary of this key.
    pub async fn replace(&mut self, number: usize, key: &str) {
        let primary = self.primary_of(key).await;
        self.replace_behind(number, primary).await;
    }

    /// Replaces a killed server, as [`Cluster::replace`] does, by a replica of the primary with this number.
    pub async fn replace_behind(&mut self, number: usize, primary: usize) {
        let port = self.port(number);
        self.nodes[number].wipe();
        std::fs::remove_file(of(self.dir.path(), number).join("nodes.conf")).unwrap();
        for (_, node) in self.answering() {
            let former = seen_by(node).await.into_iter().find(|one| one.port == port);
            if let Some(former) = former {
                let _ = node.try_ask::<()>(cmd("CLUSTER").arg("FORGET").arg(former.id)).await;
            }
        }
        self.nodes[number].restart();
        self.meet(number).await;
        self.until_all_are_known().await;
        self.follow(number, primary).await;
    }

    /// Starts a server that serves no slot yet, and returns its number.
    pub async fn add(&mut self) -> usize {
        let number = self.nodes.len();
        let place = self.plan.places.get(number).cloned().unwrap_or_default();
        self.nodes.push(Node::start_in(&of(self.dir.path(), number), &self.plan.text(), &place));
        self.meet(number).await;
        self.until_all_are_known().await;
        self.until_whole().await;
        number
    }

    /// Moves `slots` slots from one server to another, as an operator does.
    pub async fn reshard(&self, from: usize, to: usize, slots: usize) {
        let (from, to) = (self.id(from).await, self.id(to).await);
        let slots = slots.to_string();
        let how = ["--cluster-from", &from, "--cluster-to", &to, "--cluster-slots", &slots, "--cluster-yes"];
        self.manage("reshard", &how).await;
    }

    /// Deals the slots evenly, also to servers that have none.
    pub async fn rebalance(&self) {
        self.manage("rebalance", &["--cluster-use-empty-masters", "--cluster-threshold", "1"]).await;
    }

    /// Takes a primary out of the cluster: its slots go to `heir`, and its replicas follow `heir`.
    pub async fn remove(&mut self, number: usize, heir: usize) {
        let count = itself(&self.nodes[number]).await.expect("it answers").count();
        self.reshard(number, heir, count).await;
        for replica in self.replicas_of(number).await {
            self.follow(replica, heir).await;
        }
        let id = self.id(number).await;
        self.manage("del-node", &[&id]).await;
        self.nodes[number].kill();
    }

    /// Begins to move the slot of a key: from now on, clients are sent to the other server (ASK) for keys that have
    /// moved.
    pub async fn begin_move(&self, key: &str, to: usize) {
        let (slot, from) = (self.slot_of(key).await, self.primary_of(key).await);
        let (from_id, to_id) = (self.id(from).await, self.id(to).await);
        let set = |how: &str, id: String| cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(how).arg(id).to_owned();
        self.nodes[to].ask::<()>(&set("IMPORTING", from_id)).await;
        self.nodes[from].ask::<()>(&set("MIGRATING", to_id)).await;
    }

    /// Moves one key of a slot that is being moved.
    pub async fn move_key(&self, key: &str, to: usize) {
        let from = self.primary_of(key).await;
        let migrate = cmd("MIGRATE").arg("127.0.0.1").arg(self.port(to)).arg(key).arg(0).arg(5000).to_owned();
        let _: String = self.nodes[from].ask(&migrate).await;
    }

    /// Ends the move of a slot, and moves the keys that are left.
    pub async fn end_move(&self, key: &str, to: usize) {
        let (slot, from) = (self.slot_of(key).await, self.primary_of(key).await);
        loop {
            let ask = cmd("CLUSTER").arg("GETKEYSINSLOT").arg(slot).arg(100).to_owned();
            let left: Vec<String> = self.nodes[from].ask(&ask).await;
            if left.is_empty() {
                break;
            }
            for key in left {
                self.move_key(&key, to).await;
            }
        }
        let id = self.id(to).await;
        for number in [vec![to, from], self.primaries().await].concat() {
            let ask = cmd("CLUSTER").arg("SETSLOT").arg(slot).arg("NODE").arg(&id).to_owned();
            self.nodes[number].ask::<()>(&ask).await;
        }
    }

    /// Runs `redis-cli --cluster`, and repeats it while the servers do not agree yet on an earlier change.
    async fn manage(&self, what: &str, how: &[&str]) {
        let (_, node) = self.answering().next().expect("a server runs");
        let began = Stopwatch::start();
        loop {
            let mut command = tokio::process::Command::new("redis-cli");
            command.args(["--cluster", what, &node.address()]).args(how);
            let done = command.output().await.unwrap_or_else(|error| panic!("redis-cli: {error}"));
            if done.status.success() {
                return;
            }
            let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
            let is_early = said.contains("Nodes don't agree") && began.elapsed() < Duration::from_secs(30);
            assert!(is_early, "redis-cli --cluster {what}: {said}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// The slot of every key with this tag, which is given without braces.
pub fn slot_of_tag(tag: &str) -> u16 {
    let shift = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
    tag.bytes().fold(0, |crc, byte| (0..8).fold(crc ^ u16::from(byte) << 8, shift)) % SLOTS
}

fn of(dir: &Path, number: usize) -> std::path::PathBuf {
    dir.join(format!("node-{number}"))
}

/// The cluster as one of its servers sees it; nothing if it does not answer.
async fn seen_by(node: &Node) -> Vec<Seen> {
    let text: String = node.try_ask(cmd("CLUSTER").arg("NODES")).await.unwrap_or_default();
    text.lines().filter_map(Seen::parse).collect()
}

async fn itself(node: &Node) -> Option<Seen> {
    seen_by(node).await.into_iter().find(|one| one.is_itself)
}
