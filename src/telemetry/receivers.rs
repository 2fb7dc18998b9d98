//! Attempts to deliver, and the queues of receivers.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use super::labels::DeliveryOutcome;
use super::problems::{
    BROKER_DROPS, ENGINE_DOWN, ENGINE_FAILS, MQTT_DISCONNECTED, NOT_DELIVERED, ORPHANED, RECIPIENTS_DEFERRED,
    RECIPIENTS_REFUSED, SERVERS_FAILING, Severity,
};
use super::{Backlog, Telemetry, orphans_text};
use crate::presence::Kind;

/// The recipients or servers that a delivered notification did not reach, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreached {
    /// Addresses that the mail server refuses.
    Recipients(String),
    /// Addresses that the mail server defers: a full mailbox, or greylisting. They get the mail later.
    Deferred(String),
    /// Servers of the receiver that do not accept it, while another one does.
    Servers(String),
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Unreached::Recipients(which) | Unreached::Deferred(which) | Unreached::Servers(which)) = self;
        f.write_str(which)
    }
}

impl Telemetry {
    /// Lets a receiver's series start at zero.
    pub fn receiver_configured(&self, receiver: &str) {
        for outcome in DeliveryOutcome::ALL {
            self.series.notifications.with_label_values(&[receiver, outcome.as_str()]);
        }
        self.series.notification_duration.with_label_values(&[receiver]);
        self.series.queue_length.with_label_values(&[receiver]);
        self.series.dead_letters.with_label_values(&[receiver]);
        self.series.receiver_failing.with_label_values(&[receiver]);
        self.series.notifications_merged.with_label_values(&[receiver]);
    }

    /// The number of notifications in one delivered message, because the receiver has a rate limit.
    pub fn notifications_merged(&self, receiver: &str, count: u64) {
        if count > 1 {
            self.series.notifications_merged.with_label_values(&[receiver]).inc_by(count);
        }
    }

    /// An attempt to deliver ended; `why` is the reason of the receiver's failure, empty if it works. The caller logs
    /// it, because it knows whether there is another attempt.
    pub fn notification(&self, receiver: &str, outcome: DeliveryOutcome, took: Duration, why: &str) {
        self.series.notification_duration.with_label_values(&[receiver]).observe(took.as_secs_f64());
        let what = match outcome {
            DeliveryOutcome::Dead => ", which is a dead letter now",
            _ => ", which is tried again",
        };
        self.receiver_fails(receiver, (!why.is_empty()).then_some((what, why)));
        // Count last, so that a reader that sees the count sees the gauges and the problem too.
        self.series.notifications.with_label_values(&[receiver, outcome.as_str()]).inc();
    }

    /// The state of a receiver that all instances share; `why`: the reason of its failure, `None` if it works.
    pub fn receiver_state(&self, receiver: &str, why: Option<&str>) {
        // What this instance saw itself says more.
        if why.is_none() || !self.problems.has(NOT_DELIVERED, receiver) {
            self.receiver_fails(receiver, why.map(|why| ("", why)));
        }
    }

    fn receiver_fails(&self, receiver: &str, failure: Option<(&str, &str)>) {
        self.series.receiver_failing.with_label_values(&[receiver]).set(failure.is_some().into());
        let Some((what, why)) = failure else {
            self.problems.clear(NOT_DELIVERED, receiver);
            return;
        };
        let text = format!(
            "receiver {receiver} did not take its last notification{what}: {why}; correct the receiver or its options, \
             and try it with `rollcall send-test --receiver {receiver}`"
        );
        self.problems.set(NOT_DELIVERED, receiver, text, Severity::Warning);
    }

    /// Notes the recipients or servers that a delivered notification did not reach; `None` if it reached all.
    pub fn unreached(&self, receiver: &str, unreached: Option<&Unreached>) {
        let (name, what, advice) = match unreached {
            None => ("", "", ""),
            Some(Unreached::Recipients(_)) => {
                (RECIPIENTS_REFUSED, "not for all recipients", "correct or remove these addresses")
            }
            Some(Unreached::Deferred(_)) => (
                RECIPIENTS_DEFERRED,
                "some recipients get them later",
                "if this lasts, check these mailboxes, and whether the server knows this sender",
            ),
            Some(Unreached::Servers(_)) => {
                (SERVERS_FAILING, "not on all of its servers", "check these servers")
            }
        };
        let gauge = |name| self.series.receiver_incomplete.with_label_values(&[receiver, name]);
        for other in [RECIPIENTS_REFUSED, RECIPIENTS_DEFERRED, SERVERS_FAILING] {
            // A receiver that never missed any has no series.
            if other != name && self.problems.clear(other, receiver) {
                gauge(other).set(0);
            }
        }
        if unreached.is_none() {
            return;
        }
        let which = unreached.map(Unreached::to_string).unwrap_or_default();
        let text = format!(
            "receiver {receiver} takes notifications, but {what}: {which}; {advice}, and try it with `rollcall send-test \
             --receiver {receiver}`"
        );
        self.problems.set(name, receiver, text, Severity::Warning);
        gauge(name).set(1);
    }

    /// Notifications without an attempt, because all their transitions were over.
    pub fn notifications_left_out(&self, receiver: &str, count: u64) {
        self.series
            .notifications
            .with_label_values(&[receiver, DeliveryOutcome::LeftOut.as_str()])
            .inc_by(count);
    }

    /// Offline units that inhibit the notifications of others.
    pub fn inhibiting_units(&self, count: usize) {
        self.series.inhibiting_units.set(count as i64);
    }

    /// Sets whether the mass-offline breaker holds notifications of single units.
    pub fn breaker_tripped(&self, is_held: bool) {
        self.series.breaker_tripped.set(is_held.into());
    }

    /// The states of the connection to the broker and of the engine, in words.
    pub fn parts(&self) -> (String, String) {
        let problems = self.problems();
        let state = |names: &[&str], fine: &str| {
            let found = problems.iter().find(|problem| names.contains(&problem.name));
            found.map_or(fine.to_owned(), |problem| {
                format!("has a problem ({}): {}", problem.name, problem.text)
            })
        };
        (
            state(&[MQTT_DISCONNECTED, BROKER_DROPS], "is connected"),
            state(&[ENGINE_DOWN, ENGINE_FAILS], "answers"),
        )
    }

    /// The number of flapping units of each kind in the partitions that this instance owns.
    pub fn flapping_units(&self, counts: &HashMap<Kind, i64>) {
        // A reload may have removed kinds.
        self.series.flapping_units.reset();
        for (kind, count) in counts {
            self.series.flapping_units.with_label_values(&[kind.as_str()]).set((*count).max(0));
        }
    }

    /// Notifications of receivers that are not configured. Logs the change.
    pub fn orphaned(&self, orphans: &[(String, Backlog)]) {
        let count: u64 = orphans.iter().map(|(_, kept)| kept.waiting + kept.dead).sum();
        let before = self.series.orphaned.get();
        self.series.orphaned.set(count as i64);
        if count == 0 {
            self.problems.clear(ORPHANED, "");
            return;
        }
        let text = orphans_text(orphans);
        if before != count as i64 {
            tracing::warn!(count, "{text}");
        }
        self.problems.set(ORPHANED, "", text, Severity::Warning);
    }

    /// The queue of a receiver and its dead letters.
    pub fn backlog(&self, receiver: &str, waiting: u64, dead: u64) {
        self.series.queue_length.with_label_values(&[receiver]).set(waiting as i64);
        self.series.dead_letters.with_label_values(&[receiver]).set(dead as i64);
    }
}
