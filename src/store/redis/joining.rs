//! A transition that joins its group.

use crate::store::Join;
use crate::store::notification::GroupMember;

pub(super) struct Joining<'a> {
    pub join: &'a Join,
    pub member: GroupMember,
    /// No other transition of the same call is of its group.
    pub is_alone: bool,
}

impl Joining<'_> {
    /// The name of the member among those of all groups.
    pub fn name(&self) -> String {
        format!("{}\n{}", self.join.group.key, self.member.id)
    }
}
