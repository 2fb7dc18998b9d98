//! Alert silences: for a while receivers are not notified of the units that they match, as with Alertmanager's
//! silences.
//!
//! An alert silence has matchers, all of which must match, a begin and an end. It is pending before its begin, active
//! until its end, then expired; all of that follows from the time, so no step has to happen at the begin or at the end.
//! An alert silence is stored for five days after its end. Every change is decided here, from the stored alert
//! silence.
//!
//! # Why it is not called a silence
//! The silence of a unit is the time without heartbeats. A silence of an operator is an alert silence in the code,
//! `silence` on the command line and in Alertmanager's API.
//!
//! # Why a change may end one alert silence and begin another
//! As in Alertmanager: the past of an alert silence stays readable. Its end can be moved, and its begin and
//! comment; with other matchers it is another one.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::alert::is_match;
use super::{Matcher, Operator};
use crate::clock::Timestamp;
use crate::presence::OfflineRecord;

/// How long an alert silence is stored after its end.
pub const RETENTION: Duration = Duration::from_secs(120 * 3600);
/// The most alert silences that are stored, the expired ones included.
pub const MAX_SILENCES: usize = 10_000;
/// The most matchers of an alert silence, and of a filter of alerts: an expression takes memory.
pub const MAX_MATCHERS: usize = 64;
/// The longest matchers of an alert silence, names and values together, in bytes.
pub const MAX_MATCHERS_BYTES: usize = 8 * 1024;
/// The longest author and the longest comment, in bytes.
pub const MAX_AUTHOR: usize = 128;
pub const MAX_COMMENT: usize = 1024;

/// The id of an alert silence: a random UUID, in its usual spelling.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SilenceId(u128);

impl SilenceId {
    /// The id from random bits.
    pub fn of_random(bits: u128) -> SilenceId {
        // Version 4 and the variant of RFC 9562.
        let bits = (bits & !(0xf << 76)) | (0x4 << 76);
        SilenceId((bits & !(0x3 << 62)) | (0x2 << 62))
    }
}

impl fmt::Display for SilenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        write!(f, "{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

impl fmt::Debug for SilenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not an id of an alert silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of a silence is a UUID, such as 5c9c9b7e-3d2c-4a55-9f0c-2d7d0c8a4a11")]
pub struct SilenceIdError;

impl FromStr for SilenceId {
    type Err = SilenceIdError;
    fn from_str(text: &str) -> Result<SilenceId, SilenceIdError> {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        let is_hex = digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let id = u128::from_str_radix(&digits, 16).ok().filter(|_| is_hex).map(SilenceId);
        id.filter(|id| id.to_string() == text.to_ascii_lowercase()).ok_or(SilenceIdError)
    }
}

impl TryFrom<String> for SilenceId {
    type Error = SilenceIdError;
    fn try_from(text: String) -> Result<SilenceId, SilenceIdError> {
        text.parse()
    }
}

impl From<SilenceId> for String {
    fn from(id: SilenceId) -> String {
        id.to_string()
    }
}

/// The state of an alert silence at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SilenceState {
    Active,
    /// The alert silence has not begun.
    Pending,
    Expired,
}

impl SilenceState {
    pub fn as_str(self) -> &'static str {
        match self {
            SilenceState::Active => "active",
            SilenceState::Pending => "pending",
            SilenceState::Expired => "expired",
        }
    }
}

/// While an alert silence is active, receivers are not notified of units that all its matchers match.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredSilence", into = "StoredSilence")]
pub struct AlertSilence {
    pub id: SilenceId,
    /// At least one.
    pub matchers: Vec<Matcher>,
    pub starts_at: Timestamp,
    /// From then on the alert silence covers nothing.
    pub ends_at: Timestamp,
    pub updated_at: Timestamp,
    pub author: String,
    pub comment: String,
}

impl AlertSilence {
    pub fn state(&self, now: Timestamp) -> SilenceState {
        if self.ends_at <= now {
            SilenceState::Expired
        } else if now < self.starts_at {
            SilenceState::Pending
        } else {
            SilenceState::Active
        }
    }

    /// Whether the alert silence is over for so long that it is removed.
    pub fn is_forgotten(&self, now: Timestamp) -> bool {
        self.ends_at + RETENTION < now
    }

    /// Whether all matchers match the record.
    pub fn matches(&self, record: &OfflineRecord) -> bool {
        self.matchers.iter().all(|matcher| is_match(matcher, record))
    }

    pub fn is_active(&self, now: Timestamp) -> bool {
        self.state(now) == SilenceState::Active
    }

    /// Whether the alert silence holds back notifications of the record.
    pub fn covers(&self, record: &OfflineRecord, now: Timestamp) -> bool {
        self.is_active(now) && self.matches(record)
    }

    /// This alert silence, ended now.
    fn ended(&self, now: Timestamp) -> AlertSilence {
        AlertSilence { starts_at: self.starts_at.min(now), ends_at: now, updated_at: now, ..self.clone() }
    }
}

/// Alert silences in the order in which they are shown: active ones, the next to end first; pending ones, the next to
/// begin first; expired ones, the last to end first.
pub fn in_order(silences: &[AlertSilence], now: Timestamp) -> Vec<&AlertSilence> {
    let mut shown: Vec<&AlertSilence> = silences.iter().filter(|one| !one.is_forgotten(now)).collect();
    shown.sort_by_key(|silence| match silence.state(now) {
        SilenceState::Active => (SilenceState::Active, silence.ends_at, Reverse(Timestamp::ZERO)),
        SilenceState::Pending => (SilenceState::Pending, silence.starts_at, Reverse(Timestamp::ZERO)),
        SilenceState::Expired => (SilenceState::Expired, Timestamp::ZERO, Reverse(silence.ends_at)),
    });
    shown
}

/// An operator's request for an alert silence.
#[derive(Clone, Debug, PartialEq)]
pub struct SilenceRequest {
    pub matchers: Vec<Matcher>,
    /// A moment in the past counts as now.
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
    pub author: String,
    pub comment: String,
}

/// Why a change of alert silences is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SilenceError {
    #[error("there is no silence {0}")]
    Unknown(SilenceId),
    #[error("silence {0} has expired; add a new one")]
    Expired(SilenceId),
    #[error("a silence needs a matcher, such as site=\"north\"")]
    NoMatcher,
    #[error(
        "a silence needs at least one matcher that does not match an empty value, or it covers everything"
    )]
    MatchesEmpty,
    #[error("a silence has at most {MAX_MATCHERS} matchers of together at most {MAX_MATCHERS_BYTES} bytes")]
    LongMatchers,
    #[error(
        "the expressions of all silences take too much memory; compare with = instead of =~, or expire silences with expressions"
    )]
    ManyExpressions,
    #[error("a silence needs an author of at most {MAX_AUTHOR} bytes, without control characters")]
    BadAuthor,
    #[error(
        "the comment of a silence has at most {MAX_COMMENT} bytes, and no control characters but line breaks"
    )]
    BadComment,
    #[error("a silence ends after its begin and after now")]
    BadTimes,
    #[error(
        "there are {MAX_SILENCES} silences already, the expired ones of the last five days included; expire some"
    )]
    TooMany,
}

/// Whether a matcher matches a missing label. As in Alertmanager, a matcher that excludes a value does not count.
fn is_empty(matcher: &Matcher) -> bool {
    matches!(matcher.operator(), Operator::Equal | Operator::Matches) && matcher.is_match("")
}

impl SilenceRequest {
    fn check(&self, now: Timestamp) -> Result<(), SilenceError> {
        let length = |matcher: &Matcher| matcher.name().len() + matcher.value().len();
        let length: usize = self.matchers.iter().map(length).sum();
        if self.matchers.is_empty() {
            Err(SilenceError::NoMatcher)
        } else if self.matchers.len() > MAX_MATCHERS || length > MAX_MATCHERS_BYTES {
            Err(SilenceError::LongMatchers)
        } else if self.matchers.iter().all(is_empty) {
            Err(SilenceError::MatchesEmpty)
        } else if !is_author(&self.author) {
            Err(SilenceError::BadAuthor)
        } else if !is_comment(&self.comment) {
            Err(SilenceError::BadComment)
        } else if self.ends_at <= self.starts_at.max(now) {
            Err(SilenceError::BadTimes)
        } else {
            Ok(())
        }
    }

    fn with_id(self, id: SilenceId, starts_at: Timestamp, now: Timestamp) -> AlertSilence {
        let SilenceRequest { matchers, ends_at, author, comment, .. } = self;
        AlertSilence { id, matchers, starts_at, ends_at, updated_at: now, author, comment }
    }
}

/// Whether a text may name the author of a change.
pub fn is_author(text: &str) -> bool {
    let length = text.trim().len();
    length > 0 && text.len() <= MAX_AUTHOR && !text.chars().any(char::is_control)
}

/// Whether a text may be the comment of a change.
pub fn is_comment(text: &str) -> bool {
    let is_control = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    text.len() <= MAX_COMMENT && !text.chars().any(is_control)
}

/// Decides on a new alert silence, or a change of one of `stored`. Answers the alert silences to write: the last one
/// is in force. `fresh` is the id of a new alert silence. As in Alertmanager, a change that an alert silence does not
/// allow ends it and creates a new one.
pub fn put(
    stored: &[AlertSilence],
    id: Option<SilenceId>,
    wanted: SilenceRequest,
    fresh: SilenceId,
    now: Timestamp,
) -> Result<Vec<AlertSilence>, SilenceError> {
    wanted.check(now)?;
    let before = match id {
        None => None,
        Some(id) => Some(known(stored, id).ok_or(SilenceError::Unknown(id))?),
    };
    let starts_at = wanted.starts_at.max(now);
    let Some(before) = before else { return Ok(vec![wanted.with_id(fresh, starts_at, now)]) };
    let is_same = before.matchers == wanted.matchers;
    match before.state(now) {
        // Alertmanager's clients send times with fewer digits.
        SilenceState::Active if is_same && is_same_second(before.starts_at, wanted.starts_at) => {
            Ok(vec![wanted.with_id(before.id, before.starts_at, now)])
        }
        SilenceState::Pending if is_same && wanted.starts_at >= now => {
            Ok(vec![wanted.with_id(before.id, starts_at, now)])
        }
        SilenceState::Expired => Ok(vec![wanted.with_id(fresh, starts_at, now)]),
        _ => Ok(vec![before.ended(now), wanted.with_id(fresh, starts_at, now)]),
    }
}

fn is_same_second(one: Timestamp, other: Timestamp) -> bool {
    one.as_millis() / 1000 == other.as_millis() / 1000
}

/// Decides to end an alert silence now; `None` if it is over.
pub fn expire(
    stored: &[AlertSilence],
    id: SilenceId,
    now: Timestamp,
) -> Result<Option<AlertSilence>, SilenceError> {
    let silence = known(stored, id).ok_or(SilenceError::Unknown(id))?;
    Ok((silence.state(now) != SilenceState::Expired).then(|| silence.ended(now)))
}

/// Decides to move the end of an alert silence to a later moment; `None` if it lasts as long already.
pub fn extend(
    stored: &[AlertSilence],
    id: SilenceId,
    ends_at: Timestamp,
    now: Timestamp,
) -> Result<Option<AlertSilence>, SilenceError> {
    let silence = known(stored, id).ok_or(SilenceError::Unknown(id))?;
    if silence.state(now) == SilenceState::Expired {
        return Err(SilenceError::Expired(id));
    }
    if ends_at <= silence.starts_at.max(now) {
        return Err(SilenceError::BadTimes);
    }
    let is_later = ends_at > silence.ends_at;
    Ok(is_later.then(|| AlertSilence { ends_at, updated_at: now, ..silence.clone() }))
}

fn known(stored: &[AlertSilence], id: SilenceId) -> Option<&AlertSilence> {
    stored.iter().find(|silence| silence.id == id)
}

/// An alert silence as text. Name, operator and value are apart, because a value may hold anything.
#[derive(Serialize, Deserialize)]
struct StoredSilence {
    id: SilenceId,
    matchers: Vec<StoredMatcher>,
    starts_at: Timestamp,
    ends_at: Timestamp,
    updated_at: Timestamp,
    author: String,
    comment: String,
}

#[derive(Serialize, Deserialize)]
struct StoredMatcher {
    name: String,
    op: String,
    value: String,
}

impl From<AlertSilence> for StoredSilence {
    fn from(silence: AlertSilence) -> StoredSilence {
        let AlertSilence { id, matchers, starts_at, ends_at, updated_at, author, comment } = silence;
        let stored = |matcher: &Matcher| StoredMatcher {
            name: matcher.name().to_owned(),
            op: matcher.operator().as_str().to_owned(),
            value: matcher.value().to_owned(),
        };
        let matchers = matchers.iter().map(stored).collect();
        StoredSilence { id, matchers, starts_at, ends_at, updated_at, author, comment }
    }
}

impl TryFrom<StoredSilence> for AlertSilence {
    type Error = String;
    fn try_from(stored: StoredSilence) -> Result<AlertSilence, String> {
        let StoredSilence { id, matchers, starts_at, ends_at, updated_at, author, comment } = stored;
        let matcher = |StoredMatcher { name, op, value }: StoredMatcher| {
            let operator = Operator::ALL.into_iter().find(|operator| operator.as_str() == op);
            Matcher::in_force(name, operator.ok_or_else(|| format!("{op:?} is not an operator"))?, value)
        };
        let matchers = matchers.into_iter().map(matcher).collect::<Result<Vec<Matcher>, String>>()?;
        if matchers.is_empty() {
            return Err("it has no matcher".to_owned());
        }
        Ok(AlertSilence { id, matchers, starts_at, ends_at, updated_at, author, comment })
    }
}

#[cfg(test)]
mod tests;
