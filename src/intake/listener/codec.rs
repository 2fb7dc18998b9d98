//! Packets of clients, read in place from the bytes that arrived: MQTT 3.1.1 and 5.
//!
//! # What it refuses
//! Everything that the specifications forbid in a single packet, with the reason code of MQTT 5 that a client of that
//! version is told. What depends on earlier packets is for the connection to judge.
//!
//! # Why it is our own
//! A library's packets own their parts, differ by version and hide what was wrong with them. Each check that it leaves
//! out would read the bytes a second time, and one that it makes too much would refuse good clients. These lines are all
//! that a server needs to read: the format is frozen, and a message is copied only if a client has subscribed to it.

use super::bytes::{
    BAD_ALIAS, BAD_AUTHENTICATION, BAD_CLIENT_ID, BAD_TOPIC, Bytes, MALFORMED, PROTOCOL, TOO_LARGE,
    UNKNOWN_ID, Version, Violation, violation,
};
use super::names;
use super::properties::{
    self, AUTH_DATA, AUTH_METHOD, CORRELATION, EXPIRY, MAXIMUM_PACKET, RECEIVE_MAXIMUM, RESPONSE_TOPIC,
    SESSION_EXPIRY, SUBSCRIPTION_ID, TOPIC_ALIAS, TOPIC_ALIAS_MAXIMUM, Value, WILL_DELAY,
};

/// A packet that has arrived whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    first: u8,
    body: &'a [u8],
    /// Its length with the header.
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
    /// The client is a bridge, which wants back no message of its own.
    pub is_bridge: bool,
    pub clean: bool,
    pub keep_alive: u16,
    pub id: &'a str,
    pub will: Option<Will<'a>>,
    pub user: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    /// In seconds; at 3.1.1 none or for ever.
    pub expiry: u32,
    pub receive_maximum: u16,
    pub max_packet: u32,
}

#[derive(Debug, PartialEq)]
pub struct Will<'a> {
    pub qos: u8,
    pub retain: bool,
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub delay: u32,
    pub expiry: Option<u32>,
    pub properties: &'a [u8],
}

#[derive(Debug, PartialEq)]
pub struct Publish<'a> {
    pub dup: bool,
    pub qos: u8,
    pub retain: bool,
    pub topic: &'a str,
    /// 0 at QoS 0.
    pub id: u16,
    pub payload: &'a [u8],
    pub alias: Option<u16>,
    pub expiry: Option<u32>,
    pub response_topic: Option<&'a str>,
    pub correlation: &'a [u8],
    pub properties: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    pub filter: &'a str,
    pub qos: u8,
    pub no_local: bool,
    pub retain_as_published: bool,
    pub retain_handling: u8,
}

/// Why a CONNECT is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadConnect {
    /// Another protocol, or none.
    NotMqtt(&'static str),
    /// A version of MQTT that is not spoken here.
    Level(u8),
    Violation(Version, Violation),
}

/// The first packet of what has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived<'a> {
    Whole(Frame<'a>),
    /// Its whole length; 0: that has not arrived either.
    Part(usize),
}

/// The first packet of what has arrived. `version`: once it is known.
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
        let none = |_| BadConnect::NotMqtt("its first packet is no CONNECT");
        if self.first != 0x10 {
            return Err(BadConnect::NotMqtt("its first packet is no CONNECT"));
        }
        let (name, level) = (bytes.binary().map_err(none)?, bytes.byte().map_err(none)?);
        let version = match (name, level) {
            (b"MQTT", 4 | 0x84) => Version::Four,
            (b"MQTT", 5) => Version::Five,
            (b"MQTT" | b"MQIsdp", level) => return Err(BadConnect::Level(level)),
            _ => return Err(BadConnect::NotMqtt("it speaks another protocol")),
        };
        let read = read_connect(bytes, version).map_err(|why| BadConnect::Violation(version, why))?;
        Ok(Connect { is_bridge: level == 0x84, ..read })
    }

    /// Reads any later packet.
    pub fn read(&self, version: Version) -> Result<Packet<'a>, Violation> {
        let (kind, flags, mut bytes) = (self.first >> 4, self.first & 15, Bytes(self.body));
        let wanted = if matches!(kind, 6 | 8 | 10) { 2 } else { 0 };
        if kind != 3 && flags != wanted {
            return violation(MALFORMED, "a packet with flags that it may not have");
        }
        let packet = match kind {
            3 => return read_publish(flags, bytes, version).map(Packet::Publish),
            4..=7 => return acknowledgement(kind, bytes, version),
            8 => return subscribe(bytes, version),
            10 => return unsubscribe(bytes, version),
            14 => return disconnect(bytes, version),
            12 => Packet::Ping,
            1 => return violation(PROTOCOL, "a second CONNECT"),
            15 if version == Version::Five => return violation(PROTOCOL, "AUTH, with no method agreed"),
            2 | 9 | 11 | 13 => return violation(PROTOCOL, "a packet that only a server sends"),
            _ => return violation(MALFORMED, "a packet of an unknown type"),
        };
        bytes.take(0)?;
        bytes.end()?;
        Ok(packet)
    }
}

fn read_connect(mut bytes: Bytes<'_>, version: Version) -> Result<Connect<'_>, Violation> {
    let (flags, keep_alive) = (bytes.byte()?, bytes.two()?);
    let (has_user, has_password, has_will) = (flags & 0x80 != 0, flags & 0x40 != 0, flags & 4 != 0);
    let will_qos = flags >> 3 & 3;
    if flags & 1 != 0 || will_qos == 3 || !has_will && flags & 0x38 != 0 {
        return violation(MALFORMED, "a CONNECT with flags that it may not have");
    }
    if version == Version::Four && has_password && !has_user {
        return violation(MALFORMED, "a password without a user name");
    }
    let clean = flags & 2 != 0;
    let mut read = Connect {
        version,
        is_bridge: false,
        clean,
        keep_alive,
        id: "",
        will: None,
        user: None,
        password: None,
        expiry: if version == Version::Four && !clean { u32::MAX } else { 0 },
        receive_maximum: u16::MAX,
        max_packet: u32::MAX,
    };
    let (mut has_method, mut has_data) = (false, false);
    properties::read(bytes.properties(version)?, properties::OF_CONNECT, |property| {
        let number = property.value.number();
        match property.id {
            SESSION_EXPIRY => read.expiry = number,
            RECEIVE_MAXIMUM => read.receive_maximum = number as u16,
            MAXIMUM_PACKET => read.max_packet = number,
            AUTH_METHOD => has_method = true,
            AUTH_DATA => has_data = true,
            TOPIC_ALIAS_MAXIMUM => {} // Messages to clients have no aliases.
            _ => {}
        }
        Ok(())
    })?;
    if has_data && !has_method {
        return violation(PROTOCOL, "authentication data without a method");
    }
    read.id = bytes.text()?;
    if has_will {
        read.will = Some(read_will(&mut bytes, version, will_qos, flags & 0x20 != 0)?);
    }
    if has_user {
        read.user = Some(bytes.text()?);
    }
    if has_password {
        read.password = Some(bytes.binary()?);
    }
    bytes.end()?;
    if has_method {
        return violation(BAD_AUTHENTICATION, "an authentication method; there is none here");
    }
    if read.id.is_empty() && !clean && version == Version::Four {
        return violation(BAD_CLIENT_ID, "no client id, for a session that is to be kept");
    }
    Ok(read)
}

fn read_will<'a>(
    bytes: &mut Bytes<'a>,
    version: Version,
    qos: u8,
    retain: bool,
) -> Result<Will<'a>, Violation> {
    let properties = bytes.properties(version)?;
    let (mut delay, mut expiry) = (0, None);
    properties::read(properties, properties::OF_WILL, |property| {
        match (property.id, property.value) {
            (WILL_DELAY, value) => delay = value.number(),
            (EXPIRY, value) => expiry = Some(value.number()),
            (RESPONSE_TOPIC, Value::Text(topic)) => names::response_topic(topic)?,
            _ => {}
        }
        Ok(())
    })?;
    let (topic, payload) = (names::topic(bytes.text()?)?, bytes.binary()?);
    if topic.is_empty() {
        return violation(BAD_TOPIC, "a will without a topic");
    }
    Ok(Will { qos, retain, topic, payload, delay, expiry, properties })
}

fn read_publish(flags: u8, mut bytes: Bytes<'_>, version: Version) -> Result<Publish<'_>, Violation> {
    let (dup, qos, retain) = (flags & 8 != 0, flags >> 1 & 3, flags & 1 != 0);
    if qos == 3 || dup && qos == 0 {
        return violation(MALFORMED, "a PUBLISH with flags that it may not have");
    }
    let topic = names::topic(bytes.text()?)?;
    let id = if qos > 0 { bytes.id()? } else { 0 };
    let raw = bytes.properties(version)?;
    let mut read = Publish {
        dup,
        qos,
        retain,
        topic,
        id,
        payload: bytes.0,
        alias: None,
        expiry: None,
        response_topic: None,
        correlation: &[],
        properties: raw,
    };
    if !raw.is_empty() {
        properties::read(raw, properties::OF_PUBLISH, |property| {
            match (property.id, property.value) {
                (TOPIC_ALIAS, Value::Number(0)) => return violation(BAD_ALIAS, "a topic alias of 0"),
                (TOPIC_ALIAS, value) => read.alias = Some(value.number() as u16),
                (EXPIRY, value) => read.expiry = Some(value.number()),
                (RESPONSE_TOPIC, Value::Text(topic)) => {
                    names::response_topic(topic)?;
                    read.response_topic = Some(topic);
                }
                (CORRELATION, Value::Bytes(bytes)) => read.correlation = bytes,
                _ => {}
            }
            Ok(())
        })?;
    }
    if topic.is_empty() && read.alias.is_none() {
        return violation(
            if version == Version::Five { PROTOCOL } else { BAD_TOPIC },
            "a message without a topic",
        );
    }
    Ok(read)
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
            properties::read(bytes.properties(version)?, properties::OF_ACKNOWLEDGEMENT, |_| Ok(()))?;
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
    let mut number = None;
    properties::read(bytes.properties(version)?, properties::OF_SUBSCRIBE, |property| {
        if property.id == SUBSCRIPTION_ID {
            number = Some(property.value.number());
        }
        Ok(())
    })?;
    let mut filters = Vec::new();
    while !bytes.0.is_empty() {
        let (filter, options) = (bytes.text()?, bytes.byte()?);
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
        names::filter(filter)?;
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
    properties::read(bytes.properties(version)?, properties::OF_UNSUBSCRIBE, |_| Ok(()))?;
    let mut filters = Vec::new();
    while !bytes.0.is_empty() {
        let filter = bytes.text()?;
        names::filter(filter)?;
        filters.push(filter);
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
            properties::read(bytes.properties(version)?, properties::OF_DISCONNECT, |property| {
                if property.id == SESSION_EXPIRY {
                    expiry = Some(property.value.number());
                }
                Ok(())
            })?;
        }
    }
    bytes.end()?;
    Ok(Packet::Disconnect { code, expiry })
}

#[cfg(test)]
mod tests;
