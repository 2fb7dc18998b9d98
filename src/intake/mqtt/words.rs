//! Why a connection does not stand, for people, with what to do.

use std::time::Duration;

use rumqttc::{ConnectReturnCode, ConnectionError, DisconnectReasonCode, StateError};

use crate::intake::canary;

/// Nothing came for that long.
pub fn silence(patience: Duration) -> String {
    format!(
        "nothing came for {} s, not even the canary; is the broker reachable, and may the client publish \
         and subscribe to {}#?",
        patience.as_secs(),
        canary::PREFIX
    )
}

/// No canary of a member was recorded for that long.
pub fn unproved(patience: Duration) -> String {
    format!(
        "no canary came back and was recorded for {} s; the connection is closed so that others are given its \
         share of the messages",
        patience.as_secs()
    )
}

/// Why it ended.
pub fn describe(error: &ConnectionError) -> String {
    use ConnectReturnCode as Code;
    match error {
        ConnectionError::ConnectionRefused(code) => match code {
            Code::BadUserNamePassword | Code::NotAuthorized => {
                format!("it refused us ({code:?}); check mqtt.username and its password")
            }
            Code::UnsupportedProtocolVersion | Code::RefusedProtocolVersion => {
                "it does not speak MQTT 5".to_owned()
            }
            Code::RetainNotSupported => {
                "it keeps no retained messages, which members of a shared subscription need; allow them, or leave \
                 mqtt.share empty"
                    .to_owned()
            }
            code => format!("it refused us ({code:?})"),
        },
        ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) => match reason_code {
            DisconnectReasonCode::SessionTakenOver => {
                "another client came with our client id; give each instance its own mqtt.client_id".to_owned()
            }
            code => format!("it sent us away ({code:?})"),
        },
        error => error.to_string(),
    }
}
