//! MQTT over WebSockets: the bytes of binary messages, whatever their boundaries (MQTT 5, 6; RFC 6455).
//!
//! # Why frames are read here
//! A library collects a whole message first, so any client could fill memory with endless messages, before its login
//! and outside the limits of packets. Here bytes go on as they arrive.

use std::convert::Infallible;
use std::future::{poll_fn, ready as answered};
use std::io::{Cursor, Error, ErrorKind, Result};
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::tungstenite::Error as Refused;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::handshake::server::create_response_with_body;
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Control, Data, OpCode};

use super::connection::{NotOpened, Stream, poll_into};
use super::limits::Rate;
use crate::clock::monotonic;

/// The most bytes of a frame to the client.
const MAX_FRAME: usize = 16 << 10;
/// The largest head of a request, in bytes; the least that the library allows.
const MAX_HEAD: usize = 8 << 10;
/// Above this number of unread bytes, a client gets no more answers to its pings.
const MAX_UNREAD: usize = 4 << 10;
/// The longest payload of a control frame.
const MAX_CONTROL: u64 = 125;
/// The most frames without data in a second: reading them is work that the limits of the client do not count.
const MAX_EMPTY: u32 = 100;

/// A WebSocket as a stream of bytes.
pub struct WebSocket {
    stream: Box<dyn Stream>,
    /// Bytes that were read but not returned yet.
    input: Vec<u8>,
    /// The rest of the payload, in bytes, and the position in the mask.
    left: u64,
    mask: [u8; 4],
    masked: usize,
    /// The message continues in the next data frame.
    is_open: bool,
    is_closed: bool,
    empty: Rate,
    /// Frames to the client that are not written yet.
    out: Vec<u8>,
}

/// Accepts the request of a client for a WebSocket of the protocol `mqtt`; answers any other request with the reason of
/// the refusal.
///
/// # Errors
/// Any other request; the error holds the stream, which has to be closed.
pub async fn accept(stream: Box<dyn Stream>) -> std::result::Result<WebSocket, NotOpened> {
    let refusal = OnceLock::new();
    let answer = service_fn(|request: Request<Incoming>| {
        let response = upgrade(&request).unwrap_or_else(|(status, why)| {
            let mut response = Response::new(Full::from(format!("{why}\n")));
            *response.status_mut() = status;
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            if status == StatusCode::UPGRADE_REQUIRED {
                response.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
            }
            let _ = refusal.set(why);
            response
        });
        answered(Ok::<_, Infallible>(response))
    });
    let mut connection =
        http1::Builder::new().max_buf_size(MAX_HEAD).serve_connection(TokioIo::new(stream), answer);
    let served = poll_fn(|context| connection.poll_without_shutdown(context)).await;
    let parts = connection.into_parts();
    let stream = parts.io.into_inner();
    let why = match (served, refusal.get()) {
        (Ok(()), None) => return Ok(WebSocket::new(stream, parts.read_buf.into())),
        (Ok(()), Some(why)) => why.clone(),
        (Err(error), _) => format!("it does not speak HTTP: {error}"),
    };
    Err((Some(stream), why))
}

fn upgrade<B>(request: &Request<B>) -> std::result::Result<Response<Full<Bytes>>, (StatusCode, String)> {
    let mut response = create_response_with_body(request, Full::default).map_err(|error| match error {
        Refused::Protocol(
            ProtocolError::MissingConnectionUpgradeHeader
            | ProtocolError::MissingUpgradeWebSocketHeader
            | ProtocolError::MissingSecWebSocketVersionHeader,
        ) => (StatusCode::UPGRADE_REQUIRED, "MQTT within WebSockets (version 13) is spoken here".to_owned()),
        error => (StatusCode::BAD_REQUEST, format!("it asks for no WebSocket: {error}")),
    })?;
    let asked = request.headers().get_all(SEC_WEBSOCKET_PROTOCOL);
    let asked = asked.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let spoken = asked.map(str::trim).find(|protocol| matches!(*protocol, "mqtt" | "mqttv3.1"));
    let spoken = spoken.and_then(|protocol| HeaderValue::from_str(protocol).ok());
    let why = "it does not ask for the WebSocket protocol mqtt";
    let spoken = spoken.ok_or_else(|| (StatusCode::BAD_REQUEST, why.to_owned()))?;
    response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, spoken);
    Ok(response)
}

fn invalid<T>(why: &str) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidData, why))
}

impl WebSocket {
    fn new(stream: Box<dyn Stream>, input: Vec<u8>) -> WebSocket {
        let (left, mask, masked, is_open, is_closed) = (0, [0; 4], 0, false, false);
        let (empty, out) = (Rate::new(MAX_EMPTY, monotonic()), Vec::new());
        WebSocket { stream, input, left, mask, masked, is_open, is_closed, empty, out }
    }

    /// Reads the header of the next frame, or a whole control frame; `false` if it has not arrived yet.
    fn next_frame(&mut self) -> Result<bool> {
        let mut cursor = Cursor::new(&self.input);
        let Some((header, length)) = FrameHeader::parse(&mut cursor).map_err(Error::other)? else {
            return Ok(false);
        };
        let size = cursor.position() as usize;
        let FrameHeader { is_final, rsv1: false, rsv2: false, rsv3: false, opcode, mask: Some(mask) } =
            header
        else {
            return invalid("a frame with an extension, or without a mask");
        };
        match opcode {
            OpCode::Data(kind @ (Data::Binary | Data::Continue))
                if (kind == Data::Continue) == self.is_open =>
            {
                self.input.drain(..size);
                (self.left, self.mask, self.masked, self.is_open) = (length, mask, 0, !is_final);
            }
            OpCode::Control(kind) if is_final && length <= MAX_CONTROL => {
                let whole = size + length as usize;
                if self.input.len() < whole {
                    return Ok(false);
                }
                let mut payload: Vec<u8> = self.input.drain(..whole).skip(size).collect();
                unmask(&mut payload, mask, 0);
                self.is_closed |= kind == Control::Close;
                if kind != Control::Pong && self.out.len() < MAX_UNREAD {
                    let answer = if kind == Control::Ping { Control::Pong } else { Control::Close };
                    self.put(OpCode::Control(answer), &payload)?;
                }
            }
            _ => return invalid("a frame that is out of place, or with text"),
        }
        if self.left == 0 {
            let now = monotonic();
            self.empty.take(1, now);
            if self.empty.waits_until(now).is_some() {
                return invalid("more than a hundred frames without data in a second");
            }
        }
        Ok(true)
    }

    /// Queues a frame for writing.
    fn put(&mut self, opcode: OpCode, payload: &[u8]) -> Result<()> {
        let header = FrameHeader { opcode, ..FrameHeader::default() };
        header.format(payload.len() as u64, &mut self.out).map_err(Error::other)?;
        self.out.extend(payload);
        Ok(())
    }

    /// Returns the bytes of the frame that have arrived.
    fn hand_on(&mut self, to: &mut ReadBuf<'_>) {
        let count =
            self.input.len().min(to.remaining()).min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let begin = to.filled().len();
        to.put_slice(&self.input[..count]);
        unmask(&mut to.filled_mut()[begin..], self.mask, self.masked);
        self.masked = (self.masked + count) % 4;
        self.left -= count as u64;
        self.input.drain(..count);
    }

    /// Reads more; `false` at the end of the stream.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<bool>> {
        if self.input.is_empty() {
            // An idle connection keeps no buffer.
            self.input = Vec::new();
        }
        let count = ready!(poll_into(&mut self.stream, context, &mut self.input))?;
        Poll::Ready(Ok(count > 0))
    }

    /// Writes the queued frames.
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        while !self.out.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(context, &self.out))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                count => drop(self.out.drain(..count)),
            }
        }
        self.out = Vec::new();
        Poll::Ready(Ok(()))
    }
}

fn unmask(bytes: &mut [u8], mask: [u8; 4], begin: usize) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte ^= mask[(begin + index) % 4];
    }
}

impl AsyncRead for WebSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let socket = &mut *self;
        loop {
            if socket.left > 0 && !socket.input.is_empty() {
                socket.hand_on(to);
                return Poll::Ready(Ok(()));
            }
            let is_read = socket.left == 0 && socket.next_frame()?;
            if !socket.out.is_empty()
                && let Poll::Ready(Err(why)) = socket.poll_drain(context)
            {
                return Poll::Ready(Err(why));
            }
            if socket.is_closed || !is_read && !ready!(socket.poll_fill(context))? {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for WebSocket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<Result<usize>> {
        // Write the previous frame first, so that no more than one frame is buffered.
        ready!(self.poll_drain(context))?;
        let part = &from[..from.len().min(MAX_FRAME)];
        self.put(OpCode::Data(Data::Binary), part)?;
        match self.poll_drain(context) {
            Poll::Ready(Err(why)) => Poll::Ready(Err(why)),
            _ => Poll::Ready(Ok(part.len())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if !self.is_closed {
            self.is_closed = true;
            self.put(OpCode::Control(Control::Close), b"")?;
        }
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut masked = payload.to_vec();
        unmask(&mut masked, mask, 0);
        let length = match payload.len() {
            short @ ..126 => vec![0x80 | short as u8],
            long => [&[0xfe][..], &(long as u16).to_be_bytes()].concat(),
        };
        [&[first], &length[..], &mask, &masked].concat()
    }

    fn socket() -> (WebSocket, DuplexStream) {
        let (stream, client) = duplex(1 << 20);
        (WebSocket::new(Box::new(stream), Vec::new()), client)
    }

    #[tokio::test]
    async fn bytes_of_binary_messages_go_on_wherever_they_are_cut_and_pings_are_answered() {
        let (mut socket, mut client) = socket();
        let long: Vec<u8> = (0..10_000).map(|number| number as u8).collect();
        let sent = [
            frame(0x02, b"ab"),
            frame(0x89, b"ping"),
            frame(0x00, b""),
            frame(0x80, b"cd"),
            frame(0x82, &long),
            frame(0x8a, b""),
            frame(0x88, b"\x03\xe8"),
            frame(0x82, b"too late"),
        ];
        let sending = async {
            for byte in sent.concat() {
                client.write_all(&[byte]).await.unwrap();
            }
        };
        let mut received = Vec::new();
        let (_, read) = tokio::join!(sending, socket.read_to_end(&mut received));
        read.unwrap();
        assert_eq!(received, [b"abcd", &long[..]].concat());
        socket.write_all(b"answer").await.unwrap();
        socket.write_all(&long[..200]).await.unwrap();
        socket.flush().await.unwrap();
        drop(socket);
        let mut answers = Vec::new();
        client.read_to_end(&mut answers).await.unwrap();
        let expected =
            [&b"\x8a\x04ping\x88\x02\x03\xe8\x82\x06answer\x82\x7e\0\xc8"[..], &long[..200]].concat();
        assert_eq!(answers, expected);
    }

    #[tokio::test]
    async fn frames_against_the_protocol_end_the_stream_and_none_is_collected() {
        let unmasked = b"\x82\x02ab".to_vec();
        let of_text = frame(0x81, b"text");
        let (unopened, reopened) = (frame(0x80, b"a"), [frame(0x02, b""), frame(0x82, b"")].concat());
        let (compressed, in_parts) = (frame(0xc2, b"a"), frame(0x09, b""));
        let (long, many) = (frame(0x89, &[0; 126]), frame(0x8a, b"").repeat(1000));
        let empty = [frame(0x02, b""), frame(0x00, b"").repeat(1000)].concat();
        for sent in [unmasked, of_text, unopened, reopened, compressed, in_parts, long, many, empty] {
            let (mut socket, mut client) = socket();
            client.write_all(&sent).await.unwrap();
            assert!(socket.read_to_end(&mut Vec::new()).await.is_err(), "{:?}", &sent[..6]);
        }
        // An endless message takes no memory, because each byte is passed on.
        let (mut socket, mut client) = socket();
        client.write_all(b"\x02\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0abc").await.unwrap();
        let mut part = [0; 3];
        socket.read_exact(&mut part).await.unwrap();
        assert_eq!((&part, socket.input.len()), (b"abc", 0));
    }
}
