//! The inputs and outputs of the state of a connection.

use std::time::{Duration, Instant};

use crate::clock::Timestamp;
use crate::intake::mqtt::probe_schedule::ProbeOutcome;
use crate::intake::mqtt::session::Grants;
use crate::intake::record::QueuedMessage;
use crate::telemetry::ConnectionLoss;

/// The current time, by the clock of the fleet and by that of the process.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub clock: Timestamp,
    pub instant: Instant,
}

/// An action for the connection.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// The broker accepted the connection. It certainly drops a member within `release` after its last proof.
    Accept {
        release: Duration,
    },
    /// Request these topics.
    Subscribe(Requests),
    /// Unsubscribe from the share.
    UnsubscribeShare,
    /// Log what the broker granted.
    ReportGrants(Grants),
    /// Everything is granted.
    ReportConnected,
    /// Queue a message for the recorder.
    Record(QueuedMessage),
    /// Log and count that a message at QoS 0 was dropped, because the queue has no room.
    RejectOverflow,
    /// Count the packet, the broker's own count of dropped messages.
    CountBrokerDrops,
    /// Publish the canary with this number.
    SendCanary(u64),
    /// Let the next tick come at once.
    TickNow,
    /// Send a canary this long after an announcement.
    TickAfter(Duration),
    /// Publish the probe with this number.
    PublishProbe(usize),
    /// Report to another member of the share, on this topic, that its probe came.
    TellOfProbe(String, Vec<u8>),
    /// Record the answer of the broker to the probe with this number.
    ProbeAnswered(usize, ProbeOutcome),
    /// Queue no more messages.
    StopTaking,
    End(ConnectionLoss, String),
}

/// Actions in order.
pub type Actions = Vec<Action>;

/// Topics to request together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// The topics that a connection requests first.
    First,
    /// The share of a member that attends.
    Share,
}
