//! Bridges that forward the units of a kind. While a bridge is offline, its units cannot be heard, and they do not
//! count as silent.
//!
//! A Mosquitto bridge announces itself on `$SYS/broker/connection/<name>/state`, retained: `1`, and `0` as its last
//! will. A Zigbee2MQTT bridge publishes `online` and `offline`, or `{"state":"offline"}`.

use super::last_will::{field_of, text};

/// Returns whether the bridge is online; `None` if the payload is no word of a bridge.
pub(in crate::intake) fn is_online(payload: &[u8]) -> Option<bool> {
    let field = field_of(payload, "state");
    match field.as_deref().or_else(|| text(payload))? {
        "1" | "online" => Some(true),
        "0" | "offline" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_says_whether_it_is_there() {
        for (payload, expected) in [
            ("1", Some(true)),
            ("0", Some(false)),
            ("{\"state\":\"online\"}", Some(true)),
            ("{\"state\":\"offline\"}", Some(false)),
            ("offline", Some(false)),
            ("", None),
            ("2", None),
            ("{\"state\":0}", Some(false)),
            ("{\"state\":null}", None),
        ] {
            assert_eq!(is_online(payload.as_bytes()), expected, "{payload}");
        }
    }
}
