//! Messages on their way to subscribers: their memory, and how they are written.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::bytes::Version;
use super::codec::Publish;
use super::encode;
use super::properties::{Properties, forwarded};

/// Larger payloads are written without a copy.
const LARGE: usize = 4 << 10;
/// The memory of a message, and of its delivery to a client, beside its parts.
pub const OVERHEAD: usize = 128;

/// Counted memory of messages on their way to clients; dropping it ends the count.
#[derive(Debug)]
pub struct Kept {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Kept {
    pub fn new(all: &Arc<AtomicUsize>, bytes: usize) -> Kept {
        all.fetch_add(bytes, Ordering::Relaxed);
        Kept { all: all.clone(), bytes }
    }
}

impl Clone for Kept {
    fn clone(&self) -> Kept {
        Kept::new(&self.all, self.bytes)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A message on its way to subscribers.
#[derive(Clone, Debug, Default)]
pub struct Message {
    pub topic: Box<str>,
    pub payload: Box<[u8]>,
    /// Properties of MQTT 5, unchanged.
    pub properties: Box<[u8]>,
    pub expires: Option<Instant>,
    /// The number of the session that sent it.
    pub from: u64,
    /// The memory of the message, counted once for all clients.
    pub kept: Option<Kept>,
}

/// A message for one client.
#[derive(Debug)]
pub struct Delivery {
    pub message: Arc<Message>,
    pub qos: u8,
    pub retain: bool,
    /// The numbers of the matching subscriptions.
    pub numbers: Vec<u32>,
    /// The memory of the delivery, beside that of the message.
    pub kept: Option<Kept>,
}

/// The version and the limits with which a session's connection writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wire {
    pub version: Version,
    pub max_packet: usize,
    pub receive_maximum: u16,
}

impl Message {
    /// A message from the session with this number, as its subscribers receive it.
    pub fn of(from: u64, topic: &str, payload: &[u8], listed: &Properties) -> Message {
        let properties = forwarded(listed.raw);
        Message { topic: topic.into(), payload: payload.into(), properties, from, ..Message::default() }
    }

    /// How much memory the message takes.
    pub fn size(&self) -> usize {
        self.topic.len() + self.payload.len() + self.properties.len() + OVERHEAD
    }
}

impl Delivery {
    /// Writes a message; returns it if its large payload still has to follow. `None` if the message has expired, or is
    /// larger than the client accepts.
    pub fn write(
        &self,
        out: &mut Vec<u8>,
        wire: Wire,
        (id, dup): (u16, bool),
        now: Instant,
    ) -> Option<Option<Arc<Message>>> {
        let Delivery { message, qos, retain, numbers, .. } = self;
        let left = message.expires.map(|expires| expires.saturating_duration_since(now));
        if left.is_some_and(|left| left.is_zero()) {
            return None;
        }
        let expiry = left.map(|left| left.as_secs_f64().ceil() as u32);
        let publish = Publish {
            dup,
            qos: *qos,
            retain: *retain,
            topic: &message.topic,
            id,
            payload: &message.payload,
            listed: Properties { expiry, raw: &message.properties, ..Properties::default() },
        };
        if !encode::publish(out, wire.version, &publish, numbers, wire.max_packet) {
            return None;
        }
        let is_large = message.payload.len() > LARGE;
        out.extend_from_slice(if is_large { &[] } else { &message.payload });
        Some(is_large.then(|| message.clone()))
    }
}
