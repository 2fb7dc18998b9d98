//! MQTT within WebSockets: the bytes of binary messages, wherever these are cut (MQTT 5, 6; RFC 6455).
//!
//! # Why frames are read here
//! A library collects a message before it hands it on, so any client could fill memory with messages that never end,
//! before it is known and beside the limits of packets. Here bytes go on as they arrive.

use std::io::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::{HeaderValue, StatusCode, header::SEC_WEBSOCKET_PROTOCOL};

use super::connection::Stream;

/// Bytes that are read at a time, and that a frame to the client has at most.
const CHUNK: usize = 4 << 10;
const MAX_FRAME: usize = 16 << 10;
/// A client that reads nothing gets no further answers to its pings.
const MAX_UNREAD: usize = 4 << 10;
/// The longest payload of a control frame.
const MAX_CONTROL: u64 = 125;

const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// The last frame of a message.
const FINAL: u8 = 0x80;

/// A WebSocket as a stream of bytes.
pub struct WebSocket {
    stream: Box<dyn Stream>,
    /// What was read and not handed on.
    input: Vec<u8>,
    /// The payload that is left of a frame with data, and where in the mask it goes on.
    left: u64,
    mask: [u8; 4],
    masked: usize,
    /// A message goes on in the next frame with data.
    is_open: bool,
    is_closed: bool,
    /// Frames to the client that are not written.
    out: Vec<u8>,
}

/// Answers the upgrade of a client that asks for the protocol `mqtt`.
///
/// # Errors
/// The client speaks something else.
pub async fn accept(stream: Box<dyn Stream>) -> Result<WebSocket> {
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
    let stream = tokio_tungstenite::accept_hdr_async(stream, answer).await;
    let stream = stream.map_err(|error| Error::other(error.to_string()))?.into_inner();
    let (input, out) = (Vec::new(), Vec::new());
    Ok(WebSocket { stream, input, left: 0, mask: [0; 4], masked: 0, is_open: false, is_closed: false, out })
}

fn invalid<T>(why: &str) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidData, why))
}

/// A frame of which the header has arrived, and how many bytes that has.
struct Header {
    first: u8,
    length: u64,
    mask: [u8; 4],
    size: usize,
}

/// `None`: it has not arrived whole.
fn header(input: &[u8]) -> Result<Option<Header>> {
    let [first, second, rest @ ..] = input else { return Ok(None) };
    if first & 0x70 != 0 || second & 0x80 == 0 {
        return invalid("a frame with an extension, or without a mask");
    }
    let more = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let Some((length, rest)) = rest.split_at_checked(more) else { return Ok(None) };
    let Some(mask) = rest.first_chunk() else { return Ok(None) };
    let long = length.iter().fold(0, |length, byte| length << 8 | u64::from(*byte));
    let length = if more == 0 { (second & 0x7f).into() } else { long };
    Ok(Some(Header { first: *first, length, mask: *mask, size: 2 + more + 4 }))
}

impl WebSocket {
    /// Reads the header of the next frame, and a control frame whole; `false`: it has not arrived.
    fn next_frame(&mut self) -> Result<bool> {
        let Some(Header { first, length, mask, size }) = header(&self.input)? else { return Ok(false) };
        let (is_final, kind) = (first & FINAL != 0, first & 15);
        match kind {
            BINARY | CONTINUATION if (kind == CONTINUATION) == self.is_open => {
                self.input.drain(..size);
                (self.left, self.mask, self.masked, self.is_open) = (length, mask, 0, !is_final);
            }
            CLOSE | PING | PONG if is_final && length <= MAX_CONTROL => {
                let whole = size + length as usize;
                if self.input.len() < whole {
                    return Ok(false);
                }
                let mut payload: Vec<u8> = self.input.drain(..whole).skip(size).collect();
                unmask(&mut payload, mask, 0);
                self.is_closed |= kind == CLOSE;
                if kind != PONG && self.out.len() < MAX_UNREAD {
                    let answer = if kind == PING { PONG } else { CLOSE };
                    self.out.extend([FINAL | answer, payload.len() as u8]);
                    self.out.extend(payload);
                }
            }
            _ => return invalid("a frame that is out of place, or with text"),
        }
        Ok(true)
    }

    /// Hands on the bytes of the frame that have arrived.
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

    /// Reads more; `false`: the stream has ended.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<bool>> {
        if self.input.is_empty() {
            // A connection that is idle keeps no buffer.
            self.input = Vec::new();
        }
        let mut chunk = [MaybeUninit::uninit(); CHUNK];
        let mut chunk = ReadBuf::uninit(&mut chunk);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut chunk))?;
        self.input.extend_from_slice(chunk.filled());
        Poll::Ready(Ok(!chunk.filled().is_empty()))
    }

    /// Writes the frames that wait.
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
        // What was written before has gone out first, so that no more than one frame is buffered.
        ready!(self.poll_drain(context))?;
        let part = &from[..from.len().min(MAX_FRAME)];
        self.out.push(FINAL | BINARY);
        match part.len() {
            short @ ..126 => self.out.push(short as u8),
            long => {
                self.out.push(126);
                self.out.extend((long as u16).to_be_bytes());
            }
        }
        self.out.extend(part);
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
            self.out.extend([FINAL | CLOSE, 0]);
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
        let (input, out) = (Vec::new(), Vec::new());
        let stream: Box<dyn Stream> = Box::new(stream);
        let (left, mask, masked, is_open, is_closed) = (0, [0; 4], 0, false, false);
        (WebSocket { stream, input, left, mask, masked, is_open, is_closed, out }, client)
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
        let long = frame(0x89, &[0; 126]);
        for sent in [unmasked, of_text, unopened, reopened, compressed, in_parts, long] {
            let (mut socket, mut client) = socket();
            client.write_all(&sent).await.unwrap();
            assert!(socket.read_to_end(&mut Vec::new()).await.is_err(), "{sent:?}");
        }
        // A message without an end takes no memory: each byte is handed on.
        let (mut socket, mut client) = socket();
        client.write_all(b"\x02\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0abc").await.unwrap();
        let mut part = [0; 3];
        socket.read_exact(&mut part).await.unwrap();
        assert_eq!((&part, socket.input.len()), (b"abc", 0));
    }
}
