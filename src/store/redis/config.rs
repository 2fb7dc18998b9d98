//! The configuration of the engine on Redis.

use std::fmt;
use std::time::Duration;

use redis::AsyncConnectionConfig;

use super::tags::HashTags;
use super::topology::address::{Mode, RedisAddress, without_login};
use crate::trust::Pem;

#[derive(Clone, PartialEq, Eq)]
pub struct RedisConfig {
    /// The servers: see [`RedisAddress`].
    pub url: String,
    /// The password, if the address has none.
    pub password: Option<String>,
    /// The certificates, for an address with TLS.
    pub tls: Pem,
    /// The login at sentinels, which is not the login at the servers.
    pub sentinel_username: Option<String>,
    pub sentinel_password: Option<String>,
    /// The first part of the name of every key.
    pub prefix: String,
    /// The number of partitions. `None`: the number of an existing fleet; a new fleet gets a default.
    pub partitions: Option<u16>,
    /// The number of replicas that must have a transition before receivers are notified of it. `None`: 1 with
    /// Sentinel and Cluster if there are replicas, else 0.
    pub wait_replicas: Option<u8>,
    /// How long replicas may take for that.
    pub wait_timeout: Duration,
    /// The `maxmemory-policy` that servers may have beside `noeviction`; empty: no other.
    pub allow_eviction: String,
}

impl Default for RedisConfig {
    fn default() -> RedisConfig {
        RedisConfig {
            url: "redis://127.0.0.1:6379/0".into(),
            password: None,
            tls: Pem::default(),
            sentinel_username: None,
            sentinel_password: None,
            prefix: "rollcall".into(),
            partitions: None,
            wait_replicas: None,
            wait_timeout: Duration::from_millis(100),
            allow_eviction: String::new(),
        }
    }
}

impl RedisConfig {
    /// The number of partitions and the hash tags of a new fleet.
    pub(super) fn new_fleet(&self) -> (u16, HashTags) {
        let mode = RedisAddress::parse(&self.url).map(|address| address.mode);
        let (partitions, tags) = match mode {
            Ok(Mode::Cluster) => (CLUSTER_PARTITIONS, HashTags::Spread),
            _ => (PARTITIONS, HashTags::Plain),
        };
        (self.partitions.unwrap_or(partitions), tags)
    }
}

/// The default number of partitions of a new fleet.
const PARTITIONS: u16 = 16;
/// The default number of partitions of a new fleet in a cluster: a whole share for each of 2, 3, 4, 6, 8, 12, 16, 24
/// or 48 primaries.
const CLUSTER_PARTITIONS: u16 = 48;

/// The address without user and password.
impl fmt::Display for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_login(&self.url))
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("address", &self.to_string())
            .field("prefix", &self.prefix)
            .field("partitions", &self.partitions)
            .finish_non_exhaustive()
    }
}

/// A busy server takes some ten milliseconds for a batch of 500 units; without an answer within this time, a server
/// counts as unreachable.
pub const RESPONSE: Duration = Duration::from_secs(5);
pub const CONNECT: Duration = Duration::from_secs(2);

/// A connection with these limits.
pub fn patience() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(Some(RESPONSE))
}
