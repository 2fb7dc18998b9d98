//! A stream with a time limit for a client that reads slowly.
//!
//! A write may wait for [`WriteLimit::patience`], plus one second for each [`WriteLimit::slowest_rate`] bytes that the
//! client has read. Time without data to write does not count.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::activity::Activity;
use crate::clock::monotonic;

/// The slowest pace at which a client may read an answer.
#[derive(Clone, Copy)]
pub(super) struct WriteLimit {
    pub patience: Duration,
    /// Bytes a second.
    pub slowest_rate: u64,
}

impl Default for WriteLimit {
    fn default() -> WriteLimit {
        WriteLimit { patience: Duration::from_secs(10), slowest_rate: 4096 }
    }
}

pub(super) struct WriteLimited<S> {
    stream: S,
    limit: WriteLimit,
    activity: Arc<Activity>,
    /// The number of the request whose answer is written.
    answer: u64,
    taken: u64,
    waited: Duration,
    waits_since: Option<Instant>,
    deadline: Pin<Box<Sleep>>,
}

impl<S> WriteLimited<S> {
    pub fn new(stream: S, limit: WriteLimit, activity: Arc<Activity>) -> WriteLimited<S> {
        let deadline = Box::pin(tokio::time::sleep(limit.patience));
        WriteLimited {
            stream,
            limit,
            activity,
            answer: 0,
            taken: 0,
            waited: Duration::ZERO,
            waits_since: None,
            deadline,
        }
    }

    /// Notes the result of a write, and fails a write past its deadline.
    fn note(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(written) => {
                self.moved(written.as_ref().map_or(0, |count| *count as u64));
                Poll::Ready(written)
            }
            Poll::Pending => {
                self.stalls();
                ready!(self.deadline.as_mut().poll(cx));
                self.activity.set_too_slow();
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the reader does not read")))
            }
        }
    }

    fn stalls(&mut self) {
        if self.waits_since.is_some() {
            return;
        }
        if self.answer != self.activity.requests() {
            self.answer = self.activity.requests();
            (self.taken, self.waited) = (0, Duration::ZERO);
        }
        let earned = Duration::from_secs(self.taken / self.limit.slowest_rate.max(1));
        let left = (self.limit.patience + earned).saturating_sub(self.waited);
        let now = monotonic();
        self.waits_since = Some(now);
        self.deadline.as_mut().reset((now + left).into());
        self.activity.stalls();
    }

    fn moved(&mut self, count: u64) {
        self.taken += count;
        if let Some(since) = self.waits_since.take() {
            self.waited += monotonic().duration_since(since);
            self.activity.progresses();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteLimited<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteLimited<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.note(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
