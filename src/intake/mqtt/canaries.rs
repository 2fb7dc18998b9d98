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
use crate::intake::canary::{self, Canary};

/// Publishes canaries.
pub(in crate::intake) struct Canaries {
    topic: String,
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
    pub fn new(session: &Session, instance: String, period: Duration) -> Canaries {
        let topic = canary::topic(session.client_id());
        Canaries { topic, qos: session.qos, instance, period, seq: 0, earlier: 0, came: None }
    }

    pub fn sing(&mut self, client: &AsyncClient, now: Timestamp) {
        let seq = self.seq + 1;
        let canary = Canary { instance: self.instance.clone(), seq, sent_at: now.as_millis() };
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

    /// One came back. When the one before it that came was sent, if another is missing between them.
    pub fn lost_after(&mut self, canary: &Canary) -> Option<Timestamp> {
        if canary.instance != self.instance {
            return None;
        }
        let before = self.came.filter(|(seq, _)| canary.seq > *seq);
        if before.is_some() || self.came.is_none() {
            self.came = Some((canary.seq, canary.sent_at()));
        }
        let (seq, sent_at) = before?;
        (canary.seq > seq.max(self.earlier) + 1).then_some(sent_at)
    }
}
