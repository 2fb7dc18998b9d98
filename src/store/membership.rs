//! The groups that open records joined, and the receivers that were notified there.
//!
//! These are the receivers of the notification and of escalations since, and the fallbacks of receivers that took
//! nothing.

use super::Group;
use crate::presence::Stage;

/// A group that an open record joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    pub group: Group,
    /// The receivers that were notified of the record there; `None`: the record waits for its notification.
    pub receivers: Option<Vec<String>>,
}

impl Membership {
    /// Reads a member as an engine stores it: its letter and, after a colon, the receivers. `None`: the silence of the
    /// member is over.
    pub(super) fn read(group: Group, stored: &str) -> Option<Membership> {
        let receivers = match stored.chars().next().and_then(Stage::of)? {
            Stage::Waits => None,
            Stage::Notified | Stage::IsBack => {
                let names = stored.split_once(':').map_or("", |(_, names)| names);
                Some(names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect())
            }
            Stage::Over => return None,
        };
        Some(Membership { group, receivers })
    }

    /// Whether this receiver was notified of the record.
    pub fn is_known_to(&self, receiver: &str) -> bool {
        self.receivers.iter().flatten().any(|name| name == receiver)
    }
}
