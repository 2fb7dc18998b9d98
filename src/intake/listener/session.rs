//! The session of a client, in memory: its waiting messages, and the messages that are not acknowledged, in both
//! directions. A session outlives its connections for as long as the client requested.
//!
//! # How much waits
//! A client that does not read is disconnected when [`MAX_WAITING`] messages or [`MAX_WAITING_BYTES`] wait for it or
//! for its acknowledgement, and the messages for all clients together are bounded too. A client that is away loses the
//! messages beyond these bounds. When the process ends, all waiting messages are lost.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::encode::{self, AckKind};
use super::limits::Share;
use super::message::{Delivery, Kept, Message, OVERHEAD, Wire};

/// The most waiting messages of one client, without retained ones, and the most bytes.
const MAX_WAITING: usize = 1000;
const MAX_WAITING_BYTES: usize = 8 << 20;
/// The most bytes for all clients: half of it for a disconnected client, and twice as much for a client that has read
/// everything so far.
const MAX_WAITING_OF_ALL: usize = 64 << 20;
/// Above this number of bytes, the disconnected clients with the most bytes lose their messages.
pub const MAX_KEPT_AWAY: usize = MAX_WAITING_OF_ALL / 4;
/// The most unacknowledged messages to a client, if it sets no limit.
const MAX_IN_FLIGHT: u16 = 20;
/// Bytes that are written at once.
const WRITE: usize = 64 << 10;

/// The reason why a session gives up its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    TakenOver,
    Slow,
}

pub struct Session {
    pub id: Box<str>,
    pub number: u64,
    /// Bytes that wait for all clients.
    kept: Arc<AtomicUsize>,
    state: Mutex<SessionContent>,
    pub wake: Notify,
}

#[derive(Default)]
struct SessionContent {
    /// The number of the connection; 0 if there is none.
    connection: u64,
    wire: Wire,
    end: Option<End>,
    /// Acknowledgements to write.
    due: Vec<(AckKind, u16, u8)>,
    /// Messages of this connection that wait to be recorded.
    unrecorded: usize,
    /// QoS 2 messages that the client has not released, and whether each is recorded.
    unreleased: HashMap<u16, bool>,
    waiting: VecDeque<Delivery>,
    /// The bytes of messages that wait, are in flight, or were written last.
    bytes: usize,
    /// The bytes of messages that were written last and are not in flight.
    written: usize,
    in_flight: VecDeque<InFlight>,
    last_id: u16,
    /// The filters of the client, each with its share of the memory for filters.
    filters: HashMap<Box<str>, Share>,
}

struct InFlight {
    id: u16,
    delivery: Delivery,
    /// The client has received this QoS 2 message.
    is_received: bool,
    /// An earlier connection sent the message, so it is sent again.
    is_due_again: bool,
}

/// The handling of a QoS 2 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    New,
    /// The message is a repetition, and was or will be acknowledged.
    Repeated,
    TooMany,
}

impl Session {
    pub fn new(id: &str, number: u64, kept: Arc<AtomicUsize>) -> Session {
        Session { id: id.into(), number, kept, state: Mutex::default(), wake: Notify::new() }
    }

    /// Notes a new connection; unacknowledged messages of an earlier one become due again.
    pub fn connect(&self, connection: u64, wire: Wire) {
        let mut state = self.state.lock();
        (state.connection, state.wire, state.end) = (connection, wire, None);
        (state.unrecorded, state.due) = (0, Vec::new());
        let SessionContent { in_flight, due, .. } = &mut *state;
        for sent in in_flight {
            sent.is_due_again = true;
            due.extend(sent.is_received.then_some((AckKind::PubRel, sent.id, 0)));
        }
        self.wake.notify_one();
    }

    /// Notes the end of a connection, unless another one has the session already.
    pub fn disconnected(&self, connection: u64) {
        let mut state = self.state.lock();
        if state.connection == connection {
            (state.connection, state.due) = (0, Vec::new());
            self.retain(&mut state, |delivery| delivery.qos > 0);
        }
    }

    /// Ends the session, and drops its waiting messages. Returns the filters of its subscriptions.
    pub fn end(&self) -> Vec<Box<str>> {
        self.forget();
        self.state.lock().filters.drain().map(|(filter, _)| filter).collect()
    }

    pub fn give_up(&self, why: End) {
        self.state.lock().end = Some(why);
        self.wake.notify_one();
    }

    /// The reason why that connection has to end.
    pub fn ended(&self, connection: u64) -> Option<End> {
        let state = self.state.lock();
        if state.connection == connection { state.end } else { Some(End::TakenOver) }
    }

    pub fn is_connected(&self) -> bool {
        self.state.lock().connection != 0
    }

    /// Adds a subscription, with its share of the memory if it is new; `None` if there is no room. Otherwise returns
    /// whether it is new.
    pub fn subscribe(
        &self,
        filter: &str,
        most: usize,
        share: impl FnOnce() -> Option<Share>,
    ) -> Option<bool> {
        let mut state = self.state.lock();
        if state.filters.contains_key(filter) {
            return Some(false);
        }
        // An ended session gets no new subscription, because it would never unsubscribe.
        let has_room = state.filters.len() < most && state.end.is_none();
        let share = if has_room { share() } else { None };
        state.filters.insert(filter.into(), share?);
        Some(true)
    }

    pub fn unsubscribe(&self, filter: &str) -> bool {
        self.state.lock().filters.remove(filter).is_some()
    }

    /// Queues a message for the client; `false` if there is no room.
    pub fn deliver(&self, mut delivery: Delivery) -> bool {
        let mut state = self.state.lock();
        if state.connection == 0 && delivery.qos == 0 || state.end.is_some() {
            // `false` for a retained message stops the sending of further ones.
            return !delivery.retain;
        }
        let size = delivery.message.size();
        // A client that reads everything is not disconnected because of slow clients.
        let of_all = match (state.connection, state.bytes) {
            (0, _) => MAX_WAITING_OF_ALL / 2,
            (_, 0) => MAX_WAITING_OF_ALL * 2,
            _ => MAX_WAITING_OF_ALL,
        };
        let has_room = (state.waiting.len() < MAX_WAITING || delivery.retain)
            && state.bytes + size <= MAX_WAITING_BYTES.max(size)
            && self.kept.load(Ordering::Relaxed) <= of_all;
        if has_room {
            state.bytes += size;
            delivery.kept = Some(Kept::new(&self.kept, OVERHEAD));
            state.waiting.push_back(delivery);
        } else if state.connection != 0 {
            state.end = Some(End::Slow);
        }
        drop(state);
        self.wake.notify_one();
        has_room
    }

    /// Notes that a message of this connection is about to be queued for the recorder.
    pub fn queued(&self) {
        self.state.lock().unrecorded += 1;
    }

    /// Notes that a message is recorded, or need not be: its acknowledgement is due, unless its connection has ended.
    pub fn recorded(&self, connection: u64, kind: AckKind, id: u16, code: u8) {
        let mut state = self.state.lock();
        if kind == AckKind::PubRec
            && let Some(is_recorded) = state.unreleased.get_mut(&id)
        {
            *is_recorded = true;
        }
        if state.connection != connection {
            // The client will send the message again.
            return;
        }
        state.unrecorded = state.unrecorded.saturating_sub(1);
        state.due.push((kind, id, code));
        let is_first = state.due.len() == 1;
        drop(state);
        if is_first {
            self.wake.notify_one();
        }
    }

    /// The number of unacknowledged messages of the client.
    pub fn unacknowledged(&self) -> usize {
        let state = self.state.lock();
        let acknowledged = state.due.iter().filter(|(kind, ..)| *kind == AckKind::PubAck).count();
        state.unrecorded.max(state.unreleased.len()) + acknowledged
    }

    /// The number of these messages that wait to be recorded.
    pub fn unrecorded(&self) -> usize {
        self.state.lock().unrecorded
    }

    /// Notes the arrival of a QoS 2 message with this id.
    pub fn incoming(&self, id: u16, most: usize) -> Incoming {
        let mut state = self.state.lock();
        match state.unreleased.get(&id) {
            Some(true) => state.due.push((AckKind::PubRec, id, 0)),
            Some(false) => {}
            None if state.unreleased.len() >= most => return Incoming::TooMany,
            None => {
                state.unreleased.insert(id, false);
                return Incoming::New;
            }
        }
        Incoming::Repeated
    }

    /// Notes that the client releases a QoS 2 message, or that its message was refused.
    pub fn release(&self, id: u16) -> bool {
        self.state.lock().unreleased.remove(&id).is_some()
    }

    /// Notes that the client has acknowledged a QoS 1 message, or has completed or refused a QoS 2 message.
    pub fn completed(&self, id: u16) {
        let mut state = self.state.lock();
        if let Some(at) = state.in_flight.iter().position(|sent| sent.id == id)
            && let Some(sent) = state.in_flight.remove(at)
        {
            state.bytes -= sent.delivery.message.size();
        }
    }

    /// Notes that the client has received a QoS 2 message; `false` if no message has this id.
    pub fn received(&self, id: u16) -> bool {
        let mut state = self.state.lock();
        let sent = state.in_flight.iter_mut().find(|sent| sent.id == id && sent.delivery.qos == 2);
        sent.map(|sent| sent.is_received = true).is_some()
    }

    /// Writes everything that is due. Returns the message whose large payload has to follow, if any; and whether
    /// nothing more is due.
    pub fn write(&self, out: &mut Vec<u8>, now: Instant) -> (Option<Arc<Message>>, bool) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        // The bytes of the previous write have been sent.
        state.bytes -= std::mem::take(&mut state.written);
        let wire = state.wire;
        for (kind, id, code) in state.due.drain(..) {
            encode::acknowledgement(out, wire.version, kind, id, code);
        }
        let most: usize = wire.receive_maximum.min(MAX_IN_FLIGHT).into();
        while out.len() < WRITE {
            if let Some(sent) = state.in_flight.iter_mut().find(|sent| sent.is_due_again) {
                sent.is_due_again = false;
                if !sent.is_received
                    && let Some(Some(large)) = sent.delivery.write(out, wire, (sent.id, true), now)
                {
                    return (Some(large), false);
                }
                continue;
            }
            let has_room = state.in_flight.len() < most;
            let Some(delivery) = state.waiting.pop_front_if(|next| next.qos == 0 || has_room) else {
                return (None, true);
            };
            let id = if delivery.qos > 0 { state.next_id() } else { 0 };
            let written = delivery.write(out, wire, (id, false), now);
            if written.is_some() && delivery.qos > 0 {
                state.in_flight.push_back(InFlight { id, delivery, is_received: false, is_due_again: false });
            } else {
                state.written += delivery.message.size();
            }
            if let Some(Some(large)) = written {
                return (Some(large), false);
            }
        }
        (None, false)
    }

    /// How many bytes wait for the client.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Drops the waiting messages of a disconnected client.
    pub fn forget(&self) {
        let mut state = self.state.lock();
        state.in_flight = VecDeque::new();
        self.retain(&mut state, |_| false);
    }

    fn retain(&self, state: &mut SessionContent, keep: impl Fn(&Delivery) -> bool) {
        state.waiting.retain(keep);
        let in_flight = state.in_flight.iter().map(|sent| &sent.delivery);
        let left: usize = state.waiting.iter().chain(in_flight).map(|delivery| delivery.message.size()).sum();
        (state.bytes, state.written) = (left, 0);
        if state.waiting.is_empty() {
            state.waiting = VecDeque::new();
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({:?})", self.id)
    }
}

impl SessionContent {
    fn next_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if self.in_flight.iter().all(|sent| sent.id != self.last_id) {
                return self.last_id;
            }
        }
    }
}

#[cfg(test)]
mod tests;
