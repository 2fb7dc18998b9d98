//! Bridges, by which the units of a kind are heard: while a bridge is offline, they cannot be heard, and they are not dead.
//!
//! A bridge of Mosquitto says so on `$SYS/broker/connection/<name>/state`, retained: `1`, and `0` as its last will. One of
//! Zigbee2MQTT says `online` and `offline`, also as `{"state":"offline"}`.

use super::last_will::{field_of, text};

/// Whether the bridge says that it is there; `None`: the payload is none of its words.
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
