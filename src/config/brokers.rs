//! The brokers of each kind, and the brokers that an instance uses.

use super::broker;
use super::file::{self, File, Instance};
use super::problem::Problems;
use crate::intake;
use crate::presence::{BrokerName, Filters};

/// The names of the brokers, in order; an only broker may have an empty name.
pub(super) fn names(file: &File, problems: &mut Problems) -> Vec<String> {
    let all = file.mqtt.all();
    if let Some(mqtt) = file.mqtt.one() {
        return vec![mqtt.name.clone()];
    }
    let mut names: Vec<String> = Vec::new();
    for (path, mqtt) in &all {
        check(&format!("{path}.name"), &mqtt.name, &names, problems);
        names.push(mqtt.name.clone());
    }
    if all.is_empty() {
        problems.error("mqtt", "has no broker; write [mqtt], or [[mqtt]] for each");
    }
    if broker::is_configured(&file.broker) {
        check("broker.name", &file.broker.name, &names, problems);
        names.push(file.broker.name.clone());
    }
    names
}

fn check(path: &str, name: &str, names: &[String], problems: &mut Problems) {
    // A broker name follows the rules of kind names: it stands in client ids, in metrics and before topics.
    if name.parse::<BrokerName>().is_err() {
        problems.error(path, format!("{name:?} is no name of a broker; write 1 to 32 of a-z, 0-9, _ and -"));
    } else if BrokerName::http().as_str() == name {
        problems
            .error(path, format!("{name:?} stands for units that are heard over HTTP; rename the broker"));
    } else if names.iter().any(|known| known == name) {
        problems.error(path, format!("{name:?} is used twice; rename one"));
    }
}

/// Checks the brokers of each kind.
pub(super) fn check_kinds(kinds: &[file::Kind], names: &[String], problems: &mut Problems) {
    let is_shared = |kind: &file::Kind| kind.topics.iter().any(|topic| topic.contains("{kind}"));
    for (at, kind) in kinds.iter().enumerate() {
        unknown(&format!("kind[{at}].brokers"), &kind.brokers, names, problems);
        if !kind.brokers.is_empty() && kinds.iter().any(is_shared) {
            let text = "cannot be said where a topic has {kind}, which stands for every kind at every broker";
            problems.error(format!("kind[{at}].brokers"), text);
        }
    }
}

fn unknown(path: &str, wanted: &[String], names: &[String], problems: &mut Problems) {
    for (at, name) in wanted.iter().enumerate().filter(|(_, name)| !names.contains(name)) {
        problems.error(format!("{path}[{at}]"), format!("there is no [[mqtt]] with the name {name:?}"));
    }
}

pub(super) fn is_heard_at(kind: &file::Kind, broker: &str) -> bool {
    kind.brokers.is_empty() || kind.brokers.iter().any(|name| name == broker)
}

/// The brokers that an instance uses; empty means all.
pub(super) fn of_instance(
    instance: &Instance,
    intake: &[intake::Config],
    problems: &mut Problems,
) -> Vec<String> {
    let names: Vec<String> = intake.iter().map(|one| one.broker.clone()).collect();
    unknown("instance.brokers", &instance.brokers, &names, problems);
    instance.brokers.clone()
}

/// The brokers of a fleet that has several.
pub fn brokers_of(intake: &[intake::Config]) -> Vec<BrokerName> {
    let several = intake.iter().filter(|one| one.is_one_of_several);
    several.filter_map(|one| one.broker.parse().ok()).collect()
}

/// The filters of each kind, at all brokers.
///
/// # Errors
/// An invalid template.
pub fn filters_of(intake: &[intake::Config], rules: &crate::fleet::SharedRules) -> anyhow::Result<Filters> {
    let mut all = Filters::new();
    for one in intake {
        for (kind, filters) in one.filters(rules)? {
            all.entry(kind).or_default().extend(filters);
        }
    }
    Ok(all)
}
