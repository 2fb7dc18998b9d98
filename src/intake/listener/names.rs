//! Topics and filters as they may be.

use super::bytes::{BAD_FILTER, BAD_TOPIC, PROTOCOL, Violation, violation};

/// The topic of a message.
pub fn topic(text: &str) -> Result<&str, Violation> {
    if text.contains(['+', '#']) { violation(BAD_TOPIC, "a topic with a wildcard") } else { Ok(text) }
}

/// The topic of an answer.
pub fn response_topic(text: &str) -> Result<(), Violation> {
    if text.is_empty() || text.contains(['+', '#']) {
        return violation(PROTOCOL, "a response topic that is empty or has a wildcard");
    }
    Ok(())
}

/// A filter as it may be: `#` only at the end, both wildcards only as a whole level.
pub fn filter(text: &str) -> Result<(), Violation> {
    let filter = match text.strip_prefix("$share/") {
        None => text,
        Some(shared) => match shared.split_once('/') {
            Some((name, filter)) if !name.is_empty() && !name.contains(['+', '#']) => filter,
            _ => return violation(BAD_FILTER, "a shared subscription without a name or a filter"),
        },
    };
    let mut levels = filter.split('/').peekable();
    let mut is_good = !filter.is_empty();
    while let Some(level) = levels.next() {
        is_good &= !level.contains(['+', '#']) || level == "+" || level == "#" && levels.peek().is_none();
    }
    if is_good {
        Ok(())
    } else {
        violation(BAD_FILTER, "a filter that is empty, or has a wildcard within a level")
    }
}
