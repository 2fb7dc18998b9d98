//! Example notifications. Every template is rendered with them at the start, so that an error in it is found before the
//! first alert; `rollcall template render` shows the results.

use std::time::Duration;

use super::data_loss;
use super::mass_notice::{MassNotice, ValueShare};
use crate::clock::Timestamp;
use crate::presence::{Cause, Closing, FirstUnit, Incident, Interval, Labels, OfflineRecord, Unit};
use crate::routing::FLAPPING;
use crate::store::{Delivery, Group, GroupContext};

/// A notification to try a template with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Example {
    /// One unit is offline.
    Offline,
    /// A unit is back.
    Recovery,
    /// Many units of a site are offline, others are back.
    Storm,
    /// Nothing is heard.
    Blind,
    /// A large part of the fleet fell silent at once.
    MassOffline,
    /// A unit flaps.
    Flapping,
    /// The engine lost its data.
    DataLost,
}

impl Example {
    pub const ALL: [Example; 7] = [
        Example::Offline,
        Example::Recovery,
        Example::Storm,
        Example::Blind,
        Example::MassOffline,
        Example::Flapping,
        Example::DataLost,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Example::Offline => "offline",
            Example::Recovery => "recovery",
            Example::Storm => "storm",
            Example::Blind => "blind",
            Example::MassOffline => "mass-offline",
            Example::Flapping => "flapping",
            Example::DataLost => "data-lost",
        }
    }

    /// The notification for a receiver.
    pub fn delivery(self, receiver: &str) -> Delivery {
        let mut delivery = Delivery::new(
            format!("ntf_{}.{receiver}", self.as_str()),
            receiver,
            Group {
                key: "kind=detector,site=north".to_owned(),
                labels: labels(&[("kind", "detector"), ("site", "north")]),
            },
            NOW,
        );
        match self {
            Example::Offline => delivery.offline = vec![offline("pump-7", "north")],
            Example::Recovery => delivery.online = vec![back(offline("pump-7", "north"))],
            Example::Storm => {
                delivery.situation = storm();
                delivery.offline = (1..=312).map(|at| offline(&format!("unit-{at:03}"), "north")).collect();
                delivery.online =
                    (313..=315).map(|at| back(offline(&format!("unit-{at}"), "north"))).collect();
            }
            Example::Flapping => {
                delivery.group.key = format!("{FLAPPING}{}", delivery.group.key);
                delivery.offline =
                    vec![OfflineRecord { cause: Cause::Flapping, ..offline("pump-7", "north") }];
            }
            Example::Blind => {
                delivery.group = Group { key: "blind".to_owned(), labels: Labels::new() };
                delivery.blind = vec![Interval { from: NOW - HOUR, to: Timestamp::NEVER }];
            }
            Example::DataLost => data_loss::example(&mut delivery, NOW),
            Example::MassOffline => {
                let notice = mass_offline();
                delivery.group = notice.group();
                delivery.blind = vec![Interval { from: notice.at, to: Timestamp::NEVER }];
            }
        }
        delivery
    }
}

/// The silence and the return of a unit without labels: a template must not need one.
pub fn without_labels(receiver: &str) -> [Delivery; 2] {
    [Example::Offline, Example::Recovery].map(|example| {
        let mut delivery = example.delivery(receiver);
        delivery.group = Group { key: "all".to_owned(), labels: Labels::new() };
        delivery.offline.iter_mut().chain(&mut delivery.online).for_each(|record| record.labels.clear());
        delivery
    })
}

/// Names with all the signs that could end a text of JSON, HTML, a header or a level of a topic too early.
pub fn adversarial(receiver: &str) -> Delivery {
    let mut delivery = Example::Offline.delivery(receiver);
    delivery.offline = vec![offline("a\"b\\c'd<e>&f{{g}}", "\"no\\rth\"\r\n<b>/+#")];
    delivery.group.labels = delivery.offline[0].labels.clone();
    delivery
}

/// Most units of the site have one cause.
fn storm() -> GroupContext {
    let first = FirstUnit { kind: "gateway".to_owned(), unit: "gw-7".to_owned() };
    let incident = Incident {
        label: "site".to_owned(),
        value: "north".to_owned(),
        offline: 312,
        units: 320,
        since: NOW - Duration::from_secs(10),
        first,
        still_offline: 312,
        until: None,
        notified_from: None,
        acknowledged_at: None,
    };
    GroupContext { lasting: Some(312), is_judged: true, incident: Some(incident), ..GroupContext::default() }
}

const HOUR: Duration = Duration::from_secs(3600);
/// 2026-11-22T15:14:21.978Z.
const NOW: Timestamp = Timestamp::from_millis(1_795_360_461_978);

fn mass_offline() -> MassNotice {
    let (at, until) = (NOW - Duration::from_secs(1), NOW + Duration::from_secs(599));
    let since = at - Duration::from_secs(60);
    let value = |label: &str, value: &str, percent| ValueShare {
        label: label.to_owned(),
        value: value.to_owned(),
        percent,
    };
    MassNotice {
        at,
        since,
        until,
        offline: 312,
        units: 410,
        released: None,
        values: vec![value("site", "north", 100), value("kind", "detector", 93)],
        broker: "is connected".to_owned(),
        engine: "answers".to_owned(),
        hearing: "everything up to 0.4 s ago is heard".to_owned(),
    }
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn offline(unit: &str, site: &str) -> OfflineRecord {
    let kind = "detector".parse().expect("it is a kind");
    let unit = Unit { kind, id: unit.parse().unwrap_or_else(|_| "pump".parse().expect("it is an id")) };
    let deadline = NOW - Duration::from_secs(10);
    let record = OfflineRecord::open(unit, deadline - 48 * HOUR, deadline, deadline);
    OfflineRecord { labels: labels(&[("room", "12"), ("site", site)]), ..record }
}

fn back(record: OfflineRecord) -> OfflineRecord {
    OfflineRecord { back_at: Some(NOW), closed_by: Some(Closing::Return), ..record }
}
