//! Checks `[[timer]]` and `[timers]`: the classes of timers, and their limits.

use super::Span;
use super::file::{Channel, File, Format, GuaranteeOption, Receiver, Timer};
use super::problem::{Problems, suggest};
use super::reports::reports;
use crate::fleet::TimerRules;
use crate::presence::{self, TimerClass};
use crate::reports::REPORT_TYPE;
use crate::store::TimerClasses;

/// The most timers that may wait, of a class and in all.
const MAX_TIMERS: u64 = 1_000_000_000;
/// The most timers that one token may register in a second.
const MAX_RATE: u32 = 10_000_000;

pub(super) fn timers(file: &File, problems: &mut Problems) -> TimerRules {
    let mut classes = TimerClasses::new();
    for (at, one) in file.timer.iter().enumerate() {
        let path = format!("timer[{at}]");
        let Some(class) = class(&path, one, &file.receiver, problems) else { continue };
        if classes.insert(class.timer_type.clone(), class).is_some() {
            problems.error(format!("{path}.type"), format!("{:?} is used twice; rename one", one.timer_type));
        }
    }
    let most = problems.number("timers.max", file.timers.max, 1, MAX_TIMERS);
    let rate = problems.number("timers.rate", file.timers.rate, 0, MAX_RATE);
    if file.mqtt.all().iter().any(|(_, mqtt)| mqtt.timers) && file.timer.is_empty() {
        problems.error("mqtt.timers", "is of use only with a [[timer]]; add one, or leave the key out");
    }
    let reports = reports(file, problems);
    classes.extend(reports.iter().map(|(_, class)| (class.timer_type.clone(), class.clone())));
    TimerRules { classes, reports: reports.into_iter().map(|(plan, _)| plan).collect(), most, rate }
}

fn class(path: &str, one: &Timer, receivers: &[Receiver], problems: &mut Problems) -> Option<TimerClass> {
    named_receivers(&format!("{path}.receivers"), &one.receivers, receivers, problems);
    let keep = problems.span(&format!("{path}.keep"), one.keep, Span::from_secs(60), Span::from_days(400));
    let most = problems.number(&format!("{path}.max"), one.max, 1, MAX_TIMERS);
    let guarantee = match one.guarantee {
        GuaranteeOption::AtLeastOnce => presence::Guarantee::AtLeastOnce,
        GuaranteeOption::AtMostOnce => presence::Guarantee::AtMostOnce,
    };
    if one.timer_type.starts_with(REPORT_TYPE) {
        let text = format!("begins with {REPORT_TYPE}, as the timers of reports do; rename it");
        problems.error(format!("{path}.type"), text);
    }
    let timer_type = problems.keep(&format!("{path}.type"), one.timer_type.parse())?;
    Some(TimerClass { timer_type, receivers: one.receivers.clone(), guarantee, keep, most })
}

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

/// The first of a receiver and its fallbacks that has no words for a timer, and why.
fn without_timers<'a>(receiver: &'a Receiver, all: &'a [Receiver]) -> Option<(&'a str, &'static str)> {
    let mut next = Some(receiver);
    // Fallbacks in a circle are reported with the receivers.
    for _ in 0..all.len() {
        let one = next?;
        if let Some(why) = has_alerts_only(one) {
            return Some((&one.name, why));
        }
        next = all.iter().find(|other| !one.fallback.is_empty() && other.name == one.fallback);
    }
    None
}

/// Why a receiver has no words for a timer.
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
