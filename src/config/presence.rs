//! Checks what kinds announce of the presence of their units: `[[kind]] presence`.

use std::time::Duration;

use super::Span;
use super::file::{self, OnPlanned, PresenceFormat, Trust};
use super::problem::Problems;
use crate::intake::{Format, Planned, PresenceRules, StateWords, Template};
use crate::presence::{Kind, UnitName};

/// The announcements of each kind that has any.
pub(super) fn presence(kinds: &[file::Kind], problems: &mut Problems) -> Vec<(Kind, PresenceRules)> {
    let mut all = Vec::new();
    for (at, kind) in kinds.iter().enumerate() {
        let path = format!("kind[{at}].presence");
        let rules = rules(&kind.presence, &path, problems);
        let (Some(rules), Ok(name)) = (rules, kind.name.parse::<Kind>()) else { continue };
        let unit: UnitName = kind.unit.as_ref().and_then(|unit| unit.parse().ok()).unwrap_or_default();
        for (nr, text) in rules.topics.iter().enumerate() {
            let checked = Template::of_announcements(text, name.clone()).and_then(|it| it.check_name(&unit));
            problems.keep(&format!("{path}.topics[{nr}]"), checked);
        }
        all.push((name, rules));
    }
    all
}

fn rules(one: &file::Presence, path: &str, problems: &mut Problems) -> Option<PresenceRules> {
    let is_last_will = one.format == PresenceFormat::LastWill;
    let defaults = file::Presence::default();
    let has_words = one.online != defaults.online || one.offline != defaults.offline || !one.field.is_empty();
    if !is_last_will && has_words {
        problems.error(path, "online, offline and field are for the format \"last_will\"; leave them out");
    }
    let format = match one.format {
        PresenceFormat::None => return None,
        PresenceFormat::LastWill => Format::LastWill(words(one, path, problems)),
        PresenceFormat::Tasmota => Format::Tasmota,
        PresenceFormat::Homie => Format::Homie,
        PresenceFormat::Zigbee2mqtt => Format::Zigbee2Mqtt,
        PresenceFormat::Esphome => Format::EspHome,
        PresenceFormat::Emqx => Format::Emqx,
        PresenceFormat::Aws => Format::Aws,
    };
    let settle =
        problems.span(&format!("{path}.settle"), one.settle, Span::from_secs(1), Span::from_hours(1));
    let topics = match one.topics.is_empty() {
        true => format.topics().iter().map(|topic| (*topic).to_owned()).collect(),
        false => one.topics.clone(),
    };
    let settle = if one.trust == Trust::Proof { Duration::ZERO } else { settle };
    let planned = match one.on_planned {
        OnPlanned::Pause => Planned::Pause,
        OnPlanned::Offline => Planned::Offline,
        OnPlanned::Ignore => Planned::Ignore,
    };
    Some(PresenceRules { format, topics, settle, planned })
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
