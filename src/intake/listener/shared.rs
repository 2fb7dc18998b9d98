//! What all connections of the listener share, and the way of a message through it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::access_control::AccessControl;
use super::access_rules::ClientIdentity;
use super::codec::{Publish, Will};
use super::door::Door;
use super::limits::Shares;
use super::properties::{self, OF_PUBLISH, OF_WILL};
use super::router::{Routed, Router};
use super::session::{Message, Session};
use super::sessions::{LastWill, Sessions};
use crate::intake::timers::ReplyTo;
use crate::telemetry::{BrokerRefusal, MAX_SHOWN, truncate};

/// How long the last messages of a connection that has ended wait for room in the queue.
pub const QUEUED_WITHIN: Duration = Duration::from_secs(10);

/// The session number of Rollcall itself.
const OWN: u64 = 0;

pub struct Shared {
    pub door: Door,
    pub access: Arc<AccessControl>,
    pub router: Router,
    pub sessions: Sessions,
    /// Bytes of large packets that have not arrived whole.
    pub large: Arc<Shares>,
    pub max_packet: usize,
    pub max_rate: u32,
    pub max_bytes_per_second: u32,
    pub stop: CancellationToken,
}

/// A client as the log and the rules know it.
#[derive(Clone, Debug)]
pub struct Peer {
    pub from: SocketAddr,
    pub id: Box<str>,
    pub user: Option<String>,
}

impl Peer {
    pub fn identity(&self) -> ClientIdentity<'_> {
        ClientIdentity { id: &self.id, name: self.user.as_deref() }
    }
}

impl Shared {
    /// Counts and logs a refusal.
    pub fn refuse(&self, what: BrokerRefusal, peer: &Peer, why: &str) {
        self.access.refuse(what, peer.from, &peer.id, why);
    }

    /// Whether a client may publish to a topic; a refusal is counted.
    pub fn may_publish(&self, peer: &Peer, topic: &str) -> bool {
        let may = self.access.may_publish(peer.identity(), topic);
        if !may {
            let why = format!("it may not publish to {}; see broker.rules_file", shown(topic));
            self.refuse(BrokerRefusal::Publish, peer, &why);
        }
        may
    }

    /// Whether a client may subscribe to a filter; a refusal is counted.
    pub fn may_subscribe(&self, peer: &Peer, filter: &str) -> bool {
        let may = self.access.may_subscribe(peer.identity(), filter);
        if !may {
            let why = format!("it may not subscribe to {}; see broker.rules_file", shown(filter));
            self.refuse(BrokerRefusal::Subscribe, peer, &why);
        }
        may
    }

    /// Gives a message to its subscribers, and retains it where it asks for that.
    pub fn pass_on(&self, peer: &Peer, publish: &Publish, from: u64) {
        let Publish { topic, qos, retain, .. } = *publish;
        let copy = || Message {
            topic: topic.into(),
            payload: publish.payload.into(),
            properties: properties::forwarded(publish.properties, OF_PUBLISH),
            expires: publish.expiry.map(after),
            from,
            kept: None,
        };
        self.route(peer, Routed { topic, qos, retain, from }, copy);
    }

    /// Publishes a last will, with the rights of its client, and queues what it says.
    pub async fn publish_will(&self, peer: &Peer, will: LastWill) {
        let peer = Peer { from: peer.from, id: will.id, user: will.user };
        let LastWill { message, qos, retain, expiry, .. } = will;
        if !self.may_publish(&peer, &message.topic) {
            return;
        }
        let Message { topic, payload, properties, from, .. } = &message;
        let expires = expiry.map(|expiry| Instant::now() + expiry);
        let copy = || {
            let (topic, payload, properties) = (topic.clone(), payload.clone(), properties.clone());
            Message { topic, payload, properties, expires, from: *from, kept: None }
        };
        self.route(&peer, Routed { topic, qos, retain, from: *from }, copy);
        let arrived = self.door.clock.now();
        let content = self.door.read(topic, payload, None, arrived);
        if let Some(message) = self.door.queued(content, arrived, None) {
            // A will is no more than a hint: while the queue does not move, which is blind time, it is lost.
            let sending = self.stop.run_until_cancelled(self.door.queue.send(message));
            let _ = timeout(QUEUED_WITHIN, sending).await;
        }
    }

    /// Publishes Rollcall's answer to a request of a client that may publish there.
    pub fn answer(&self, to: &ReplyTo, answer: &[u8]) {
        let mut properties = vec![0x03];
        let content_type = b"application/json";
        super::encode::text(&mut properties, content_type);
        if !to.correlation.is_empty() {
            properties.push(properties::CORRELATION);
            super::encode::text(&mut properties, &to.correlation);
        }
        let copy = || Message {
            topic: to.topic.as_str().into(),
            payload: answer.into(),
            properties: properties.into(),
            expires: None,
            from: OWN,
            kept: None,
        };
        // A client that has no room for its answers is disconnected as any other; it asks again.
        self.router.route(Routed { topic: &to.topic, qos: 0, retain: false, from: OWN }, copy);
    }

    fn route(&self, peer: &Peer, routed: Routed, copy: impl Fn() -> Message) {
        if routed.retain && !self.router.retain(routed.topic, routed.qos, &copy) {
            let why = "only messages below rollcall/ are retained, and a bounded number; it was passed on";
            self.refuse(BrokerRefusal::Retained, peer, why);
        }
        for session in self.router.route(routed, &copy) {
            self.without_room(&session);
        }
    }

    /// There was no room for a message to that client.
    pub fn without_room(&self, session: &Session) {
        let why = match session.is_connected() {
            true => "it does not read the messages that it subscribed to; it is disconnected",
            false => "more messages than are kept wait for it while it is away; the newest are lost",
        };
        let nowhere = SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 0));
        self.access.refuse(BrokerRefusal::Reader, nowhere, &session.id, why);
    }
}

/// A will as the session keeps it.
pub fn will_of(will: &Will, peer: &Peer, from: u64) -> LastWill {
    let message = Message {
        topic: will.topic.into(),
        payload: will.payload.into(),
        properties: properties::forwarded(will.properties, OF_WILL),
        expires: None,
        from,
        kept: None,
    };
    LastWill {
        message,
        qos: will.qos,
        retain: will.retain,
        delay: Duration::from_secs(will.delay.into()),
        expiry: will.expiry.map(|seconds| Duration::from_secs(seconds.into())),
        user: peer.user.clone(),
        id: peer.id.clone(),
    }
}

fn after(seconds: u32) -> Instant {
    Instant::now() + Duration::from_secs(seconds.into())
}

/// A topic in the log: a device may make it long and put anything into it.
fn shown(name: &str) -> String {
    truncate(name, MAX_SHOWN).escape_debug().to_string()
}
