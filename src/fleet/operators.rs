//! Changes of a unit by operators: its open record is acknowledged, or the unit is paused, registered or removed. Each
//! change is in the audit.
//!
//! # Why the entry of the audit is written first
//! A crash between the two leaves an entry without its change, never a change without its entry. Then the operator
//! gets no answer, and repeats the change. A change that is not possible leaves no entry.

use std::fmt;
use std::time::Duration;

use super::{Roll, Silences, UnitChange};
use crate::clock::Timestamp;
use crate::presence::{RecordId, Unit, UnitSettings};
use crate::store::{AuditEntry, Audited, Result};

/// The unit or the record that an operator means.
#[derive(Clone, Debug)]
pub enum Subject {
    Unit(Unit),
    /// An open record.
    Record(RecordId),
}

impl Subject {
    pub fn unit(&self) -> &Unit {
        match self {
            Subject::Unit(unit) => unit,
            Subject::Record(id) => &id.unit,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Unit(unit) => write!(f, "{}/{}", unit.kind, unit.id),
            Subject::Record(id) => write!(f, "{id}"),
        }
    }
}

/// Changes units, and writes each change into the audit.
#[derive(Clone, Copy)]
pub struct Operators<'a> {
    pub roll: &'a Roll,
    pub silences: &'a Silences,
}

impl Operators<'_> {
    /// Changes a unit. `by`: the operator, for the audit. `false`: there is nothing to change.
    pub async fn change(
        &self,
        subject: &Subject,
        wanted: &UnitChange,
        (by, comment): (&str, &str),
        now: Timestamp,
    ) -> Result<bool> {
        let comment = comment.to_owned();
        let (change, text) = match wanted {
            UnitChange::Acknowledge(Some(_)) => (Audited::Acknowledged, comment),
            UnitChange::Acknowledge(None) => (Audited::AcknowledgementUndone, comment),
            UnitChange::Pause(Some(until)) => (Audited::Paused, format!("until {until}: {comment}")),
            UnitChange::Pause(None) => (Audited::PauseEnded, comment),
            UnitChange::Register(wanted) => (Audited::Registered, settings(wanted, &comment)),
            UnitChange::Remove => (Audited::Removed, comment),
        };
        let id = match subject {
            Subject::Unit(_) => None,
            Subject::Record(id) => Some(id),
        };
        let entry = AuditEntry { at: now, author: by.to_owned(), change, subject: subject.to_string(), text };
        let pause = pause_of(wanted).map(|(change, text)| AuditEntry { change, text, ..entry.clone() });
        let note = async {
            self.silences.note(&entry).await?;
            match &pause {
                Some(pause) => self.silences.note(pause).await,
                None => Ok(()),
            }
        };
        self.roll.change(subject.unit(), id, wanted, now, note).await
    }
}

/// The pause that settings begin or end, as an entry of its own: history reads pauses from the audit.
fn pause_of(wanted: &UnitChange) -> Option<(Audited, String)> {
    let UnitChange::Register(UnitSettings { paused_until, .. }) = wanted else { return None };
    Some(match (*paused_until)? {
        Some(until) => (Audited::Paused, format!("until {until}: ")),
        None => (Audited::PauseEnded, String::new()),
    })
}

/// The new settings of a unit, for the audit.
fn settings(wanted: &UnitSettings, comment: &str) -> String {
    let UnitSettings { set, labels, paused_until, note } = wanted;
    let span =
        |name: &str, span: Option<Duration>| span.map(|span| format!("{name} {} s", span.as_secs_f64()));
    let spans = [span("timeout", set.timeout), span("grace", set.grace)].into_iter().flatten();
    let labels = labels.iter().map(|(name, value)| format!("{name}={value:?}"));
    let pause = paused_until.map(|until| match until {
        Some(until) => format!("paused until {until}"),
        None => "not paused".to_owned(),
    });
    let note = note.as_ref().map(|note| format!("note {note:?}"));
    let settings = spans.chain(labels).chain(pause).chain(note).collect::<Vec<String>>().join(", ");
    let texts = [settings.as_str(), comment].into_iter().filter(|text| !text.is_empty());
    texts.collect::<Vec<&str>>().join(": ")
}
