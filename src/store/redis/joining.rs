//! A transition that joins one of its groups.

use crate::clock::Timestamp;
use crate::presence::Pace;
use crate::store::notification::GroupMember;
use crate::store::{Group, OutboxEvent};

pub(super) struct Joining<'a> {
    pub group: &'a Group,
    pub event: &'a OutboxEvent,
    pub member: GroupMember,
    /// No other transition of the same call is of its group.
    pub is_alone: bool,
    /// Until when its silence is held.
    pub held_until: Option<Timestamp>,
    /// An earlier return of its unit waits in the group.
    pub follows_return: bool,
}

impl Joining<'_> {
    /// From when on its wait counts.
    pub fn since(&self, pace: Pace, now: Timestamp) -> Timestamp {
        let since = pace.waits_since(pace.form(self.member.form), self.member.deadline, now);
        pace.held_since(since, self.held(pace, now))
    }

    /// See [`Pace::storm_deadline`].
    pub fn storm_deadline(&self, pace: Pace, now: Timestamp) -> Option<Timestamp> {
        pace.storm_deadline(pace.form(self.member.form), self.member.deadline, self.held(pace, now))
    }

    /// Until when it is held in a group of this pace.
    pub fn held(&self, pace: Pace, now: Timestamp) -> Option<Timestamp> {
        let behind = pace.held_by_return(self.member.form, self.member.last_seen, now);
        self.held_until.max(behind.filter(|_| self.follows_return))
    }

    /// The name of the member among those of all groups.
    pub fn name(&self) -> String {
        format!("{}\n{}", self.group.key, self.member.id)
    }
}
