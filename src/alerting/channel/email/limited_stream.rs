//! A connection with a limit for the length of an answer.
//!
//! The library reads a line of an answer to its end, and a server that never ends its line would fill
//! the memory. The bytes between two commands are one answer here, and they are limited.
//!
//! The library also refuses an answer that is no UTF-8, such as one in Latin-1, whatever its code: a mail that the
//! server accepted would be sent again. So bytes beyond ASCII become question marks, but for a connection that begins
//! in the clear and goes on with TLS, whose bytes are seen here before they are decrypted.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use lettre::transport::smtp::client::AsyncTokioStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// The longest answer, with TLS of a connection that begins in the clear around it. The library itself takes
/// 100 000 bytes, and RFC 5321 asks for lines of 512.
const MAX_BYTES: u64 = 128 << 10;

#[derive(Debug)]
pub(super) struct LimitedStream<S> {
    stream: S,
    /// Whether the bytes are text.
    is_text: bool,
    /// Bytes that were read since the last write.
    read: u64,
}

impl<S> LimitedStream<S> {
    pub fn new(stream: S, is_text: bool) -> LimitedStream<S> {
        LimitedStream { stream, is_text, read: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read > MAX_BYTES {
            let text = format!("an answer of the mail server is longer than {MAX_BYTES} bytes");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let read = &mut buffer.filled_mut()[before..];
        self.read += read.len() as u64;
        if self.is_text {
            read.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'?');
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.read = 0;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl AsyncTokioStream for LimitedStream<TcpStream> {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }
}

impl AsyncTokioStream for LimitedStream<TlsStream<TcpStream>> {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.get_ref().0.peer_addr()
    }
}
