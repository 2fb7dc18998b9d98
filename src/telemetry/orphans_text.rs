//! The text about notifications of receivers that are not configured, in the log, on `/readyz` and in `rollcall check`.

use crate::presence::Shown;

/// The stored notifications of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Groups with at least one delivery.
    pub waiting: u64,
    /// Dead letters.
    pub dead: u64,
}

/// The receivers and their queues, and the advice.
pub fn orphans_text(orphans: &[(String, Backlog)]) -> String {
    let named: Vec<String> = orphans
        .iter()
        .map(|(name, kept)| {
            format!("{} ({} groups wait, {} dead letters)", Shown(name), kept.waiting, kept.dead)
        })
        .collect();
    format!(
        "notifications are kept for receivers that are not configured: {}; configure a receiver of that name to \
         deliver those that still apply, or discard them: rollcall deliveries discard --receiver NAME",
        named.join(", ")
    )
}
