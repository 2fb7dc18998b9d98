//! The current problems, by name, as `/readyz` shows them.
//!
//! One cause is one problem: while a dependency is down, the work that waits for it and the filters that are not heard
//! are shown as its consequences. A loop only names the dependency that it waits for; only this module knows the
//! consequences. The log has one line when a dependency goes down, and one when it is up again.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

use crate::clock::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct HealthProblem {
    /// A short constant name.
    pub name: &'static str,
    /// The problem, and the advice.
    pub text: String,
    pub severity: Severity,
    /// The consequences of the problem.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub consequences: Vec<Consequence>,
}

/// A problem that follows from another one.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Consequence {
    pub name: String,
    pub text: String,
}

impl Consequence {
    fn of(problem: HealthProblem) -> Consequence {
        Consequence { name: problem.name.to_owned(), text: problem.text }
    }
}

impl HealthProblem {
    /// A problem without consequences.
    pub fn new(name: &'static str, text: String, severity: Severity) -> HealthProblem {
        HealthProblem { name, text, severity, consequences: Vec::new() }
    }

    /// Puts the problem under the first one, if that is the engine that is down; otherwise puts it first.
    pub fn put_first(self, all: &mut Vec<HealthProblem>) {
        match all.first_mut().filter(|one| one.name == ENGINE_DOWN && !one.consequences.is_empty()) {
            Some(engine) => engine.consequences.push(Consequence::of(self)),
            None => all.insert(0, self),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Rollcall does not do its work.
    Serious,
    /// Rollcall works, but an operator should check the cause.
    Warning,
}

pub(super) const ENGINE_DOWN: &str = "engine_down";
pub(super) const ENGINE_FAILS: &str = "engine_fails";
pub(super) const UNREADABLE: &str = "unreadable_values";
pub(super) const MQTT_DISCONNECTED: &str = "mqtt_disconnected";
pub(super) const HOST_STATE_FORGED: &str = "host_state_forged";
pub(super) const SHARE_TAKEN: &str = "share_taken";
pub(super) const CLIENT_ID_TAKEN: &str = "client_id_taken";
pub(super) const SEVERAL_LISTEN: &str = "several_listen";
pub(super) const CLIENT_ID_SHARED: &str = "client_id_shared";
pub(super) const INSTANCE_NAME_TAKEN: &str = "instance_name_taken";
/// Another client or instance has the client id or the name of this one.
pub const PROBLEMS_OF_IDS: [&str; 3] = [CLIENT_ID_TAKEN, CLIENT_ID_SHARED, INSTANCE_NAME_TAKEN];
pub(super) const NOT_DELIVERED: &str = "not_delivered";
pub(super) const RECIPIENTS_REFUSED: &str = "recipients_refused";
pub(super) const RECIPIENTS_DEFERRED: &str = "recipients_deferred";
pub(super) const SERVERS_FAILING: &str = "receiver_servers_failing";
pub(super) const ORPHANED: &str = "orphaned_notifications";
pub(super) const BROKER_DROPS: &str = "broker_drops_messages";
pub(super) const KIND_FULL: &str = "kind_full";
pub(super) const UNUSUAL_FULL: &str = "unusual_full";
pub(super) const UNIT_AT_TWO_PLACES: &str = "unit_at_two_places";
pub(super) const HISTORY_DOWN: &str = "history_down";
pub(super) const HISTORY_INCOMPLETE: &str = "history_incomplete";
pub(super) const CLOCK_JUMPED: &str = "clock_jumped";
pub(super) const RELOAD_REFUSED: &str = "reload_refused";
pub(super) const CONFIGURATIONS_DIFFER: &str = "configurations_differ";
pub(super) const KINDS_REMOVED: &str = "kinds_not_configured";
pub const NOT_HEARING: &str = "not_hearing";
pub(super) const BROKER_UNHEARD: &str = "broker_not_heard";
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

/// A dependency of Rollcall. While it is down, the work that waits for it is no problem of its own, but a consequence
/// of this one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Dependency {
    Engine,
    /// A broker, by its address.
    Broker(String),
}

impl Dependency {
    fn name(&self) -> &'static str {
        match self {
            Dependency::Engine => ENGINE_DOWN,
            Dependency::Broker(_) => MQTT_DISCONNECTED,
        }
    }
}

/// A dependency that is down.
struct Outage {
    since: Timestamp,
    /// The answer of the dependency, and the advice.
    why: String,
}

struct Entry {
    problem: HealthProblem,
    /// The dependency that it waits for, and the name of the waiting work.
    waits: Option<(Dependency, &'static str)>,
}

/// Problems of hearing, which may have any cause: they are shown under a dependency that is down.
const UNHEARD: [&str; 2] = [NOT_HEARING, FILTER_UNHEARD];

/// The problems by name and subject, such as a receiver, because one name may have several. Both come from constants
/// and from the configuration, so there are few.
#[derive(Default)]
pub(super) struct OpenProblems(Mutex<ProblemEntries>);

#[derive(Default)]
struct ProblemEntries {
    entries: BTreeMap<(&'static str, String), Entry>,
    outages: BTreeMap<Dependency, Outage>,
}

impl OpenProblems {
    /// At the start nothing is proved to work.
    pub(super) fn at_start() -> OpenProblems {
        let problems = OpenProblems::default();
        let yet = |what: &str| format!("{what} since the start");
        problems.set(ENGINE_DOWN, "", yet("the engine has not answered"), Severity::Serious);
        problems.set(MQTT_DISCONNECTED, "", yet("the MQTT broker was not reached"), Severity::Serious);
        problems.set(NOT_HEARING, "", not_hearing(None), Severity::Serious);
        problems
    }

    /// Sets a problem. Returns whether it is new.
    pub(super) fn set(&self, name: &'static str, which: &str, text: String, severity: Severity) -> bool {
        let entry = Entry { problem: HealthProblem::new(name, text, severity), waits: None };
        self.0.lock().set((name, which.to_owned()), entry)
    }

    /// Sets work that waits for a dependency, which is down for the reason `why`. Only serious work makes the
    /// dependency count as down. Returns whether it was up before.
    pub(super) fn set_waiting(
        &self,
        (cause, work): (Dependency, &'static str),
        (name, which): (&'static str, &str),
        (text, why): (String, &str),
        severity: Severity,
        now: Timestamp,
    ) -> bool {
        let mut state = self.0.lock();
        let mut is_new = false;
        if severity == Severity::Serious {
            let outage = state.outages.entry(cause.clone()).or_insert_with(|| {
                is_new = true;
                Outage { since: now, why: String::new() }
            });
            why.clone_into(&mut outage.why);
        }
        let problem = HealthProblem::new(name, format!("{text}: {why}"), severity);
        let entry = Entry { problem, waits: Some((cause, work)) };
        state.set((name, which.to_owned()), entry);
        is_new
    }

    /// Clears a problem. Returns whether it existed and did not wait for a dependency that is down.
    pub(super) fn clear(&self, name: &'static str, which: &str) -> bool {
        let mut state = self.0.lock();
        // This runs after every delivery, mostly without a problem.
        if state.entries.is_empty() {
            return false;
        }
        state.clear(&(name, which.to_owned()))
    }

    /// Clears the problems of that name, except those about an entry of `which`.
    pub(super) fn keep(&self, name: &'static str, which: &[String]) {
        self.0.lock().entries.retain(|(one, known), _| *one != name || which.contains(known));
    }

    pub(super) fn has_any(&self, name: &'static str) -> bool {
        self.0.lock().entries.keys().any(|(one, _)| *one == name)
    }

    pub(super) fn has(&self, name: &'static str, which: &str) -> bool {
        self.0.lock().entries.contains_key(&(name, which.to_owned()))
    }

    /// Returns whether that problem has this text.
    pub(super) fn says(&self, name: &'static str, which: &str, text: &str) -> bool {
        self.0.lock().entries.get(&(name, which.to_owned())).is_some_and(|one| one.problem.text == text)
    }

    pub(super) fn is_down(&self, cause: &Dependency) -> bool {
        self.0.lock().outages.contains_key(cause)
    }

    pub(super) fn has_outage(&self) -> bool {
        !self.0.lock().outages.is_empty()
    }

    /// The problems, serious ones first; work that waits for a dependency that is down is listed under it.
    pub(super) fn list(&self) -> Vec<HealthProblem> {
        let state = self.0.lock();
        let mut all: Vec<HealthProblem> = state.outages.keys().map(|cause| state.outage(cause)).collect();
        let alone = state.entries.values().filter(|entry| !state.is_shown_under(entry));
        for problem in alone.map(|entry| entry.problem.clone()) {
            match all.first_mut().filter(|_| !state.outages.is_empty() && UNHEARD.contains(&problem.name)) {
                Some(first) => first.consequences.push(Consequence::of(problem)),
                None => all.push(problem),
            }
        }
        let (mut all, warnings): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|problem| problem.severity == Severity::Serious);
        all.extend(warnings);
        all
    }
}

impl ProblemEntries {
    fn set(&mut self, key: (&'static str, String), entry: Entry) -> bool {
        let before = self.entries.insert(key, entry);
        let waited = before.as_ref().and_then(|before| before.waits.clone());
        self.end_if_over(waited.map(|(cause, _)| cause));
        before.is_none()
    }

    fn clear(&mut self, key: &(&'static str, String)) -> bool {
        let Some(before) = self.entries.remove(key) else { return false };
        let was_alone = !self.is_shown_under(&before);
        self.end_if_over(before.waits.map(|(cause, _)| cause));
        was_alone
    }

    fn is_shown_under(&self, entry: &Entry) -> bool {
        entry.waits.as_ref().is_some_and(|(cause, _)| self.outages.contains_key(cause))
    }

    fn waiting<'a>(
        &'a self,
        cause: &'a Dependency,
    ) -> impl Iterator<Item = (&'static str, &'a HealthProblem)> {
        let waits = move |entry: &'a Entry| {
            let (of, work) = entry.waits.as_ref()?;
            (of == cause).then_some((*work, &entry.problem))
        };
        self.entries.values().filter_map(waits)
    }

    /// Ends the outage of a dependency when no serious work waits for it. Other work succeeds at its next attempt.
    fn end_if_over(&mut self, cause: Option<Dependency>) {
        let Some(cause) = cause else { return };
        if self.waiting(&cause).any(|(_, problem)| problem.severity == Severity::Serious) {
            return;
        }
        if self.outages.remove(&cause).is_some() {
            self.entries.retain(|_, entry| entry.waits.as_ref().is_none_or(|(of, _)| *of != cause));
        }
    }

    /// The problem of a dependency that is down.
    fn outage(&self, cause: &Dependency) -> HealthProblem {
        let Outage { since, why } = &self.outages[cause];
        let waiting: BTreeSet<&str> = self.waiting(cause).map(|(work, _)| work).collect();
        let verb = if waiting.len() == 1 { "waits" } else { "wait" };
        let waiting = waiting.into_iter().collect::<Vec<_>>().join(", ");
        let text = format!("{why}; down since {since}; {waiting} {verb} for it");
        let consequences = self.waiting(cause).map(|(_, problem)| Consequence::of(problem.clone()));
        HealthProblem {
            consequences: consequences.collect(),
            ..HealthProblem::new(cause.name(), text, Severity::Serious)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_732_147_200_000);

    /// The names of the problems, each with the number of its consequences.
    fn shown(problems: &OpenProblems) -> Vec<(&'static str, usize)> {
        problems.list().iter().map(|one| (one.name, one.consequences.len())).collect()
    }

    #[test]
    fn what_waits_for_a_dependency_that_is_down_is_shown_under_it_until_it_is_up() {
        let problems = OpenProblems::default();
        let waits = |work: &'static str, severity| {
            let name = if severity == Severity::Serious { ENGINE_DOWN } else { ENGINE_FAILS };
            let text = (format!("{work} is not done"), "redis is gone");
            problems.set_waiting((Dependency::Engine, work), (name, work), text, severity, NOW)
        };
        assert!(!waits("walk", Severity::Warning));
        assert_eq!(shown(&problems), [(ENGINE_FAILS, 0)], "nothing says that the engine is down");
        assert!(waits("sweep", Severity::Serious));
        assert!(!waits("intake", Severity::Serious));
        problems.set(NOT_HEARING, "", not_hearing(None), Severity::Serious);
        problems.set(KIND_FULL, "a", "of another cause".to_owned(), Severity::Warning);
        assert_eq!(shown(&problems), [(ENGINE_DOWN, 4), (KIND_FULL, 0)]);
        let text = problems.list()[0].text.clone();
        assert_eq!(text, format!("redis is gone; down since {NOW}; intake, sweep, walk wait for it"));
        problems.clear(ENGINE_DOWN, "sweep");
        assert_eq!(shown(&problems), [(ENGINE_DOWN, 3), (KIND_FULL, 0)]);
        problems.clear(ENGINE_DOWN, "intake");
        assert_eq!(shown(&problems), [(NOT_HEARING, 0), (KIND_FULL, 0)], "the walk is tried again");
        assert!(!problems.has_outage());
    }

    #[test]
    fn a_failure_for_another_reason_waits_for_nothing() {
        let problems = OpenProblems::default();
        let text = ("sweep is not done".to_owned(), "redis is gone");
        problems.set_waiting(
            (Dependency::Engine, "sweep"),
            (ENGINE_DOWN, "sweep"),
            text,
            Severity::Serious,
            NOW,
        );
        problems.set(ENGINE_DOWN, "sweep", "no right to XADD".to_owned(), Severity::Serious);
        assert_eq!(shown(&problems), [(ENGINE_DOWN, 0)]);
        assert!(problems.list()[0].text.contains("XADD") && !problems.has_outage());
    }

    #[test]
    fn the_connections_to_a_broker_are_one_problem_and_those_to_another_are_another() {
        let problems = OpenProblems::default();
        for (broker, connection) in [("one", "a"), ("one", "b"), ("two", "c")] {
            let cause = (Dependency::Broker(broker.to_owned()), "intake");
            let text = (format!("connection {connection}"), "refused");
            problems.set_waiting(cause, (MQTT_DISCONNECTED, connection), text, Severity::Serious, NOW);
        }
        assert_eq!(shown(&problems), [(MQTT_DISCONNECTED, 2), (MQTT_DISCONNECTED, 1)]);
    }
}
