//! The recipients that a server refuses, as far as this instance knows.

use std::collections::BTreeMap;
use std::fmt::Display;

use lettre::Address;

use super::Refused;

#[derive(Default)]
pub(super) struct RefusedRecipients {
    /// Why each was refused last. By address, so that the text does not change with their order.
    why: BTreeMap<String, String>,
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
}

/// Recipients that are refused, and why.
pub(super) fn list<R: Display, W: Display>(refused: impl IntoIterator<Item = (R, W)>) -> String {
    let each = refused.into_iter().map(|(recipient, why)| format!("{recipient} ({why})"));
    each.collect::<Vec<String>>().join(", ")
}
