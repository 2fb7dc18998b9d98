//! The message of the mass-offline breaker: the silences, their possible cause, and the state of Rollcall itself.
//!
//! The notice travels as a label of its group, so that an engine seals it like any other message without units.

use serde::{Deserialize, Serialize};

use super::counts::number;
use super::zone::Zone;
use crate::alerting::text::word;
use crate::clock::Timestamp;
use crate::presence::{Labels, Release, ReleaseReason, Trip};
use crate::routing::MASS_OFFLINE;
use crate::store::{Delivery, Group};

/// The label of the group.
const LABEL: &str = "breaker";

const MAY_MEAN: &str = "one cause for all, such as the network, the power, a gateway, the broker or its access rules, \
    expired certificates, or an update of the devices";

/// How many of the silent units have a value of a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueShare {
    pub label: String,
    pub value: String,
    pub percent: usize,
}

/// The content of the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MassNotice {
    pub at: Timestamp,
    pub since: Timestamp,
    pub until: Timestamp,
    pub offline: u64,
    pub units: u64,
    pub released: Option<Release>,
    /// The values of labels that many of the newest silences share.
    pub values: Vec<ValueShare>,
    /// The states of Rollcall's own parts, in words.
    pub broker: String,
    pub engine: String,
    pub hearing: String,
}

impl MassNotice {
    pub fn new(
        trip: &Trip,
        values: Vec<ValueShare>,
        (broker, engine): (String, String),
        hearing: String,
    ) -> MassNotice {
        let Trip { at, since, until, offline, units, .. } = *trip;
        let released = trip.released.clone();
        MassNotice { at, since, until, offline, units, released, values, broker, engine, hearing }
    }

    pub fn group(&self) -> Group {
        let json = serde_json::to_string(self).expect("names and times are always JSON");
        Group { key: MASS_OFFLINE.to_owned(), labels: Labels::from([(LABEL.to_owned(), json)]) }
    }

    /// The notice of a delivery, if it is one.
    pub fn of(delivery: &Delivery) -> Option<MassNotice> {
        let label = delivery.group.labels.get(LABEL).filter(|_| delivery.group_key() == MASS_OFFLINE)?;
        serde_json::from_str(label).ok()
    }

    pub fn title(&self, zone: &Zone) -> String {
        let MassNotice { offline, units, since, released, .. } = self;
        let [offline, units] = [*offline, *units].map(number);
        match released {
            None => format!("MASS OFFLINE: {offline} of {units} units since {}", zone.show(*since)),
            Some(over) => {
                format!("MASS OFFLINE OVER: {} of {offline} units are still offline", number(over.offline))
            }
        }
    }

    /// Lines of a name and a text.
    pub fn lines(&self, zone: &Zone) -> Vec<(String, String)> {
        let MassNotice { offline, units, since, until, released, values, broker, engine, hearing, .. } = self;
        let (since, until) = (zone.show(*since), zone.show(*until));
        let [offline, units] = [*offline, *units].map(number);
        let line = |name: &str, what: String| (name.to_owned(), what);
        let mut lines = match released {
            None => vec![
                line(&format!("{offline} of {units} units"), format!("fell silent since {since}")),
                line("It may mean", MAY_MEAN.to_owned()),
                line(
                    "Held",
                    format!(
                        "notifications of single units wait until most units are back, until {until} at the latest, or \
                         until `rollcall breaker release`; records are written"
                    ),
                ),
            ],
            Some(over) => {
                let why = match over.why {
                    ReleaseReason::Returned => "most are back",
                    ReleaseReason::Time => "the longest time is over",
                    ReleaseReason::Operator => "an operator released the breaker",
                };
                vec![
                    line(&format!("{offline} of {units} units"), format!("fell silent since {since}; {why}")),
                    line(
                        &format!("{} are still offline", number(over.offline)),
                        "notifications of these units follow".to_owned(),
                    ),
                ]
            }
        };
        let value = |one: &ValueShare| format!("{}={} {} %", word(&one.label), word(&one.value), one.percent);
        if !values.is_empty() {
            lines.push(line("Of them", values.iter().map(value).collect::<Vec<_>>().join(", ")));
        }
        lines.push(line("Rollcall", format!("the broker {broker}; the engine {engine}; {hearing}")));
        lines
    }
}
