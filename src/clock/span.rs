//! Spans of time as text: `36h`, `1m 30s`, `2 days`, `PT36H`.

use std::time::Duration;

use jiff::SpanRelativeTo;

use super::Timestamp;

/// Reads a moment of RFC 3339, with its offset; `None` if the text is no moment.
pub fn parse_moment(text: &str) -> Option<Timestamp> {
    let moment: jiff::Timestamp = text.parse().ok()?;
    Some(Timestamp::from_millis(moment.as_millisecond()))
}

/// Reads a span; `None` if the text is no span or a negative one. A day is 24 hours and a week seven days, always.
/// Months and years have no fixed length and are refused.
pub fn parse_span(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.trim().parse().ok()?;
    let span = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(span).ok()
}

/// A span in its two largest units, for operators: `2d 3h`, `5m`, `12s`. [`parse_span`] reads this text again.
pub fn shown_span(span: Duration) -> String {
    let seconds = span.as_secs();
    let (large, small) = match seconds {
        0..60 => return format!("{seconds}s"),
        60..3600 => ((seconds / 60, "m"), (seconds % 60, "s")),
        3600..86_400 => ((seconds / 3600, "h"), (seconds / 60 % 60, "m")),
        _ => ((seconds / 86_400, "d"), (seconds / 3600 % 24, "h")),
    };
    match small.0 {
        0 => format!("{}{}", large.0, large.1),
        rest => format!("{}{} {rest}{}", large.0, large.1, small.1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_shown_in_their_two_largest_units() {
        let cases = [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (61, "1m 1s"),
            (3600, "1h"),
            (86_399, "23h 59m"),
            (90_000, "1d 1h"),
            (183_600, "2d 3h"),
        ];
        for (seconds, shown) in cases {
            assert_eq!(shown_span(Duration::from_secs(seconds)), shown);
            let largest = shown.split(' ').next().and_then(parse_span);
            assert!(largest.is_some_and(|span| span <= Duration::from_secs(seconds)), "{shown}");
        }
    }
}
