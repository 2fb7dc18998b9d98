//! The hearing of the fleet, and of each topic filter.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Telemetry;
use super::problems::{
    BROKER_UNHEARD, FILTER_REMOVED, FILTER_UNHEARD, FILTER_UNPROVED, NOT_HEARING, Severity, not_hearing,
};
use crate::clock::Timestamp;
use crate::presence::{Interval, RemovedFilter};

impl Telemetry {
    /// A canary made its round trip over the broker with this name.
    pub fn canary_returned(&self, broker: &str, round_trip: Duration) {
        self.series.canary_round_trip.with_label_values(&[broker]).observe(round_trip.as_secs_f64());
    }

    /// A blind interval was written into the ledger.
    pub fn was_blind(&self, interval: &Interval) {
        // An interval may overlap earlier ones.
        let counted = self.blind_until.fetch_max(interval.to.as_millis(), Ordering::Relaxed);
        let new = interval.to.since(interval.from.max(Timestamp::from_millis(counted)));
        self.series.blind_seconds.inc_by(new.as_secs_f64());
        tracing::warn!(
            from = %interval.from,
            to = %interval.to,
            seconds = interval.length().as_secs_f64(),
            "was blind: this time does not count as silence"
        );
    }

    /// Sets whether Rollcall is blind. Logs the change; a start without proof is normal.
    pub fn blind(&self, blind: bool, heard: Option<Timestamp>) {
        let before = self.series.blind.get();
        self.series.blind.set(blind.into());
        let has_heard = self.has_heard.fetch_or(!blind, Ordering::Relaxed);
        if blind {
            self.problems.set(NOT_HEARING, "", not_hearing(heard), Severity::Serious);
        } else {
            self.problems.clear(NOT_HEARING, "");
        }
        match (before, blind) {
            (0, true) if !has_heard => tracing::info!(
                heard = heard.map(tracing::field::display),
                "has not heard the fleet yet; no unit is declared offline until the first canary comes back"
            ),
            // The log line about the failed dependency gives the reason.
            (0, true) if self.problems.has_outage() => {}
            (0, true) => tracing::warn!(
                heard = heard.map(tracing::field::display),
                "blind: canaries do not come back; no unit is declared offline until they do"
            ),
            (1, false) => tracing::info!("the fleet is heard"),
            _ => {}
        }
    }

    pub fn is_blind(&self) -> bool {
        self.problems.has_any(NOT_HEARING)
    }

    /// Sets whether every kind of one of several brokers is heard there, and up to when.
    pub fn broker_heard(&self, broker: &str, heard: Option<Timestamp>, is_blind: bool) {
        self.series.broker_blind.with_label_values(&[broker]).set(is_blind.into());
        let seconds = heard.map_or(0.0, |heard| heard.as_millis() as f64 / 1000.0);
        self.series.broker_heard.with_label_values(&[broker]).set(seconds);
        self.series.broker_blind_seconds.with_label_values(&[broker]);
    }

    /// Whether no instance hears a broker that this one does not use. `text`: the problem, and the advice.
    pub fn broker_unheard(&self, broker: &str, text: Option<String>) {
        let Some(text) = text else {
            if self.problems.clear(BROKER_UNHEARD, broker) {
                tracing::info!(broker, "a broker of other instances is heard again");
            }
            return;
        };
        if self.problems.set(BROKER_UNHEARD, broker, text.clone(), Severity::Warning) {
            tracing::warn!(broker, "a broker of other instances is not heard: {text}");
        }
    }

    /// A broker, one of several, is heard again; `interval` is the time in which it was not.
    pub fn broker_was_blind(&self, broker: &str, interval: Interval) {
        let seconds = interval.length().as_secs_f64();
        self.series.broker_blind_seconds.with_label_values(&[broker]).inc_by(seconds);
    }

    /// Notes that a topic filter of `kinds` is configured at the broker with this name, and was not heard so far. `text`: the
    /// problem.
    pub fn filter_configured(&self, broker: &str, filter: &str, kinds: &[&str], text: String) {
        self.problems.set(FILTER_UNHEARD, filter, text, Severity::Serious);
        self.count_filters(broker, (filter, kinds), false);
    }

    /// Messages on topics of that filter reach Rollcall.
    pub fn filter_heard(&self, broker: &str, filter: &str, kinds: &[&str]) {
        self.problems.clear(FILTER_UNHEARD, filter);
        self.problems.clear(FILTER_UNPROVED, filter);
        self.count_unproved(broker, filter, false);
        self.count_filters(broker, (filter, kinds), true);
        tracing::info!(filter, "the topics of a filter are heard");
    }

    /// Messages on topics of that filter do not reach Rollcall. `text`: the advice.
    pub fn filter_unheard(&self, broker: &str, filter: &str, kinds: &[&str], text: String) {
        if !self.problems.has_outage() {
            tracing::error!(filter, "{text}");
        }
        self.problems.set(FILTER_UNHEARD, filter, text, Severity::Serious);
        self.problems.clear(FILTER_UNPROVED, filter);
        self.count_unproved(broker, filter, false);
        self.count_filters(broker, (filter, kinds), false);
    }

    /// Filters that were removed from the configuration, and delay the checks of their kinds. Logs each once.
    pub fn filters_removed(&self, removed: &[RemovedFilter]) {
        let names: Vec<String> = removed.iter().map(|one| format!("{} {}", one.kind, one.filter)).collect();
        self.problems.keep(FILTER_REMOVED, &names);
        for (RemovedFilter { kind, filter, heard, rest }, name) in removed.iter().zip(&names) {
            let text = format!(
                "{filter}, by which units of kind {kind} were heard until {heard}, is no longer configured: no unit of \
                 that kind is declared offline for {} s, because units that publish there may be alive; \
                 configure it again if that was a mistake",
                rest.as_secs() + 1
            );
            if self.problems.set(FILTER_REMOVED, name, text.clone(), Severity::Warning) {
                tracing::warn!(filter, "{text}");
            }
        }
    }

    /// Only messages of units prove that filter, because Rollcall cannot publish there.
    pub fn filter_unproved(&self, broker: &str, filter: &str, kinds: &[&str], why: &str) {
        tracing::warn!(filter, "{why}");
        self.problems.set(FILTER_UNPROVED, filter, why.to_owned(), Severity::Warning);
        self.count_unproved(broker, filter, true);
        self.problems.clear(FILTER_UNHEARD, filter);
        self.count_filters(broker, (filter, kinds), true);
    }

    fn count_filters(&self, broker: &str, (filter, kinds): (&str, &[&str]), is_heard: bool) {
        let mut unheard = self.unheard.lock();
        let of_broker = unheard.entry(broker.to_owned()).or_default();
        for kind in kinds {
            let of_kind = of_broker.entry((*kind).to_owned()).or_default();
            if is_heard {
                of_kind.remove(filter);
            } else {
                of_kind.insert(filter.to_owned());
            }
        }
        let count = of_broker.values().filter(|filters| !filters.is_empty()).count();
        self.series.kinds_unheard.with_label_values(&[broker]).set(count as i64);
    }

    fn count_unproved(&self, broker: &str, filter: &str, is_unproved: bool) {
        let mut unproved = self.unproved.lock();
        let of_broker = unproved.entry(broker.to_owned()).or_default();
        let _ = if is_unproved { of_broker.insert(filter.to_owned()) } else { of_broker.remove(filter) };
        self.series.filters_unproved.with_label_values(&[broker]).set(of_broker.len() as i64);
    }
}
