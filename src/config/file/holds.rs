//! The sections that hold notifications: `[[inhibit]]` and `[breaker]`.

use serde::{Deserialize, Serialize};

use crate::config::Span;

section! {
    /// While a source is offline, receivers are not notified of its targets.
    Inhibit {
        source_matchers: Vec<String> = Vec::new(),
        target_matchers: Vec<String> = Vec::new(),
        equal: Vec<String> = Vec::new(),
    }
}

section! {
    /// One message when a large part of the fleet falls silent at once.
    Breaker {
        enabled: bool = true,
        share: f64 = 0.5,
        min_units: u64 = 50,
        window: Span = Span::from_secs(60),
        max_hold: Span = Span::from_secs(600),
    }
}
