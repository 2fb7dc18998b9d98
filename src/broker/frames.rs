//! Filters the MQTT frames of a device before the library reads them.
//!
//! It parses the stream just far enough to know where each frame begins, its type and its
//! length, and enforces five rules:
//!
//! - **No message is retained.** The retain flag is cleared in PUBLISH and in the will of CONNECT:
//!   the message is passed on like any other.
//! - **QoS 0 becomes QoS 1.** The library silently drops a message at QoS 0 without room;
//!   one at QoS 1 waits for room. The acknowledgement that the device does not expect is
//!   suppressed ([`FrameFilter::suppresses`]).
//! - **The first frame is a CONNECT**, and a small one: other clients are not read further than that.
//! - **Messages at QoS 2 that are not released are bounded**, in number and in bytes.
//! - **A packet that is against the protocol ends the connection**, also where the library accepts it: a packet id of 0,
//!   flags that a packet may not have, a filter that is none (see [`checks`]).
//!
//! It allocates nothing in proportion to a frame but SUBSCRIBE and UNSUBSCRIBE, which are small: it passes bytes on as
//! they come.

use std::collections::{HashMap, VecDeque};

mod checks;

/// The largest CONNECT: names, password and will. The will is kept as long as the connection lasts.
pub(super) const MAX_CONNECT: u32 = 16 << 10;
/// Messages at QoS 2 of one connection that may wait for their release; 3.1.1 has no way to ask for fewer
/// than 65535, and its clients keep to twenty or so.
pub(super) const MAX_UNRELEASED: u16 = 100;
/// The packet id of messages that came without one.
const ADDED_ID: u16 = u16::MAX;

/// The largest SUBSCRIBE: as many filters as a device may have, each as long as it may be.
const MAX_SUBSCRIBE: u32 = 64 << 10;

const CONNECT: u8 = 1;
const PUBLISH: u8 = 3;
const PUBACK: u8 = 4;
const PUBREC: u8 = 5;
const PUBREL: u8 = 6;
const PUBCOMP: u8 = 7;
const SUBSCRIBE: u8 = 8;
const UNSUBSCRIBE: u8 = 10;
const PINGREQ: u8 = 12;
const DISCONNECT: u8 = 14;
const AUTH: u8 = 15;
const RETAIN: u8 = 1;

/// Reason codes of MQTT 5.
const MALFORMED: u8 = 0x81;
const PROTOCOL_ERROR: u8 = 0x82;
const BAD_FILTER: u8 = 0x8f;
const RECEIVE_MAXIMUM: u8 = 0x93;
const PACKET_TOO_LARGE: u8 = 0x95;

/// A frame whose header was read and not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    first: u8,
    /// The bytes that follow the header.
    pub length: u32,
}

/// A frame that no client may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// It does not begin with CONNECT, or is not MQTT.
    NotMqtt,
    /// A frame is larger than allowed.
    TooLarge(u32),
    /// More messages at QoS 2 than may wait for their release.
    Unreleased,
    /// A packet is against the protocol: the reason code, and what is wrong.
    Malformed(u8, &'static str),
}

impl Violation {
    /// The reason code of MQTT 5, if it has one.
    fn reason(self) -> Option<u8> {
        match self {
            Violation::NotMqtt => None,
            Violation::TooLarge(_) => Some(PACKET_TOO_LARGE),
            Violation::Unreleased => Some(RECEIVE_MAXIMUM),
            Violation::Malformed(reason, _) => Some(reason),
        }
    }
}

#[derive(Debug)]
enum ReadState {
    Header(Header),
    Announced(Frame),
    Body(Body),
}

#[derive(Debug, Default)]
struct Header {
    first: Option<u8>,
    length: u32,
    bytes: u8,
}

/// How a frame is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rewrite {
    Copy,
    /// CONNECT: its flags follow the name and the level of the protocol.
    Connect,
    /// PUBLISH at QoS 0: a packet id is inserted after the topic.
    InsertId,
    /// PUBLISH at QoS 1 or 2: its packet id follows the topic.
    ReadId {
        qos: u8,
    },
    /// PUBREL: it begins with the packet id.
    Release,
    /// PUBACK, PUBREC and PUBCOMP: likewise.
    Acknowledge,
    /// SUBSCRIBE and UNSUBSCRIBE: gathered, and checked at their end.
    Gather,
}

#[derive(Debug)]
struct Body {
    first: u8,
    rewrite: Rewrite,
    size: u32,
    /// Bytes that have not arrived.
    left: usize,
    /// Bytes that have arrived.
    at: usize,
    /// The length of the text that it begins with.
    text: usize,
    id: u16,
    /// Whether the rest passes unchanged.
    is_plain: bool,
}

/// The filter of one connection.
#[derive(Debug)]
pub(super) struct FrameFilter {
    state: ReadState,
    most: u32,
    has_connected: bool,
    /// The level of the protocol, from CONNECT; and a level that is not served, until it is taken.
    level: u8,
    unserved: Option<u8>,
    /// The body of a SUBSCRIBE or UNSUBSCRIBE.
    gathered: Vec<u8>,
    /// Packet ids of messages that will be acknowledged, in order, and whether the device waits for it.
    to_acknowledge: VecDeque<(u16, bool)>,
    unreleased: HashMap<u16, u32>,
    unreleased_bytes: u64,
    /// Retain flags that were cleared since the last call of `take_unretained`.
    unretained: u64,
}

impl FrameFilter {
    /// No frame may be larger than `most`.
    pub fn new(most: usize) -> FrameFilter {
        FrameFilter {
            state: ReadState::Header(Header::default()),
            most: u32::try_from(most).unwrap_or(u32::MAX),
            has_connected: false,
            level: 0,
            unserved: None,
            gathered: Vec::new(),
            to_acknowledge: VecDeque::new(),
            unreleased: HashMap::new(),
            unreleased_bytes: 0,
            unretained: 0,
        }
    }

    /// Whether the stream is between two frames.
    pub fn is_between(&self) -> bool {
        matches!(&self.state, ReadState::Header(header) if header.first.is_none())
    }

    /// Bytes at QoS 2 that wait for their release.
    pub fn unreleased(&self) -> u64 {
        self.unreleased_bytes
    }

    /// How many retain flags were cleared since the last call.
    pub fn take_unretained(&mut self) -> u64 {
        std::mem::take(&mut self.unretained)
    }

    /// The level of the protocol in a CONNECT that no broker of MQTT 3.1.1 and 5 serves, once. The library refuses it.
    pub fn take_unserved(&mut self) -> Option<u8> {
        self.unserved.take()
    }

    /// The DISCONNECT for a violation, where the device understands one.
    pub fn farewell(&self, why: Violation) -> Option<[u8; 4]> {
        let reason = why.reason().filter(|_| self.level == 5)?;
        Some([DISCONNECT << 4, 2, reason, 0])
    }

    /// Moves bytes of `input` to `output`, up to the next frame that [`FrameFilter::pass`] has to pass on.
    ///
    /// # Errors
    /// A violation; the filter may not be used after it.
    pub fn take(&mut self, input: &mut &[u8], output: &mut Vec<u8>) -> Result<Option<Frame>, Violation> {
        loop {
            match &mut self.state {
                ReadState::Announced(frame) => return Ok(Some(*frame)),
                ReadState::Header(header) => {
                    let Some((byte, rest)) = input.split_first() else { return Ok(None) };
                    *input = rest;
                    if let Some(frame) = header.read(*byte)? {
                        self.check(frame)?;
                        self.state = ReadState::Announced(frame);
                    }
                }
                ReadState::Body(body) => {
                    if body.left == 0 {
                        self.end(output)?;
                        continue;
                    }
                    let Some((byte, rest)) = input.split_first() else { return Ok(None) };
                    if body.is_plain {
                        let count = body.left.min(input.len());
                        output.extend_from_slice(&input[..count]);
                        if body.rewrite == Rewrite::Gather {
                            self.gathered.extend_from_slice(&input[..count]);
                        }
                        (body.left, *input) = (body.left - count, &input[count..]);
                    } else {
                        *input = rest;
                        self.unretained += body.read(*byte, output);
                    }
                }
            }
        }
    }

    fn check(&self, frame: Frame) -> Result<(), Violation> {
        let (kind, most) = (frame.first >> 4, self.most);
        if !self.has_connected && kind != CONNECT {
            return Err(Violation::NotMqtt);
        }
        if self.has_connected {
            checks::check_flags(frame.first)?;
        }
        let most = match kind {
            _ if !self.has_connected => most.min(MAX_CONNECT),
            SUBSCRIBE | UNSUBSCRIBE => most.min(MAX_SUBSCRIBE),
            _ => most,
        };
        // The header of a frame of this size has five bytes at most.
        if frame.length.saturating_add(5) > most { Err(Violation::TooLarge(frame.length)) } else { Ok(()) }
    }

    /// Passes on the frame that was announced.
    pub fn pass(&mut self, frame: Frame, output: &mut Vec<u8>) -> Result<(), Violation> {
        let (kind, mut first, mut length) = (frame.first >> 4, frame.first, frame.length);
        let mut rewrite = match kind {
            CONNECT => Rewrite::Connect,
            PUBREL => Rewrite::Release,
            PUBACK | PUBREC | PUBCOMP => Rewrite::Acknowledge,
            SUBSCRIBE | UNSUBSCRIBE => Rewrite::Gather,
            _ => Rewrite::Copy,
        };
        self.has_connected = true;
        if kind == PUBLISH {
            self.unretained += u64::from(first & RETAIN);
            first &= !RETAIN;
            let qos = first >> 1 & 3;
            rewrite = match qos {
                1 | 2 => Rewrite::ReadId { qos },
                // The library would refuse it while as many messages at QoS 2 wait as may.
                0 if self.unreleased.len() < usize::from(MAX_UNRELEASED) - 1 => {
                    first |= 1 << 1;
                    length += 2;
                    Rewrite::InsertId
                }
                _ => Rewrite::Copy,
            };
        }
        output.push(first);
        put_length(length, output);
        let is_plain = matches!(rewrite, Rewrite::Copy | Rewrite::Gather);
        let left = frame.length as usize;
        self.state = ReadState::Body(Body {
            first,
            rewrite,
            size: frame.length,
            left,
            at: 0,
            text: 0,
            id: 0,
            is_plain,
        });
        if left == 0 { self.end(output) } else { Ok(()) }
    }

    fn end(&mut self, output: &mut Vec<u8>) -> Result<(), Violation> {
        let header = ReadState::Header(Header::default());
        let ReadState::Body(body) = std::mem::replace(&mut self.state, header) else { return Ok(()) };
        let has_id = matches!(body.rewrite, Rewrite::ReadId { .. } | Rewrite::Release | Rewrite::Acknowledge);
        if has_id && body.id == 0 {
            return Err(Violation::Malformed(PROTOCOL_ERROR, "a packet id of 0"));
        }
        match body.rewrite {
            Rewrite::InsertId => {
                if !body.is_plain {
                    // Its topic is cut off, which the library reports: the length is as announced.
                    output.extend(ADDED_ID.to_be_bytes());
                }
                self.to_acknowledge.push_back((ADDED_ID, false));
            }
            Rewrite::ReadId { qos: 1 } => self.to_acknowledge.push_back((body.id, true)),
            Rewrite::ReadId { .. } => {
                self.release(body.id);
                self.unreleased.insert(body.id, body.size);
                self.unreleased_bytes += u64::from(body.size);
                if self.unreleased.len() > usize::from(MAX_UNRELEASED) {
                    return Err(Violation::Unreleased);
                }
            }
            Rewrite::Release => self.release(body.id),
            Rewrite::Gather => {
                let (gathered, is_5) = (std::mem::take(&mut self.gathered), self.level == 5);
                checks::check_filters(&gathered, is_5, body.first >> 4 == SUBSCRIBE)?;
            }
            Rewrite::Connect => {
                self.level = body.id as u8;
                self.unserved = Some(self.level).filter(|level| !matches!(level, 4 | 5));
            }
            Rewrite::Copy | Rewrite::Acknowledge => {}
        }
        Ok(())
    }

    fn release(&mut self, id: u16) {
        if let Some(size) = self.unreleased.remove(&id) {
            self.unreleased_bytes -= u64::from(size);
        }
    }

    /// Whether a frame of the library is not for the device: the acknowledgement of a message at QoS 0.
    pub fn suppresses(&mut self, frame: &[u8]) -> bool {
        let [first, _, high, low, rest @ ..] = frame else { return false };
        let id = u16::from_be_bytes([*high, *low]);
        match first >> 4 {
            // Acknowledgements come in order.
            PUBACK => {
                while let Some((next, is_awaited)) = self.to_acknowledge.pop_front() {
                    if next == id {
                        return !is_awaited;
                    }
                }
            }
            // A message that was refused is never released.
            PUBREC if rest.first().is_some_and(|reason| *reason >= 0x80) => self.release(id),
            _ => {}
        }
        false
    }
}

impl Frame {
    /// Whether it counts against the client's rate: acknowledgements do not.
    pub fn counts(self) -> bool {
        !matches!(self.first >> 4, CONNECT | PUBACK | PUBREC | PUBREL | PUBCOMP)
    }

    /// Whether it is a message.
    pub fn is_message(self) -> bool {
        self.first >> 4 == PUBLISH
    }
}

impl Header {
    fn read(&mut self, byte: u8) -> Result<Option<Frame>, Violation> {
        let Some(first) = self.first else {
            self.first = Some(byte);
            return Ok(None);
        };
        self.length |= u32::from(byte & 0x7f) << (7 * self.bytes);
        self.bytes += 1;
        match byte & 0x80 {
            0 => Ok(Some(Frame { first, length: self.length })),
            _ if self.bytes == 4 => Err(Violation::NotMqtt),
            _ => Ok(None),
        }
    }
}

impl Body {
    /// Passes a byte on; returns how many retain flags were cleared.
    fn read(&mut self, byte: u8, output: &mut Vec<u8>) -> u64 {
        let (at, behind) = (self.at, 2 + self.text);
        self.at += 1;
        self.left -= 1;
        let mut passed = byte;
        match (at, self.rewrite) {
            (0 | 1, Rewrite::Release | Rewrite::Acknowledge) => self.id = self.id << 8 | u16::from(byte),
            (0, _) => self.text = usize::from(byte) << 8,
            (1, _) => self.text |= usize::from(byte),
            (at, Rewrite::ReadId { .. }) if at == behind || at == behind + 1 => {
                self.id = self.id << 8 | u16::from(byte);
            }
            // The level.
            (at, Rewrite::Connect) if at == behind => self.id = byte.into(),
            // The will's own flag says whether there is one.
            (at, Rewrite::Connect) if at == behind + 1 && byte & 0x04 != 0 => passed = byte & !0x20,
            _ => {}
        }
        output.push(passed);
        let behind = 2 + self.text;
        self.is_plain = match self.rewrite {
            Rewrite::Release | Rewrite::Acknowledge => self.at >= 2,
            Rewrite::InsertId => self.at >= 2 && self.at >= behind,
            Rewrite::Connect | Rewrite::ReadId { .. } => self.at >= 2 && self.at >= behind + 2,
            Rewrite::Copy | Rewrite::Gather => true,
        };
        if self.rewrite == Rewrite::InsertId && self.is_plain {
            output.extend(ADDED_ID.to_be_bytes());
        }
        u64::from(passed != byte)
    }
}

fn put_length(mut length: u32, output: &mut Vec<u8>) {
    loop {
        let byte = (length & 0x7f) as u8;
        length >>= 7;
        if length == 0 {
            return output.push(byte);
        }
        output.push(byte | 0x80);
    }
}

#[cfg(test)]
mod tests;
