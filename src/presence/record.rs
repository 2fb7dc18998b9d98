//! The offline record of one silence, its id, and its transitions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::name::from_text;
use super::{Interval, Kind, Labels, NameError, Unit, UnitId};
use crate::clock::Timestamp;

/// The identity of a silence: `<kind>:<unit>:<last seen in ms>`; for a unit that was never seen, with the
/// moment of its registration. One silence always has one id, whatever is presumed of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId {
    pub unit: Unit,
    pub last_seen: Timestamp,
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl RecordId {
    /// Its text, without the cost of formatting.
    pub fn text(&self) -> String {
        let ms = self.last_seen.as_millis().to_string();
        let mut text = String::with_capacity(self.unit.text_len() + 1 + ms.len());
        self.unit.write_into(&mut text);
        text.push(':');
        text.push_str(&ms);
        text
    }
}

impl Serialize for RecordId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for RecordId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RecordId, D::Error> {
        from_text(deserializer)
    }
}

/// Why a text is not a record id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a record id is written kind:unit:milliseconds")]
pub struct RecordIdError;

impl FromStr for RecordId {
    type Err = RecordIdError;
    fn from_str(text: &str) -> Result<RecordId, RecordIdError> {
        let (unit, ms) = text.rsplit_once(':').ok_or(RecordIdError)?;
        let unit = unit.parse().map_err(|_: NameError| RecordIdError)?;
        // One spelling for one silence: no sign, no leading zeros.
        let is_plain = ms.bytes().all(|b| b.is_ascii_digit()) && (ms == "0" || !ms.starts_with('0'));
        let ms: i64 = ms.parse().ok().filter(|_| is_plain).ok_or(RecordIdError)?;
        let last_seen = Timestamp::from_millis(ms);
        (last_seen.as_millis() == ms).then_some(RecordId { unit, last_seen }).ok_or(RecordIdError)
    }
}

/// Why a record was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The unit was heard and then fell silent.
    Silence,
    /// The unit was registered and never heard.
    NeverSeen,
    /// The broker published the last will of the unit, or a device said that it is lost.
    LastWill,
    /// A Sparkplug node or device was declared dead by its node or its broker.
    NodeDeath,
    /// The broker or a bridge reported that the unit disconnected.
    Disconnected,
    /// The unit goes offline and comes back repeatedly: no silence, but an episode of which receivers are notified
    /// instead, see `flapping.rs`. It is never stored as a record.
    Flapping,
    /// The unit is silent for unusually long by its rhythm and not offline: a notice to receivers that ask for it, and
    /// no record.
    Unusual,
}

impl Cause {
    pub const ALL: [Cause; 7] = [
        Cause::Silence,
        Cause::NeverSeen,
        Cause::LastWill,
        Cause::NodeDeath,
        Cause::Disconnected,
        Cause::Flapping,
        Cause::Unusual,
    ];

    /// The causes of records of silences.
    pub const OF_SILENCES: [Cause; 5] =
        [Cause::Silence, Cause::NeverSeen, Cause::LastWill, Cause::NodeDeath, Cause::Disconnected];

    /// Whether the end of the unit was announced.
    pub fn is_announced(self) -> bool {
        matches!(self, Cause::LastWill | Cause::NodeDeath | Cause::Disconnected)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Silence => "silence",
            Cause::NeverSeen => "never_seen",
            Cause::LastWill => "last_will",
            Cause::NodeDeath => "node_death",
            Cause::Disconnected => "disconnected",
            Cause::Flapping => "flapping",
            Cause::Unusual => "unusual",
        }
    }
}

/// Why a record was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Closing {
    /// The unit was heard again.
    Return,
    /// The unit is allowed a longer silence than before, which has not passed.
    Policy,
    /// The unit was removed from the fleet.
    Removed,
    /// The kind is no longer configured: the unit is not watched.
    KindRemoved,
    /// The unit flapped, is stable now and not offline. Only episodes are closed for this reason.
    Stable,
    /// The unit flapped, is stable now and offline. Only episodes are closed for this reason.
    StableOffline,
}

impl Closing {
    pub fn as_str(self) -> &'static str {
        match self {
            Closing::Return => "return",
            Closing::Policy => "policy",
            Closing::Removed => "removed",
            Closing::KindRemoved => "kind_removed",
            Closing::Stable => "stable",
            Closing::StableOffline => "stable_offline",
        }
    }
}

/// An operator has seen an open record and takes care of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledgement {
    pub at: Timestamp,
    pub author: String,
    #[serde(default)]
    pub comment: String,
}

/// One silence of one unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfflineRecord {
    pub id: RecordId,
    pub kind: Kind,
    pub unit: UnitId,
    /// The unit's labels when the record was written.
    #[serde(default)]
    pub labels: Labels,
    /// The newest heartbeat; for a unit that was never seen, its registration.
    pub last_seen: Timestamp,
    /// The presumed start of the silence, where it is later than `last_seen`: a heartbeat may have come up to then,
    /// and its recording is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_from: Option<Timestamp>,
    /// Offline since.
    pub deadline: Timestamp,
    /// When the record was written.
    pub detected_at: Timestamp,
    /// When the record was closed; `None` while the unit is offline.
    pub back_at: Option<Timestamp>,
    pub cause: Cause,
    /// `None` while the unit is offline.
    pub closed_by: Option<Closing>,
    /// The last acknowledgement; it stays when the record is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<Acknowledgement>,
}

/// The opening or closing of a record, of which operators are notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    /// The record was opened.
    Offline,
    /// The record was closed.
    Online,
}

impl OfflineRecord {
    /// From the deadline that passed to the end of the record.
    pub fn outage(&self) -> Interval {
        Interval { from: self.deadline, to: self.back_at.unwrap_or(Timestamp::NEVER) }
    }

    /// The open record of a silence, without labels.
    pub fn open(
        unit: Unit,
        last_seen: Timestamp,
        deadline: Timestamp,
        detected_at: Timestamp,
    ) -> OfflineRecord {
        OfflineRecord {
            kind: unit.kind.clone(),
            unit: unit.id.clone(),
            id: RecordId { unit, last_seen },
            labels: Labels::new(),
            last_seen,
            silent_from: None,
            deadline,
            detected_at,
            back_at: None,
            cause: Cause::Silence,
            closed_by: None,
            acknowledged: None,
        }
    }

    /// Whether an operator takes care of the open record: reminders and escalations stop.
    pub fn is_acknowledged(&self) -> bool {
        self.acknowledged.is_some() && self.back_at.is_none()
    }

    /// Whether the record is an episode of flapping, and no silence.
    pub fn is_flapping(&self) -> bool {
        self.cause == Cause::Flapping
    }

    /// Whether it is the notice of an unusual silence, and the unit is not offline for it.
    pub fn is_unusual(&self) -> bool {
        self.cause == Cause::Unusual
    }

    /// Whether it is a stored silence: neither an episode of flapping nor the notice of an unusual silence.
    pub fn is_silence(&self) -> bool {
        !self.is_flapping() && !self.is_unusual()
    }

    /// The newest transition of the record.
    pub fn transition(&self) -> Transition {
        match self.closed_by {
            None => Transition::Offline,
            Some(_) => Transition::Online,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_id_has_one_spelling() {
        let id: RecordId = "detector:a:b:1732147200000".parse().unwrap();
        assert_eq!(id.unit.to_string(), "detector:a:b");
        assert_eq!(id.to_string(), "detector:a:b:1732147200000");
        for bad in ["detector:a", "detector:a:", "detector:a:-1", "detector:a:01", "detector:a:+1", "a:1"] {
            assert!(bad.parse::<RecordId>().is_err(), "{bad}");
        }
    }
}
