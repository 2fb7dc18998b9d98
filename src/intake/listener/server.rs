//! Accepts the connections of devices: in the clear and with TLS, both also within WebSockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context;
use rustls::sign::SingleCertAndKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access_control::AccessControl;
use super::connection::Stream;
use super::door::Door;
use super::handshake::{self, WITHIN};
use super::limits::{Share, Shares};
use super::router::Router;
use super::sessions::Sessions;
use super::shared::{Peer, Shared};
use super::{Config, Tls, websocket};
use crate::clock::Timestamp;
use crate::fleet::CanaryPace;
use crate::intake::mqtt::Answers;
use crate::small_file::read_file;
use crate::telemetry::{BrokerRefusal, Telemetry};
use crate::trust;

/// How long to wait when no connection can be accepted: files have run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
/// How many connections may wait to be authenticated; more are closed at once. Any client can open many, and send nothing.
const MAX_PENDING: usize = 1024;
/// How many bytes of large packets may be read that have not arrived whole.
const MAX_LARGE: usize = 32 << 20;
/// How often sessions are looked through for those whose time is over.
const CHECK: Duration = Duration::from_secs(1);
/// How long connections may take to end when the listener does.
const SHUTDOWN: Duration = Duration::from_secs(3);

/// Listens, and does not serve yet.
pub struct Listener {
    config: Config,
    access: Arc<AccessControl>,
    sockets: Vec<Socket>,
}

struct Socket {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    is_websocket: bool,
}

impl Listener {
    /// # Errors
    /// An address that is taken, a file that cannot be read, a configuration that is not safe; each with advice.
    pub async fn bind(config: &Config, telemetry: Arc<Telemetry>) -> anyhow::Result<Listener> {
        if let Some(problem) = config.problems().into_iter().next() {
            anyhow::bail!(problem);
        }
        let access = Arc::new(AccessControl::open(config, telemetry)?);
        // The files first: `rollcall check` tries them while a running instance has the addresses.
        let tls = config.tls.as_ref().map(acceptor).transpose().context("the broker cannot speak TLS")?;
        let mut sockets = Vec::new();
        for (option, _, address) in config.addresses() {
            let listener = TcpListener::bind(address)
                .await
                .with_context(|| format!("the broker cannot listen on {address}; check broker.{option}"))?;
            let tls = tls.clone().filter(|_| option.ends_with("tls_listen"));
            sockets.push(Socket { listener, tls, is_websocket: option.starts_with("websocket") });
        }
        Ok(Listener { config: config.clone(), access, sockets })
    }

    /// The addresses that devices use, for people.
    pub(in crate::intake) fn shown(&self) -> String {
        let all = self.config.addresses().map(|(_, scheme, address)| format!("{scheme}://{address}"));
        all.collect::<Vec<String>>().join(" ")
    }

    /// Serves until `stop`.
    pub(in crate::intake) async fn serve(self, shared: Arc<Shared>, pace: Pace) {
        let (stop, tasks) = (shared.stop.clone(), TaskTracker::new());
        let pending = Shares::new(MAX_PENDING);
        let (first, mut ticks) = mpsc::channel(1);
        for socket in self.sockets {
            let (next, following) = mpsc::channel(1);
            let accepting =
                Accepting { socket, shared: shared.clone(), tasks: tasks.clone(), pending: pending.clone() };
            let ends = stop.clone();
            tasks.spawn(async move { ends.run_until_cancelled(accepting.run(ticks, next)).await });
            ticks = following;
        }
        let served = async {
            tokio::join!(pace.tick(&shared, first), arrive(&shared, ticks), end_sessions(&shared));
        };
        stop.run_until_cancelled(served).await;
        tasks.close();
        // A device sends unacknowledged messages again; nothing depends on this.
        let _ = timeout(SHUTDOWN, tasks.wait()).await;
    }

    pub(in crate::intake) fn open(&self, door: Door, stop: CancellationToken) -> Arc<Shared> {
        let Config { max_packet, max_rate, max_bytes_per_second, max_connections, .. } = self.config;
        let router = Router::default();
        let sessions = Sessions::new(max_connections, router.kept.clone());
        Arc::new(Shared {
            door,
            access: self.access.clone(),
            router,
            sessions,
            large: Shares::new(MAX_LARGE),
            max_packet,
            max_rate,
            max_bytes_per_second,
            stop,
        })
    }
}

/// Publishes answers, as long as the listener serves.
pub fn answers(shared: &Arc<Shared>) -> Answers {
    // The queue ends with the last one that holds it.
    let shared: Weak<Shared> = Arc::downgrade(shared);
    Arc::new(move |to, answer| shared.upgrade().iter().for_each(|shared| shared.answer(to, &answer)))
}

/// How often a tick begins.
pub struct Pace {
    pub pace: Arc<CanaryPace>,
    pub period: Duration,
}

impl Pace {
    /// Sends a tick through the loops that accept; never ends.
    async fn tick(&self, shared: &Shared, first: mpsc::Sender<Timestamp>) {
        loop {
            // One that has not come through yet is older, and proves as much.
            let _ = first.try_send(shared.door.clock.now());
            tokio::time::sleep(self.pace.period(self.period)).await;
        }
    }
}

/// Queues the ticks that came through.
async fn arrive(shared: &Shared, mut ticks: mpsc::Receiver<Timestamp>) {
    while let Some(sent_at) = ticks.recv().await {
        if !shared.door.tick(sent_at).await {
            return;
        }
    }
}

/// Ends sessions whose time is over; never ends itself.
async fn end_sessions(shared: &Shared) {
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let mut checks = tokio::time::interval(CHECK);
    loop {
        checks.tick().await;
        for session in shared.sessions.trim() {
            shared.without_room(&session);
        }
        for will in shared.sessions.expire(Instant::now(), &shared.router) {
            let peer = Peer { from: nowhere, id: will.id.clone(), user: will.user.clone() };
            shared.publish_will(&peer, will).await;
        }
    }
}

/// One address.
struct Accepting {
    socket: Socket,
    shared: Arc<Shared>,
    tasks: TaskTracker,
    pending: Arc<Shares>,
}

impl Accepting {
    /// Accepts connections, and passes ticks on: a tick that comes through proves that connections are accepted. Never
    /// ends.
    async fn run(self, mut ticks: mpsc::Receiver<Timestamp>, next: mpsc::Sender<Timestamp>) {
        let mut failed: Option<Instant> = None;
        loop {
            let accepted = tokio::select! {
                Some(tick) = ticks.recv() => {
                    // Where no connection can be accepted nothing is heard: that time is blind.
                    if failed.is_none_or(|at| at.elapsed() > 2 * ACCEPT_RETRY) {
                        // If it is full, an older one waits there.
                        let _ = next.try_send(tick);
                    }
                    continue;
                }
                accepted = self.socket.listener.accept() => accepted,
            };
            let access = &self.shared.access;
            match accepted {
                Ok((stream, from)) => match self.pending.take(from.ip(), 1) {
                    Some(permit) => self.spawn(stream, from, permit),
                    None => {
                        let why = "too many connections are not authenticated yet";
                        access.refuse(BrokerRefusal::Connection, from, "", why);
                    }
                },
                Err(error) => {
                    let why =
                        format!("no connection can be accepted: {error}; raise the limit of open files");
                    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                    access.refuse(BrokerRefusal::Connection, nowhere, "", &why);
                    failed = Some(Instant::now());
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn spawn(&self, stream: TcpStream, from: SocketAddr, permit: Share) {
        let (shared, tls, is_websocket) =
            (self.shared.clone(), self.socket.tls.clone(), self.socket.is_websocket);
        self.tasks.spawn(async move {
            let opening = Box::pin(timeout(WITHIN, open(stream, tls, is_websocket)));
            let Some(opened) = shared.stop.run_until_cancelled(opening).await else { return };
            let why = match opened {
                Ok(Ok(stream)) => return handshake::serve(shared, stream, from, permit).await,
                Ok(Err(why)) => format!("its handshake failed: {}", handshake_failure(&why)),
                Err(_) => "its handshake took too long".to_owned(),
            };
            shared.access.refuse(BrokerRefusal::Login, from, "", &why);
        });
    }
}

/// The stream of MQTT within TLS and a WebSocket, where those are spoken.
async fn open(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    is_websocket: bool,
) -> std::io::Result<Box<dyn Stream>> {
    // Without it a small answer may wait for more data.
    let _ = stream.set_nodelay(true);
    let stream: Box<dyn Stream> = match tls {
        None => Box::new(stream),
        Some(tls) => Box::new(tls.accept(stream).await?),
    };
    Ok(if is_websocket { Box::new(websocket::accept(stream).await?) } else { stream })
}

fn acceptor(tls: &Tls) -> anyhow::Result<TlsAcceptor> {
    let (key, _) = trust::server_key("broker", &tls.files, read_file)?;
    let shown = Arc::new(SingleCertAndKey::from(key));
    let config = match &tls.client_ca_file {
        None => trust::server(shown)?,
        Some(authorities) => trust::server_of("broker", shown, authorities, read_file)?,
    };
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Why a handshake failed, for people.
fn handshake_failure(error: &std::io::Error) -> String {
    use rustls::{Error, InvalidMessage};
    match trust::cause(error) {
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "it does not speak TLS; let it connect to broker.listen, or with TLS".to_owned()
        }
        Some(Error::NoCertificatesPresented) => {
            "it has no certificate, which broker.client_ca_file requires".to_owned()
        }
        _ => error.to_string(),
    }
}
