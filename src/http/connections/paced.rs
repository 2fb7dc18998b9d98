//! A stream whose reader has to read.
//!
//! An answer may wait [`Pace::patience`] for its reader, and a second more for each [`Pace::slowest`]
//! bytes that the reader took. Time in which Rollcall itself has nothing to write yet does not count.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::conduct::Conduct;

/// How slowly an answer may be read.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    pub patience: Duration,
    /// Bytes a second.
    pub slowest: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { patience: Duration::from_secs(10), slowest: 4096 }
    }
}

pub(super) struct Paced<S> {
    stream: S,
    pace: Pace,
    conduct: Arc<Conduct>,
    /// Which answer is written, by the number of requests.
    answer: u64,
    taken: u64,
    waited: Duration,
    waits_since: Option<Instant>,
    deadline: Pin<Box<Sleep>>,
}

impl<S> Paced<S> {
    pub fn new(stream: S, pace: Pace, conduct: Arc<Conduct>) -> Paced<S> {
        let deadline = Box::pin(tokio::time::sleep(pace.patience));
        Paced {
            stream,
            pace,
            conduct,
            answer: 0,
            taken: 0,
            waited: Duration::ZERO,
            waits_since: None,
            deadline,
        }
    }

    /// What becomes of an attempt to write.
    fn note(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(written) => {
                self.moved(written.as_ref().map_or(0, |count| *count as u64));
                Poll::Ready(written)
            }
            Poll::Pending => {
                self.stalls();
                ready!(self.deadline.as_mut().poll(cx));
                self.conduct.is_too_slow();
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the reader does not read")))
            }
        }
    }

    fn stalls(&mut self) {
        if self.waits_since.is_some() {
            return;
        }
        if self.answer != self.conduct.requests() {
            self.answer = self.conduct.requests();
            (self.taken, self.waited) = (0, Duration::ZERO);
        }
        let earned = Duration::from_secs(self.taken / self.pace.slowest.max(1));
        let left = (self.pace.patience + earned).saturating_sub(self.waited);
        let now = Instant::now();
        self.waits_since = Some(now);
        self.deadline.as_mut().reset(now + left);
        self.conduct.stalls();
    }

    fn moved(&mut self, count: u64) {
        self.taken += count;
        if let Some(since) = self.waits_since.take() {
            self.waited += since.elapsed();
            self.conduct.moves();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
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
