//! The state of Rollcall as a host application of Sparkplug: a retained message with the moment since which it is
//! online, and a last will of the same connection that says that it is offline.
//!
//! The state and the will carry the moment at which their connection began. A node follows the newest state that it has
//! seen, so the will of an earlier connection does not affect it. But the broker retains that will for later nodes, so
//! the state is published again. If the will is newer than the connection, because it comes from another instance with
//! the same id, only a new connection can publish a newer state. So the state has a connection of its own
//! ([`super::host_connection`]).
//!
//! # What a forger can do
//! Any client that may publish on that topic may announce the host as offline, with a moment in the future. A state of
//! more than an hour ahead comes from no instance and changes nothing: if Rollcall used its moment, nodes would ignore
//! honest states for that long. For a plausible state, Rollcall connects again at most once a minute, and publishes its
//! own state at most once a second.
//!
//! The state of an orderly end carries the moment of the end, as the standard requires. If another instance has the
//! same id, it carries the moment of the connection, so that nodes which have seen a newer state of the other instance
//! ignore it.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use rumqttc::{AsyncClient, LastWill, PublishOptions, QoS};

use crate::clock::Timestamp;
use crate::intake::announcements::sparkplug::{HostState, state_topic};

/// The most by which the state of another instance may be ahead.
const MAX_AHEAD: Duration = Duration::from_secs(3600);

/// The least time between two connections because of a foreign state.
const CONNECT_AGAIN: Duration = Duration::from_secs(60);

/// The least time between two publications because of a foreign state.
const PUBLISH_AGAIN: Duration = Duration::from_secs(1);

/// How long a refused state stays a problem.
const CALM: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(in crate::intake) struct HostStatement {
    pub topic: String,
    /// When the current connection began, in milliseconds; or a moment after every state that came.
    since: AtomicI64,
    /// The newest state that came from another connection.
    newest: AtomicI64,
    /// Another instance announced itself as online during this connection.
    has_others: AtomicBool,
    /// When a foreign state last caused a connection, in milliseconds.
    reconnected: AtomicI64,
    /// A new connection is needed since then.
    needs_connection: AtomicBool,
    /// When the state was last published because of a foreign one, in milliseconds.
    published: AtomicI64,
    /// The state has to be published again.
    is_due: AtomicBool,
    /// When a state was last refused, in milliseconds; 0 if none is a problem.
    refused: AtomicI64,
}

/// The reaction to a state that the broker passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostAnswer {
    Nothing,
    /// Publish the state of this connection again.
    PublishAgain,
    /// Connect again.
    Reconnect,
    /// The state is not believed, or comes too soon after another one that needed a connection.
    Refused,
}

/// The work that a tick finds due for the state of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HostDue {
    pub publication: bool,
    pub connection: bool,
    /// No state was refused for a while.
    pub calm: bool,
}

impl HostStatement {
    pub fn new(id: &str) -> HostStatement {
        HostStatement { topic: state_topic(id), ..HostStatement::default() }
    }

    pub fn connecting(&self, now: Timestamp) {
        let newest = self.newest.load(Ordering::Relaxed);
        self.since.store(now.as_millis().max(newest.saturating_add(1)), Ordering::Relaxed);
        self.has_others.store(false, Ordering::Relaxed);
        self.needs_connection.store(false, Ordering::Relaxed);
    }

    pub fn will(&self) -> LastWill {
        LastWill::new(&self.topic, self.state(false).to_json(), QoS::AtLeastOnce, true, None)
    }

    /// Publishes that the host is there.
    pub fn publish(&self, client: &AsyncClient) {
        self.send(client, self.state(true));
    }

    /// Publishes an orderly end of the host.
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

    /// Handles a state that came at `now`.
    pub(super) fn answer(&self, payload: &[u8], now: Timestamp) -> HostAnswer {
        match HostState::read(payload) {
            Some(state) if state.online => {
                if state.timestamp != self.since.load(Ordering::Relaxed) {
                    self.has_others.store(true, Ordering::Relaxed);
                }
                HostAnswer::Nothing
            }
            Some(state) if state.timestamp >= self.since.load(Ordering::Relaxed) => {
                if state.timestamp > (now + MAX_AHEAD).as_millis() {
                    self.refused.store(now.as_millis(), Ordering::Relaxed);
                    return HostAnswer::Refused;
                }
                self.newest.fetch_max(state.timestamp, Ordering::Relaxed);
                if self.takes(&self.reconnected, CONNECT_AGAIN, now) {
                    return HostAnswer::Reconnect;
                }
                self.needs_connection.store(true, Ordering::Relaxed);
                self.refused.store(now.as_millis(), Ordering::Relaxed);
                HostAnswer::Refused
            }
            _ if self.takes(&self.published, PUBLISH_AGAIN, now) => HostAnswer::PublishAgain,
            _ => {
                self.is_due.store(true, Ordering::Relaxed);
                HostAnswer::Nothing
            }
        }
    }

    /// The postponed work that is due at `now`.
    pub(super) fn due(&self, now: Timestamp) -> HostDue {
        let is_over = |since: i64| since != 0 && now.since(Timestamp::from_millis(since)) > CALM;
        let publication =
            self.is_due.load(Ordering::Relaxed) && self.takes(&self.published, PUBLISH_AGAIN, now);
        let connection = self.needs_connection.load(Ordering::Relaxed)
            && self.takes(&self.reconnected, CONNECT_AGAIN, now);
        let calm = is_over(self.refused.load(Ordering::Relaxed));
        if publication {
            self.is_due.store(false, Ordering::Relaxed);
        }
        if calm {
            self.refused.store(0, Ordering::Relaxed);
        }
        HostDue { publication, connection, calm }
    }

    /// Returns whether enough time has passed since `last`, and then notes `now` in it.
    fn takes(&self, last: &AtomicI64, apart: Duration, now: Timestamp) -> bool {
        let may = now.since(Timestamp::from_millis(last.load(Ordering::Relaxed))) >= apart;
        if may {
            last.store(now.as_millis(), Ordering::Relaxed);
        }
        may
    }

    fn state(&self, online: bool) -> HostState {
        HostState { online, timestamp: self.since.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_millis(1_732_147_200_000);

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(START.as_millis() + ms)
    }

    fn offline(ms: i64) -> Vec<u8> {
        HostState { online: false, timestamp: at(ms).as_millis() }.to_json()
    }

    #[test]
    fn a_host_that_is_there_corrects_the_broker() {
        let online = HostState { online: true, timestamp: START.as_millis() }.to_json();
        for (payload, expected) in [
            (online, HostAnswer::Nothing),
            (offline(-1), HostAnswer::PublishAgain),
            (offline(0), HostAnswer::Reconnect),
            (offline(2000), HostAnswer::Reconnect),
            (b"OFFLINE".to_vec(), HostAnswer::PublishAgain),
            (Vec::new(), HostAnswer::PublishAgain),
        ] {
            let host = HostStatement::new("rollcall");
            assert_eq!(host.topic, "spBv1.0/STATE/rollcall");
            host.connecting(START);
            assert_eq!(host.answer(&payload, at(100)), expected, "{payload:?}");
        }
        let host = HostStatement::new("rollcall");
        host.connecting(START);
        let end = |moment, expected: i64| {
            let end = HostState { online: false, timestamp: at(expected).as_millis() };
            assert_eq!(host.end(at(moment)), end, "{moment}");
        };
        end(200, 200);
        end(-100, 0);
        // Another instance is there.
        host.answer(&HostState { online: true, timestamp: at(100).as_millis() }.to_json(), at(100));
        end(200, 0);
        // The clock of the other instance is ahead.
        host.answer(&offline(2000), at(300));
        host.connecting(at(500));
        assert_eq!(host.state(true), HostState { online: true, timestamp: at(2001).as_millis() });
    }

    #[test]
    fn a_forger_costs_a_connection_a_minute_and_a_message_a_second() {
        let host = HostStatement::new("rollcall");
        host.connecting(START);
        for forged in [at(3_600_001).as_millis() + 100, i64::MAX] {
            let payload = HostState { online: false, timestamp: forged }.to_json();
            assert_eq!(host.answer(&payload, at(100)), HostAnswer::Refused, "{forged}");
        }
        host.connecting(at(200));
        assert_eq!(host.state(true).timestamp, at(200).as_millis(), "its moment is not taken over");
        assert_eq!(host.answer(&offline(5000), at(300)), HostAnswer::Reconnect);
        host.connecting(at(400));
        assert_eq!(host.answer(&offline(9000), at(500)), HostAnswer::Refused, "a moment later");
        assert_eq!(host.due(at(60_299)), HostDue::default());
        assert_eq!(host.due(at(60_300)), HostDue { connection: true, ..HostDue::default() });
        host.connecting(at(60_400));
        assert_eq!(host.due(at(600_600)), HostDue { calm: true, ..HostDue::default() });
        assert_eq!(host.due(at(600_700)), HostDue::default());
        // Wrong retained states are corrected, at most once a second.
        let answers = [0, 10, 999].map(|ms| host.answer(b"OFFLINE", at(700_000 + ms)));
        assert_eq!(answers, [HostAnswer::PublishAgain, HostAnswer::Nothing, HostAnswer::Nothing]);
        assert_eq!(host.due(at(700_999)), HostDue::default());
        assert_eq!(host.due(at(701_000)), HostDue { publication: true, ..HostDue::default() });
        assert_eq!(host.due(at(702_000)), HostDue::default());
    }
}
