//! Calls of the engine, the loops that fail because of it, and stored values that cannot be read.

use std::fmt::Display;
use std::time::Duration;

use super::labels::{EngineWarning, Loop, Stored};
use super::problems::{CLOCK_JUMPED, Dependency, ENGINE_DOWN, ENGINE_FAILS, Severity, UNREADABLE};
use super::series::{NAMED_COMMANDS, OTHER};
use super::{LoopFailure, ServerAnswers, Telemetry};

impl Telemetry {
    /// A call of the engine ended.
    pub fn engine_command(&self, command: &'static str, took: Duration) {
        let command = if NAMED_COMMANDS.contains(&command) { command } else { OTHER };
        self.series.engine_command.with_label_values(&[command]).observe(took.as_secs_f64());
    }

    /// Sets the servers of the engine: the address of each, and whether it answers.
    pub fn engine_servers(&self, servers: Vec<(String, ServerAnswers)>) {
        self.engine_servers.replace(&self.series.engine_up, servers);
    }

    /// The start waits for the engine.
    pub fn waiting_for_engine(&self, why: &dyn Display, retry_in: Duration) {
        let text = format!("waiting for the engine: {why}");
        if !self.problems.says(ENGINE_DOWN, "", &text) {
            tracing::warn!(retry_in_ms = retry_in.as_millis() as u64, "{text}");
        }
        self.problems.set(ENGINE_DOWN, "", text, Severity::Serious);
    }

    /// A call of a loop failed. The loop counts as failing until [`Telemetry::engine_answered`] is called for the same
    /// loop: the success of another loop proves nothing about this one. `which` names one loop of several, such as the
    /// loop of a receiver.
    pub fn engine_failed(&self, what: Loop, which: &str, error: &dyn LoopFailure) {
        let (text, key) = (format!("{}{}: {error}", what.undone(), of_which(which)), key_of(what, which));
        if error.is_passing() && self.is_passing(&key, error) {
            return;
        }
        let (name, severity) = match error.is_blocking_value() && self.blocking_values.is_short(&key).0 {
            true => (ENGINE_FAILS, Severity::Warning),
            false => severity_of(what),
        };
        let was_up = self.engine_servers.is_up();
        if severity == Severity::Serious {
            self.problems.clear(ENGINE_FAILS, &key);
            self.engine_servers.set_up(false);
        }
        let is_new = match error.is_away() {
            true => {
                let (waits, undone) =
                    ((Dependency::Engine, what.as_str()), what.undone().to_owned() + &of_which(which));
                let (why, now) = (error.to_string(), self.clock.now());
                if self.problems.set_waiting(waits, (name, &key), (undone, &why), severity, now) {
                    tracing::error!(
                        name = what.as_str(),
                        "the engine is down, and work that needs it waits: {error}"
                    );
                }
                if self.problems.is_down(&Dependency::Engine) {
                    return;
                }
                false
            }
            false => self.problems.set(name, &key, text.clone(), severity),
        };
        let name = what.as_str();
        if is_new && was_up && severity == Severity::Serious {
            tracing::error!(name, "{text}");
        } else if let Some(suppressed) = self.samples.admit(name) {
            match error.is_away() {
                // Work that may wait was the first to find it: work that may not says that the engine is down.
                true => tracing::info!(name, suppressed, "{text}"),
                false => tracing::warn!(name, suppressed, "{text}"),
            }
        }
    }

    /// Returns whether the only problem of a loop is a short failure. The first failing loop logs it.
    fn is_passing(&self, key: &str, error: &dyn LoopFailure) -> bool {
        let (is_short, is_first) = self.passing.is_short(key);
        if is_first {
            tracing::info!("the primaries of redis may be changing: {error}");
        }
        is_short && !self.problems.has(ENGINE_DOWN, key) && !self.problems.has(ENGINE_FAILS, key)
    }

    /// A call of a loop succeeded. Logs it if the loop was failing.
    pub fn engine_answered(&self, what: Loop, which: &str) {
        let first = self.problems.clear(ENGINE_DOWN, "");
        let key = key_of(what, which);
        self.passing.clear(&key);
        if self.problems.clear(ENGINE_DOWN, &key) | self.problems.clear(ENGINE_FAILS, &key) {
            self.blocking_values.clear(&key);
            tracing::info!(name = what.as_str(), "calls of the engine succeed again{}", of_which(which));
        }
        if (first || !self.engine_servers.is_up()) && !self.problems.has_any(ENGINE_DOWN) {
            self.engine_servers.set_up(true);
            tracing::info!("engine answers");
        }
    }

    /// A part of a loop succeeded: a failure of the loop, if it has one, counts as begun at most `at_most` ago.
    pub fn engine_fails_for(&self, what: Loop, which: &str, at_most: Duration) {
        self.passing.shorten(&key_of(what, which), at_most);
    }

    /// The engine answers, but has this problem; `None` if the problem is over. Logs the change.
    pub fn engine_warning(&self, what: EngineWarning, text: Option<&str>) {
        let name = what.as_str();
        let gauge = self.series.engine_warnings.with_label_values(&[name]);
        let before = gauge.get();
        gauge.set(text.is_some().into());
        match text {
            Some(text) => {
                let severity = match what {
                    EngineWarning::RightsMissing | EngineWarning::SlotsMissing => Severity::Serious,
                    _ => Severity::Warning,
                };
                self.problems.set(name, "", text.to_owned(), severity);
            }
            None => drop(self.problems.clear(name, "")),
        }
        match (before, text) {
            (0, Some(text)) => tracing::warn!(name, "{text}"),
            (1, None) => tracing::info!(name, "problem is gone"),
            _ => {}
        }
    }

    /// The clock of the fleet has jumped forward, perhaps only for a moment; `None` if it has not.
    pub fn clock_jumped(&self, text: Option<String>) {
        match text {
            Some(text) => {
                if self.problems.set(CLOCK_JUMPED, "", text.clone(), Severity::Warning) {
                    tracing::warn!(name = CLOCK_JUMPED, "{text}");
                }
            }
            None => {
                if self.problems.clear(CLOCK_JUMPED, "") {
                    tracing::info!(name = CLOCK_JUMPED, "problem is gone");
                }
            }
        }
    }

    /// A stored value cannot be read. Work that needs it waits, or continues without it. `location` names the value;
    /// `why` names the fault and the advice. Logged once for each location.
    pub fn unreadable(&self, what: Stored, location: &str, why: &str) {
        if self.unreadable.met(what, location, why) {
            let what = what.as_str();
            tracing::error!(what, place = location, "a stored value cannot be read: {why}");
        }
        self.count_unreadable();
    }

    /// A value that could not be read is readable again, or gone.
    pub fn readable(&self, what: Stored, location: &str) {
        if self.unreadable.repaired(what, location) {
            tracing::info!(
                what = what.as_str(),
                place = location,
                "a stored value that could not be read is readable again"
            );
            self.count_unreadable();
        }
    }

    pub(super) fn count_unreadable(&self) {
        for what in Stored::ALL {
            let counted = self.unreadable.of(*what);
            let (key, name) = (what.as_str(), UNREADABLE);
            match counted {
                None => {
                    if self.problems.clear(name, key) {
                        self.series.unreadable_values.with_label_values(&[key]).set(0);
                    }
                }
                Some(counted) => {
                    let count = counted.count;
                    self.series.unreadable_values.with_label_values(&[key]).set(count as i64);
                    let text = format!(
                        "{count} stored values ({key}) cannot be read, such as {}; work that does not need them goes \
                         on",
                        counted.example
                    );
                    self.problems.set(name, key, text, Severity::Warning);
                }
            }
        }
    }
}

fn severity_of(what: Loop) -> (&'static str, Severity) {
    if what.stops_work() { (ENGINE_DOWN, Severity::Serious) } else { (ENGINE_FAILS, Severity::Warning) }
}

fn key_of(what: Loop, which: &str) -> String {
    format!("{} {which}", what.as_str())
}

fn of_which(which: &str) -> String {
    if which.is_empty() { String::new() } else { format!(" ({which})") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, Timestamp};

    fn names(telemetry: &Telemetry) -> Vec<&'static str> {
        telemetry.problems().iter().map(|problem| problem.name).collect()
    }

    struct WrongType;

    impl Display for WrongType {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a key is of a wrong type")
        }
    }

    impl LoopFailure for WrongType {
        fn is_blocking_value(&self) -> bool {
            true
        }
    }

    #[test]
    fn the_success_of_one_loop_does_not_clear_the_failure_of_another() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        for what in Loop::ALL {
            telemetry.engine_answered(*what, "");
        }
        telemetry.engine_failed(Loop::Sweep, "", &"no right to XADD");
        for what in Loop::ALL.iter().filter(|what| **what != Loop::Sweep) {
            telemetry.engine_answered(*what, "");
        }
        assert!(names(&telemetry).contains(&ENGINE_DOWN));
        assert!(!telemetry.engine_servers.is_up());
        telemetry.engine_answered(Loop::Sweep, "");
        assert!(!names(&telemetry).contains(&ENGINE_DOWN));
        assert!(telemetry.engine_servers.is_up());
    }

    #[test]
    fn the_failure_of_one_receiver_is_not_cleared_by_the_success_of_another() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        telemetry.engine_answered(Loop::Delivery, "mail");
        telemetry.engine_failed(Loop::Delivery, "mail", &"refused");
        telemetry.engine_answered(Loop::Delivery, "hook");
        assert!(names(&telemetry).contains(&ENGINE_DOWN));
        telemetry.engine_answered(Loop::Delivery, "mail");
        assert!(!names(&telemetry).contains(&ENGINE_DOWN));
    }

    #[test]
    fn the_failure_of_a_loop_that_is_not_essential_is_a_warning() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        telemetry.engine_answered(Loop::Lease, "");
        telemetry.engine_failed(Loop::Walk, "", &"slow");
        let last = telemetry.problems().pop().unwrap();
        assert_eq!((last.name, last.severity), (ENGINE_FAILS, Severity::Warning));
        assert!(telemetry.engine_servers.is_up());
    }

    #[test]
    fn a_loop_that_an_unreadable_value_blocks_is_serious_only_after_ten_seconds() {
        let clock = Clock::by_hand(Timestamp::ZERO);
        let telemetry = Telemetry::new(&clock);
        telemetry.engine_answered(Loop::Lease, "");
        let serious = |telemetry: &Telemetry| {
            telemetry.engine_failed(Loop::Sweep, "", &WrongType);
            let names: Vec<_> =
                telemetry.problems().into_iter().map(|one| (one.name, one.severity)).collect();
            assert!(
                !names.contains(&(ENGINE_DOWN, Severity::Serious))
                    || !names.iter().any(|one| one.0 == ENGINE_FAILS)
            );
            names.contains(&(ENGINE_DOWN, Severity::Serious))
        };
        assert!(!serious(&telemetry));
        assert!(telemetry.engine_servers.is_up());
        clock.advance(Duration::from_secs(9));
        assert!(!serious(&telemetry));
        telemetry.engine_answered(Loop::Sweep, "");
        clock.advance(Duration::from_secs(9));
        assert!(!serious(&telemetry), "it is another one");
        clock.advance(Duration::from_secs(11));
        assert!(serious(&telemetry));
        assert!(!telemetry.engine_servers.is_up());
        telemetry.engine_answered(Loop::Sweep, "");
        assert!(!telemetry.problems().iter().any(|one| [ENGINE_DOWN, ENGINE_FAILS].contains(&one.name)));
    }

    struct Failover;

    impl Display for Failover {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("the connection was closed")
        }
    }

    impl LoopFailure for Failover {
        fn is_passing(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_loop_that_fails_during_a_failover_is_a_problem_only_after_ten_seconds() {
        let clock = Clock::by_hand(Timestamp::ZERO);
        let telemetry = Telemetry::new(&clock);
        telemetry.engine_answered(Loop::Lease, "");
        let is_down = |telemetry: &Telemetry| {
            telemetry.engine_failed(Loop::Sweep, "", &Failover);
            names(telemetry).contains(&ENGINE_DOWN)
        };
        assert!(!is_down(&telemetry));
        clock.advance(Duration::from_secs(9));
        assert!(!is_down(&telemetry));
        telemetry.engine_answered(Loop::Sweep, "");
        clock.advance(Duration::from_secs(9));
        assert!(!is_down(&telemetry), "it is another failover");
        clock.advance(Duration::from_secs(9));
        telemetry.engine_failed(Loop::Intake, "", &Failover);
        assert!(!names(&telemetry).contains(&ENGINE_DOWN), "each loop has its own time");
        clock.advance(Duration::from_secs(1));
        assert!(is_down(&telemetry));
        assert!(!telemetry.engine_servers.is_up());
        telemetry.engine_answered(Loop::Sweep, "");
        assert!(!names(&telemetry).contains(&ENGINE_DOWN));
        assert!(telemetry.engine_servers.is_up());
    }

    #[test]
    fn a_loop_whose_parts_fail_one_after_another_is_no_problem_and_one_that_lasts_is() {
        let clock = Clock::by_hand(Timestamp::ZERO);
        let telemetry = Telemetry::new(&clock);
        telemetry.engine_answered(Loop::Lease, "");
        for _ in 0..5 {
            telemetry.engine_failed(Loop::Sweep, "", &Failover);
            clock.advance(Duration::from_secs(4));
            telemetry.engine_fails_for(Loop::Sweep, "", Duration::from_secs(2));
        }
        telemetry.engine_failed(Loop::Sweep, "", &Failover);
        assert!(!names(&telemetry).contains(&ENGINE_DOWN));
        // A part that succeeds does not hide the part that keeps failing.
        clock.advance(Duration::from_secs(8));
        telemetry.engine_fails_for(Loop::Sweep, "", Duration::from_secs(20));
        telemetry.engine_failed(Loop::Sweep, "", &Failover);
        assert!(names(&telemetry).contains(&ENGINE_DOWN));
    }

    #[test]
    fn a_failure_of_another_kind_during_a_failover_is_a_problem_at_once() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        telemetry.engine_answered(Loop::Lease, "");
        telemetry.engine_failed(Loop::Sweep, "", &Failover);
        telemetry.engine_failed(Loop::Sweep, "", &"no right to XADD");
        telemetry.engine_failed(Loop::Sweep, "", &Failover);
        assert!(names(&telemetry).contains(&ENGINE_DOWN));
    }

    #[test]
    fn an_engine_warning_is_not_serious_and_goes_when_it_is_over() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        telemetry.engine_warning(EngineWarning::PersistenceOff, Some("switch it on"));
        assert_eq!(telemetry.problems().last().unwrap().severity, Severity::Warning);
        telemetry.engine_answered(Loop::Sweep, "");
        telemetry.engine_failed(Loop::Sweep, "", &"gone");
        assert!(names(&telemetry).contains(&ENGINE_DOWN));
        telemetry.engine_warning(EngineWarning::PersistenceOff, None);
        assert!(!names(&telemetry).contains(&"persistence_off"));
    }
}
