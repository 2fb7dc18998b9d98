//! One silence, written down: the offline record, its id, and the transitions that are told.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Kind, Labels, NameError, Unit, UnitId};
use crate::clock::Timestamp;

/// The identity of a silence: `<kind>:<unit>:<last seen in ms>`, for a unit that was never seen
/// the moment of its registration. The same silence always has the same id, whatever is presumed of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RecordId {
    /// Whose silence.
    pub unit: Unit,
    /// Since when.
    pub last_seen: Timestamp,
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.unit, self.last_seen.as_millis())
    }
}

impl From<RecordId> for String {
    fn from(id: RecordId) -> String {
        id.to_string()
    }
}

/// Why a text is no record id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a record id is written kind:unit:milliseconds")]
pub struct RecordIdError;

impl FromStr for RecordId {
    type Err = RecordIdError;
    fn from_str(text: &str) -> Result<RecordId, RecordIdError> {
        let (unit, ms) = text.rsplit_once(':').ok_or(RecordIdError)?;
        let unit = unit.parse().map_err(|_: NameError| RecordIdError)?;
        let ms: i64 = ms.parse().map_err(|_| RecordIdError)?;
        let id = RecordId { unit, last_seen: Timestamp::from_millis(ms) };
        // One spelling for one silence: no sign, no leading zeros.
        (id.last_seen.as_millis() == ms && id.to_string() == text).then_some(id).ok_or(RecordIdError)
    }
}

impl TryFrom<String> for RecordId {
    type Error = RecordIdError;
    fn try_from(text: String) -> Result<RecordId, RecordIdError> {
        text.parse()
    }
}

/// Why a record was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It was heard once and then no more.
    Silence,
    /// It was registered and never heard.
    NeverSeen,
}

impl Cause {
    /// The word for it in records and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Silence => "silence",
            Cause::NeverSeen => "never_seen",
        }
    }
}

/// Why a record was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Closing {
    /// The unit was heard again.
    Return,
    /// It is allowed a longer silence than before, and that has not passed.
    Policy,
    /// The unit was removed from the fleet.
    Removed,
    /// Its kind is configured no more: the unit is not watched.
    KindRemoved,
}

impl Closing {
    /// The word for it in records and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Closing::Return => "return",
            Closing::Policy => "policy",
            Closing::Removed => "removed",
            Closing::KindRemoved => "kind_removed",
        }
    }
}

/// One silence of one unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfflineRecord {
    /// Its identity.
    pub id: RecordId,
    /// The unit's kind.
    pub kind: Kind,
    /// The unit's id.
    pub unit: UnitId,
    /// The unit's labels when the record was written.
    #[serde(default)]
    pub labels: Labels,
    /// The newest heartbeat; for a unit that was never seen, its registration.
    pub last_seen: Timestamp,
    /// Since when it is presumed to be silent, where that is later: up to then it may have been heard, and what was
    /// recorded of that is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_from: Option<Timestamp>,
    /// Offline since.
    pub deadline: Timestamp,
    /// When the record was written.
    pub detected_at: Timestamp,
    /// When the record was closed; `None` while the unit is offline.
    pub back_at: Option<Timestamp>,
    /// Why it was opened.
    pub cause: Cause,
    /// Why it was closed; `None` while the unit is offline.
    pub closed_by: Option<Closing>,
}

/// A record opening or closing: what operators are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    /// The record was opened.
    Offline,
    /// The record was closed.
    Online,
}

impl OfflineRecord {
    /// The transition that this form of the record stands for.
    pub fn transition(&self) -> Transition {
        match self.closed_by {
            None => Transition::Offline,
            Some(_) => Transition::Online,
        }
    }

    /// The unit it speaks of.
    pub fn whose(&self) -> &Unit {
        &self.id.unit
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
