//! The configuration: when it was loaded, and the results of reloads.

use super::Telemetry;
use super::problems::{
    CLIENT_ID_SHARED, CONFIGURATIONS_DIFFER, INSTANCE_NAME_TAKEN, NOT_DELIVERED, RECIPIENTS_DEFERRED,
    RECIPIENTS_REFUSED, RELOAD_REFUSED, SERVERS_FAILING, SEVERAL_LISTEN, Severity,
};
use crate::clock::Timestamp;

const DIFFERENT: &str = "another instance has other kinds, routes, receivers or timers in its configuration, so \
                         which receivers are notified depends on the instance: load the same file in all of them; \
                         `configuration` in /api/v1/instances shows which differ";

const SHARED: &str = "another instance of the fleet has the same client id at the same broker: whenever one of \
                      them connects, the broker ends the connection of the other one, and the time is blind; give each \
                      instance an instance.name, or an mqtt.client_id, of its own, and restart it";

const SEVERAL: &str = "devices connect straight to another instance of the fleet, too, and no instance hears the devices \
                       of another one: what each of them proves says nothing of the others, so the time may be blind, and \
                       the devices of an instance that ends are marked offline; leave [broker] in one instance, or name \
                       its broker in instance.brokers of one instance only, or let all of them use a broker elsewhere";

impl Telemetry {
    /// The configuration of the start.
    pub fn configuration_begins(&self, now: Timestamp) {
        self.series.reload_successful.set(1);
        self.problems.clear(RELOAD_REFUSED, "");
        self.series.reload_success_at.with_label_values::<&str>(&[]).set(now.as_seconds());
    }

    /// The configuration was loaded again; `text` names the consequences.
    pub fn configuration_loaded(&self, text: &str, now: Timestamp) {
        tracing::info!("configuration loaded again: {text}");
        self.configuration_begins(now);
    }

    /// Returns whether another instance of the fleet has other kinds, receivers or routes.
    pub fn configurations_differ(&self, is_so: bool) {
        if !is_so {
            if self.problems.clear(CONFIGURATIONS_DIFFER, "") {
                tracing::info!("all instances have the same configuration again");
            }
        } else if self.problems.set(CONFIGURATIONS_DIFFER, "", DIFFERENT.to_owned(), Severity::Warning) {
            tracing::warn!("{DIFFERENT}");
        }
    }

    /// Returns whether another instance has the client id of this one at the same broker.
    pub fn client_id_shared(&self, is_so: bool) {
        if !is_so {
            self.problems.clear(CLIENT_ID_SHARED, "");
        } else if self.problems.set(CLIENT_ID_SHARED, "", SHARED.to_owned(), Severity::Serious) {
            tracing::error!("two instances have one client id: {SHARED}");
        }
    }

    /// Returns whether devices connect straight to this instance, and to another one of the fleet.
    pub fn several_listen(&self, is_so: bool) {
        if !is_so {
            self.problems.clear(SEVERAL_LISTEN, "");
        } else if self.problems.set(SEVERAL_LISTEN, "", SEVERAL.to_owned(), Severity::Serious) {
            tracing::error!("several instances are brokers: {SEVERAL}");
        }
    }

    /// Another process has the name of this instance, which therefore calls itself `own`.
    pub fn instance_name_taken(&self, name: &str, own: &str) {
        let text = format!(
            "another process runs as instance {name}, so this one calls itself {own}, also as client of the broker: give \
             it an instance.name of its own, and restart it"
        );
        tracing::warn!("the name of this instance is taken: {text}");
        self.problems.set(INSTANCE_NAME_TAKEN, "", text, Severity::Warning);
    }

    /// A reload failed.
    pub fn configuration_refused(&self, why: &str) {
        tracing::error!(
            error = why,
            "the configuration was not loaded again; nothing has changed: correct the file"
        );
        self.series.reload_successful.set(0);
        let text = format!(
            "the last reload of the configuration was refused, and the former one is in use: {why}; correct the file \
             and reload"
        );
        self.problems.set(RELOAD_REFUSED, "", text, Severity::Warning);
    }

    /// A receiver is no longer configured: its problems end.
    pub fn receiver_removed(&self, receiver: &str) {
        self.problems.clear(NOT_DELIVERED, receiver);
        for name in [RECIPIENTS_REFUSED, RECIPIENTS_DEFERRED, SERVERS_FAILING] {
            self.problems.clear(name, receiver);
            let _ = self.series.receiver_incomplete.remove_label_values(&[receiver, name]);
        }
        let _ = self.series.queue_length.remove_label_values(&[receiver]);
        let _ = self.series.dead_letters.remove_label_values(&[receiver]);
        let _ = self.series.receiver_failing.remove_label_values(&[receiver]);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;
    use crate::telemetry::{DeliveryOutcome, Unreached};

    #[test]
    fn a_refused_reload_is_a_problem_until_one_succeeds() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        let refused = || telemetry.problems().iter().any(|one| one.name == RELOAD_REFUSED);
        telemetry.configuration_begins(Timestamp::ZERO);
        telemetry.configuration_refused("route.receivers: there is no receiver ana");
        assert!(refused());
        telemetry.configuration_loaded("routes are replaced", Timestamp::ZERO);
        assert!(!refused());
    }

    #[test]
    fn problems_and_series_of_a_receiver_end_when_it_is_removed() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        telemetry.receiver_configured("hook");
        telemetry.notification("hook", DeliveryOutcome::Retry, Duration::ZERO, "it is down");
        telemetry.unreached("hook", Some(&Unreached::Recipients("ana@example.org".to_owned())));
        let problems =
            || telemetry.problems().iter().filter(|one| one.text.contains("receiver hook")).count();
        let series = |name: &str| {
            let gathered = telemetry.gather();
            let family = gathered.iter().find(|one| one.name() == name);
            family.map_or(0, |family| family.get_metric().len())
        };
        let all =
            || (problems(), series("rollcall_receiver_failing"), series("rollcall_receiver_incomplete"));
        assert_eq!(all(), (2, 1, 1));
        telemetry.receiver_removed("hook");
        assert_eq!(all(), (0, 0, 0));
    }

    #[test]
    fn a_receiver_that_is_not_for_all_has_a_series_for_that_and_none_before() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        let incomplete = || {
            let text = prometheus::TextEncoder::new().encode_to_string(&telemetry.gather()).unwrap();
            let lines = text.lines().filter_map(|line| line.strip_prefix("rollcall_receiver_incomplete{"));
            lines.map(str::to_owned).collect::<Vec<String>>()
        };
        telemetry.receiver_configured("mail");
        telemetry.unreached("mail", None);
        assert_eq!(incomplete(), [""; 0]);
        telemetry.unreached("mail", Some(&Unreached::Deferred("ana@example.org".to_owned())));
        assert_eq!(incomplete(), ["name=\"recipients_deferred\",receiver=\"mail\"} 1"]);
        telemetry.unreached("mail", None);
        assert_eq!(incomplete(), ["name=\"recipients_deferred\",receiver=\"mail\"} 0"]);
    }
}
