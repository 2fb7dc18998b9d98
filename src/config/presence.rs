//! Checks the announcements of kinds: `[[kind]] presence`.

use std::collections::HashMap;

use super::Span;
use super::file::{self, File, OnPlanned, PresenceFormat, Trust};
use super::problem::Problems;
use super::{broker, brokers};
use crate::intake::{Format, Planned, PresenceRules, SparkplugHost, StateWords, Template};
use crate::presence::{Kind, UnitName};

/// The announcements of each kind that configures them.
pub(super) fn presence(file: &File, problems: &mut Problems) -> Vec<(Kind, PresenceRules)> {
    let mut all = Vec::new();
    sparkplug(file, problems);
    for (at, kind) in file.kind.iter().enumerate() {
        let path = format!("kind[{at}].presence");
        let names_units =
            matches!(kind.presence.format, PresenceFormat::Mosquitto | PresenceFormat::HomeAssistant);
        if names_units && kind.unit.is_some() {
            let text = "does not name units that announcements name by an id of their own; leave it out";
            problems.error(format!("kind[{at}].unit"), text);
        }
        let rules = rules(&kind.presence, &path, problems);
        let (Some(rules), Ok(name)) = (rules, kind.name.parse::<Kind>()) else { continue };
        let unit: UnitName = kind.unit.as_ref().and_then(|unit| unit.parse().ok()).unwrap_or_default();
        let is_named = |it: Template| match rules.format.has_named_topics() {
            true => it.check_name(&unit),
            false => Ok(()),
        };
        for (nr, text) in rules.topics.iter().enumerate() {
            let checked = Template::of_announcements(text, name.clone()).and_then(is_named);
            problems.keep(&format!("{path}.topics[{nr}]"), checked);
        }
        all.push((name, rules));
    }
    all
}

/// Reports topics of announcements on which another kind is heard, too: a message is of one unit, and only one of both
/// kinds would get it.
pub(super) fn check_topics(
    kinds: &[file::Kind],
    presence: &[(Kind, PresenceRules)],
    brokers: &[String],
    problems: &mut Problems,
) {
    let mut heard: HashMap<(&str, String), &str> = HashMap::new();
    let here = |kind| brokers.iter().map(String::as_str).filter(move |at| brokers::is_heard_at(kind, at));
    for kind in kinds.iter().filter(|kind| !is_sparkplug(kind)) {
        let templates =
            kind.topics.iter().filter_map(|text| Template::parse(text, kind.name.parse().ok()).ok());
        for template in templates {
            heard.extend(here(kind).map(|broker| ((broker, template.filter()), &*kind.name)));
        }
    }
    for (at, kind) in kinds.iter().enumerate() {
        let rules = presence.iter().find(|(name, _)| name.as_str() == kind.name);
        let named = rules.filter(|(_, rules)| rules.format.has_named_topics());
        for (text, name) in
            named.iter().flat_map(|(name, rules)| rules.topics.iter().map(move |it| (it, name)))
        {
            let Ok(template) = Template::of_announcements(text, name.clone()) else { continue };
            let other = here(kind)
                .map(|broker| *heard.entry((broker, template.filter())).or_insert(&kind.name))
                .find(|other| *other != kind.name);
            if let Some(other) = other {
                let text = format!(
                    "{text:?} matches the same topics as one of kind {other:?}, and a message is of one of them; name \
                     topics that only this kind has"
                );
                problems.error(format!("kind[{at}].presence.topics"), text);
            }
        }
    }
}

/// Returns whether a kind has the topics of Sparkplug, and no others.
pub(super) fn is_sparkplug(kind: &file::Kind) -> bool {
    kind.presence.format == PresenceFormat::Sparkplug
}

/// Checks that a kind sets only what its format, which has its own topics and names, leaves open.
fn sparkplug(file: &File, problems: &mut Problems) {
    let defaults = (file::Kind::default(), file::Presence::default());
    let (mut is_taken, has_listener) = (false, broker::is_configured(&file.broker));
    let has_share = file.mqtt.all().iter().any(|(_, mqtt)| !mqtt.share.is_empty());
    for (at, kind) in file.kind.iter().enumerate() {
        let (path, presence) = (format!("kind[{at}]"), &kind.presence);
        let is_host = !presence.host.is_empty() || presence.rebirth != defaults.1.rebirth;
        if !is_sparkplug(kind) {
            if is_host {
                let text = "host and rebirth are for the format \"sparkplug\"; leave them out";
                problems.error(format!("{path}.presence"), text);
            }
            continue;
        }
        for (option, is_set) in [
            ("topics", kind.topics != defaults.0.topics),
            ("unit", kind.unit.is_some()),
            ("presence.topics", !presence.topics.is_empty()),
        ] {
            if is_set {
                let text = "is given by Sparkplug, which names units {group}.{node} and {group}.{node}.{device}; \
                            leave it out";
                problems.error(format!("{path}.{option}"), text);
            }
        }
        if std::mem::replace(&mut is_taken, true) {
            let text = "another kind has the topics of Sparkplug already; leave one out";
            problems.error(format!("{path}.presence.format"), text);
        }
        let host = format!("{path}.presence.host");
        if presence.host.contains(['/', '+', '#']) || presence.host.chars().any(char::is_control) {
            problems.error(&host, format!("{:?} is a level of a topic, without /, + and #", presence.host));
        }
        if !presence.host.is_empty() && (has_listener || has_share) {
            let text = "needs the last will of a plain subscription at a broker elsewhere; leave out mqtt.share and \
                        broker.listen, or host";
            problems.error(&host, text);
        }
        if presence.rebirth && has_share {
            let text = "needs all messages of a node, and mqtt.share divides them; leave out one of the two";
            problems.error(format!("{path}.presence.rebirth"), text);
        }
    }
}

fn rules(one: &file::Presence, path: &str, problems: &mut Problems) -> Option<PresenceRules> {
    let is_last_will = one.format == PresenceFormat::LastWill;
    let defaults = file::Presence::default();
    let has_words = one.online != defaults.online || one.offline != defaults.offline || !one.field.is_empty();
    if !is_last_will && has_words {
        problems.error(path, "online, offline and field are for the format \"last_will\"; leave them out");
    }
    let format = match one.format {
        PresenceFormat::None => {
            if !one.bridge.is_empty() {
                problems.error(format!("{path}.bridge"), "needs a format of announcements; set format");
            }
            return None;
        }
        PresenceFormat::LastWill => Format::LastWill(words(one, path, problems)),
        PresenceFormat::Tasmota => Format::Tasmota,
        PresenceFormat::Homie => Format::Homie,
        PresenceFormat::Zigbee2mqtt => Format::Zigbee2Mqtt,
        PresenceFormat::HomeAssistant => Format::HomeAssistant,
        PresenceFormat::Esphome => Format::EspHome,
        PresenceFormat::Emqx => Format::Emqx,
        PresenceFormat::Mosquitto => Format::Mosquitto,
        PresenceFormat::Aws => Format::Aws,
        PresenceFormat::Sparkplug => {
            Format::Sparkplug(SparkplugHost { id: one.host.clone(), rebirth: one.rebirth })
        }
    };
    let settle =
        problems.span(&format!("{path}.settle"), one.settle, Span::from_secs(1), Span::from_hours(1));
    let topics = match one.topics.is_empty() {
        true => format.topics().iter().map(|topic| (*topic).to_owned()).collect(),
        false => one.topics.clone(),
    };
    let is_proof = one.trust == Trust::Proof;
    let planned = match one.on_planned {
        OnPlanned::Pause => Planned::Pause,
        OnPlanned::Offline => Planned::Offline,
        OnPlanned::Ignore => Planned::Ignore,
    };
    if one.bridge.contains(['+', '#', '{']) || one.bridge.starts_with("$share/") {
        let text = format!("{:?} is no topic of one bridge, without wildcards and captures", one.bridge);
        problems.error(format!("{path}.bridge"), text);
    }
    let bridge = (!one.bridge.is_empty()).then(|| one.bridge.clone());
    Some(PresenceRules { format, topics, is_proof, settle, planned, bridge })
}

fn words(one: &file::Presence, path: &str, problems: &mut Problems) -> StateWords {
    let is_same = |a: &String| one.online.iter().any(|b| a.eq_ignore_ascii_case(b));
    if one.offline.is_empty() || one.offline.iter().chain(&one.online).any(String::is_empty) {
        problems.error(format!("{path}.offline"), "has no word, or an empty one; write \"offline\"");
    }
    if let Some(word) = one.offline.iter().find(|word| is_same(word)) {
        problems.error(format!("{path}.offline"), format!("{word:?} is also in online; leave it out of one"));
    }
    StateWords { online: one.online.clone(), offline: one.offline.clone(), field: one.field.clone() }
}
