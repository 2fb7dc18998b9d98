//! Checks `[[timer]]` and `[timers]`: the classes of timers, and their limits.

use super::Span;
use super::file::{File, GuaranteeOption, Receiver, Timer};
use super::problem::Problems;
use super::reports::reports;
use super::timer_receivers::named_receivers;
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
