//! MQTT within WebSockets: the bytes of binary messages, wherever these are cut (MQTT 5, 6).

use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::{Sink, Stream as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::{HeaderValue, StatusCode, header::SEC_WEBSOCKET_PROTOCOL};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Bytes, Message};

use super::connection::Stream;

/// Bytes that are read and written at a time.
const BUFFER: usize = 4 << 10;

/// A WebSocket as a stream of bytes.
pub struct WebSocket {
    stream: WebSocketStream<Box<dyn Stream>>,
    /// What is left of the message that is being read.
    left: Bytes,
}

/// Answers the upgrade of a client that asks for the protocol `mqtt`.
///
/// # Errors
/// The client speaks something else.
pub async fn accept(stream: Box<dyn Stream>, max_packet: usize) -> Result<WebSocket> {
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(0)
        .max_write_buffer_size(max_packet.saturating_mul(2) + (1 << 20))
        .max_message_size(Some(max_packet))
        .max_frame_size(Some(max_packet));
    #[expect(clippy::result_large_err, reason = "the library asks for it")]
    let answer = |request: &Request, mut response: Response| {
        let asked = request.headers().get_all(SEC_WEBSOCKET_PROTOCOL);
        let asked = asked.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        match asked.map(str::trim).find(|protocol| matches!(*protocol, "mqtt" | "mqttv3.1")) {
            Some(protocol) => {
                let value = HeaderValue::from_str(protocol).expect("it came in a header");
                response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, value);
                Ok(response)
            }
            None => {
                let mut refusal =
                    ErrorResponse::new(Some("ask for the WebSocket protocol mqtt\n".to_owned()));
                *refusal.status_mut() = StatusCode::BAD_REQUEST;
                Err(refusal)
            }
        }
    };
    let stream = tokio_tungstenite::accept_hdr_async_with_config(stream, answer, Some(config)).await;
    Ok(WebSocket { stream: stream.map_err(error)?, left: Bytes::new() })
}

fn error(error: tungstenite::Error) -> Error {
    Error::other(error.to_string())
}

impl AsyncRead for WebSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        while self.left.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_next(context)) {
                None | Some(Ok(Message::Close(_))) => return Poll::Ready(Ok(())),
                Some(Ok(Message::Binary(bytes))) => self.left = bytes,
                // The library answers pings.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Text(_))) => return Poll::Ready(Err(ErrorKind::InvalidData.into())),
                Some(Err(why)) => return Poll::Ready(Err(error(why))),
            }
        }
        let count = self.left.len().min(to.remaining());
        to.put_slice(&self.left.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WebSocket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<Result<usize>> {
        // What was written before has gone out first, so that no more than one message is buffered.
        ready!(Pin::new(&mut self.stream).poll_flush(context)).map_err(error)?;
        let message = Message::Binary(Bytes::copy_from_slice(from));
        Pin::new(&mut self.stream).start_send(message).map_err(error)?;
        Poll::Ready(Ok(from.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context).map_err(error)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_close(context).map_err(error)
    }
}
