//! The members of a notification, for services that keep one alert for each unit: opened by its silence, closed by its
//! return.

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};
use serde::Serialize;

use super::data_loss;
use super::incident;
use super::links::Links;
use super::summary::{MAX_TITLE, sections, text, text_of, title, title_of};
use super::timer;
use super::zone::Zone;
use crate::alerting::group::{self, UnheardKind};
use crate::alerting::text::short;
use crate::clock::Timestamp;
use crate::presence::{Cause, Incident, Interval, Labels, OfflineRecord};
use crate::routing::alert::{ALERT_NAME, BREAKER_TRIPPED, DATA_LOST_ALERT, UNIT_UNUSUAL};
use crate::routing::{DATA_LOST, MASS_OFFLINE};
use crate::store::Delivery;

/// A longer key is replaced by its digest: services take 255 characters.
const MAX_KEY: usize = 200;

/// The text of a test.
pub const TEST: &str = "This is a test of Rollcall; no unit is concerned.";

/// The change of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertAction {
    Trigger,
    /// An operator takes care of the alert. Only [`pages`] have this action.
    Acknowledge,
    Resolve,
}

/// One record or blind interval of a notification.
#[derive(Debug, Serialize)]
pub struct Member {
    pub action: AlertAction,
    /// Identifies the silence: its return and every attempt have the same key.
    pub key: String,
    pub title: String,
    pub text: String,
    /// When the silence or the blind interval began.
    pub from: Timestamp,
    /// When the silence or the blind interval ended; null while it lasts.
    pub to: Option<Timestamp>,
    /// The kind and the unit, or `rollcall`.
    pub source: String,
    /// Null for blindness of the fleet.
    pub kind: Option<String>,
    /// Null for blindness.
    pub unit: Option<String>,
    /// With the kind and the unit.
    pub labels: Labels,
    pub url: Option<String>,
}

/// The members of a delivery: silences, returns and blind intervals, in this order.
pub fn members(delivery: &Delivery, zone: &Zone, links: &Links) -> Vec<Member> {
    let records =
        delivery.offline.iter().chain(&delivery.online).map(|record| of_record(record, zone, links));
    let blind = delivery.blind.iter().map(|interval| of_blindness(delivery, *interval, zone, links));
    records.chain(blind).chain(timers(delivery, zone)).collect()
}

/// The pages of a delivery, for receivers that call an operator for each member: a page for each member, but one page
/// for all silences of an incident, which ends with the incident. Acknowledgements follow the pages. The notification
/// of an acknowledgement has no pages, and for a single unit of the incident it acknowledges nothing.
pub fn pages(delivery: &Delivery, zone: &Zone, links: &Links) -> Vec<Member> {
    let situation = &delivery.situation;
    let is_notified = |record: &OfflineRecord| {
        let mut incidents = situation.incident.iter().chain(&situation.replaced);
        incidents.any(|incident| incident.has_notified(record))
    };
    let offline: Vec<&OfflineRecord> =
        delivery.offline.iter().filter(|record| !is_notified(record)).collect();
    // The units of the page may be back before units that have pages of their own. Units that are back may also have
    // changed the value of the label, and belong to no incident.
    let is_end = |incident: &Incident| {
        let mut online = delivery.online.iter();
        incident.until.is_some()
            && (online.clone().any(is_notified) || !online.any(|one| incident.covers(one)))
    };
    // A message in which only some units are back does not change the page of the incident.
    let is_news = |incident: &&Incident| is_end(incident) || delivery.offline.iter().any(is_notified);
    let known = situation.incident.as_ref();
    let incident = known.filter(is_news);
    // The acknowledgement of an incident is news once, also by the return of the last unit without an operator.
    let to_acknowledge = known
        .filter(|one| delivery.is_acknowledgement() || incident.is_some() || one.acknowledged_at.is_none());
    let acknowledged = acknowledgements(delivery, to_acknowledge, &offline, zone, links);
    if delivery.is_acknowledgement() {
        return acknowledged;
    }
    let page = situation.replaced.iter().chain(incident);
    let page = page.map(|incident| of_incident(incident, delivery, zone, links));
    let ended = delivery.online.iter().filter(|record| !is_notified(record));
    let records = offline.into_iter().chain(ended).map(|record| of_record(record, zone, links));
    let blind = delivery.blind.iter().map(|interval| of_blindness(delivery, *interval, zone, links));
    let pages = page.chain(records).chain(blind).chain(timers(delivery, zone));
    pages.chain(acknowledged).collect()
}

/// The acknowledgements of a delivery: of its incident, and of its silences.
fn acknowledgements(
    delivery: &Delivery,
    incident: Option<&Incident>,
    offline: &[&OfflineRecord],
    zone: &Zone,
    links: &Links,
) -> Vec<Member> {
    let incident = incident.filter(|_| delivery.situation.is_acknowledged);
    let incident = incident.map(|incident| Member {
        action: AlertAction::Acknowledge,
        text: "every unit of it that is offline is acknowledged".to_owned(),
        ..of_incident(incident, delivery, zone, links)
    });
    let records = offline.iter().filter_map(|record| {
        let acknowledged = record.acknowledged.as_ref().filter(|_| record.closed_by.is_none())?;
        Some(Member {
            action: AlertAction::Acknowledge,
            text: format!("acknowledged by {}: {}", acknowledged.author, acknowledged.comment),
            ..of_record(record, zone, links)
        })
    });
    incident.into_iter().chain(records).collect()
}

/// Timers as members: nothing ends a timer that fired.
fn timers(delivery: &Delivery, zone: &Zone) -> impl Iterator<Item = Member> {
    delivery.timers.iter().map(move |one| Member {
        action: AlertAction::Trigger,
        key: key(one.id.firing(one.due)),
        title: short(&timer::title_of(one), MAX_TITLE),
        text: timer::text_of(one, zone),
        from: one.due,
        to: None,
        source: format!("timer/{}/{}", one.timer_type, one.id),
        kind: None,
        unit: None,
        labels: Labels::new(),
        url: None,
    })
}

/// The members of a test: an alert that is opened and closed at once.
pub fn test_members(delivery: &Delivery) -> Vec<Member> {
    let member = |action| Member {
        action,
        key: format!("rollcall-test-{}", delivery.id),
        title: format!("TEST: Rollcall reaches receiver {}", delivery.receiver),
        text: TEST.to_owned(),
        from: delivery.sealed_at,
        to: (action == AlertAction::Resolve).then_some(delivery.sealed_at),
        source: "rollcall".to_owned(),
        kind: None,
        unit: None,
        labels: Labels::new(),
        url: None,
    };
    vec![member(AlertAction::Trigger), member(AlertAction::Resolve)]
}

/// The labels of a record's alert: the labels of its unit, the kind and the unit, and the name of an unusual silence.
fn labels_of(record: &OfflineRecord) -> Labels {
    let mut labels = record.labels.clone();
    labels.insert("kind".to_owned(), record.kind.to_string());
    labels.insert("unit".to_owned(), record.unit.to_string());
    if record.is_unusual() {
        labels.insert(ALERT_NAME.to_owned(), UNIT_UNUSUAL.to_owned());
    }
    labels
}

fn of_record(record: &OfflineRecord, zone: &Zone, links: &Links) -> Member {
    Member {
        action: if record.closed_by.is_none() { AlertAction::Trigger } else { AlertAction::Resolve },
        key: key(match record.cause {
            Cause::Flapping | Cause::Unusual => format!("{}:{}", record.cause.as_str(), record.id),
            _ => record.id.to_string(),
        }),
        title: title_of(record),
        text: text_of(record, zone),
        from: record.deadline,
        to: record.back_at,
        source: format!("{}/{}", record.kind, record.unit),
        kind: Some(record.kind.to_string()),
        unit: Some(record.unit.to_string()),
        labels: labels_of(record),
        url: links.unit(record),
    }
}

fn of_incident(incident: &Incident, delivery: &Delivery, zone: &Zone, links: &Links) -> Member {
    let mut alone = delivery.clone();
    alone.offline.retain(|record| incident.has_notified(record));
    alone.online.retain(|record| incident.has_notified(record));
    let Incident { label, value, since, until, .. } = incident;
    let listed = text(&sections(&alone, zone, links));
    let group = &delivery.group;
    Member {
        action: if until.is_some() { AlertAction::Resolve } else { AlertAction::Trigger },
        key: key(format!("incident:{}:{label}={value}:{}", since.as_millis(), delivery.group_key())),
        title: short(&incident::summary(incident), MAX_TITLE),
        text: format!("{}\n{listed}", incident::line(incident, delivery, zone)),
        from: *since,
        to: *until,
        source: incident::place(incident),
        kind: group.labels.get("kind").cloned(),
        unit: None,
        labels: [(label.clone(), value.clone())].into(),
        url: links.message(delivery),
    }
}

fn of_blindness(delivery: &Delivery, interval: Interval, zone: &Zone, links: &Links) -> Member {
    let unheard = group::of_kind(delivery);
    let id = unheard.as_ref().map(UnheardKind::id);
    let broker = unheard.as_ref().and_then(|unheard| unheard.broker.cloned());
    let kind = unheard.map(|unheard| unheard.kind.clone());
    let alone = Delivery { blind: vec![interval], ..delivery.clone() };
    let items = sections(&alone, zone, links).into_iter().flat_map(|section| section.items);
    let lines: Vec<String> = items.map(|item| format!("{}: {}", item.name, item.what)).collect();
    let (id, name) = match delivery.group_key() {
        MASS_OFFLINE => (format!("breaker:{}", interval.from.as_millis()), Some(BREAKER_TRIPPED)),
        DATA_LOST => (data_loss::id(interval), Some(DATA_LOST_ALERT)),
        _ => (blind_id(interval, id.as_deref()), None),
    };
    // An operator ends a loss; Rollcall does not know when the data are back.
    let to = Some(interval.to).filter(|_| interval.is_over() && name != Some(DATA_LOST_ALERT));
    Member {
        action: if to.is_some() { AlertAction::Resolve } else { AlertAction::Trigger },
        key: key(id),
        title: title(&alone, zone),
        text: lines.join("\n"),
        from: interval.from,
        to,
        source: "rollcall".to_owned(),
        labels: broker
            .map(|broker| ("broker".to_owned(), broker))
            .into_iter()
            .chain(labels_of_fleet(kind.as_ref(), name))
            .collect(),
        kind,
        unit: None,
        url: links.home_page(),
    }
}

/// The labels of an alert that concerns no unit: the kind, and the name of the alert if it is not blindness.
fn labels_of_fleet(kind: Option<&String>, name: Option<&str>) -> Labels {
    let kind = kind.map(|kind| ("kind".to_owned(), kind.clone()));
    let name = name.map(|name| (ALERT_NAME.to_owned(), name.to_owned()));
    kind.into_iter().chain(name).collect()
}

/// The id of a blind interval, the same while it lasts and when it is over.
pub fn blind_id(interval: Interval, unheard: Option<&str>) -> String {
    let unheard = unheard.map(|id| format!("{id}:")).unwrap_or_default();
    format!("blind:{unheard}{}", interval.from.as_millis())
}

fn key(id: String) -> String {
    if id.len() <= MAX_KEY {
        return id;
    }
    format!("rollcall-{}", HEXLOWER.encode(digest(&SHA256, id.as_bytes()).as_ref()))
}
