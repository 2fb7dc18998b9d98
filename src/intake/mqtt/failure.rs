//! The reasons why a connection failed, with advice for an operator.

use std::error::Error;
use std::time::Duration;

use rumqttc::{ConnAck, ConnectReturnCode, ConnectionError, DisconnectReasonCode, StateError};

use crate::clock::Timestamp;
use crate::intake::canary;
use crate::telemetry::ConnectionLoss;
use crate::{cause, trust};

/// Nothing arrived for the time `limit`.
pub fn silence(limit: Duration) -> String {
    format!(
        "nothing came for {} s, not even the canary; is the broker reachable, and may the client publish \
         and subscribe to {}#?",
        limit.as_secs(),
        canary::PREFIX
    )
}

/// The broker did not answer a subscription for the time `limit`.
pub fn unanswered(limit: Duration) -> String {
    format!(
        "the broker has not answered the subscription for {} s; it does not speak MQTT correctly, or is overloaded: \
         its log says more",
        limit.as_secs()
    )
}

/// No canary of a member was recorded for the time `limit`.
pub fn unproved(limit: Duration) -> String {
    format!(
        "for {} s no canary came back and was recorded; the connection is closed, so that other members get its \
         share of the messages",
        limit.as_secs()
    )
}

/// The broker offers no shared subscriptions: it would accept the filter as an ordinary topic, and deliver nothing.
pub fn no_share(answer: &ConnAck) -> Option<&'static str> {
    let offered = answer.properties.as_ref().and_then(|properties| properties.shared_subscription_available);
    (offered == Some(0)).then_some(
        "it offers no shared subscriptions, and says so when it accepts the connection; leave mqtt.share empty: each \
         instance then hears the whole fleet, and each silence is notified once anyway",
    )
}

/// Another client keeps taking the session; `is_said`: the broker gives that as the reason.
pub fn taken_again(client_id: &str, broker: &str, since: Timestamp, is_said: bool) -> String {
    let what = match is_said {
        true => {
            format!("another client takes the client id {client_id} of Rollcall at {broker} again and again")
        }
        false => format!(
            "{broker} closes the connection of Rollcall again and again, soon after it accepted it: probably another \
             client uses its client id {client_id}"
        ),
    };
    format!(
        "{what}; the time since {since} is blind, and no unit is declared offline for it: find that client in the log of the \
         broker, give each instance an mqtt.client_id of its own, and let the broker bind client ids to users as \
         config/mosquitto/production.conf does"
    )
}

pub fn describe(error: &ConnectionError) -> String {
    use ConnectReturnCode as Code;
    match error {
        ConnectionError::ConnectionRefused(code) => match code {
            Code::BadUserNamePassword | Code::NotAuthorized => {
                format!("the broker refused the login ({code:?}); check mqtt.username and mqtt.password_file")
            }
            Code::UnsupportedProtocolVersion | Code::RefusedProtocolVersion => {
                "it does not speak MQTT 5".to_owned()
            }
            Code::RetainNotSupported => {
                "it keeps no retained messages, which members of a shared subscription need; allow them, or leave \
                 mqtt.share empty"
                    .to_owned()
            }
            code => format!("the broker refused the connection ({code:?})"),
        },
        ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) => match reason_code {
            DisconnectReasonCode::SessionTakenOver => {
                "another client connected with the client id of Rollcall and took over its session; messages of that \
                 time are lost, and the time is blind; give each instance its own mqtt.client_id, and let the broker \
                 bind client ids to users as config/mosquitto/production.conf does"
                    .to_owned()
            }
            code => format!("the broker ended the connection ({code:?})"),
        },
        ConnectionError::MqttState(StateError::ConnectionAborted) => {
            "the broker closed the connection without a reason: it stopped, or another client uses the same client id; \
             see the broker's log"
                .to_owned()
        }
        ConnectionError::Timeout(_) => {
            "it did not answer in time; check that an MQTT 5 broker listens at this address".to_owned()
        }
        error => match trust::cause(unwrapped(error)) {
            Some(cause) => trust::advice("mqtt", "broker", cause),
            None if is_not_mqtt(error) => NOT_MQTT.to_owned(),
            None => match error {
                ConnectionError::MqttState(error) => of_state(error),
                ConnectionError::NotConnAck(_) => NOT_MQTT.to_owned(),
                ConnectionError::SessionStateMismatch { .. } => {
                    "it answers with a session that was not asked for; it does not speak MQTT 5 correctly".to_owned()
                }
                error => cause::why("mqtt", "broker", error),
            },
        },
    }
}

const NOT_MQTT: &str = "its answer is not MQTT; check that mqtt.url names the port of an MQTT 5 broker, with mqtts:// \
                        if that port speaks TLS";

/// The reason why an MQTT connection ended.
fn of_state(error: &StateError) -> String {
    match error {
        StateError::Io(error) => cause::why("mqtt", "broker", error),
        StateError::AwaitPingResp => {
            "it did not answer a ping; the network between has lost the connection, or the broker hangs"
                .to_owned()
        }
        StateError::IncomingPacketTooLarge { pkt_size, .. } => {
            format!("it sent a packet of {pkt_size} bytes, larger than Rollcall allowed it")
        }
        StateError::OutgoingPacketTooLarge { pkt_size, max } => {
            format!("it takes packets of at most {max} bytes, and Rollcall needs {pkt_size}; raise its limit")
        }
        StateError::RetainNotSupported => "it keeps no retained messages; allow them".to_owned(),
        StateError::Unsolicited(_)
        | StateError::InvalidState
        | StateError::ProtocolViolation(_)
        | StateError::Deserialization(_) => {
            "it sent a packet that MQTT 5 does not allow; see its log and its version".to_owned()
        }
        error => error.to_string(),
    }
}

pub fn loss(error: &ConnectionError) -> ConnectionLoss {
    match error {
        ConnectionError::ConnectionRefused(_) => ConnectionLoss::Refused,
        ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) => match reason_code {
            DisconnectReasonCode::SessionTakenOver => ConnectionLoss::TakenOver,
            DisconnectReasonCode::NotAuthorized => ConnectionLoss::Refused,
            _ => ConnectionLoss::Broken,
        },
        _ => ConnectionLoss::Broken,
    }
}

/// Returns whether the other side sends bytes that are no packet. A packet that is too large counts as a packet.
fn is_not_mqtt(error: &ConnectionError) -> bool {
    matches!(error, ConnectionError::MqttState(StateError::Deserialization(inner))
        if inner.to_string().starts_with("Invalid "))
}

/// The error inside the wrapper that does not name its source.
fn unwrapped(error: &ConnectionError) -> &(dyn Error + 'static) {
    match error {
        ConnectionError::MqttState(StateError::Deserialization(inner)) => inner,
        error => error,
    }
}
