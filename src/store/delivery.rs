//! Notifications on their way to one receiver.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::presence::{FiredTimer, Guarantee, Incident, Interval, Labels, OfflineRecord};

/// The begin of the id of a notification that tells pagers of an acknowledgement.
pub const ACKNOWLEDGEMENT: &str = "ack_";

/// The begin of the ids of digests. They have no place in a queue: the notifications in them have.
pub const DIGEST: &str = "dig_";

/// Whether an id is that of a digest, without its receiver.
pub fn is_digest(notification: &str) -> bool {
    notification.starts_with(DIGEST)
}

/// The identity of a group: the route and the values that its members share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Group {
    /// Unique text made from the id of the route and the labels, at most 512 bytes.
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
    /// It reminds of silences that its receiver was notified of before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reminder: bool,
    #[serde(default, skip_serializing_if = "GroupContext::is_unknown")]
    pub situation: GroupContext,
    /// The receiver that it was meant for, if this one is its fallback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meant_for: Option<MeantFor>,
    /// The key of the group that it tells of, if it waits in a lane of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_group: Option<String>,
    /// When an operator had it delivered again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_at: Option<Timestamp>,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// Whether it was leased as it was sealed, to its only receiver, for which nothing of its group waited.
    #[serde(skip)]
    pub is_alone: bool,
}

/// The group of a notification when it was sealed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupContext {
    /// How many silences of the group last that receivers know of, this notification included; `None`:
    /// no other unit shares the group.
    pub lasting: Option<u64>,
    /// When receivers were notified of the group before.
    pub since: Option<Timestamp>,
    /// Whether it notifies more receivers of silences that the receivers of the group know of; only in a group that units
    /// share.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_escalation: bool,
    /// Whether others are notified of more members.
    #[serde(skip)]
    pub is_part: bool,
    /// Whether it was judged if most units that share a label fell silent together.
    pub is_judged: bool,
    pub incident: Option<Incident>,
    /// The incident that ends because this one begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Incident>,
    /// Whether an operator takes care of every unit of the incident that is offline. It is looked up for each attempt
    /// at a pager, and stored with none.
    #[serde(skip)]
    pub is_acknowledged: bool,
    /// How many notifications are merged in this one, because its receiver has a rate limit.
    pub merged: Option<u64>,
}

impl Delivery {
    /// The first attempt at a notification that says nothing yet.
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

    /// The key of the group that it tells of; that of [`Delivery::group`] names its lane.
    pub fn group_key(&self) -> &str {
        self.of_group.as_deref().unwrap_or(&self.group.key)
    }

    /// Since when it is tried: an operator who has it delivered again gives it all its time once more.
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

/// A receiver that takes nothing, so that its fallback gets its notifications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeantFor {
    pub receiver: String,
    /// Since when it takes nothing.
    pub since: Timestamp,
}

impl Delivery {
    /// Whether it is attempted once, and marked before: see
    /// [`StoredDeliveries::begin_only_attempts`](super::StoredDeliveries::begin_only_attempts).
    pub fn is_at_most_once(&self) -> bool {
        self.meant_for.is_none() && self.timers.iter().any(|one| one.guarantee == Guarantee::AtMostOnce)
    }

    /// The id of the notification, the same for every receiver.
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
    /// `attempt`: how many attempts were begun.
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
