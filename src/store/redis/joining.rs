//! A transition that joins one of its groups.

use crate::store::notification::GroupMember;
use crate::store::{Group, OutboxEvent};

pub(super) struct Joining<'a> {
    pub group: &'a Group,
    pub event: &'a OutboxEvent,
    pub member: GroupMember,
    /// No other transition of the same call is of its group.
    pub is_alone: bool,
}

impl Joining<'_> {
    /// The name of the member among those of all groups.
    pub fn name(&self) -> String {
        format!("{}\n{}", self.group.key, self.member.id)
    }
}
