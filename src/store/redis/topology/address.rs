//! `engine.url`: where the servers are, and how Rollcall logs in.
//!
//! | form | |
//! |---|---|
//! | `redis://[user:password@]host[:port][/db]` | one server; `rediss://` with TLS |
//! | `redis+unix:///path[?db=…&user=…&pass=…]` | one server, through a socket of this machine |
//! | `redis-sentinel://[user:password@]host[:port],…/service[/db]` | the primary that these sentinels name; `rediss-sentinel://` with TLS, to the sentinels too |
//! | `redis-cluster://[user:password@]host[:port],…` | a cluster, of which these are some nodes; `rediss-cluster://` with TLS |
//!
//! User and password are for the Redis servers. The characters `/ ? # @ : %` in them are percent-encoded.
//!
//! # Why errors quote little
//! Errors are logged. A password with a `/` that is not encoded looks like a host and a path, so an error shows a part
//! of the address only if no secret can be in it.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use redis::{ConnectionAddr, IntoConnectionInfo};

/// Every scheme.
pub const SCHEMES: [&str; 8] = [
    "redis",
    "rediss",
    "redis+unix",
    "unix",
    "redis-sentinel",
    "rediss-sentinel",
    "redis-cluster",
    "rediss-cluster",
];
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// How the servers belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    Single,
    Sentinel {
        /// The name by which the sentinels know the primary and its replicas.
        service: String,
    },
    Cluster,
}

/// A server, by name or IP address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// A name or an IP address, IPv6 without brackets; or the path of a socket, which has the port 0.
    pub host: String,
    pub port: u16,
}

/// `host:port`, with brackets around an IPv6 address.
impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port, self.host.contains(':')) {
            (0, _) => f.write_str(&self.host),
            (port, true) => write!(f, "[{}]:{port}", self.host),
            (port, false) => write!(f, "{}:{port}", self.host),
        }
    }
}

impl HostPort {
    /// Parses `host:port` as a server writes it: an IPv6 address may have brackets, and the host may be empty.
    pub fn parse(text: &str) -> Option<HostPort> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(HostPort { host, port: port.parse().ok()? })
    }
}

/// `engine.url`, parsed. Displayed without user and password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    pub mode: Mode,
    /// The server, the sentinels, or some nodes of the cluster; empty only with a socket.
    pub servers: Vec<HostPort>,
    /// The path of a socket, instead of a server.
    pub socket: Option<PathBuf>,
    pub user: Option<String>,
    pub password: Option<String>,
    pub database: i64,
    pub has_tls: bool,
    shown: String,
}

/// Why an address is not valid, and what to write. The text begins with a verb: its subject is the option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedisAddressError {
    #[error("is not an address; write redis://host:6379/0")]
    Form,
    #[error("has the scheme {0}://, which is unknown; known are {known}://", known = SCHEMES.join("://, "))]
    Scheme(String),
    #[error("{0}")]
    Part(String),
}

impl RedisAddress {
    pub fn parse(url: &str) -> Result<RedisAddress, RedisAddressError> {
        let (scheme, rest) = url.split_once("://").ok_or(RedisAddressError::Form)?;
        let (mode, has_tls) = match scheme {
            "redis" | "rediss" if rest.contains(['?', '#']) && !rest.ends_with("#insecure") => {
                return part(format!(
                    "has parameters after ? or #; {scheme}:// takes none: the database follows a /, and in a user or a \
                     password write %3F or %23 for these"
                ));
            }
            "redis" | "rediss" | "redis+unix" | "unix" => return single(url, rest),
            "redis-sentinel" => (Mode::Sentinel { service: String::new() }, false),
            "rediss-sentinel" => (Mode::Sentinel { service: String::new() }, true),
            "redis-cluster" => (Mode::Cluster, false),
            "rediss-cluster" => (Mode::Cluster, true),
            other if is_scheme(other) => return Err(RedisAddressError::Scheme(other.to_owned())),
            _ => return Err(RedisAddressError::Form),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if path.contains('@') {
            return part(
                "holds an @ after a /, ? or #; in a user or a password write %2F, %3F or %23 for these",
            );
        }
        if path.contains(['?', '#']) {
            return part(format!("has parameters after ? or #; {scheme}:// takes none"));
        }
        let (login, list) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let path = path.strip_prefix('/').unwrap_or(path);
        let (mode, database) = match mode {
            Mode::Sentinel { .. } => service(scheme, path)?,
            _ if matches!(path, "" | "0") => (mode, 0),
            _ => return part("names a database; a cluster has only database 0: remove what follows the /"),
        };
        let port = if mode == Mode::Cluster { PORT } else { SENTINEL_PORT };
        Ok(RedisAddress {
            mode,
            servers: servers(scheme, list, port)?,
            socket: None,
            user: decoded(user)?,
            password: decoded(password)?,
            database,
            has_tls,
            shown: without_login(url),
        })
    }
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

/// An address for display: without user, password and parameters, even if it is not valid.
pub fn without_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
    // The path of a socket may contain an @.
    let is_socket = matches!(scheme, "redis+unix" | "unix") && rest.starts_with('/');
    let host = if is_socket { rest } else { rest.rsplit_once('@').map_or(rest, |(_, host)| host) };
    // The address of a socket has its password among the parameters.
    let host = host.split('?').next().unwrap_or(host);
    format!("{scheme}://{host}")
}

fn part<T>(text: impl Into<String>) -> Result<T, RedisAddressError> {
    Err(RedisAddressError::Part(text.into()))
}

/// Whether a text before `://` is a misspelt scheme rather than something secret.
fn is_scheme(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    !text.is_empty() && text.len() <= 24 && text.chars().all(plain)
}

/// The address of one server, parsed by the library.
fn single(url: &str, rest: &str) -> Result<RedisAddress, RedisAddressError> {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    if authority.rsplit('@').next().unwrap_or(authority).contains(',') {
        return part(
            "names several servers; write redis-sentinel://host:26379,host:26379/service or \
             redis-cluster://host:6379,host:6379",
        );
    }
    let not_valid = |error: redis::RedisError| match error.to_string() {
        text if text.contains("Invalid database number") => RedisAddressError::Part(
            "has a database that is not a number; write one such as /0, or leave it out".to_owned(),
        ),
        text => RedisAddressError::Part(format!("is not an address of a Redis server: {text}")),
    };
    let info = url.into_connection_info().map_err(not_valid)?;
    let (server, socket, has_tls) = match info.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            return part(
                "asks for TLS without checks; remove #insecure and name the authority in engine.ca_file",
            );
        }
        ConnectionAddr::Tcp(host, port) => (Some((host, *port)), None, false),
        ConnectionAddr::TcpTls { host, port, .. } => (Some((host, *port)), None, true),
        ConnectionAddr::Unix(path) => (None, Some(path.clone()), false),
        _ => return Err(RedisAddressError::Form),
    };
    let settings = info.redis_settings();
    if settings.db() < 0 {
        return part("names a database below 0; write a number from 0 upwards");
    }
    Ok(RedisAddress {
        mode: Mode::Single,
        servers: server.map(|(host, port)| HostPort { host: host.clone(), port }).into_iter().collect(),
        socket,
        user: settings.username().map(str::to_owned),
        password: settings.password().map(str::to_owned),
        database: settings.db(),
        has_tls,
        shown: without_login(url),
    })
}

/// The service and the database in the path of sentinels.
fn service(scheme: &str, path: &str) -> Result<(Mode, i64), RedisAddressError> {
    let (service, database) = path.split_once('/').unwrap_or((path, ""));
    if service.is_empty() {
        return part(format!(
            "lacks the name of the service that the sentinels watch; write {scheme}://host:{SENTINEL_PORT}/mymaster"
        ));
    }
    // Sentinel accepts only these characters in a name.
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if !service.chars().all(plain) {
        return part("names a service with other characters than A-Z, a-z, 0-9, ., - and _");
    }
    let database = match database {
        "" => 0,
        text => whole_number::<u32>(text).map_or_else(
            || part("has a database that is not a number; write it after the service, such as /mymaster/0"),
            Ok,
        )?,
    };
    Ok((Mode::Sentinel { service: service.to_owned() }, database.into()))
}

fn servers(scheme: &str, list: &str, default_port: u16) -> Result<Vec<HostPort>, RedisAddressError> {
    if list.is_empty() {
        return part(format!("names no server; write {scheme}://host:{default_port},host:{default_port}"));
    }
    let mut servers = Vec::new();
    for (index, text) in list.split(',').enumerate() {
        let wrong =
            |what: &str| RedisAddressError::Part(format!("has an error in server {}: {what}", index + 1));
        let server = server(text, default_port).map_err(wrong)?;
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    Ok(servers)
}

fn server(text: &str, default_port: u16) -> Result<HostPort, &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("its address lacks the ]")?;
            let host: Ipv6Addr = host.parse().map_err(|_| "only an IPv6 address is written in brackets")?;
            (host.to_string(), port)
        }
        None => {
            let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            if text.parse::<Ipv6Addr>().is_ok() {
                return Err("an IPv6 address is written in brackets, such as [::1]:6379");
            }
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            if host.is_empty() || host.len() > 253 || !host.chars().all(plain) {
                return Err("a host is a name or an IP address; a list has one comma between two servers");
            }
            (host.to_owned(), port)
        }
    };
    if matches!(host.as_str(), "0.0.0.0" | "::") {
        return Err("no server can be reached at 0.0.0.0 or ::, which are for listening");
    }
    let number = "its port is not a number from 1 to 65535";
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => default_port,
        None => return Err("a : stands before the port"),
        Some(port) => whole_number(port).filter(|port| *port > 0).ok_or(number)?,
    };
    Ok(HostPort { host, port })
}

/// A number of digits only: `parse` would also accept a sign.
fn whole_number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// A user or a password; `None` if it is empty.
fn decoded(text: &str) -> Result<Option<String>, RedisAddressError> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok((!text.is_empty()).then(|| text.into_owned())),
        Err(_) => part("has a user or a password that is no UTF-8 after %xx is decoded"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(address: &RedisAddress) -> String {
        address.servers.iter().map(HostPort::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_address_says_which_servers_there_are_and_how_they_belong_together() {
        let sentinel = || Mode::Sentinel { service: "mymaster".into() };
        for (url, mode, servers, database, has_tls) in [
            ("redis://127.0.0.1", Mode::Single, "127.0.0.1:6379", 0, false),
            ("redis://h:7000/3", Mode::Single, "h:7000", 3, false),
            ("redis://[::1]:7000", Mode::Single, "[::1]:7000", 0, false),
            ("rediss://h", Mode::Single, "h:6379", 0, true),
            ("redis+unix:///run/redis.sock?db=2", Mode::Single, "", 2, false),
            ("unix:///run/redis.sock", Mode::Single, "", 0, false),
            ("redis-sentinel://a/mymaster", sentinel(), "a:26379", 0, false),
            (
                "redis-sentinel://a,b:5,[::1],[fe80::1]:9/mymaster/4",
                sentinel(),
                "a:26379 b:5 [::1]:26379 [fe80::1]:9",
                4,
                false,
            ),
            ("redis-sentinel://a/mymaster/", sentinel(), "a:26379", 0, false),
            ("rediss-sentinel://a:1,a:1/mymaster", sentinel(), "a:1", 0, true),
            ("redis-cluster://a,b:7001", Mode::Cluster, "a:6379 b:7001", 0, false),
            ("redis-cluster://10.0.0.1:7000/", Mode::Cluster, "10.0.0.1:7000", 0, false),
            ("rediss-cluster://a.example.org/0", Mode::Cluster, "a.example.org:6379", 0, true),
        ] {
            let address = RedisAddress::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            let read = (&address.mode, list(&address), address.database, address.has_tls);
            assert_eq!(read, (&mode, servers.to_owned(), database, has_tls), "{url}");
            assert_eq!(address.socket.is_some(), servers.is_empty(), "{url}");
            assert_eq!((address.user, address.password), (None, None), "{url}");
        }
    }

    #[test]
    fn user_and_password_are_decoded_and_never_shown() {
        for (url, user, password, shown) in [
            ("redis://me:hunter2@h/1", Some("me"), Some("hunter2"), "redis://h/1"),
            (
                "redis+unix:///run/a@b?user=me&pass=hunter2",
                Some("me"),
                Some("hunter2"),
                "redis+unix:///run/a@b",
            ),
            ("redis-cluster://:hunter2@a,b", None, Some("hunter2"), "redis-cluster://a,b"),
            ("redis-cluster://me@a,b", Some("me"), None, "redis-cluster://a,b"),
            (
                "rediss-sentinel://m%40e:h%2Fu%3An@a:1/s",
                Some("m@e"),
                Some("h/u:n"),
                "rediss-sentinel://a:1/s",
            ),
            ("redis-sentinel://me:a@b:c@a/s/1", Some("me"), Some("a@b:c"), "redis-sentinel://a/s/1"),
        ] {
            let address = RedisAddress::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!((address.user.as_deref(), address.password.as_deref()), (user, password), "{url}");
            assert_eq!(address.to_string(), shown);
            assert_eq!(format!("{address:?}"), format!("Address({shown})"));
        }
    }

    #[test]
    fn an_error_says_what_is_wrong_and_holds_no_secret() {
        for (url, expected) in [
            ("", "is not an address"),
            ("localhost:6379", "is not an address"),
            ("hunter2 @://h", "is not an address"),
            ("redi://hunter2@h", "has the scheme redi://, which is unknown; known are redis://, rediss://"),
            ("redis://:hunter2@a:1,b:1", "names several servers; write redis-sentinel://"),
            ("redis://:hunter2@h:port", "is not an address of a Redis server"),
            ("redis://:hunter2@h/x", "has a database that is not a number"),
            ("redis://:hunter2@h/-1", "names a database below 0"),
            ("rediss://:hunter2@h/#insecure", "remove #insecure and name the authority in engine.ca_file"),
            ("redis-sentinel://:hunter2@a,b", "write redis-sentinel://host:26379/mymaster"),
            ("redis-sentinel://a//1", "lacks the name of the service"),
            ("redis-sentinel://a/my master", "names a service with other characters"),
            ("redis-sentinel://a/m/one", "has a database that is not a number"),
            ("redis-sentinel://a/m/+1", "has a database that is not a number"),
            ("redis-sentinel://a/m/1/2", "has a database that is not a number"),
            ("redis-sentinel:///mymaster", "names no server; write redis-sentinel://host:26379,host:26379"),
            ("redis-cluster://", "names no server; write redis-cluster://host:6379,host:6379"),
            ("redis-cluster://:hunter2@", "names no server"),
            ("redis-cluster://a,,b", "server 2: a host is a name"),
            ("redis-cluster://a, b", "server 2: a host is a name"),
            ("redis-cluster://a:hunter2", "server 1: its port is not a number from 1 to 65535"),
            ("redis-cluster://a:0", "server 1: its port is not a number"),
            ("redis-cluster://a:65536", "server 1: its port is not a number"),
            ("redis-cluster://a,b:+1", "server 2: its port is not a number"),
            ("redis-cluster://::1", "server 1: an IPv6 address is written in brackets"),
            ("redis-cluster://[::1", "server 1: its address lacks the ]"),
            ("redis-cluster://[::1]1", "server 1: a : stands before the port"),
            ("redis-cluster://[a]:1", "server 1: only an IPv6 address is written in brackets"),
            ("redis-cluster://0.0.0.0:1", "no server can be reached at 0.0.0.0"),
            ("redis-cluster://a/3", "names a database; a cluster has only database 0"),
            ("redis-cluster://a?protocol=2", "has parameters after ? or #"),
            ("redis-cluster://me:hun/ter2@a", "in a user or a password write %2F"),
            ("redis-cluster://me:%ff@a", "has a user or a password that is no UTF-8"),
        ] {
            let text = RedisAddress::parse(url).expect_err(url).to_string();
            assert!(text.contains(expected), "{url}: {text}\n--- expected\n{expected}");
            assert!(!text.contains("hunter2") && !text.contains("ter2"), "{text}");
        }
    }
}
