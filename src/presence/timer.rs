//! Timers: notifications at a given time, unless they are cancelled.
//!
//! A [`Timer`] is waiting until its moment; then it fires, once, and the receivers of its class are notified. Each
//! firing has an id of its own, `<timer>:<due ms>`, which every attempt carries: a receiver that has seen it drops the
//! repeat. Registering a timer again gives it another moment, and so another id.
//!
//! Blind time does not affect timers, because they do not depend on units.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::name::{IdFault, MAX_ID, check_id, is_class_name, text_names};
use crate::cause::json;
use crate::clock::Timestamp;

mod changes;

pub use changes::{DueTimer, Forgotten, TimerCancelled, TimerRegistered};

/// The most bytes of a timer's data.
pub const MAX_TIMER_BYTES: usize = 64 * 1024;

/// Why a timer is refused. The text says what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimerError {
    /// Not `[a-z0-9_-]{1,32}`.
    #[error("the type of a timer is 1 to 32 of the characters a-z, 0-9, _ and -")]
    Type,
    #[error("the id of a timer is at least one character long")]
    EmptyId,
    /// More than [`MAX_ID`] bytes.
    #[error("the id of a timer is at most {MAX_ID} bytes long")]
    LongId,
    /// `/`, or a character that no topic may have.
    #[error("the id of a timer has no /, +, #, control characters or noncharacters of Unicode")]
    BadId,
    #[error("the id of a timer is neither . nor .., which have another meaning in paths")]
    DotId,
    #[error("the data of a timer are JSON: {0}")]
    Data(String),
    #[error("the data of a timer are at most {MAX_TIMER_BYTES} bytes long")]
    LargeData,
    /// Not among [`TimerState::ALL`].
    #[error("the state of a timer is waiting, fired, delivered, dead or cancelled")]
    State,
}

impl From<IdFault> for TimerError {
    fn from(fault: IdFault) -> TimerError {
        match fault {
            IdFault::Empty => TimerError::EmptyId,
            IdFault::Long => TimerError::LongId,
            IdFault::Bad => TimerError::BadId,
            IdFault::Dots => TimerError::DotId,
        }
    }
}

/// The name of a timer: 1–128 bytes of UTF-8 without `/ + #` and control characters, as the id of a unit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(Box<str>);

/// Characters that are escaped in the id of a firing: white space, which separates ids in stored lists; those that JSON
/// escapes; and those that a header of HTTP may not hold.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'"').add(b'\\');

impl TimerId {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id of the notification of this timer, when it fires at its moment: `<id>:<due ms>`.
    pub fn firing(&self, due: Timestamp) -> String {
        format!("{}:{}", utf8_percent_encode(&self.0, ESCAPED), due.as_millis())
    }
}

impl FromStr for TimerId {
    type Err = TimerError;
    fn from_str(id: &str) -> Result<TimerId, TimerError> {
        check_id(id)?;
        Ok(TimerId(id.into()))
    }
}

/// The name of a class of timers, `[a-z0-9_-]{1,32}`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerType(Arc<str>);

impl TimerType {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TimerType {
    type Err = TimerError;
    fn from_str(name: &str) -> Result<TimerType, TimerError> {
        if is_class_name(name) { Ok(TimerType(name.into())) } else { Err(TimerError::Type) }
    }
}

text_names!(TimerId, TimerType);

/// The data of a timer: any JSON, stored as written, at most [`MAX_TIMER_BYTES`]. A timer without data has `null`.
/// Data serialize as the JSON that they are.
#[derive(Clone, PartialEq, Eq)]
pub struct TimerData(Box<str>);

impl TimerData {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads the data that an engine stored; `None`: the text is not stored data.
    pub fn stored(json: &str) -> Option<TimerData> {
        let data: &RawValue = serde_json::from_str(json).ok()?;
        (data.get().len() == json.len()).then(|| TimerData(json.into()))
    }
}

impl Default for TimerData {
    fn default() -> TimerData {
        TimerData("null".into())
    }
}

impl FromStr for TimerData {
    type Err = TimerError;
    fn from_str(json: &str) -> Result<TimerData, TimerError> {
        if json.len() > MAX_TIMER_BYTES {
            return Err(TimerError::LargeData);
        }
        let data: &RawValue = json::read(json.as_bytes()).map_err(TimerError::Data)?;
        Ok(TimerData(data.get().into()))
    }
}

impl fmt::Debug for TimerData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for TimerData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw = RawValue::from_string(self.0.clone().into()).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TimerData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TimerData, D::Error> {
        let raw: Box<RawValue> = Deserialize::deserialize(deserializer)?;
        if raw.get().len() > MAX_TIMER_BYTES {
            return Err(serde::de::Error::custom(TimerError::LargeData));
        }
        Ok(TimerData(raw.get().into()))
    }
}

/// How often the receivers of a timer are notified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// Tried again until the receiver acknowledges it, always under one id.
    #[default]
    AtLeastOnce,
    /// Marked in the engine before the only attempt, and never tried again.
    AtMostOnce,
}

impl Guarantee {
    /// Whether it is the guarantee of most timers, which is not written.
    pub fn is_at_least_once(&self) -> bool {
        *self == Guarantee::AtLeastOnce
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimerState {
    /// Its moment is not over, or no instance has checked it since.
    Waiting,
    /// It has fired, and a receiver has not got it yet.
    Fired,
    /// All its receivers have got it.
    Delivered,
    /// A receiver did not get it, or it is unknown if it did; no attempt follows.
    Dead,
    Cancelled,
}

impl TimerState {
    pub const ALL: [TimerState; 5] = [
        TimerState::Waiting,
        TimerState::Fired,
        TimerState::Delivered,
        TimerState::Dead,
        TimerState::Cancelled,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            TimerState::Waiting => "waiting",
            TimerState::Fired => "fired",
            TimerState::Delivered => "delivered",
            TimerState::Dead => "dead",
            TimerState::Cancelled => "cancelled",
        }
    }
}

impl FromStr for TimerState {
    type Err = TimerError;
    fn from_str(name: &str) -> Result<TimerState, TimerError> {
        TimerState::ALL.into_iter().find(|state| state.as_str() == name).ok_or(TimerError::State)
    }
}

/// The state of a fired timer at one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Receipt {
    /// No attempt has succeeded yet.
    Pending,
    /// The only attempt of a timer that is delivered at most once has begun, and its outcome is not recorded.
    Begun,
    Delivered,
    /// Given up.
    Dead,
    /// The instance that began the only attempt died before it recorded the outcome.
    Unknown,
}

impl Receipt {
    pub const ALL: [Receipt; 5] =
        [Receipt::Pending, Receipt::Begun, Receipt::Delivered, Receipt::Dead, Receipt::Unknown];

    /// The state of a fired timer, by its receipt at each of its receivers.
    pub fn state(receipts: impl IntoIterator<Item = Receipt> + Clone) -> TimerState {
        let is_open = |one| matches!(one, Receipt::Pending | Receipt::Begun);
        if receipts.clone().into_iter().any(is_open) {
            TimerState::Fired
        } else if receipts.into_iter().all(|one| one == Receipt::Delivered) {
            TimerState::Delivered
        } else {
            TimerState::Dead
        }
    }
}

/// A timer to register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTimer {
    pub id: TimerId,
    pub timer_type: TimerType,
    /// When it fires; a moment that is over fires at once.
    pub due: Timestamp,
    /// Whether the request names a span and not a moment: a span lasts as long if the clock of the fleet steps
    /// meanwhile.
    pub is_span: bool,
    pub data: TimerData,
}

/// A timer as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timer {
    pub id: TimerId,
    pub timer_type: TimerType,
    pub due: Timestamp,
    /// Of a span: the sum of the steps of the clock that `due` contains, see `clock/steps.rs`.
    pub stepped: Option<Duration>,
    pub data: TimerData,
    pub lifecycle: TimerLifecycle,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimerLifecycle {
    Waiting,
    Cancelled {
        at: Timestamp,
    },
    Fired {
        at: Timestamp,
        /// Its receipt at each receiver of its class, with the name of the receiver.
        receipts: Vec<(String, Receipt)>,
    },
}

impl Timer {
    /// A timer that waits from now on. `stepped`: the sum of the steps of the clock until now.
    pub fn waiting(new: NewTimer, stepped: Duration) -> Timer {
        let NewTimer { id, timer_type, due, is_span, data } = new;
        let stepped = is_span.then_some(stepped);
        Timer { id, timer_type, due, stepped, data, lifecycle: TimerLifecycle::Waiting }
    }

    /// The timer after steps of the clock that its moment does not contain; `None` if there are none. A step that the
    /// clock skipped did not pass.
    pub fn postponed(&self, stepped: Duration) -> Option<Timer> {
        let missing = stepped.checked_sub(self.stepped?).filter(|missing| !missing.is_zero())?;
        Some(Timer { due: self.due + missing, stepped: Some(stepped), ..self.clone() })
    }

    pub fn state(&self) -> TimerState {
        match &self.lifecycle {
            TimerLifecycle::Waiting => TimerState::Waiting,
            TimerLifecycle::Cancelled { .. } => TimerState::Cancelled,
            TimerLifecycle::Fired { receipts, .. } => Receipt::state(receipts.iter().map(|(_, one)| *one)),
        }
    }

    pub fn fired_at(&self) -> Option<Timestamp> {
        match self.lifecycle {
            TimerLifecycle::Fired { at, .. } => Some(at),
            _ => None,
        }
    }

    /// The timer when it fires now: each receiver of its class has to get it.
    pub fn fired(self, class: &TimerClass, now: Timestamp) -> Timer {
        let receipts = class.receivers.iter().map(|name| (name.clone(), Receipt::Pending)).collect();
        Timer { lifecycle: TimerLifecycle::Fired { at: now, receipts }, ..self }
    }

    /// The timer with this receipt at a receiver; `None` if that changes nothing.
    pub fn with_receipt(mut self, receiver: &str, receipt: Receipt) -> Option<Timer> {
        let TimerLifecycle::Fired { receipts, .. } = &mut self.lifecycle else { return None };
        let of_receiver = receipts.iter_mut().find(|(name, _)| name == receiver);
        let (_, before) = of_receiver.filter(|(_, before)| *before != receipt)?;
        *before = receipt;
        Some(self)
    }

    /// The id of the notification when it fires at its moment.
    pub fn firing(&self) -> String {
        self.id.firing(self.due)
    }
}

/// A timer in a notification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FiredTimer {
    pub id: TimerId,
    #[serde(rename = "type")]
    pub timer_type: TimerType,
    pub due: Timestamp,
    pub fired_at: Timestamp,
    pub data: TimerData,
    #[serde(default, skip_serializing_if = "Guarantee::is_at_least_once")]
    pub guarantee: Guarantee,
}

impl FiredTimer {
    pub fn new(timer: &Timer, class: &TimerClass, now: Timestamp) -> FiredTimer {
        FiredTimer {
            id: timer.id.clone(),
            timer_type: timer.timer_type.clone(),
            due: timer.due,
            fired_at: now,
            data: timer.data.clone(),
            guarantee: class.guarantee,
        }
    }

    /// A timer as it is stored; `None`: it has not fired.
    pub fn of(timer: Timer, guarantee: Guarantee) -> Option<FiredTimer> {
        let fired_at = timer.fired_at()?;
        let Timer { id, timer_type, due, data, .. } = timer;
        Some(FiredTimer { id, timer_type, due, fired_at, data, guarantee })
    }
}

/// A configured class of timers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimerClass {
    pub timer_type: TimerType,
    /// The names of the receivers, at least one.
    pub receivers: Vec<String>,
    pub guarantee: Guarantee,
    /// How long a timer that has ended can be read.
    pub keep: Duration,
    /// The most timers of this class that wait at a time.
    pub most: u64,
}

/// How long a timer that has ended can be read if its class says nothing else: seven days.
pub const DEFAULT_TIMER_KEEP: Duration = Duration::from_secs(7 * 86_400);
/// The default of the most timers of a class that wait at a time.
pub const DEFAULT_MOST_OF_CLASS: u64 = 2_000_000;
/// The default of the most timers of all classes that wait at a time.
pub const DEFAULT_MOST_TIMERS: u64 = 5_000_000;

#[cfg(test)]
mod tests;
