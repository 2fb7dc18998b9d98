//! The canaries of a connection: sent once a period, numbered, and missed where one does not come back.
//!
//! # Why a canary that is missing counts
//! Canaries go by the same queue of the broker as the fleet. Where that overflows, the broker drops some
//! of what is in it, without a word, and the canaries that come through would vouch for heartbeats that
//! did not. But they are numbered, and they come in their order: where one is missing between two that
//! came, others may be missing beside it, and that time counts as blind.

use std::time::Duration;

use rumqttc::{AsyncClient, PublishOptions, QoS};

use super::Session;
use crate::clock::Timestamp;
use crate::intake::canary::{self, Canary, Key};

/// Publishes canaries.
pub(in crate::intake) struct Canaries {
    topic: String,
    key: Key,
    qos: QoS,
    /// This process.
    instance: String,
    pub(super) period: Duration,
    /// The number of the last one.
    pub(super) seq: u64,
    /// The number of the last one by an earlier connection, with which it may have been lost.
    earlier: u64,
    /// The number of the last one that came back, and when it was sent.
    came: Option<(u64, Timestamp)>,
}

impl Canaries {
    pub fn new(session: &Session, key: Key, period: Duration) -> Canaries {
        let topic = canary::topic(session.client_id());
        let instance = format!("{:016x}", rand::random::<u64>());
        Canaries { topic, key, qos: session.qos, instance, period, seq: 0, earlier: 0, came: None }
    }

    /// The one with this number.
    pub fn canary(&self, seq: u64, now: Timestamp) -> Canary {
        Canary::new(&self.key, &self.topic, &self.instance, seq, now)
    }

    pub fn sing(&mut self, client: &AsyncClient, now: Timestamp) {
        let seq = self.seq + 1;
        let canary = self.canary(seq, now);
        let options = PublishOptions::new(self.qos);
        // One that finds no room is missed, and that is what it is for; but nobody dropped it.
        if client.try_publish(self.topic.clone(), canary.to_json(), options).is_ok() {
            self.seq = seq;
        }
    }

    /// What was sent so far may be lost with the connection that it was sent by.
    pub fn connecting(&mut self) {
        self.earlier = self.seq;
    }

    /// One came back.
    pub(super) fn returned(&mut self, canary: &Canary) -> Returned {
        let is_repeated = self.came.is_some_and(|(seq, _)| canary.seq <= seq);
        if canary.instance != self.instance || is_repeated {
            return Returned::default();
        }
        let before = self.came.replace((canary.seq, canary.sent_at()));
        let is_missing = |(seq, _): &(u64, Timestamp)| canary.seq > (*seq).max(self.earlier) + 1;
        let lost_after = before.filter(is_missing).map(|(_, sent_at)| sent_at);
        Returned { vouches: canary.seq > self.earlier, lost_after }
    }
}

/// What a canary that came back says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Returned {
    /// It was sent by the connection that stands, and did not come before. In the session of an earlier
    /// one another client may have been in between, and taken what was before it.
    pub vouches: bool,
    /// When the one before it that came was sent, if another is missing between them.
    pub lost_after: Option<Timestamp>,
}
