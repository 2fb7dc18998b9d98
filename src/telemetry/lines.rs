//! The lines of a log about many units or deliveries: in a storm a few are enough.

use std::time::Duration;

use tokio::time::Instant;

/// So many are written in a span, each by itself; the rest is counted.
const MOST: usize = 20;
const SPAN: Duration = Duration::from_secs(1);

/// Lines of one kind.
#[derive(Debug)]
pub struct Lines {
    since: Instant,
    written: usize,
    held_back: usize,
}

impl Lines {
    /// None was written yet.
    pub fn new(now: Instant) -> Lines {
        Lines { since: now, written: 0, held_back: 0 }
    }

    /// Whether the next line may be written. It is counted if not.
    pub fn admit(&mut self) -> bool {
        let admits = self.written < MOST;
        if admits {
            self.written += 1
        } else {
            self.held_back += 1
        }
        admits
    }

    /// When the span is over another one begins. Answers how many lines were held back, if any.
    pub fn turn(&mut self, now: Instant) -> Option<usize> {
        if now.duration_since(self.since) < SPAN {
            return None;
        }
        let held_back = std::mem::replace(self, Lines::new(now)).held_back;
        (held_back > 0).then_some(held_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_few_lines_are_written_and_the_rest_is_counted() {
        let begin = Instant::now();
        let mut lines = Lines::new(begin);
        assert_eq!((0..50).filter(|_| lines.admit()).count(), MOST);
        assert_eq!(lines.turn(begin + SPAN / 2), None);
        assert_eq!(lines.turn(begin + SPAN), Some(50 - MOST));
        assert!(lines.admit());
        assert_eq!(lines.turn(begin + 3 * SPAN), None);
    }
}
