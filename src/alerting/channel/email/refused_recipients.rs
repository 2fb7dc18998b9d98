//! The recipients that a server refuses or defers, as far as this instance knows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use lettre::Address;

use super::RefusedRecipient;
use crate::telemetry::Unreached;

#[derive(Default)]
pub(super) struct RefusedRecipients {
    /// Why each recipient was refused last. By address, so that the text does not change with their order.
    why: BTreeMap<String, String>,
    /// The refused recipients that are deferred: the server says that it takes mail for them later.
    deferred: BTreeSet<String>,
}

impl RefusedRecipients {
    /// Notes the answers to a mail. Answers whether recipients are refused for other reasons than before.
    pub fn note(
        &mut self,
        taken: &[&Address],
        refused: &[RefusedRecipient<'_>],
        deferred: &[RefusedRecipient<'_>],
    ) -> bool {
        let before = self.why.clone();
        let answered =
            taken.iter().copied().chain(refused.iter().chain(deferred).map(|(recipient, _)| *recipient));
        for recipient in answered {
            self.why.remove(&recipient.to_string());
            self.deferred.remove(&recipient.to_string());
        }
        let both = refused.iter().chain(deferred);
        self.why.extend(both.map(|(recipient, why)| (recipient.to_string(), why.to_string())));
        self.deferred.extend(deferred.iter().map(|(recipient, _)| recipient.to_string()));
        self.why != before
    }

    /// The recipients that do not get mails, and why; `None`: all do.
    pub fn unreached(&self) -> Option<Unreached> {
        let text = list(&self.why);
        match (self.why.len(), self.deferred.len()) {
            (0, _) => None,
            (all, deferred) if all == deferred => Some(Unreached::Deferred(text)),
            _ => Some(Unreached::Recipients(text)),
        }
    }
}

/// Recipients that are refused, and why.
pub(super) fn list<R: Display, W: Display>(refused: impl IntoIterator<Item = (R, W)>) -> String {
    let each = refused.into_iter().map(|(recipient, why)| format!("{recipient} ({why})"));
    each.collect::<Vec<String>>().join(", ")
}
