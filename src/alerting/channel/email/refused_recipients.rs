//! The recipients that a server refuses, as far as this instance knows.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::time::Duration;

use lettre::Address;

use super::Refused;
use crate::clock::Timestamp;

/// How long mails to a recipient go behind its last one that was put off, unless this instance hands that one over. Another
/// instance may have done so.
const BEHIND: Duration = Duration::from_secs(3600);

#[derive(Default)]
pub(super) struct RefusedRecipients {
    /// Why each was refused last. By address, so that the text does not change with their order.
    why: BTreeMap<String, String>,
    /// The last delivery that was put off for a recipient, and when.
    put_off: HashMap<Address, (String, Timestamp)>,
}

impl RefusedRecipients {
    /// Notes the answers to a mail. Answers whether recipients are refused for other reasons than before.
    pub fn note<'a>(&mut self, taken: &[&Address], refused: impl Iterator<Item = &'a Refused<'a>>) -> bool {
        let before = self.why.clone();
        for recipient in taken {
            self.why.remove(&recipient.to_string());
        }
        self.why.extend(refused.map(|(recipient, why)| (recipient.to_string(), why.to_string())));
        self.why != before
    }

    /// The recipients that are refused, and why; `None`: none is.
    pub fn text(&self) -> Option<String> {
        (!self.why.is_empty()).then(|| list(&self.why))
    }

    /// Whether a mail to this recipient comes behind others that wait.
    pub fn is_behind(&self, recipient: &Address, now: Timestamp) -> bool {
        self.put_off.get(recipient).is_some_and(|(_, at)| now.since(*at) < BEHIND)
    }

    pub fn put_off(&mut self, recipient: &Address, delivery: &str, now: Timestamp) {
        self.put_off.insert(recipient.clone(), (delivery.to_owned(), now));
    }

    /// The recipient has this delivery, which was put off.
    pub fn handed_over(&mut self, recipient: &Address, delivery: &str) {
        if self.put_off.get(recipient).is_some_and(|(last, _)| last == delivery) {
            self.put_off.remove(recipient);
        }
    }
}

/// Recipients that are refused, and why.
pub(super) fn list<R: Display, W: Display>(refused: impl IntoIterator<Item = (R, W)>) -> String {
    let each = refused.into_iter().map(|(recipient, why)| format!("{recipient} ({why})"));
    each.collect::<Vec<String>>().join(", ")
}
