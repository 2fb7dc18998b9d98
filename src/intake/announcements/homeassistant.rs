//! Home Assistant: discovery messages on `homeassistant/<component>/[<node>/]<object>/config` contain the name of a
//! device, its availability topics and its report topics.
//!
//! A device is one unit, named by its first identifier, however many entities it has. It is present while one of them
//! is available by its mode, and each report of an entity is a heartbeat. A retained message may be of any age: it sets
//! the availability in memory, and is no heartbeat.
//!
//! # What several devices share
//! Devices of one bridge often share its availability topic. The end of the bridge says nothing about a single device,
//! so a shared topic counts for none of them.
//!
//! # What a client can fill
//! Any client that may publish on a discovery topic can name any topics. So the memory for all of them is bounded, and
//! so are the devices of one topic. Messages of a device whose id no unit can have are ignored: otherwise its topics
//! would block the reports of other devices.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use serde_json::{Map, Value};

use super::Said;
use super::last_will::{field_of, text};
use crate::presence::{Cause, Labels, UnitId, is_label_value};

pub(super) const DISCOVERY: [&str; 2] = ["homeassistant/+/+/config", "homeassistant/+/+/+/config"];

/// The largest discovery message that is read, where `mqtt.max_payload` allows less: it describes all entities of a device.
pub(in crate::intake) const MAX_DISCOVERY: usize = 1 << 20;
/// The most devices in memory; others are ignored.
const MAX_DEVICES: usize = 100_000;
/// The most entities of a device, and the most topics of an entity.
const MAX_ENTITIES: usize = 200;
const MAX_TOPICS: usize = 16;
/// The longest topic and the longest name or word, in bytes.
const MAX_TOPIC: usize = 512;
const MAX_WORD: usize = 128;
/// The most devices of one topic; further devices are left out.
const MAX_SHARING: usize = 1000;
/// The approximate memory for all entities and their topics; devices beyond it are ignored.
const MAX_BYTES: usize = 128 << 20;

/// The devices that were discovered.
#[derive(Default)]
pub(in crate::intake) struct Discovery {
    devices: HashMap<Box<str>, Device, FixedState>,
    /// The device of each discovery message.
    configs: HashMap<Box<str>, Box<str>, FixedState>,
    /// The devices that name a topic, each once.
    topics: HashMap<Box<str>, Vec<Box<str>>, FixedState>,
    /// The approximate memory of all entities.
    bytes: usize,
}

#[derive(Default)]
struct Device {
    labels: Labels,
    /// By the topic of their discovery message, and their name in it.
    entities: BTreeMap<(Box<str>, Box<str>), Entity>,
    /// The last state of each availability topic.
    known: HashMap<Box<str>, bool, FixedState>,
    latest: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Entity {
    availability: Vec<Availability>,
    mode: AvailabilityMode,
    reports: Vec<Box<str>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Availability {
    topic: Box<str>,
    online: Box<str>,
    offline: Box<str>,
    /// The field of a JSON object that holds the word; empty means the whole payload.
    field: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum AvailabilityMode {
    All,
    Any,
    Latest,
}

pub(in crate::intake) fn is_discovery(topic: &str) -> bool {
    topic.starts_with("homeassistant/") && topic.ends_with("/config")
}

impl Discovery {
    /// Takes a discovery message; an empty one removes its entities. Returns `false` for a message that is none.
    pub fn discover(&mut self, topic: &str, payload: &[u8]) -> bool {
        if payload.trim_ascii().is_empty() {
            self.forget(topic);
            return true;
        }
        let Ok(Value::Object(message)) = serde_json::from_slice(payload) else { return false };
        let Some((id, labels)) = device_of(&message) else { return false };
        self.forget(topic);
        let is_one_too_many = self.devices.len() >= MAX_DEVICES && !self.devices.contains_key(&*id);
        if is_one_too_many || topic.len() > MAX_TOPIC {
            return false;
        }
        let mut is_discovered = false;
        let device = self.devices.entry(id.clone()).or_default();
        device.labels.extend(labels);
        for (name, entity) in entities_of(&message) {
            let bytes = entity.bytes();
            if device.entities.len() >= MAX_ENTITIES || self.bytes + bytes > MAX_BYTES {
                break;
            }
            for named in entity.topics() {
                let of_topic = self.topics.entry(named.into()).or_default();
                if of_topic.len() < MAX_SHARING && !of_topic.contains(&id) {
                    of_topic.push(id.clone());
                }
            }
            is_discovered = true;
            self.bytes += bytes;
            device.entities.insert((topic.into(), name), entity);
        }
        device.known.retain(|topic, _| device.entities.values().any(|entity| entity.is_available_on(topic)));
        // Without an entity, the message would stay in memory for ever.
        if is_discovered {
            self.configs.insert(topic.into(), id);
        } else if device.entities.is_empty() {
            self.devices.remove(&id);
        }
        is_discovered
    }

    /// The meaning of a message for each of its devices, by identifier; `None` in a pair: a report of the device. A
    /// report that is not read proves life, too, and an availability that is not read says nothing.
    pub fn read(
        &mut self,
        topic: &str,
        payload: Option<&[u8]>,
        retained: bool,
    ) -> Vec<(Box<str>, Option<Said>)> {
        let ids = self.topics.get(topic).cloned().unwrap_or_default();
        let is_shared = ids.len() > 1;
        let mut all = Vec::new();
        for id in ids {
            let Some(device) = self.devices.get_mut(&id) else { continue };
            if let Some(said) = device.read(topic, payload, is_shared).filter(|_| !retained) {
                all.push((id, said));
            }
        }
        all
    }

    /// The labels of a device, by its identifier.
    pub fn labels(&self, id: &str) -> Labels {
        self.devices.get(id).map(|device| device.labels.clone()).unwrap_or_default()
    }

    fn forget(&mut self, config: &str) {
        let Some(id) = self.configs.remove(config) else { return };
        let Some(device) = self.devices.get_mut(&id) else { return };
        let former: Vec<Entity> =
            device.entities.extract_if(.., |(of, _), _| **of == *config).map(|(_, entity)| entity).collect();
        self.bytes -= former.iter().map(Entity::bytes).sum::<usize>();
        let is_named =
            |topic: &str| device.entities.values().any(|entity| entity.topics().any(|own| own == topic));
        for topic in former.iter().flat_map(Entity::topics).filter(|topic| !is_named(topic)) {
            if let Some(ids) = self.topics.get_mut(topic) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    self.topics.remove(topic);
                }
            }
        }
        if device.entities.is_empty() {
            self.devices.remove(&id);
        }
    }
}

impl Device {
    fn read(&mut self, topic: &str, payload: Option<&[u8]>, is_shared: bool) -> Option<Option<Said>> {
        let named = self.entities.values().flat_map(|entity| &entity.availability);
        let mut words = named.filter(|one| *one.topic == *topic);
        let Some(availability) = words.next() else {
            let reports =
                self.entities.values().any(|entity| entity.reports.iter().any(|own| **own == *topic));
            return reports.then_some(None);
        };
        if is_shared {
            return None;
        }
        let is_available = availability.read(payload?)?;
        self.known.insert(topic.into(), is_available);
        self.latest = is_available;
        Some(Some(match (is_available, self.is_available()) {
            (true, true) => Said::Here,
            (false, false) => Said::Gone(Cause::Disconnected),
            _ => Said::Nothing,
        }))
    }

    /// Returns whether an entity is available by its mode. A topic without a message so far does not count.
    fn is_available(&self) -> bool {
        self.entities.values().any(|entity| {
            let mut known =
                entity.availability.iter().filter_map(|one| self.known.get(&one.topic)).peekable();
            known.peek().is_some()
                && match entity.mode {
                    AvailabilityMode::All => known.all(|is_available| *is_available),
                    AvailabilityMode::Any => known.any(|is_available| *is_available),
                    AvailabilityMode::Latest => self.latest,
                }
        })
    }
}

impl Entity {
    /// The approximate memory of the entity and its topics: a topic stands in three maps.
    fn bytes(&self) -> usize {
        let words: usize =
            self.availability.iter().map(|one| one.online.len() + one.offline.len() + one.field.len()).sum();
        let topics: usize = self.topics().map(|topic| 3 * topic.len() + 200).sum();
        words + topics + 2 * MAX_TOPIC
    }

    fn is_available_on(&self, topic: &str) -> bool {
        self.availability.iter().any(|one| *one.topic == *topic)
    }

    fn topics(&self) -> impl Iterator<Item = &str> {
        let availability = self.availability.iter().map(|one| &*one.topic);
        availability.chain(self.reports.iter().map(|topic| &**topic))
    }
}

impl Availability {
    fn read(&self, payload: &[u8]) -> Option<bool> {
        let word = match &*self.field {
            "" => text(payload)?.to_owned(),
            field => field_of(payload, field)?,
        };
        // Templates write a boolean with a capital letter.
        let is_boolean = !self.field.is_empty() && matches!(&*word, "true" | "false");
        let is = |named: &str| *word == *named || is_boolean && word.eq_ignore_ascii_case(named);
        match () {
            () if is(&self.online) => Some(true),
            () if is(&self.offline) => Some(false),
            () => None,
        }
    }
}

/// A member by its name or abbreviation.
fn member<'a>(object: &'a Map<String, Value>, names: [&str; 2]) -> Option<&'a Value> {
    names.iter().find_map(|name| object.get(*name)).filter(|value| !value.is_null())
}

fn words<'a>(object: &'a Map<String, Value>, names: [&str; 2]) -> Option<&'a str> {
    member(object, names)?.as_str()
}

/// A word, which may be written as a number or a boolean.
fn word_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(true) => Some("True".to_owned()),
        Value::Bool(false) => Some("False".to_owned()),
        _ => None,
    }
}

/// Returns whether a member names a topic on which its device reports. Other programs publish commands, and the newest
/// version that a device could have.
fn is_of_reports(name: &str) -> bool {
    let is_command =
        ["command_topic", "cmd_t"].iter().any(|end| name.ends_with(end)) || name.starts_with("set_");
    let is_of_others = matches!(name, "availability_topic" | "avty_t" | "latest_version_topic" | "l_ver_t");
    let is_topic = name == "t" || name.ends_with("topic") || name.ends_with("_t");
    is_topic && !is_command && !is_of_others
}

/// The identifier and the labels of the device.
fn device_of(message: &Map<String, Value>) -> Option<(Box<str>, Labels)> {
    let device = member(message, ["device", "dev"])?.as_object()?;
    let first = |value: &Value| match value {
        Value::Array(all) => word_of(all.first()?),
        one => word_of(one),
    };
    // A connection is a pair of its type and its address.
    let connection =
        || member(device, ["connections", "cns"])?.as_array()?.first()?.get(1)?.as_str().map(str::to_owned);
    let id = member(device, ["identifiers", "ids"]).and_then(first).or_else(connection)?;
    id.parse::<UnitId>().ok()?;
    let labels = [
        ("name", ["name", "name"]),
        ("manufacturer", ["manufacturer", "mf"]),
        ("model", ["model", "mdl"]),
        ("sw_version", ["sw_version", "sw"]),
        ("area", ["suggested_area", "sa"]),
    ];
    let label = |(label, names): (&str, [&str; 2])| {
        let value = words(device, names).filter(|value| is_label_value(value))?;
        Some((label.to_owned(), value.to_owned()))
    };
    Some((id.into(), labels.into_iter().filter_map(label).collect()))
}

/// The entities of a message: the message itself, or the components of a device.
fn entities_of(message: &Map<String, Value>) -> Vec<(Box<str>, Entity)> {
    match member(message, ["components", "cmps"]).and_then(Value::as_object) {
        None => vec![("".into(), entity_of(message, message))],
        Some(all) => {
            let of_one = |(name, one): (&String, &Value)| {
                Some((name.as_str().into(), entity_of(one.as_object()?, message)))
            };
            let all = all.iter().filter(|(name, _)| name.len() <= MAX_WORD);
            all.filter_map(of_one).collect()
        }
    }
}

/// An entity; options that it leaves out come from the message.
fn entity_of(entity: &Map<String, Value>, message: &Map<String, Value>) -> Entity {
    let value = |names| member(entity, names).or_else(|| member(message, names));
    let word = |names| value(names).and_then(Value::as_str);
    let base = word(["~", "~"]).unwrap_or_default();
    let topic = |text: &str| {
        let topic = match (text.strip_prefix('~'), text.strip_suffix('~')) {
            (Some(rest), _) => format!("{base}{rest}"),
            (_, Some(rest)) => format!("{rest}{base}"),
            _ => text.to_owned(),
        };
        (!topic.is_empty() && topic.len() <= MAX_TOPIC).then(|| topic.into_boxed_str())
    };
    let of_topic = |name: &str, words: [Option<&Value>; 2], template: Option<&str>| {
        let [online, offline]: [Box<str>; 2] = [(words[0], "online"), (words[1], "offline")]
            .map(|(word, default)| word.and_then(word_of).unwrap_or_else(|| default.to_owned()).into());
        let field: Box<str> = template.map_or(Some(""), field_in)?.into();
        let is_short = [&online, &offline, &field].iter().all(|word| word.len() <= MAX_WORD);
        is_short.then_some(())?;
        Some(Availability { topic: topic(name)?, online, offline, field })
    };
    let payloads = [["payload_available", "pl_avail"], ["payload_not_available", "pl_not_avail"]];
    let of_one = |one: &Value| {
        let one = one.as_object()?;
        let template = words(one, ["value_template", "val_tpl"]);
        of_topic(words(one, ["topic", "t"])?, payloads.map(|names| member(one, names)), template)
    };
    let listed = value(["availability", "avty"]).map_or(&[][..], |listed| match listed {
        Value::Array(all) => all,
        one => std::slice::from_ref(one),
    });
    let single = word(["availability_topic", "avty_t"])
        .and_then(|name| of_topic(name, payloads.map(value), word(["availability_template", "avty_tpl"])));
    let mode = match word(["availability_mode", "avty_mode"]) {
        Some("all") => AvailabilityMode::All,
        Some("any") => AvailabilityMode::Any,
        _ => AvailabilityMode::Latest,
    };
    let availability = listed.iter().filter_map(of_one).chain(single).take(MAX_TOPICS).collect();
    // Of the report topics, a message may set only the state topic for all entities.
    let own = entity.iter().filter(|(name, _)| is_of_reports(name)).filter_map(|(_, value)| value.as_str());
    let shared = word(["state_topic", "stat_t"]);
    let reports: BTreeSet<Box<str>> = own.chain(shared).filter_map(topic).take(MAX_TOPICS).collect();
    Entity { availability, mode, reports: reports.into_iter().collect() }
}

/// The field in a template that reads one field of a JSON object; other templates are ignored.
fn field_in(template: &str) -> Option<&str> {
    let inner = template.trim().strip_prefix("{{")?.strip_suffix("}}")?.trim();
    let field = inner.strip_prefix("value_json.").or_else(|| {
        let quoted = inner.strip_prefix("value_json[")?.strip_suffix(']')?;
        quoted.strip_prefix(['\'', '"'])?.strip_suffix(['\'', '"'])
    })?;
    let is_plain = !field.is_empty() && field.chars().all(|c| c.is_alphanumeric() || c == '_');
    is_plain.then_some(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: Said = Said::Gone(Cause::Disconnected);
    /// Stands for a report in the cases.
    const REPORT: Said = Said::Sleeps;

    fn said(discovery: &mut Discovery, topic: &str, payload: &str) -> Option<Said> {
        let said = discovery.read(topic, Some(payload.as_bytes()), false);
        said.first().map(|(_, said)| said.unwrap_or(REPORT))
    }

    #[test]
    fn a_device_that_keeps_changing_its_topics_does_not_fill_the_memory() {
        let mut discovery = Discovery::default();
        for number in 0..100 {
            for (entity, topic) in [("a", "porch/status".to_owned()), ("b", format!("porch/{number}/status"))]
            {
                let config = format!(r#"{{"avty_t":"{topic}","dev":{{"ids":"porch"}}}}"#);
                assert!(
                    discovery.discover(&format!("homeassistant/sensor/{entity}/config"), config.as_bytes())
                );
                assert_eq!(said(&mut discovery, &topic, "online"), Some(Said::Here));
            }
        }
        let device = &discovery.devices["porch"];
        assert_eq!((device.entities.len(), device.known.len()), (2, 2));
    }

    #[test]
    fn a_discovery_message_says_what_a_device_is_called_and_where_it_is_heard() {
        // As ESPHome, Tasmota and Zigbee2MQTT write them.
        let esphome = r#"{"dev_cla":"temperature","name":"Temperature","stat_t":"porch/sensor/temperature/state",
            "avty_t":"porch/status","uniq_id":"ESPsensor1","dev":{"ids":"a4cf12f03246","name":"porch","sw":"esphome v2024.4.1",
            "mdl":"esp32","mf":"espressif","sa":"Garden"}}"#;
        let tasmota = r#"{"name":"Plug","stat_t":"tele/plug/STATE","avty_t":"tele/plug/LWT","pl_avail":"Online",
            "pl_not_avail":"Offline","uniq_id":"D25A_RL_1","dev":{"ids":["D25AB1"],"cns":[["mac","D25AB1"]]}}"#;
        let mut discovery = Discovery::default();
        assert!(discovery.discover("homeassistant/sensor/porch/temperature/config", esphome.as_bytes()));
        assert!(discovery.discover("homeassistant/switch/D25AB1_RL_1/config", tasmota.as_bytes()));
        let labels: Vec<String> = discovery
            .labels("a4cf12f03246")
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            labels,
            [
                "area=Garden",
                "manufacturer=espressif",
                "model=esp32",
                "name=porch",
                "sw_version=esphome v2024.4.1"
            ]
        );
        for (topic, payload, expected) in [
            ("porch/status", "online", Some(Said::Here)),
            ("porch/status", "offline", Some(GONE)),
            ("porch/status", "?", None),
            ("porch/sensor/temperature/state", "21.5", Some(REPORT)),
            ("porch/other", "21.5", None),
            ("tele/plug/LWT", "Online", Some(Said::Here)),
            ("tele/plug/LWT", "Offline", Some(GONE)),
            ("tele/plug/LWT", "offline", None),
        ] {
            assert_eq!(said(&mut discovery, topic, payload), expected, "{topic} {payload}");
        }
        assert_eq!(discovery.read("porch/status", Some(b"offline"), true), []);
        assert_eq!(discovery.read("porch/status", None, false), []);
        let report = discovery.read("porch/sensor/temperature/state", None, false);
        assert_eq!(report, [("a4cf12f03246".into(), None)]);
        assert!(discovery.discover("homeassistant/sensor/porch/temperature/config", b""));
        assert_eq!(said(&mut discovery, "porch/status", "offline"), None);
        assert!(discovery.topics.len() == 2 && discovery.devices.len() == 1);
        for bad in ["{}", "[]", "offline", "{\"dev\":{}}", "{\"dev\":{\"ids\":[]}}"] {
            assert!(!discovery.discover("homeassistant/sensor/x/config", bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn a_device_is_there_while_one_of_its_entities_is_available_by_its_mode() {
        let message = |mode: &str| {
            format!(
                r#"{{"~":"dev/1","avty":[{{"t":"~/a"}},{{"t":"~/b","val_tpl":"{{{{ value_json.state }}}}"}}],
                "avty_mode":"{mode}","dev":{{"ids":["one"]}},"cmps":{{"x":{{"p":"sensor","stat_t":"~/x"}},"y":{{}}}}}}"#
            )
        };
        let (a, b) = (["dev/1/a"; 2], ["dev/1/b"; 2]);
        let on = |topics: [&'static str; 2]| (topics[0], "online", "{\"state\":\"online\"}");
        let off = |topics: [&'static str; 2]| (topics[0], "offline", "{\"state\":\"offline\"}");
        let (here, nothing) = (Said::Here, Said::Nothing);
        for (mode, events, expected) in [
            ("all", [on(a), on(b), off(b), off(a)], [here, here, GONE, GONE]),
            ("any", [on(a), on(b), off(b), off(a)], [here, here, nothing, GONE]),
            ("latest", [on(a), off(b), on(a), off(a)], [here, GONE, here, GONE]),
            ("all", [on(a), off(b), on(a), on(b)], [here, GONE, nothing, here]),
        ] {
            let mut discovery = Discovery::default();
            assert!(discovery.discover("homeassistant/device/one/config", message(mode).as_bytes()));
            let of_event = |(topic, plain, json): &(&str, &str, &str)| {
                let payload = if topic.ends_with('a') { plain } else { json };
                said(&mut discovery, topic, payload).unwrap()
            };
            assert_eq!(events.iter().map(of_event).collect::<Vec<_>>(), expected, "{mode}");
            assert_eq!(said(&mut discovery, "dev/1/x", "5"), Some(REPORT));
        }
    }

    #[test]
    fn a_device_reports_on_each_topic_that_is_none_of_commands() {
        // A light, a fan, and the trigger of a button, with and without abbreviations.
        let message = r#"{"~":"dev/1","dev":{"ids":[17,"x"]},"stat_t":"~/shared","avty":{"t":"~/up","pl_avail":1,"pl_not_avail":0},
            "cmps":{"light":{"p":"light","stat_t":"~/light","bri_stat_t":"~/light/level","cmd_t":"~/light/set","bri_cmd_t":"~/x"},
            "fan":{"p":"fan","percentage_state_topic":"dev/1/fan","command_topic":"dev/1/fan/set","json_attr_t":"info/~"},
            "cover":{"p":"cover","position_topic":"~/cover","set_position_topic":"~/cover/set"},
            "ota":{"p":"update","l_ver_t":"~/latest"},"button":{"p":"device_automation","t":"~/button"}}}"#;
        let mut discovery = Discovery::default();
        assert!(discovery.discover("homeassistant/device/one/config", message.as_bytes()));
        for (topic, is_report) in [
            ("dev/1/light", true),
            ("dev/1/light/level", true),
            ("dev/1/light/set", false),
            ("dev/1/x", false),
            ("dev/1/fan", true),
            ("dev/1/fan/set", false),
            ("info/dev/1", true),
            ("dev/1/cover", true),
            ("dev/1/cover/set", false),
            ("dev/1/latest", false),
            ("dev/1/button", true),
            ("dev/1/shared", true),
        ] {
            assert_eq!(said(&mut discovery, topic, "?"), is_report.then_some(REPORT), "{topic}");
        }
        assert_eq!(discovery.read("dev/1/up", Some(b"0"), false), [("17".into(), Some(GONE))]);
        assert_eq!(said(&mut discovery, "dev/1/up", "1"), Some(Said::Here));
    }

    #[test]
    fn a_boolean_is_the_word_that_a_template_makes_of_it() {
        let message = r#"{"availability":[{"topic":"a","value_template":"{{ value_json.up }}","payload_available":"True",
            "payload_not_available":"False"}],"device":{"identifiers":"one"}}"#;
        let mut discovery = Discovery::default();
        assert!(discovery.discover("homeassistant/sensor/one/config", message.as_bytes()));
        assert_eq!(said(&mut discovery, "a", "{\"up\":true}"), Some(Said::Here));
        assert_eq!(said(&mut discovery, "a", "{\"up\":false}"), Some(GONE));
        assert_eq!(said(&mut discovery, "a", "{\"up\":null}"), None);
    }

    #[test]
    fn the_bridge_of_several_devices_says_nothing_of_one() {
        let mut discovery = Discovery::default();
        for id in ["one", "two"] {
            let message = format!(
                r#"{{"availability":[{{"topic":"zigbee2mqtt/bridge/state","value_template":"{{{{ value_json.state }}}}"}},
                {{"topic":"zigbee2mqtt/{id}/availability","value_template":"{{{{ value_json['state'] }}}}"}}],
                "availability_mode":"all","device":{{"identifiers":["{id}"]}},"state_topic":"zigbee2mqtt/{id}"}}"#
            );
            assert!(
                discovery.discover(&format!("homeassistant/light/{id}/light/config"), message.as_bytes())
            );
        }
        let (online, offline) = ("{\"state\":\"online\"}", "{\"state\":\"offline\"}");
        assert_eq!(said(&mut discovery, "zigbee2mqtt/one/availability", online), Some(Said::Here));
        assert_eq!(said(&mut discovery, "zigbee2mqtt/bridge/state", offline), None);
        assert_eq!(said(&mut discovery, "zigbee2mqtt/one/availability", offline), Some(GONE));
        assert_eq!(said(&mut discovery, "zigbee2mqtt/two", "{}"), Some(REPORT));
    }

    #[test]
    fn what_a_client_discovers_has_bounds() {
        let mut discovery = Discovery::default();
        let message = |id: &str, topic: &str| {
            format!(r#"{{"state_topic":"{topic}","device":{{"identifiers":["{id}"]}}}}"#)
        };
        let config = |name: &str| format!("homeassistant/sensor/{name}/config");
        assert!(discovery.discover(&config("lamp"), message("lamp", "lamp/state").as_bytes()));
        // An id that no unit can have, with the topic of another device.
        for id in ["a/b", "+", "", ".", &"x".repeat(129)] {
            assert!(!discovery.discover(&config("bad"), message(id, "lamp/state").as_bytes()), "{id}");
        }
        assert_eq!(discovery.read("lamp/state", Some(b"1"), false), [("lamp".into(), None)]);
        // An endless number of messages from one device.
        for n in 0..2 * MAX_ENTITIES {
            discovery.discover(&config(&n.to_string()), message("lamp", &format!("lamp/{n}")).as_bytes());
        }
        assert_eq!((discovery.configs.len(), discovery.topics.len()), (MAX_ENTITIES, MAX_ENTITIES));
        assert!(!discovery.discover(&config(&"x".repeat(MAX_TOPIC)), message("long", "x").as_bytes()));
        assert!(!discovery.discover(&config("none"), br#"{"cmps":{},"device":{"identifiers":["none"]}}"#));
        assert!(!discovery.devices.contains_key("none"));
        // One topic for the most devices, and more.
        for n in 0..2 * MAX_SHARING {
            let id = format!("unit-{n}");
            discovery.discover(&config(&id), message(&id, "all").as_bytes());
        }
        assert_eq!(discovery.read("all", Some(b"1"), false).len(), MAX_SHARING);
        // More entities than the memory for all.
        let before = discovery.devices.len();
        discovery.bytes = MAX_BYTES;
        assert!(!discovery.discover(&config("more"), message("more", "more").as_bytes()));
        assert_eq!(discovery.devices.len(), before);
        discovery.bytes =
            discovery.devices.values().flat_map(|one| one.entities.values()).map(Entity::bytes).sum();
        let configs: Vec<Box<str>> = discovery.configs.keys().cloned().collect();
        configs.iter().for_each(|config| assert!(discovery.discover(config, b"")));
        assert_eq!((discovery.bytes, discovery.topics.len(), discovery.devices.len()), (0, 0, 0));
    }

    #[test]
    fn only_a_template_that_takes_one_field_is_read() {
        for (template, field) in [
            ("{{ value_json.state }}", Some("state")),
            ("{{value_json['state']}}", Some("state")),
            ("{{ value_json[\"state\"] }}", Some("state")),
            ("{{ 'online' if value_json.rssi > 0 else 'offline' }}", None),
            ("{{ value }}", None),
            ("state", None),
        ] {
            assert_eq!(field_in(template), field, "{template}");
        }
    }
}
