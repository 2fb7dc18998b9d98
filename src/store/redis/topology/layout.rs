//! The known facts about the servers: their number, replicas, slots and distance.

use std::sync::Arc;
use std::time::Duration;

use super::discovery::{Observer, Primary};
use super::{HostPort, RedisServer, Topology};
use crate::store::Result;

impl Topology {
    /// Splits items by the server of their slots, in order; one part while the servers are unknown.
    pub fn by_server<T>(&self, items: impl IntoIterator<Item = T>, slot: impl Fn(&T) -> u16) -> Vec<Vec<T>> {
        let view = self.servers.now();
        if view.map.only().is_some() {
            return vec![items.into_iter().collect()];
        }
        view.map.split(items, slot).into_iter().map(|(_, part)| part).collect()
    }

    /// How many primaries there are now.
    pub fn count(&self) -> usize {
        self.servers.now().map.servers().len()
    }

    /// Whether there may be several primaries at once, each with a part of the keys.
    pub fn has_parts(&self) -> bool {
        self.servers.has_parts()
    }

    /// Whether there is one server, and never another.
    pub fn is_fixed(&self) -> bool {
        self.servers.is_fixed()
    }

    pub fn has_replicas(&self, server: &RedisServer) -> bool {
        !self.replicas(server).is_empty()
    }

    /// Whether a replica that is not connected may replace a primary.
    pub fn lacks_replicas(&self, server: &RedisServer) -> bool {
        self.primary(server, |primary| primary.lacks_replicas).unwrap_or(false)
    }

    /// The primary that keeps `{hearing}`; its clock is the clock of the fleet. `None` while no primary keeps it.
    pub fn server_of_hearing(&self) -> Option<Arc<RedisServer>> {
        self.servers.now().map.server(self.slot).cloned()
    }

    /// The replicas of a primary that are connected, as the other servers know them.
    pub fn replicas(&self, server: &RedisServer) -> Vec<HostPort> {
        self.primary(server, |primary| primary.replicas.clone()).unwrap_or_default()
    }

    fn primary<T>(&self, server: &RedisServer, of: impl Fn(&Primary) -> T) -> Option<T> {
        let view = self.servers.now();
        view.primaries.iter().find(|primary| primary.at.to_string() == server.address()).map(of)
    }

    /// The number of primaries; 1 while they are unknown.
    pub fn primaries(&self) -> usize {
        self.servers.now().map.servers().len().max(1)
    }

    /// Whether a primary has this address now.
    pub fn is_primary(&self, address: &str) -> bool {
        self.servers.now().map.servers().iter().any(|server| server.address() == address)
    }

    /// Learns the servers again, unless they were learned a moment ago.
    pub async fn learn_again(&self) -> Result<()> {
        self.servers.learn_again().await
    }

    /// A connection for single requests to a server, such as a replica.
    pub fn open(&self, at: &HostPort) -> Result<Arc<RedisServer>> {
        self.servers.connect(at).map(Arc::new)
    }

    /// See [`Servers::learn_failure`](super::servers::Servers::learn_failure).
    pub fn learn_failure(&self) -> Option<String> {
        self.servers.learn_failure()
    }

    /// See [`super::discovery::Discovery::observers`].
    pub async fn observers(&self) -> Vec<Observer> {
        self.servers.observers().await
    }

    /// The number of slots of the cluster without a primary.
    pub fn missing_slots(&self) -> usize {
        self.servers.now().map.missing()
    }

    pub fn is_same_server(&self, one: u16, other: u16) -> bool {
        let view = self.servers.now();
        view.map.index(one) == view.map.index(other)
    }

    /// Whether a request is on the network for longer than a server works on it.
    pub fn is_far(&self) -> bool {
        self.servers.now().map.servers().iter().any(|server| server.admission().is_far())
    }

    /// The shortest recent time from a request to its answer, if a server is far away; otherwise zero.
    pub fn round_trip(&self) -> Duration {
        let view = self.servers.now();
        view.map.servers().iter().map(|server| server.round_trip()).max().unwrap_or_default()
    }
}
