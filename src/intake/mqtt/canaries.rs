//! The canaries of a connection: sent once a period, numbered, and counted as missing if they do not come back.
//!
//! # Why a missing canary counts
//! Canaries go through the same queue of the broker as the fleet's messages. When that queue overflows, the broker
//! silently drops some messages, and the remaining canaries would prove more than was heard. But canaries are numbered
//! and come back in order: if one is missing between two others, messages around it may be missing too, and that time
//! counts as blind.

use std::time::{Duration, Instant};

use rumqttc::{AsyncClient, PublishOptions, QoS};

use super::Session;
use crate::clock::Timestamp;
use crate::intake::canary::{self, Canary, Key};

/// From this number on, canaries are sent rarely.
const MOST_UNDERWAY: u64 = 16;

/// The numbers of the canaries that were sent and that came back.
pub(super) struct CanarySequence {
    /// The name of this process in its canaries.
    instance: String,
    sent: u64,
    /// The last canary of the earlier connections, which may be lost with them.
    sent_before: u64,
    /// The last canary that came back, and when it was sent.
    returned: Option<(u64, Timestamp)>,
    /// When the last canary was sent.
    last: Option<Instant>,
}

/// A canary that came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReturnedCanary {
    /// The current connection sent this canary, and it did not come back before. In the session of an earlier
    /// connection another client may have taken the messages before it.
    pub is_proof: bool,
    /// When the previous canary was sent, if another is missing between the two.
    pub lost_after: Option<Timestamp>,
}

impl CanarySequence {
    pub fn new(instance: &str) -> CanarySequence {
        CanarySequence { instance: instance.to_owned(), sent: 0, sent_before: 0, returned: None, last: None }
    }

    /// The number of the next canary.
    pub fn next(&self) -> u64 {
        self.sent + 1
    }

    pub fn sent(&mut self, seq: u64, now: Instant) {
        (self.sent, self.last) = (seq, Some(now));
    }

    /// Returns whether another canary may be sent: not while many are under way, unless the last one was sent `rare`
    /// ago. Before the round trip is known, or when it has just grown, canaries would queue at the broker.
    pub fn has_room(&self, now: Instant, rare: Duration) -> bool {
        let returned = self.returned.map_or(0, |(seq, _)| seq).max(self.sent_before);
        let is_crowded = self.sent.saturating_sub(returned) >= MOST_UNDERWAY;
        !is_crowded || self.last.is_none_or(|last| now.duration_since(last) >= rare)
    }

    /// Notes a new connection: earlier canaries may be lost with the old one.
    pub fn connecting(&mut self) {
        self.sent_before = self.sent;
    }

    pub fn returned(&mut self, canary: &Canary) -> ReturnedCanary {
        let is_repeated = self.returned.is_some_and(|(seq, _)| canary.seq <= seq);
        if canary.instance != self.instance || is_repeated {
            return ReturnedCanary::default();
        }
        let before = self.returned.replace((canary.seq, canary.sent_at()));
        let is_missing = |(seq, _): &(u64, Timestamp)| canary.seq > (*seq).max(self.sent_before) + 1;
        let lost_after = before.filter(is_missing).map(|(_, sent_at)| sent_at);
        ReturnedCanary { is_proof: canary.seq > self.sent_before, lost_after }
    }
}

pub(in crate::intake) struct CanaryPublisher {
    topic: String,
    key: Key,
    qos: QoS,
    /// The name of this process in its canaries.
    instance: String,
}

impl CanaryPublisher {
    pub fn new(session: &Session, key: Key) -> CanaryPublisher {
        let topic = canary::topic(session.client_id());
        let instance = format!("{:016x}", rand::random::<u64>());
        CanaryPublisher { topic, key, qos: session.qos, instance }
    }

    pub fn instance(&self) -> &str {
        &self.instance
    }

    pub fn canary(&self, seq: u64, now: Timestamp) -> Canary {
        Canary::new(&self.key, &self.topic, &self.instance, seq, now)
    }

    /// Publishes a canary; returns whether the client had room for it. A canary without room is missing later, as it
    /// should be, but the broker did not drop it.
    pub fn publish(&self, client: &AsyncClient, seq: u64, now: Timestamp) -> bool {
        let options = PublishOptions::new(self.qos);
        client.try_publish(self.topic.clone(), self.canary(seq, now).to_json(), options).is_ok()
    }
}
