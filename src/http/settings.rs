//! The settings of a unit as clients send them, in the body of a PUT or in the lines of an inventory.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::cause::json;
use crate::clock::Timestamp;
use crate::presence::{
    Labels, MAX_LABEL, MAX_LABELS, MAX_PAUSE, MAX_TIMEOUT, Override, Unit, UnitSettings, is_label_name,
    is_label_value, is_pause, is_timeout,
};
use crate::routing::alert_silence::is_comment;

/// The label that holds the parent of a unit.
pub(super) const PARENT: &str = "parent";

/// Settings as clients send them. Without a timeout or grace the unit and its kind decide; any other missing field
/// stays unchanged.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SettingsRequest {
    pub timeout_seconds: Option<f64>,
    pub grace_seconds: Option<f64>,
    pub labels: Option<Labels>,
    #[serde(deserialize_with = "some")]
    pub paused_until: Option<Option<Timestamp>>,
    /// The unit that this unit is connected through, such as its gateway: `<kind>/<unit>`.
    pub parent: Option<String>,
    #[serde(deserialize_with = "some")]
    pub note: Option<Option<String>>,
}

/// Distinguishes `null` from a missing field.
fn some<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

impl SettingsRequest {
    pub fn from_json(fields: Map<String, Value>) -> Result<SettingsRequest, String> {
        json::from_value(Value::Object(fields))
    }

    /// The settings of a unit.
    ///
    /// # Errors
    /// The first wrong setting, in words.
    pub fn check(self, unit: &Unit, now: Timestamp) -> Result<UnitSettings, String> {
        if unit.id.is_reserved() {
            return Err(format!("the id {:?} is reserved", unit.id.as_str()));
        }
        let timeout = span("timeout_seconds", self.timeout_seconds)?;
        if timeout.is_some_and(|timeout| !is_timeout(timeout)) {
            return Err(format!("timeout_seconds is from 1 second to {} days", days(MAX_TIMEOUT)));
        }
        let grace = span("grace_seconds", self.grace_seconds)?;
        let mut labels = self.labels.unwrap_or_default();
        if let Some(parent) = self.parent {
            let named: Option<Unit> = parent
                .split_once('/')
                .and_then(|(kind, id)| Some(Unit::new(kind.parse().ok()?, id.parse().ok()?)));
            if named.is_none_or(|parent| parent == *unit) {
                return Err("parent is another unit, as <kind>/<unit>".to_owned());
            }
            labels.insert(PARENT.to_owned(), parent);
        }
        check_labels(&labels)?;
        if self.paused_until.flatten().is_some_and(|until| !is_pause(until, now)) {
            return Err(format!("paused_until must be in the future, within {} days", days(MAX_PAUSE)));
        }
        let note = self.note.map(Option::unwrap_or_default);
        if note.as_ref().is_some_and(|note| !is_comment(note)) {
            return Err("note is a short text without control characters".to_owned());
        }
        Ok(UnitSettings { set: Override { timeout, grace }, labels, paused_until: self.paused_until, note })
    }
}

fn days(span: Duration) -> u64 {
    span.as_secs() / 86_400
}

/// A span in seconds, to the millisecond.
fn span(name: &str, seconds: Option<f64>) -> Result<Option<Duration>, String> {
    let Some(seconds) = seconds else { return Ok(None) };
    if !(0.0..=MAX_TIMEOUT.as_secs_f64()).contains(&seconds) {
        return Err(format!("{name} is a number of seconds from 0 to {}", MAX_TIMEOUT.as_secs()));
    }
    Ok(Some(Duration::from_millis((seconds * 1000.0).round() as u64)))
}

fn check_labels(labels: &Labels) -> Result<(), String> {
    if labels.len() > MAX_LABELS {
        return Err(format!("labels are at most {MAX_LABELS}"));
    }
    for (name, value) in labels {
        if !is_label_name(name) || matches!(name.as_str(), "kind" | "unit") {
            return Err(format!("{name:?} is not a name of a label"));
        }
        if !is_label_value(value) {
            return Err(format!(
                "label {name}: its value is a text of 1 to {MAX_LABEL} bytes without control characters"
            ));
        }
    }
    Ok(())
}
