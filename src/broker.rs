//! The broker within the process: devices connect straight to Rollcall, and nothing else has to be
//! installed. For one machine; a fleet that outgrows it takes its users and rules to Mosquitto,
//! whose formats they have.
//!
//! Intake connects to it over loopback like to any other broker: there is no second path for a
//! heartbeat. It does so under a name of its own, with a password that is made anew at each start.
//!
//! The broker keeps what it has in memory. What it loses when the process ends was not heard, and
//! that time is blind like any other.
//!
//! # What devices may do without a file of rules
//! Publish and subscribe to everything but `rollcall/…`, where Rollcall proves that it hears, and
//! `$…`, which is the broker's own. On loopback anybody may connect; on any other address the broker
//! demands a password file or client certificates, and refuses to start without.

use std::net::SocketAddr;
use std::path::PathBuf;

use tokio_util::sync::CancellationToken;

mod logins;
mod rules;
mod server;
mod users;

/// The name of intake's own client.
const INSIDE: &str = "rollcall-inside";

/// What the broker needs to know.
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
    /// The most clients at a time; more are refused.
    pub max_connections: usize,
    /// The largest packet in bytes; who sends a larger one is disconnected.
    pub max_packet: usize,
    /// The most messages a second from one client; more are refused. 0: any number.
    pub max_rate: u32,
}

/// How the broker speaks TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Where.
    pub listen: SocketAddr,
    /// Its certificates, PEM, its own first.
    pub cert_file: PathBuf,
    /// Its private key, PEM.
    pub key_file: PathBuf,
    /// Whoever connects must have a certificate by this authority, PEM.
    pub client_ca_file: Option<PathBuf>,
}

impl Config {
    /// Everything that is wrong with it, each in a sentence that says what would be right.
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
                    "{option}: anybody who reaches {address} could pretend to be a device; set \
                     broker.password_file{}, or listen on 127.0.0.1",
                    if option.ends_with("tls_listen") { " or broker.client_ca_file" } else { "" }
                ));
            }
        }
        if self.listen.is_none() && self.tls.is_none() {
            problems.push("broker: set broker.listen or broker.tls_listen".to_owned());
        }
        if self.max_connections < 2 {
            problems.push("broker.max_connections: at least 2; rollcall itself is one".to_owned());
        }
        if !(1024..=16 << 20).contains(&self.max_packet) {
            problems.push("broker.max_packet: between 1024 and 16777216 bytes".to_owned());
        }
        problems
    }
}

/// How intake gets in.
#[derive(Clone)]
pub struct Entrance {
    /// The broker's address on loopback.
    pub url: String,
    /// Name and password of the one who may do everything, from this machine.
    pub credentials: (String, String),
}

/// A broker that listens and does not serve yet.
pub struct Broker {
    server: server::Server,
    entrance: Entrance,
}

impl Broker {
    /// Listens.
    ///
    /// # Errors
    /// An address that is taken, a file that cannot be read, a configuration that is not safe; each
    /// says what to do.
    pub async fn bind(config: &Config) -> anyhow::Result<Broker> {
        if let Some(problem) = config.problems().into_iter().next() {
            anyhow::bail!(problem);
        }
        let password = format!("{:032x}", rand::random::<u128>());
        let (server, address) = server::Server::bind(config, &password).await?;
        let entrance =
            Entrance { url: format!("mqtt://{address}"), credentials: (INSIDE.to_owned(), password) };
        Ok(Broker { server, entrance })
    }

    /// How intake gets in.
    pub fn entrance(&self) -> Entrance {
        self.entrance.clone()
    }

    /// Serves until `stop`.
    pub async fn serve(self, stop: CancellationToken) -> anyhow::Result<()> {
        self.server.serve(stop).await
    }
}
