//! What the broker says that it threw away.
//!
//! Mosquitto counts messages that found a client's queue full, of all its clients together. So a
//! count that grows is a warning to whoever operates the broker and no blind time of ours: it may
//! well be somebody else's queue. It tells the count when it has changed, and keeps the last.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::telemetry::Telemetry;

/// Where it tells.
pub(super) const TOPIC: &str = "$SYS/broker/publish/messages/dropped";

/// A count that has not grown for this long does not grow any more. Brokers tell every ten seconds.
const OVER: Duration = Duration::from_secs(60);

/// Follows the count.
pub(super) struct Drops {
    telemetry: Arc<Telemetry>,
    count: Option<u64>,
    grew_at: Option<Timestamp>,
}

impl Drops {
    pub fn new(telemetry: Arc<Telemetry>) -> Drops {
        Drops { telemetry, count: None, grew_at: None }
    }

    /// The broker tells its count. A smaller one than before is that of a broker that began anew.
    pub fn counted(&mut self, payload: &[u8], now: Timestamp) {
        let Some(count) = std::str::from_utf8(payload).ok().and_then(|text| text.trim().parse().ok()) else {
            return;
        };
        let grown = self.count.map_or(0, |before| u64::saturating_sub(count, before));
        self.count = Some(count);
        self.telemetry.broker_dropped(count, grown);
        if grown > 0 {
            self.grew_at = Some(now);
        }
    }

    /// Whether that is over by now.
    pub fn settle(&mut self, now: Timestamp) {
        if self.grew_at.is_some_and(|grew_at| now.since(grew_at) >= OVER) {
            self.grew_at = None;
            self.telemetry.broker_drops_no_more();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn a_count_that_grows_is_a_warning_until_it_has_not_grown_for_a_minute() {
        let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(Timestamp::ZERO)));
        let mut drops = Drops::new(telemetry.clone());
        let warned = || telemetry.problems().iter().any(|problem| problem.name == "broker_drops_messages");
        // (second, what the broker tells, whether that is a warning)
        let cases = [
            (0, "5", false), // that was before our time
            (10, "7", true),
            (20, "nonsense", true),
            (69, "7", true),
            (70, "7", false),
            (80, "8", true),
            (90, "0", true), // it began anew
            (139, "", true),
            (140, "", false),
            (150, "1", true),
        ];
        for (second, told, is_warned) in cases {
            let now = Timestamp::from_millis(second * 1000);
            drops.counted(told.as_bytes(), now);
            drops.settle(now);
            assert_eq!(warned(), is_warned, "at {second}");
        }
    }
}
