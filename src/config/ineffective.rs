//! Warnings of rules that are valid and do nothing: matchers of a kind that does not exist, pages that nothing closes.

use super::file::{Channel, File};
use super::problem::Problems;
use crate::presence::Recoveries;
use crate::routing::{Inhibition, Matcher, Route};

pub(super) fn warn(file: &File, root: &Route, inhibition: &Inhibition, problems: &mut Problems) {
    for (at, rule) in inhibition.rules.iter().enumerate() {
        kinds(&format!("inhibit[{at}].source_matchers"), &rule.source, file, problems);
        kinds(&format!("inhibit[{at}].target_matchers"), &rule.target, file, problems);
    }
    routes("route", root, &[], file, problems);
}

/// `known`: the pagers that a warning on a route above names.
fn routes(path: &str, route: &Route, known: &[&str], file: &File, problems: &mut Problems) {
    kinds(&format!("{path}.matchers"), &route.matchers, file, problems);
    let mut pagers = known.to_vec();
    if route.pace.recoveries == Recoveries::None {
        for name in route.notified().into_iter().filter(|name| is_pager(name, file)) {
            if !pagers.contains(&name.as_str()) {
                pagers.push(name);
                let text = format!(
                    "leaves the alerts of {name:?} open for ever, because a return closes them; write recoveries = true"
                );
                problems.warn(format!("{path}.recoveries"), text);
            }
        }
    }
    for (at, below) in route.routes.iter().enumerate() {
        routes(&format!("{path}.routes[{at}]"), below, &pagers, file, problems);
    }
}

/// Returns whether a receiver keeps an alert open until Rollcall closes it.
fn is_pager(name: &str, file: &File) -> bool {
    let keeps = |channel| matches!(channel, Channel::PagerDuty | Channel::Opsgenie);
    file.receiver.iter().any(|one| one.name == *name && one.channel.is_some_and(keeps))
}

/// Warns of matchers of `kind` that match no configured kind.
fn kinds(path: &str, matchers: &[Matcher], file: &File, problems: &mut Problems) {
    let fits = |matcher: &Matcher| file.kind.iter().any(|kind| matcher.is_match(&kind.name));
    if let Some(matcher) = matchers.iter().find(|one| one.name() == "kind" && !fits(one)) {
        problems.warn(path, format!("matches no unit: no kind of the configuration fits {matcher}"));
    }
}
