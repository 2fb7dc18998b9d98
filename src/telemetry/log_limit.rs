//! A limit for log lines about many units or deliveries: in a storm a few lines are enough.

use std::time::{Duration, Instant};

/// The most lines in a span; further ones are counted.
const MAX_LINES: usize = 20;
const SPAN: Duration = Duration::from_secs(1);

/// The limit for one kind of line.
#[derive(Debug)]
pub struct LogLimit {
    since: Instant,
    written: usize,
    suppressed: usize,
}

impl LogLimit {
    pub fn new(now: Instant) -> LogLimit {
        LogLimit { since: now, written: 0, suppressed: 0 }
    }

    /// Returns whether the next line may be written; otherwise counts it.
    pub fn admit(&mut self) -> bool {
        let admits = self.written < MAX_LINES;
        if admits {
            self.written += 1
        } else {
            self.suppressed += 1
        }
        admits
    }

    /// Begins another span when one is over. Returns how many lines were suppressed, if any.
    pub fn end_span(&mut self, now: Instant) -> Option<usize> {
        if now.duration_since(self.since) < SPAN {
            return None;
        }
        let suppressed = std::mem::replace(self, LogLimit::new(now)).suppressed;
        (suppressed > 0).then_some(suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    #[tokio::test]
    async fn a_few_lines_are_written_and_the_rest_is_counted() {
        let begin = monotonic();
        let mut limit = LogLimit::new(begin);
        assert_eq!((0..50).filter(|_| limit.admit()).count(), MAX_LINES);
        assert_eq!(limit.end_span(begin + SPAN / 2), None);
        assert_eq!(limit.end_span(begin + SPAN), Some(50 - MAX_LINES));
        assert!(limit.admit());
        assert_eq!(limit.end_span(begin + 3 * SPAN), None);
    }
}
