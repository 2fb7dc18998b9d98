//! Zigbee2MQTT: `zigbee2mqtt/<name>/availability`, which the bridge publishes for each device: `{"state":"offline"}`,
//! or the bare word of versions before 2. It announces itself in the same way on `zigbee2mqtt/bridge/state`, also as
//! its last will. While the bridge is offline, no device can be heard.

use super::Said;
use super::last_will::{field_of, text};
use crate::presence::Cause;

pub(super) fn read(payload: &[u8]) -> Option<Said> {
    let field = field_of(payload, "state");
    match field.as_deref().or_else(|| text(payload))? {
        "online" => Some(Said::Here),
        "offline" => Some(Said::Gone(Cause::Disconnected)),
        _ => None,
    }
}

/// The topic on which the bridge announces itself, from the topic of its devices; `None` if that topic does not name
/// the bridge.
pub(super) fn bridge_of(topic: &str) -> Option<String> {
    let base = topic.strip_suffix("/{unit}/availability")?;
    (!base.contains(['{', '+', '#'])).then(|| format!("{base}/bridge/state"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bridge_has_a_topic_beside_its_devices() {
        for (topic, bridge) in [
            ("zigbee2mqtt/{unit}/availability", Some("zigbee2mqtt/bridge/state")),
            ("home/z2m/{unit}/availability", Some("home/z2m/bridge/state")),
            ("{base}/{unit}/availability", None),
            ("zigbee2mqtt/{unit}/state", None),
        ] {
            assert_eq!(bridge_of(topic).as_deref(), bridge, "{topic}");
        }
    }

    #[test]
    fn the_bridge_says_whether_a_device_is_available() {
        let gone = Some(Said::Gone(Cause::Disconnected));
        for (payload, expected) in [
            ("{\"state\":\"online\"}", Some(Said::Here)),
            ("{\"state\":\"offline\"}", gone),
            ("online", Some(Said::Here)),
            ("offline", gone),
            ("{\"state\":\"ON\",\"linkquality\":98}", None),
            ("", None),
        ] {
            assert_eq!(read(payload.as_bytes()), expected, "{payload}");
        }
    }
}
