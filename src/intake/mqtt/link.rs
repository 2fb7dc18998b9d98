//! What a connection and its recorder tell each other: who is connected, and what was proved.

use std::time::Duration;

use rumqttc::{AsyncClient, ManualAck, PubAck, PublishOptions, QoS};
use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::intake::canary;

/// The current connection, for those who answer by it.
#[derive(Default)]
pub(in crate::intake) struct Link {
    /// Its number; 0 while there is none.
    pub number: u64,
    /// How long after the last proof of a member the broker is certain to have dropped it.
    pub release: Duration,
    pub(super) client: Option<AsyncClient>,
}

/// What the broker waits for before it forgets a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::intake) struct Ack {
    pub(super) connection: u64,
    pub(super) packet: u16,
}

impl Link {
    /// Acknowledges messages of this connection; those of earlier ones come again by themselves.
    pub fn acknowledge(&self, acks: &[Ack]) {
        let Some(client) = &self.client else { return };
        for ack in acks.iter().filter(|ack| ack.connection == self.number) {
            // There is room for as many as can be due. What fails has lost its connection.
            let _ = client.try_manual_ack(ManualAck::PubAck(PubAck::new(ack.packet, None)));
        }
    }

    /// The number of the connection that stands, and its release.
    pub fn standing(&self) -> (u64, Duration) {
        (self.number, self.release)
    }

    /// Removes the last word of a member, which the broker keeps for whoever comes.
    pub fn remove_last_word(&self, client_id: &str) {
        let Some(client) = &self.client else { return };
        let options = PublishOptions::new(QoS::AtLeastOnce).retained();
        // What finds no room stays, and is told again to the next member: harmless.
        let _ = client.try_publish(canary::gone_topic(client_id), Vec::new(), options);
    }
}

/// What the recorder of a member has proved about its connection.
#[derive(Clone, Debug, Default)]
pub(in crate::intake) struct Proof {
    /// The number of the connection that attends; 0: none does.
    pub attends: u64,
    /// When something of it was last recorded.
    pub at: Option<Instant>,
    /// When the last canary was sent before which everything is recorded.
    pub canary: Timestamp,
    /// It has left in order, having recorded everything that it was given.
    pub left: bool,
}
