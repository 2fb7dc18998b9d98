//! Connections to the MQTT broker, and the in-process broker.

use std::net::SocketAddr;
use std::time::Duration;

use super::labels::{BrokerRefusal, ConnectionLoss, Rejection};
use super::problems::{
    BROKER_DROPS, CLIENT_ID_TAKEN, Dependency, HOST_STATE_FORGED, MQTT_DISCONNECTED, SHARE_TAKEN, Severity,
};
use super::{MAX_SHOWN, Telemetry, truncate};

/// The work that waits for the broker.
const INTAKE: &str = "intake";

impl Telemetry {
    /// Lets the series of a connection, and of the broker with this name, start at zero.
    pub fn connection_configured(&self, broker: &str, connection: &str) {
        self.series.connection_at_zero(broker, connection);
    }

    /// A connection to the broker with this name is established and subscribed. `broker`: its address.
    pub fn mqtt_connected(&self, (name, connection): (&str, &str), broker: &str) {
        self.series.connected.with_label_values(&[name, connection]).set(1);
        self.problems.clear(MQTT_DISCONNECTED, "");
        self.problems.clear(MQTT_DISCONNECTED, connection);
        tracing::info!(connection, broker, "connected to the MQTT broker and subscribed");
    }

    /// Devices may connect straight to Rollcall at these addresses.
    pub fn listening(&self, name: &str, addresses: &str) {
        self.series.connected.with_label_values(&[name, name]).set(1);
        self.problems.clear(MQTT_DISCONNECTED, "");
        tracing::info!(addresses, "devices may connect");
    }

    /// A connection to the broker with this name was lost or could not be made. `broker`: its address.
    pub fn mqtt_disconnected(
        &self,
        (name, connection): (&str, &str),
        broker: &str,
        (loss, why): (ConnectionLoss, &str),
        retry_in: Duration,
    ) {
        self.series.connections_lost.with_label_values(&[name, loss.as_str()]).inc();
        self.series.connected.with_label_values(&[name, connection]).set(0);
        self.problems.clear(MQTT_DISCONNECTED, "");
        let down = format!("the MQTT broker at {broker} is not connected: {why}");
        let cause = (Dependency::Broker(broker.to_owned()), INTAKE);
        let text = (format!("connection {connection} is down"), down.as_str());
        let problem = (MQTT_DISCONNECTED, connection);
        if self.problems.set_waiting(cause, problem, text, Severity::Serious, self.clock.now()) {
            let retry_in_ms = retry_in.as_millis() as u64;
            tracing::warn!(connection, broker, retry_in_ms, "no connection to the MQTT broker: {why}");
        }
    }

    /// Another client keeps taking the session of that connection. `text`: the advice.
    pub fn session_taken(&self, connection: &str, text: String) {
        let is_known = self.problems.has(CLIENT_ID_TAKEN, connection);
        if !is_known {
            tracing::error!(
                connection,
                "other clients keep connecting with the client id of Rollcall: {text}"
            );
        }
        self.problems.set(CLIENT_ID_TAKEN, connection, text, Severity::Serious);
    }

    /// No other client has taken the session of that connection for a while.
    pub fn session_kept(&self, connection: &str) {
        self.problems.clear(CLIENT_ID_TAKEN, connection);
        tracing::info!(connection, "no other client has taken the session of Rollcall for a minute");
    }

    /// A state of Rollcall as a Sparkplug host application, published by another client on that topic, is not believed,
    /// or came too soon after another one.
    pub fn host_state_refused(&self, connection: &str, topic: &str) {
        let text = format!(
            "another client says on {topic}, again and again or for a time to come, that the host is offline: Rollcall \
             connects anew at most once a minute for it; let only Rollcall publish there, and give each fleet a host id \
             of its own"
        );
        self.message_rejected(topic, Rejection::ForgedState, &text);
        self.problems.set(HOST_STATE_FORGED, connection, text, Severity::Warning);
    }

    /// No state of the host was refused for a while.
    pub fn host_state_calm(&self, connection: &str) {
        self.problems.clear(HOST_STATE_FORGED, connection);
        tracing::info!(connection, "for ten minutes no other client has said that the host is offline");
    }

    /// Messages of the shared subscription come to no instance; `None` if they come again. `broker`: its name.
    pub fn share_taken(&self, broker: &str, text: Option<String>) {
        match text {
            None => {
                self.problems.clear(SHARE_TAKEN, broker);
                tracing::info!(
                    broker,
                    "for a minute all messages of the shared subscription have reached the fleet"
                );
            }
            Some(text) => {
                if self.problems.set(SHARE_TAKEN, broker, text.clone(), Severity::Warning) {
                    tracing::warn!(broker, "a stranger takes messages: {text}");
                }
            }
        }
    }

    /// The broker with this name reported the number of its dropped messages; `grown` is the growth since its last
    /// report.
    pub fn broker_dropped(&self, broker: &str, count: u64, grown: u64) {
        self.series.broker_dropped.with_label_values(&[broker]).inc_by(grown);
        if grown == 0 {
            return;
        }
        let text = format!(
            "the broker drops messages, {grown} of them lately, of any client; raise its \
             max_queued_messages and max_inflight_messages, or see which client is slow"
        );
        tracing::warn!(broker, count, grown, "{text}");
        self.problems.set(BROKER_DROPS, broker, text, Severity::Warning);
    }

    /// The broker has dropped nothing for a while.
    pub fn broker_drops_no_more(&self, broker: &str) {
        self.problems.clear(BROKER_DROPS, broker);
        tracing::info!(broker, "the broker drops no messages any more");
    }

    /// The in-process broker refused a request of a device. `why` is logged, at a limited rate.
    pub fn broker_refused(&self, what: BrokerRefusal, from: SocketAddr, client_id: &str, why: &str) {
        self.series.broker_refused.with_label_values(&[what.as_str()]).inc();
        if let Some(suppressed) = self.samples.admit_refusal(what) {
            let client_id = truncate(client_id, MAX_SHOWN).escape_debug().to_string();
            tracing::warn!(%from, client_id, reason = what.as_str(), suppressed, "the broker refused: {why}");
        }
    }

    /// The in-process broker reads a device more slowly than it sends.
    pub fn broker_held_back(&self, from: SocketAddr, client_id: &str, why: &str) {
        self.series.broker_held_back.inc();
        if let Some(suppressed) = self.samples.admit("held_back") {
            let client_id = truncate(client_id, MAX_SHOWN).escape_debug().to_string();
            tracing::warn!(%from, client_id, suppressed, "the broker holds a device back: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, Timestamp};
    use crate::telemetry::Loop;

    #[test]
    fn each_connection_that_is_down_is_named_until_it_is_up() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        telemetry.engine_answered(Loop::Sweep, "");
        telemetry.blind(false, None);
        telemetry.mqtt_connected(("eu", "one"), "broker");
        telemetry.mqtt_disconnected(
            ("us", "two"),
            "broker",
            (ConnectionLoss::Refused, "refused"),
            Duration::ZERO,
        );
        let [problem] = &telemetry.problems()[..] else { panic!("{:?}", telemetry.problems()) };
        assert!(problem.text.contains("broker") && problem.text.contains("refused"), "{}", problem.text);
        assert!(problem.consequences[0].text.contains("two"), "{problem:?}");
        telemetry.mqtt_connected(("us", "two"), "broker");
        assert_eq!(telemetry.problems(), []);
    }
}
