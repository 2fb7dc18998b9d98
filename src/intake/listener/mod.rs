//! The listener: devices connect straight to Rollcall, and no broker has to be installed. The listener is for one
//! machine; a fleet that outgrows it moves its files of users and rules to Mosquitto, unchanged.
//!
//! A message of a device goes straight into intake: the same reader, queue and recorder as for messages of an external
//! broker. It is acknowledged when it is recorded, and a request about a timer when it is applied; a message without
//! anything to record is acknowledged at once. So an acknowledged message is as safe as the engine stores it, and the
//! device repeats a message that was not acknowledged. Messages also go to the clients that subscribed to them, with
//! unchanged bytes.
//!
//! ```text
//! accept ─▶ handshake ─▶ connection: read, receive ─▶ door ─▶ queue ─▶ record
//!                            ▲     │      tick, once a period ──▲         │
//!                            │     └─▶ router ─▶ sessions of subscribers  │
//!                            └───────────── receipts ◀────────────────────┘
//! ```
//!
//! # While the engine is away
//! Messages that have to be recorded are not acknowledged. Connections stay open, and are read up to their limit of
//! waiting messages (see `connection.rs`). The ticks stop with the queue, so this time is blind.
//!
//! # What devices may do without a file of rules
//! They may publish and subscribe to all topics except `rollcall/#`, which belong to Rollcall, and `$…`, which belong
//! to the listener. On loopback any client may connect; on any other address the listener refuses to start without a
//! password file or client certificates.
//!
//! # Limits
//! A device that sends faster than its rates is read more slowly, and connections take turns. No message is dropped for
//! this, because a client of MQTT 3.1.1 takes every refusal for success. Large packets wait for one another. A device
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

/// The reasons why a text is not a file of users, and not a file of rules: for tests of the parsers.
#[doc(hidden)]
pub fn refusals(text: &str) -> Vec<String> {
    let (users, rules) = (users::Users::parse(text).err(), access_rules::AccessRules::parse(text).err());
    users.into_iter().chain(rules).collect()
}

/// Reads packets out of any bytes, as a connection does, for tests. Returns the number of packets, and the reason why
/// the rest is no packet.
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
