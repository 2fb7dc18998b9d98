//! The broker's own count of the messages that it dropped.
//!
//! Mosquitto counts messages that found the queue of any client full. So a growing count is a warning to the operator
//! of the broker, and no blind time: the queue may be that of another client. Mosquitto publishes the count when it
//! changes, and retains the last.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::telemetry::Telemetry;

/// The topic of the count.
pub(super) const TOPIC: &str = "$SYS/broker/publish/messages/dropped";

/// After this time without growth the warning ends. Brokers publish the count every ten seconds.
const SETTLED_AFTER: Duration = Duration::from_secs(60);

/// Follows the count.
pub(super) struct BrokerDrops {
    telemetry: Arc<Telemetry>,
    /// The name of the broker.
    broker: String,
    count: Option<u64>,
    grew_at: Option<Timestamp>,
}

impl BrokerDrops {
    pub fn new(telemetry: Arc<Telemetry>, broker: &str) -> BrokerDrops {
        BrokerDrops { telemetry, broker: broker.to_owned(), count: None, grew_at: None }
    }

    /// Takes the count that the broker publishes. A count smaller than before means that the broker was restarted.
    pub fn counted(&mut self, payload: &[u8], now: Timestamp) {
        let Some(count) = std::str::from_utf8(payload).ok().and_then(|text| text.trim().parse().ok()) else {
            return;
        };
        let grown = self.count.map_or(0, |before| u64::saturating_sub(count, before));
        self.count = Some(count);
        self.telemetry.broker_dropped(&self.broker, count, grown);
        if grown > 0 {
            self.grew_at = Some(now);
        }
    }

    /// Ends the warning when the count has not grown for long enough.
    pub fn settle(&mut self, now: Timestamp) {
        if self.grew_at.is_some_and(|grew_at| now.since(grew_at) >= SETTLED_AFTER) {
            self.grew_at = None;
            self.telemetry.broker_drops_no_more(&self.broker);
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
        let mut drops = BrokerDrops::new(telemetry.clone(), "main");
        let warned = || telemetry.problems().iter().any(|problem| problem.name == "broker_drops_messages");
        // (second, payload, whether there is a warning)
        let cases = [
            (0, "5", false), // it grew before Rollcall connected
            (10, "7", true),
            (20, "nonsense", true),
            (69, "7", true),
            (70, "7", false),
            (80, "8", true),
            (90, "0", true), // it was restarted
            (139, "", true),
            (140, "", false),
            (150, "1", true),
        ];
        for (second, count, is_warned) in cases {
            let now = Timestamp::from_millis(second * 1000);
            drops.counted(count.as_bytes(), now);
            drops.settle(now);
            assert_eq!(warned(), is_warned, "at {second}");
        }
    }
}
