//! Accepts the connections of devices: with and without TLS, both also over WebSockets.
//!
//! # Why all of them share one thread
//! Packets of different clients are handled in the order of their arrival: a client that subscribes before another one
//! publishes receives the message, even on a busy machine. Between a heartbeat, its record and its acknowledgement no
//! thread has to wake another one, which would cost more than all other steps. One thread serves more heartbeats than
//! the engine records.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use super::access_control::{AccessControl, NOWHERE, Peer};
use super::connection::{NotOpened, Stream, close};
use super::door::Door;
use super::handshake::{self, WITHIN};
use super::limits::{Share, Shares};
use super::router::Router;
use super::sessions::Sessions;
use super::shared::Shared;
use super::{Config, websocket};
use crate::clock::monotonic;
use crate::fleet::BrokerPace;
use crate::intake::engine_writer::EngineWriter;
use crate::intake::hearing_reporter::HearingReporter;
use crate::intake::mqtt::{Answers, Link, Proof};
use crate::intake::record::Recorder;
use crate::intake::states::Publish;
use crate::intake::value_buffer::ValueBuffer;
use crate::intake::{self, ProvedTopics, canary, thread};
use crate::small_file::read_file;
use crate::telemetry::{BrokerRefusal, Telemetry};
use crate::trust::{self, ServerTls};

/// The most messages of devices that wait for the recorder. Without room, connections wait for their turn; a longer
/// queue would only make them wait longer.
const QUEUE: usize = 2048;
/// The wait after a failure to accept a connection: the process has too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
/// The most connections that wait to be authenticated; further ones are closed at once, because any client can open
/// many and send nothing.
const MAX_PENDING: usize = 1024;
/// The most bytes of large packets that have not arrived completely.
const MAX_LARGE: usize = 32 << 20;
/// The most bytes of the filters of all subscriptions.
const MAX_FILTERS: usize = 128 << 20;
/// The resolution of the moments of announcements and ticks.
const MILLISECOND: Duration = Duration::from_millis(1);
/// How often expired sessions are removed.
const CHECK: Duration = Duration::from_secs(1);
/// How long connections may take to end when the listener stops.
const SHUTDOWN: Duration = Duration::from_secs(3);
/// The first byte from a client that uses TLS.
const TLS_HANDSHAKE: u8 = 0x16;

/// The bound addresses, before they are served.
pub struct Listener {
    config: Config,
    access: Arc<AccessControl>,
    tls: Option<Arc<ServerTls>>,
    sockets: Vec<Socket>,
}

/// The last failure to accept a connection.
type Failed = Mutex<Option<Instant>>;

struct Socket {
    listener: std::net::TcpListener,
    tls: Option<Arc<ServerTls>>,
    is_websocket: bool,
}

impl Listener {
    /// # Errors
    /// An address in use, a file that cannot be read, or an unsafe configuration; each with advice.
    pub async fn bind(config: &Config, telemetry: Arc<Telemetry>) -> anyhow::Result<Listener> {
        if let Some(problem) = config.problems().into_iter().next() {
            anyhow::bail!(problem);
        }
        let access = Arc::new(AccessControl::open(config, telemetry)?);
        // Read the files first: `rollcall check` tries them while a running instance uses the addresses.
        let open = |tls: &super::ListenerTls| ServerTls::open("broker", &tls.files, Vec::new(), read_file);
        let tls =
            config.tls.as_ref().map(open).transpose().context("the broker cannot speak TLS")?.map(Arc::new);
        let mut sockets = Vec::new();
        for (option, _, address) in config.addresses() {
            let bound = TcpListener::bind(address).await.and_then(TcpListener::into_std);
            let listener = bound
                .with_context(|| format!("the broker cannot listen on {address}; check broker.{option}"))?;
            let tls = tls.clone().filter(|_| option.ends_with("tls_listen"));
            sockets.push(Socket { listener, tls, is_websocket: option.starts_with("websocket") });
        }
        Ok(Listener { config: config.clone(), access, tls, sockets })
    }

    /// The renewable certificates.
    pub fn tls(&self) -> Option<Arc<ServerTls>> {
        self.tls.clone()
    }

    /// Starts the listener and its recorder. Returns the function with which Rollcall publishes retained messages
    /// there.
    pub(in crate::intake) fn start(
        self,
        config: &intake::Config,
        hearing: &ProvedTopics,
        values: Option<Arc<ValueBuffer>>,
        writer: &EngineWriter,
        tasks: &mut JoinSet<()>,
    ) -> Publish {
        let ProvedTopics { topics, probes, .. } = hearing;
        let telemetry = writer.telemetry.clone();
        let name = config.connection(1);
        telemetry.connection_configured(&name, &name);
        let client_id = format!("{}-{name}", config.client_id);
        let key = canary::Key::of_fleet(writer.roll.key());
        let (queue, queued) = mpsc::channel(QUEUE);
        let (router, max_connections) = (Router::default(), self.config.max_connections);
        let shared = Arc::new(Shared {
            config: self.config,
            door: Door {
                reader: intake::reader(config, hearing, &client_id, key, values, &telemetry),
                clock: writer.clock.clone(),
                filters: topics.filters(),
                queue,
                number: rand::random::<u32>().into(),
                announced: Notify::new(),
                standstill: Default::default(),
            },
            access: self.access,
            sessions: Sessions::new(max_connections, router.kept.clone()),
            router,
            large: Shares::new(MAX_LARGE),
            filters: Shares::new(MAX_FILTERS),
            pauses: Arc::default(),
            stop: writer.stop.clone(),
        });
        let (_, link) = watch::channel(Link::to_devices(answers(&shared)));
        let (prove, _) = watch::channel(Proof::default());
        // No broker stores messages while the process is away.
        let reporter = HearingReporter::new((&name, &client_id), None, Duration::ZERO, prove, probes.clone());
        let (reporter, is_applying) = (reporter.without_broker(), shared.pauses.is_applying.clone());
        let recorder = Recorder { writer: writer.clone(), reporter, link, is_applying };
        let (most, pace) = (config.max_batch, (writer.roll.pace().at(&name), config.canary_period));
        let addresses = shared.config.addresses().map(|(_, scheme, address)| format!("{scheme}://{address}"));
        telemetry.listening(&name, &addresses.collect::<Vec<String>>().join(" "));
        let publish = retaining(&shared);
        let pauses = shared.pauses.clone();
        let served = async move {
            tokio::join!(recorder.record(queued, most), serve(self.sockets, shared, pace));
        };
        tasks.spawn(async move { thread::on_its_own(&name, move || pauses.pause(), served).await });
        publish
    }
}

/// Serves until it is stopped.
async fn serve(sockets: Vec<Socket>, shared: Arc<Shared>, pace: (BrokerPace, Duration)) {
    let (stop, tasks) = (shared.stop.clone(), TaskTracker::new());
    let pending = Shares::new(MAX_PENDING);
    let failed = Arc::<Failed>::default();
    for Socket { listener, tls, is_websocket } in sockets {
        let listener = TcpListener::from_std(listener).expect("sockets can be watched at a start");
        let (shared, pending, failed) = (shared.clone(), pending.clone(), failed.clone());
        let accepting =
            Accepting { listener, tls, is_websocket, shared, tasks: tasks.clone(), pending, failed };
        tasks.spawn(stop.clone().run_until_cancelled_owned(accepting.run()));
    }
    // In a task of its own, a tick queues behind the connections whose packets arrived before it.
    tasks.spawn(stop.clone().run_until_cancelled_owned(tick(shared.clone(), pace, failed)));
    stop.run_until_cancelled(end_sessions(&shared)).await;
    tasks.close();
    // Nothing depends on this wait: a device repeats messages that were not acknowledged.
    let _ = timeout(SHUTDOWN, tasks.wait()).await;
}

/// Publishes retained messages of Rollcall, as long as the listener serves.
fn retaining(shared: &Arc<Shared>) -> Publish {
    let shared: Weak<Shared> = Arc::downgrade(shared);
    Arc::new(move |topic, payload| {
        shared.upgrade().is_none_or(|shared| shared.publish_retained(topic, payload))
    })
}

/// Publishes answers, as long as the listener serves.
fn answers(shared: &Arc<Shared>) -> Answers {
    // A weak reference: the queue closes when the last holder of [`Shared`] drops it.
    let shared: Weak<Shared> = Arc::downgrade(shared);
    Arc::new(move |to, answer| shared.upgrade().iter().for_each(|shared| shared.answer(to, &answer)))
}

/// Queues a tick once a period, until Rollcall stops. While no connection can be accepted, there is no tick, and the
/// time is blind.
async fn tick(shared: Arc<Shared>, (pace, period): (BrokerPace, Duration), failed: Arc<Failed>) {
    let mut early = None;
    loop {
        let failed = *failed.lock();
        let accepts = failed.is_none_or(|at| monotonic().duration_since(at) > 2 * ACCEPT_RETRY);
        let sent_at = shared.door.clock.now();
        // Read the packets that have arrived so far first.
        yield_now().await;
        if accepts && !shared.door.tick(sent_at).await {
            return;
        }
        // An announcement waits for a tick in a later millisecond.
        let period = pace.period(period);
        if shared.door.wait_for_announcement(period).await {
            shared.pauses.hurry(monotonic());
            let wait = intake::mqtt::wait_for_announcements(early, monotonic(), MILLISECOND);
            tokio::time::sleep(period.min(wait)).await;
            early = Some(monotonic());
        }
    }
}

/// Removes expired sessions; never returns.
async fn end_sessions(shared: &Shared) {
    let mut checks = tokio::time::interval(CHECK);
    loop {
        checks.tick().await;
        for session in shared.sessions.trim() {
            shared.without_room(&session);
        }
        for will in shared.sessions.expire(monotonic(), &shared.router) {
            shared.publish_will(will).await;
        }
    }
}

/// A loop that accepts connections on one address.
struct Accepting {
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    is_websocket: bool,
    shared: Arc<Shared>,
    tasks: TaskTracker,
    pending: Arc<Shares>,
    failed: Arc<Failed>,
}

impl Accepting {
    /// Accepts connections; never returns.
    async fn run(self) {
        let access = &self.shared.access;
        let mut before = monotonic();
        loop {
            let accepted = self.listener.accept().await;
            let now = monotonic();
            self.shared.pauses.arrived(std::mem::replace(&mut before, now), now);
            match accepted {
                Ok((stream, from)) => match self.pending.take(from.ip(), 1) {
                    Some(permit) => self.spawn(stream, from, permit),
                    None => {
                        let why = "too many connections are not authenticated yet";
                        access.refuse(BrokerRefusal::Connection, &Peer::unknown(from), why);
                    }
                },
                Err(error) => {
                    let why =
                        format!("no connection can be accepted: {error}; raise the limit of open files");
                    access.refuse(BrokerRefusal::Connection, &Peer::unknown(NOWHERE), &why);
                    *self.failed.lock() = Some(monotonic());
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn spawn(&self, stream: TcpStream, from: SocketAddr, permit: Share) {
        let (shared, tls, is_websocket) = (self.shared.clone(), self.tls.clone(), self.is_websocket);
        self.tasks.spawn(async move {
            let opening = Box::pin(timeout(WITHIN, open(stream, tls, is_websocket)));
            let Some(opened) = shared.stop.run_until_cancelled(opening).await else { return };
            let (stream, why) = match opened {
                Ok(Ok(stream)) => return handshake::serve(shared, stream, from, permit).await,
                Ok(Err((stream, why))) => (stream, format!("its handshake failed: {why}")),
                Err(_) => (None, "its handshake took longer than 10 s".to_owned()),
            };
            shared.access.refuse(BrokerRefusal::Login, &Peer::unknown(from), &why);
            if let Some(mut stream) = stream {
                close(&mut stream, b"").await;
            }
        });
    }
}

/// Opens the MQTT stream within TLS and a WebSocket, if they are used.
async fn open(
    stream: TcpStream,
    tls: Option<Arc<ServerTls>>,
    is_websocket: bool,
) -> Result<Box<dyn Stream>, NotOpened> {
    // Without this option, a small answer may wait for more data.
    let _ = stream.set_nodelay(true);
    let stream: Box<dyn Stream> = match tls {
        Some(tls) => {
            let accepted = TlsAcceptor::from(tls.config()).accept(stream).await;
            Box::new(accepted.map_err(|error| (None, handshake_failure(&error)))?)
        }
        None => {
            let mut first = [0];
            let count = stream.peek(&mut first).await.unwrap_or(0);
            if count == 1 && first == [TLS_HANDSHAKE] {
                let why = "it speaks TLS; let it connect to broker.tls_listen or websocket_tls_listen, or without TLS";
                return Err((Some(Box::new(stream)), why.to_owned()));
            }
            Box::new(stream)
        }
    };
    Ok(if is_websocket { Box::new(websocket::accept(stream).await?) } else { stream })
}

/// The reason why a handshake failed, for operators.
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
