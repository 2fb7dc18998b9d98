//! The topics of states, and their payloads.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::PublishedState;
use crate::clock::Timestamp;
use crate::presence::{Cause, State, StateSince, Unit};

/// The beginning of the topics of states: `rollcall/state/<kind>/<unit>`.
const STATES: &str = "rollcall/state/";
/// The beginning and the end of the topics by which Home Assistant discovers units: it has a sensor for each.
pub(in crate::intake) const SENSORS: &str = "homeassistant/binary_sensor/rollcall/";
const CONFIG: &str = "/config";

pub(in crate::intake) const STATES_FILTER: &str = "rollcall/state/#";
pub(in crate::intake) const DISCOVERY_FILTER: &str = "homeassistant/binary_sensor/rollcall/+/config";

/// The topics of a unit.
pub struct StateTopics {
    pub state: String,
    /// The name of the unit in the topic of its discovery.
    pub object: String,
}

#[derive(Serialize, Deserialize)]
struct StatePayload {
    state: State,
    since: Timestamp,
    last_seen: Option<Timestamp>,
    cause: Option<Cause>,
}

impl StateTopics {
    pub fn of(unit: &Unit) -> StateTopics {
        let name = format!("{}/{}", unit.kind, unit.id);
        StateTopics { state: format!("{STATES}{name}"), object: object(unit.kind.as_str(), unit.id.as_str()) }
    }

    /// The topic by which Home Assistant discovers the unit.
    pub fn discovery(&self) -> String {
        format!("{SENSORS}{}{CONFIG}", self.object)
    }

    pub fn discovery_payload(&self, unit: &Unit) -> Vec<u8> {
        let id = format!("rollcall_{}", self.object);
        let template = "{{ 'ON' if value_json.state in ['online', 'late'] else 'OFF' if value_json.state == \
                        'offline' else 'None' }}";
        let payload = json!({
            "name": "Connectivity",
            "unique_id": id,
            "device_class": "connectivity",
            "entity_category": "diagnostic",
            "state_topic": self.state,
            "value_template": template,
            "json_attributes_topic": self.state,
            "device": { "identifiers": [id], "name": format!("{} {}", unit.kind, unit.id) },
            "origin": { "name": "Rollcall", "sw_version": env!("CARGO_PKG_VERSION") },
        });
        payload.to_string().into_bytes()
    }
}

/// The name of the unit in a place that allows only letters, digits, `_` and `-`; it is unique.
pub fn object(kind: &str, id: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    // A kind may contain a `_`, too.
    if id.chars().all(is_plain) && !kind.contains('_') {
        return format!("{kind}_{id}");
    }
    let plain: String = id.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    let hash = format!("{kind}:{id}").bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{kind}_{plain}_{hash:016x}")
}

/// The unit in a topic of states.
pub fn unit_of(topic: &str) -> Option<Unit> {
    let (kind, id) = topic.strip_prefix(STATES)?.split_once('/')?;
    Some(Unit::new(kind.parse().ok()?, id.parse().ok()?))
}

/// The name of the unit in a topic of its discovery.
pub fn object_of(topic: &str) -> Option<&str> {
    topic.strip_prefix(SENSORS)?.strip_suffix(CONFIG)
}

/// The unit for which Rollcall publishes this discovery message, under this name; `None`: Rollcall does not publish it,
/// or a version with other messages does.
pub fn discovered_unit(object: &str, payload: &[u8]) -> Option<Unit> {
    #[derive(Deserialize)]
    struct Sensor {
        state_topic: String,
    }
    let unit = unit_of(&serde_json::from_slice::<Sensor>(payload).ok()?.state_topic)?;
    let topics = StateTopics::of(&unit);
    (topics.object == object && topics.discovery_payload(&unit) == payload).then_some(unit)
}

pub fn payload(state: &StateSince) -> Vec<u8> {
    let StateSince { state, since, last_seen, cause } = *state;
    let payload = StatePayload { state, since, last_seen, cause };
    serde_json::to_vec(&payload).expect("names and times are always JSON")
}

pub fn read(payload: &[u8]) -> PublishedState {
    let Ok(read) = serde_json::from_slice::<StatePayload>(payload) else {
        return PublishedState::read(None, None);
    };
    // A unit that is late before its timeout is late since its announcement.
    let announced = read.cause.filter(|_| read.state == State::Late).map(|_| read.since);
    PublishedState::read(Some(read.state), read.last_seen.max(announced))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_unit_has_topics_of_its_own_from_which_it_is_read_back() {
        let mut objects = Vec::new();
        for name in ["pump:7", "pump:Halle 3", "pump:Halle_3", "pump:Halle.3", "pump_a:7", "pump:a_7"] {
            let unit: Unit = name.parse().unwrap();
            let topics = StateTopics::of(&unit);
            assert_eq!(unit_of(&topics.state), Some(unit.clone()));
            assert_eq!(object_of(&topics.discovery()), Some(topics.object.as_str()));
            let sensor = topics.discovery_payload(&unit);
            assert_eq!(discovered_unit(&topics.object, &sensor), Some(unit));
            for other in objects.iter().map(String::as_str).chain(["", "pump_8"]) {
                assert_eq!(discovered_unit(other, &sensor), None, "{other}");
            }
            let differs = String::from_utf8(sensor).unwrap().replace("sw_version\":\"", "sw_version\":\"0.");
            for other in [differs.as_str(), "", "{}", r#"{"state_topic":"rollcall/state/pump/7"}"#] {
                assert_eq!(discovered_unit(&topics.object, other.as_bytes()), None, "{other}");
            }
            objects.push(topics.object);
        }
        assert_eq!(objects[0], "pump_7");
        objects.sort();
        objects.dedup();
        assert_eq!(objects.len(), 6, "{objects:?}");
        for other in ["rollcall/state/pump", "rollcall/state/PUMP/7", "rollcall/alerts/pump/7"] {
            assert_eq!(unit_of(other), None);
        }
    }

    #[test]
    fn a_payload_is_read_back() {
        let at = Timestamp::from_millis(1_732_147_200_000);
        let state =
            StateSince { state: State::Offline, since: at, last_seen: Some(at), cause: Some(Cause::Silence) };
        let json = String::from_utf8(payload(&state)).unwrap();
        assert_eq!(
            json,
            r#"{"state":"offline","since":"2024-11-21T00:00:00.000Z","last_seen":"2024-11-21T00:00:00.000Z","cause":"silence"}"#
        );
        assert_eq!(read(json.as_bytes()), PublishedState::read(Some(State::Offline), Some(at)));
        let late = StateSince { state: State::Late, since: at + Duration::from_secs(9), ..state };
        for (cause, seconds) in [(Some(Cause::LastWill), 9), (None, 0)] {
            let moment = at + Duration::from_secs(seconds);
            let late = payload(&StateSince { cause, ..late });
            assert_eq!(read(&late), PublishedState::read(Some(State::Late), Some(moment)));
        }
        assert_eq!(read(b"x"), PublishedState::read(None, None));
    }
}
