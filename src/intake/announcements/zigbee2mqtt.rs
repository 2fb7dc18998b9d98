//! Zigbee2MQTT: `zigbee2mqtt/<name>/availability`, which the bridge publishes for each device: `{"state":"offline"}`,
//! or the bare word of versions before 2.

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

#[cfg(test)]
mod tests {
    use super::*;

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
