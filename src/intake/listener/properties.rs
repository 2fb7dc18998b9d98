//! The properties of packets at MQTT 5, read in place (MQTT 5, 2.2.2).

use super::bytes::{BAD_ALIAS, Bytes, MALFORMED, PROTOCOL, Version, Violation, violation};
use super::names;

pub const EXPIRY: u8 = 0x02;
pub const CONTENT_TYPE: u8 = 0x03;
pub const CORRELATION: u8 = 0x09;
pub const SUBSCRIPTION_ID: u8 = 0x0b;
pub const SESSION_EXPIRY: u8 = 0x11;
pub const ASSIGNED_ID: u8 = 0x12;
pub const SERVER_KEEP_ALIVE: u8 = 0x13;
pub const RECEIVE_MAXIMUM: u8 = 0x21;
pub const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
pub const MAXIMUM_PACKET: u8 = 0x27;
const FORMAT: u8 = 0x01;
const RESPONSE_TOPIC: u8 = 0x08;
const AUTH_METHOD: u8 = 0x15;
const AUTH_DATA: u8 = 0x16;
const PROBLEM_INFO: u8 = 0x17;
const WILL_DELAY: u8 = 0x18;
const RESPONSE_INFO: u8 = 0x19;
const REASON: u8 = 0x1f;
const TOPIC_ALIAS: u8 = 0x23;
const USER: u8 = 0x26;

/// The properties that a client may send, for each packet.
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

/// The properties that affect how a packet is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties<'a> {
    /// All properties, unchanged.
    pub raw: &'a [u8],
    /// When a message expires, in seconds.
    pub expiry: Option<u32>,
    pub response_topic: Option<&'a str>,
    pub correlation: &'a [u8],
    pub alias: Option<u16>,
    pub will_delay: u32,
    pub session_expiry: Option<u32>,
    pub receive_maximum: Option<u16>,
    pub max_packet: Option<u32>,
    /// The number of a subscription.
    pub number: Option<u32>,
    pub has_method: bool,
    pub has_data: bool,
}

/// Reads the properties of a packet, which may only have those in `allowed`; a packet of 3.1.1 has none.
pub fn take<'a>(
    bytes: &mut Bytes<'a>,
    version: Version,
    allowed: &[u8],
) -> Result<Properties<'a>, Violation> {
    if version == Version::Four {
        return Ok(Properties::default());
    }
    let length = bytes.variable(true)?;
    read_each(bytes.take(length as usize)?, allowed, |_, _| {})
}

/// Calls `each` with the identifier and the bytes of each property.
fn read_each<'a>(
    raw: &'a [u8],
    allowed: &[u8],
    mut each: impl FnMut(u8, &'a [u8]),
) -> Result<Properties<'a>, Violation> {
    let (mut read, mut bytes, mut seen) = (Properties { raw, ..Properties::default() }, Bytes(raw), 0_u64);
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
        let mut is_absurd = false;
        match id {
            FORMAT | PROBLEM_INFO | RESPONSE_INFO => is_absurd = bytes.byte()? > 1,
            EXPIRY => read.expiry = Some(bytes.four()?),
            RESPONSE_TOPIC => read.response_topic = Some(names::response_topic(bytes.text()?)?),
            CORRELATION => read.correlation = bytes.binary()?,
            TOPIC_ALIAS => read.alias = Some(bytes.two()?),
            WILL_DELAY => read.will_delay = bytes.four()?,
            SESSION_EXPIRY => read.session_expiry = Some(bytes.four()?),
            RECEIVE_MAXIMUM => read.receive_maximum = Some(bytes.two()?),
            MAXIMUM_PACKET => read.max_packet = Some(bytes.four()?),
            SUBSCRIPTION_ID => read.number = Some(bytes.variable(true)?),
            // Rollcall uses no aliases in messages to clients.
            TOPIC_ALIAS_MAXIMUM => drop(bytes.two()?),
            AUTH_METHOD => read.has_method = bytes.text().map(|_| true)?,
            AUTH_DATA => read.has_data = bytes.binary().map(|_| true)?,
            CONTENT_TYPE | REASON => drop(bytes.text()?),
            _ => drop((bytes.text()?, bytes.text()?)),
        }
        is_absurd |= read.receive_maximum == Some(0) || read.max_packet == Some(0) || read.number == Some(0);
        if is_absurd {
            return violation(PROTOCOL, "a property with a value that it may not have");
        }
        each(id, &before[..before.len() - bytes.0.len()]);
    }
    match read.alias {
        Some(0) => violation(BAD_ALIAS, "a topic alias of 0"),
        _ => Ok(read),
    }
}

/// The properties of a message that its subscribers receive, unchanged; properties of this hop are left out.
pub fn forwarded(raw: &[u8]) -> Box<[u8]> {
    let mut passed = Vec::with_capacity(raw.len());
    let read = read_each(raw, &[OF_PUBLISH, OF_WILL].concat(), |id, raw| {
        if !matches!(id, TOPIC_ALIAS | EXPIRY | WILL_DELAY) {
            passed.extend_from_slice(raw);
        }
    });
    debug_assert!(read.is_ok(), "they were read before");
    passed.into()
}
