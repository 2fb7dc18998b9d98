//! The text about notifications for receivers that are not configured, in the log, on `/readyz` and in `rollcall check`.

use crate::presence::Shown;
use crate::store::Backlog;

/// The receivers and their queues, and what to do.
pub fn orphans_text(orphans: &[(String, Backlog)]) -> String {
    let named: Vec<String> = orphans
        .iter()
        .map(|(name, kept)| {
            format!("{} ({} groups wait, {} dead letters)", Shown(name), kept.waiting, kept.dead)
        })
        .collect();
    format!(
        "notifications are kept for receivers that are not configured: {}; configure a receiver of that name, and \
         those that still apply go out, or discard them: rollcall deliveries discard --receiver NAME",
        named.join(", ")
    )
}
