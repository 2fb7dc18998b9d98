//! How the incident of a group is stored: as one more member of the group, which is over and forgotten after a week.
//!
//! So it moves with its group, and needs no key of its own. Its stage is followed by a colon and the incident, where
//! other members have the receivers that were notified; in an encoding that has no space and no line break.

use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;

use super::Result;
use super::json::{from_json, to_json};
use super::notification::{KEPT_AFTER_END, Notification};
use crate::clock::Timestamp;
use crate::presence::{GroupIncident, Incident, Stage};

/// The name of the member.
pub(super) const MEMBER: &str = "incident";

/// How long it is kept without another notification of its group.
const KEPT: Duration = Duration::from_secs(7 * 86_400);

/// The text in which the incident of a group is kept.
pub fn incident_text(incident: &GroupIncident) -> Result<String> {
    Ok(format!(":{}", BASE64URL_NOPAD.encode(to_json(incident)?.as_bytes())))
}

/// Reads such a text; `None` if it is unreadable.
pub fn incident_in(text: &str) -> Option<GroupIncident> {
    let json = BASE64URL_NOPAD.decode(text.strip_prefix(':')?.as_bytes()).ok()?;
    from_json("an incident", std::str::from_utf8(&json).ok()?).ok()
}

/// Whether the notification was judged: its JSON has a list of incidents. Within a string a quotation mark is escaped,
/// and no label has a list.
pub(super) fn is_judged(body: &str) -> bool {
    body.contains(LIST)
}

const LIST: &str = r#","incident":["#;

/// The JSON of a notification with its incident.
pub(super) fn with_incident(body: &str, notified: &str) -> String {
    let rest = body.strip_suffix('}').unwrap_or(body);
    format!(r#"{rest},"incident":{notified}}}"#)
}

/// The incident in the notification of a group.
pub(super) fn known_in(group: &str, body: &[u8]) -> Option<Incident> {
    let notification = Notification::read(group, body).notification?;
    notification.incident.into_iter().flatten().next()
}

/// The incidents of a notification (JSON): one or none.
pub(super) fn incident_json(notified: Option<&Incident>) -> Result<String> {
    to_json(&notified.into_iter().collect::<Vec<_>>())
}

/// From when on the member counts as over, so that it is kept for so long.
pub(super) fn over_at(now: Timestamp) -> Timestamp {
    now + (KEPT - KEPT_AFTER_END)
}

/// The letter of the member.
pub(super) fn letter() -> char {
    Stage::Over.letter()
}
