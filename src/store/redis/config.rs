//! What the engine on Redis needs to know.

use std::fmt;
use std::time::Duration;

/// What the engine on Redis needs to know.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// `redis://host:port/db`, `rediss://…` or `redis+unix:///path`.
    pub url: String,
    /// The password, if the address does not hold one.
    pub password: Option<String>,
    /// What every key begins with.
    pub prefix: String,
    /// Over how many partitions a new fleet is spread; a fleet that exists keeps its number.
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

/// The address, without a password that may stand in it.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("redis", &self.url));
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        // A socket takes its password as a parameter.
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

/// A batch of 500 units takes a busy server some ten milliseconds; one that does not answer in
/// this time is not there.
pub const RESPONSE: Duration = Duration::from_secs(5);
pub const CONNECT: Duration = Duration::from_secs(2);
