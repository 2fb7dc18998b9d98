//! Messages of devices: heartbeats that counted, and messages or parts of payloads that did not.

use std::time::Duration;

use super::labels::{
    AnnouncementOutcome, PayloadIssue, PublishedOutcome, Rejection, TOO_MANY, ValueOutcome, heard_as_str,
};
use super::problems::{KIND_FULL, Severity};
use super::{MAX_SHOWN, Telemetry, truncate};
use crate::presence::{HeartbeatResult, Kind, Unit};

impl Telemetry {
    /// Heartbeats had this result.
    pub fn heartbeats(&self, heard: HeartbeatResult, count: u64) {
        self.series.heartbeats.with_label_values(&[heard_as_str(heard)]).inc_by(count);
    }

    /// Announcements that units are gone had this effect.
    pub fn announcements(&self, what: AnnouncementOutcome, count: u64) {
        if count > 0 {
            self.series.announcements.with_label_values(&[what.as_str()]).inc_by(count);
        }
    }

    /// Publishing the state of a unit had this outcome.
    pub fn state_published(&self, outcome: PublishedOutcome) {
        self.series.states_published.with_label_values(&[outcome.as_str()]).inc();
        if outcome == PublishedOutcome::Refused
            && let Some(suppressed) = self.samples.admit("states_published")
        {
            tracing::warn!(
                suppressed,
                "a state was not published: the broker refuses rollcall/state/#, or has no room to retain it"
            );
        }
    }

    /// A heartbeat of a new id was not admitted: its kind has `most` units.
    pub fn unit_refused(&self, unit: &Unit, most: u64) {
        self.heartbeats(HeartbeatResult::TooMany, 1);
        let kind = unit.kind.as_str();
        let text = format!(
            "kind {kind} has as many units as max_units allows, {most}; new ids are not admitted: raise max_units, or find \
             the device that invents ids"
        );
        if let Some(suppressed) = self.samples.admit(TOO_MANY) {
            tracing::warn!(%unit, suppressed, "unit not admitted: {text}");
        }
        if !self.problems.has(KIND_FULL, kind) {
            self.problems.set(KIND_FULL, kind, text, Severity::Warning);
        }
    }

    /// The kind admitted every id that was heard lately.
    pub fn kind_has_room(&self, kind: &Kind) {
        self.problems.clear(KIND_FULL, kind.as_str());
    }

    /// A heartbeat was applied this long after its arrival.
    pub fn heartbeat_lag(&self, lag: Duration) {
        self.series.heartbeat_lag.observe(lag.as_secs_f64());
    }

    /// A message did not count. `what` is logged, at a limited rate.
    pub fn message_rejected(&self, topic: &str, why: Rejection, what: &str) {
        if matches!(why, Rejection::BadTopic | Rejection::UnknownKind) {
            self.topic_of_no_kind(topic);
        }
        self.rejected(topic, why, what);
    }

    /// A heartbeat over HTTP did not count. `path` is the path of its request. `what` is logged, at a limited rate.
    pub fn heartbeat_refused(&self, path: &str, why: Rejection, what: &str) {
        self.rejected(path, why, what);
    }

    fn rejected(&self, topic: &str, why: Rejection, what: &str) {
        self.series.heartbeats.with_label_values(&[why.as_str()]).inc();
        if let Some(suppressed) = self.samples.admit(why.as_str()) {
            let topic = truncate(topic, MAX_SHOWN);
            tracing::warn!(topic, reason = why.as_str(), suppressed, "message rejected: {what}");
        }
    }

    /// A part of a payload was ignored. `what` is logged, at a limited rate.
    pub fn payload_issue(&self, unit: &Unit, issue: PayloadIssue, what: &str) {
        self.series.payload_issues.with_label_values(&[issue.as_str()]).inc();
        if let Some(suppressed) = self.samples.admit(issue.as_str()) {
            tracing::warn!(%unit, reason = issue.as_str(), suppressed, "part of a payload ignored: {what}");
        }
    }

    /// A message was not read that names its units itself, or is about all units of a kind.
    pub fn message_unread(&self, topic: &str, issue: PayloadIssue, what: &str) {
        self.series.payload_issues.with_label_values(&[issue.as_str()]).inc();
        if let Some(suppressed) = self.samples.admit(issue.as_str()) {
            let topic = truncate(topic, MAX_SHOWN);
            tracing::warn!(topic, reason = issue.as_str(), suppressed, "announcement not read: {what}");
        }
    }

    /// The outcome of writing values of units (`[[kind.metric]]`).
    pub fn unit_values(&self, what: ValueOutcome, count: u64) {
        self.series.unit_values.with_label_values(&[what.as_str()]).inc_by(count);
        if count > 0
            && what == ValueOutcome::Overflow
            && let Some(suppressed) = self.samples.admit("unit_values")
        {
            tracing::warn!(
                suppressed,
                "values of units left out: they come faster than the engine takes them"
            );
        }
    }
}
