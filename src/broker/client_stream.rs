//! The bytes that the library reads from a device, within the limits on rate, size and number.
//!
//! No message of a device above its rate is refused. The device is read more slowly, so that its own connection
//! holds it back: to a client of MQTT 3.1.1 every refusal of a message reads as success.

use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::client_connection::ClientConnection;
use super::frames::{Frame, FrameFilter, Violation};

/// Frames up to this size are read at any time; larger ones share a limit.
const SMALL: u32 = 2 << 10;
/// That limit, in KiB, over all connections.
const MAX_LARGE: usize = 32 << 10;
/// Frames above this size, which intake does not even read at its defaults, share a pace: so many bytes a second over all
/// connections, of which so much may come at once. What is on its way to intake delays its canaries, and the library
/// holds each message several times.
const BULK: u32 = 16 << 10;
const BULK_A_SECOND: f64 = (16 << 20) as f64;
const BULK_AT_ONCE: Duration = Duration::from_millis(250);
/// How long a large frame may take to arrive.
const LARGE_WITHIN: Duration = Duration::from_secs(60);
/// Bytes at QoS 2 that may wait for their release over all connections, before those that have more than
/// a small share are closed.
const MAX_UNRELEASED: u64 = 32 << 20;
const SHARE: u64 = 16 << 10;
/// Bytes that are read at a time.
const CHUNK: usize = 2 << 10;

/// Limits that all connections share.
pub(super) struct SharedLimits {
    large: Arc<Semaphore>,
    unreleased: AtomicU64,
    /// When all bulk that was admitted is paid for.
    bulk_until: Mutex<Instant>,
}

/// The stream of a connection, as the library reads and writes it.
pub(super) struct ClientStream<S> {
    stream: S,
    connection: Arc<ClientConnection>,
    limits: Arc<SharedLimits>,
    frames: FrameFilter,
    raw: Box<[u8]>,
    /// The range of `raw` that was read from the device and not filtered yet.
    unseen: std::ops::Range<usize>,
    /// Filtered bytes, and how many of them the library has taken.
    ready: Vec<u8>,
    taken: usize,
    announced: Option<Frame>,
    rate: RateLimit,
    held_back: Option<Pin<Box<Sleep>>>,
    is_counted: bool,
    is_paced: bool,
    // Within locks that are never locked, because a future need not be `Sync`.
    acquiring: Mutex<Option<PermitFuture>>,
    disconnect: Mutex<Pin<Box<WaitForCancellationFutureOwned>>>,
    large: Option<OwnedSemaphorePermit>,
    deadline: Option<Pin<Box<Sleep>>>,
    unreleased: u64,
    /// Bytes of a frame that are left to be written.
    writing: usize,
    /// The DISCONNECT that says why the connection ends.
    farewell: Option<[u8; 4]>,
}

type PermitFuture =
    Pin<Box<dyn Future<Output = std::result::Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// Messages per second, and as many at once as are allowed in one second.
struct RateLimit {
    a_second: f64,
    left: f64,
    at: Instant,
}

impl SharedLimits {
    pub fn new() -> SharedLimits {
        SharedLimits {
            large: Arc::new(Semaphore::new(MAX_LARGE)),
            unreleased: AtomicU64::new(0),
            bulk_until: Mutex::new(Instant::now()),
        }
    }

    /// Admits a frame, and answers how long it waits for its turn, if at all.
    fn bulk_wait(&self, length: u32, now: Instant) -> Option<Duration> {
        let mut until = self.bulk_until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = (*until).max(now) + Duration::from_secs_f64(f64::from(length) / BULK_A_SECOND);
        let wait = until.saturating_duration_since(now + BULK_AT_ONCE);
        (!wait.is_zero()).then_some(wait)
    }
}

impl RateLimit {
    fn new(a_second: u32) -> RateLimit {
        let a_second = f64::from(a_second);
        RateLimit { a_second, left: a_second, at: Instant::now() }
    }

    /// Takes one message, or returns how long to wait for it.
    fn take(&mut self, now: Instant) -> Option<Duration> {
        if self.a_second <= 0.0 {
            return None;
        }
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * self.a_second;
        (self.left, self.at) = ((self.left + gained).min(self.a_second.max(1.0)), now);
        if self.left < 1.0 {
            return Some(
                Duration::from_secs_f64((1.0 - self.left) / self.a_second) + Duration::from_millis(1),
            );
        }
        self.left -= 1.0;
        None
    }
}

impl<S> ClientStream<S> {
    pub fn new(
        stream: S,
        connection: Arc<ClientConnection>,
        limits: Arc<SharedLimits>,
        max_packet: usize,
        max_rate: u32,
    ) -> ClientStream<S> {
        let disconnect = Mutex::new(Box::pin(connection.disconnect.clone().cancelled_owned()));
        ClientStream {
            stream,
            connection,
            disconnect,
            limits,
            frames: FrameFilter::new(max_packet),
            raw: vec![0; CHUNK].into(),
            unseen: 0..0,
            ready: Vec::new(),
            taken: 0,
            announced: None,
            rate: RateLimit::new(max_rate),
            held_back: None,
            is_counted: false,
            is_paced: false,
            acquiring: Mutex::new(None),
            large: None,
            deadline: None,
            unreleased: 0,
            writing: 0,
            farewell: None,
        }
    }

    /// A pending operation ends with an error when the device is disconnected.
    fn unless_disconnected<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<Result<T>>,
    ) -> Poll<Result<T>> {
        let disconnect = self.disconnect.get_mut().unwrap_or_else(PoisonError::into_inner);
        match poll {
            Poll::Pending if disconnect.as_mut().poll(context).is_ready() => {
                Poll::Ready(Err(ErrorKind::ConnectionAborted.into()))
            }
            poll => poll,
        }
    }

    /// Passes a frame on as soon as the rate and the limit of large frames allow it.
    fn poll_admit(&mut self, context: &mut Context<'_>, frame: Frame) -> Poll<Result<()>> {
        while frame.counts() && !self.is_counted {
            if let Some(sleep) = &mut self.held_back {
                ready!(sleep.as_mut().poll(context));
                self.held_back = None;
            }
            match self.rate.take(Instant::now()) {
                None => self.is_counted = true,
                Some(wait) => {
                    self.connection.rate_exceeded();
                    self.held_back = Some(Box::pin(tokio::time::sleep(wait)));
                }
            }
        }
        if frame.length > BULK && !std::mem::replace(&mut self.is_paced, true) {
            let wait = self.limits.bulk_wait(frame.length, Instant::now());
            if wait.is_some() {
                self.connection.bulk_exceeded();
            }
            self.held_back = wait.map(|wait| Box::pin(tokio::time::sleep(wait)));
        }
        if let Some(sleep) = &mut self.held_back {
            ready!(sleep.as_mut().poll(context));
            self.held_back = None;
        }
        if frame.length > SMALL && self.large.is_none() {
            let acquiring = self.acquiring.get_mut().unwrap_or_else(PoisonError::into_inner);
            let large = &self.limits.large;
            let acquired = acquiring.get_or_insert_with(|| {
                let size = frame.length.div_ceil(1 << 10).min(MAX_LARGE as u32);
                Box::pin(large.clone().acquire_many_owned(size))
            });
            let acquired = ready!(acquired.as_mut().poll(context));
            *acquiring = None;
            self.large = acquired.ok();
            self.deadline = Some(Box::pin(tokio::time::sleep(LARGE_WITHIN)));
        }
        (self.is_counted, self.is_paced, self.announced) = (false, false, None);
        if frame.is_message() {
            self.connection.message_read(frame.length);
        }
        match self.frames.pass(frame, &mut self.ready) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(why) => Poll::Ready(Err(self.violation(why))),
        }
    }

    /// Filters the bytes that were read, up to the next frame.
    fn filter(&mut self) -> Result<()> {
        let mut unseen = &self.raw[self.unseen.clone()];
        let taken = self.frames.take(&mut unseen, &mut self.ready);
        self.unseen.start = self.unseen.end - unseen.len();
        self.announced = match taken {
            Ok(announced) => announced,
            Err(why) => return Err(self.violation(why)),
        };
        self.connection.retain_refused(self.frames.take_unretained());
        if let Some(level) = self.frames.take_unserved() {
            self.connection.level_refused(level);
        }
        self.count_unreleased()
    }

    fn count_unreleased(&mut self) -> Result<()> {
        let (before, now) = (self.unreleased, self.frames.unreleased());
        if now == before {
            return Ok(());
        }
        self.unreleased = now;
        let all = &self.limits.unreleased;
        let sum = match now > before {
            true => all.fetch_add(now - before, Ordering::Relaxed) + (now - before),
            false => all.fetch_sub(before - now, Ordering::Relaxed) - (before - now),
        };
        if sum > MAX_UNRELEASED && now > SHARE { Err(self.violation(Violation::Unreleased)) } else { Ok(()) }
    }

    fn violation(&mut self, why: Violation) -> Error {
        self.connection.violates(why);
        // Not in the middle of a frame of the library.
        self.farewell = self.frames.farewell(why).filter(|_| self.writing == 0);
        Error::new(ErrorKind::InvalidData, "the client sent a packet that it may not send")
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let me = self.get_mut();
        let read = me.poll_filtered(context, to);
        if let Some(farewell) = me.farewell.take() {
            // A few bytes: where there is no room for them, the connection ends without.
            let _ = Pin::new(&mut me.stream).poll_write(context, &farewell);
            let _ = Pin::new(&mut me.stream).poll_flush(context);
        }
        read
    }
}

impl<S: AsyncRead + Unpin> ClientStream<S> {
    fn poll_filtered(&mut self, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let me = self;
        loop {
            if me.taken < me.ready.len() {
                let count = to.remaining().min(me.ready.len() - me.taken);
                to.put_slice(&me.ready[me.taken..me.taken + count]);
                me.taken += count;
                return Poll::Ready(Ok(()));
            }
            me.ready.clear();
            me.taken = 0;
            if let Some(frame) = me.announced {
                let admitted = me.poll_admit(context, frame);
                ready!(me.unless_disconnected(context, admitted))?;
            } else if me.unseen.is_empty() {
                if me.frames.is_between() {
                    // The library asks for more, so it is done with the last frame.
                    (me.large, me.deadline) = (None, None);
                }
                if me.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(context).is_ready()) {
                    return Poll::Ready(Err(ErrorKind::TimedOut.into()));
                }
                let mut chunk = ReadBuf::new(&mut me.raw);
                let read = Pin::new(&mut me.stream).poll_read(context, &mut chunk);
                let count = chunk.filled().len();
                ready!(me.unless_disconnected(context, read))?;
                me.unseen = 0..count;
                if me.unseen.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
            me.filter()?;
        }
    }
}

/// The library writes a frame at once, or continues it where the connection could not take all.
impl<S: AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<Result<usize>> {
        let me = self.get_mut();
        if me.writing == 0 {
            if me.frames.suppresses(from) {
                return Poll::Ready(Ok(from.len()));
            }
            me.writing = from.len();
        }
        let written = Pin::new(&mut me.stream).poll_write(context, from);
        let written = ready!(me.unless_disconnected(context, written))?;
        me.writing = me.writing.saturating_sub(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let me = self.get_mut();
        let flushed = Pin::new(&mut me.stream).poll_flush(context);
        me.unless_disconnected(context, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

impl<S> Drop for ClientStream<S> {
    fn drop(&mut self) {
        self.limits.unreleased.fetch_sub(self.unreleased, Ordering::Relaxed);
    }
}
