//! The current servers. They are learned at the first call, when a call finds that they have changed, when the
//! topology reports a change, and periodically.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::Value;
use tokio::sync::{Notify, watch};

use super::address::HostPort;
use super::discovery::{Discovery, Observer, Primary, TopologyEvent, addresses};
use super::errors::classify;
use super::server::RedisServer;
use super::slots::SlotMap;
use crate::clock::{Stopwatch, monotonic};
use crate::store::{EngineError, Result};
use crate::telemetry::Telemetry;

/// The longest time between two requests to a topology that can change.
const PERIOD: Duration = Duration::from_secs(2);
/// The shortest time between two requests.
const MIN_PERIOD: Duration = Duration::from_millis(100);
/// The longest time in which no command is sent because a replica is about to be promoted. A promotion takes about a
/// second.
const PROMOTION: Duration = Duration::from_secs(10);
/// The shortest such time if no promotion is seen: the topology may report it later.
const MIN_PROMOTION: Duration = Duration::from_secs(1);
/// How long announcements are ignored after an announcement without a promotion: otherwise a server could stop
/// Rollcall.
const DISTRUST: Duration = Duration::from_secs(30);
/// A server that does not tell its role within this time is checked at the next renewal.
const MAX_WAIT: Duration = Duration::from_millis(200);

/// The servers as last learned.
#[derive(Default)]
pub struct ServerView {
    /// A new number for every change; 0 before the servers are known.
    pub number: u64,
    pub map: SlotMap,
    pub primaries: Vec<Primary>,
}

pub struct Servers {
    discovery: Box<dyn Discovery>,
    view: watch::Sender<Arc<ServerView>>,
    /// When the servers were last learned, and the error if that failed. Locked while they are learned.
    learned: tokio::sync::Mutex<Option<(Instant, Option<EngineError>)>>,
    /// Why the last attempt to learn the servers failed; `None`: it succeeded.
    failure: Mutex<Option<String>>,
    doubt: Notify,
    /// Whether a replica is about to be promoted.
    promotion: watch::Sender<bool>,
    /// The server without slots to which another server last referred: it gets the first commands of a slot that
    /// moves to it.
    referred: Mutex<Option<Arc<RedisServer>>>,
    limits: Mutex<Limits>,
    telemetry: Arc<Telemetry>,
}

/// The inputs for the limits on requests to each server: see `admission.rs`.
#[derive(Clone)]
struct Limits {
    instances: usize,
    /// The slots of partitions that have very many due units, by partition.
    storms: BTreeMap<u16, u16>,
}

impl Servers {
    pub fn new(discovery: Box<dyn Discovery>, telemetry: Arc<Telemetry>) -> Servers {
        Servers {
            discovery,
            view: watch::Sender::default(),
            learned: Default::default(),
            failure: Mutex::default(),
            doubt: Notify::new(),
            promotion: watch::Sender::default(),
            referred: Mutex::default(),
            limits: Mutex::new(Limits { instances: 1, storms: BTreeMap::new() }),
            telemetry,
        }
    }

    /// Whether there is one server, and never another.
    pub fn is_fixed(&self) -> bool {
        self.discovery.is_fixed()
    }

    /// Whether there may be several primaries at once.
    pub fn has_parts(&self) -> bool {
        self.discovery.has_parts()
    }

    /// The server, if there is one server and never another.
    pub fn only(&self) -> Option<Arc<RedisServer>> {
        if self.is_fixed() { self.now().map.only().cloned() } else { None }
    }

    /// The current servers; none before the first call of [`Servers::view`].
    pub fn now(&self) -> Arc<ServerView> {
        self.view.borrow().clone()
    }

    /// Waits while a replica is about to be promoted, because the primary takes writes that will be lost. Answers
    /// whether it waited.
    pub async fn promoted(&self) -> bool {
        if !*self.promotion.borrow() {
            return false;
        }
        // The sender lives as long as `self`.
        let _ = self.promotion.subscribe().wait_for(|lasts| !lasts).await;
        true
    }

    /// The servers, learned if they are unknown. Waits for the end of a promotion that is under way.
    pub async fn view(&self) -> Result<Arc<ServerView>> {
        self.promoted().await;
        let view = self.now();
        if view.number > 0 {
            return Ok(view);
        }
        self.learn(0).await?;
        Ok(self.now())
    }

    pub fn changes(&self) -> watch::Receiver<Arc<ServerView>> {
        self.view.subscribe()
    }

    /// Learns the servers, unless they have changed since the view with the number `seen`, or were learned a moment
    /// ago.
    pub async fn learn(&self, seen: u64) -> Result<()> {
        let mut learned = self.learned.lock().await;
        let before = self.now();
        if before.number != seen {
            return Ok(());
        }
        if let Some((at, failed)) = &*learned
            && monotonic().duration_since(*at) < MIN_PERIOD
        {
            // While no server is known, the next caller needs the reason.
            let failed = failed.clone().filter(|_| before.number == 0);
            return failed.map_or(Ok(()), Err);
        }
        let primaries = self.discovery.learn(&addresses(&before.primaries)).await;
        *learned = Some((monotonic(), primaries.as_ref().err().cloned()));
        *self.failure.lock() = primaries.as_ref().err().map(ToString::to_string);
        let primaries = primaries?;
        if primaries == before.primaries {
            return Ok(());
        }
        let after = self.with(&before, primaries)?;
        report(&before, &after);
        let servers = after.map.servers().iter();
        self.telemetry.engine_servers(servers.map(|one| (one.address().to_owned(), one.answers())).collect());
        self.view.send_replace(Arc::new(after));
        let now = self.now();
        let stays =
            |server: &Arc<RedisServer>| now.map.servers().iter().any(|other| Arc::ptr_eq(server, other));
        before.map.servers().iter().filter(|server| !stays(server)).for_each(|server| server.leave());
        Ok(())
    }

    /// Why the last attempt to learn the servers failed, if it failed.
    pub fn learn_failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Learns the servers again, unless they were learned a moment ago.
    pub async fn learn_again(&self) -> Result<()> {
        self.learn(self.now().number).await
    }

    /// A view of these primaries. Known servers keep their connections.
    fn with(&self, before: &ServerView, primaries: Vec<Primary>) -> Result<ServerView> {
        let known: HashMap<&str, &Arc<RedisServer>> =
            before.map.servers().iter().map(|server| (server.address(), server)).collect();
        let mut shares = Vec::with_capacity(primaries.len());
        for primary in &primaries {
            let address = primary.at.to_string();
            let server = match known.get(address.as_str()) {
                Some(server) => (*server).clone(),
                None if before.number == 0 => Arc::new(self.connect(&primary.at)?),
                None => Arc::new(self.connect(&primary.at)?.taking_over()),
            };
            shares.push((server, primary.slots.clone()));
        }
        let map = match shares.as_slice() {
            [(server, None)] => SlotMap::single(server.clone()),
            _ => SlotMap::new(
                shares.into_iter().map(|(server, slots)| (server, slots.unwrap_or_default())).collect(),
            ),
        };
        self.limits.lock().apply(&map);
        Ok(ServerView { number: before.number + 1, map, primaries })
    }

    /// The servers that hold no part of the fleet: see [`Discovery::observers`].
    pub async fn observers(&self) -> Vec<Observer> {
        self.discovery.observers(&self.now().primaries).await
    }

    pub fn connect(&self, at: &HostPort) -> Result<RedisServer> {
        let address = at.to_string();
        let client = self.discovery.client(at).map_err(|error| classify(&address, &error))?;
        RedisServer::new(address.clone(), client).map_err(|error| classify(&address, &error))
    }

    /// Notes that the server at this address refused a command.
    pub fn refused_at(&self, address: &str) {
        let view = self.now();
        let of_it = view.map.servers().iter().find(|server| server.address() == address);
        if let Some(server) = of_it {
            server.answers().refuse();
        }
    }

    /// The server to which `from` refers, which may have no slots yet. `to` is the `host:port` in the answer of
    /// `from`. An empty host or `?` stands for the host of `from`.
    pub async fn referred(&self, from: &RedisServer, to: &str) -> Result<Arc<RedisServer>> {
        let wrong = || EngineError::Unavailable(format!("redis refers to {to:?}, which is no address"));
        let mut to = HostPort::parse(to).ok_or_else(wrong)?;
        if matches!(to.host.as_str(), "" | "?") {
            to.host = HostPort::parse(from.address()).ok_or_else(wrong)?.host;
        }
        if self.discovery.used(&to).is_none() {
            // Ignored: the next attempt shows whether it helped.
            let _ = self.learn_again().await;
        }
        let at = self.discovery.used(&to).unwrap_or(to);
        let (view, address) = (self.now(), at.to_string());
        let mut referred = self.referred.lock();
        let mut known = view.map.servers().iter().chain(referred.iter());
        if let Some(server) = known.find(|server| server.address() == address) {
            return Ok(server.clone());
        }
        let server = Arc::new(self.connect(&at)?);
        *referred = Some(server.clone());
        Ok(server)
    }

    /// Requests that the servers are learned again, because a call failed as after a change of servers.
    pub fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Keeps learning the servers. Never ends.
    pub async fn follow(&self) {
        let mut changed = self.discovery.changed();
        let mut distrusted: Option<Instant> = None;
        loop {
            tokio::select! {
                event = &mut changed => {
                    let is_believed = distrusted.is_none_or(|since| monotonic().duration_since(since) > DISTRUST);
                    if event == TopologyEvent::Promotion && is_believed {
                        distrusted = (!self.await_promotion().await).then(monotonic);
                    }
                    changed = self.discovery.changed();
                }
                () = self.doubt.notified() => {}
                () = tokio::time::sleep(PERIOD) => {}
            }
            // A failover takes seconds: calls that fail meanwhile request this again.
            tokio::time::sleep(MIN_PERIOD).await;
            if let Err(why) = self.learn_again().await {
                tracing::debug!("the servers cannot be learned: {why}");
            }
        }
    }

    /// Learns the servers until a replica is promoted, while no command is sent. Answers whether a replica was
    /// promoted.
    async fn await_promotion(&self) -> bool {
        tracing::info!("a replica is about to be promoted; the next commands go to the new primary");
        let (before, began) = (self.now(), Stopwatch::start());
        self.promotion.send_replace(true);
        let is_under_way = async || began.elapsed() < MIN_PROMOTION || self.discovery.is_promoting().await;
        while began.elapsed() < PROMOTION && same_primaries(&before, &self.now()) && is_under_way().await {
            tokio::time::sleep(MIN_PERIOD).await;
            let _ = self.learn_again().await;
        }
        self.promotion.send_replace(false);
        let is_promoted = !same_primaries(&before, &self.now());
        if !is_promoted {
            tracing::warn!(
                seconds = began.elapsed().as_secs(),
                "a promotion was announced and did not come; commands go to the primary as before; look at the log of \
                 the sentinels"
            );
        }
        is_promoted
    }

    /// Checks the role of every server, unless there is one server and never another. If a server is not a primary
    /// any more or does not answer, the servers are learned again.
    pub async fn check_roles(&self) {
        if self.is_fixed() {
            return;
        }
        let mut question = redis::pipe();
        question.cmd("ROLE");
        let view = self.now();
        let asked = view.map.servers().iter().map(|server| async {
            let answer = tokio::time::timeout(MAX_WAIT, server.send(&question, 0, question.len())).await;
            let is_primary = match answer {
                Ok(Ok(answers)) => match &answers[..] {
                    [Value::Array(role)] => {
                        matches!(role.first(), Some(Value::BulkString(name)) if name == b"master")
                    }
                    _ => true,
                },
                _ => false,
            };
            if !is_primary {
                self.doubt();
            }
        });
        join_all(asked).await;
    }

    /// See [`super::super::admission::Admission::share`].
    pub fn share(&self, instances: usize) {
        self.limit(|limits| {
            limits.instances = instances;
            // A later call withdraws permits that are in use.
            true
        });
    }

    /// Begins a storm of a partition that has this slot: see [`super::super::admission::Admission::storm`].
    pub fn begin_storm(&self, partition: u16, slot: u16) {
        self.limit(|limits| limits.storms.insert(partition, slot) != Some(slot));
    }

    /// Ends the storms of the servers that have none of these slots.
    pub fn end_storms(&self, slots: impl Iterator<Item = u16>) {
        let view = self.now();
        self.limit(|limits| {
            if limits.storms.is_empty() {
                return false;
            }
            let lasting: HashSet<Option<usize>> = slots.map(|slot| view.map.index(slot)).collect();
            let before = limits.storms.len();
            limits.storms.retain(|_, slot| lasting.contains(&view.map.index(*slot)));
            limits.storms.len() < before
        });
    }

    /// `change` answers whether it changed anything.
    fn limit(&self, change: impl FnOnce(&mut Limits) -> bool) {
        let mut limits = self.limits.lock();
        if change(&mut limits) {
            limits.apply(&self.now().map);
        }
    }
}

impl Limits {
    /// Sets the limits of each server. A storm delays only requests to the server of its partition.
    fn apply(&self, map: &SlotMap) {
        let storms: HashSet<usize> = self.storms.values().filter_map(|slot| map.index(*slot)).collect();
        for (index, server) in map.servers().iter().enumerate() {
            server.admission().share(self.instances);
            server.admission().storm(storms.contains(&index));
        }
    }
}

/// The addresses of the primaries, in order.
fn names(view: &ServerView) -> Vec<String> {
    let mut names: Vec<String> = view.primaries.iter().map(|primary| primary.at.to_string()).collect();
    names.sort();
    names
}

/// Whether the primaries are equal; ignores their replicas.
fn same_primaries(one: &ServerView, other: &ServerView) -> bool {
    names(one) == names(other)
}

/// Logs the servers that come and go.
fn report(before: &ServerView, after: &ServerView) {
    let (before, after) = (names(before), names(after));
    if before.is_empty() || before == after {
        return;
    }
    tracing::info!(before = before.join(","), after = after.join(","), "the primaries of redis changed");
}

#[cfg(test)]
mod tests;
