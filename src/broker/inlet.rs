//! What the library reads from a device comes through here: no faster, no larger and no more than is
//! allowed.
//!
//! A device above its rate is not refused anything. It is read more slowly, so that its own connection
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

use super::frames::{Frame, Frames, Violation};
use super::guest::Guest;

/// Frames up to this are read at any time; larger ones share a bound.
const SMALL: u32 = 2 << 10;
/// That bound, in KiB, over all connections.
const MOST_LARGE: usize = 32 << 10;
/// How long a large frame may take to arrive.
const LARGE_WITHIN: Duration = Duration::from_secs(60);
/// Bytes at QoS 2 that may wait for their release over all connections, before those that have more than
/// a small share are closed.
const MOST_UNRELEASED: u64 = 32 << 20;
const SHARE: u64 = 16 << 10;
/// Bytes that are read at a time.
const CHUNK: usize = 2 << 10;

/// What all connections share.
pub(super) struct Bounds {
    large: Arc<Semaphore>,
    unreleased: AtomicU64,
}

/// A connection, as the library reads and writes it.
pub(super) struct Inlet<S> {
    stream: S,
    guest: Arc<Guest>,
    bounds: Arc<Bounds>,
    frames: Frames,
    raw: Box<[u8]>,
    /// What of it was read and not looked at.
    unseen: std::ops::Range<usize>,
    ready: Vec<u8>,
    given: usize,
    announced: Option<Frame>,
    rate: Rate,
    held_back: Option<Pin<Box<Sleep>>>,
    is_paid: bool,
    // Within locks that are never locked, because a future need not be shareable.
    acquiring: Mutex<Option<Acquiring>>,
    cut: Mutex<Pin<Box<WaitForCancellationFutureOwned>>>,
    large: Option<OwnedSemaphorePermit>,
    deadline: Option<Pin<Box<Sleep>>>,
    unreleased: u64,
    /// What is left to be written of a frame.
    writing: usize,
}

type Acquiring =
    Pin<Box<dyn Future<Output = std::result::Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// Messages a second, and as many at once as would be allowed in one.
struct Rate {
    a_second: f64,
    left: f64,
    at: Instant,
}

impl Bounds {
    pub fn new() -> Bounds {
        Bounds { large: Arc::new(Semaphore::new(MOST_LARGE)), unreleased: AtomicU64::new(0) }
    }
}

impl Rate {
    fn new(a_second: u32) -> Rate {
        let a_second = f64::from(a_second);
        Rate { a_second, left: a_second, at: Instant::now() }
    }

    /// Takes one, or says how long there is none.
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

impl<S> Inlet<S> {
    pub fn new(
        stream: S,
        guest: Arc<Guest>,
        bounds: Arc<Bounds>,
        max_packet: usize,
        max_rate: u32,
    ) -> Inlet<S> {
        let cut = Mutex::new(Box::pin(guest.cut.clone().cancelled_owned()));
        Inlet {
            stream,
            guest,
            cut,
            bounds,
            frames: Frames::new(max_packet),
            raw: vec![0; CHUNK].into(),
            unseen: 0..0,
            ready: Vec::new(),
            given: 0,
            announced: None,
            rate: Rate::new(max_rate),
            held_back: None,
            is_paid: false,
            acquiring: Mutex::new(None),
            large: None,
            deadline: None,
            unreleased: 0,
            writing: 0,
        }
    }

    /// What is pending ends with an error if the connection is cut.
    fn unless_cut<T>(&mut self, context: &mut Context<'_>, poll: Poll<Result<T>>) -> Poll<Result<T>> {
        let cut = self.cut.get_mut().unwrap_or_else(PoisonError::into_inner);
        match poll {
            Poll::Pending if cut.as_mut().poll(context).is_ready() => {
                Poll::Ready(Err(ErrorKind::ConnectionAborted.into()))
            }
            poll => poll,
        }
    }

    /// Lets a frame through as soon as the rate and the room for large ones allow it.
    fn poll_admit(&mut self, context: &mut Context<'_>, frame: Frame) -> Poll<Result<()>> {
        while frame.counts() && !self.is_paid {
            if let Some(sleep) = &mut self.held_back {
                ready!(sleep.as_mut().poll(context));
                self.held_back = None;
            }
            match self.rate.take(Instant::now()) {
                None => self.is_paid = true,
                Some(wait) => {
                    self.guest.is_held_back();
                    self.held_back = Some(Box::pin(tokio::time::sleep(wait)));
                }
            }
        }
        if frame.length > SMALL && self.large.is_none() {
            let acquiring = self.acquiring.get_mut().unwrap_or_else(PoisonError::into_inner);
            let large = &self.bounds.large;
            let acquired = acquiring.get_or_insert_with(|| {
                let size = frame.length.div_ceil(1 << 10).min(MOST_LARGE as u32);
                Box::pin(large.clone().acquire_many_owned(size))
            });
            let acquired = ready!(acquired.as_mut().poll(context));
            *acquiring = None;
            self.large = acquired.ok();
            self.deadline = Some(Box::pin(tokio::time::sleep(LARGE_WITHIN)));
        }
        (self.is_paid, self.announced) = (false, None);
        if frame.is_message() {
            self.guest.sends(frame.length);
        }
        let passed = self.frames.pass(frame, &mut self.ready);
        Poll::Ready(passed.map_err(|why| self.broken(why)))
    }

    /// Looks at what was read, up to the next frame.
    fn look(&mut self) -> Result<()> {
        let mut unseen = &self.raw[self.unseen.clone()];
        let taken = self.frames.take(&mut unseen, &mut self.ready);
        self.unseen.start = self.unseen.end - unseen.len();
        self.announced = taken.map_err(|why| self.broken(why))?;
        self.guest.unretained(self.frames.take_unretained());
        self.account()
    }

    fn account(&mut self) -> Result<()> {
        let (before, now) = (self.unreleased, self.frames.unreleased());
        if now == before {
            return Ok(());
        }
        self.unreleased = now;
        let all = &self.bounds.unreleased;
        let sum = match now > before {
            true => all.fetch_add(now - before, Ordering::Relaxed) + (now - before),
            false => all.fetch_sub(before - now, Ordering::Relaxed) - (before - now),
        };
        if sum > MOST_UNRELEASED && now > SHARE { Err(self.broken(Violation::Unreleased)) } else { Ok(()) }
    }

    fn broken(&self, why: Violation) -> Error {
        self.guest.breaks(why);
        Error::new(ErrorKind::InvalidData, "the client sent what it may not")
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Inlet<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let me = self.get_mut();
        loop {
            if me.given < me.ready.len() {
                let count = to.remaining().min(me.ready.len() - me.given);
                to.put_slice(&me.ready[me.given..me.given + count]);
                me.given += count;
                return Poll::Ready(Ok(()));
            }
            me.ready.clear();
            me.given = 0;
            if let Some(frame) = me.announced {
                let admitted = me.poll_admit(context, frame);
                ready!(me.unless_cut(context, admitted))?;
            } else if me.unseen.is_empty() {
                if me.frames.is_between() {
                    // The library asks for more, so it is done with what it had.
                    (me.large, me.deadline) = (None, None);
                }
                if me.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(context).is_ready()) {
                    return Poll::Ready(Err(ErrorKind::TimedOut.into()));
                }
                let mut chunk = ReadBuf::new(&mut me.raw);
                let read = Pin::new(&mut me.stream).poll_read(context, &mut chunk);
                let count = chunk.filled().len();
                ready!(me.unless_cut(context, read))?;
                me.unseen = 0..count;
                if me.unseen.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
            me.look()?;
        }
    }
}

/// The library writes a frame in one go, or goes on with it where the connection could not take all.
impl<S: AsyncWrite + Unpin> AsyncWrite for Inlet<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<Result<usize>> {
        let me = self.get_mut();
        if me.writing == 0 {
            if me.frames.swallows(from) {
                return Poll::Ready(Ok(from.len()));
            }
            me.writing = from.len();
        }
        let written = Pin::new(&mut me.stream).poll_write(context, from);
        let written = ready!(me.unless_cut(context, written))?;
        me.writing = me.writing.saturating_sub(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let me = self.get_mut();
        let flushed = Pin::new(&mut me.stream).poll_flush(context);
        me.unless_cut(context, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

impl<S> Drop for Inlet<S> {
    fn drop(&mut self) {
        self.bounds.unreleased.fetch_sub(self.unreleased, Ordering::Relaxed);
    }
}
