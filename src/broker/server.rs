//! The one file that knows which library the broker is made of.
//!
//! The library's own listener is Rollcall's entrance, on a port of loopback that nobody else is told.
//! Devices are accepted here, each through an [`Inlet`], with bounds that are theirs: they cannot take
//! Rollcall's place, its client id or the room that it has.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, anyhow};
use mqtt5::broker::MqttBroker;
use mqtt5::broker::auth::{AuthProvider, AuthResult};
use mqtt5::broker::client_handler::ClientHandler;
use mqtt5::broker::config::{BrokerConfig, StorageBackend, StorageConfig};
use mqtt5::broker::resource_monitor::{ResourceLimits, ResourceMonitor};
use mqtt5::broker::router::MessageRouter;
use mqtt5::broker::storage::client_queue::QueueHandle;
use mqtt5::broker::sys_topics::BrokerStats;
use mqtt5::broker::tls_acceptor::{TlsAcceptorConfig, accept_tls_connection};
use mqtt5::broker::transport::{BrokerTransport, WebSocketTransport};
use mqtt5::packet::connect::ConnectPacket;
use mqtt5::protocol::v5::reason_codes::ReasonCode;
use subtle::ConstantTimeEq;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::frames::MOST_UNRELEASED;
use super::gate::{Gate, Refused};
use super::guest::Guest;
use super::inlet::{Bounds, Inlet};
use super::lobby::Lobby;
use super::room::{Capacity, MOST_WAITING, MOST_WAITING_BYTES};
use super::rules::Client;
use super::{Config, INSIDE, Tls};
use crate::telemetry::{BrokerRefusal, Telemetry};

/// Messages on their way to Rollcall's connection; more wait in its queue.
const AHEAD_OF_INTAKE: usize = 256;
/// Messages on their way to a device that subscribes, of either quality; more wait in its queue if they
/// are to be acknowledged, and are dropped if not.
const AHEAD_OF_DEVICE: usize = 64;
/// A device for which more than this wait is disconnected: it does not read.
const MOST_FOR_DEVICE: usize = 1000;
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// What the library may keep for one client before it drops the oldest. It never comes to that: devices are
/// held back, or disconnected, long before.
const MOST_QUEUED: usize = 2 * MOST_WAITING + 100_000;
const MOST_QUEUED_BYTES: usize = 3 * MOST_WAITING_BYTES as usize;
/// Subscriptions of one client.
const MOST_SUBSCRIPTIONS: usize = 100;
/// How long Rollcall's session outlives its connection at the most. Those of devices end with it.
const SESSION: Duration = Duration::from_secs(86_400);
/// How far the broker sends ahead of acknowledgements, to Rollcall and to a device, if it lets it.
const AHEAD: u16 = 1000;
const LITTLE_AHEAD: u16 = 20;
/// The largest packet of Rollcall's own.
const LARGEST_OWN: usize = 1 << 20;
/// How long a handshake of TLS may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long to wait when no connection can be accepted: files have run out.
const RESPITE: Duration = Duration::from_millis(200);
/// How long connections may take to end when the broker does.
const FAREWELL: Duration = Duration::from_secs(2);

/// A broker that listens.
pub(super) struct Server {
    own: MqttBroker,
    devices: Devices,
    listeners: Vec<(TcpListener, Option<TlsAcceptor>)>,
}

impl Server {
    /// Listens; answers also with the loopback address at which intake finds it.
    pub async fn bind(
        config: &Config,
        password: &str,
        telemetry: Arc<Telemetry>,
    ) -> anyhow::Result<(Server, SocketAddr)> {
        let gate = Arc::new(Gate::open(config, telemetry)?);
        let mut listeners = Vec::new();
        if let Some(address) = config.listen {
            listeners.push((listen("broker.listen", address).await?, None));
        }
        if let Some(tls) = &config.tls {
            let acceptor = acceptor(tls).await.map_err(|why| {
                anyhow!(
                    "the broker cannot speak TLS: {why}; check broker.cert_file, key_file and client_ca_file"
                )
            })?;
            listeners.push((listen("broker.tls_listen", tls.listen).await?, Some(acceptor)));
        }
        let own = MqttBroker::with_config(own())
            .await
            .map_err(|error| anyhow!("the broker cannot listen: {error}"))?;
        let entrance = own.local_addr().context("the broker listens nowhere")?;
        let intake =
            Arc::new(Intake { password: password.to_owned(), router: own.router(), queue: OnceLock::new() });
        let waiting = intake.clone();
        let devices = Devices {
            config: Arc::new(of_devices(config)),
            max_packet: config.max_packet,
            max_rate: config.max_rate,
            router: own.router(),
            gate,
            lobby: Arc::default(),
            room: Arc::new(Capacity::new()),
            bounds: Arc::new(Bounds::new()),
            waiting: Arc::new(move || waiting.waiting()),
            stats: Arc::new(BrokerStats::new()),
            monitor: Arc::new(ResourceMonitor::new(unlimited())),
            ends: broadcast::Sender::new(1),
            tasks: TaskTracker::new(),
        };
        Ok((Server { own: own.with_auth_provider(intake), devices, listeners }, entrance))
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
            let watches = async { tokio::join!(devices.watch_room(), devices.watch_readers()) };
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
        // What a device was not acknowledged it sends again; nothing depends on this.
        let _ = tokio::time::timeout(FAREWELL, self.devices.tasks.wait()).await;
        if ended.is_ok() {
            handle.shutdown();
            run.await.map_err(|error| anyhow!("the broker did not end in order: {error}"))?;
        }
        ended
    }
}

/// For Rollcall itself: alone on a port of its own, and with room for what devices send.
fn own() -> BrokerConfig {
    let mut options = BrokerConfig::default()
        .with_bind_address(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .with_session_expiry(SESSION)
        .with_max_packet_size(LARGEST_OWN)
        .with_maximum_qos(1)
        .with_max_subscriptions_per_client(10 * MOST_SUBSCRIPTIONS)
        .with_client_channel_capacity(AHEAD_OF_INTAKE)
        .with_max_outbound_inflight(AHEAD);
    options.topic_alias_maximum = 0;
    options.storage_config = StorageConfig::new()
        .with_backend(StorageBackend::Memory)
        .with_max_queued_messages_per_client(MOST_QUEUED)
        .with_max_queued_bytes_per_client(MOST_QUEUED_BYTES);
    // Queues of clients that have left are forgotten then.
    options.storage_config.cleanup_interval = Duration::from_secs(60);
    options.auth_config.allow_anonymous = true; // `Intake` decides.
    options
}

fn of_devices(config: &Config) -> BrokerConfig {
    let mut options = own()
        .with_session_expiry(Duration::ZERO)
        // An inlet adds an identifier to messages that have none.
        .with_max_packet_size(config.max_packet + 16)
        .with_maximum_qos(2)
        .with_max_subscriptions_per_client(MOST_SUBSCRIPTIONS)
        .with_client_channel_capacity(AHEAD_OF_DEVICE)
        .with_max_outbound_inflight(LITTLE_AHEAD);
    options.server_receive_maximum = Some(MOST_UNRELEASED);
    options
}

/// The gate counts connections, and an inlet messages.
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

/// What every connection of a device shares.
#[derive(Clone)]
struct Devices {
    config: Arc<BrokerConfig>,
    max_packet: usize,
    max_rate: u32,
    router: Arc<MessageRouter>,
    gate: Arc<Gate>,
    lobby: Arc<Lobby>,
    room: Arc<Capacity>,
    bounds: Arc<Bounds>,
    waiting: Arc<dyn Fn() -> usize + Send + Sync>,
    stats: Arc<BrokerStats>,
    monitor: Arc<ResourceMonitor>,
    ends: broadcast::Sender<()>,
    tasks: TaskTracker,
}

impl Devices {
    /// Accepts for ever.
    async fn accept(&self, listener: TcpListener, tls: Option<TlsAcceptor>) {
        loop {
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    let why =
                        format!("no connection can be accepted: {error}; raise the limit of open files");
                    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                    self.gate.refuse(BrokerRefusal::Connection, nowhere, "", &why);
                    tokio::time::sleep(RESPITE).await;
                    continue;
                }
            };
            let Some(ticket) = self.lobby.enter(from.ip()) else {
                let why = "too many connections have not said yet who they are";
                self.gate.refuse(BrokerRefusal::Connection, from, "", why);
                continue;
            };
            let guest = Guest::new(self.gate.clone(), self.room.clone(), self.waiting.clone(), from, ticket);
            let (devices, tls) = (self.clone(), tls.clone());
            self.tasks.spawn(async move { devices.host(stream, from, tls, Arc::new(guest)).await });
        }
    }

    /// Serves one connection until it ends.
    async fn host(&self, stream: TcpStream, from: SocketAddr, tls: Option<TlsAcceptor>, guest: Arc<Guest>) {
        // Without it a small answer may wait for company.
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else { return self.attend(stream, from, guest).await };
        match tokio::time::timeout(HANDSHAKE, accept_tls_connection(&tls, stream, from)).await {
            Ok(Ok(stream)) => self.attend(stream, from, guest).await,
            Ok(Err(error)) => self.gate.refuse(BrokerRefusal::Login, from, "", &format!("{error}")),
            Err(_) => self.gate.refuse(BrokerRefusal::Login, from, "", "its TLS handshake took too long"),
        }
    }

    async fn attend<S>(&self, stream: S, from: SocketAddr, guest: Arc<Guest>)
    where
        S: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static,
    {
        let inlet = Inlet::new(stream, guest.clone(), self.bounds.clone(), self.max_packet, self.max_rate);
        let handler = ClientHandler::new(
            // The only transport of the library that is any stream.
            BrokerTransport::WebSocket(Box::new(Stream { inlet, from })),
            from,
            self.config.clone(),
            self.router.clone(),
            Arc::new(Door(guest.clone())),
            // Without it no session outlives its connection.
            None,
            self.stats.clone(),
            self.monitor.clone(),
            self.ends.subscribe(),
        );
        if let Err(error) = handler.run().await {
            tracing::debug!(%from, "a device's connection ended: {error}");
        }
        guest.leaves();
    }

    async fn watch_room(&self) {
        self.room.watch(|| (self.waiting)()).await;
    }

    /// Disconnects devices that do not read what they subscribed to.
    async fn watch_readers(&self) {
        let mut looks = tokio::time::interval(LOOK);
        loop {
            looks.tick().await;
            for id in self.gate.connected() {
                if self.router.queue_handle(&id).count() > MOST_FOR_DEVICE {
                    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                    let why = "it does not read what it subscribed to; it is disconnected";
                    self.gate.refuse(BrokerRefusal::Reader, nowhere, &id, why);
                    self.gate.cut(&id);
                }
            }
        }
    }
}

/// A stream as the library takes one.
struct Stream<S> {
    inlet: Inlet<S>,
    from: SocketAddr,
}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> WebSocketTransport for Stream<S> {
    fn peer_addr(&self) -> mqtt5::error::Result<SocketAddr> {
        Ok(self.from)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        to: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inlet).poll_read(context, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        from: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.inlet).poll_write(context, from)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inlet).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inlet).poll_shutdown(context)
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Through it goes a device.
struct Door(Arc<Guest>);

impl AuthProvider for Door {
    fn authenticate<'a>(
        &'a self,
        connect: &'a ConnectPacket,
        _from: SocketAddr,
    ) -> Answer<'a, mqtt5::error::Result<AuthResult>> {
        Box::pin(async move {
            let password = connect.password.as_deref().unwrap_or_default();
            Ok(match self.0.admit(&connect.client_id, connect.username.as_deref(), password).await {
                Ok(Some(user)) => AuthResult::success_with_user(user),
                Ok(None) => AuthResult::success(),
                Err(Refused::Login) => AuthResult::fail(ReasonCode::BadUsernameOrPassword),
                Err(Refused::ClientId) => AuthResult::fail(ReasonCode::ClientIdentifierNotValid),
                Err(Refused::Full) => AuthResult::fail(ReasonCode::ServerBusy),
            })
        })
    }

    fn authorize_publish<'a>(&'a self, id: &str, name: Option<&'a str>, topic: &'a str) -> Answer<'a, bool> {
        let id = id.to_owned();
        Box::pin(async move { self.0.may_publish(Client { id: &id, name }, topic).await })
    }

    fn authorize_subscribe<'a>(
        &'a self,
        id: &str,
        name: Option<&'a str>,
        filter: &'a str,
    ) -> Answer<'a, bool> {
        let may = self.0.may_subscribe(Client { id, name }, filter);
        Box::pin(std::future::ready(may))
    }
}

/// Lets Rollcall in, and nobody else.
struct Intake {
    password: String,
    router: Arc<MessageRouter>,
    /// What waits for it; its client id is the same each time.
    queue: OnceLock<QueueHandle>,
}

impl Intake {
    fn waiting(&self) -> usize {
        self.queue.get().map_or(0, |queue| queue.count())
    }
}

impl AuthProvider for Intake {
    fn authenticate<'a>(
        &'a self,
        connect: &'a ConnectPacket,
        from: SocketAddr,
    ) -> Answer<'a, mqtt5::error::Result<AuthResult>> {
        let password = connect.password.as_deref().unwrap_or_default();
        let is_us = connect.username.as_deref() == Some(INSIDE)
            && from.ip().is_loopback()
            && bool::from(password.ct_eq(self.password.as_bytes()));
        let answer = if is_us {
            self.queue.get_or_init(|| self.router.queue_handle(&connect.client_id));
            AuthResult::success_with_user(INSIDE)
        } else {
            AuthResult::fail(ReasonCode::BadUsernameOrPassword)
        };
        Box::pin(std::future::ready(Ok(answer)))
    }

    fn authorize_publish<'a>(&'a self, _: &str, _: Option<&'a str>, _: &'a str) -> Answer<'a, bool> {
        Box::pin(std::future::ready(true))
    }

    fn authorize_subscribe<'a>(&'a self, _: &str, _: Option<&'a str>, _: &'a str) -> Answer<'a, bool> {
        Box::pin(std::future::ready(true))
    }
}
