//! Spans and moments on the command line.

use std::time::Duration;

use super::wrong;
use crate::clock::{Timestamp, parse_moment, parse_span};

pub(super) fn span(text: &str) -> Result<Duration, String> {
    parse_span(text).ok_or_else(|| "write a span of time, such as 2h or 1d 12h".to_owned())
}

/// A span in milliseconds, as requests carry it.
pub(super) fn in_ms(span: Duration) -> String {
    format!("{}ms", span.as_millis())
}

pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    let advice = "write a time with its offset, such as 2026-11-23T18:00:00+01:00 or …Z";
    parse_moment(text).ok_or_else(|| advice.to_owned())
}

/// Checks that `from` is before `until`, if both are given.
pub(super) fn in_order(from: Option<Timestamp>, until: Option<Timestamp>) -> anyhow::Result<()> {
    match from.zip(until) {
        Some((from, until)) if from >= until => Err(wrong("--from is a moment before --until")),
        _ => Ok(()),
    }
}
