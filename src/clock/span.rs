//! Spans of time as text: `36h`, `1m 30s`, `2 days`, `PT36H`.

use std::time::Duration;

use jiff::SpanRelativeTo;

use super::Timestamp;

/// Reads a moment of RFC 3339, with its offset; `None` if it is none.
pub fn parse_moment(text: &str) -> Option<Timestamp> {
    let moment: jiff::Timestamp = text.parse().ok()?;
    Some(Timestamp::from_millis(moment.as_millisecond()))
}

/// Reads a span; `None` if it is none or is negative. A day is 24 hours and a week seven days, always. Months and
/// years have no fixed length and are refused.
pub fn parse_span(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.trim().parse().ok()?;
    let span = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(span).ok()
}
