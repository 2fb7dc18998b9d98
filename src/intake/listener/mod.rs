//! The listener: devices connect straight to Rollcall, and no broker has to be installed. It is for one machine; a fleet
//! that outgrows it moves its files of users and rules to Mosquitto, unchanged.
//!
//! A message of a device goes straight into intake: the same reader, the same queue and the same recorder as for messages
//! of a broker elsewhere. It is acknowledged when it is recorded, and a request about a timer when it is applied. So
//! what was acknowledged is as safe as the engine keeps it, and what was not the device sends again. Messages are also
//! passed on to the clients that subscribed to them, byte by byte as they came.
//!
//! ```text
//! accept ─▶ handshake ─▶ connection: read, receive ─▶ door ─▶ queue ─▶ record
//!   ▲                        ▲     └─▶ router ─▶ sessions of subscribers  │
//!   └── tick, once a period  └───────────── receipts ◀────────────────────┘
//! ```
//!
//! # While the engine is away
//! Nothing is acknowledged. Connections stay open, and are read until as many of their messages wait as may
//! (see `connection.rs`); the ticks stop with the queue, so that this time is blind.
//!
//! # What devices may do without a file of rules
//! They may publish and subscribe to all topics except `rollcall/#`, which are Rollcall's, and
//! `$…`, which are the listener's own. On loopback any client may connect; on any other address the listener
//! requires a password file or client certificates, and refuses to start without.
//!
//! # Limits
//! A device that sends faster than its rates is read more slowly, and connections take turns. No message is dropped for
//! it: at MQTT 3.1.1 every refusal of a message reads as success. Large packets wait for one another. A device that does
//! not read the messages that it subscribed to is disconnected, and so is one that violates the protocol. What is
//! kept for clients that are away, in memory, is bounded in number, time and bytes.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::trust::ServerFiles;

#[cfg(feature = "broker")]
mod access_control;
#[cfg(feature = "broker")]
mod access_rules;
#[cfg(feature = "broker")]
mod authentication;
#[cfg(feature = "broker")]
mod bytes;
#[cfg(feature = "broker")]
mod codec;
#[cfg(feature = "broker")]
mod connection;
#[cfg(feature = "broker")]
mod door;
#[cfg(feature = "broker")]
mod encode;
#[cfg(feature = "broker")]
mod handshake;
#[cfg(feature = "broker")]
mod limits;
#[cfg(feature = "broker")]
mod names;
#[cfg(feature = "broker")]
mod properties;
#[cfg(feature = "broker")]
mod receipt;
#[cfg(feature = "broker")]
mod receive;
#[cfg(feature = "broker")]
mod router;
#[cfg(feature = "broker")]
mod server;
#[cfg(not(feature = "broker"))]
#[path = "without.rs"]
mod server;
#[cfg(feature = "broker")]
mod session;
#[cfg(feature = "broker")]
mod sessions;
#[cfg(feature = "broker")]
mod shared;
#[cfg(feature = "broker")]
mod users;
#[cfg(feature = "broker")]
mod websocket;

#[cfg(feature = "broker")]
pub(super) use door::Door;
#[cfg(feature = "broker")]
pub(super) use receipt::Receipt;
pub use server::Listener;
#[cfg(feature = "broker")]
pub(super) use server::{Pace, answers};

/// The error of a configuration that needs the broker, in a program without it.
pub const NOT_BUILT_IN: &str = "this rollcall is built without the in-process broker; build it with the feature `broker`, or \
                                set mqtt.url to a broker elsewhere";

/// Why a text is not a file of users, and why it is not a file of rules: for tests of the parsers.
#[cfg(feature = "broker")]
#[doc(hidden)]
pub fn refusals(text: &str) -> Vec<String> {
    let (users, rules) = (users::Users::parse(text).err(), access_rules::AccessRules::parse(text).err());
    users.into_iter().chain(rules).collect()
}

/// Reads packets of clients out of any bytes, as a connection does, for tests: how many, and why the rest is none.
#[cfg(feature = "broker")]
#[doc(hidden)]
pub fn packets_of_any(mut bytes: &[u8], is_five: bool) -> (usize, Option<&'static str>) {
    let version = if is_five { bytes::Version::Five } else { bytes::Version::Four };
    let mut count = 0;
    loop {
        let frame = match codec::frame(bytes, 1 << 20, (count > 0).then_some(version)) {
            Ok(codec::Arrived::Whole(frame)) => frame,
            Ok(codec::Arrived::Part(_)) => return (count, None),
            Err(violation) => return (count, Some(violation.why)),
        };
        // The first one may be either.
        let connects = frame.connect();
        if let Err(codec::BadConnect::NotMqtt(why)) = connects
            && let Err(violation) = frame.read(version)
        {
            return (count, Some(if why.is_empty() { why } else { violation.why }));
        }
        (bytes, count) = (&bytes[frame.length..], count + 1);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where devices connect in the clear.
    pub listen: Option<SocketAddr>,
    /// Where they connect within WebSockets, in the clear.
    pub websocket_listen: Option<SocketAddr>,
    /// Where devices connect with TLS, and by which certificate.
    pub tls: Option<Tls>,
    /// Users, as `mosquitto_passwd` writes them.
    pub password_file: Option<PathBuf>,
    /// Rules, as in Mosquitto's `acl_file`.
    pub rules_file: Option<PathBuf>,
    /// The prefix of Rollcall's own client ids, which no device may use.
    pub own_client_id: String,
    /// The most devices at a time; others are refused.
    pub max_connections: usize,
    /// The largest packet in bytes; a device that sends a larger one is disconnected.
    pub max_packet: usize,
    /// The most messages a second from one connection, which is held back to it. 0: any number.
    pub max_rate: u32,
    /// The most bytes a second from one connection, likewise.
    pub max_bytes_per_second: u32,
}

/// Settings of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    pub listen: Option<SocketAddr>,
    /// Within WebSockets.
    pub websocket_listen: Option<SocketAddr>,
    /// Its certificate and key.
    pub files: ServerFiles,
    /// The authority of the certificate that each client must have, PEM.
    pub client_ca_file: Option<PathBuf>,
}

impl Config {
    /// The addresses, each with its option and the scheme of its URLs.
    fn addresses(&self) -> impl Iterator<Item = (&'static str, &'static str, SocketAddr)> {
        let tls = self.tls.as_ref();
        let all = [
            ("listen", "mqtt", self.listen),
            ("tls_listen", "mqtts", tls.and_then(|tls| tls.listen)),
            ("websocket_listen", "ws", self.websocket_listen),
            ("websocket_tls_listen", "wss", tls.and_then(|tls| tls.websocket_listen)),
        ];
        all.into_iter().filter_map(|(option, scheme, address)| Some((option, scheme, address?)))
    }

    /// The errors of this configuration, each in a sentence with advice.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let certified = self.tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some());
        let known = self.password_file.is_some();
        for (option, _, address) in self.addresses() {
            let is_tls = option.ends_with("tls_listen");
            let is_safe = known || is_tls && certified;
            if !address.ip().is_loopback() && !is_safe {
                problems.push(format!(
                    "broker.{option}: every client that reaches {address} can pretend to be a device; set \
                     broker.password_file{}, or listen on 127.0.0.1",
                    if is_tls { " or broker.client_ca_file" } else { "" }
                ));
            }
        }
        if self.addresses().next().is_none() {
            problems.push("broker: set broker.listen or broker.tls_listen".to_owned());
        }
        if self.max_connections == 0 {
            problems.push("broker.max_connections: at least 1".to_owned());
        }
        if !(1024..=16 << 20).contains(&self.max_packet) {
            problems.push("broker.max_packet: between 1024 and 16777216 bytes".to_owned());
        }
        problems
    }
}

#[cfg(feature = "broker")]
fn read<T>(
    path: Option<&std::path::Path>,
    option: &str,
    parse: fn(&str) -> Result<T, String>,
) -> anyhow::Result<Option<T>> {
    use anyhow::{Context, anyhow};
    let Some(path) = path else { return Ok(None) };
    let read = crate::small_file::read_file(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let text = read.with_context(|| format!("{option}: cannot read {}", path.display()))?;
    parse(&text).map(Some).map_err(|why| anyhow!("{option}: {}: {why}", path.display()))
}
