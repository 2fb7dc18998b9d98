//! Handles each packet of a client.

use std::time::Instant;

use super::bytes::{
    BAD_ALIAS, NOT_AUTHORIZED, PROTOCOL, QUOTA, RECEIVE_MAXIMUM_EXCEEDED, UNKNOWN_ID, Version, Violation,
    violation,
};
use super::codec::{Frame, Packet, Publish, Subscribe};
use super::connection::{Connection, End, WINDOW};
use super::encode::{self, AckKind};
use super::names;
use super::receipt::Receipt;
use super::router::MAX_LEVELS;
use super::session::Incoming;
use super::shared::seconds;
use crate::intake::reader::Content;
use crate::intake::timers;
use crate::telemetry::BrokerRefusal;

/// The most subscriptions of one client.
const MAX_SUBSCRIPTIONS: usize = 100;
/// The memory of a level of a filter that no other filter shares, in bytes.
const LEVEL: usize = 400;
/// The most topic aliases of one connection. Clients of MQTT 5 receive this number.
pub const MAX_ALIASES: u16 = 16;
/// The longest topic of an alias, because memory holds it.
const MAX_ALIASED: usize = 1024;
/// The most unreleased QoS 2 messages of a client of MQTT 3.1.1, which does not receive this number.
const MAX_UNRELEASED: usize = 1000;
/// The reason code for a filter that the client has not subscribed to.
const NO_SUBSCRIPTION: u8 = 0x11;

impl From<Violation> for End {
    fn from(violation: Violation) -> End {
        End::Violation(violation)
    }
}

impl Connection {
    pub(super) fn receive(&mut self, frame: &Frame, now: Instant) -> Result<(), End> {
        let packet = frame.read(self.wire.version)?;
        let count = match &packet {
            Packet::Publish(_) | Packet::Ping => 1,
            Packet::Subscribe { filters, .. } => filters.len(),
            Packet::Unsubscribe { filters, .. } => filters.len(),
            _ => 0,
        };
        self.count(count, now);
        match packet {
            Packet::Publish(publish) => self.publish(publish)?,
            Packet::PubAck(id, _) => self.session.completed(id),
            Packet::PubRec(id, code) if code >= 0x80 => self.session.completed(id),
            Packet::PubRec(id, _) => {
                let code = if self.session.received(id) { 0 } else { UNKNOWN_ID };
                self.acknowledge(AckKind::PubRel, id, code);
            }
            Packet::PubRel(id) => {
                let code = if self.session.release(id) { 0 } else { UNKNOWN_ID };
                self.acknowledge(AckKind::PubComp, id, code);
            }
            Packet::PubComp(id) => self.session.completed(id),
            Packet::Subscribe { id, number, filters } => {
                let retained = self.subscribe(id, number, filters);
                self.count(retained, now);
            }
            Packet::Unsubscribe { id, filters } => {
                let codes: Vec<u8> = filters.iter().map(|filter| self.unsubscribe(filter)).collect();
                encode::unsubscribed(&mut self.out, self.wire.version, id, &codes);
            }
            Packet::Ping => encode::pong(&mut self.out),
            Packet::Disconnect { code, expiry } => return Err(self.left(code, expiry)),
        }
        Ok(())
    }

    /// Counts messages and requests; above the rate, reading pauses.
    fn count(&mut self, count: usize, now: Instant) {
        if count > 0 {
            self.messages.take(count, now);
            if self.messages.waits_until(now).is_some() {
                self.held_back("it sends more than broker.max_rate messages a second");
            }
        }
    }

    fn acknowledge(&mut self, kind: AckKind, id: u16, code: u8) {
        encode::acknowledgement(&mut self.out, self.wire.version, kind, id, code);
    }

    fn left(&mut self, code: u8, expiry: Option<u32>) -> End {
        if let Some(wanted) = expiry {
            if self.expiry.is_zero() && wanted > 0 {
                let why = "a DISCONNECT that keeps a session that was not to be kept";
                return End::Violation(Violation { code: PROTOCOL, why });
            }
            self.expiry = seconds(wanted);
        }
        End::Left { with_will: code != 0 }
    }

    fn publish(&mut self, publish: Publish) -> Result<(), End> {
        let alias = self.alias(&publish)?;
        let publish = Publish { topic: alias.as_deref().unwrap_or(publish.topic), ..publish };
        let (is_awaited, is_five) = (publish.qos > 0, self.wire.version == Version::Five);
        if is_awaited && is_five && self.session.unacknowledged() >= WINDOW.into() {
            return violation(
                RECEIVE_MAXIMUM_EXCEEDED,
                "more messages than it may before they are acknowledged",
            )?;
        }
        if publish.qos == 2 {
            let most = if is_five { WINDOW.into() } else { MAX_UNRELEASED };
            match self.session.incoming(publish.id, most) {
                Incoming::New => {}
                Incoming::Repeated => return Ok(()),
                Incoming::TooMany => {
                    return violation(
                        RECEIVE_MAXIMUM_EXCEEDED,
                        "more messages at QoS 2 than it may before it releases them",
                    )?;
                }
            }
        }
        let kind = if publish.qos == 2 { AckKind::PubRec } else { AckKind::PubAck };
        let may = self.shared.access.may_publish(&self.peer, publish.topic);
        let arrived = self.shared.door.clock.now();
        let mut content = Content::Nothing;
        if may {
            let reply_to = publish.listed.response_topic.map(|topic| (topic, publish.listed.correlation));
            // An answer is published with the rights of the client that requests it.
            let reply_to = reply_to.filter(|(topic, _)| {
                !publish.topic.starts_with(timers::PREFIX)
                    || self.shared.access.may_publish(&self.peer, topic)
            });
            content = self.shared.door.read(publish.topic, publish.payload, reply_to, arrived);
            self.shared.pass_on(&self.peer, &publish, self.session.number);
        } else if publish.qos == 2 && is_five {
            self.session.release(publish.id);
        }
        let receipt = is_awaited.then(|| {
            let code = if may { 0 } else { NOT_AUTHORIZED };
            Receipt { session: self.session.clone(), connection: self.number, kind, id: publish.id, code }
        });
        match receipt {
            // The recorder has nothing to do for this message. Acknowledgements keep the order of their messages
            // [MQTT-4.6.0-2], so this one waits only for those of unrecorded messages.
            Some(receipt) if content == Content::Nothing && self.session.unrecorded() == 0 => {
                receipt.acknowledge()
            }
            receipt => {
                receipt.iter().for_each(|receipt| receipt.session.queued());
                self.batch.extend(self.shared.door.queued(content, arrived, receipt));
            }
        }
        Ok(())
    }

    /// The topic behind an alias, if the message has no topic.
    fn alias(&mut self, publish: &Publish) -> Result<Option<Box<str>>, End> {
        let Some(alias) = publish.listed.alias else { return Ok(None) };
        if alias > MAX_ALIASES {
            return violation(BAD_ALIAS, "a topic alias above the maximum that it was told")?;
        }
        if publish.topic.len() > MAX_ALIASED {
            return violation(QUOTA, "an alias for a topic of more than 1024 bytes")?;
        }
        if !publish.topic.is_empty() {
            self.aliases.insert(alias, publish.topic.into());
            return Ok(None);
        }
        match self.aliases.get(&alias) {
            Some(topic) => Ok(Some(topic.clone())),
            None => violation(PROTOCOL, "a topic alias that stands for no topic")?,
        }
    }

    /// Subscribes to filters; returns the number of retained messages for the client.
    fn subscribe(&mut self, id: u16, number: Option<u32>, filters: Vec<Subscribe>) -> usize {
        let mut codes = Vec::with_capacity(filters.len());
        let mut granted = Vec::new();
        for (place, mut asked) in filters.into_iter().enumerate() {
            let levels = names::shared(asked.filter).1.split('/').count();
            let may = self.shared.access.may_subscribe(&self.peer, asked.filter);
            let share = || {
                let size = asked.filter.len() + levels * LEVEL;
                self.shared.filters.take(self.peer.from.ip(), size)
            };
            let is_new = match may {
                false => Err(NOT_AUTHORIZED),
                // A packet with more filters than a client may have can only repeat filters.
                true if place >= MAX_SUBSCRIPTIONS || levels > MAX_LEVELS => Err(QUOTA),
                true => self.session.subscribe(asked.filter, MAX_SUBSCRIPTIONS, share).ok_or(QUOTA),
            };
            if is_new == Err(QUOTA) {
                let why =
                    "a subscription has too many levels, or there are too many, of it or of all clients";
                self.shared.access.refuse(BrokerRefusal::Subscribe, &self.peer, why);
            }
            asked.no_local |= self.is_bridge;
            asked.retain_as_published |= self.is_bridge;
            codes.push(is_new.map_or_else(|code| code, |_| asked.qos));
            granted.extend(is_new.map(|is_new| (asked, is_new)));
        }
        // Write the answer before the retained messages.
        encode::subscribed(&mut self.out, self.wire.version, id, &codes);
        let (router, session) = (&self.shared.router, &self.session);
        granted.iter().map(|(asked, is_new)| router.subscribe(session, asked, number, *is_new)).sum()
    }

    fn unsubscribe(&self, filter: &str) -> u8 {
        if self.session.unsubscribe(filter) {
            self.shared.router.unsubscribe(&self.session, filter);
            return 0;
        }
        NO_SUBSCRIPTION
    }
}
