//! One connection, from its CONNECT to its end: reads packets, hands messages over, and writes answers.
//!
//! # When it stops reading
//! A connection may have [`WINDOW`] unrecorded messages in the queue. Its socket is not read beyond that, above its
//! rates, or while its messages find no room: nothing is refused or dropped. While the engine is away, the messages of
//! a device stop here; the connection stays open, and its pings are answered as long as it is read.
//!
//! # Turns
//! At most [`CHUNK`] bytes are read and [`TURN`] messages handed over at a time, and connections that wait for room get
//! it in order. So a device that floods takes one turn among many.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::task::yield_now;
use tokio::time::{Sleep, sleep_until, timeout};

use super::access_control::Peer;
use super::bytes::{KEEP_ALIVE, QUOTA, STOPPING, TAKEN_OVER, Version, Violation};
use super::codec::{self, Arrived};
use super::encode;
use super::limits::{Rate, Share};
use super::message::Wire;
use super::session::{self, Session};
use super::sessions::LastWill;
use super::shared::{QUEUED_WITHIN, Shared};
use crate::clock::monotonic;
use crate::intake::record::QueuedMessage;
use crate::telemetry::BrokerRefusal;

/// The most messages of one connection that wait to be recorded. Clients of MQTT 5 receive this number.
pub const WINDOW: u16 = 100;
/// Messages that are queued at once.
pub const TURN: usize = 64;
/// Bytes that are read at once.
const CHUNK: usize = 8 << 10;
/// How long a write may wait for a client that does not read.
const WRITE: Duration = Duration::from_secs(20);
/// Packets up to this size are read at any time; larger packets share a bounded amount of memory.
const SMALL: usize = 4 << 10;
/// How long a large packet may take to arrive.
const LARGE_WITHIN: Duration = Duration::from_secs(60);
/// The wait before a packet that finds no room tries again.
const AGAIN: Duration = Duration::from_millis(20);
/// A timer that is later than this shows that the thread did not run.
const ON_TIME: Duration = Duration::from_millis(20);
/// How long the thread may then take to read what has arrived meanwhile, from all clients.
const SECOND_LOOK: Duration = Duration::from_millis(500);
/// How long a stopping connection waits for acknowledgements, and a client may take to read the reason of the end.
const LEAVING: Duration = Duration::from_secs(1);
/// The timer of a connection that waits for nothing.
const LATER: Duration = Duration::from_secs(3600);

pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The reason why a stream does not speak MQTT, and the stream, if it has to be closed.
pub type NotOpened = (Option<Box<dyn Stream>>, String);

/// Why a connection ends.
#[derive(Debug)]
pub enum End {
    /// The client has left. `with_will`: its last will is due.
    Left {
        with_will: bool,
    },
    Lost,
    Violation(Violation),
    /// The session gives up the connection.
    GivenUp(session::End),
    Silent,
    Stopping,
}

type HandingOver = Pin<Box<dyn Future<Output = ()> + Send>>;

pub struct Connection {
    pub shared: Arc<Shared>,
    pub stream: Box<dyn Stream>,
    /// Bytes that were read but are no whole packet yet.
    pub input: Vec<u8>,
    pub out: Vec<u8>,
    pub session: Arc<Session>,
    pub number: u64,
    pub peer: Peer,
    pub wire: Wire,
    pub is_bridge: bool,
    pub will: Option<LastWill>,
    /// How long the session outlives the connection.
    pub expiry: Duration,
    /// The longest silence of the client.
    pub silence: Option<Duration>,
    pub aliases: HashMap<u16, Box<str>>,
    /// Messages that were read and not queued yet.
    pub batch: Vec<QueuedMessage>,
    pub handing_over: Option<HandingOver>,
    pub messages: Rate,
    pub bytes: Rate,
    /// The memory share of a large packet that is arriving, and its deadline.
    pub large: Option<(Share, Instant)>,
    pub heard: Instant,
    /// When the client counts as silent, if the thread did not run when it would have before.
    pub second_look: Option<Instant>,
    /// When a packet that found no room tries again.
    pub again: Option<Instant>,
    pub timer: Pin<Box<Sleep>>,
}

impl Connection {
    /// Serves the client until the connection ends.
    pub async fn run(mut self) {
        let end = loop {
            if let Err(end) = self.step().await {
                break end;
            }
        };
        self.finish(end).await;
    }

    async fn step(&mut self) -> Result<(), End> {
        self.process()?;
        self.hand_over();
        self.flush().await?;
        self.wait().await
    }

    /// Handles the packets that have arrived, as far as the limits allow.
    fn process(&mut self) -> Result<(), End> {
        let (input, now) = (std::mem::take(&mut self.input), monotonic());
        let mut at = 0;
        let result = loop {
            if self.pause(now).is_some() || self.is_full() {
                break Ok(());
            }
            match codec::frame(&input[at..], self.shared.config.max_packet, Some(self.wire.version)) {
                Err(violation) => break Err(End::Violation(violation)),
                Ok(Arrived::Part(length)) => break self.make_room(&input[at..], length, now),
                Ok(Arrived::Whole(frame)) => {
                    at += frame.length;
                    self.large = None;
                    if let Err(end) = self.receive(&frame, now) {
                        break Err(end);
                    }
                }
            }
        };
        if at < input.len() {
            self.input = input;
            self.input.drain(..at);
        }
        result
    }

    /// Takes a share of memory for a large packet that has arrived in part.
    fn make_room(&mut self, part: &[u8], length: usize, now: Instant) -> Result<(), End> {
        if part.is_empty() || length <= SMALL {
            return Ok(());
        }
        if let Some((_, until)) = &self.large {
            let why = Violation { code: QUOTA, why: "a large packet more slowly than within a minute" };
            return if *until <= now { Err(End::Violation(why)) } else { Ok(()) };
        }
        let at_its_rate = length as f64 / f64::from(self.shared.config.max_bytes_per_second.max(1));
        match self.shared.large.take(self.peer.from.ip(), length) {
            Some(share) => {
                let until = now + LARGE_WITHIN.max(Duration::from_secs_f64(2.0 * at_its_rate));
                self.large = Some((share, until));
            }
            None => self.again = Some(now + AGAIN),
        }
        Ok(())
    }

    /// The moment until which nothing may be read.
    fn pause(&self, now: Instant) -> Option<Instant> {
        [self.messages.waits_until(now), self.bytes.waits_until(now), self.again].into_iter().flatten().max()
    }

    /// Returns whether the connection has the most messages in the queue.
    fn is_full(&self) -> bool {
        self.batch.len() >= TURN
            || self.wire.version == Version::Four && self.session.unrecorded() >= WINDOW.into()
    }

    fn hand_over(&mut self) {
        if self.batch.is_empty() || self.handing_over.is_some() {
            return;
        }
        let queue = &self.shared.door.queue;
        if let Ok(permits) = queue.try_reserve_many(self.batch.len()) {
            permits.zip(self.batch.drain(..)).for_each(|(permit, message)| permit.send(message));
            return;
        }
        let (queue, batch) = (queue.clone(), std::mem::take(&mut self.batch));
        self.handing_over = Some(Box::pin(async move {
            if let Ok(permits) = queue.reserve_many(batch.len()).await {
                permits.zip(batch).for_each(|(permit, message)| permit.send(message));
            }
        }));
    }

    /// Writes everything that is due to the client.
    async fn flush(&mut self) -> Result<(), End> {
        loop {
            if let Some(why) = self.session.ended(self.number) {
                return Err(End::GivenUp(why));
            }
            let (large, is_all) = self.session.write(&mut self.out, monotonic());
            // An idle connection holds no buffer.
            let out = std::mem::take(&mut self.out);
            if out.is_empty() && is_all {
                return Ok(());
            }
            self.write(&out).await?;
            if let Some(message) = large {
                self.write(&message.payload).await?;
            }
            self.stream.flush().await.map_err(|_| End::Lost)?;
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), End> {
        let mut written = 0;
        while written < bytes.len() {
            tokio::select! {
                biased;
                count = self.stream.write(&bytes[written..]) => match count {
                    Ok(0) | Err(_) => return Err(End::Lost),
                    Ok(count) => written += count,
                },
                () = self.session.wake.notified() => {
                    // This comes last, so that acknowledgements that woke the connection are written first.
                    if let Some(why) = self.session.ended(self.number) {
                        return Err(End::GivenUp(why));
                    }
                }
                () = async { self.shared.stop.cancelled().await; tokio::time::sleep(LEAVING).await } => return Err(End::Lost),
                () = tokio::time::sleep(WRITE) => return Err(End::GivenUp(session::End::Slow)),
            }
        }
        Ok(())
    }

    /// Waits until there is something to do.
    async fn wait(&mut self) -> Result<(), End> {
        let (now, is_stopping) = (monotonic(), self.shared.stop.is_cancelled());
        if is_stopping
            && self.batch.is_empty()
            && self.handing_over.is_none()
            && self.session.unrecorded() == 0
        {
            return Err(End::Stopping);
        }
        self.again.take_if(|again| *again <= now);
        let pause = self.pause(now);
        // Handle the packets that have arrived before reading more.
        let has_packet = !self.input.is_empty()
            && matches!(codec::frame(&self.input, usize::MAX, None), Ok(Arrived::Whole(_)));
        if has_packet && pause.is_none() && !self.is_full() {
            return Ok(());
        }
        let may_read = pause.is_none() && !self.is_full() && !is_stopping;
        let next = self.next_timer(now, pause, is_stopping);
        if self.timer.deadline() != next.into()
            && (next < self.timer.deadline().into_std() || self.timer.is_elapsed())
        {
            self.timer.as_mut().reset(next.into());
        }
        let Connection { stream, input, session, handing_over, timer, shared, .. } = self;
        let read = tokio::select! {
            () = session.wake.notified() => return Ok(()),
            () = handed_over(handing_over) => {
                *handing_over = None;
                return Ok(());
            }
            () = timer.as_mut() => return self.on_timer(may_read),
            () = shared.stop.cancelled(), if !is_stopping => return Ok(()),
            read = read(stream, input), if may_read => read,
        };
        match read {
            Ok(0) | Err(_) => Err(End::Lost),
            Ok(count) => {
                let now = monotonic();
                self.shared.pauses.arrived(std::mem::replace(&mut self.heard, now), now);
                self.second_look = None;
                self.bytes.take(count, now);
                if self.bytes.waits_until(now).is_some() {
                    self.held_back("it sends more than broker.max_bytes_per_second");
                }
                if count == CHUNK {
                    yield_now().await;
                }
                Ok(())
            }
        }
    }

    fn next_timer(&self, now: Instant, pause: Option<Instant>, is_stopping: bool) -> Instant {
        let silent = self.silent_at().unwrap_or(now + LATER);
        let large = self.large.as_ref().map(|(_, until)| *until).filter(|until| *until > now);
        let stop = is_stopping.then_some(now + LEAVING);
        [pause, large, stop].into_iter().flatten().fold(silent, Instant::min)
    }

    /// When the client counts as silent if nothing more arrives.
    fn silent_at(&self) -> Option<Instant> {
        let silence = self.silence?;
        Some(self.second_look.unwrap_or(self.heard + silence))
    }

    fn on_timer(&mut self, may_read: bool) -> Result<(), End> {
        let now = monotonic();
        if self.shared.stop.is_cancelled() {
            return Err(End::Stopping);
        }
        if !may_read {
            // The socket was not read, so silence of the client proves nothing.
            (self.heard, self.second_look) = (now, None);
        }
        let Some(silent_at) = self.silent_at().filter(|at| now >= *at) else { return Ok(()) };
        // If the thread did not run, as in a pause of the machine, it has not read the socket either. One more look is
        // enough: on a busy machine every timer may be late.
        if self.second_look.is_some() || now.duration_since(silent_at) <= ON_TIME {
            return Err(End::Silent);
        }
        self.second_look = Some(now + SECOND_LOOK);
        Ok(())
    }

    pub fn held_back(&self, why: &str) {
        self.shared.access.held_back(&self.peer, why);
    }

    /// Sends the client the reason of the end, queues the messages that were read, and leaves the session.
    async fn finish(mut self, end: End) {
        let code = self.report(&end);
        let keeps_will = !matches!(end, End::Left { with_will: false });
        let (shared, will) = (self.shared.clone(), self.will.take().filter(|_| keeps_will));
        let due = shared.sessions.leave(&self.session, self.number, self.expiry, will, &shared.router);
        self.hand_over();
        let handing_over = async {
            while let Some(handing_over) = self.handing_over.take() {
                handing_over.await;
                self.hand_over();
            }
        };
        // If the queue does not move (blind time), these messages are lost; none of them was acknowledged. Otherwise
        // devices that keep reconnecting would hold all connections while the engine is away.
        let _ = timeout(QUEUED_WITHIN, shared.stop.run_until_cancelled(handing_over)).await;
        for will in due {
            shared.publish_will(will).await;
        }
        if let Some(code) = code {
            self.out.clear();
            encode::ended(&mut self.out, self.wire.version, code);
            close(&mut self.stream, &self.out).await;
        }
    }

    /// Logs an end that an operator should know of; returns the reason code for the client, if it gets one.
    fn report(&self, end: &End) -> Option<u8> {
        let refuse = |what, why: &str| self.shared.access.refuse(what, &self.peer, why);
        match end {
            End::Left { .. } | End::Lost => None,
            End::Violation(Violation { code, why }) => {
                refuse(BrokerRefusal::Packet, &format!("it sent {why}"));
                Some(*code)
            }
            End::GivenUp(session::End::TakenOver) => Some(TAKEN_OVER),
            End::GivenUp(session::End::Slow) => {
                refuse(
                    BrokerRefusal::Reader,
                    "it does not read the messages that it is sent; it is disconnected",
                );
                Some(QUOTA)
            }
            End::Silent => Some(KEEP_ALIVE),
            End::Stopping => Some(STOPPING),
        }
    }
}

async fn handed_over(handing_over: &mut Option<HandingOver>) {
    match handing_over {
        Some(handing_over) => handing_over.await,
        None => std::future::pending().await,
    }
}

/// Reads once, and appends the bytes to `input`.
pub async fn read(stream: &mut Box<dyn Stream>, input: &mut Vec<u8>) -> io::Result<usize> {
    std::future::poll_fn(|context| poll_into(stream, context, input)).await
}

/// Reads once, as [`read`] does. The buffer is on the stack, so that idle connections need none.
pub fn poll_into(
    stream: &mut Box<dyn Stream>,
    context: &mut Context<'_>,
    input: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    let mut chunk = [MaybeUninit::uninit(); CHUNK];
    let mut chunk = ReadBuf::uninit(&mut chunk);
    ready!(Pin::new(stream).poll_read(context, &mut chunk))?;
    input.extend_from_slice(chunk.filled());
    Poll::Ready(Ok(chunk.filled().len()))
}

/// Writes the last bytes, and closes. Closing a socket with unread input resets the connection, and the client would
/// not get the last bytes; so input is read for a moment longer.
pub async fn close(stream: &mut Box<dyn Stream>, last: &[u8]) {
    let closed = async {
        stream.write_all(last).await?;
        stream.shutdown().await?;
        let mut rest = Vec::new();
        while read(stream, &mut rest).await? > 0 {
            rest.clear();
        }
        io::Result::Ok(())
    };
    let _ = timeout(LEAVING, closed).await;
}

/// A timer that is set when it is needed.
pub fn timer() -> Pin<Box<Sleep>> {
    Box::pin(sleep_until((monotonic() + LATER).into()))
}
