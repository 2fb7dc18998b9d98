//! Packets to clients, in the format of their version: a client of 3.1.1 never gets anything of MQTT 5.

use super::bytes::{BAD_CLIENT_ID, BAD_LOGIN, BUSY, NOT_AUTHORIZED, UNSUPPORTED_VERSION, Version};
use super::codec::Publish;
use super::properties::{EXPIRY, SUBSCRIPTION_ID};

/// The first byte of each acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "the specification calls the packets so")]
pub enum AckKind {
    PubAck = 0x40,
    PubRec = 0x50,
    PubRel = 0x62,
    PubComp = 0x70,
}

/// Admits a client. `granted`: the properties for a client of MQTT 5, fewer than 128 bytes.
pub fn connected(out: &mut Vec<u8>, version: Version, is_present: bool, granted: &[u8]) {
    match version {
        Version::Four => out.extend([0x20, 2, is_present.into(), 0]),
        Version::Five => {
            out.push(0x20);
            variable(out, 3 + granted.len());
            out.extend([is_present.into(), 0, granted.len() as u8]);
            out.extend(granted);
        }
    }
}

/// The answer to a client that is not admitted.
pub fn refused(out: &mut Vec<u8>, version: Version, code: u8) {
    match version {
        Version::Five => out.extend([0x20, 3, 0, code, 0]),
        Version::Four => {
            let code = match code {
                UNSUPPORTED_VERSION => 1,
                BAD_CLIENT_ID => 2,
                BUSY => 3,
                BAD_LOGIN => 4,
                NOT_AUTHORIZED => 5,
                // A client of 3.1.1 that breaks the protocol gets no answer.
                _ => return,
            };
            out.extend([0x20, 2, 0, code]);
        }
    }
}

/// An acknowledgement; only a client of MQTT 5 gets the reason code.
pub fn acknowledgement(out: &mut Vec<u8>, version: Version, kind: AckKind, id: u16, code: u8) {
    let [high, low] = id.to_be_bytes();
    match version {
        Version::Five if code != 0 => out.extend([kind as u8, 3, high, low, code]),
        _ => out.extend([kind as u8, 2, high, low]),
    }
}

pub fn subscribed(out: &mut Vec<u8>, version: Version, id: u16, codes: &[u8]) {
    let code = |code: &u8| if version == Version::Four && *code > 2 { 0x80 } else { *code };
    codes_of(out, 0x90, version, id, &codes.iter().map(code).collect::<Vec<u8>>());
}

pub fn unsubscribed(out: &mut Vec<u8>, version: Version, id: u16, codes: &[u8]) {
    codes_of(out, 0xb0, version, id, if version == Version::Five { codes } else { &[] });
}

fn codes_of(out: &mut Vec<u8>, first: u8, version: Version, id: u16, codes: &[u8]) {
    let properties: &[u8] = if version == Version::Five { &[0] } else { &[] };
    out.push(first);
    variable(out, 2 + properties.len() + codes.len());
    out.extend(id.to_be_bytes());
    out.extend(properties);
    out.extend(codes);
}

pub fn pong(out: &mut Vec<u8>) {
    out.extend([0xd0, 0]);
}

/// Sends a client of MQTT 5 the reason of the end.
pub fn ended(out: &mut Vec<u8>, version: Version, code: u8) {
    if version == Version::Five {
        out.extend([0xe0, 1, code]);
    }
}

/// Writes a message to a subscriber, without its payload, with the numbers of its subscriptions; returns `false` if the
/// packet would be larger than `max`.
pub fn publish(out: &mut Vec<u8>, version: Version, message: &Publish, numbers: &[u32], max: usize) -> bool {
    let mut more = Vec::new();
    if version == Version::Five {
        if let Some(seconds) = message.listed.expiry {
            more.push(EXPIRY);
            more.extend(seconds.to_be_bytes());
        }
        for number in numbers {
            more.push(SUBSCRIPTION_ID);
            variable(&mut more, *number as usize);
        }
    }
    let properties = if version == Version::Five { message.listed.raw } else { &[] };
    let listed = properties.len() + more.len();
    let id = if message.qos > 0 { 2 } else { 0 };
    let of_list = if version == Version::Five { length_of(listed) + listed } else { 0 };
    let length = 2 + message.topic.len() + id + of_list + message.payload.len();
    if 1 + length_of(length) + length > max || length >= 1 << 28 {
        return false;
    }
    out.push(0x30 | u8::from(message.dup) << 3 | message.qos << 1 | u8::from(message.retain));
    variable(out, length);
    text(out, message.topic.as_bytes());
    if message.qos > 0 {
        out.extend(message.id.to_be_bytes());
    }
    if version == Version::Five {
        variable(out, listed);
        out.extend(properties);
        out.extend(more);
    }
    true
}

/// A text, or bytes, of at most 65 535 bytes.
pub fn text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u16).to_be_bytes());
    out.extend(text);
}

fn length_of(number: usize) -> usize {
    1 + [1 << 7, 1 << 14, 1 << 21].iter().filter(|bound| number >= **bound).count()
}

fn variable(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
