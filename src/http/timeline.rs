//! `/api/v1/units/{kind}/{unit}/timeline`: the events of a unit, newest first, and the reason why it is or is not
//! offline now.
//!
//! The timeline is built from stored values: the records of the unit, the blind time within its silences, the attempts
//! to notify receivers of them, changes by operators, and the alert silences and the mass-offline breaker that hold its
//! notifications now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::routing::get;
use axum::{Json, Router};
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};

use super::PageSources;
use super::availability::outages_of;
use super::breaker::breaker;
use super::explain::{announced, rhythm_of, sentence};
use super::http_error::{HttpError, page_limit, query};
use super::told::Notified;
use super::units::{UnitDetails, UnitViews, parse};
use crate::clock::{Clock, Timestamp, shown_span as span};
use crate::fleet::deliveries::{Notice, NoticeType};
use crate::fleet::{Attempts, AvailabilityHistory, Beginning, Deliveries, Roll, Silences, past_pauses};
use crate::presence::{
    Closing, Hearing, Interval, OfflineRecord, RecordId, TimeSpent, Trip, Unit, UnitTimes,
};
use crate::reports::{Days, day_of, midnight};
use crate::routing::{AlertSilence, Part, Said};
use crate::store::{Attempt, AttemptResult, AuditEntry, Audited, History, MAX_AUDITED, Queries};

const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 100;

/// The newest records whose notifications are read; each is a search in the record of attempts.
const NOTIFIED: usize = 5;

/// How many days a timeline sums up.
const DAYS: u32 = 90;
const DAY: Duration = Duration::from_secs(86_400);
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(super) struct Timelines {
    views: UnitViews,
    records: Arc<dyn Queries>,
    deliveries: Deliveries,
    silences: Arc<Silences>,
    roll: Arc<Roll>,
    beginning: Beginning,
    history: Option<Arc<dyn AvailabilityHistory>>,
    /// How long the engine keeps closed records.
    keep_records: Duration,
    clock: Clock,
    notified: Notified,
}

pub(super) fn page(timelines: Timelines) -> Router {
    Router::new().route("/api/v1/units/{kind}/{unit}/timeline", get(timeline)).with_state(timelines)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TimelineQuery {
    limit: Option<usize>,
}

#[derive(Serialize)]
pub(super) struct Timeline {
    #[serde(flatten)]
    pub view: UnitDetails,
    pub at: Timestamp,
    /// Why the unit is in its state.
    pub sentence: Said,
    /// Which receivers were notified of its newest silence, and why others were not.
    pub notified: Said,
    /// Newest first.
    pub events: Vec<TimelineEvent>,
    /// The last 90 days (UTC), oldest first.
    pub days: Vec<Day>,
    /// The unit has no older records.
    pub is_complete: bool,
    /// `false`: days before those that the engine keeps may be missing, because history did not answer.
    pub days_are_complete: bool,
    /// Whether attempts to notify are left out: those of older records, and failed ones of old reminders.
    pub attempts_cut: bool,
    /// The last hour, for pages.
    #[serde(skip)]
    pub hour: Vec<Minute>,
}

/// A minute of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Minute {
    pub from: Timestamp,
    pub was: MinuteState,
}

/// The most important fact about a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MinuteState {
    /// It contains the newest heartbeat.
    Heard,
    Offline,
    Blind,
    /// It is after the newest heartbeat, within the allowed silence.
    Quiet,
    /// No outage. Single heartbeats are not stored, so their number is unknown.
    Online,
    /// The unit was not known yet, or was never heard.
    Unknown,
}

/// A day of a unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Day {
    pub from: Timestamp,
    /// `null` if the whole day is unknown: before the unit was known, blind, or paused.
    pub offline_seconds: Option<f64>,
    /// How much of the day is known to be online or offline.
    pub watched_seconds: f64,
}

/// Something that happened to a unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TimelineEvent {
    pub at: Timestamp,
    /// The end of an event that takes time, such as a blind interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    pub event: EventType,
    pub text: Said,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<RecordId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notification: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EventType {
    /// The last heartbeat before a silence, or the newest of all.
    Heard,
    /// The unit was announced as gone, and its deadline is checked.
    Announced,
    Blind,
    Offline,
    Back,
    Acknowledged,
    /// A receiver was notified.
    Notified,
    /// An attempt to notify a receiver failed.
    NotNotified,
    /// An alert silence holds its notifications.
    Silenced,
    /// The mass-offline breaker holds its notifications.
    Held,
    /// An operator changed the unit.
    Changed,
}

impl EventType {
    pub fn as_str(self) -> &'static str {
        match self {
            EventType::Heard => "heard",
            EventType::Announced => "announced",
            EventType::Blind => "blind",
            EventType::Offline => "offline",
            EventType::Back => "back",
            EventType::Acknowledged => "acknowledged",
            EventType::Notified => "notified",
            EventType::NotNotified => "not_notified",
            EventType::Silenced => "silenced",
            EventType::Held => "held",
            EventType::Changed => "changed",
        }
    }
}

async fn timeline(
    State(timelines): State<Timelines>,
    path: Result<Path<(String, String)>, PathRejection>,
    uri: Uri,
) -> Result<Json<Timeline>, HttpError> {
    let Path((kind, id)) = path?;
    let unit = parse(&kind, &id).map_err(|error| HttpError::bad_request(error.to_string()))?;
    let TimelineQuery { limit } = query(&uri)?;
    let limit = page_limit(limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    Ok(Json(timelines.of(&unit, limit).await?))
}

impl Timelines {
    pub fn new(sources: &PageSources) -> Timelines {
        Timelines {
            views: UnitViews::new(sources),
            records: sources.records.clone(),
            deliveries: Deliveries {
                records: sources.deliveries.clone(),
                attempts: Attempts::new(sources.cells.clone()),
                queries: sources.records.clone(),
                groups: sources.groups.clone(),
                roll: sources.roll.clone(),
                breaker: Arc::new(breaker(sources)),
                timers: sources.timers.store(),
                silences: sources.silences.clone(),
            },
            silences: sources.silences.clone(),
            roll: sources.roll.clone(),
            beginning: Beginning::new(sources.cells.clone()),
            history: sources.history.clone(),
            keep_records: sources.keep_records,
            clock: sources.clock.clone(),
            notified: Notified::new(sources),
        }
    }

    /// The timeline with up to `limit` records.
    pub async fn of(&self, unit: &Unit, limit: usize) -> Result<Timeline, HttpError> {
        let (view, history) = tokio::join!(self.views.view(unit), self.records.history(unit, limit));
        let (view, history) = (view?, history?);
        let now = self.clock.now();
        let mut events: Vec<TimelineEvent> = history.records.iter().flat_map(of_record).collect();
        let hearing = self.roll.hearing_so_far();
        let of_unit = hearing.at(&unit.kind, view.broker.as_ref());
        let blind = of_unit.ledger.intervals();
        events.extend(history.records.iter().flat_map(|record| blind_within(record, blind, now)));
        let newest = history.records.iter().take(NOTIFIED);
        let attempts = newest.clone().map(|record| async { self.deliveries.of_record(&record.id).await });
        let silenced = async {
            match &view.record {
                Some(open) => self.silenced(open, now).await,
                None => Ok(Vec::new()),
            }
        };
        let (attempts, silenced, audit, trip) = tokio::try_join!(
            async { Ok(try_join_all(attempts).await?) },
            silenced,
            async { Ok(self.silences.audit(MAX_AUDITED).await?) },
            self.notified.trip()
        )?;
        let of_newest = attempts.first().map_or(&[][..], |one| &one.made);
        let told = self.notified.of(&view, history.records.first(), of_newest, trip.as_ref(), now).await?;
        let attempts_cut =
            history.records.len() > NOTIFIED || attempts.iter().any(|of_record| of_record.is_cut);
        let attempts: Vec<TimelineEvent> =
            newest.zip(attempts).flat_map(|(record, notices)| of_notices(notices.made, record)).collect();
        events.extend(trip.zip(view.record.as_ref()).and_then(|(trip, open)| held(&trip, open, &attempts)));
        events.extend(attempts.into_iter().chain(silenced).chain(changes(&audit, unit, &history.records)));
        events.extend(of_present(&view, history.records.first()));
        events.sort_by_key(|event| std::cmp::Reverse(event.at));
        let sentence = sentence(&view, of_unit.heard, now);
        let further = [rhythm_of(&view, now), self.views.two_places(unit)].into_iter().flatten();
        let sentence = Said::joined([sentence].into_iter().chain(further.map(Said::from)), " ");
        let watched_since = self.beginning.since(now).await.unwrap_or(Timestamp::ZERO);
        let known_since = view.known_since.map_or(watched_since, |known| known.max(watched_since));
        // The engine may have removed older records, or know the unit again after it lost its data.
        let kept = now - self.keep_records;
        let mut days = days(&history, &audit, (&view, of_unit), known_since.max(kept), now);
        let is_known = days.first().is_some_and(|first| first.unknown.is_zero());
        let days_are_complete = is_known || self.add_past(&mut days, unit, now).await;
        let days = begins(now).zip(days).map(Day::of).collect();
        let hour = last_hour(&history.records, blind, view.last_seen, known_since, now);
        let (notified, is_complete) = (told.said(), history.is_complete);
        Ok(Timeline {
            view,
            at: now,
            sentence,
            notified,
            events,
            days,
            is_complete,
            days_are_complete,
            attempts_cut,
            hour,
        })
    }

    /// Takes days from history where history knows more of them than the engine; returns whether history answered, if
    /// there is one.
    async fn add_past(&self, days: &mut [TimeSpent], unit: &Unit, now: Timestamp) -> bool {
        let Some(history) = &self.history else { return true };
        let asked = Days { from: begins(now).next().map_or(day_of(now), day_of), until: day_of(now) };
        match history.days_of_unit(unit, asked).await {
            Ok(past) => {
                let unknown = days.iter_mut().zip(past).filter(|(known, past)| past.unknown < known.unknown);
                unknown.for_each(|(known, past)| *known = past);
                true
            }
            Err(why) => {
                tracing::debug!("the days of a unit are shown without history: {why}");
                false
            }
        }
    }

    /// The alert silences that hold the notifications of an open record now.
    async fn silenced(&self, open: &OfflineRecord, now: Timestamp) -> Result<Vec<TimelineEvent>, HttpError> {
        let silences = self.silences.current().await?;
        let covering = silences.covering(open, now);
        let event = |silence: &AlertSilence| TimelineEvent {
            until: Some(silence.ends_at),
            text: remark(format!("silence {} of {}", silence.id, silence.author), &silence.comment),
            record: Some(open.id.clone()),
            ..TimelineEvent::at(silence.starts_at, EventType::Silenced)
        };
        Ok(covering.map(event).collect())
    }
}

/// Changes of the unit by operators, as far as the audit goes back. An acknowledgement that a record shows is left out.
fn changes(audit: &[AuditEntry], unit: &Unit, records: &[OfflineRecord]) -> Vec<TimelineEvent> {
    let name = (unit.kind.to_string(), unit.id.to_string());
    let of_unit = audit.iter().filter(|entry| entry.unit().as_ref() == Some(&name));
    let changes = of_unit.filter(|entry| !is_shown(entry, records)).map(|entry| TimelineEvent {
        text: remark(format!("{} by {}", entry.change.as_str().replace('_', " "), entry.author), &entry.text),
        ..TimelineEvent::at(entry.at, EventType::Changed)
    });
    changes.collect()
}

impl TimelineEvent {
    fn at(at: Timestamp, event: EventType) -> TimelineEvent {
        TimelineEvent { at, until: None, event, text: Said::default(), record: None, notification: None }
    }
}

/// The event that the breaker holds the notification of an open record, unless a receiver has it already.
fn held(trip: &Trip, open: &OfflineRecord, attempts: &[TimelineEvent]) -> Option<TimelineEvent> {
    let is_told =
        |event: &TimelineEvent| event.event == EventType::Notified && event.record.as_ref() == Some(&open.id);
    (!attempts.iter().any(is_told)).then(|| TimelineEvent {
        until: Some(trip.until),
        text: Said::from("the mass-offline breaker holds notifications ")
            .then(Part::Until(trip.until))
            .then(" at the latest; see rollcall breaker show"),
        record: Some(open.id.clone()),
        ..TimelineEvent::at(trip.at.max(open.detected_at), EventType::Held)
    })
}

/// Returns whether a record shows the same acknowledgement.
fn is_shown(entry: &AuditEntry, records: &[OfflineRecord]) -> bool {
    let mut taken = records.iter().filter_map(|record| record.acknowledged.as_ref());
    entry.change == Audited::Acknowledged && taken.any(|taken| taken.at == entry.at)
}

/// How a unit spent each of the last [`DAYS`] days, by the records and the changes by operators that were read.
fn days(
    history: &History,
    audit: &[AuditEntry],
    (view, hearing): (&UnitDetails, &Hearing),
    since: Timestamp,
    now: Timestamp,
) -> Vec<TimeSpent> {
    let oldest = history.records.last().filter(|_| !history.is_complete).map(|oldest| oldest.deadline);
    // A unit that was never heard is neither online nor offline.
    let since = if view.last_seen.is_some() { since } else { Timestamp::NEVER };
    let unknown = [Interval { from: Timestamp::ZERO, to: oldest.map_or(since, |oldest| oldest.max(since)) }];
    let outages = outages_of(&history.records);
    let name = (view.kind.to_string(), view.unit.to_string());
    let past = past_pauses(audit.iter().rev(), Timestamp::ZERO).into_iter();
    let past = past.filter(|(unit, _)| *unit == name).map(|(_, pause)| pause);
    let pauses: Vec<Interval> = past.chain(view.pause).collect();
    let times = UnitTimes {
        outages: &outages,
        pauses: &pauses,
        blind: hearing.ledger.intervals(),
        unknown: &unknown,
    };
    let known = Interval { from: Timestamp::ZERO, to: Timestamp::NEVER };
    begins(now)
        .map(|from| TimeSpent::of(Interval { from, to: (from + DAY).min(now) }, known, times))
        .collect()
}

/// The midnights of the last [`DAYS`] days, oldest first.
fn begins(now: Timestamp) -> impl Iterator<Item = Timestamp> {
    let today = midnight(day_of(now));
    (0..DAYS).rev().map(move |back| today - DAY * back)
}

impl Day {
    fn of((from, spent): (Timestamp, TimeSpent)) -> Day {
        let watched = spent.online + spent.offline;
        let offline_seconds = (!watched.is_zero()).then_some(spent.offline.as_secs_f64());
        Day { from, offline_seconds, watched_seconds: watched.as_secs_f64() }
    }
}

/// The minutes of the last hour, oldest first; the last one ends now.
fn last_hour(
    records: &[OfflineRecord],
    blind: &[Interval],
    heard: Option<Timestamp>,
    known_since: Timestamp,
    now: Timestamp,
) -> Vec<Minute> {
    let minute = |back: u32| {
        let range = Interval { from: now - MINUTE * back, to: now - MINUTE * (back - 1) };
        let meets = |from: Timestamp, to: Timestamp| from < range.to && to > range.from;
        // A heartbeat at this very moment belongs to the last minute.
        let has_heartbeat = heard.is_some_and(|heard| range.from < heard && heard <= range.to);
        let was = if has_heartbeat {
            MinuteState::Heard
        } else if records.iter().any(|one| meets(one.deadline, one.back_at.unwrap_or(now))) {
            MinuteState::Offline
        } else if known_since >= range.to || heard.is_none() {
            MinuteState::Unknown
        } else if blind.iter().any(|one| meets(one.from, one.to)) {
            MinuteState::Blind
        } else if heard.is_none_or(|heard| heard <= range.from) {
            MinuteState::Quiet
        } else {
            MinuteState::Online
        };
        Minute { from: range.from, was }
    };
    (1..=60).rev().map(minute).collect()
}

/// What came from the unit since its newest record.
fn of_present(view: &UnitDetails, newest: Option<&OfflineRecord>) -> impl Iterator<Item = TimelineEvent> {
    let is_last_of_record = |seen: &Timestamp| newest.is_some_and(|newest| newest.last_seen == *seen);
    let heard = view.last_seen.filter(|seen| !is_last_of_record(seen)).map(|seen| TimelineEvent {
        text: "the newest heartbeat".into(),
        ..TimelineEvent::at(seen, EventType::Heard)
    });
    let announced = view.announced_at.zip(view.late_cause).map(|(at, cause)| TimelineEvent {
        text: announced(cause, view.broker.as_ref()).into(),
        ..TimelineEvent::at(at, EventType::Announced)
    });
    heard.into_iter().chain(announced)
}

fn of_record(record: &OfflineRecord) -> Vec<TimelineEvent> {
    let of = |at: Timestamp, event: EventType, text: String| TimelineEvent {
        text: text.into(),
        record: Some(record.id.clone()),
        ..TimelineEvent::at(at, event)
    };
    let late = record.detected_at.since(record.deadline).as_millis();
    let silence = span(record.deadline.since(record.silent_from.unwrap_or(record.last_seen)));
    let why = match record.cause.is_announced() {
        true => {
            format!("{}, after {silence} of silence; found {late} ms later", announced(record.cause, None))
        }
        false => format!("its deadline passed after {silence} of silence; found {late} ms later"),
    };
    let mut events = vec![
        of(record.last_seen, EventType::Heard, "last heartbeat before the silence".to_owned()),
        of(record.deadline, EventType::Offline, why),
    ];
    events.extend(record.back_at.map(|back| {
        let text = match record.closed_by {
            Some(Closing::Return) | None => {
                format!("heard again, {} after its deadline", span(back.since(record.deadline)))
            }
            Some(other) => format!("the record was closed: {}", other.as_str().replace('_', " ")),
        };
        of(back, EventType::Back, text)
    }));
    events.extend(record.acknowledged.as_ref().map(|taken| {
        let text = remark(format!("by {}", taken.author), &taken.comment);
        TimelineEvent { text, ..of(taken.at, EventType::Acknowledged, String::new()) }
    }));
    events
}

/// What an operator did, with a comment if there is one.
fn remark(done: String, comment: &str) -> Said {
    if comment.is_empty() { done.into() } else { format!("{done}: {comment}").into() }
}

/// The blind time within a silence.
fn blind_within(record: &OfflineRecord, blind: &[Interval], now: Timestamp) -> Vec<TimelineEvent> {
    let end = record.back_at.unwrap_or(now);
    let within = blind.iter().filter(|one| one.from < end && one.to > record.last_seen);
    let event = |one: &Interval| TimelineEvent {
        until: one.is_over().then_some(one.to),
        text: "Rollcall could not prove that it hears the fleet; this time does not count as silence".into(),
        record: Some(record.id.clone()),
        ..TimelineEvent::at(one.from, EventType::Blind)
    };
    within.map(event).collect()
}

/// The attempts of a record as events, in the order of their times. The reminders between two other events are one event
/// for each receiver.
fn of_notices(mut made: Vec<Notice>, record: &OfflineRecord) -> Vec<TimelineEvent> {
    made.sort_by_key(|one| one.attempt.at);
    let is_reminder =
        |one: &Notice| one.notice == NoticeType::Reminder && one.attempt.result == AttemptResult::Delivered;
    let mut events = Vec::new();
    for run in made.chunk_by(|a, b| is_reminder(a) && is_reminder(b)) {
        let mut of_receivers: BTreeMap<&str, Vec<&Notice>> = BTreeMap::new();
        for one in run {
            of_receivers.entry(&one.attempt.receiver).or_default().push(one);
        }
        events.extend(of_receivers.into_values().filter_map(|of_one| of_reminders(&of_one, record)));
    }
    events
}

/// Successive reminders of one receiver, or any one notice.
fn of_reminders(of_receiver: &[&Notice], record: &OfflineRecord) -> Option<TimelineEvent> {
    let ([first, ..], [.., last]) = (of_receiver, of_receiver) else { return None };
    let (event, mut text) = outcome(first);
    if of_receiver.len() > 1 {
        text = Said::from(format!("{} reminders to {}, the last ", of_receiver.len(), last.attempt.receiver))
            .then(Part::At(last.attempt.at));
    }
    Some(TimelineEvent {
        text,
        until: (of_receiver.len() > 1).then_some(last.attempt.at),
        record: Some(record.id.clone()),
        notification: Some(last.attempt.notification.clone()),
        ..TimelineEvent::at(first.attempt.at, event)
    })
}

/// The result of an attempt, in words. A receiver that took it needs no answer.
fn outcome(Notice { attempt, notice }: &Notice) -> (EventType, Said) {
    let what = match notice {
        NoticeType::Silence => "its silence",
        NoticeType::Escalation => "its silence, which was escalated",
        NoticeType::Reminder => "its silence again",
        NoticeType::Return => "its return",
    };
    let Attempt { receiver, number, answer, meant_for, .. } = attempt;
    let instead = meant_for.as_ref().map(|other| format!(", in place of {}", other.receiver));
    let instead = instead.unwrap_or_default();
    let because = if answer.is_empty() { String::new() } else { format!(": {answer}") };
    match (attempt.result, notice) {
        (AttemptResult::Delivered, NoticeType::Reminder) => {
            (EventType::Notified, format!("{receiver} was reminded of its silence").into())
        }
        (AttemptResult::Delivered, _) => {
            (EventType::Notified, format!("{receiver} was notified of {what}{instead}").into())
        }
        (AttemptResult::Failed, _) => {
            let text = format!("{receiver} could not be notified of {what} (attempt {number}){because}");
            (EventType::NotNotified, text.into())
        }
        (AttemptResult::Dead, _) => {
            let text = format!(
                "{receiver} was given up on and is not notified of {what} (attempt {number}){because}"
            );
            (EventType::NotNotified, text.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_shows_the_most_important_part_of_what_is_known_of_it() {
        let at = |minutes: f64| Timestamp::from_millis((minutes * 60_000.0) as i64);
        let record = |deadline: f64, back: Option<f64>| OfflineRecord {
            back_at: back.map(at),
            ..OfflineRecord::open("detector:1".parse().unwrap(), at(0.0), at(deadline), at(deadline))
        };
        let drawn = |records: &[OfflineRecord], blind: &[Interval], heard: Option<f64>, known: f64| {
            let minutes = last_hour(records, blind, heard.map(at), at(known), at(60.0));
            assert_eq!((minutes.len(), minutes[0].from, minutes[59].from), (60, at(0.0), at(59.0)));
            let sign = |minute: &Minute| match minute.was {
                MinuteState::Heard => '|',
                MinuteState::Offline => 'x',
                MinuteState::Blind => 'b',
                MinuteState::Quiet => '.',
                MinuteState::Online => '-',
                MinuteState::Unknown => ' ',
            };
            minutes.iter().map(sign).collect::<String>()
        };
        let line = |parts: &[(char, usize)]| {
            parts.iter().map(|(sign, count)| sign.to_string().repeat(*count)).collect::<String>()
        };
        assert_eq!(drawn(&[], &[], Some(60.0), 0.0), line(&[('-', 59), ('|', 1)]));
        assert_eq!(drawn(&[], &[], Some(49.5), 0.0), line(&[('-', 49), ('|', 1), ('.', 10)]));
        let blind = [Interval { from: at(20.0), to: at(22.0) }];
        assert_eq!(drawn(&[], &blind, None, 0.0), line(&[(' ', 60)]), "it was never heard");
        assert_eq!(drawn(&[], &blind, Some(60.0), 40.0), line(&[(' ', 40), ('-', 19), ('|', 1)]));
        // Known since the middle of the third minute; an ended outage, blind time, and a current outage.
        let records = [record(50.5, None), record(10.0, Some(12.5))];
        let blind = [Interval { from: at(20.0), to: at(22.0) }];
        assert_eq!(
            drawn(&records, &blind, Some(30.5), 2.5),
            line(&[
                (' ', 2),
                ('-', 8),
                ('x', 3),
                ('-', 7),
                ('b', 2),
                ('-', 8),
                ('|', 1),
                ('.', 19),
                ('x', 10)
            ])
        );
        // Current blind time, and a heartbeat in the minute of an outage.
        let blind = [Interval { from: at(58.0), to: Timestamp::NEVER }];
        assert_eq!(
            drawn(&[record(40.0, Some(41.5))], &blind, Some(41.5), 0.0),
            line(&[('-', 40), ('x', 1), ('|', 1), ('.', 16), ('b', 2)])
        );
    }

    fn notice(notice: NoticeType, receiver: &str, at: i64, result: &str) -> Notice {
        let stored = format!(
            r#"{{"i":"id","r":"{receiver}","g":"kind=pump","s":1,"t":{at},"d":3,"n":2,"e":"{result}","a":"answer"}}"#
        );
        Notice { attempt: serde_json::from_str(&stored).unwrap(), notice }
    }

    #[test]
    fn an_attempt_is_said_with_the_answer_of_a_receiver_that_did_not_take_it() {
        use NoticeType::{Escalation, Reminder, Return, Silence};
        for (of, result, event, text) in [
            (Silence, "delivered", EventType::Notified, "mail was notified of its silence"),
            (
                Escalation,
                "delivered",
                EventType::Notified,
                "mail was notified of its silence, which was escalated",
            ),
            (Reminder, "delivered", EventType::Notified, "mail was reminded of its silence"),
            (Return, "delivered", EventType::Notified, "mail was notified of its return"),
            (
                Reminder,
                "failed",
                EventType::NotNotified,
                "mail could not be notified of its silence again (attempt 2): answer",
            ),
            (
                Silence,
                "dead",
                EventType::NotNotified,
                "mail was given up on and is not notified of its silence (attempt 2): answer",
            ),
        ] {
            let (said_event, said) = outcome(&notice(of, "mail", 2, result));
            assert_eq!((said_event, said.to_string().as_str()), (event, text));
        }
    }

    #[test]
    fn reminders_between_two_other_events_are_one_event_for_each_receiver() {
        use NoticeType::{Reminder, Silence};
        let at = Timestamp::from_millis(0);
        let record = OfflineRecord::open("detector:1".parse().unwrap(), at, at, at);
        let made = vec![
            notice(Reminder, "mail", 5000, "delivered"),
            notice(Silence, "mail", 1000, "delivered"),
            notice(Reminder, "mail", 2000, "delivered"),
            notice(Reminder, "boss", 2000, "delivered"),
            notice(Reminder, "mail", 3000, "delivered"),
            notice(Reminder, "mail", 4000, "failed"),
        ];
        let said: Vec<String> = of_notices(made, &record)
            .into_iter()
            .map(|event| format!("{} {}", event.at.as_millis(), event.text))
            .collect();
        assert_eq!(
            said,
            [
                "1000 mail was notified of its silence",
                "2000 boss was reminded of its silence",
                "2000 2 reminders to mail, the last at 1970-01-01T00:00:03.000Z",
                "4000 mail could not be notified of its silence again (attempt 2): answer",
                "5000 mail was reminded of its silence",
            ]
        );
    }
}
