//! What is said of receivers that are not configured, in the log, on `/readyz` and by `rollcall check`.

use crate::presence::Shown;
use crate::store::Backlog;

/// For which of them something is kept, and what to do.
pub fn orphans_in_words(orphans: &[(String, Backlog)]) -> String {
    let named: Vec<String> = orphans
        .iter()
        .map(|(name, kept)| {
            format!("{} ({} groups wait, {} dead letters)", Shown(name), kept.waiting, kept.dead)
        })
        .collect();
    format!(
        "notifications are kept for receivers that are not configured: {}; configure a receiver of that name, and \
         what waits and is still so goes out, or discard them: rollcall deliveries discard --receiver NAME",
        named.join(", ")
    )
}
