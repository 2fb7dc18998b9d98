//! The primaries of a cluster and their slots.
//!
//! # Why every known node is asked
//! A node that is cut off from the others still names the old primaries. Each change of a slot's primary has a
//! number (the primary's configuration epoch), so for each slot the answer with the highest number counts.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::{Client, RedisResult, pipe};

use super::address::HostPort;
use super::discovery::{Discovery, Observer, Primary, ask, most};
use super::errors::{LOGIN, NoAnswer};
use super::login::Login;
use super::slots::SLOTS;
use crate::store::{EngineError, Result};

/// The most nodes that are asked at once.
const MOST_ASKED: usize = 16;

pub struct Cluster(pub Login);

/// A node, as another one knows it.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    id: String,
    at: HostPort,
    is_primary: bool,
    /// Whether the asked node can reach it.
    is_connected: bool,
    /// The id of its primary.
    primary: String,
    epoch: u64,
    slots: Vec<u16>,
}

impl Cluster {
    async fn ask(&self, at: &HostPort) -> std::result::Result<Vec<Node>, NoAnswer> {
        let mut question = pipe();
        question.cmd("CLUSTER").arg("NODES");
        let answer: RedisResult<(String,)> = match self.client(at) {
            Ok(client) => ask(&client, &question).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok((text,)) => Ok(text.lines().filter_map(|line| node(line, &at.host)).collect()),
            Err(error) => Err(NoAnswer::of(&format!("the node at {at}"), &error, LOGIN)),
        }
    }

    /// The cluster as some nodes see it, and why others do not answer.
    async fn views(&self, known: &[HostPort]) -> (Vec<Vec<Node>>, Vec<(HostPort, NoAnswer)>) {
        let given = self.0.address().servers.iter();
        // The given ones first: the addresses of all known nodes may be others by now.
        let asked: BTreeSet<&HostPort> = given.take(MOST_ASKED / 2).chain(known).take(MOST_ASKED).collect();
        let answers = most(asked.iter().map(|at| self.ask(at)).collect()).await;
        let (mut views, mut failed) = (Vec::new(), Vec::new());
        for (at, answer) in asked.into_iter().zip(answers) {
            match answer {
                Some(Ok(view)) => views.push(view),
                Some(Err(why)) => failed.push((at.clone(), why)),
                None => failed.push((at.clone(), format!("the node at {at} does not answer").into())),
            }
        }
        (views, failed)
    }

    /// The state of a node without a part of the fleet, for an operator.
    async fn observe(&self, at: &HostPort, nodes: &[&Node]) -> std::result::Result<String, String> {
        let todo =
            "start it, or remove it from the cluster (redis-cli --cluster del-node) and from engine.url";
        self.ask(at).await.map_err(|why| why.advised(todo))?;
        match nodes.iter().any(|node| node.is_connected) {
            true if nodes.iter().any(|node| node.is_primary) => Ok("primary without slots".to_owned()),
            true => Ok("replica of a primary without slots".to_owned()),
            false => Err(format!(
                "the node at {at} answers, but the other nodes do not reach it at the port of the cluster bus, which is \
                 its port + 10000; check the network between them, and its log"
            )),
        }
    }
}

#[async_trait]
impl Discovery for Cluster {
    async fn learn(&self, known: &[HostPort]) -> Result<Vec<Primary>> {
        let (views, failed) = self.views(known).await;
        if views.is_empty() {
            return Err(NoAnswer::all(failed.into_iter().map(|(_, why)| why).collect()));
        }
        let primaries = primaries(&views);
        if primaries.is_empty() {
            let why = "no node of the cluster has slots; create the cluster: redis-cli --cluster create";
            return Err(EngineError::Unavailable(why.to_owned()));
        }
        Ok(primaries)
    }

    async fn observers(&self, known: &[HostPort]) -> Vec<Observer> {
        let (views, failed) = self.views(known).await;
        if views.is_empty() {
            return Vec::new();
        }
        let mut used: BTreeSet<HostPort> = known.iter().cloned().collect();
        used.extend(
            primaries(&views).into_iter().flat_map(|primary| [vec![primary.at], primary.replicas].concat()),
        );
        let mut others: BTreeMap<&HostPort, Vec<&Node>> = BTreeMap::new();
        for node in views.iter().flatten() {
            others.entry(&node.at).or_default().push(node);
        }
        for (at, _) in &failed {
            others.entry(at).or_default();
        }
        others.retain(|at, _| !used.contains(at));
        let observed = others.into_iter().take(MOST_ASKED);
        join_all(observed.map(|(at, nodes)| async move { (at.to_string(), self.observe(at, &nodes).await) }))
            .await
    }

    fn client(&self, at: &HostPort) -> RedisResult<Client> {
        self.0.client(&at.host, at.port)
    }

    fn has_parts(&self) -> bool {
        true
    }
}

/// The primaries by these views.
fn primaries(views: &[Vec<Node>]) -> Vec<Primary> {
    let mut of_slot: Vec<Option<(u64, &Node)>> = vec![None; usize::from(SLOTS)];
    for node in views.iter().flatten().filter(|node| node.is_primary) {
        for slot in &node.slots {
            let best = &mut of_slot[usize::from(*slot)];
            if best.is_none_or(|(epoch, _)| epoch < node.epoch) {
                *best = Some((node.epoch, node));
            }
        }
    }
    let mut shares: BTreeMap<&str, (&Node, Vec<u16>)> = BTreeMap::new();
    for (slot, best) in of_slot.into_iter().enumerate() {
        if let Some((_, node)) = best {
            shares.entry(&node.id).or_insert_with(|| (node, Vec::new())).1.push(slot as u16);
        }
    }
    let mut primaries: Vec<Primary> = shares
        .into_iter()
        .map(|(id, (node, slots))| {
            let of_this = |other: &&Node| !other.is_primary && other.primary == id;
            let (connected, lost): (Vec<&Node>, Vec<&Node>) =
                views.iter().flatten().filter(of_this).partition(|other| other.is_connected);
            let replicas: BTreeSet<&HostPort> = connected.into_iter().map(|other| &other.at).collect();
            let lacks_replicas = lost.iter().any(|other| !replicas.contains(&other.at));
            let replicas = replicas.into_iter().cloned().collect();
            Primary { at: node.at.clone(), slots: Some(slots), replicas, lacks_replicas }
        })
        .collect();
    primaries.sort_by_key(|primary| primary.slots.as_ref().and_then(|slots| slots.first().copied()));
    primaries
}

/// A line of `CLUSTER NODES`:
/// `<id> <ip:port@bus[,name]> <flags> <primary> <ping> <pong> <epoch> <link> <slot> …`.
fn node(line: &str, asked: &str) -> Option<Node> {
    let mut words = line.split(' ');
    let (id, at, flags, primary) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let epoch = words.nth(2)?.parse().ok()?;
    let link = words.next()?;
    let flags: Vec<&str> = flags.split(',').collect();
    if flags.contains(&"noaddr") || flags.contains(&"handshake") {
        return None;
    }
    let (at, name) = at.split_once(',').unwrap_or((at, ""));
    let at = at.split('@').next()?;
    let (ip, port) = at.rsplit_once(':')?;
    // Behind TLS, a certificate is for a name. A node alone does not know its own address.
    let name = name.split(',').next().filter(|name| !name.is_empty() && *name != "?");
    let host = name.unwrap_or(if ip.is_empty() { asked } else { ip });
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let mut slots = Vec::new();
    // A slot in brackets is on its way to another node, or from it.
    for word in words.filter(|word| !word.starts_with('[') && !word.is_empty()) {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        slots.extend((first..=last).take_while(|slot| *slot < SLOTS));
    }
    Some(Node {
        id: id.to_owned(),
        at: HostPort { host, port: port.parse().ok()? },
        is_primary: flags.contains(&"master"),
        is_connected: link == "connected" && !flags.iter().any(|flag| flag.starts_with("fail")),
        primary: primary.to_owned(),
        epoch,
        slots,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> HostPort {
        HostPort { host: "10.0.0.1".into(), port }
    }

    #[test]
    fn a_line_about_a_node_is_read_with_its_slots() {
        let read =
            node("aa 10.0.0.1:7000@17000 myself,master - 0 0 3 connected 0-2 7 [9->-bb]", "x").unwrap();
        assert_eq!((read.at, read.is_primary, read.epoch), (at(7000), true, 3));
        assert_eq!(read.slots, [0, 1, 2, 7]);
        let alone = node("aa :7000@17000 myself,master - 0 0 0 connected", "localhost").unwrap();
        assert_eq!(alone.at, HostPort { host: "localhost".into(), port: 7000 });
        let named = node("aa 10.0.0.1:7000@17000,redis-1.example slave bb 0 0 1 connected", "x").unwrap();
        assert_eq!((named.at.host.as_str(), named.primary.as_str()), ("redis-1.example", "bb"));
        for broken in [
            "",
            "aa",
            "aa 10.0.0.1 master",
            "aa 10.0.0.1:7000@17000 master - 0 0 x connected 1-x",
            "aa :0@0 master,noaddr - 0 0 1 connected",
        ] {
            assert_eq!(node(broken, "x"), None, "{broken:?}");
        }
    }

    #[test]
    fn of_two_views_of_a_slot_the_one_with_the_later_epoch_counts() {
        let view = |lines: &[&str]| lines.iter().filter_map(|line| node(line, "x")).collect::<Vec<_>>();
        let old = view(&[
            "aa 10.0.0.1:7000@1 master - 0 0 3 connected 0-16383",
            "bb 10.0.0.1:7001@1 slave aa 0 0 3 connected",
        ]);
        let new = view(&[
            "aa 10.0.0.1:7000@1 master,fail - 0 0 3 disconnected",
            "bb 10.0.0.1:7001@1 master - 0 0 4 connected 0-16383",
            "cc 10.0.0.1:7002@1 slave bb 0 0 4 connected",
        ]);
        for views in [[&old, &new], [&new, &old]] {
            let views: Vec<Vec<Node>> = views.map(|view| view.iter().map(copy).collect()).into();
            let found = primaries(&views);
            assert_eq!(found.len(), 1);
            assert_eq!((&found[0].at, &found[0].replicas), (&at(7001), &vec![at(7002)]));
            assert!(!found[0].lacks_replicas);
            assert_eq!(found[0].slots.as_ref().map(Vec::len), Some(usize::from(SLOTS)));
        }
    }

    fn copy(node: &Node) -> Node {
        Node {
            id: node.id.clone(),
            at: node.at.clone(),
            primary: node.primary.clone(),
            slots: node.slots.clone(),
            ..*node
        }
    }
}
