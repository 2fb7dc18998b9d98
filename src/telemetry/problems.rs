//! The problems of the moment, by name, as `/readyz` shows them.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::clock::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// A short constant name.
    pub name: &'static str,
    /// The problem, and the advice.
    pub text: String,
    pub severity: Severity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Rollcall does not do its work.
    Serious,
    /// Rollcall works; an operator should look into it anyway.
    Warning,
}

pub(super) const ENGINE_DOWN: &str = "engine_down";
pub(super) const ENGINE_FAILS: &str = "engine_fails";
pub(super) const UNREADABLE: &str = "unreadable_values";
pub(super) const MQTT_DISCONNECTED: &str = "mqtt_disconnected";
pub(super) const NOT_DELIVERED: &str = "not_delivered";
pub(super) const RECIPIENTS_REFUSED: &str = "recipients_refused";
pub(super) const SERVERS_FAILING: &str = "receiver_servers_failing";
pub(super) const ORPHANED: &str = "orphaned_notifications";
pub(super) const BROKER_DROPS: &str = "broker_drops_messages";
pub(super) const KIND_FULL: &str = "kind_full";
pub(super) const CONFIGURATIONS_DIFFER: &str = "configurations_differ";
pub(super) const KINDS_REMOVED: &str = "kinds_not_configured";
pub const NOT_HEARING: &str = "not_hearing";
pub(super) const FILTER_REMOVED: &str = "topic_removed";
pub(super) const FILTER_UNHEARD: &str = "topic_not_heard";
pub(super) const FILTER_UNPROVED: &str = "topic_not_proved";

/// The advice while nothing is heard.
const HEAR: &str = "If this lasts, check that the broker runs, that mqtt.username may publish and read \
                    rollcall/canary/…, and that the engine answers; `rollcall check` tests all of it";

pub(super) fn not_hearing(heard: Option<Timestamp>) -> String {
    match heard {
        None => format!("no canary has come back yet; no unit is declared offline until one does. {HEAR}"),
        Some(heard) => format!(
            "blind: no canary that was sent after {heard} has come back; no unit is declared offline until one does. \
             {HEAR}"
        ),
    }
}

/// The problems by name and, where there are several of one name, by their subject, such as a receiver.
/// Both come from constants and from the configuration, so there are few.
pub(super) struct Problems(Mutex<BTreeMap<(&'static str, String), Problem>>);

impl Problems {
    /// At the start nothing is proved to work.
    pub(super) fn at_start() -> Problems {
        let problems = Problems(Mutex::default());
        let yet = |what: &str| format!("{what} since the start");
        problems.set(ENGINE_DOWN, "", yet("the engine has not answered"), Severity::Serious);
        problems.set(MQTT_DISCONNECTED, "", yet("the MQTT broker was not reached"), Severity::Serious);
        problems.set(NOT_HEARING, "", not_hearing(None), Severity::Serious);
        problems
    }

    /// Answers whether it is new.
    pub(super) fn set(&self, name: &'static str, which: &str, text: String, severity: Severity) -> bool {
        self.lock().insert((name, which.to_owned()), Problem { name, text, severity }).is_none()
    }

    /// Answers whether there was one.
    pub(super) fn clear(&self, name: &'static str, which: &str) -> bool {
        let mut problems = self.lock();
        // Asked for after every delivery: most of the time there is none.
        !problems.is_empty() && problems.remove(&(name, which.to_owned())).is_some()
    }

    /// Clears the problems of that name that concern none of these.
    pub(super) fn keep(&self, name: &'static str, which: &[String]) {
        self.lock().retain(|(one, known), _| *one != name || which.contains(known));
    }

    /// Whether there is one of that name.
    pub(super) fn has_any(&self, name: &'static str) -> bool {
        self.lock().keys().any(|(one, _)| *one == name)
    }

    /// How many there are of that name.
    pub(super) fn count(&self, name: &'static str) -> usize {
        self.lock().keys().filter(|(one, _)| *one == name).count()
    }

    pub(super) fn has(&self, name: &'static str, which: &str) -> bool {
        self.lock().contains_key(&(name, which.to_owned()))
    }

    pub(super) fn list(&self) -> Vec<Problem> {
        let (mut all, warnings): (Vec<_>, Vec<_>) =
            self.lock().values().cloned().partition(|problem| problem.severity == Severity::Serious);
        all.extend(warnings);
        all
    }

    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(&'static str, String), Problem>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}
