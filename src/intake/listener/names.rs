//! The rules for topics and filters.

use super::bytes::{BAD_FILTER, BAD_TOPIC, PROTOCOL, Violation, violation};
use crate::presence::may_stand_in_topic;

pub fn topic(text: &str) -> Result<&str, Violation> {
    if may_stand_in_topic(text) {
        return Ok(text);
    }
    violation(BAD_TOPIC, "a topic with a wildcard, a control character or a noncharacter of Unicode")
}

pub fn response_topic(text: &str) -> Result<&str, Violation> {
    if !text.is_empty() && may_stand_in_topic(text) {
        return Ok(text);
    }
    violation(PROTOCOL, "a response topic that is empty or has a character that no topic may have")
}

/// Checks a filter that a client subscribes to.
pub fn filter(text: &str) -> Result<&str, Violation> {
    let (name, of_messages) = shared(text);
    let is_named = match name {
        Some(name) => !name.is_empty() && !name.contains(['+', '#']),
        None => !text.starts_with(SHARE),
    };
    if is_named && is_filter(of_messages) {
        return Ok(text);
    }
    violation(
        BAD_FILTER,
        "a filter that is empty, has a wildcard within a level, or is of a share without a name",
    )
}

const SHARE: &str = "$share/";

/// The name of a shared subscription, if the filter is one, and the filter of its messages.
pub fn shared(filter: &str) -> (Option<&str>, &str) {
    let shared = filter.strip_prefix(SHARE).and_then(|rest| rest.split_once('/'));
    shared.map_or((None, filter), |(name, of_messages)| (Some(name), of_messages))
}

/// Returns whether a filter is valid: `#` only at the end, and both wildcards only as a whole level.
pub fn is_filter(text: &str) -> bool {
    let mut levels = text.split('/').peekable();
    let mut is_good = !text.is_empty();
    while let Some(level) = levels.next() {
        is_good &= !level.contains(['+', '#']) || level == "+" || level == "#" && levels.peek().is_none();
    }
    is_good
}
