//! A transition on its way into its group.

use crate::store::Join;
use crate::store::notification::Member;

/// A transition that joins its group.
pub(super) struct Joining<'a> {
    pub join: &'a Join,
    pub member: Member,
    /// Nothing else that joins with it is of its group.
    pub is_alone: bool,
}

impl Joining<'_> {
    /// What the member is called among those of all groups.
    pub fn name(&self) -> String {
        format!("{}\n{}", self.join.group.key, self.member.id)
    }
}
