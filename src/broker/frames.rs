//! What a device sends, frame by frame, before the library reads it.
//!
//! It follows the stream of MQTT frames just far enough to know where each begins, what it is and how
//! long, and it changes four things on the way:
//!
//! - **Nothing is kept for later.** The wish to retain is taken out of PUBLISH and of the will in CONNECT:
//!   the message is passed on like any other.
//! - **QoS 0 goes on as QoS 1.** Within the library a message at QoS 0 that finds no room is dropped
//!   without a word. One at QoS 1 waits for room. The acknowledgement that the device did not ask for is
//!   taken out again ([`Frames::swallows`]).
//! - **The first frame is a CONNECT**, and a small one: a stranger is not read further than that.
//! - **What is begun and not finished is bounded**, at QoS 2 in bytes.
//!
//! It allocates nothing in proportion to a frame: what it is given it passes on.

use std::collections::{HashMap, VecDeque};

/// The largest CONNECT: names, password and will. The will is kept as long as the connection lasts.
pub(super) const LARGEST_CONNECT: u32 = 16 << 10;
/// Messages at QoS 2 of one connection that may wait for their release; 3.1.1 has no way to ask for fewer
/// than 65535, and its clients keep to twenty or so.
pub(super) const MOST_UNRELEASED: u16 = 100;
/// Identifies messages that came without.
const NOBODYS: u16 = u16::MAX;

const CONNECT: u8 = 1;
const PUBLISH: u8 = 3;
const PUBACK: u8 = 4;
const PUBREC: u8 = 5;
const PUBREL: u8 = 6;
const PUBCOMP: u8 = 7;
const RETAIN: u8 = 1;

/// A frame whose header was read and not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    first: u8,
    /// The bytes that follow the header.
    pub length: u32,
}

/// What no client may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// It does not begin with CONNECT, or is not MQTT.
    Stranger,
    /// A frame is larger than allowed.
    TooLarge(u32),
    /// More at QoS 2 was begun than may wait to be finished.
    Unreleased,
}

#[derive(Debug)]
enum State {
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

/// What is done with the bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Copy,
    /// CONNECT: its flags stand after the name and the level of the protocol.
    Connect,
    /// PUBLISH at QoS 0: an identifier goes in behind the topic.
    Identify,
    /// PUBLISH at QoS 1 or 2: its identifier stands behind the topic.
    Note {
        qos: u8,
    },
    /// PUBREL: it begins with the identifier.
    Release,
}

#[derive(Debug)]
struct Body {
    plan: Plan,
    size: u32,
    /// Bytes still to come.
    left: usize,
    /// Bytes that came.
    at: usize,
    /// The length of the text that it begins with.
    text: usize,
    id: u16,
    /// Whether the rest passes unchanged.
    is_plain: bool,
}

/// The stream of one connection.
#[derive(Debug)]
pub(super) struct Frames {
    state: State,
    most: u32,
    has_connected: bool,
    /// Messages that will be acknowledged, in order, and whether the device waits for it.
    to_acknowledge: VecDeque<(u16, bool)>,
    unreleased: HashMap<u16, u32>,
    unreleased_bytes: u64,
    /// Wishes to retain that were taken out since the last look.
    unretained: u64,
}

impl Frames {
    /// Of a connection on which no frame is larger than `most`.
    pub fn new(most: usize) -> Frames {
        Frames {
            state: State::Header(Header::default()),
            most: u32::try_from(most).unwrap_or(u32::MAX),
            has_connected: false,
            to_acknowledge: VecDeque::new(),
            unreleased: HashMap::new(),
            unreleased_bytes: 0,
            unretained: 0,
        }
    }

    /// Whether no frame is under way.
    pub fn is_between(&self) -> bool {
        matches!(&self.state, State::Header(header) if header.first.is_none())
    }

    /// Bytes at QoS 2 that wait for their release.
    pub fn unreleased(&self) -> u64 {
        self.unreleased_bytes
    }

    /// How many wishes to retain were taken out since the last call.
    pub fn take_unretained(&mut self) -> u64 {
        std::mem::take(&mut self.unretained)
    }

    /// Moves bytes of `input` to `output`, up to the next frame that [`Frames::pass`] has to let through.
    ///
    /// # Errors
    /// What no client may send; nothing more may be asked then.
    pub fn take(&mut self, input: &mut &[u8], output: &mut Vec<u8>) -> Result<Option<Frame>, Violation> {
        loop {
            match &mut self.state {
                State::Announced(frame) => return Ok(Some(*frame)),
                State::Header(header) => {
                    let Some((byte, rest)) = input.split_first() else { return Ok(None) };
                    *input = rest;
                    if let Some(frame) = header.read(*byte)? {
                        self.check(frame)?;
                        self.state = State::Announced(frame);
                    }
                }
                State::Body(body) => {
                    if body.left == 0 {
                        self.end(output)?;
                        continue;
                    }
                    let Some((byte, rest)) = input.split_first() else { return Ok(None) };
                    if body.is_plain {
                        let count = body.left.min(input.len());
                        output.extend_from_slice(&input[..count]);
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
            return Err(Violation::Stranger);
        }
        let most = if self.has_connected { most } else { most.min(LARGEST_CONNECT) };
        // The header of a frame of this size has five bytes at the most.
        if frame.length.saturating_add(5) > most { Err(Violation::TooLarge(frame.length)) } else { Ok(()) }
    }

    /// Lets the frame through that was announced.
    pub fn pass(&mut self, frame: Frame, output: &mut Vec<u8>) -> Result<(), Violation> {
        let (kind, mut first, mut length) = (frame.first >> 4, frame.first, frame.length);
        let mut plan = match kind {
            CONNECT => Plan::Connect,
            PUBREL => Plan::Release,
            _ => Plan::Copy,
        };
        self.has_connected = true;
        if kind == PUBLISH {
            self.unretained += u64::from(first & RETAIN);
            first &= !RETAIN;
            let qos = first >> 1 & 3;
            plan = match qos {
                1 | 2 => Plan::Note { qos },
                // The library would refuse it while the window of QoS 2 is full.
                0 if self.unreleased.len() < usize::from(MOST_UNRELEASED) - 1 => {
                    first |= 1 << 1;
                    length += 2;
                    Plan::Identify
                }
                _ => Plan::Copy,
            };
        }
        output.push(first);
        put_length(length, output);
        let (left, is_plain) = (frame.length as usize, plan == Plan::Copy);
        self.state = State::Body(Body { plan, size: frame.length, left, at: 0, text: 0, id: 0, is_plain });
        if left == 0 { self.end(output) } else { Ok(()) }
    }

    fn end(&mut self, output: &mut Vec<u8>) -> Result<(), Violation> {
        let header = State::Header(Header::default());
        let State::Body(body) = std::mem::replace(&mut self.state, header) else { return Ok(()) };
        match body.plan {
            Plan::Identify => {
                if !body.is_plain {
                    // Its topic is cut off, and the library will say so: the length is what was promised.
                    output.extend(NOBODYS.to_be_bytes());
                }
                self.to_acknowledge.push_back((NOBODYS, false));
            }
            Plan::Note { qos: 1 } => self.to_acknowledge.push_back((body.id, true)),
            Plan::Note { .. } => {
                self.release(body.id);
                self.unreleased.insert(body.id, body.size);
                self.unreleased_bytes += u64::from(body.size);
                if self.unreleased.len() > usize::from(MOST_UNRELEASED) {
                    return Err(Violation::Unreleased);
                }
            }
            Plan::Release => self.release(body.id),
            Plan::Copy | Plan::Connect => {}
        }
        Ok(())
    }

    fn release(&mut self, id: u16) {
        if let Some(size) = self.unreleased.remove(&id) {
            self.unreleased_bytes -= u64::from(size);
        }
    }

    /// Whether a frame of the library's is not for the device: an acknowledgement of what it sent at QoS 0.
    pub fn swallows(&mut self, frame: &[u8]) -> bool {
        let [first, _, high, low, rest @ ..] = frame else { return false };
        let id = u16::from_be_bytes([*high, *low]);
        match first >> 4 {
            // They are answered in order.
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
            _ if self.bytes == 4 => Err(Violation::Stranger),
            _ => Ok(None),
        }
    }
}

impl Body {
    /// Passes a byte on; answers with how many wishes to retain were taken out.
    fn read(&mut self, byte: u8, output: &mut Vec<u8>) -> u64 {
        let (at, behind) = (self.at, 2 + self.text);
        self.at += 1;
        self.left -= 1;
        let mut passed = byte;
        match (at, self.plan) {
            (0 | 1, Plan::Release) => self.id = self.id << 8 | u16::from(byte),
            (0, _) => self.text = usize::from(byte) << 8,
            (1, _) => self.text |= usize::from(byte),
            (at, Plan::Note { .. }) if at == behind || at == behind + 1 => {
                self.id = self.id << 8 | u16::from(byte);
            }
            // The will's own flag says whether there is one.
            (at, Plan::Connect) if at == behind + 1 && byte & 0x04 != 0 => passed = byte & !0x20,
            _ => {}
        }
        output.push(passed);
        let behind = 2 + self.text;
        self.is_plain = match self.plan {
            Plan::Release => self.at >= 2,
            Plan::Identify => self.at >= 2 && self.at >= behind,
            Plan::Connect | Plan::Note { .. } => self.at >= 2 && self.at >= behind + 2,
            Plan::Copy => true,
        };
        if self.plan == Plan::Identify && self.is_plain {
            output.extend(NOBODYS.to_be_bytes());
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A connection whose CONNECT has passed.
    fn connected() -> Frames {
        let mut frames = Frames::new(1 << 20);
        run(&mut frames, &connect(0x02), usize::MAX).unwrap();
        frames
    }

    /// CONNECT of 3.1.1 with these flags, and a will if they say so.
    fn connect(flags: u8) -> Vec<u8> {
        let mut body = vec![0, 4, b'M', b'Q', b'T', b'T', 4, flags, 0, 60, 0, 1, b'a'];
        if flags & 0x04 != 0 {
            body.extend([0, 1, b'w', 0, 1, b'x']);
        }
        frame(0x10, &body)
    }

    fn frame(first: u8, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![first];
        put_length(body.len() as u32, &mut frame);
        frame.extend(body);
        frame
    }

    fn publish(first: u8, topic: &str, id: Option<u16>, payload: &[u8]) -> Vec<u8> {
        let mut body = (topic.len() as u16).to_be_bytes().to_vec();
        body.extend(topic.as_bytes());
        body.extend(id.into_iter().flat_map(u16::to_be_bytes));
        body.extend(payload);
        frame(first, &body)
    }

    /// Passes everything that is announced; `at_once` bytes are there at a time.
    fn run(frames: &mut Frames, input: &[u8], at_once: usize) -> Result<Vec<u8>, Violation> {
        let mut output = Vec::new();
        for chunk in input.chunks(at_once.clamp(1, input.len().max(1))) {
            let mut chunk = chunk;
            while let Some(announced) = frames.take(&mut chunk, &mut output)? {
                frames.pass(announced, &mut output)?;
            }
            assert!(chunk.is_empty());
        }
        Ok(output)
    }

    #[test]
    fn wishes_to_retain_are_taken_out_and_nothing_else_changes() {
        let mut frames = Frames::new(1 << 20);
        assert_eq!(run(&mut frames, &connect(0x26), 3).unwrap(), connect(0x06), "of the will");
        assert_eq!(frames.take_unretained(), 1);
        let beat = |first| publish(first, "units/a", Some(7), b"x");
        assert_eq!(run(&mut frames, &beat(0x33), 1).unwrap(), beat(0x32));
        assert_eq!(run(&mut frames, &beat(0x35), 2).unwrap(), beat(0x34));
        assert_eq!(frames.take_unretained(), 2);
        let other = [0xc0, 0, 0xe0, 0];
        assert_eq!(run(&mut frames, &other, 1).unwrap(), other);
        assert_eq!(frames.take_unretained(), 0);
    }

    #[test]
    fn what_came_at_0_goes_on_at_1_and_its_acknowledgement_is_not_for_the_device() {
        let mut frames = connected();
        let sent =
            [publish(0x30, "t", None, b"0"), publish(0x32, "t", Some(9), b"1"), publish(0x31, "", None, b"")];
        let passed = run(&mut frames, &sent.concat(), 4).unwrap();
        let expected =
            [publish(0x32, "t", Some(NOBODYS), b"0"), sent[1].clone(), publish(0x32, "", Some(NOBODYS), b"")];
        assert_eq!(passed, expected.concat());
        for (answer, is_swallowed) in [
            (&[0x40, 2, 0xff, 0xff][..], true),
            (&[0x20, 2, 0, 0], false),
            (&[0x40, 2, 0, 9], false),
            (&[0x40, 3, 0xff, 0xff, 0x87], true),
            (&[0x40, 2, 0xff, 0xff], false),
        ] {
            assert_eq!(frames.swallows(answer), is_swallowed, "{answer:?}");
        }
    }

    #[test]
    fn an_identifier_of_the_devices_own_that_is_the_same_is_still_answered() {
        let mut frames = connected();
        let sent = [publish(0x32, "t", Some(NOBODYS), b"1"), publish(0x30, "t", None, b"0")];
        run(&mut frames, &sent.concat(), 1000).unwrap();
        assert!(!frames.swallows(&[0x40, 2, 0xff, 0xff]));
        assert!(frames.swallows(&[0x40, 2, 0xff, 0xff]));
    }

    #[test]
    fn strangers_are_not_read_far_and_frames_not_beyond_the_bound() {
        let cases: [(&[u8], Violation); 4] = [
            (b"GET / HTTP/1.1\r\n", Violation::Stranger),
            (&[0x30, 0], Violation::Stranger),
            (&[0x10, 0xff, 0xff, 0xff, 0xff], Violation::Stranger),
            (&[0x10, 0x81, 0x80, 0x01], Violation::TooLarge(16_385)),
        ];
        for (input, why) in cases {
            assert_eq!(run(&mut Frames::new(1 << 20), input, 1), Err(why), "{input:?}");
        }
        assert_eq!(run(&mut connected(), &[0x30, 0x80, 0x80, 0x40], 1), Err(Violation::TooLarge(1 << 20)));
    }

    #[test]
    fn what_was_begun_at_2_is_bounded_until_it_is_released() {
        let mut frames = connected();
        for id in 1..=MOST_UNRELEASED {
            run(&mut frames, &publish(0x34, "t", Some(id), b"x"), 100).unwrap();
        }
        assert_eq!(frames.unreleased(), u64::from(MOST_UNRELEASED) * 6);
        run(&mut frames, &frame(0x62, &[0, 1]), 1).unwrap();
        // A refusal needs no release; a repetition is no second message.
        frames.swallows(&[0x50, 3, 0, 2, 0x87]);
        run(&mut frames, &publish(0x3c, "t", Some(3), b"x"), 100).unwrap();
        assert_eq!(frames.unreleased(), u64::from(MOST_UNRELEASED - 2) * 6);
        for id in [1, 2] {
            run(&mut frames, &publish(0x34, "t", Some(id), b"x"), 100).unwrap();
        }
        let one_more = publish(0x34, "t", Some(1000), b"x");
        assert_eq!(run(&mut frames, &one_more, 100), Err(Violation::Unreleased));
    }

    proptest! {
        #[test]
        fn how_the_bytes_come_in_makes_no_difference(
            input in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            firsts in prop::collection::vec(any::<u8>(), 8),
            at_once in 1..50_usize,
        ) {
            let bodies = firsts.iter().zip(&input);
            let stream: Vec<u8> = bodies.flat_map(|(first, body)| frame(*first, body)).collect();
            let (mut whole, mut cut) = (connected(), connected());
            prop_assert_eq!(run(&mut whole, &stream, usize::MAX), run(&mut cut, &stream, at_once));
            prop_assert_eq!(whole.take_unretained(), cut.take_unretained());
            prop_assert_eq!(whole.unreleased(), cut.unreleased());
        }

        #[test]
        fn arbitrary_bytes_break_nothing(input in prop::collection::vec(any::<u8>(), 0..300), at_once in 1..50_usize) {
            let _ = run(&mut connected(), &input, at_once);
            let _ = run(&mut Frames::new(1 << 20), &input, at_once);
        }
    }
}
