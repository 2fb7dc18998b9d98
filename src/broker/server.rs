//! The one file that knows which library the broker is made of.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use mqtt5::broker::MqttBroker;
use mqtt5::broker::auth::{AuthProvider, AuthResult};
use mqtt5::broker::config::{BrokerConfig, StorageBackend, StorageConfig, TlsConfig};
use mqtt5::packet::connect::ConnectPacket;
use mqtt5::protocol::v5::reason_codes::ReasonCode;
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;

use super::logins::{Login, Logins};
use super::rules::{Client, Rules};
use super::users::Users;
use super::{Config, INSIDE};

/// Messages that wait for one client; for more of QoS 1 its oldest ones are dropped.
const MOST_QUEUED: usize = 100_000;
/// The same in bytes.
const MOST_QUEUED_BYTES: usize = 64 << 20;
/// Retained messages, of all devices together: Rollcall itself has no use for any.
const MOST_RETAINED: usize = 100_000;
/// Subscriptions of one client.
const MOST_SUBSCRIPTIONS: usize = 100;
/// How long a session outlives its connection at the most.
const SESSION: Duration = Duration::from_secs(86_400);
/// How far the broker sends ahead of acknowledgements, if the client lets it.
const AHEAD: u16 = 1000;

/// A broker that listens.
pub(super) struct Server(MqttBroker);

impl Server {
    /// Listens; answers also with the loopback address at which intake finds it.
    pub async fn bind(config: &Config, password: &str) -> anyhow::Result<(Server, SocketAddr)> {
        // Also where devices need TLS, intake comes in the clear and from this machine only.
        let plain = config.listen.unwrap_or((Ipv4Addr::LOCALHOST, 0).into());
        let gate = Gate::open(config, password)?;
        let mut options = BrokerConfig::default()
            .with_bind_address(plain)
            .with_max_clients(config.max_connections)
            .with_session_expiry(SESSION)
            .with_max_packet_size(config.max_packet)
            .with_maximum_qos(1)
            .with_max_subscriptions_per_client(MOST_SUBSCRIPTIONS)
            .with_max_retained_messages(MOST_RETAINED)
            .with_max_retained_message_size(config.max_packet)
            .with_client_channel_capacity(MOST_QUEUED)
            .with_max_outbound_inflight(AHEAD);
        options.topic_alias_maximum = 0;
        options.max_message_rate_per_client = config.max_rate;
        options.storage_config = StorageConfig::new()
            .with_backend(StorageBackend::Memory)
            .with_max_queued_messages_per_client(MOST_QUEUED)
            .with_max_queued_bytes_per_client(MOST_QUEUED_BYTES);
        options.auth_config.allow_anonymous = true; // The gate below decides.
        if let Some(tls) = &config.tls {
            let mut with = TlsConfig::new(tls.cert_file.clone(), tls.key_file.clone())
                .with_bind_address(tls.listen)
                .with_require_client_cert(tls.client_ca_file.is_some());
            with.ca_file = tls.client_ca_file.clone();
            options = options.with_tls(with);
        }
        let server = MqttBroker::with_config(options).await.map_err(|error| {
            anyhow!(
                "the broker cannot listen: {error}; check broker.listen, broker.tls_listen and their files"
            )
        })?;
        let port = server.local_addr().context("the broker listens nowhere")?.port();
        let host: IpAddr = match plain.ip() {
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        Ok((Server(server.with_auth_provider(Arc::new(gate))), SocketAddr::new(host, port)))
    }

    pub async fn serve(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let handle = self.0.shutdown_handle();
        let mut run = std::pin::pin!(self.0.run());
        tokio::select! {
            ended = &mut run => {
                ended.map_err(|error| anyhow!("the broker failed: {error}"))?;
                Err(anyhow!("the broker ended by itself"))
            }
            () = stop.cancelled() => {
                handle.shutdown();
                run.await.map_err(|error| anyhow!("the broker did not end in order: {error}"))
            }
        }
    }
}

/// Who gets in, and what for.
struct Gate {
    inside: String,
    users: Option<Logins>,
    rules: Option<Rules>,
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl Gate {
    fn open(config: &Config, inside: &str) -> anyhow::Result<Gate> {
        Ok(Gate {
            inside: inside.to_owned(),
            users: read(config.password_file.as_deref(), "broker.password_file", Users::parse)?
                .map(Logins::of),
            rules: read(config.rules_file.as_deref(), "broker.rules_file", Rules::parse)?,
        })
    }

    async fn admits(&self, connect: &ConnectPacket, from: SocketAddr) -> AuthResult {
        let password = connect.password.as_deref().unwrap_or_default();
        let Some(name) = &connect.username else {
            return if self.users.is_none() { AuthResult::success() } else { refused() };
        };
        if name == INSIDE {
            let is_us = from.ip().is_loopback() && bool::from(password.ct_eq(self.inside.as_bytes()));
            return if is_us { AuthResult::success_with_user(name) } else { refused() };
        }
        match &self.users {
            // Nobody has looked at the name, so it gives no rights.
            None => AuthResult::success(),
            Some(users) => match users.look(name, password).await {
                Login::Right => AuthResult::success_with_user(name),
                Login::Wrong => refused(),
                Login::Busy => AuthResult::fail(ReasonCode::ServerBusy),
            },
        }
    }

    fn may(&self, client: Client, topic: &str, ask: fn(&Rules, Client, &str) -> bool) -> bool {
        if client.name == Some(INSIDE) {
            return true;
        }
        let is_ours = topic.split('/').next() == Some("rollcall");
        match &self.rules {
            Some(rules) => ask(rules, client, topic),
            None => !is_ours && !topic.starts_with('$'),
        }
    }
}

fn refused() -> AuthResult {
    AuthResult::fail(ReasonCode::BadUsernameOrPassword)
}

fn read<T>(
    path: Option<&Path>,
    option: &str,
    parse: fn(&str) -> Result<T, String>,
) -> anyhow::Result<Option<T>> {
    let Some(path) = path else { return Ok(None) };
    let text =
        std::fs::read_to_string(path).with_context(|| format!("{option}: cannot read {}", path.display()))?;
    parse(&text).map(Some).map_err(|why| anyhow!("{option}: {}: {why}", path.display()))
}

impl AuthProvider for Gate {
    fn authenticate<'a>(
        &'a self,
        connect: &'a ConnectPacket,
        from: SocketAddr,
    ) -> Answer<'a, mqtt5::error::Result<AuthResult>> {
        Box::pin(async move { Ok(self.admits(connect, from).await) })
    }

    fn authorize_publish<'a>(&'a self, id: &str, name: Option<&'a str>, topic: &'a str) -> Answer<'a, bool> {
        let may = self.may(Client { id, name }, topic, Rules::may_publish);
        Box::pin(std::future::ready(may))
    }

    fn authorize_subscribe<'a>(
        &'a self,
        id: &str,
        name: Option<&'a str>,
        filter: &'a str,
    ) -> Answer<'a, bool> {
        let may = self.may(Client { id, name }, filter, Rules::may_subscribe);
        Box::pin(std::future::ready(may))
    }
}
