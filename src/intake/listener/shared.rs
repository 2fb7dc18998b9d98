//! The parts that all connections of the listener share, and the way of a message through it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Config;
use super::access_control::{AccessControl, NOWHERE, Peer};
use super::codec::{Publish, Will};
use super::door::Door;
use super::encode::text;
use super::limits::Shares;
use super::message::Message;
use super::pauses::Pauses;
use super::properties::{CONTENT_TYPE, CORRELATION};
use super::router::{Routed, Router};
use super::session::Session;
use super::sessions::{LastWill, Sessions};
use crate::clock::monotonic;
use crate::intake::timers::ReplyTo;
use crate::telemetry::BrokerRefusal;

/// How long the last messages of an ended connection wait for room in the queue.
pub const QUEUED_WITHIN: Duration = Duration::from_secs(10);

/// The session number of Rollcall itself.
const OWN: u64 = 0;

pub struct Shared {
    pub config: Config,
    pub door: Door,
    pub access: Arc<AccessControl>,
    pub router: Router,
    pub sessions: Sessions,
    /// Bytes of large packets that have not arrived completely.
    pub large: Arc<Shares>,
    /// Bytes of the filters that clients have subscribed to.
    pub filters: Arc<Shares>,
    pub pauses: Arc<Pauses>,
    pub stop: CancellationToken,
}

impl Shared {
    /// Routes a message to its subscribers, and retains it if it wants that.
    pub fn pass_on(&self, peer: &Peer, publish: &Publish, from: u64) {
        let Publish { topic, qos, retain, payload, ref listed, .. } = *publish;
        let copy = || Message {
            expires: listed.expiry.map(|expiry| monotonic() + seconds(expiry)),
            ..Message::of(from, topic, payload, listed)
        };
        self.route(peer, Routed { topic, qos, retain, from }, copy);
    }

    /// Publishes a last will with the rights of its client, and queues it for the recorder if it means something to
    /// Rollcall.
    pub async fn publish_will(&self, will: LastWill) {
        let LastWill { peer, message, qos, retain, expiry, is_former, .. } = will;
        if !self.access.may_publish(&peer, &message.topic) {
            return;
        }
        let message = Message { expires: expiry.map(|expiry| monotonic() + expiry), ..message };
        let (topic, from) = (&*message.topic, message.from);
        self.route(&peer, Routed { topic, qos, retain, from }, || message.clone());
        let arrived = self.door.clock.now();
        let content = self.door.read_will(topic, &message.payload, is_former, arrived);
        if let Some(message) = self.door.queued(content, arrived, None) {
            // A will is only a hint, so it may be lost while the queue does not move, which is blind time.
            let sending = self.stop.run_until_cancelled(self.door.queue.send(message));
            let _ = timeout(QUEUED_WITHIN, sending).await;
        }
    }

    /// Publishes Rollcall's answer to a request, if the client may publish on that topic, or a command to a device.
    pub fn answer(&self, to: &ReplyTo, answer: &[u8]) {
        let mut properties = Vec::new();
        if answer.starts_with(b"{") {
            properties.push(CONTENT_TYPE);
            text(&mut properties, b"application/json");
        }
        if !to.correlation.is_empty() {
            properties.push(CORRELATION);
            text(&mut properties, &to.correlation);
        }
        let (topic, payload) = (to.topic.as_str().into(), answer.into());
        let copy =
            || Message { topic, payload, properties: properties.into(), from: OWN, ..Message::default() };
        // A client without room for its answers is disconnected like any other, and repeats its request later.
        self.router.route(Routed { topic: &to.topic, qos: 0, retain: false, from: OWN }, copy);
    }

    /// Publishes a retained message of Rollcall at QoS 1. Returns whether it is retained.
    pub fn publish_retained(&self, topic: &str, payload: &[u8]) -> bool {
        let copy =
            || Message { topic: topic.into(), payload: payload.into(), from: OWN, ..Message::default() };
        let is_retained = self.router.keep(topic, 1, copy);
        for session in self.router.route(Routed { topic, qos: 1, retain: true, from: OWN }, copy) {
            self.without_room(&session);
        }
        is_retained
    }

    fn route(&self, peer: &Peer, routed: Routed, copy: impl Fn() -> Message) {
        if routed.retain && !self.router.retain(routed.topic, routed.qos, &copy) {
            let why = "only messages below rollcall/ are retained, and a bounded number; it was passed on";
            self.access.refuse(BrokerRefusal::Retained, peer, why);
        }
        for session in self.router.route(routed, &copy) {
            self.without_room(&session);
        }
    }

    /// Counts and logs that a disconnected client had no room for a message. A connected client is disconnected, which
    /// its connection reports.
    pub fn without_room(&self, session: &Session) {
        if !session.is_connected() {
            let why = "more messages than are kept wait for it while it is away; the newest are lost";
            let peer = Peer { id: session.id.clone(), ..Peer::unknown(NOWHERE) };
            self.access.refuse(BrokerRefusal::Reader, &peer, why);
        }
    }
}

/// A will as the session keeps it.
pub fn will_of(will: &Will, peer: &Peer, from: u64) -> LastWill {
    let Will { qos, retain, topic, payload, ref listed } = *will;
    LastWill {
        peer: peer.clone(),
        message: Message::of(from, topic, payload, listed),
        qos,
        retain,
        delay: seconds(listed.will_delay),
        expiry: listed.expiry.map(seconds),
        is_former: false,
    }
}

pub fn seconds(count: u32) -> Duration {
    Duration::from_secs(count.into())
}
