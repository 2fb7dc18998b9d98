//! The primaries of a cluster and their slots.
//!
//! | file | what it does |
//! |---|---|
//! | `nodes.rs` | reads a node's report of the cluster |
//! | `together.rs` | tells reports of this cluster from reports of other clusters |
//! | `endpoints.rs` | chooses the address under which a node is used |
//!
//! # Why every known node is asked
//! A node that is cut off from the others still names the old primaries. Each change of a slot's primary has a
//! number (the primary's configuration epoch), so for each slot the answer with the highest number counts.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use redis::{Client, RedisResult, Value, pipe};

use super::address::HostPort;
use super::discovery::{Discovery, Observer, Primary, addresses, ask, most};
use super::errors::{LOGIN, NoAnswer};
use super::login::Login;
use super::slots::SLOTS;
use crate::store::{EngineError, Result};

mod endpoints;
mod nodes;
mod together;

use endpoints::Endpoints;
use nodes::{Report, ReportedNode};

/// The most nodes that get requests at once.
const MAX_ASKED: usize = 16;

pub struct Cluster {
    login: Login,
    known: Mutex<KnownNodes>,
}

/// The known nodes beside the primaries.
#[derive(Default)]
struct KnownNodes {
    /// The ids of the connected nodes; empty until a node has slots.
    members: BTreeSet<String>,
    endpoints: Endpoints,
    /// The addresses that failed at the last attempt.
    failed: BTreeSet<HostPort>,
    /// The addresses at which nodes of other clusters answered last, and whether that was logged. The nodes of a new
    /// cluster need a moment to know each other.
    strangers: BTreeMap<HostPort, bool>,
}

/// The answers of the nodes.
#[derive(Default)]
struct NodeAnswers {
    reports: Vec<Report>,
    failed: Vec<(HostPort, NoAnswer)>,
    /// The addresses of nodes of other clusters.
    strangers: BTreeSet<HostPort>,
}

impl Cluster {
    pub fn new(login: Login) -> Cluster {
        Cluster { login, known: Mutex::default() }
    }

    async fn ask(&self, at: &HostPort) -> std::result::Result<Report, NoAnswer> {
        let mut question = pipe();
        question.cmd("CLUSTER").arg("NODES").cmd("CLUSTER").arg("SLOTS");
        let answer: RedisResult<(String, Value)> = match self.client(at) {
            Ok(client) => ask(&client, &question).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok((lines, slots)) => Ok(Report::new(at, &lines, &slots)),
            Err(error) => Err(NoAnswer::of(&format!("the node at {at}"), &error, LOGIN)),
        }
    }

    /// The nodes of `engine.url` that get requests, at most half of [`MAX_ASKED`].
    fn given(&self) -> &[HostPort] {
        let given = &self.login.address().servers;
        &given[..given.len().min(MAX_ASKED / 2)]
    }

    /// The reports of some nodes about the cluster, and why other nodes do not answer.
    async fn answers(&self, primaries: &[HostPort]) -> NodeAnswers {
        // The nodes of `engine.url` come first: the addresses of all known nodes may have changed.
        let others = {
            let known = self.known.lock();
            known.endpoints.of_failed(&known.failed)
        };
        let asked = self.given().iter().chain(primaries).take(MAX_ASKED).cloned().chain(others);
        let asked: BTreeSet<HostPort> = asked.collect();
        let answered = most(asked.iter().map(|at| self.ask(at)).collect()).await;
        let mut answers = NodeAnswers::default();
        let (mut reports, mut failed) = (Vec::new(), BTreeSet::new());
        for (at, answer) in asked.into_iter().zip(answered) {
            match answer {
                Some(Ok(report)) => reports.push(report),
                Some(Err(why)) => {
                    failed.insert(at.clone());
                    answers.failed.push((at, why));
                }
                None => {
                    let why = format!("the node at {at} does not answer").into();
                    answers.failed.push((at, why));
                }
            }
        }
        self.sort(reports, &mut answers);
        self.choose_endpoints(&mut answers.reports, failed).await;
        answers
    }

    /// Keeps the reports of this cluster, and notes the addresses of nodes of other clusters.
    fn sort(&self, reports: Vec<Report>, answers: &mut NodeAnswers) {
        let mut known = self.known.lock();
        let (these, others) = together::of_this(reports, &known.members, self.given());
        let has_slots = nodes(&these).any(|node| !node.slots.is_empty());
        if has_slots {
            // Count only connected nodes: old nodes still list a node that is gone, and new nodes never list it.
            let members = nodes(&these).filter(|node| node.is_connected);
            known.members = members.map(|node| node.id.clone()).collect();
        }
        if has_slots || these.is_empty() {
            answers.strangers = others.into_iter().map(|report| report.asked).collect();
        }
        known.report_strangers(&answers.strangers);
        answers.reports = these;
    }

    /// Chooses the address under which each node is used. If a node has several addresses, tries each of them once.
    async fn choose_endpoints(&self, reports: &mut [Report], failed: BTreeSet<HostPort>) {
        let reporter = |report: &Report| Some((report.asked.clone(), report.reporter()?.to_owned()));
        let mut answered: BTreeMap<HostPort, String> = reports.iter().filter_map(reporter).collect();
        let untried = {
            let mut known = self.known.lock();
            known.endpoints.learn(reports);
            let untried = known.endpoints.untried();
            untried.into_iter().filter(|at| !answered.contains_key(at) && !failed.contains(at))
        };
        let tries = stream::iter(untried).map(|at| async move { self.ask(&at).await.ok() });
        let tried: Vec<Option<Report>> = tries.buffer_unordered(MAX_ASKED).collect().await;
        answered.extend(tried.iter().flatten().filter_map(reporter));
        let mut known = self.known.lock();
        known.endpoints.choose(&answered, &failed);
        known.endpoints.apply(reports);
        known.failed = failed;
    }

    /// The state of a node without a part of the fleet, for an operator.
    async fn observe(&self, at: &HostPort, nodes: &[&ReportedNode]) -> std::result::Result<String, String> {
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
        let NodeAnswers { reports, failed, strangers } = self.answers(known).await;
        if reports.is_empty() {
            let strangers = strangers.iter().map(|at| NoAnswer::from(stranger(at)));
            return Err(NoAnswer::all(failed.into_iter().map(|(_, why)| why).chain(strangers).collect()));
        }
        let primaries = primaries(&reports);
        if primaries.is_empty() {
            let why = "no node of the cluster has slots; create the cluster: redis-cli --cluster create";
            return Err(EngineError::Unavailable(why.to_owned()));
        }
        Ok(primaries)
    }

    async fn observers(&self, known: &[Primary]) -> Vec<Observer> {
        let NodeAnswers { reports, failed, strangers } = self.answers(&addresses(known)).await;
        if reports.is_empty() {
            return Vec::new();
        }
        let mut used: BTreeSet<HostPort> = known.iter().map(|primary| primary.at.clone()).collect();
        let primaries = primaries(&reports);
        used.extend(primaries.iter().map(|primary| primary.at.clone()));
        // A replica that refuses the login is useless after a promotion.
        let refused = |at: &HostPort| failed.iter().any(|(other, why)| other == at && why.is_refused);
        used.extend(primaries.into_iter().flat_map(|primary| primary.replicas).filter(|at| !refused(at)));
        let mut others: BTreeMap<&HostPort, Vec<&ReportedNode>> = BTreeMap::new();
        for node in nodes(&reports) {
            others.entry(&node.at).or_default().push(node);
        }
        for (at, _) in &failed {
            others.entry(at).or_default();
        }
        others.retain(|at, _| !used.contains(at) && !strangers.contains(at));
        let observed = others.into_iter().take(MAX_ASKED);
        let observed =
            observed.map(|(at, nodes)| async move { (at.to_string(), self.observe(at, &nodes).await) });
        let mut observed = join_all(observed).await;
        observed.extend(strangers.iter().map(|at| (at.to_string(), Err(stranger(at)))));
        observed
    }

    fn client(&self, at: &HostPort) -> RedisResult<Client> {
        self.login.client(&at.host, at.port)
    }

    fn used(&self, endpoint: &HostPort) -> Option<HostPort> {
        self.known.lock().endpoints.used(endpoint)
    }

    fn has_parts(&self) -> bool {
        true
    }
}

impl KnownNodes {
    /// Logs an address at which a node of another cluster answers for the second time in a row.
    fn report_strangers(&mut self, strangers: &BTreeSet<HostPort>) {
        let before = std::mem::take(&mut self.strangers);
        for at in strangers {
            let was = before.get(at).copied();
            if was == Some(false) {
                tracing::warn!(server = %at, "a node is of another cluster than the others, and is not used; {LEAVES}");
            }
            self.strangers.insert(at.clone(), was.is_some());
        }
    }
}

/// The advice about a node of another cluster.
const LEAVES: &str = "remove it from engine.url, or let it join the others: redis-cli --cluster add-node";

/// The text about a node of another cluster.
fn stranger(at: &HostPort) -> String {
    format!("the node at {at} is of another cluster than the others, and is not used; {LEAVES}")
}

fn nodes(reports: &[Report]) -> impl Iterator<Item = &ReportedNode> {
    reports.iter().flat_map(|report| &report.nodes)
}

/// The primaries by these reports.
fn primaries(reports: &[Report]) -> Vec<Primary> {
    let mut of_slot: Vec<Option<(u64, &ReportedNode)>> = vec![None; usize::from(SLOTS)];
    for node in nodes(reports).filter(|node| node.is_primary) {
        for slot in &node.slots {
            let best = &mut of_slot[usize::from(*slot)];
            if best.is_none_or(|(epoch, _)| epoch < node.epoch) {
                *best = Some((node.epoch, node));
            }
        }
    }
    let mut shares: BTreeMap<&str, (&ReportedNode, Vec<u16>)> = BTreeMap::new();
    for (slot, best) in of_slot.into_iter().enumerate() {
        if let Some((_, node)) = best {
            shares.entry(&node.id).or_insert_with(|| (node, Vec::new())).1.push(slot as u16);
        }
    }
    let mut primaries: Vec<Primary> = shares
        .into_iter()
        .map(|(id, (node, slots))| {
            let of_this = |other: &&ReportedNode| !other.is_primary && other.primary == id;
            let (connected, lost): (Vec<&ReportedNode>, Vec<&ReportedNode>) =
                nodes(reports).filter(of_this).partition(|other| other.is_connected);
            let replicas: BTreeSet<&HostPort> = connected.into_iter().map(|other| &other.at).collect();
            let lacks_replicas = lost.iter().any(|other| !replicas.contains(&other.at));
            let replicas = replicas.into_iter().cloned().collect();
            Primary { at: node.at.clone(), slots: Some(slots), replicas, lacks_replicas }
        })
        .collect();
    primaries.sort_by_key(|primary| primary.slots.as_ref().and_then(|slots| slots.first().copied()));
    primaries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> HostPort {
        HostPort { host: "10.0.0.1".into(), port }
    }

    #[test]
    fn of_two_reports_of_a_slot_the_one_with_the_later_epoch_counts() {
        let report = |lines: &[&str]| Report::new(&at(1), &lines.join("\n"), &Value::Nil);
        let old = report(&[
            "aa 10.0.0.1:7000@1 master - 0 0 3 connected 0-16383",
            "bb 10.0.0.1:7001@1 slave aa 0 0 3 connected",
        ]);
        let new = report(&[
            "aa 10.0.0.1:7000@1 master,fail - 0 0 3 disconnected",
            "bb 10.0.0.1:7001@1 master - 0 0 4 connected 0-16383",
            "cc 10.0.0.1:7002@1 slave bb 0 0 4 connected",
        ]);
        for reports in [[&old, &new], [&new, &old]] {
            let found = primaries(&reports.map(Report::clone));
            assert_eq!(found.len(), 1);
            assert_eq!((&found[0].at, &found[0].replicas), (&at(7001), &vec![at(7002)]));
            assert!(!found[0].lacks_replicas);
            assert_eq!(found[0].slots.as_ref().map(Vec::len), Some(usize::from(SLOTS)));
        }
    }
}
