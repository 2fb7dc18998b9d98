//! The stored state of a group and of its members.

use serde::{Deserialize, Serialize};

use super::names::MAX_MOMENT;
use crate::clock::Timestamp;
use crate::presence::{Labels, OfflineRecord, Stage};
use crate::store::documents::TableValue;
use crate::store::{Group, OutboxEvent, Table};

/// A group with waiting or lasting members, or that was sealed not long ago.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct StoredGroup {
    /// `None`: no member has waited in the group since it was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Labels>,
    /// When the group was last sealed (ms).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sealed: Option<i64>,
}

impl StoredGroup {
    pub fn sealed(&self) -> Option<Timestamp> {
        self.sealed.map(Timestamp::from_millis)
    }

    pub fn with_sealed(self, at: Timestamp) -> StoredGroup {
        StoredGroup { sealed: Some(at.as_millis()), ..self }
    }
}

impl TableValue for StoredGroup {
    type Name = String;
    const TABLE: Table = Table::Groups;
}

/// The number of times that members began to wait or to last in a group. Steps add to it without reading it; a step
/// that decides that nothing waits expects it unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(in crate::store) struct GroupVersion(i64);

impl TableValue for GroupVersion {
    type Name = String;
    const TABLE: Table = Table::GroupVersions;
}

/// The progress of a transition of a unit, or of a blind interval, in a group. Small in memory without its record: a
/// seal has ten thousand of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::store) struct StoredMember {
    pub stage: Stage,
    /// When its silence was detected (ms); zero for a blind interval.
    pub(super) detected: i64,
    /// The receivers that were notified of its silence, or blind interval, separated by commas; `None`: none was
    /// notified yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Box<MemberWait>>,
    /// When receivers were notified of its silence, if that lasts and the group stores the moment (ms).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lasts: Option<i64>,
    /// Its record while it lasts, if receivers may be notified of it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Box<OfflineRecord>>,
}

/// The wait of a member for the next notification of its group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::store) struct MemberWait {
    since: i64,
    pub event: OutboxEvent,
}

impl MemberWait {
    pub fn new(since: Timestamp, event: OutboxEvent) -> MemberWait {
        MemberWait { since: since.as_millis().clamp(0, MAX_MOMENT), event }
    }

    pub fn since(&self) -> Timestamp {
        Timestamp::from_millis(self.since)
    }
}

impl StoredMember {
    pub fn new(stage: Stage, detected: Timestamp) -> StoredMember {
        StoredMember {
            stage,
            detected: detected.as_millis(),
            told: None,
            waits: None,
            lasts: None,
            kept: None,
        }
    }

    pub fn waiting(self, told: Option<String>, since: Timestamp, event: OutboxEvent) -> StoredMember {
        StoredMember { told, waits: Some(Box::new(MemberWait::new(since, event))), ..self }
    }

    pub fn detected_at(&self) -> Timestamp {
        Timestamp::from_millis(self.detected)
    }

    pub fn lasts_since(&self) -> Option<Timestamp> {
        self.lasts.map(Timestamp::from_millis)
    }

    pub fn lasting(self, since: Timestamp) -> StoredMember {
        StoredMember { lasts: Some(since.as_millis().clamp(0, MAX_MOMENT)), ..self }
    }

    /// Whether receivers were, or may have been, notified of its silence.
    pub fn is_told(&self) -> bool {
        self.told.as_deref() != Some("")
    }

    /// The waiting record.
    pub fn record(&self) -> Option<&OfflineRecord> {
        self.waits.as_ref().and_then(|wait| wait.event.record())
    }

    /// Whether it can join the next notification without a wait.
    pub fn is_final(&self) -> bool {
        let is_silence = self.record().is_some_and(|record| record.back_at.is_none());
        self.stage == Stage::IsBack || !is_silence
    }
}

impl TableValue for StoredMember {
    type Name = String;
    const TABLE: Table = Table::Members;
}

/// The groups that the events of a record join; its first event chose them.
///
/// # Why they are stored
/// Groups follow from the configuration and from labels, and both may change while a unit is offline. Without stored
/// groups, its return would join another group, which was never notified of the silence. This also keeps the events
/// of one record in order: the return waits behind its silence in the same lane.
pub(in crate::store) type GroupsOf = Vec<Group>;

impl TableValue for GroupsOf {
    type Name = String;
    const TABLE: Table = Table::GroupsOf;
}
