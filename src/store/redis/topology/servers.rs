//! The servers that are used now. They are learned at the first call, when a call finds that they are others, when
//! the topology reports a change, and from time to time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::address::HostPort;
use super::discovery::{Discovery, Observer, Primary};
use super::errors::classify;
use super::server::Server;
use super::slots::SlotMap;
use crate::store::{EngineError, Result};
use crate::telemetry::Telemetry;

/// The longest time between two questions to a topology that can change.
const PERIOD: Duration = Duration::from_secs(2);
/// The shortest.
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);
/// A server that does not say its role within this time is asked at the next renewal.
const PATIENCE: Duration = Duration::from_millis(200);

/// The servers as they were learned last.
#[derive(Default)]
pub struct View {
    /// Another number for every change.
    pub number: u64,
    pub map: SlotMap,
    pub primaries: Vec<Primary>,
}

pub struct Servers {
    discovery: Box<dyn Discovery>,
    view: watch::Sender<Arc<View>>,
    /// When the servers were learned last. Held while they are learned.
    learned: tokio::sync::Mutex<Option<Instant>>,
    doubt: Notify,
    limits: Mutex<Limits>,
    telemetry: Arc<Telemetry>,
}

/// What a new server has to be told: see `admission.rs`.
#[derive(Clone, Copy)]
struct Limits {
    instances: usize,
    is_storm: bool,
}

impl Servers {
    pub fn new(discovery: Box<dyn Discovery>, telemetry: Arc<Telemetry>) -> Servers {
        Servers {
            discovery,
            view: watch::Sender::default(),
            learned: Default::default(),
            doubt: Notify::new(),
            limits: Mutex::new(Limits { instances: 1, is_storm: false }),
            telemetry,
        }
    }

    /// Whether there is one server, and never another.
    pub fn is_fixed(&self) -> bool {
        self.discovery.is_fixed()
    }

    /// The servers now; none before the first call of [`Servers::view`].
    pub fn now(&self) -> Arc<View> {
        self.view.borrow().clone()
    }

    /// The servers, learned if they are not known yet.
    pub async fn view(&self) -> Result<Arc<View>> {
        let view = self.now();
        if view.number > 0 {
            return Ok(view);
        }
        self.learn(0).await?;
        Ok(self.now())
    }

    pub fn changes(&self) -> watch::Receiver<Arc<View>> {
        self.view.subscribe()
    }

    /// Learns the servers, unless they are others than in the view with the number `seen` already.
    pub async fn learn(&self, seen: u64) -> Result<()> {
        let mut learned = self.learned.lock().await;
        let before = self.now();
        if before.number != seen || learned.is_some_and(|at| at.elapsed() < SHORTEST_PERIOD) {
            return Ok(());
        }
        let known: Vec<HostPort> = before
            .primaries
            .iter()
            .flat_map(|primary| [&primary.at].into_iter().chain(&primary.replicas))
            .cloned()
            .collect();
        let primaries = self.discovery.learn(&known).await;
        *learned = Some(Instant::now());
        let primaries = primaries?;
        if primaries == before.primaries {
            return Ok(());
        }
        let after = self.with(&before, primaries)?;
        report(&before, &after);
        let servers = after.map.servers().iter();
        self.telemetry.engine_servers(servers.map(|one| (one.address().to_owned(), one.answers())).collect());
        self.view.send_replace(Arc::new(after));
        Ok(())
    }

    /// A view of these primaries. Servers that were known keep their connections.
    fn with(&self, before: &View, primaries: Vec<Primary>) -> Result<View> {
        let known: HashMap<&str, &Arc<Server>> =
            before.map.servers().iter().map(|server| (server.address(), server)).collect();
        let limits = *self.limits.lock().expect("nothing panics under this lock");
        let mut shares = Vec::with_capacity(primaries.len());
        for primary in &primaries {
            let address = primary.at.to_string();
            let server = match known.get(address.as_str()) {
                Some(server) => (*server).clone(),
                None => Arc::new(self.connect(&primary.at)?),
            };
            limits.apply(&server);
            shares.push((server, primary.slots.clone()));
        }
        let map = match shares.as_slice() {
            [(server, None)] => SlotMap::single(server.clone()),
            _ => SlotMap::new(
                shares.into_iter().map(|(server, slots)| (server, slots.unwrap_or_default())).collect(),
            ),
        };
        Ok(View { number: before.number + 1, map, primaries })
    }

    /// The servers beside those that hold the fleet: see [`Discovery::observers`].
    pub async fn observers(&self) -> Vec<Observer> {
        self.discovery.observers().await
    }

    pub fn connect(&self, at: &HostPort) -> Result<Server> {
        let address = at.to_string();
        let client = self.discovery.client(at).map_err(|error| classify(&address, &error))?;
        Server::new(address.clone(), client).map_err(|error| classify(&address, &error))
    }

    /// The server at an address to which another server refers, which need not have slots yet.
    pub fn at(&self, address: &str) -> Result<Arc<Server>> {
        let view = self.now();
        if let Some(server) = view.map.servers().iter().find(|server| server.address() == address) {
            return Ok(server.clone());
        }
        let parsed = address
            .rsplit_once(':')
            .and_then(|(host, port)| Some(HostPort { host: host.to_owned(), port: port.parse().ok()? }));
        let at = parsed.ok_or_else(|| {
            EngineError::Unavailable(format!("redis refers to {address:?}, which is no address"))
        })?;
        Ok(Arc::new(self.connect(&at)?))
    }

    /// A call failed in a way that other servers would explain.
    pub fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Learns the servers again and again. Never ends.
    pub async fn follow(&self) {
        loop {
            tokio::select! {
                () = self.discovery.changed() => {}
                () = self.doubt.notified() => {}
                () = tokio::time::sleep(PERIOD) => {}
            }
            // A failover takes seconds: the calls that fail meanwhile doubt again.
            tokio::time::sleep(SHORTEST_PERIOD).await;
            if let Err(why) = self.learn(self.now().number).await {
                tracing::debug!("the servers cannot be learned: {why}");
            }
        }
    }

    /// Asks every server for its role, unless it never changes. One that is no primary any more is in doubt.
    pub async fn check_roles(&self) {
        if self.is_fixed() {
            return;
        }
        let role = redis::cmd("ROLE");
        let view = self.now();
        let asked = view.map.servers().iter().map(|server| async {
            let answer = tokio::time::timeout(PATIENCE, server.send_one(&role)).await;
            let Ok(Ok(Value::Array(role))) = answer else { return };
            if !matches!(role.first(), Some(Value::BulkString(name)) if name == b"master") {
                self.doubt();
            }
        });
        join_all(asked).await;
    }

    /// See [`super::super::admission::Admission::share`].
    pub fn share(&self, instances: usize) {
        self.limit(|limits| limits.instances = instances);
    }

    /// See [`super::super::admission::Admission::storm`].
    pub fn storm(&self, is_on: bool) {
        self.limit(|limits| limits.is_storm = is_on);
    }

    fn limit(&self, change: impl FnOnce(&mut Limits)) {
        let mut limits = self.limits.lock().expect("nothing panics under this lock");
        change(&mut limits);
        for server in self.now().map.servers() {
            limits.apply(server);
        }
    }
}

impl Limits {
    fn apply(&self, server: &Server) {
        server.admission().share(self.instances);
        server.admission().storm(self.is_storm);
    }
}

/// Logs the servers that come and go.
fn report(before: &View, after: &View) {
    let names = |view: &View| -> Vec<String> {
        let mut names: Vec<String> = view.primaries.iter().map(|primary| primary.at.to_string()).collect();
        names.sort();
        names
    };
    let (before, after) = (names(before), names(after));
    if before.is_empty() || before == after {
        return;
    }
    tracing::info!(
        before = before.join(","),
        after = after.join(","),
        "the primaries of redis are others now"
    );
}
