//! The properties of packets at MQTT 5, read in place (MQTT 5, 2.2.2).

use super::bytes::{Bytes, MALFORMED, PROTOCOL, Violation, violation};

pub const EXPIRY: u8 = 0x02;
pub const RESPONSE_TOPIC: u8 = 0x08;
pub const CORRELATION: u8 = 0x09;
pub const SUBSCRIPTION_ID: u8 = 0x0b;
pub const SESSION_EXPIRY: u8 = 0x11;
pub const ASSIGNED_ID: u8 = 0x12;
pub const SERVER_KEEP_ALIVE: u8 = 0x13;
pub const AUTH_METHOD: u8 = 0x15;
pub const AUTH_DATA: u8 = 0x16;
pub const PROBLEM_INFO: u8 = 0x17;
pub const WILL_DELAY: u8 = 0x18;
pub const RESPONSE_INFO: u8 = 0x19;
pub const RECEIVE_MAXIMUM: u8 = 0x21;
pub const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
pub const TOPIC_ALIAS: u8 = 0x23;
pub const MAXIMUM_PACKET: u8 = 0x27;

/// Those of each packet that a client may send.
pub const OF_CONNECT: &[u8] = &[
    SESSION_EXPIRY,
    AUTH_METHOD,
    AUTH_DATA,
    PROBLEM_INFO,
    RESPONSE_INFO,
    RECEIVE_MAXIMUM,
    TOPIC_ALIAS_MAXIMUM,
    USER,
    MAXIMUM_PACKET,
];
pub const OF_WILL: &[u8] = &[FORMAT, EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION, WILL_DELAY, USER];
pub const OF_PUBLISH: &[u8] = &[FORMAT, EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION, TOPIC_ALIAS, USER];
pub const OF_ACKNOWLEDGEMENT: &[u8] = &[REASON, USER];
pub const OF_SUBSCRIBE: &[u8] = &[SUBSCRIPTION_ID, USER];
pub const OF_UNSUBSCRIBE: &[u8] = &[USER];
pub const OF_DISCONNECT: &[u8] = &[SESSION_EXPIRY, REASON, USER];

const FORMAT: u8 = 0x01;
const CONTENT_TYPE: u8 = 0x03;
const REASON: u8 = 0x1f;
const USER: u8 = 0x26;

/// A value; of a pair of texts, which decides nothing, none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Number(u32),
    Text(&'a str),
    Bytes(&'a [u8]),
    Pair,
}

impl Value<'_> {
    pub fn number(self) -> u32 {
        if let Value::Number(number) = self { number } else { 0 }
    }
}

/// A property, and its bytes with its identifier.
pub struct Property<'a> {
    pub id: u8,
    pub value: Value<'a>,
    pub raw: &'a [u8],
}

/// Calls `each` with each property of a packet that may have those of `allowed`.
pub fn read<'a>(
    of: &'a [u8],
    allowed: &[u8],
    mut each: impl FnMut(Property<'a>) -> Result<(), Violation>,
) -> Result<(), Violation> {
    let (mut bytes, mut seen) = (Bytes(of), 0_u64);
    while !bytes.0.is_empty() {
        let before = bytes.0;
        let id = bytes.byte()?;
        if !allowed.contains(&id) {
            return violation(MALFORMED, "a property that this packet may not have");
        }
        if seen & 1 << id != 0 && id != USER {
            return violation(PROTOCOL, "a property that occurs twice");
        }
        seen |= 1 << id;
        let value = value(id, &mut bytes)?;
        let is_absurd = match id {
            FORMAT | PROBLEM_INFO | RESPONSE_INFO => value.number() > 1,
            RECEIVE_MAXIMUM | MAXIMUM_PACKET | SUBSCRIPTION_ID => value.number() == 0,
            _ => false,
        };
        if is_absurd {
            return violation(PROTOCOL, "a property with a value that it may not have");
        }
        each(Property { id, value, raw: &before[..before.len() - bytes.0.len()] })?;
    }
    Ok(())
}

fn value<'a>(id: u8, bytes: &mut Bytes<'a>) -> Result<Value<'a>, Violation> {
    Ok(match id {
        FORMAT | PROBLEM_INFO | RESPONSE_INFO => Value::Number(bytes.byte()?.into()),
        RECEIVE_MAXIMUM | TOPIC_ALIAS_MAXIMUM | TOPIC_ALIAS => Value::Number(bytes.two()?.into()),
        EXPIRY | SESSION_EXPIRY | WILL_DELAY | MAXIMUM_PACKET => Value::Number(bytes.four()?),
        SUBSCRIPTION_ID => Value::Number(bytes.variable(true)?),
        CONTENT_TYPE | RESPONSE_TOPIC | AUTH_METHOD | REASON => Value::Text(bytes.text()?),
        CORRELATION | AUTH_DATA => Value::Bytes(bytes.binary()?),
        _ => {
            bytes.text()?;
            bytes.text()?;
            Value::Pair
        }
    })
}

/// The properties of a message that go on to its subscribers, unchanged; those that are about this hop alone do not.
pub fn forwarded(of: &[u8], allowed: &[u8]) -> Box<[u8]> {
    let mut passed = Vec::with_capacity(of.len());
    let read = read(of, allowed, |property| {
        if !matches!(property.id, TOPIC_ALIAS | EXPIRY | WILL_DELAY) {
            passed.extend_from_slice(property.raw);
        }
        Ok(())
    });
    debug_assert!(read.is_ok(), "they were read before");
    passed.into()
}
