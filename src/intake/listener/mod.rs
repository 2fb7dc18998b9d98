//! The listener: devices connect straight to Rollcall, and no broker has to be installed. The listener is for one
//! machine; a fleet that outgrows it moves its files of users and rules to Mosquitto, unchanged.
//!
//! A message of a device goes straight into intake: the same reader, the same queue and the same recorder as for
//! messages of a broker elsewhere. It is acknowledged when it is recorded, and a request about a timer when it is
//! applied; a message of which nothing is recorded is acknowledged at once. So an acknowledged message is as safe as
//! the engine keeps it, and the device repeats a message that was not acknowledged. Messages are also passed on to the
//! clients that subscribed to them, byte by byte as they came.
//!
//! ```text
//! accept ─▶ handshake ─▶ connection: read, receive ─▶ door ─▶ queue ─▶ record
//!                            ▲     │      tick, once a period ──▲         │
//!                            │     └─▶ router ─▶ sessions of subscribers  │
//!                            └───────────── receipts ◀────────────────────┘
//! ```
//!
//! # While the engine is away
//! No message is acknowledged that is to be recorded. Connections stay open, and are read until as many of their
//! messages wait as may (see `connection.rs`); the ticks stop with the queue, so that this time is blind.
//!
//! # What devices may do without a file of rules
//! They may publish and subscribe to all topics except `rollcall/#`, which are Rollcall's, and
//! `$…`, which are the listener's own. On loopback any client may connect; on any other address the listener
//! requires a password file or client certificates, and refuses to start without.
//!
//! # Limits
//! A device that sends faster than its rates is read more slowly, and connections take turns. No message is dropped
//! for it: at MQTT 3.1.1 every refusal of a message reads as success. Large packets wait for one another. A device
//! that does not read the messages that it subscribed to is disconnected, and so is a device that violates the
//! protocol. The messages that memory holds for clients that are away are bounded in number, time and bytes.

mod access_control;
mod access_rules;
mod authentication;
mod bytes;
mod codec;
mod connection;
mod door;
mod encode;
mod handshake;
mod limits;
mod message;
mod names;
mod pauses;
mod properties;
mod receipt;
mod receive;
mod router;
mod server;
mod session;
mod sessions;
mod shared;
mod users;
mod websocket;

pub use super::listener_config::{Config, ListenerTls, NOT_BUILT_IN};
pub(super) use receipt::Receipt;
pub use server::Listener;

/// Why a text is not a file of users, and why it is not a file of rules: for tests of the parsers.
#[doc(hidden)]
pub fn refusals(text: &str) -> Vec<String> {
    let (users, rules) = (users::Users::parse(text).err(), access_rules::AccessRules::parse(text).err());
    users.into_iter().chain(rules).collect()
}

/// Reads packets of clients out of any bytes, as a connection does, for tests: how many packets, and why the rest is
/// no packet.
#[doc(hidden)]
pub fn packets_of_any(mut bytes: &[u8], is_five: bool) -> (usize, Option<&'static str>) {
    let version = if is_five { bytes::Version::Five } else { bytes::Version::Four };
    let mut count = 0;
    loop {
        let frame = match codec::frame(bytes, 1 << 20, (count > 0).then_some(version)) {
            Ok(codec::Arrived::Whole(frame)) => frame,
            Ok(codec::Arrived::Part(_)) => return (count, None),
            Err(violation) => return (count, Some(violation.why)),
        };
        // The first packet may be a CONNECT or any other.
        let read = match frame.connect() {
            Ok(_) => Ok(()),
            Err((None, _)) => frame.read(version).map(drop),
            Err((Some(_), violation)) => Err(violation),
        };
        if let Err(violation) = read {
            return (count, Some(violation.why));
        }
        (bytes, count) = (&bytes[frame.length..], count + 1);
    }
}
