//! One incident for one cause, in words: most units that share a label fell silent together.

use super::counts::number;
use super::zone::{Zone, span};
use crate::alerting::text::word;
use crate::presence::{Incident, OfflineRecord};
use crate::store::Delivery;

/// Whether a message tells of a new incident: most of its silences are in the message.
pub fn is_new(incident: &Incident, delivery: &Delivery) -> bool {
    incident.until.is_none() && 2 * covered(incident, &delivery.offline).0.len() as u64 > incident.offline
}

/// The records that belong to an incident, and the others.
pub fn covered<'a>(
    incident: &Incident,
    records: &'a [OfflineRecord],
) -> (Vec<&'a OfflineRecord>, Vec<&'a OfflineRecord>) {
    records.iter().partition(|record| incident.covers(record))
}

/// The title of a message, if it is about the incident: one that is new, or over while nothing else is offline.
pub fn title(delivery: &Delivery) -> Option<String> {
    let incident = delivery.situation.incident.as_ref()?;
    if is_new(incident, delivery) {
        let (others, back) =
            (covered(incident, &delivery.offline).1.len() as u64, delivery.online.len() as u64);
        let others = match others {
            0 => String::new(),
            1 => ", 1 other".to_owned(),
            others => format!(", {} others", number(others)),
        };
        let back = if back > 0 { format!(", BACK {}", number(back)) } else { String::new() };
        return Some(format!("OFFLINE: {}{others}{back}", of_all(incident)));
    }
    let is_over = incident.until.is_some() && delivery.offline.is_empty();
    is_over.then(|| format!("BACK: {}, {}", place(incident), outage(incident)))
}

/// The incident by itself, as a title.
pub fn summary(incident: &Incident) -> String {
    match incident.until {
        None => format!("OFFLINE: {}", of_all(incident)),
        Some(_) => format!("BACK: {}, {}", place(incident), outage(incident)),
    }
}

/// `312 of 320 units at site north offline since 10:02 UTC; gateway gw-7 first`, or how the incident goes on or ends.
pub fn line(incident: &Incident, delivery: &Delivery, zone: &Zone) -> String {
    let since = zone.show_near(incident.since, delivery.sealed_at);
    if incident.until.is_some() {
        return format!("{} is back: {}", place(incident), outage(incident));
    }
    if is_new(incident, delivery) {
        let first = &incident.first;
        let first = format!("{} {}", word(&first.kind), word(&first.unit));
        return format!("{} offline since {since}; {first} first", of_all(incident));
    }
    let (still, units) = (number(incident.still_offline), number(incident.units));
    format!("{}: {still} of {units} units still offline since {since}", place(incident))
}

/// `312 of 320 units at site north`.
fn of_all(incident: &Incident) -> String {
    format!("{} of {} units at {}", number(incident.offline), number(incident.units), place(incident))
}

/// `site north`.
pub fn place(incident: &Incident) -> String {
    format!("{} {}", word(&incident.label), word(&incident.value))
}

/// `312 units, offline for 7m 3s; 2 still silent`.
fn outage(incident: &Incident) -> String {
    let length = incident.until.map(|until| span(until.since(incident.since))).unwrap_or_default();
    let still = match incident.still_offline {
        0 => String::new(),
        still => format!("; {} still silent", number(still)),
    };
    format!("{} units, offline for {length}{still}", number(incident.offline))
}
