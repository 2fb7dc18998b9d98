//! Checks the rules of inhibition.

use std::time::Duration;

use super::file::{File, Inhibit};
use super::problem::Problems;
use super::routes::matchers;
use crate::presence::is_label_name;
use crate::routing::{InhibitRule, Inhibition, Matcher};

/// The most rules: each costs every silence a comparison.
const MAX_RULES: usize = 1000;

pub(super) fn inhibition(file: &File, problems: &mut Problems) -> Inhibition {
    if file.inhibit.len() > MAX_RULES {
        problems.error("inhibit", format!("has {} rules; write at most {MAX_RULES}", file.inhibit.len()));
    }
    let rules = file.inhibit.iter().take(MAX_RULES).enumerate();
    let rules = rules.map(|(at, one)| rule(&format!("inhibit[{at}]"), one, problems)).collect();
    // Errors of these options are reported with the kinds.
    let longest = file.kind.iter().map(|kind| kind.timeout.0.saturating_add(kind.grace.0)).max();
    Inhibition { rules, longest: longest.unwrap_or(Duration::ZERO) }
}

fn rule(path: &str, one: &Inhibit, problems: &mut Problems) -> InhibitRule {
    let Inhibit { source_matchers, target_matchers, equal } = one;
    let mut side = |name: &str, texts: &[String]| {
        let path = format!("{path}.{name}");
        let matchers = matchers(&path, texts, problems);
        if texts.is_empty() {
            problems.error(path, "is empty; write at least one matcher, such as \"kind=gateway\"");
        }
        matchers
    };
    let source = side("source_matchers", source_matchers);
    let target = side("target_matchers", target_matchers);
    for (at, name) in equal.iter().enumerate() {
        let path = format!("{path}.equal[{at}]");
        if equal[..at].contains(name) {
            problems.error(path, format!("{name:?} is there twice; remove one"));
        } else if !matches!(name.as_str(), "kind" | "unit") && !is_label_name(name) {
            problems.error(path, format!("{name:?} is neither kind, unit nor the name of a label"));
        }
    }
    if !source.is_empty() && is_same(&source, &target) {
        let text = "inhibits nothing: its targets are its sources, and a silence that is both is not inhibited by \
                    another one that is both; write target_matchers that do not match sources";
        problems.warn(path, text);
    } else if ["kind", "unit"].iter().all(|name| equal.iter().any(|one| one == name)) {
        problems.warn(
            path,
            "inhibits nothing: no two units have the same kind and the same unit; take one out of equal",
        );
    } else if let Some(text) = contradiction(&source, &target, equal) {
        problems.warn(path, text);
    }
    InhibitRule { source, target, equal: equal.clone() }
}

fn is_same(source: &[Matcher], target: &[Matcher]) -> bool {
    let holds = |one: &[Matcher], other: &[Matcher]| one.iter().all(|matcher| other.contains(matcher));
    holds(source, target) && holds(target, source)
}

/// The contradiction in a rule that never inhibits: the matchers of source and target require different values of a
/// label that must be equal.
fn contradiction(source: &[Matcher], target: &[Matcher], equal: &[String]) -> Option<String> {
    use crate::routing::Operator::Equal;
    let wanted = |side: &[Matcher], name: &String| {
        let found = side.iter().find(|one| one.name() == name && one.operator() == Equal);
        found.map(|matcher| matcher.value().to_owned())
    };
    equal.iter().find_map(|name| {
        let (source, target) = (wanted(source, name)?, wanted(target, name)?);
        (source != target).then(|| {
            format!("inhibits nothing: {name} is {source:?} of sources and {target:?} of targets, and equal has it")
        })
    })
}
