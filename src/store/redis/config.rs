//! The configuration of the engine on Redis.

use std::fmt;
use std::time::Duration;

#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// `redis://host:port/db`, `rediss://…` or `redis+unix:///path`.
    pub url: String,
    /// The password, if the address has none.
    pub password: Option<String>,
    /// The begin of every key.
    pub prefix: String,
    /// The number of partitions of a new fleet; an existing fleet keeps its number.
    pub partitions: u16,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            url: "redis://127.0.0.1:6379/0".into(),
            password: None,
            prefix: "rollcall".into(),
            partitions: 16,
        }
    }
}

/// The address without a password.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("redis", &self.url));
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        // The address of a socket has its password as a parameter.
        let host = host.split('?').next().unwrap_or(host);
        write!(f, "{scheme}://{host}")
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("address", &self.to_string())
            .field("prefix", &self.prefix)
            .field("partitions", &self.partitions)
            .finish_non_exhaustive()
    }
}

/// A busy server takes some ten milliseconds for a batch of 500 units; a server without an answer after this time
/// counts as unreachable.
pub const RESPONSE: Duration = Duration::from_secs(5);
pub const CONNECT: Duration = Duration::from_secs(2);
