//! The state of Rollcall as a host application of Sparkplug: a retained message that says since when it is there, and a
//! last will of the same connection that says that it is not.
//!
//! The state and the will have the moment at which their connection began. A node goes by the newest of the states that
//! it has seen, so a will of an earlier connection changes nothing for it. But the broker retains it, for nodes that
//! come later: then the state is published again. If the will is newer than the connection, that of another instance
//! with the same id, only a new connection can have a state that is newer.

use std::sync::atomic::{AtomicI64, Ordering};

use rumqttc::{AsyncClient, LastWill, PublishOptions, QoS};

use crate::clock::Timestamp;
use crate::intake::announcements::sparkplug::{HostState, state_topic};

pub(in crate::intake) struct HostStatement {
    pub topic: String,
    /// When the current connection began, in milliseconds, or a moment after every state that came.
    since: AtomicI64,
    /// The newest state that came, of another connection.
    newest: AtomicI64,
}

/// What follows from a state that the broker passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostAnswer {
    Nothing,
    /// The state of this connection is published again.
    PublishAgain,
    /// A newer connection is needed.
    Reconnect,
}

impl HostStatement {
    pub fn new(id: &str) -> HostStatement {
        HostStatement { topic: state_topic(id), since: AtomicI64::new(0), newest: AtomicI64::new(0) }
    }

    pub fn connecting(&self, now: Timestamp) {
        let newest = self.newest.load(Ordering::Relaxed);
        self.since.store(now.as_millis().max(newest.saturating_add(1)), Ordering::Relaxed);
    }

    pub fn will(&self) -> LastWill {
        LastWill::new(&self.topic, self.state(false).to_json(), QoS::AtLeastOnce, true, None)
    }

    /// Publishes the state. If the client has no room, nodes learn it from the next connection.
    pub fn publish(&self, client: &AsyncClient, online: bool) {
        let options = PublishOptions::new(QoS::AtLeastOnce).retained();
        let _ = client.try_publish(self.topic.clone(), self.state(online).to_json(), options);
    }

    pub(super) fn answer(&self, payload: &[u8]) -> HostAnswer {
        match HostState::read(payload) {
            Some(state) if state.online => HostAnswer::Nothing,
            Some(state) if state.timestamp >= self.since.load(Ordering::Relaxed) => {
                self.newest.fetch_max(state.timestamp, Ordering::Relaxed);
                HostAnswer::Reconnect
            }
            _ => HostAnswer::PublishAgain,
        }
    }

    fn state(&self, online: bool) -> HostState {
        HostState { online, timestamp: self.since.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_is_there_corrects_the_broker() {
        let host = HostStatement::new("rollcall");
        assert_eq!(host.topic, "spBv1.0/STATE/rollcall");
        host.connecting(Timestamp::from_millis(1000));
        for (payload, expected) in [
            ("{\"online\":true,\"timestamp\":1000}", HostAnswer::Nothing),
            ("{\"online\":false,\"timestamp\":999}", HostAnswer::PublishAgain),
            ("{\"online\":false,\"timestamp\":1000}", HostAnswer::Reconnect),
            ("{\"online\":false,\"timestamp\":2000}", HostAnswer::Reconnect),
            ("OFFLINE", HostAnswer::PublishAgain),
            ("", HostAnswer::PublishAgain),
        ] {
            assert_eq!(host.answer(payload.as_bytes()), expected, "{payload}");
        }
        // The clock of the other instance is ahead.
        host.connecting(Timestamp::from_millis(1500));
        assert_eq!(host.state(true), HostState { online: true, timestamp: 2001 });
    }
}
