//! EMQX: `$SYS/brokers/<node>/clients/<client id>/connected` and `…/disconnected`, and the events of its rules
//! (`$events/client_connected` and `$events/client_disconnected`) where a rule publishes them on a topic of their own.
//!
//! A session that another one took over says so by its reason. A rule also tells when the session began that ends. A moment
//! that is ahead is not believed: it would make all later events of its client look old.

use serde::Deserialize;

use super::{Event, Said};
use crate::clock::Timestamp;
use crate::intake::payload::MAX_CLOCK_LEAD;
use crate::presence::Cause;

#[derive(Deserialize)]
struct ClientEvent {
    connected_at: Option<i64>,
    disconnected_at: Option<i64>,
    #[serde(default)]
    reason: String,
}

pub(super) fn read(payload: &[u8], now: Timestamp) -> Option<Event> {
    let ClientEvent { connected_at, disconnected_at, reason } = serde_json::from_slice(payload).ok()?;
    let believed = |moment: &i64| Timestamp::from_millis(*moment) <= now + MAX_CLOCK_LEAD;
    let Some(ended) = disconnected_at else {
        return Some(Event { said: Said::Here, order: Some(connected_at?).filter(believed) });
    };
    let said = match reason.as_str() {
        "normal" => Said::Left,
        "takenover" | "takeovered" | "discarded" => Said::Nothing,
        _ => Said::Gone(Cause::Disconnected),
    };
    Some(Event { said, order: connected_at.or(Some(ended)).filter(believed) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_625_572_214_000);

    #[test]
    fn a_client_of_emqx_is_connected_or_disconnected_for_a_reason() {
        let of_system = |reason: &str| {
            format!(
                r#"{{"username":"foo","ts":1625572213873,"sockport":1883,"reason":"{reason}","proto_ver":4,
                "proto_name":"MQTT","ipaddress":"127.0.0.1","disconnected_at":1625572213873,"clientid":"c1"}}"#
            )
        };
        // As version 5 writes it, with the beginning of the session, as a rule does.
        let of_version_5 = |reason: &str| {
            format!(
                r#"{{"username":null,"ts":1625572213873,"sockport":1883,"reason":"{reason}","protocol":"mqtt",
                "proto_ver":5,"proto_name":"MQTT","ipaddress":"127.0.0.1","disconnected_at":1625572213873,
                "connected_at":1625572213000,"clientid":"c1"}}"#
            )
        };
        let connected = r#"{"username":"foo","ts":1625572213873,"sockport":1883,"proto_ver":4,"proto_name":"MQTT",
            "keepalive":60,"ipaddress":"127.0.0.1","expiry_interval":0,"connected_at":1625572213000,"connack":0,
            "clientid":"c1","clean_start":true}"#;
        let of_rule = r#"{"clientid":"c1","event":"client.disconnected","reason":"keepalive_timeout",
            "connected_at":1625572213000,"disconnected_at":1625572213873}"#;
        let gone = Said::Gone(Cause::Disconnected);
        for (payload, expected) in [
            (connected.to_owned(), Some((Said::Here, 1_625_572_213_000))),
            (of_system("tcp_closed"), Some((gone, 1_625_572_213_873))),
            (of_system("keepalive_timeout"), Some((gone, 1_625_572_213_873))),
            (of_system("normal"), Some((Said::Left, 1_625_572_213_873))),
            (of_system("takenover"), Some((Said::Nothing, 1_625_572_213_873))),
            (of_system("discarded"), Some((Said::Nothing, 1_625_572_213_873))),
            (of_version_5("normal"), Some((Said::Left, 1_625_572_213_000))),
            (of_version_5("takenover"), Some((Said::Nothing, 1_625_572_213_000))),
            (of_version_5("kicked"), Some((gone, 1_625_572_213_000))),
            (of_version_5("disconnect_with_will_message"), Some((gone, 1_625_572_213_000))),
            (of_rule.to_owned(), Some((gone, 1_625_572_213_000))),
            ("{}".to_owned(), None),
            ("offline".to_owned(), None),
        ] {
            let found = read(payload.as_bytes(), NOW);
            assert_eq!(found, expected.map(|(said, order)| Event { said, order: Some(order) }), "{payload}");
        }
    }

    #[test]
    fn a_moment_ahead_is_no_order() {
        let ahead = |by: i64| NOW.as_millis() + by;
        for (by, is_believed) in [(0, true), (300_000, true), (300_001, false), (1 << 50, false)] {
            for payload in [
                format!("{{\"connected_at\":{}}}", ahead(by)),
                format!("{{\"connected_at\":{},\"disconnected_at\":5,\"reason\":\"normal\"}}", ahead(by)),
                format!("{{\"disconnected_at\":{}}}", ahead(by)),
            ] {
                let order = read(payload.as_bytes(), NOW).unwrap().order;
                assert_eq!(order, is_believed.then_some(ahead(by)), "{payload}");
            }
        }
    }
}
