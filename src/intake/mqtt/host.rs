//! The state of Rollcall as a host application of Sparkplug: a retained message that says since when it is there, and a
//! last will of the same connection that says that it is not.
//!
//! The state and the will have the moment at which their connection began. A node goes by the newest of the states that
//! it has seen, so a will of an earlier connection changes nothing for it. But the broker retains it, for nodes that
//! come later: then the state is published again. If the will is newer than the connection, that of another instance
//! with the same id, only a new connection can have a state that is newer.
//!
//! The state of an orderly end has the moment of the end, as the standard says. If another instance has the same id, it
//! has the moment of the connection, so that it does not count for nodes that have seen a newer state of the other one.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use rumqttc::{AsyncClient, LastWill, PublishOptions, QoS};

use crate::clock::Timestamp;
use crate::intake::announcements::sparkplug::{HostState, state_topic};

pub(in crate::intake) struct HostStatement {
    pub topic: String,
    /// When the current connection began, in milliseconds, or a moment after every state that came.
    since: AtomicI64,
    /// The newest state that came, of another connection.
    newest: AtomicI64,
    /// Whether another instance said during this connection that it is there.
    has_others: AtomicBool,
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
        let (since, newest, has_others) = Default::default();
        HostStatement { topic: state_topic(id), since, newest, has_others }
    }

    pub fn connecting(&self, now: Timestamp) {
        let newest = self.newest.load(Ordering::Relaxed);
        self.since.store(now.as_millis().max(newest.saturating_add(1)), Ordering::Relaxed);
        self.has_others.store(false, Ordering::Relaxed);
    }

    pub fn will(&self) -> LastWill {
        LastWill::new(&self.topic, self.state(false).to_json(), QoS::AtLeastOnce, true, None)
    }

    /// Publishes that the host is there.
    pub fn publish(&self, client: &AsyncClient) {
        self.send(client, self.state(true));
    }

    /// Publishes that the host ends in order.
    pub fn publish_end(&self, client: &AsyncClient, now: Timestamp) {
        self.send(client, self.end(now));
    }

    /// If the client has no room, nodes learn the state from the next connection, or from the will.
    fn send(&self, client: &AsyncClient, state: HostState) {
        let options = PublishOptions::new(QoS::AtLeastOnce).retained();
        let _ = client.try_publish(self.topic.clone(), state.to_json(), options);
    }

    fn end(&self, now: Timestamp) -> HostState {
        let state = self.state(false);
        match self.has_others.load(Ordering::Relaxed) {
            true => state,
            false => HostState { timestamp: state.timestamp.max(now.as_millis()), ..state },
        }
    }

    pub(super) fn answer(&self, payload: &[u8]) -> HostAnswer {
        match HostState::read(payload) {
            Some(state) if state.online => {
                if state.timestamp != self.since.load(Ordering::Relaxed) {
                    self.has_others.store(true, Ordering::Relaxed);
                }
                HostAnswer::Nothing
            }
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
        let end = |moment, expected| {
            let end = HostState { online: false, timestamp: expected };
            assert_eq!(host.end(Timestamp::from_millis(moment)), end, "{moment}");
        };
        end(1200, 1200);
        end(900, 1000);
        // Another instance is there.
        host.answer(b"{\"online\":true,\"timestamp\":1100}");
        end(1200, 1000);
        // The clock of the other instance is ahead.
        host.connecting(Timestamp::from_millis(1500));
        assert_eq!(host.state(true), HostState { online: true, timestamp: 2001 });
    }
}
