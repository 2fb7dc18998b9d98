//! The state that a connection shares with its recorder: the current connection, and its proofs.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rumqttc::{AsyncClient, ManualAck, PubAck, PublishOptions, PublishProperties, QoS};
use tokio::sync::Notify;

use crate::clock::Timestamp;
use crate::intake::canary;
use crate::intake::timers::ReplyTo;

/// The current connection, for acknowledgements.
#[derive(Default)]
pub(in crate::intake) struct Link {
    /// The number of the current connection; 0 if there is none.
    pub number: u64,
    /// How long after the last proof of a member the broker has certainly dropped it.
    pub release: Duration,
    /// Since when another client has been taking the session of a plain subscription.
    pub taken_since: Option<Timestamp>,
    pub(super) client: Option<AsyncClient>,
    pub(super) unacknowledged: Arc<Unacknowledged>,
    /// Publishes answers to devices that connect straight to Rollcall.
    pub(super) answers: Option<Answers>,
}

/// Publishes the answer to a request.
pub(in crate::intake) type Answers = Arc<dyn Fn(&ReplyTo, Vec<u8>) + Send + Sync>;

/// Counts the unacknowledged messages of one connection.
#[derive(Default)]
pub(super) struct Unacknowledged {
    count: AtomicUsize,
    fewer: Notify,
}

impl Unacknowledged {
    pub fn add_one(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub fn is_more_than(&self, most: usize) -> bool {
        self.count.load(Ordering::Relaxed) > most
    }

    fn acknowledged(&self, count: usize) {
        self.count.fetch_sub(count, Ordering::Relaxed);
        self.fewer.notify_waiters();
    }

    /// Waits until there are no more than `most`. Cancel-safe.
    pub async fn at_most(&self, most: usize) {
        while self.is_more_than(most) {
            let mut fewer = pin!(self.fewer.notified());
            fewer.as_mut().enable();
            if self.is_more_than(most) {
                fewer.await;
            }
        }
    }
}

/// The acknowledgement that the broker waits for before it forgets a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::intake) struct BrokerAck {
    pub(super) connection: u64,
    pub(super) packet: u16,
}

impl Link {
    /// The link of the listener, which has no connection.
    #[cfg(feature = "broker")]
    pub fn to_devices(answers: Answers) -> Link {
        Link { answers: Some(answers), ..Link::default() }
    }

    /// Acknowledges messages of this connection; the broker delivers those of earlier connections again.
    pub fn acknowledge(&self, acks: &[BrokerAck]) {
        let Some(client) = &self.client else { return };
        let mut count = 0;
        for ack in acks.iter().filter(|ack| ack.connection == self.number) {
            // The client has room for every acknowledgement that can be due. If this fails, the connection is lost.
            let _ = client.try_manual_ack(ManualAck::PubAck(PubAck::new(ack.packet, None)));
            count += 1;
        }
        self.unacknowledged.acknowledged(count);
    }

    /// Answers a request. Without room, or without a connection, the answer is lost, and its sender repeats the
    /// request.
    pub fn answer(&self, to: &ReplyTo, answer: Vec<u8>) {
        if let Some(answers) = &self.answers {
            return answers(to, answer);
        }
        let Some(client) = &self.client else { return };
        let properties = PublishProperties {
            correlation_data: (!to.correlation.is_empty()).then(|| to.correlation.clone().into()),
            content_type: Some("application/json".to_owned()),
            ..PublishProperties::default()
        };
        // QoS 0, so that an answer never delays a canary.
        let options = PublishOptions::at_most_once().properties(properties);
        let _ = client.try_publish(to.topic.clone(), answer, options);
    }

    /// Publishes a command to a device. Without room, or without a connection, the command is lost.
    pub fn command(&self, topic: String, payload: Vec<u8>) {
        if let Some(answers) = &self.answers {
            return answers(&ReplyTo { topic, correlation: Vec::new() }, payload);
        }
        let Some(client) = &self.client else { return };
        let _ = client.try_publish(topic, payload, PublishOptions::at_most_once());
    }

    /// The number of the current connection, and its release.
    pub fn current(&self) -> (u64, Duration) {
        (self.number, self.release)
    }

    /// Removes the last will of a member, which the broker retains for later members.
    pub fn remove_will(&self, client_id: &str) {
        let Some(client) = &self.client else { return };
        let options = PublishOptions::new(QoS::AtLeastOnce).retained();
        // Without room the will stays, and the next member receives it again, which is harmless.
        let _ = client.try_publish(canary::gone_topic(client_id), Vec::new(), options);
    }
}

/// The proof of the recorder about the connection.
#[derive(Clone, Debug, Default)]
pub(in crate::intake) struct Proof {
    /// The number of the connection that attends; 0 if none does.
    pub attends: u64,
    /// When a canary of that connection was last recorded.
    pub at: Option<Instant>,
    /// The send time of the last canary before which everything is recorded.
    pub canary: Timestamp,
    /// The member has left in order, and all its messages are recorded.
    pub left: bool,
    /// The round trip that the limits of the member allow for.
    pub round_trip: Duration,
}
