//! The broker within the process: devices connect straight to Rollcall, and no other broker has to be
//! installed. It is for one machine; a fleet that outgrows it moves its files of users and rules to Mosquitto,
//! unchanged.
//!
//! Intake connects to it over loopback like to any other broker: there is no second path for a
//! heartbeat. It does so on a port of its own, with a password that is new at each start: devices
//! can take neither its place nor its session.
//!
//! The broker keeps messages in memory. Messages that it loses when the process ends were not heard, and
//! that time is blind like any other.
//!
//! # What devices may do without a file of rules
//! They may publish and subscribe to all topics except `rollcall/#`, where Rollcall proves that it hears, and
//! `$…`, which are the broker's own. On loopback any client may connect; on any other address the broker
//! requires a password file or client certificates, and refuses to start without.
//!
//! # Limits
//! A device that sends faster than its rate is read more slowly. All devices are read more slowly while intake takes
//! fewer messages than arrive. No message is dropped for it: at MQTT 3.1.1 every
//! refusal of a message reads as success. Large packets wait for one another. A device that does not read
//! the messages that it subscribed to is disconnected, and so is one that violates the protocol. No message is
//! retained, and no session of a device outlives its connection.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::telemetry::Telemetry;

#[cfg(feature = "broker")]
mod access_control;
#[cfg(feature = "broker")]
mod access_rules;
#[cfg(feature = "broker")]
mod authentication;
#[cfg(feature = "broker")]
mod backpressure;
#[cfg(feature = "broker")]
mod client_connection;
#[cfg(feature = "broker")]
mod client_stream;
#[cfg(feature = "broker")]
mod frames;
#[cfg(feature = "broker")]
mod pending;
#[cfg(feature = "broker")]
mod server;
#[cfg(not(feature = "broker"))]
#[path = "broker/without.rs"]
mod server;
#[cfg(feature = "broker")]
mod users;

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

/// The user name of intake's own client.
const INSIDE: &str = "rollcall-inside";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where devices connect in the clear.
    pub listen: Option<SocketAddr>,
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
}

/// Settings of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    pub listen: SocketAddr,
    /// Its certificates, PEM, its own first.
    pub cert_file: PathBuf,
    /// Its private key, PEM.
    pub key_file: PathBuf,
    /// The authority of the certificate that each client must have, PEM.
    pub client_ca_file: Option<PathBuf>,
}

impl Config {
    /// The errors of this configuration, each in a sentence with advice.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let certified = self.tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some());
        let known = self.password_file.is_some();
        for (option, address, safe) in [
            ("broker.listen", self.listen, known),
            ("broker.tls_listen", self.tls.as_ref().map(|tls| tls.listen), known || certified),
        ] {
            if let Some(address) = address.filter(|address| !address.ip().is_loopback() && !safe) {
                problems.push(format!(
                    "{option}: every client that reaches {address} can pretend to be a device; set \
                     broker.password_file{}, or listen on 127.0.0.1",
                    if option.ends_with("tls_listen") { " or broker.client_ca_file" } else { "" }
                ));
            }
        }
        if self.listen.is_none() && self.tls.is_none() {
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

/// How intake connects.
#[derive(Clone)]
pub struct IntakeEndpoint {
    /// The broker's address on loopback, for intake alone.
    pub url: String,
    /// The addresses that devices use, for people.
    pub shown: String,
    /// User name and password; they allow every topic, from this machine.
    pub credentials: (String, String),
}

/// A broker that listens and does not serve yet.
pub struct Broker {
    server: server::Server,
    endpoint: IntakeEndpoint,
}

impl Broker {
    /// # Errors
    /// An address that is taken, a file that cannot be read, a configuration that is not safe; each with advice.
    pub async fn bind(config: &Config, telemetry: Arc<Telemetry>) -> anyhow::Result<Broker> {
        if let Some(problem) = config.problems().into_iter().next() {
            anyhow::bail!(problem);
        }
        let password = format!("{:032x}", rand::random::<u128>());
        let (server, address) = server::Server::bind(config, &password, telemetry).await?;
        let plain = config.listen.map(|address| format!("mqtt://{address}"));
        let secure = config.tls.as_ref().map(|tls| format!("mqtts://{}", tls.listen));
        let shown = plain.into_iter().chain(secure).collect::<Vec<_>>().join(" ");
        let credentials = (INSIDE.to_owned(), password);
        let endpoint = IntakeEndpoint { url: format!("mqtt://{address}"), shown, credentials };
        Ok(Broker { server, endpoint })
    }

    pub fn intake_endpoint(&self) -> IntakeEndpoint {
        self.endpoint.clone()
    }

    /// Serves until `stop`.
    pub async fn serve(self, stop: CancellationToken) -> anyhow::Result<()> {
        self.server.serve(stop).await
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
