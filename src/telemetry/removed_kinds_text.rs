//! The text about open records whose kinds are not configured, in the log, on `/readyz` and in `rollcall check`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::presence::Kind;

/// The most kinds that are named.
const MAX_NAMED: usize = 8;

/// The number of records by kind, and the advice. The records stay open for `stay` after an instance noticed them.
pub fn removed_kinds_text(open: &BTreeMap<Kind, u64>, stay: Duration) -> String {
    let named = open.iter().take(MAX_NAMED).map(|(kind, count)| format!("{kind} ({count} open)"));
    let mut named = named.collect::<Vec<String>>().join(", ");
    if open.len() > MAX_NAMED {
        named += &format!(" and {} more", open.len() - MAX_NAMED);
    }
    format!(
        "there are open records of kinds that no instance has configured: {named}; configure these kinds again. After \
         {stay:?} (records.close_unwatched) without any instance that has them the \
         records are closed with the cause kind_removed, and the receivers are notified"
    )
}
