//! The groups that open records joined, and the receivers that were notified there.
//!
//! The receivers are those of the notification and of later escalations, and the fallbacks of receivers that took
//! nothing.

use super::Group;

/// A group that an open record joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    pub group: Group,
    /// The receivers that were notified of the record there; `None`: the record waits for its notification.
    pub receivers: Option<Vec<String>>,
}

impl Membership {
    pub fn is_known_to(&self, receiver: &str) -> bool {
        self.receivers.iter().flatten().any(|name| name == receiver)
    }
}
