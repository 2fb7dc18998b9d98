//! Timers as receivers see them.

use serde::Serialize;

use super::counts::number;
use super::examples::Example;
use super::zone::Zone;
use crate::alerting::text::{short, word};
use crate::clock::{Timestamp, shown_span as span};
use crate::presence::{FiredTimer, Guarantee, TimerData, TimerId, TimerType};
use crate::reports::{self, AvailabilityReport};
use crate::store::{Delivery, group_of_timer};

/// The most characters of a timer's data in texts for people; the rest is cut off.
const MAX_DATA: usize = 400;

/// A timer in a message, with its data as registered.
#[derive(Serialize)]
pub struct TimerMessage<'a> {
    id: &'a TimerId,
    #[serde(rename = "type")]
    timer_type: &'a TimerType,
    due: Timestamp,
    fired_at: Timestamp,
    data: &'a TimerData,
}

impl<'a> TimerMessage<'a> {
    pub fn new(timer: &'a FiredTimer) -> TimerMessage<'a> {
        let FiredTimer { id, timer_type, due, fired_at, data, .. } = timer;
        TimerMessage { id, timer_type, due: *due, fired_at: *fired_at, data }
    }
}

pub fn timers(delivery: &Delivery) -> Vec<TimerMessage<'_>> {
    delivery.timers.iter().map(TimerMessage::new).collect()
}

/// The title of a message with timers; `None`: it has none.
pub(super) fn title(delivery: &Delivery) -> Option<String> {
    match &delivery.timers[..] {
        [] => None,
        [timer] => Some(reports::of_timer(timer).map_or_else(|| title_of(timer), |report| report.subject())),
        many => Some(format!("TIMER: {} timers", number(many.len() as u64))),
    }
}

/// The report that a delivery brings.
pub fn report_of(delivery: &Delivery) -> Option<AvailabilityReport> {
    delivery.timers.first().and_then(reports::of_timer)
}

/// `TIMER: report-due pump-7`.
pub(super) fn title_of(timer: &FiredTimer) -> String {
    format!("TIMER: {}", name(timer))
}

/// The moment and the data of a timer.
pub(super) fn text_of(timer: &FiredTimer, zone: &Zone) -> String {
    let late = timer.fired_at.since(timer.due);
    let late = if late.as_secs() > 0 { format!(", fired {} late", span(late)) } else { String::new() };
    if let Some(report) = reports::of_timer(timer) {
        return report.notes().join("; ");
    }
    let data = match timer.data.as_str() {
        "null" => String::new(),
        data => format!("; {}", short(data, MAX_DATA)),
    };
    format!("due {}{late}{data}", zone.show(timer.due))
}

/// The class and the id.
pub(super) fn name(timer: &FiredTimer) -> String {
    format!("{} {}", timer.timer_type, word(timer.id.as_str()))
}

/// A delivery of a timer, to try templates.
pub fn example_timer(receiver: &str) -> Delivery {
    let mut delivery = Example::Offline.delivery(receiver);
    delivery.offline.clear();
    let (id, timer_type): (TimerId, TimerType) =
        ("pump-7".parse().expect("a valid id"), "report-due".parse().expect("a valid type"));
    let fired_at = delivery.sealed_at;
    delivery.group.key = group_of_timer(&id);
    delivery.group.labels.clear();
    delivery.id = Delivery::id_of(&id.firing(fired_at), receiver);
    let (data, guarantee) = (TimerData::default(), Guarantee::AtLeastOnce);
    delivery.timers = vec![FiredTimer { id, timer_type, due: fired_at, fired_at, data, guarantee }];
    delivery
}
