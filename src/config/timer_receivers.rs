//! Checks the receivers of timers and of reports.

use super::file::{Channel, Format, Receiver};
use super::problem::{Problems, suggest};

pub(super) fn named_receivers(path: &str, named: &[String], receivers: &[Receiver], problems: &mut Problems) {
    if named.is_empty() {
        problems.error(path, "is missing; name the receivers");
    }
    for (at, name) in named.iter().enumerate() {
        let path = format!("{path}[{at}]");
        let known = receivers.iter().map(|one| one.name.as_str());
        let Some(receiver) = receivers.iter().find(|one| one.name == *name) else {
            let text = match suggest(name, known) {
                Some(meant) => format!("there is no receiver {name:?}; did you mean {meant:?}?"),
                None => format!("there is no receiver {name:?}; add a [[receiver]] of that name"),
            };
            problems.error(path, text);
            continue;
        };
        if named[..at].contains(name) {
            problems.error(path, format!("{name:?} is there twice; remove one"));
        } else if let Some((fallback, why)) = without_timers(receiver, receivers) {
            let through =
                if fallback == name { String::new() } else { format!(", for its fallback is {fallback:?}") };
            problems.error(
                path,
                format!("{name:?} cannot get timers or reports{through}: {why}; name another receiver"),
            );
        }
    }
}

/// The first receiver in a chain of fallbacks that cannot send a timer, and the reason.
fn without_timers<'a>(receiver: &'a Receiver, all: &'a [Receiver]) -> Option<(&'a str, &'static str)> {
    let mut next = Some(receiver);
    // Circular fallbacks are reported with the receivers.
    for _ in 0..all.len() {
        let one = next?;
        if let Some(why) = has_alerts_only(one) {
            return Some((&one.name, why));
        }
        next = all.iter().find(|other| !one.fallback.is_empty() && other.name == one.fallback);
    }
    None
}

/// The reason why a receiver cannot send a timer.
fn has_alerts_only(receiver: &Receiver) -> Option<&'static str> {
    match receiver.channel? {
        Channel::Alertmanager => Some("Alertmanager has alerts and nothing else"),
        Channel::PagerDuty => Some("PagerDuty has incidents, which end, and nothing else"),
        Channel::Opsgenie => Some("Opsgenie has alerts, which are closed, and nothing else"),
        Channel::Webhook if receiver.format == Format::Alertmanager => {
            Some("its format is that of Alertmanager, which has alerts and nothing else")
        }
        _ => None,
    }
}
