//! Packets of clients, read in place from the bytes that arrived: MQTT 3.1.1 and 5.
//!
//! # What it refuses
//! Everything that the specifications forbid in a single packet, with the reason code for clients of MQTT 5. The
//! connection checks rules that depend on earlier packets.
//!
//! # Why no library
//! A library's packets own their parts, differ by version and hide their faults. A check that the library lacks would
//! need a second pass over the bytes, and a check too many would refuse good clients. The format is frozen, so this
//! code will stay complete; a message is copied only if a client has subscribed to it.

use super::bytes::{
    BAD_AUTHENTICATION, BAD_CLIENT_ID, BAD_TOPIC, Bytes, MALFORMED, PROTOCOL, TOO_LARGE, UNKNOWN_ID,
    UNSUPPORTED_VERSION, Version, Violation, violation,
};
use super::names;
use super::properties::{
    self, OF_ACKNOWLEDGEMENT, OF_CONNECT, OF_DISCONNECT, OF_PUBLISH, OF_SUBSCRIBE, OF_UNSUBSCRIBE, OF_WILL,
    Properties,
};

/// A packet that has arrived as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    first: u8,
    body: &'a [u8],
    /// The length of the packet with its header.
    pub length: usize,
}

#[derive(Debug, PartialEq)]
pub enum Packet<'a> {
    Publish(Publish<'a>),
    /// The acknowledgement of a message, with its reason code.
    PubAck(u16, u8),
    PubRec(u16, u8),
    PubRel(u16),
    PubComp(u16),
    Subscribe {
        id: u16,
        number: Option<u32>,
        filters: Vec<Subscribe<'a>>,
    },
    Unsubscribe {
        id: u16,
        filters: Vec<&'a str>,
    },
    Ping,
    Disconnect {
        code: u8,
        expiry: Option<u32>,
    },
}

#[derive(Debug, PartialEq)]
pub struct Connect<'a> {
    pub version: Version,
    /// The client is a bridge, which must not get its own messages back.
    pub is_bridge: bool,
    pub clean: bool,
    pub keep_alive: u16,
    pub id: &'a str,
    pub will: Option<Will<'a>>,
    pub user: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    pub listed: Properties<'a>,
}

#[derive(Debug, PartialEq)]
pub struct Will<'a> {
    pub qos: u8,
    pub retain: bool,
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub listed: Properties<'a>,
}

#[derive(Debug, PartialEq)]
pub struct Publish<'a> {
    pub dup: bool,
    pub qos: u8,
    pub retain: bool,
    pub topic: &'a str,
    /// The packet id; 0 at QoS 0.
    pub id: u16,
    pub payload: &'a [u8],
    pub listed: Properties<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    pub filter: &'a str,
    pub qos: u8,
    pub no_local: bool,
    pub retain_as_published: bool,
    pub retain_handling: u8,
}

/// The reason why a CONNECT is refused, and the version for the answer; `None` means no answer.
pub type BadConnect = (Option<Version>, Violation);

/// The part of the first packet that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived<'a> {
    Whole(Frame<'a>),
    /// Only a part. The number is the length of the whole packet; 0 if the length has not arrived either.
    Part(usize),
}

const OTHER_VERSION: Violation = Violation {
    code: UNSUPPORTED_VERSION,
    why: "a CONNECT of another version of MQTT; let it speak 3.1.1 or 5",
};

/// Finds the first packet in `input`. `version`: the version of the client, once it is known.
pub fn frame(input: &[u8], max: usize, version: Option<Version>) -> Result<Arrived<'_>, Violation> {
    let Some((&first, mut rest)) = input.split_first() else { return Ok(Arrived::Part(0)) };
    let mut length = 0_usize;
    for place in 0..4 {
        let Some((&byte, more)) = rest.split_first() else { return Ok(Arrived::Part(0)) };
        rest = more;
        length |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 != 0 {
            continue;
        }
        if byte == 0 && place > 0 && version == Some(Version::Five) {
            return violation(MALFORMED, "a length that is longer than it need be");
        }
        let whole = input.len() - rest.len() + length;
        if whole > max {
            return violation(
                TOO_LARGE,
                "a packet that is larger than broker.max_packet, or a CONNECT of more than 16 KiB",
            );
        }
        let body = rest.get(..length);
        return Ok(
            body.map_or(Arrived::Part(whole), |body| Arrived::Whole(Frame { first, body, length: whole }))
        );
    }
    violation(MALFORMED, "a length of more than four bytes")
}

impl<'a> Frame<'a> {
    /// Reads the first packet of a connection.
    pub fn connect(&self) -> Result<Connect<'a>, BadConnect> {
        let mut bytes = Bytes(self.body);
        let begin = if self.first == 0x10 {
            bytes.binary().and_then(|name| Ok((name, bytes.byte()?)))
        } else {
            violation(PROTOCOL, "something else than a CONNECT first")
        };
        let (name, level) = begin.map_err(|why| (None, why))?;
        let (version, why) = match (name, level) {
            (b"MQTT", 4 | 0x84) => (Version::Four, None),
            (b"MQTT", 5) => (Version::Five, None),
            (b"MQTT" | b"MQIsdp", ..6 | 0x80..) => (Version::Four, Some(OTHER_VERSION)),
            (b"MQTT" | b"MQIsdp", _) => (Version::Five, Some(OTHER_VERSION)),
            _ => return violation(PROTOCOL, "a CONNECT of another protocol").map_err(|why| (None, why)),
        };
        let read =
            why.map_or_else(|| read_connect(bytes, version), Err).map_err(|why| (Some(version), why))?;
        Ok(Connect { is_bridge: level == 0x84, ..read })
    }

    /// Reads any later packet.
    pub fn read(&self, version: Version) -> Result<Packet<'a>, Violation> {
        let (kind, flags, bytes) = (self.first >> 4, self.first & 15, Bytes(self.body));
        let wanted = if matches!(kind, 6 | 8 | 10) { 2 } else { 0 };
        if kind != 3 && flags != wanted {
            return violation(MALFORMED, "a packet with flags that it may not have");
        }
        match kind {
            3 => read_publish(flags, bytes, version).map(Packet::Publish),
            4..=7 => acknowledgement(kind, bytes, version),
            8 => subscribe(bytes, version),
            10 => unsubscribe(bytes, version),
            14 => disconnect(bytes, version),
            12 => bytes.end().map(|()| Packet::Ping),
            1 => violation(PROTOCOL, "a second CONNECT"),
            15 if version == Version::Five => violation(PROTOCOL, "AUTH, with no method agreed"),
            2 | 9 | 11 | 13 => violation(PROTOCOL, "a packet that only a server sends"),
            _ => violation(MALFORMED, "a packet of an unknown type"),
        }
    }
}

fn read_connect(mut bytes: Bytes<'_>, version: Version) -> Result<Connect<'_>, Violation> {
    let (flags, keep_alive) = (bytes.byte()?, bytes.two()?);
    let (has_user, has_password, has_will) = (flags & 0x80 != 0, flags & 0x40 != 0, flags & 4 != 0);
    let (clean, will_qos) = (flags & 2 != 0, flags >> 3 & 3);
    if flags & 1 != 0 || will_qos == 3 || !has_will && flags & 0x38 != 0 {
        return violation(MALFORMED, "a CONNECT with flags that it may not have");
    }
    if version == Version::Four && has_password && !has_user {
        return violation(MALFORMED, "a password without a user name");
    }
    let listed = properties::take(&mut bytes, version, OF_CONNECT)?;
    if listed.has_data && !listed.has_method {
        return violation(PROTOCOL, "authentication data without a method");
    }
    let id = bytes.text()?;
    let will = has_will.then(|| read_will(&mut bytes, version, will_qos, flags & 0x20 != 0)).transpose()?;
    let user = has_user.then(|| bytes.text()).transpose()?;
    let password = has_password.then(|| bytes.binary()).transpose()?;
    bytes.end()?;
    if listed.has_method {
        return violation(BAD_AUTHENTICATION, "an authentication method; there is none here");
    }
    if id.is_empty() && !clean && version == Version::Four {
        return violation(BAD_CLIENT_ID, "no client id, for a session that is to be kept");
    }
    Ok(Connect { version, is_bridge: false, clean, keep_alive, id, will, user, password, listed })
}

fn read_will<'a>(
    bytes: &mut Bytes<'a>,
    version: Version,
    qos: u8,
    retain: bool,
) -> Result<Will<'a>, Violation> {
    let listed = properties::take(bytes, version, OF_WILL)?;
    let (topic, payload) = (names::topic(bytes.text()?)?, bytes.binary()?);
    if topic.is_empty() {
        return violation(BAD_TOPIC, "a will without a topic");
    }
    Ok(Will { qos, retain, topic, payload, listed })
}

fn read_publish(flags: u8, mut bytes: Bytes<'_>, version: Version) -> Result<Publish<'_>, Violation> {
    let (dup, qos, retain) = (flags & 8 != 0, flags >> 1 & 3, flags & 1 != 0);
    if qos == 3 || dup && qos == 0 {
        return violation(MALFORMED, "a PUBLISH with flags that it may not have");
    }
    let topic = names::topic(bytes.text()?)?;
    let id = if qos > 0 { bytes.id()? } else { 0 };
    let listed = properties::take(&mut bytes, version, OF_PUBLISH)?;
    if topic.is_empty() && listed.alias.is_none() {
        let code = if version == Version::Five { PROTOCOL } else { BAD_TOPIC };
        return violation(code, "a message without a topic");
    }
    Ok(Publish { dup, qos, retain, topic, id, payload: bytes.0, listed })
}

fn acknowledgement(kind: u8, mut bytes: Bytes<'_>, version: Version) -> Result<Packet<'_>, Violation> {
    let id = bytes.id()?;
    let mut code = 0;
    if version == Version::Five && !bytes.0.is_empty() {
        code = bytes.byte()?;
        let is_known = match kind {
            4 | 5 => matches!(code, 0 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99),
            _ => matches!(code, 0 | UNKNOWN_ID),
        };
        if !is_known {
            return violation(PROTOCOL, "an acknowledgement with a reason that it may not have");
        }
        if !bytes.0.is_empty() {
            properties::take(&mut bytes, version, OF_ACKNOWLEDGEMENT)?;
        }
    }
    bytes.end()?;
    Ok(match kind {
        4 => Packet::PubAck(id, code),
        5 => Packet::PubRec(id, code),
        6 => Packet::PubRel(id),
        _ => Packet::PubComp(id),
    })
}

fn subscribe(mut bytes: Bytes<'_>, version: Version) -> Result<Packet<'_>, Violation> {
    let id = bytes.id()?;
    let number = properties::take(&mut bytes, version, OF_SUBSCRIBE)?.number;
    let mut filters = Vec::new();
    while !bytes.0.is_empty() {
        let (filter, options) = (names::filter(bytes.text()?)?, bytes.byte()?);
        let (qos, retain_handling) = (options & 3, options >> 4 & 3);
        let reserved = if version == Version::Five { 0xc0 } else { 0xfc };
        if qos == 3 || options & reserved != 0 {
            return violation(MALFORMED, "a subscription with options that it may not have");
        }
        let read = Subscribe {
            filter,
            qos,
            no_local: options & 4 != 0,
            retain_as_published: options & 8 != 0,
            retain_handling,
        };
        if retain_handling == 3 || read.no_local && filter.starts_with("$share/") {
            return violation(PROTOCOL, "a subscription with options that it may not have");
        }
        filters.push(read);
    }
    if filters.is_empty() {
        return violation(PROTOCOL, "a SUBSCRIBE without a filter");
    }
    Ok(Packet::Subscribe { id, number, filters })
}

fn unsubscribe(mut bytes: Bytes<'_>, version: Version) -> Result<Packet<'_>, Violation> {
    let id = bytes.id()?;
    properties::take(&mut bytes, version, OF_UNSUBSCRIBE)?;
    let mut filters = Vec::new();
    while !bytes.0.is_empty() {
        filters.push(names::filter(bytes.text()?)?);
    }
    if filters.is_empty() {
        return violation(PROTOCOL, "an UNSUBSCRIBE without a filter");
    }
    Ok(Packet::Unsubscribe { id, filters })
}

fn disconnect(mut bytes: Bytes<'_>, version: Version) -> Result<Packet<'_>, Violation> {
    let (mut code, mut expiry) = (0, None);
    if version == Version::Five && !bytes.0.is_empty() {
        code = bytes.byte()?;
        if !matches!(code, 0 | 4 | 0x80..=0x83 | 0x90 | 0x93..=0x99) {
            return violation(PROTOCOL, "a DISCONNECT with a reason that it may not have");
        }
        if !bytes.0.is_empty() {
            expiry = properties::take(&mut bytes, version, OF_DISCONNECT)?.session_expiry;
        }
    }
    bytes.end()?;
    Ok(Packet::Disconnect { code, expiry })
}

#[cfg(test)]
mod tests;
