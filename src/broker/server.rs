//! The server: the only part that knows the library of the broker.
//!
//! The library's own listener serves intake, on a port of loopback that only intake knows.
//! Devices are accepted here, each through a [`ClientStream`], with limits of their own: they can take neither
//! the connection of intake nor its client id nor its room.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, anyhow};
use mqtt5::broker::MqttBroker;
use mqtt5::broker::client_handler::ClientHandler;
use mqtt5::broker::config::{BrokerConfig, StorageBackend, StorageConfig};
use mqtt5::broker::resource_monitor::{ResourceLimits, ResourceMonitor};
use mqtt5::broker::router::MessageRouter;
use mqtt5::broker::sys_topics::BrokerStats;
use mqtt5::broker::tls_acceptor::TlsAcceptorConfig;
use mqtt5::broker::transport::BrokerTransport;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access_control::AccessControl;
use super::backpressure::{Backpressure, MAX_WAITING, MAX_WAITING_BYTES};
use super::client_connection::ClientConnection;
use super::client_stream::{ClientStream, SharedLimits};
use super::frames::MAX_UNRELEASED;
use super::pending::PendingConnections;
use super::{Config, Tls};
use crate::telemetry::{BrokerRefusal, Telemetry};

mod auth;
mod transport;

use auth::{ClientAuth, IntakeAuth};
use transport::Transport;

/// Messages in transit to intake's connection; more wait in its queue.
const AHEAD_OF_INTAKE: usize = 256;
/// Messages in transit to a device that subscribes, of either QoS; more wait in its queue if they
/// are to be acknowledged, and are dropped if not.
const AHEAD_OF_DEVICE: usize = 64;
/// A device for which more than this wait is disconnected: it does not read.
const MAX_FOR_DEVICE: usize = 1000;
/// How often the queues of devices are checked.
const CHECK: Duration = Duration::from_secs(1);
/// The most that the library keeps for one client before it drops the oldest. Backpressure and
/// disconnects keep the queue below this.
const MAX_QUEUED: usize = 2 * MAX_WAITING + 100_000;
const MAX_QUEUED_BYTES: usize = 3 * MAX_WAITING_BYTES as usize;
/// Subscriptions of one client.
const MAX_SUBSCRIPTIONS: usize = 100;
/// How long intake's session outlives its connection at most. Sessions of devices end with the connection.
const SESSION: Duration = Duration::from_secs(86_400);
/// How far the broker sends ahead of acknowledgements, to intake and to a device, if the client allows it.
const MAX_IN_FLIGHT: u16 = 1000;
const LITTLE_AHEAD: u16 = 20;
/// The largest packet of intake.
const MAX_OWN: usize = 1 << 20;
/// How long a handshake of TLS may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long to wait when no connection can be accepted: files have run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
/// How long connections may take to end when the broker does.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// A broker that listens.
pub(super) struct Server {
    own: MqttBroker,
    devices: ClientListener,
    listeners: Vec<(TcpListener, Option<TlsAcceptor>)>,
}

impl Server {
    /// Listens; returns also the loopback address for intake.
    pub async fn bind(
        config: &Config,
        password: &str,
        telemetry: Arc<Telemetry>,
    ) -> anyhow::Result<(Server, SocketAddr)> {
        let access = Arc::new(AccessControl::open(config, telemetry)?);
        // The files first: `rollcall check` tries them while a running instance has the addresses.
        let mut with_tls = None;
        if let Some(tls) = &config.tls {
            let acceptor = acceptor(tls).await.map_err(|why| {
                anyhow!(
                    "the broker cannot speak TLS: {why}; check broker.cert_file, key_file and client_ca_file"
                )
            })?;
            with_tls = Some((tls.listen, acceptor));
        }
        let mut listeners = Vec::new();
        if let Some(address) = config.listen {
            listeners.push((listen("broker.listen", address).await?, None));
        }
        if let Some((address, acceptor)) = with_tls {
            listeners.push((listen("broker.tls_listen", address).await?, Some(acceptor)));
        }
        let own = MqttBroker::with_config(intake_config())
            .await
            .map_err(|error| anyhow!("the broker cannot listen: {error}"))?;
        let address = own.local_addr().context("the broker listens nowhere")?;
        let intake = Arc::new(IntakeAuth {
            password: password.to_owned(),
            router: own.router(),
            queue: OnceLock::new(),
        });
        let waiting = intake.clone();
        let devices = ClientListener {
            config: Arc::new(device_config(config)),
            max_packet: config.max_packet,
            max_rate: config.max_rate,
            router: own.router(),
            access,
            pending: Arc::default(),
            backpressure: Arc::new(Backpressure::new()),
            limits: Arc::new(SharedLimits::new()),
            waiting: Arc::new(move || waiting.waiting()),
            stats: Arc::new(BrokerStats::new()),
            monitor: Arc::new(ResourceMonitor::new(unlimited())),
            ends: broadcast::Sender::new(1),
            tasks: TaskTracker::new(),
        };
        Ok((Server { own: own.with_auth_provider(intake), devices, listeners }, address))
    }

    pub async fn serve(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let handle = self.own.shutdown_handle();
        let accepting = CancellationToken::new();
        for (listener, tls) in self.listeners {
            let (devices, ends) = (self.devices.clone(), accepting.clone());
            self.devices.tasks.spawn(async move {
                ends.run_until_cancelled(devices.accept(listener, tls)).await;
            });
        }
        let (devices, ends) = (self.devices.clone(), accepting.clone());
        self.devices.tasks.spawn(async move {
            let watches = async { tokio::join!(devices.watch_backpressure(), devices.watch_readers()) };
            ends.run_until_cancelled(watches).await;
        });
        let mut run = std::pin::pin!(self.own.run());
        let ended = tokio::select! {
            ended = &mut run => {
                ended.map_err(|error| anyhow!("the broker failed: {error}"))
                    .and_then(|()| Err(anyhow!("the broker ended by itself")))
            }
            () = stop.cancelled() => Ok(()),
        };
        accepting.cancel();
        let _ = self.devices.ends.send(());
        self.devices.tasks.close();
        // A device sends unacknowledged messages again; nothing depends on this.
        let _ = tokio::time::timeout(SHUTDOWN, self.devices.tasks.wait()).await;
        if ended.is_ok() {
            handle.shutdown();
            run.await.map_err(|error| anyhow!("the broker did not end in order: {error}"))?;
        }
        ended
    }
}

/// For intake: alone on a port of its own, and with room for the messages of devices.
fn intake_config() -> BrokerConfig {
    let mut options = BrokerConfig::default()
        .with_bind_address(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .with_session_expiry(SESSION)
        .with_max_packet_size(MAX_OWN)
        .with_maximum_qos(1)
        .with_max_subscriptions_per_client(10 * MAX_SUBSCRIPTIONS)
        .with_client_channel_capacity(AHEAD_OF_INTAKE)
        .with_max_outbound_inflight(MAX_IN_FLIGHT);
    options.topic_alias_maximum = 0;
    options.storage_config = StorageConfig::new()
        .with_backend(StorageBackend::Memory)
        .with_max_queued_messages_per_client(MAX_QUEUED)
        .with_max_queued_bytes_per_client(MAX_QUEUED_BYTES);
    // Queues of clients that have left are forgotten then.
    options.storage_config.cleanup_interval = Duration::from_secs(60);
    options.auth_config.allow_anonymous = true; // `IntakeAuth` decides.
    options
}

fn device_config(config: &Config) -> BrokerConfig {
    let mut options = intake_config()
        .with_session_expiry(Duration::ZERO)
        // A `FrameFilter` adds a packet id to messages that have none.
        .with_max_packet_size(config.max_packet + 16)
        .with_maximum_qos(2)
        .with_max_subscriptions_per_client(MAX_SUBSCRIPTIONS)
        .with_client_channel_capacity(AHEAD_OF_DEVICE)
        .with_max_outbound_inflight(LITTLE_AHEAD);
    options.server_receive_maximum = Some(MAX_UNRELEASED);
    options
}

/// `AccessControl` counts connections, and a `ClientStream` messages.
fn unlimited() -> ResourceLimits {
    ResourceLimits {
        max_connections: usize::MAX,
        max_connections_per_ip: usize::MAX,
        max_message_rate_per_client: 0,
        max_bandwidth_per_client: 0,
        max_connection_rate: u32::MAX,
        rate_limit_window: Duration::from_secs(1),
    }
}

async fn listen(option: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("the broker cannot listen on {address}; check {option}"))
}

/// Why a handshake failed, for people.
fn handshake_failure(error: &std::io::Error) -> String {
    use tokio_rustls::rustls::{Error, InvalidMessage};
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "it does not speak TLS; let it connect to broker.listen, or with TLS".to_owned()
        }
        Some(Error::NoCertificatesPresented) => {
            "it has no certificate, which broker.client_ca_file requires".to_owned()
        }
        _ => error.to_string(),
    }
}

async fn acceptor(tls: &Tls) -> mqtt5::error::Result<TlsAcceptor> {
    let chain = TlsAcceptorConfig::load_cert_chain_from_file(&tls.cert_file).await?;
    let key = TlsAcceptorConfig::load_private_key_from_file(&tls.key_file).await?;
    let mut with = TlsAcceptorConfig::new(chain, key);
    if let Some(authority) = &tls.client_ca_file {
        let authority = TlsAcceptorConfig::load_cert_chain_from_file(authority).await?;
        with = with.with_client_ca_certs(authority).with_require_client_cert(true);
    }
    with.build_acceptor()
}

/// Accepts the connections of devices.
#[derive(Clone)]
struct ClientListener {
    config: Arc<BrokerConfig>,
    max_packet: usize,
    max_rate: u32,
    router: Arc<MessageRouter>,
    access: Arc<AccessControl>,
    pending: Arc<PendingConnections>,
    backpressure: Arc<Backpressure>,
    limits: Arc<SharedLimits>,
    waiting: Arc<dyn Fn() -> usize + Send + Sync>,
    stats: Arc<BrokerStats>,
    monitor: Arc<ResourceMonitor>,
    ends: broadcast::Sender<()>,
    tasks: TaskTracker,
}

impl ClientListener {
    /// Never ends.
    async fn accept(&self, listener: TcpListener, tls: Option<TlsAcceptor>) {
        loop {
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    let why =
                        format!("no connection can be accepted: {error}; raise the limit of open files");
                    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                    self.access.refuse(BrokerRefusal::Connection, nowhere, "", &why);
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let Some(permit) = self.pending.acquire(from.ip()) else {
                let why = "too many connections are not authenticated yet";
                self.access.refuse(BrokerRefusal::Connection, from, "", why);
                continue;
            };
            let (access, backpressure) = (self.access.clone(), self.backpressure.clone());
            let connection = ClientConnection::new(access, backpressure, self.waiting.clone(), from, permit);
            let (devices, tls) = (self.clone(), tls.clone());
            self.tasks.spawn(async move { devices.serve(stream, from, tls, Arc::new(connection)).await });
        }
    }

    /// Serves one connection until it ends.
    async fn serve(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        tls: Option<TlsAcceptor>,
        connection: Arc<ClientConnection>,
    ) {
        // Without it a small answer may wait for more data.
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else { return self.run(stream, from, connection).await };
        // Not by the library, which logs an error for each client that goes away.
        match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.run(stream, from, connection).await,
            Ok(Err(error)) => {
                let why = format!("its TLS handshake failed: {}", handshake_failure(&error));
                self.access.refuse(BrokerRefusal::Login, from, "", &why);
            }
            Err(_) => self.access.refuse(BrokerRefusal::Login, from, "", "its TLS handshake took too long"),
        }
    }

    async fn run<S>(&self, stream: S, from: SocketAddr, connection: Arc<ClientConnection>)
    where
        S: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static,
    {
        let (limits, max_packet) = (self.limits.clone(), self.max_packet);
        let stream = ClientStream::new(stream, connection.clone(), limits, max_packet, self.max_rate);
        let handler = ClientHandler::new(
            // The only transport of the library that is any stream.
            BrokerTransport::WebSocket(Box::new(Transport { stream, from })),
            from,
            self.config.clone(),
            self.router.clone(),
            Arc::new(ClientAuth(connection.clone())),
            // Without it no session outlives its connection.
            None,
            self.stats.clone(),
            self.monitor.clone(),
            self.ends.subscribe(),
        );
        if let Err(error) = handler.run().await {
            tracing::debug!(%from, "a device's connection ended: {error}");
        }
        connection.ended();
    }

    async fn watch_backpressure(&self) {
        self.backpressure.watch(|| (self.waiting)()).await;
    }

    /// Disconnects devices that do not read the messages that they subscribed to.
    async fn watch_readers(&self) {
        let mut checks = tokio::time::interval(CHECK);
        loop {
            checks.tick().await;
            for id in self.access.connected() {
                if self.router.queue_handle(&id).count() > MAX_FOR_DEVICE {
                    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                    let why = "it does not read the messages that it subscribed to; it is disconnected";
                    self.access.refuse(BrokerRefusal::Reader, nowhere, &id, why);
                    self.access.disconnect(&id);
                }
            }
        }
    }
}
