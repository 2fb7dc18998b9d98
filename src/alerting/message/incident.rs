//! One incident for one cause, in words: most units that share a label fell silent together.

use super::counts::number;
use super::ended::EndedRecords;
use super::zone::Zone;
use crate::alerting::text::word;
use crate::clock::{Timestamp, shown_span as span};
use crate::presence::{Incident, OfflineRecord};
use crate::store::Delivery;

/// Whether a message reports a new incident: most of its silences are in the message.
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

/// The title of a message about the incident: the incident is new, or over while no other silence is in the message.
/// Units that are offline and not in the message are not in the title.
pub fn title(delivery: &Delivery) -> Option<String> {
    let incident = delivery.situation.incident.as_ref()?;
    if is_new(incident, delivery) {
        let others = others(covered(incident, &delivery.offline).1.len());
        let ended = counted(EndedRecords::of(&delivery.online));
        return Some(format!("OFFLINE: {}{others}{ended}", of_all(incident)));
    }
    let until = incident.until.filter(|_| delivery.offline.is_empty())?;
    let mut ended = EndedRecords::of(covered(incident, &delivery.online).1);
    let others = others(std::mem::take(&mut ended.back).len());
    Some(format!("{}{}", of_end(incident, until, &others), counted(ended)))
}

/// The title of the incident alone.
pub fn summary(incident: &Incident) -> String {
    match incident.until {
        None => format!("OFFLINE: {}", of_all(incident)),
        Some(until) => format!("{}{}", of_end(incident, until, ""), still_silent(incident)),
    }
}

/// `BACK: site north, 312 units, 10 others, offline for 7m 3s`.
fn of_end(incident: &Incident, until: Timestamp, others: &str) -> String {
    let place = place(incident);
    match incident.offline {
        0 => format!("REMOVED: every offline unit at {place}{others}"),
        offline => format!("BACK: {place}, {}{others}{}", units(offline), length(incident, until)),
    }
}

/// `, 10 others`.
fn others(count: usize) -> String {
    match count as u64 {
        0 => String::new(),
        1 => ", 1 other".to_owned(),
        count => format!(", {} others", number(count)),
    }
}

/// `, BACK 3, REMOVED 1`.
fn counted(ended: EndedRecords<'_>) -> String {
    ended.into_parts().map(|(what, records)| format!(", {what} {}", number(records.len() as u64))).collect()
}

/// `312 of 320 units at site north offline since 10:02 UTC; gateway gw-7 first`, or how the incident goes on or ends.
pub fn line(incident: &Incident, delivery: &Delivery, zone: &Zone) -> String {
    let since = zone.show_near(incident.since, delivery.sealed_at);
    if let Some(until) = incident.until {
        let (place, still) = (place(incident), still_silent(incident));
        return match incident.offline {
            0 => format!("{place}: every unit that was offline is removed"),
            offline => format!("{place} is back: {}{}{still}", units(offline), length(incident, until)),
        };
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

/// `312 units`.
fn units(count: u64) -> String {
    if count == 1 { "1 unit".to_owned() } else { format!("{} units", number(count)) }
}

/// `, offline for 7m 3s`.
fn length(incident: &Incident, until: Timestamp) -> String {
    format!(", offline for {}", span(until.since(incident.since)))
}

/// `; 2 still silent`.
fn still_silent(incident: &Incident) -> String {
    match incident.still_offline {
        0 => String::new(),
        still => format!("; {} still silent", number(still)),
    }
}
