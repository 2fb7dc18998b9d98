//! The stream of a device as a transport of the library.

use std::io::Result;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use mqtt5::broker::transport::WebSocketTransport;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::broker::client_stream::ClientStream;

pub struct Transport<S> {
    pub stream: ClientStream<S>,
    pub from: SocketAddr,
}

impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> WebSocketTransport for Transport<S> {
    fn peer_addr(&self) -> mqtt5::error::Result<SocketAddr> {
        Ok(self.from)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Transport<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Transport<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
