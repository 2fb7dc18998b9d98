//! What Rollcall tells of itself: one method per fact, which counts it and, where a person should
//! know, logs it.
//!
//! Handed in, never global. Labels come from enums and from the configuration, never from devices,
//! so the number of series is bounded.
//!
//! It also keeps what is wrong at the moment, so that readiness tells the same as metrics and log.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use prometheus::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Timestamp};
use crate::presence::{
    Closing, Heard, Interval, Kind, OfflineRecord, RemovedFilter, State, Transition, Unit,
};
use crate::store::Backlog;

mod in_the_way;
mod labels;
mod log_limit;
mod orphans;
mod problems;
mod process;
mod removed;
mod sampler;
mod series;
mod snapshot;
mod unreadable;

use in_the_way::InTheWay;
pub use labels::{
    BrokerRefusal, CheckOutcome, CheckSource, ConnectionLoss, Cut, DeliveryOutcome, EngineWarning, Loop,
    PayloadIssue, Rejection, Stored, ValueOutcome,
};
use labels::{TOO_MANY, heard_as_str};
pub use log_limit::LogLimit;
pub use orphans::orphans_in_words;
use problems::{
    BROKER_DROPS, ENGINE_DOWN, ENGINE_FAILS, FILTER_REMOVED, FILTER_UNHEARD, FILTER_UNPROVED, KIND_FULL,
    KINDS_REMOVED, MQTT_DISCONNECTED, NOT_DELIVERED, NOT_HEARING, NOT_REACHED, ORPHANED, Problems,
    UNREADABLE, not_hearing,
};
pub use problems::{Problem, Severity};
pub use removed::removed_kinds_in_words;
use sampler::Sampler;
use series::{OTHER, Series, TOLD_APART};
use unreadable::Unreadable;

/// Counts and logs. Cheap to share.
pub struct Telemetry {
    registry: Registry,
    series: Series,
    samples: Sampler,
    unreadable: Unreadable,
    in_the_way: InTheWay,
    problems: Problems,
    /// LogLimit about units that went offline, and about those that are back.
    units_gone: Mutex<LogLimit>,
    units_back: Mutex<LogLimit>,
    has_heard: AtomicBool,
    /// The filters of each kind that are not heard.
    unheard: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// Values of labels that have series.
    counted: Mutex<BTreeSet<(String, String)>>,
}

impl Telemetry {
    /// A registry with every metric at zero.
    pub fn new(clock: &Clock) -> Telemetry {
        let registry = Registry::new();
        Telemetry {
            series: Series::new(&registry),
            registry,
            samples: Sampler::new(clock.clone()),
            unreadable: Unreadable::new(clock.clone()),
            in_the_way: InTheWay::new(clock.clone()),
            problems: Problems::of_a_beginning(),
            units_gone: Mutex::new(LogLimit::new(Instant::now())),
            units_back: Mutex::new(LogLimit::new(Instant::now())),
            has_heard: AtomicBool::new(false),
            unheard: Mutex::default(),
            counted: Mutex::default(),
        }
    }

    /// Lets a receiver's series start at zero.
    pub fn receiver_configured(&self, receiver: &str) {
        for outcome in DeliveryOutcome::ALL {
            self.series.notifications.with_label_values(&[receiver, outcome.as_str()]);
        }
        self.series.notification_duration.with_label_values(&[receiver]);
        self.series.queue_length.with_label_values(&[receiver]);
        self.series.dead_letters.with_label_values(&[receiver]);
        self.series.receiver_failing.with_label_values(&[receiver]);
    }

    /// Everything, for the metrics page.
    pub fn gather(&self) -> Vec<prometheus::proto::MetricFamily> {
        self.count_unreadable();
        self.registry.gather()
    }

    /// Heartbeats were applied or decided upon.
    pub fn heartbeats(&self, heard: Heard, count: u64) {
        self.series.heartbeats.with_label_values(&[heard_as_str(heard)]).inc_by(count);
    }

    /// A heartbeat of an id that is new was not admitted: its kind has `most` units.
    pub fn unit_refused(&self, unit: &Unit, most: u64) {
        self.heartbeats(Heard::TooMany, 1);
        let kind = unit.kind.as_str();
        let text = format!(
            "kind {kind} has as many units as it may, {most}; ids that are new are not admitted: raise max_units, or find \
             the device that invents ids"
        );
        if let Some(suppressed) = self.samples.admit(TOO_MANY) {
            tracing::warn!(%unit, suppressed, "unit not admitted: {text}");
        }
        if !self.problems.has(KIND_FULL, kind) {
            self.problems.set(KIND_FULL, kind, text, Severity::Warning);
        }
    }

    /// Every id of a kind that was heard lately was admitted.
    pub fn kind_has_room(&self, kind: &Kind) {
        self.problems.clear(KIND_FULL, kind.as_str());
    }

    /// A heartbeat was applied that long after its arrival.
    pub fn heartbeat_lag(&self, lag: Duration) {
        self.series.heartbeat_lag.observe(lag.as_secs_f64());
    }

    /// A message did not count. `what` is shown in the log now and then.
    pub fn message_rejected(&self, topic: &str, why: Rejection, what: &str) {
        self.series.heartbeats.with_label_values(&[why.as_str()]).inc();
        if let Some(suppressed) = self.samples.admit(why.as_str()) {
            let topic = shorten(topic);
            tracing::warn!(topic, reason = why.as_str(), suppressed, "message rejected: {what}");
        }
    }

    /// Something in a payload was passed over. `what` is shown in the log now and then.
    pub fn payload_odd(&self, unit: &Unit, odd: PayloadIssue, what: &str) {
        self.series.oddities.with_label_values(&[odd.as_str()]).inc();
        if let Some(suppressed) = self.samples.admit(odd.as_str()) {
            tracing::warn!(%unit, reason = odd.as_str(), suppressed, "payload passed over: {what}");
        }
    }

    /// Values that units told of themselves were written, or not.
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

    /// The broker within the process refused something to a device. `why` is shown in the log now and then.
    pub fn broker_refused(&self, what: BrokerRefusal, from: SocketAddr, client_id: &str, why: &str) {
        self.series.broker_refused.with_label_values(&[what.as_str()]).inc();
        if let Some(suppressed) = self.samples.admit_refusal(what) {
            let client_id = shorten(client_id).escape_debug().to_string();
            tracing::warn!(%from, client_id, reason = what.as_str(), suppressed, "the broker refused: {why}");
        }
    }

    /// A message waits in the broker within the process.
    pub fn broker_held_back(&self, from: SocketAddr, client_id: &str, why: &str) {
        self.series.broker_held_back.inc();
        if let Some(suppressed) = self.samples.admit("held_back") {
            let client_id = shorten(client_id).escape_debug().to_string();
            tracing::warn!(%from, client_id, suppressed, "the broker holds a device back: {why}");
        }
    }

    /// Lets a connection's series start at zero.
    pub fn connection_configured(&self, connection: &str) {
        self.series.connected.with_label_values(&[connection]);
    }

    /// A connection to the broker stands and is subscribed.
    pub fn mqtt_connected(&self, connection: &str, broker: &str) {
        self.series.connected.with_label_values(&[connection]).set(1);
        self.problems.clear(MQTT_DISCONNECTED, "");
        self.problems.clear(MQTT_DISCONNECTED, connection);
        tracing::info!(connection, broker, "connected to the MQTT broker and subscribed");
    }

    /// A connection to the broker was lost or could not be made.
    pub fn mqtt_disconnected(
        &self,
        connection: &str,
        broker: &str,
        (loss, why): (ConnectionLoss, &str),
        retry_in: Duration,
    ) {
        self.series.connections_lost.with_label_values(&[loss.as_str()]).inc();
        self.series.connected.with_label_values(&[connection]).set(0);
        self.problems.clear(MQTT_DISCONNECTED, "");
        let text = format!("connection {connection} to the MQTT broker at {broker} does not stand: {why}");
        self.problems.set(MQTT_DISCONNECTED, connection, text, Severity::Serious);
        tracing::warn!(
            connection,
            broker,
            retry_in_ms = retry_in.as_millis() as u64,
            "no connection to the MQTT broker: {why}"
        );
    }

    /// The broker says how many messages it has thrown away, and how many of them since it said so
    /// last.
    pub fn broker_dropped(&self, count: u64, grown: u64) {
        self.series.broker_dropped.inc_by(grown);
        if grown == 0 {
            return;
        }
        let text = format!(
            "the broker throws messages away, {grown} of them lately, of whichever client; raise its \
             max_queued_messages and max_inflight_messages, or see which client is slow"
        );
        tracing::warn!(count, grown, "{text}");
        self.problems.set(BROKER_DROPS, "", text, Severity::Warning);
    }

    /// The broker has not thrown anything away for a while.
    pub fn broker_drops_no_more(&self) {
        self.problems.clear(BROKER_DROPS, "");
        tracing::info!("the broker throws no messages away any more");
    }

    /// A canary came all the way.
    pub fn canary_returned(&self, round_trip: Duration) {
        self.series.canary_round_trip.observe(round_trip.as_secs_f64());
    }

    /// A blind interval was written into the ledger.
    pub fn was_blind(&self, interval: &Interval) {
        self.series.blind_seconds.inc_by(interval.length().as_secs_f64());
        tracing::warn!(
            from = %interval.from,
            to = %interval.to,
            seconds = interval.length().as_secs_f64(),
            "was blind: this time does not count as silence of any unit"
        );
    }

    /// Whether Rollcall can prove that it hears the fleet. Logs the change; that a start begins
    /// without proof is as it should be.
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
            (0, true) => tracing::warn!(
                heard = heard.map(tracing::field::display),
                "blind: canaries do not come back; no unit is declared offline until they do"
            ),
            (1, false) => tracing::info!("hearing again"),
            _ => {}
        }
    }

    /// A topic filter of these kinds is to be heard, and was not so far.
    pub fn filter_configured(&self, filter: &str, kinds: &[&str]) {
        let text = format!(
            "nothing proves yet that {filter} is heard; no unit of its kinds is declared offline before"
        );
        self.problems.set(FILTER_UNHEARD, filter, text, Severity::Serious);
        self.count_filters(filter, kinds, false);
    }

    /// What is published on topics of that filter reaches Rollcall.
    pub fn filter_heard(&self, filter: &str, kinds: &[&str]) {
        self.problems.clear(FILTER_UNHEARD, filter);
        self.problems.clear(FILTER_UNPROVED, filter);
        self.count_filters(filter, kinds, true);
        tracing::info!(filter, "the topics of a filter are heard");
    }

    /// What is published on topics of that filter does not reach Rollcall. `text`: what to do.
    pub fn filter_unheard(&self, filter: &str, kinds: &[&str], text: String) {
        tracing::error!(filter, "{text}");
        self.problems.set(FILTER_UNHEARD, filter, text, Severity::Serious);
        self.problems.clear(FILTER_UNPROVED, filter);
        self.count_filters(filter, kinds, false);
    }

    /// Filters that are configured no more hold back their kinds. Logs each once.
    pub fn filters_removed(&self, removed: &[RemovedFilter]) {
        let names: Vec<String> = removed.iter().map(|one| format!("{} {}", one.kind, one.filter)).collect();
        self.problems.keep(FILTER_REMOVED, &names);
        for (RemovedFilter { kind, filter, heard, rest }, name) in removed.iter().zip(&names) {
            let text = format!(
                "{filter}, by which units of kind {kind} were heard until {heard}, is configured no more: no unit of that \
                 kind is declared offline within the next {} s, for those that speak there may live; configure it again \
                 if that was a mistake",
                rest.as_secs() + 1
            );
            if self.problems.set(FILTER_REMOVED, name, text.clone(), Severity::Warning) {
                tracing::warn!(filter, "{text}");
            }
        }
    }

    /// Only what units say proves that filter, for Rollcall cannot publish there.
    pub fn filter_unproved(&self, filter: &str, kinds: &[&str], why: &str) {
        tracing::warn!(filter, "{why}");
        self.problems.set(FILTER_UNPROVED, filter, why.to_owned(), Severity::Warning);
        self.problems.clear(FILTER_UNHEARD, filter);
        self.count_filters(filter, kinds, true);
    }

    fn count_filters(&self, filter: &str, kinds: &[&str], is_heard: bool) {
        let mut unheard = self.unheard.lock().expect("nothing panics under this lock");
        for kind in kinds {
            let of_kind = unheard.entry((*kind).to_owned()).or_default();
            if is_heard {
                of_kind.remove(filter);
            } else {
                of_kind.insert(filter.to_owned());
            }
        }
        let count = unheard.values().filter(|filters| !filters.is_empty()).count();
        self.series.kinds_unheard.set(count as i64);
        self.series.filters_unproved.set(self.problems.count(FILTER_UNPROVED) as i64);
    }

    /// The deadlines of units were checked.
    pub fn deadlines_checked(&self, source: CheckSource, result: CheckOutcome, count: u64) {
        self.series.checks.with_label_values(&[source.as_str(), result.as_str()]).inc_by(count);
    }

    /// The index of deadlines will be asked; lets the series start at zero.
    pub fn sweep_configured(&self) {
        self.series.sweeps.with_label_values::<&str>(&[]);
    }

    /// The index of deadlines was asked what is due.
    pub fn swept(&self) {
        self.series.sweeps.with_label_values::<&str>(&[]).inc();
    }

    /// An expiry notification found the queue full.
    pub fn expiry_notification_dropped(&self) {
        self.series.notifications_dropped.inc();
    }

    /// A record was opened.
    pub fn went_offline(&self, record: &OfflineRecord) {
        self.series.transitions.with_label_values(&["offline", record.cause.as_str()]).inc();
        self.series.detection_delay.observe(record.detected_at.since(record.deadline).as_secs_f64());
        if self.lines(Transition::Offline).admit() {
            let (unit, cause) = (record.whose(), record.cause.as_str());
            tracing::warn!(%unit, cause, last_seen = %record.last_seen, deadline = %record.deadline, "unit offline");
        }
    }

    /// A record was closed.
    pub fn came_back(&self, record: &OfflineRecord) {
        let cause = record.closed_by.map_or("return", Closing::as_str);
        self.series.transitions.with_label_values(&["online", cause]).inc();
        if self.lines(Transition::Online).admit() {
            let (unit, closed_at) = (record.whose(), record.back_at.map(tracing::field::display));
            let offline_since = record.deadline;
            match record.closed_by {
                Some(Closing::KindRemoved) => {
                    tracing::info!(%unit, cause, %offline_since, closed_at, "unit is no longer watched")
                }
                _ => tracing::info!(%unit, cause, %offline_since, back_at = closed_at, "unit back"),
            }
        }
    }

    /// Counts, once a second until `stop`, what a storm let be written of too many units.
    pub async fn count_lines_held_back(&self, stop: &CancellationToken) {
        let mut every = tokio::time::interval(Duration::from_secs(1));
        while stop.run_until_cancelled(every.tick()).await.is_some() {
            let now = Instant::now();
            if let Some(more) = self.lines(Transition::Offline).end_span(now) {
                tracing::warn!(more, "more units went offline than are named; /api/v1/records lists all");
            }
            if let Some(more) = self.lines(Transition::Online).end_span(now) {
                tracing::info!(more, "more units are back than are named");
            }
        }
    }

    fn lines(&self, of: Transition) -> MutexGuard<'_, LogLimit> {
        let lines = match of {
            Transition::Offline => &self.units_gone,
            Transition::Online => &self.units_back,
        };
        lines.lock().expect("nothing panics under this lock")
    }

    /// An attempt to deliver ended, and why it failed if it did. Log lines for failures are the caller's,
    /// who knows what next.
    pub fn notification(&self, receiver: &str, outcome: DeliveryOutcome, took: Duration, why: &str) {
        self.series.notification_duration.with_label_values(&[receiver]).observe(took.as_secs_f64());
        self.series
            .receiver_failing
            .with_label_values(&[receiver])
            .set((outcome != DeliveryOutcome::Delivered).into());
        if outcome == DeliveryOutcome::Delivered {
            self.problems.clear(NOT_DELIVERED, receiver);
        } else {
            let text = format!(
                "receiver {receiver} did not take its last notification, which is tried again: {why}; mend the \
                 receiver or its options, and try it with `rollcall send-test --receiver {receiver}`"
            );
            self.problems.set(NOT_DELIVERED, receiver, text, Severity::Warning);
        }
        // Last: what is counted is shown.
        self.series.notifications.with_label_values(&[receiver, outcome.as_str()]).inc();
    }

    /// Whom a notification that was delivered did not reach; `None`: it reached everybody.
    pub fn unreached(&self, receiver: &str, who: Option<&str>) {
        match who {
            None => drop(self.problems.clear(NOT_REACHED, receiver)),
            Some(who) => {
                let text = format!(
                    "receiver {receiver} takes notifications, but not for all: {who}; correct or remove these \
                     addresses, and try it with `rollcall send-test --receiver {receiver}`"
                );
                self.problems.set(NOT_REACHED, receiver, text, Severity::Warning);
            }
        }
    }

    /// Notifications of which nothing was to be told any more, and which were not attempted.
    pub fn notifications_left_out(&self, receiver: &str, count: u64) {
        self.series
            .notifications
            .with_label_values(&[receiver, DeliveryOutcome::LeftOut.as_str()])
            .inc_by(count);
    }

    /// Open records of kinds that are not configured, and for how long they stay open. Logs the change.
    pub fn of_removed_kinds(&self, open: &BTreeMap<Kind, u64>, stay: Duration) {
        if open.is_empty() {
            self.problems.clear(KINDS_REMOVED, "");
        } else {
            let text = removed_kinds_in_words(open, stay);
            if self.problems.set(KINDS_REMOVED, "", text.clone(), Severity::Warning) {
                tracing::warn!("{text}");
            }
        }
    }

    /// What is kept for receivers that are not configured. Logs the change.
    pub fn orphaned(&self, orphans: &[(String, Backlog)]) {
        let count: u64 = orphans.iter().map(|(_, kept)| kept.waiting + kept.dead).sum();
        let before = self.series.orphaned.get();
        self.series.orphaned.set(count as i64);
        if count == 0 {
            self.problems.clear(ORPHANED, "");
            return;
        }
        let text = orphans_in_words(orphans);
        if before != count as i64 {
            tracing::warn!(count, "{text}");
        }
        self.problems.set(ORPHANED, "", text, Severity::Warning);
    }

    /// What waits for a receiver and what was given up. A receiver with dead letters fails until something is
    /// delivered to it, also after a restart.
    pub fn backlog(&self, receiver: &str, waiting: u64, dead: u64) {
        let delivered = self
            .series
            .notifications
            .with_label_values(&[receiver, DeliveryOutcome::Delivered.as_str()])
            .get();
        let is_failing = self.problems.has(NOT_DELIVERED, receiver) || (dead > 0 && delivered == 0);
        self.series.receiver_failing.with_label_values(&[receiver]).set(is_failing.into());
        self.series.queue_length.with_label_values(&[receiver]).set(waiting as i64);
        self.series.dead_letters.with_label_values(&[receiver]).set(dead as i64);
    }

    /// A call of the engine ended.
    pub fn engine_command(&self, command: &'static str, took: Duration) {
        let command = if TOLD_APART.contains(&command) { command } else { OTHER };
        self.series.engine_command.with_label_values(&[command]).observe(took.as_secs_f64());
    }

    /// The start waits for the engine.
    pub fn waiting_for_engine(&self, why: &dyn std::fmt::Display, retry_in: Duration) {
        let text = format!("waiting for the engine: {why}");
        tracing::warn!(retry_in_ms = retry_in.as_millis() as u64, "{text}");
        self.problems.set(ENGINE_DOWN, "", text, Severity::Serious);
    }

    /// The web server closed a connection, or took none from that address.
    pub fn connection_cut(&self, why: Cut, peer: IpAddr) {
        self.series.connections_cut.with_label_values(&[why.as_str()]).inc();
        if let Some(suppressed) = self.samples.admit(why.as_str()) {
            tracing::warn!(%peer, suppressed, reason = why.as_str(), "connection to the web server closed: {}", why.text());
        }
    }

    /// The engine did not do what a loop asked of it. That loop fails until [`Telemetry::engine_answered`] is
    /// called for the same: what another loop is granted says nothing of this one. `which` tells several
    /// of a sort apart, such as receivers.
    pub fn engine_failed(&self, what: Loop, which: &str, error: &dyn std::fmt::Display) {
        let (text, key) = (format!("{}{}: {error}", what.undone(), of_which(which)), key_of(what, which));
        let (name, severity) = match self.in_the_way.excuses(&key, &text) {
            true => (ENGINE_FAILS, Severity::Warning),
            false => severity_of(what),
        };
        let is_new = self.problems.set(name, &key, text.clone(), severity);
        let was_up = self.series.engine_up.get() == 1;
        if severity == Severity::Serious {
            self.problems.clear(ENGINE_FAILS, &key);
            self.series.engine_up.set(0);
        }
        let name = what.as_str();
        if is_new && was_up && severity == Severity::Serious {
            tracing::error!(name, "{text}");
        } else if let Some(suppressed) = self.samples.admit(name) {
            tracing::warn!(name, suppressed, "{text}");
        }
    }

    /// The engine did what a loop asked of it. Logs it if it had failed there before.
    pub fn engine_answered(&self, what: Loop, which: &str) {
        let first = self.problems.clear(ENGINE_DOWN, "");
        let key = key_of(what, which);
        if self.problems.clear(ENGINE_DOWN, &key) | self.problems.clear(ENGINE_FAILS, &key) {
            self.in_the_way.is_gone(&key);
            tracing::info!(name = what.as_str(), "the engine does again what was asked{}", of_which(which));
        }
        if (first || self.series.engine_up.get() == 0) && !self.problems.has_any(ENGINE_DOWN) {
            self.series.engine_up.set(1);
            tracing::info!("engine answers");
        }
    }

    /// Something is wrong with the engine though it answers, or is not (any more). Logs the change.
    pub fn engine_warning(&self, what: EngineWarning, text: Option<&str>) {
        let name = what.as_str();
        let gauge = self.series.engine_warnings.with_label_values(&[name]);
        let before = gauge.get();
        gauge.set(text.is_some().into());
        match text {
            Some(text) => {
                let severity =
                    if what == EngineWarning::RightsMissing { Severity::Serious } else { Severity::Warning };
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

    /// A value of the engine cannot be read. What needs it waits or goes on without it, and everything else
    /// goes on. `place` names it, `why` says what is wrong and what to do. Logged once for each place.
    pub fn unreadable(&self, what: Stored, place: &str, why: &str) {
        if self.unreadable.met(what, place, why) {
            let what = what.as_str();
            tracing::error!(what, place, "a stored value cannot be read: {why}");
        }
        self.count_unreadable();
    }

    /// A value that could not be read is right again, or gone.
    pub fn readable(&self, what: Stored, place: &str) {
        if self.unreadable.repaired(what, place) {
            tracing::info!(
                what = what.as_str(),
                place,
                "a stored value that could not be read is right again"
            );
            self.count_unreadable();
        }
    }

    fn count_unreadable(&self) {
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
                        "{count} stored values ({key}) cannot be read, such as {}; everything that does not need them \
                         goes on",
                        counted.example
                    );
                    self.problems.set(name, key, text, Severity::Warning);
                }
            }
        }
    }

    /// What is wrong at the moment, the serious first.
    pub fn problems(&self) -> Vec<Problem> {
        self.count_unreadable();
        self.problems.list()
    }

    /// What keeps Rollcall from its work, or its word from reaching somebody.
    pub fn failures(&self) -> Vec<Problem> {
        let mut problems = self.problems();
        problems.retain(|one| one.severity == Severity::Serious || one.name == NOT_DELIVERED);
        problems
    }

    /// How many instances there are, and how many partitions are this one's.
    pub fn ownership(&self, instances: usize, partitions: usize) {
        self.series.instances.set(instances as i64);
        self.series.partitions_owned.set(partitions as i64);
    }

    /// The age of the oldest part of the mirror; `None`: nothing is mirrored.
    pub fn mirror_age(&self, age: Option<Duration>) {
        match age {
            Some(age) => self.series.mirror_age.with_label_values::<&str>(&[]).set(age.as_secs_f64()),
            None => self.series.mirror_age.reset(),
        }
    }

    /// How many units of a kind are in a state.
    pub fn units(&self, kind: &str, state: &str, count: u64) {
        self.series.units.with_label_values(&[kind, state]).set(count as i64);
    }

    /// Since when the unit of a kind was not heard that has been offline for longest; `None`: none is.
    pub fn silent_since(&self, kind: &str, moment: Option<Timestamp>) {
        let oldest = &self.series.oldest_outage;
        match moment {
            Some(moment) => oldest.with_label_values(&[kind]).set(moment.as_millis() as f64 / 1e3),
            // It is an error that there is none, and that is what is wanted.
            None => drop(oldest.remove_label_values(&[kind])),
        }
    }

    /// How many units are in which state, by label and value. Values that are gone leave.
    pub fn units_by_label(&self, counted: BTreeMap<(String, String), [u64; State::ALL.len()]>) {
        let mut before = self.counted.lock().expect("nothing panics under this lock");
        for ((label, value), counts) in &counted {
            for (state, count) in State::ALL.iter().zip(counts) {
                self.series
                    .units_by_label
                    .with_label_values(&[label, value, state.as_str()])
                    .set(*count as i64);
            }
        }
        let now: BTreeSet<(String, String)> = counted.into_keys().collect();
        for (label, value) in before.difference(&now) {
            for state in State::ALL {
                // It is an error that there is none, and that is what is wanted.
                let _ = self.series.units_by_label.remove_label_values(&[label, value, state.as_str()]);
            }
        }
        *before = now;
    }

    /// How long ago the units were heard: how many within each of some spans, how many in all, and the
    /// sum of their silences.
    pub fn silences(&self, within: impl IntoIterator<Item = (Duration, u64)>, units: u64, sum: Duration) {
        self.series.silence.set(within, units, sum);
    }
}

fn severity_of(what: Loop) -> (&'static str, Severity) {
    if what.is_serious() { (ENGINE_DOWN, Severity::Serious) } else { (ENGINE_FAILS, Severity::Warning) }
}

fn key_of(what: Loop, which: &str) -> String {
    format!("{} {which}", what.as_str())
}

fn of_which(which: &str) -> String {
    if which.is_empty() { String::new() } else { format!(" ({which})") }
}

fn shorten(topic: &str) -> String {
    topic.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(telemetry: &Telemetry) -> Vec<&'static str> {
        telemetry.problems().iter().map(|problem| problem.name).collect()
    }

    #[test]
    fn nothing_is_known_to_work_before_it_was_seen_to() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        assert_eq!(names(&telemetry), [ENGINE_DOWN, MQTT_DISCONNECTED, NOT_HEARING]);
        telemetry.engine_answered(Loop::Sweep, "");
        telemetry.mqtt_connected("fleet", "mqtt://127.0.0.1");
        telemetry.blind(false, Some(Timestamp::ZERO));
        assert_eq!(telemetry.problems(), []);
    }

    /// As many kinds, receivers and connections as a large site has, and as many labels and values as are
    /// counted by.
    #[test]
    fn a_service_of_twelve_kinds_and_five_receivers_has_fewer_than_500_series() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        let values =
            ["site", "row"].map(|label| (0..6).map(move |value| (label.to_owned(), value.to_string())));
        telemetry.units_by_label(values.into_iter().flatten().map(|both| (both, [1; 6])).collect());
        for connection in ["main", "second", "third", "fourth"] {
            telemetry.mqtt_connected(connection, "broker");
        }
        for receiver in 0..5 {
            telemetry.receiver_configured(&format!("receiver-{receiver}"));
        }
        for kind in 0..12 {
            let kind = format!("kind-{kind}");
            State::ALL.iter().for_each(|state| telemetry.units(&kind, state.as_str(), 1));
            telemetry.silent_since(&kind, Some(Timestamp::ZERO));
            telemetry.filter_configured(&format!("{kind}/+"), &[&kind]);
        }
        telemetry.sweep_configured();
        telemetry.mirror_age(Some(Duration::ZERO));
        telemetry.silences((1..=8).map(|hours| (Duration::from_secs(hours), 1)), 1, Duration::ZERO);
        let text = prometheus::TextEncoder::new().encode_to_string(&telemetry.gather()).unwrap();
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        assert!(series < 500, "{series} series");
        println!("{series} series");
    }

    #[test]
    fn a_counter_and_nothing_else_ends_in_total() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        telemetry.receiver_configured("hook");
        telemetry.sweep_configured();
        let families = telemetry.gather();
        assert!(families.len() > 25, "{}", families.len());
        for family in families {
            let is_counter = family.get_field_type() == prometheus::proto::MetricType::COUNTER;
            assert_eq!(family.name().ends_with("_total"), is_counter, "{}", family.name());
        }
    }

    /// 0 would be a moment in 1970, or a mirror that is as new as can be.
    #[test]
    fn what_there_is_none_of_has_no_series() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        let shown = |name: &str| telemetry.gather().iter().any(|family| family.name() == name);
        for name in ["rollcall_oldest_outage_timestamp_seconds", "rollcall_mirror_age_seconds"] {
            assert!(!shown(name), "{name}");
            telemetry.silent_since("detector", Some(Timestamp::ZERO));
            telemetry.mirror_age(Some(Duration::ZERO));
            assert!(shown(name), "{name}");
            telemetry.silent_since("detector", None);
            telemetry.mirror_age(None);
            assert!(!shown(name), "{name}");
        }
    }

    #[test]
    fn each_connection_that_does_not_stand_is_named_until_it_stands() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        telemetry.engine_answered(Loop::Sweep, "");
        telemetry.blind(false, None);
        telemetry.mqtt_connected("one", "broker");
        telemetry.mqtt_disconnected("two", "broker", (ConnectionLoss::Refused, "refused"), Duration::ZERO);
        let [problem] = &telemetry.problems()[..] else { panic!("{:?}", telemetry.problems()) };
        assert!(problem.text.contains("two") && problem.text.contains("refused"), "{}", problem.text);
        telemetry.mqtt_connected("two", "broker");
        assert_eq!(telemetry.problems(), []);
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
        assert_eq!(telemetry.series.engine_up.get(), 0);
        telemetry.engine_answered(Loop::Sweep, "");
        assert!(!names(&telemetry).contains(&ENGINE_DOWN));
        assert_eq!(telemetry.series.engine_up.get(), 1);
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
    fn a_loop_without_which_the_work_goes_on_warns_only() {
        let telemetry = Telemetry::new(&Clock::by_hand(Timestamp::ZERO));
        telemetry.engine_answered(Loop::Lease, "");
        telemetry.engine_failed(Loop::Walk, "", &"slow");
        let last = telemetry.problems().pop().unwrap();
        assert_eq!((last.name, last.severity), (ENGINE_FAILS, Severity::Warning));
        assert_eq!(telemetry.series.engine_up.get(), 1);
    }

    #[test]
    fn a_value_that_is_broken_makes_nothing_unready_unless_it_stays_in_the_way() {
        let clock = Clock::by_hand(Timestamp::ZERO);
        let telemetry = Telemetry::new(&clock);
        telemetry.engine_answered(Loop::Lease, "");
        let serious = |telemetry: &Telemetry| {
            telemetry.engine_failed(Loop::Sweep, "", &"WRONGTYPE: the wrong kind of value");
            let names: Vec<_> =
                telemetry.problems().into_iter().map(|one| (one.name, one.severity)).collect();
            assert!(
                !names.contains(&(ENGINE_DOWN, Severity::Serious))
                    || !names.iter().any(|one| one.0 == ENGINE_FAILS)
            );
            names.contains(&(ENGINE_DOWN, Severity::Serious))
        };
        assert!(!serious(&telemetry));
        assert_eq!(telemetry.series.engine_up.get(), 1);
        clock.advance(Duration::from_secs(9));
        assert!(!serious(&telemetry));
        telemetry.engine_answered(Loop::Sweep, "");
        clock.advance(Duration::from_secs(9));
        assert!(!serious(&telemetry), "it is another one");
        clock.advance(Duration::from_secs(11));
        assert!(serious(&telemetry));
        assert_eq!(telemetry.series.engine_up.get(), 0);
        telemetry.engine_answered(Loop::Sweep, "");
        assert!(!telemetry.problems().iter().any(|one| [ENGINE_DOWN, ENGINE_FAILS].contains(&one.name)));
    }

    #[test]
    fn a_warning_of_the_engine_is_no_serious_problem_and_goes_when_it_is_over() {
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
