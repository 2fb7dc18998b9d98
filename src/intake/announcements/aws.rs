//! AWS IoT: the lifecycle events of clients, `$aws/events/presence/connected/<client id>` and `…/disconnected/…`, which a
//! bridge passes on. They may come twice and out of order; `versionNumber` grows with each session of a client.

use serde::Deserialize;

use super::{Event, Said};
use crate::presence::Cause;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LifecycleEvent {
    event_type: String,
    version_number: Option<i64>,
    #[serde(default)]
    client_initiated_disconnect: bool,
    #[serde(default)]
    disconnect_reason: String,
}

pub(super) fn read(payload: &[u8]) -> Option<Event> {
    let event: LifecycleEvent = serde_json::from_slice(payload).ok()?;
    let said = match event.event_type.as_str() {
        "connected" => Said::Here,
        "disconnected" if event.disconnect_reason == "DUPLICATE_CLIENTID" => Said::Nothing,
        "disconnected" if event.client_initiated_disconnect => Said::Left,
        "disconnected" => Said::Gone(Cause::Disconnected),
        _ => return None,
    };
    Some(Event { said, order: event.version_number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifecycle_event_has_a_reason_and_the_number_of_its_session() {
        let ended = |initiated: bool, reason: &str| {
            format!(
                r#"{{"clientId":"c1","timestamp":1702562499818,"eventType":"disconnected","sessionIdentifier":"8b76",
                "principalIdentifier":"12","clientInitiatedDisconnect":{initiated},"disconnectReason":"{reason}",
                "versionNumber":7}}"#
            )
        };
        let connected = r#"{"clientId":"c1","timestamp":1702562499818,"eventType":"connected",
            "sessionIdentifier":"8b76","principalIdentifier":"12","ipAddress":"192.0.2.1","versionNumber":7}"#;
        for (payload, expected) in [
            (connected.to_owned(), Some(Said::Here)),
            (ended(false, "CONNECTION_LOST"), Some(Said::Gone(Cause::Disconnected))),
            (ended(false, "MQTT_KEEP_ALIVE_TIMEOUT"), Some(Said::Gone(Cause::Disconnected))),
            (ended(true, "CLIENT_INITIATED_DISCONNECT"), Some(Said::Left)),
            (ended(false, "DUPLICATE_CLIENTID"), Some(Said::Nothing)),
            (r#"{"eventType":"subscribed"}"#.to_owned(), None),
            ("offline".to_owned(), None),
        ] {
            let expected = expected.map(|said| Event { said, order: Some(7) });
            assert_eq!(read(payload.as_bytes()), expected, "{payload}");
        }
    }
}
