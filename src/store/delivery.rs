//! Notifications on their way to one receiver.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::presence::{FiredTimer, Guarantee, Incident, Interval, Labels, OfflineRecord};

/// The prefix of the ids of notifications that tell pagers of an acknowledgement.
pub const ACKNOWLEDGEMENT: &str = "ack_";

/// The prefix of the ids of digests. A digest has no place in a queue; the notifications in it have.
pub const DIGEST: &str = "dig_";

pub fn is_digest(notification: &str) -> bool {
    notification.starts_with(DIGEST)
}

/// The identity of a group: the route and the values that its members share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Group {
    /// Unique text from the id of the route and the labels, at most 512 bytes.
    pub key: String,
    /// The labels that all members share, e.g. `kind`.
    pub labels: Labels,
}

/// One notification for one receiver; sealing fixes its content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delivery {
    /// `<notification>.<receiver>`; no attempt, restart or replay changes it.
    pub id: String,
    pub receiver: String,
    pub group: Group,
    pub sealed_at: Timestamp,
    /// Records that were opened.
    pub offline: Vec<OfflineRecord>,
    /// Records that were closed.
    pub online: Vec<OfflineRecord>,
    /// Blind intervals; a notification with blind intervals has no records.
    pub blind: Vec<Interval>,
    /// Timers that fired; a notification with timers has nothing else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timers: Vec<FiredTimer>,
    /// A reminder: its receiver was notified of these silences before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reminder: bool,
    #[serde(default, skip_serializing_if = "GroupContext::is_unknown")]
    pub situation: GroupContext,
    /// The receiver that the delivery was meant for, if this receiver is its fallback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meant_for: Option<MeantFor>,
    /// The key of the group that the delivery tells of, if it waits in a lane of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_group: Option<String>,
    /// When an operator had it delivered again, if at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_at: Option<Timestamp>,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// Whether it was leased in the step that sealed it: it has one receiver, and that receiver's lane was empty.
    #[serde(skip)]
    pub is_alone: bool,
}

/// The group of a notification when it was sealed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupContext {
    /// The number of lasting silences of the group that receivers know of, those of this notification included;
    /// `None`: each unit has a group of its own.
    pub lasting: Option<u64>,
    /// When receivers were notified of the group before.
    pub since: Option<Timestamp>,
    /// Whether it tells further receivers of silences that the receivers of the group know of; only in a group that
    /// units share.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_escalation: bool,
    /// Whether other receivers are notified of more members.
    #[serde(skip)]
    pub is_part: bool,
    /// Whether the check for an incident was done: most units that share a label fell silent together.
    pub is_judged: bool,
    pub incident: Option<Incident>,
    /// The incident that ends because this one begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Incident>,
    /// Whether an operator takes care of every offline unit of the incident. Determined for each attempt at a pager,
    /// and never stored.
    #[serde(skip)]
    pub is_acknowledged: bool,
    /// How many notifications are merged in this one, because its receiver has a rate limit.
    pub merged: Option<u64>,
}

impl Delivery {
    /// The first attempt at a notification that has no content yet.
    pub fn new(id: impl Into<String>, receiver: &str, group: Group, sealed_at: Timestamp) -> Delivery {
        Delivery {
            id: id.into(),
            receiver: receiver.to_owned(),
            group,
            sealed_at,
            offline: Vec::new(),
            online: Vec::new(),
            blind: Vec::new(),
            timers: Vec::new(),
            reminder: false,
            situation: GroupContext::default(),
            meant_for: None,
            of_group: None,
            again_at: None,
            attempt: 1,
            is_alone: false,
        }
    }

    /// The key of the group that the delivery tells of; the key of [`Delivery::group`] names its lane.
    pub fn group_key(&self) -> &str {
        self.of_group.as_deref().unwrap_or(&self.group.key)
    }

    /// When its attempts began to count: a replay by an operator starts the time again.
    pub fn tried_since(&self) -> Timestamp {
        self.again_at.unwrap_or(self.sealed_at)
    }

    /// Whether it tells a pager that an operator takes care of a silence.
    pub fn is_acknowledgement(&self) -> bool {
        self.id.starts_with(ACKNOWLEDGEMENT)
    }
}

impl GroupContext {
    pub(super) fn is_unknown(&self) -> bool {
        *self == GroupContext::default()
    }
}

/// The receiver for which a fallback takes the notifications, because that receiver takes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeantFor {
    pub receiver: String,
    /// Since when it takes nothing.
    pub since: Timestamp,
}

impl Delivery {
    /// Whether it is attempted only once, after the attempt is marked: see
    /// [`StoredDeliveries::begin_only_attempts`](super::StoredDeliveries::begin_only_attempts).
    pub fn is_at_most_once(&self) -> bool {
        self.meant_for.is_none() && self.timers.iter().any(|one| one.guarantee == Guarantee::AtMostOnce)
    }

    /// The id of the delivery of a notification to a receiver.
    pub fn id_of(notification: &str, receiver: &str) -> String {
        format!("{notification}.{receiver}")
    }

    /// The id of the notification, the same for every receiver: see [`Delivery::id_of`].
    pub fn notification(&self) -> &str {
        let id = self.id.strip_suffix(&self.receiver).and_then(|id| id.strip_suffix('.'));
        id.unwrap_or(&self.id)
    }
}

/// A delivery that was given up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    pub delivery: Delivery,
    /// When it was given up.
    pub at: Timestamp,
    pub reason: String,
}

/// A notification that waits for a receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingDelivery {
    /// `attempt`: the number of attempts that were begun.
    pub delivery: Delivery,
    /// When it may be attempted; `None`: after the notification before it in its group.
    pub next: Option<Timestamp>,
}

/// A page of waiting notifications.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WaitingPage {
    pub waiting: Vec<WaitingDelivery>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<String>,
}
