//! A transition that joins one of its groups.

use crate::clock::Timestamp;
use crate::presence::Pace;
use crate::store::notification::GroupMember;
use crate::store::{Group, OutboxEvent};

pub(super) struct JoiningEvent<'a> {
    pub group: &'a Group,
    pub event: &'a OutboxEvent,
    pub member: GroupMember,
    /// No other transition of the same call is of its group.
    pub is_alone: bool,
    /// Until when its silence is held.
    pub held_until: Option<Timestamp>,
    /// When an earlier return of its unit is notified, which waits in the group.
    pub return_at: Option<Timestamp>,
}

impl JoiningEvent<'_> {
    /// From when on its wait counts.
    pub fn since(&self, pace: Pace, now: Timestamp) -> Timestamp {
        let since = pace.waits_since(pace.form(self.member.form), self.member.deadline, now);
        pace.held_since(since, self.held())
    }

    /// See [`Pace::storm_deadline`].
    pub fn storm_deadline(&self, pace: Pace) -> Option<Timestamp> {
        pace.storm_deadline(pace.form(self.member.form), self.member.deadline, self.held())
    }

    /// Until when it is held by itself.
    pub fn held(&self) -> Option<Timestamp> {
        self.held_until.max(self.return_at)
    }

    /// The name of the member among those of all groups.
    pub fn name(&self) -> String {
        format!("{}\n{}", self.group.key, self.member.id)
    }
}
