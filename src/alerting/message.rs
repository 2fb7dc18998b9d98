//! A notification as receivers see it: the same data for every template and format.
//!
//! A pure function of the delivery and the receiver's options, so that every attempt sends the same.

use serde::Serialize;
use serde_json::Value;

use super::group::{UnheardKind, lost, of_kind};
use crate::clock::Timestamp;
use crate::presence::{Incident, Interval, Labels, OfflineRecord};
use crate::routing::MASS_OFFLINE;
use crate::store::{Delivery, Group, MeantFor};

mod counts;
mod csv;
mod data_loss;
mod ended;
mod examples;
mod filters;
mod incident;
mod links;
mod mass_notice;
mod member;
mod size_limit;
mod summary;
mod template;
mod timer;
mod zone;

pub use counts::{LabelCount, counts, line_of_rest, number};
pub use csv::table;

pub use examples::{Example, adversarial, without_labels};
pub use links::Links;
pub use mass_notice::{MassNotice, ValueShare};
pub use member::{AlertAction, Member, TEST, blind_id, members, pages, test_members};
pub use size_limit::{SizeLimit, bounded, fitting, fitting_records};
pub use summary::{MAX_LISTED, Section, lead, sections, text, title};
pub use template::Templates;
pub use timer::{TimerMessage, example_timer, report_of, timers};
pub use zone::Zone;

/// The most records in the data of a template.
const MAX_IN_TEMPLATES: usize = 1000;

/// How a receiver's messages are written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MessageConfig {
    pub links: Links,
    /// The zone of its times.
    pub zone: Zone,
    /// Constant labels of its alerts, where it gets alerts. A label of the unit wins.
    pub labels: Labels,
}

/// A notification, or a test that looks like one.
pub struct ReceiverMessage<'a> {
    pub delivery: &'a Delivery,
    pub is_test: bool,
}

impl<'a> ReceiverMessage<'a> {
    pub fn new(delivery: &'a Delivery) -> ReceiverMessage<'a> {
        ReceiverMessage { delivery, is_test: false }
    }

    /// A test; `delivery` comes from [`test_delivery`].
    pub fn test(delivery: &'a Delivery) -> ReceiverMessage<'a> {
        ReceiverMessage { delivery, is_test: true }
    }

    /// `rollcall.notification`, `rollcall.flapping`, `rollcall.unusual`, `rollcall.blind`, `rollcall.breaker`,
    /// `rollcall.data_lost`, `rollcall.timer` or `rollcall.test`.
    pub fn kind(&self) -> &'static str {
        match self {
            ReceiverMessage { is_test: true, .. } => "rollcall.test",
            ReceiverMessage { delivery, .. } if !delivery.timers.is_empty() => "rollcall.timer",
            ReceiverMessage { delivery, .. } if delivery.blind.is_empty() => {
                // A digest may have units that flap and others.
                let is_of = |is_one: fn(&OfflineRecord) -> bool| {
                    let mut records = delivery.offline.iter().chain(&delivery.online);
                    match delivery.situation.merged {
                        None => records.any(is_one),
                        Some(_) => records.all(is_one),
                    }
                };
                match () {
                    () if is_of(OfflineRecord::is_flapping) => "rollcall.flapping",
                    () if is_of(OfflineRecord::is_unusual) => "rollcall.unusual",
                    () => "rollcall.notification",
                }
            }
            ReceiverMessage { delivery, .. } if MassNotice::of(delivery).is_some() => "rollcall.breaker",
            ReceiverMessage { delivery, .. } if lost(delivery).is_some() => "rollcall.data_lost",
            _ => "rollcall.blind",
        }
    }

    /// Whether something is wrong that was not before: a unit is offline, nothing is heard, or data was lost. A fired
    /// timer counts, too.
    pub fn is_firing(&self) -> bool {
        let Delivery { offline, blind, timers, .. } = self.delivery;
        let is_lost = lost(self.delivery).is_some();
        let is_blind = blind.iter().any(|interval| !interval.is_over());
        !offline.is_empty() || !timers.is_empty() || is_blind || is_lost
    }

    pub fn title(&self, config: &MessageConfig) -> String {
        match self.is_test {
            true => format!("TEST: Rollcall reaches receiver {}", self.delivery.receiver),
            false => title(self.delivery, &config.zone),
        }
    }

    pub fn text(&self, config: &MessageConfig) -> String {
        match self.is_test {
            true => TEST.to_owned(),
            false => {
                let lead = lead(self.delivery, &config.zone).into_iter();
                let sections = text(&sections(self.delivery, &config.zone, &config.links));
                lead.chain([sections]).collect::<Vec<String>>().join("\n")
            }
        }
    }

    /// The labels that its members share.
    pub fn group(&self) -> &'a Labels {
        static NONE: Labels = Labels::new();
        // The label of this group is the message itself, and is not shown as a label.
        if self.delivery.group_key() == MASS_OFFLINE { &NONE } else { &self.delivery.group.labels }
    }

    /// The page for the message.
    pub fn url(&self, config: &MessageConfig) -> Option<String> {
        config.links.message(self.delivery)
    }

    /// The data of templates.
    pub fn data(&self, config: &MessageConfig) -> Value {
        let delivery = self.delivery;
        let record = |record| RecordData::new(record, config);
        let (offline, online, truncated) = fitting_records(delivery, MAX_IN_TEMPLATES);
        let unheard = of_kind(delivery);
        let unheard_id = unheard.as_ref().map(UnheardKind::id);
        let breaker = MassNotice::of(delivery);
        let blind = |interval: &Interval| BlindIntervalData::new(interval, unheard_id.as_deref());
        let data = MessageData {
            message_type: self.kind(),
            id: &delivery.id,
            notification: delivery.notification(),
            timestamp: delivery.sealed_at,
            receiver: &delivery.receiver,
            group: self.group(),
            group_key: delivery.group_key(),
            status: match self.is_firing() {
                _ if self.is_test => "test",
                true => "firing",
                false => "resolved",
            },
            title: self.title(config),
            text: self.text(config),
            offline: offline.iter().map(record).collect(),
            online: online.iter().map(record).collect(),
            counts: counts(delivery),
            merged: delivery.situation.merged,
            still_offline: delivery.situation.lasting,
            since: delivery.situation.since,
            blind: if breaker.is_none() { delivery.blind.iter().map(blind).collect() } else { Vec::new() },
            timers: timers(delivery),
            breaker,
            lost: lost(delivery),
            kind: unheard.as_ref().map(|unheard| unheard.kind),
            broker: unheard.as_ref().and_then(|unheard| unheard.broker),
            topics: unheard.as_ref().map(|unheard| unheard.topics),
            reminder: delivery.reminder,
            meant_for: delivery.meant_for.as_ref(),
            incident: delivery.situation.incident.as_ref(),
            truncated,
            url: self.url(config),
        };
        serde_json::to_value(data).expect("names and times are always JSON")
    }
}

/// A notification for [`ReceiverMessage::test`].
pub fn test_delivery(receiver: &str, now: Timestamp) -> Delivery {
    Delivery::new(
        format!("test-{}.{receiver}", now.as_millis()),
        receiver,
        Group { key: "test".to_owned(), labels: Labels::new() },
        now,
    )
}

#[derive(Serialize)]
struct MessageData<'a> {
    #[serde(rename = "type")]
    message_type: &'static str,
    id: &'a str,
    notification: &'a str,
    timestamp: Timestamp,
    receiver: &'a str,
    group: &'a Labels,
    group_key: &'a str,
    status: &'static str,
    title: String,
    text: String,
    offline: Vec<RecordData<'a>>,
    online: Vec<RecordData<'a>>,
    counts: Vec<LabelCount>,
    merged: Option<u64>,
    still_offline: Option<u64>,
    since: Option<Timestamp>,
    blind: Vec<BlindIntervalData>,
    timers: Vec<TimerMessage<'a>>,
    breaker: Option<MassNotice>,
    lost: Option<&'a str>,
    kind: Option<&'a String>,
    broker: Option<&'a String>,
    topics: Option<&'a String>,
    reminder: bool,
    meant_for: Option<&'a MeantFor>,
    incident: Option<&'a Incident>,
    truncated: usize,
    url: Option<String>,
}

#[derive(Serialize)]
struct RecordData<'a> {
    #[serde(flatten)]
    record: &'a OfflineRecord,
    title: String,
    text: String,
    url: Option<String>,
}

impl<'a> RecordData<'a> {
    fn new(record: &'a OfflineRecord, config: &MessageConfig) -> RecordData<'a> {
        RecordData {
            record,
            title: summary::title_of(record),
            text: summary::text_of(record, &config.zone),
            url: config.links.unit(record),
        }
    }
}

/// A blind interval for a receiver.
#[derive(Serialize)]
pub struct BlindIntervalData {
    /// Identifies the interval, while it lasts and when it is over.
    id: String,
    from: Timestamp,
    /// Null while it lasts, and so is its length.
    to: Option<Timestamp>,
    seconds: Option<f64>,
}

impl BlindIntervalData {
    pub fn new(interval: &Interval, kind: Option<&str>) -> BlindIntervalData {
        let seconds = interval.is_over().then(|| interval.length().as_secs_f64());
        BlindIntervalData {
            id: blind_id(*interval, kind),
            from: interval.from,
            to: interval.is_over().then_some(interval.to),
            seconds,
        }
    }
}
