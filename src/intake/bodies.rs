//! Reads what devices send over HTTP: a heartbeat as an MQTT payload, and the end of a unit by the kind's `presence`.
//!
//! A kind may be heard at brokers whose devices name fields differently: the first of its brokers says how they are read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::announcements::{RecentSessions, sparkplug};
use super::value_buffer::ValueBuffer;
use super::{Config, Fields, PayloadIssues, payload};
use crate::clock::Timestamp;
use crate::fleet::{BodyReader, Refused, SharedRules};
use crate::presence::{
    Announced, Announcement, BrokerName, Cause, Declared, Heartbeat, Kind, KindRules, Labels, Unit,
};
use crate::telemetry::{Rejection, Telemetry};

/// What it says of a unit of a kind without `presence` that it was announced as gone.
const HINT: Announced = Announced::Gone { cause: Cause::Disconnected, settle: Duration::from_secs(10) };

/// Reads the bodies of requests of devices.
pub struct Bodies {
    rules: SharedRules,
    kinds: HashMap<Kind, KindReading>,
    values: Option<Arc<ValueBuffer>>,
    recent: RecentSessions,
    telemetry: Arc<Telemetry>,
}

/// How the messages of a kind are read.
struct KindReading {
    fields: Fields,
    max_age: Option<Duration>,
    /// What it says of a unit that it was announced as gone.
    gone: Announced,
    /// Its units have the names of Sparkplug.
    is_sparkplug: bool,
}

impl KindReading {
    fn of(kind: &Kind, broker: &Config) -> KindReading {
        let presence = broker.presence.iter().find(|(of, _)| of == kind).map(|(_, presence)| presence);
        KindReading {
            fields: broker.fields.clone(),
            max_age: Some(broker.max_age).filter(|age| !age.is_zero()),
            gone: presence.map_or(HINT, |presence| presence.gone(Cause::Disconnected, true)),
            is_sparkplug: presence.is_some_and(|presence| presence.format.sparkplug().is_some()),
        }
    }
}

impl Bodies {
    pub fn new(
        brokers: &[Config],
        rules: SharedRules,
        values: Option<Arc<ValueBuffer>>,
        telemetry: Arc<Telemetry>,
    ) -> Bodies {
        let mut kinds = HashMap::new();
        for broker in brokers {
            for kind in &broker.kinds {
                kinds.entry(kind.clone()).or_insert_with(|| KindReading::of(kind, broker));
            }
        }
        Bodies { rules, kinds, values, recent: RecentSessions::default(), telemetry }
    }

    /// The rules of the unit's kind, how it is read, and the labels in the unit's name.
    fn known(&self, unit: &Unit) -> Result<(Arc<KindRules>, &KindReading, Labels), Refused> {
        let rules = self.rules.of(unit.kind.as_str());
        let Some((rules, reading)) = rules.zip(self.kinds.get(&unit.kind)) else {
            let why = format!("there is no kind {}; see [[kind]]", unit.kind);
            return Err((Rejection::UnknownKind, why));
        };
        if unit.id.is_reserved() {
            return Err((Rejection::BadUnit, format!("{} is an id of Rollcall itself", unit.id)));
        }
        let id = unit.id.as_str();
        let parts = if reading.is_sparkplug { sparkplug::parts(id) } else { rules.name.parts(id) };
        let Some(parts) = parts else {
            let names = match reading.is_sparkplug {
                true => format!("{} and {}", sparkplug::NODE, sparkplug::DEVICE),
                false => rules.name.to_string(),
            };
            let why = format!("{id} is no id of a unit of kind {}: they are {names}", unit.kind);
            return Err((Rejection::BadUnit, why));
        };
        let labels = parts.into_iter().filter(|(name, _)| *name != "unit");
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok((rules, reading, labels))
    }
}

impl BodyReader for Bodies {
    fn heartbeat(&self, unit: Unit, body: &[u8], arrived: Timestamp) -> Result<Heartbeat, Refused> {
        let (rules, reading, labels) = self.known(&unit)?;
        let buffer = self.values.as_deref();
        let metrics = buffer.and_then(|buffer| buffer.metrics_of(&unit.kind));
        let mut issues = PayloadIssues::default();
        let parsed = payload::read(
            payload::without_mark(body),
            &reading.fields,
            metrics,
            &rules,
            arrived,
            &mut issues,
        );
        if let (Some(most), Some(sent)) = (reading.max_age, parsed.sent)
            && arrived.since(sent) > most
        {
            let why = format!("it was sent at {sent}, longer ago than mqtt.max_age allows");
            return Err((Rejection::TooOld, why));
        }
        if let Some(buffer) = buffer {
            buffer.take(&unit, parsed.at, parsed.values);
        }
        for (issue, detail) in issues.take() {
            self.telemetry.payload_issue(&unit, issue, &detail);
        }
        let declared = Declared { topic_labels: labels, ..parsed.declared };
        let [at, arrived] = [parsed.at, arrived].map(|at| self.recent.after_announcement(at));
        Ok(Heartbeat { arrived, declared, broker: Some(BrokerName::http()), ..Heartbeat::of(unit, at) })
    }

    fn departure(&self, unit: Unit, at: Timestamp) -> Result<(Heartbeat, Announcement), Refused> {
        let (_, reading, labels) = self.known(&unit)?;
        let declared = Declared { topic_labels: labels, ..Declared::default() };
        let broker = Some(BrokerName::http());
        let first = Heartbeat { declared, broker: broker.clone(), ..Heartbeat::of(unit.clone(), at) };
        self.recent.announced(&unit, (at, at), None, true);
        Ok((first, Announcement { broker, ..Announcement::of(unit, at, reading.gone) }))
    }
}
