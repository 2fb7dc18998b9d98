//! The connection to the broker, over all its losses.
//!
//! The rules are a state machine without I/O ([`state`]); the loop here polls the client, carries out the machine's
//! actions and waits between connections.
//!
//! Each connection is a client of its own with a number. An acknowledgement carries the number of the connection that
//! brought its message, and is dropped if that is not the current one: on a new connection the same packet id means
//! another message. The broker delivers again every message that was not acknowledged; a repeated heartbeat is
//! harmless.
//!
//! # Why polling never waits
//! The client library does everything inside `poll`: it reads, acknowledges, and keeps the connection alive. So while a
//! connection exists, the loop awaits nothing else, and never drops a poll that has begun: it may be in the middle of a
//! packet. Messages are queued without waiting ([`super`] says what happens without room), and before a connection
//! begins, the queue has room for all messages that may come unacknowledged.
//!
//! # Why a broker that sends too much is held back
//! Once Mosquitto (up to 2.0.11 at least) has a backlog, it answers each acknowledgement with as many messages as the
//! receive maximum. If Rollcall ended the connection, the broker would restart the backlog each time, and Rollcall
//! would stay blind. So messages beyond the receive maximum stay unread in the connection until enough are
//! acknowledged.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use rumqttc::{AsyncClient, ConnectionError, Event, EventLoop, Packet};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval_at, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::drops::BrokerDrops;
use super::reader::{Incoming, Reader};
use crate::backoff::Backoff;
use crate::clock::{Clock, Stopwatch, Timestamp, monotonic};
use crate::telemetry::ConnectionLoss;

mod anonymous;
mod batch_sender;
mod canaries;
mod carry_out;
mod check;
mod failure;
mod host;
mod host_connection;
mod link;
mod message_age;
mod probe_publisher;
mod probe_schedule;
mod read_coalescer;
mod redelivery;
mod session;
mod state;
mod state_client;
mod takeovers;

pub use anonymous::accepts_anonymous;
pub(super) use batch_sender::BatchSender;
pub(super) use canaries::CanaryPublisher;
pub use check::{TopicProblem, probe};
use failure::{describe, loss};
pub(super) use host_connection::HostConnection;
#[cfg(feature = "broker")]
pub(super) use link::Answers;
use link::Unacknowledged;
pub(super) use link::{BrokerAck, Link, Proof};
pub(super) use probe_publisher::ProbePublisher;
pub(super) use probe_schedule::ProbeSchedule;
use read_coalescer::ReadCoalescer;
pub(super) use session::Session;
use state::{Action, Actions, Now};
pub(super) use state::{ConnectionState, UNPROVED_TRIPS};
pub(super) use state_client::StateConnection;
pub(super) use takeovers::Takeovers;

/// The time between two attempts to connect.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(15) };

/// A connection that lasted this long counts as a success, so the next attempt comes soon: its end has another cause
/// than earlier failures, and every second without a connection is blind.
const SUCCESS: Duration = Duration::from_secs(5);

/// How long the broker may take to accept the connection: the limit of the first attempt, and the highest limit.
const CONNECT: Duration = Duration::from_secs(5);
const MAX_CONNECT: Duration = Duration::from_secs(30);

/// The delay of a canary for announcements: in a storm of announcements, few canaries serve them all.
const TOGETHER: Duration = Duration::from_millis(4);

/// The least time between two early canaries: a client that announces in a loop causes at most twenty a second.
const APART: Duration = Duration::from_millis(50);

/// How long the canary for a new announcement waits, so that one canary serves all waiting announcements: at least
/// `least`. `last`: the last early canary.
pub(super) fn wait_for_announcements(last: Option<Instant>, now: Instant, least: Duration) -> Duration {
    let apart = last.map_or(Duration::ZERO, |last| (last + APART).saturating_duration_since(now));
    apart.max(least)
}

/// How long the broker may take to close the connection after DISCONNECT.
const DISCONNECT: Duration = Duration::from_secs(1);

/// The connection, over all its losses.
pub(super) struct Connection {
    /// The name of the broker.
    pub broker: String,
    pub name: String,
    pub session: Arc<Session>,
    pub state: ConnectionState,
    pub reader: Reader,
    /// Notes that the connection with this number hears no more, or that the first connection, with the next number,
    /// does not hear yet.
    pub note_lost: Box<dyn Fn(u64) + Send + Sync>,
    pub clock: Clock,
    /// Follows the broker's count of dropped messages; only one connection does.
    pub drops: Option<BrokerDrops>,
    /// `None` while Rollcall is stopping: no more messages are taken.
    pub queue: Option<BatchSender>,
    pub link: watch::Sender<Link>,
    /// The proof from the recorder about this connection.
    pub proof: watch::Receiver<Proof>,
    pub canaries: CanaryPublisher,
    /// Proves that the filters of the fleet are heard; only one connection does.
    pub probes: Option<ProbePublisher>,
    /// When the broker accepted the current connection.
    pub accepted: Option<Timestamp>,
    pub takeovers: Takeovers,
    /// Takes messages until `stop`,
    pub stop: CancellationToken,
    /// and stays connected until everything is recorded.
    pub recorded: CancellationToken,
}

/// How a connection ended.
enum ConnectionEnd {
    Lost(ConnectionLoss, String),
    Left,
}

/// The client of the current connection, and its parts.
struct OpenConnection {
    client: AsyncClient,
    ticks: Interval,
    coalescer: ReadCoalescer,
    unacknowledged: Arc<Unacknowledged>,
    /// Actions that are still to be carried out.
    actions: Actions,
    /// The moment of an early tick for an announcement, if there is one.
    early: Option<Instant>,
    /// The last early tick.
    last_early: Option<Instant>,
    /// The moment from which a tick is late enough for every waiting announcement.
    proves: Option<Instant>,
}

/// The number of failures in a row at the end of a connection that lasted for `lasted`.
fn failures_after(before: u32, lasted: Duration) -> u32 {
    if lasted < SUCCESS { before + 1 } else { 1 }
}

/// How long the broker may take to accept the connection after that many failures in a row. A distant broker needs more
/// time; a long limit from the start would delay the attempt that succeeds.
fn connect_timeout(failures: u32) -> Duration {
    (CONNECT * 3u32.pow(failures.min(8))).min(MAX_CONNECT)
}

/// An interval with its first tick at `first`.
fn ticks(first: Instant, period: Duration) -> Interval {
    let mut ticks = interval_at(first.into(), period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl OpenConnection {
    fn new(client: AsyncClient, ticks: Interval) -> OpenConnection {
        OpenConnection {
            client,
            ticks,
            coalescer: ReadCoalescer::default(),
            unacknowledged: Arc::default(),
            actions: Actions::new(),
            early: None,
            last_early: None,
            proves: None,
        }
    }

    /// Lets a tick come this long after an announcement that arrives now. An early tick that is due before stays, and
    /// another one follows it.
    fn tick_after(&mut self, wait: Duration, now: Instant) {
        let at = now + (wait + TOGETHER).max(wait_for_announcements(self.last_early, now, TOGETHER));
        self.proves = self.proves.max(Some(at));
        self.come_early(at, now);
    }

    /// Notes a tick.
    fn ticked(&mut self, now: Instant) {
        if self.early.take().is_some() {
            self.last_early = Some(now);
        }
        self.proves = self.proves.filter(|at| *at > now);
        if let Some(at) = self.proves {
            self.come_early(at.max(now + wait_for_announcements(self.last_early, now, TOGETHER)), now);
        }
    }

    fn come_early(&mut self, at: Instant, now: Instant) {
        let wait = at.saturating_duration_since(now);
        if self.ticks.period() > wait && self.early.is_none_or(|early| at < early) {
            self.early = Some(at);
            self.ticks.reset_after(wait);
        }
    }
}

impl Connection {
    pub async fn run(mut self) {
        let broker = self.session.address.to_string();
        let telemetry = self.reader.telemetry.clone();
        let mut failures = 0;
        (self.note_lost)(self.state.number());
        while self.has_room().await {
            let began = Stopwatch::start();
            let Err(end) = self.connect(failures).await;
            (self.note_lost)(self.state.number());
            self.hand_over();
            self.clean_up(&end);
            let accepted = self.accepted.take();
            if let ConnectionEnd::Lost(loss, _) = &end {
                self.note_takeover(*loss, accepted);
            }
            self.link.send_replace(Link { taken_since: self.takeovers.since(), ..Link::default() });
            let ConnectionEnd::Lost(loss, why) = end else { return };
            failures = failures_after(failures, began.elapsed());
            let wait = BACKOFF.wait(failures, rand::random());
            telemetry.mqtt_disconnected((&self.broker, &self.name), &broker, (loss, &why), wait);
            if self.stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// Waits until the queue has room for all messages that a new connection may bring unacknowledged. Returns `false`
    /// if Rollcall is stopping.
    async fn has_room(&self) -> bool {
        let Some(queue) = &self.queue else { return false };
        let room = queue.has_room(self.state.reserved());
        self.stop.run_until_cancelled(room).await == Some(true)
    }

    /// Connects, and stays connected until the connection ends.
    async fn connect(&mut self, failures: u32) -> Result<Infallible, ConnectionEnd> {
        let now = monotonic();
        self.state.on_connect(now);
        let (client, mut events) = self.session.open(self.state.number(), connect_timeout(failures));
        let mut open = OpenConnection::new(client, ticks(now, self.state.period()));
        while let Some(event) = self.next(&mut open, &mut events).await? {
            match event {
                Ok(Event::Incoming(packet)) => {
                    if matches!(packet, Packet::ConnAck(_)) {
                        // The store is read only once; from now on it would only cost a checkpoint for each packet.
                        events.options.clear_session_store();
                    }
                    self.receive(&packet, &mut open)?;
                }
                Ok(_) => {
                    self.state.on_timer(monotonic(), false, &mut open.actions);
                    self.act(&mut open, None)?;
                }
                Err(error) => {
                    let (loss, why) = (loss(&error), describe(&error));
                    self.state.on_disconnect(loss, why, monotonic(), &mut open.actions);
                    self.act(&mut open, None)?;
                }
            }
        }
        if self.state.has_left(&self.proof.borrow()) {
            leave(open.client, events).await;
        }
        // Without DISCONNECT the broker publishes the will. The messages that it gave this member since its last
        // recorded canary are lost.
        Err(ConnectionEnd::Left)
    }

    /// Waits for the next event of the client, and handles timers, answers and proofs meanwhile. Returns `None` if
    /// Rollcall is stopping and everything is recorded.
    async fn next(
        &mut self,
        open: &mut OpenConnection,
        events: &mut EventLoop,
    ) -> Result<Option<Result<Event, ConnectionError>>, ConnectionEnd> {
        let (unacknowledged, most) = (open.unacknowledged.clone(), self.session.most_unacknowledged);
        let held_back = unacknowledged.is_more_than(most).then(Stopwatch::start);
        let mut poll = pin!(async {
            unacknowledged.at_most(most).await;
            events.poll().await
        });
        let is_in_burst = open.coalescer.is_in_burst();
        if is_in_burst && let Poll::Ready(event) = poll_fn(|cx| Poll::Ready(poll.as_mut().poll(cx))).await {
            return Ok(Some(event));
        }
        self.hand_over();
        if is_in_burst {
            open.coalescer.pause();
        }
        let (stop, recorded) = (self.stop.clone(), self.recorded.clone());
        let (mut stopped, mut recorded) = (pin!(stop.cancelled()), pin!(recorded.cancelled()));
        loop {
            let timer = self.state.next_timer();
            // Dropping a future that is not ready loses nothing, because it has not started any work; the poll
            // continues.
            tokio::select! {
                biased;
                () = &mut recorded => return Ok(None),
                () = &mut stopped, if !self.state.is_stopping() => {
                    self.state.on_stop(monotonic(), &mut open.actions);
                }
                () = sleep_until(timer.into()) => {
                    let is_held_back = open.unacknowledged.is_more_than(most);
                    self.state.on_timer(monotonic(), is_held_back, &mut open.actions);
                }
                Ok(()) = self.proof.changed() => {
                    let proof = self.proof.borrow_and_update().clone();
                    self.state.on_proof(&proof, self.now(), &mut open.actions);
                }
                _ = open.ticks.tick(), if self.state.is_sending_canaries() => self.tick(open),
                event = &mut poll => {
                    if let Some(since) = &held_back {
                        self.state.on_read_again(since.elapsed(), self.clock.now());
                    }
                    open.coalescer.on_wake(monotonic());
                    return Ok(Some(event));
                }
            }
            self.act(open, None)?;
        }
    }

    fn now(&self) -> Now {
        Now { clock: self.clock.now(), instant: monotonic() }
    }

    fn receive(&mut self, packet: &Packet, open: &mut OpenConnection) -> Result<(), ConnectionEnd> {
        let now = self.now();
        let room = self.queue.as_ref().map_or(0, BatchSender::room);
        let read = |message: &Incoming| self.reader.read(message, now.clock);
        self.state.on_packet(packet, now, room, read, &mut open.actions);
        let message = match packet {
            Packet::Publish(publish) => Some(publish),
            _ => None,
        };
        self.act(open, message)
    }

    fn tick(&mut self, open: &mut OpenConnection) {
        let (now, period) = (monotonic(), self.state.period());
        if open.ticks.period() != period {
            // A new unit has a shorter timeout.
            open.ticks = ticks(now + period, period);
        }
        open.ticked(now);
        self.take_probe_answers(now, &mut open.actions);
        self.state.on_tick(now, &mut open.actions);
        let now = self.clock.now();
        self.drops.iter_mut().for_each(|drops| drops.settle(now));
        if self.takeovers.settle(now) {
            self.reader.telemetry.session_kept(&self.name);
        }
    }

    fn take_probe_answers(&mut self, now: Instant, actions: &mut Actions) {
        let answers = self.probes.as_mut().map(ProbePublisher::take_answers);
        for (index, answer) in answers.into_iter().flatten() {
            self.state.on_probe_answer(index, answer, now, actions);
        }
    }

    /// Notes the end of the connection in the state and in the probes.
    fn clean_up(&mut self, end: &ConnectionEnd) {
        let now = monotonic();
        let mut actions = Actions::new();
        let loss = match end {
            ConnectionEnd::Lost(loss, _) => Some(*loss),
            ConnectionEnd::Left => None,
        };
        self.take_probe_answers(now, &mut actions);
        self.state.on_end(loss, now, &mut actions);
        let Some(probes) = &mut self.probes else { return };
        probes.connection_lost();
        for action in actions {
            if let Action::ProbeAnswered(index, outcome) = action {
                probes.answered(index, outcome);
            }
        }
    }

    /// Reports that another client keeps taking the session. A member of a share is safe from that: no other client
    /// knows its client id.
    fn note_takeover(&mut self, loss: ConnectionLoss, accepted: Option<Timestamp>) {
        if self.session.share.is_some() {
            return;
        }
        let heard = match self.proof.borrow().canary {
            Timestamp::ZERO => accepted.unwrap_or_default(),
            canary => canary,
        };
        if !self.takeovers.lost(loss, accepted, heard, self.clock.now()) {
            return;
        }
        if let Some(since) = self.takeovers.since() {
            let (id, broker) = (self.session.client_id(), self.session.address.to_string());
            let is_said = self.takeovers.are_said();
            self.reader
                .telemetry
                .session_taken(&self.name, failure::taken_again(id, &broker, since, is_said));
        }
    }

    fn hand_over(&mut self) {
        self.queue.iter_mut().for_each(BatchSender::hand_over);
    }
}

/// Disconnects, so that the broker does not treat the connection as lost.
async fn leave(client: AsyncClient, mut events: EventLoop) {
    let _ = client.try_disconnect_with_timeout(DISCONNECT);
    drop(client);
    let _ = timeout(2 * DISCONNECT, async { while events.poll().await.is_ok() {} }).await;
}

#[cfg(test)]
mod tests;
