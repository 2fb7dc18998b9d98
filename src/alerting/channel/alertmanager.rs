//! The channel to Alertmanager: open records are alerts of its API v2.
//!
//! Alertmanager keeps alerts in memory and forgets an alert that is not sent again. So a transition is posted when it
//! is notified, and the loop in `alerting/resend.rs` posts all open records, every lasting blindness and a trip of
//! the mass-offline breaker again every `resend`. An alert is valid for four times that long; `endsAt` says until
//! when, and a return sets it to its moment. Servers of a cluster do not tell each other of alerts: each server gets
//! all of them. A notification has arrived when one server has taken it. The other servers get it, also the end of an
//! alert, with the next resend, and are reported as unreached until then.
//!
//! A server that does not answer, or that is slow, takes nothing from the others. Once one of them has taken the alerts
//! of a notification, the rest have [`SLOW_AFTER`]. A server that took longer gets only resends until it is faster: a
//! resend waits longer for it, though not longer than until the next resend is due, or the alerts of the others would
//! end.
//!
//! # Alerts that end between two resends
//! A return may be notified by another instance, or while the open records are being read, and then the resend revives
//! its alert. So each resend ends the alerts that the one before sent and that are not open any more.
//!
//! # The cap
//! Beyond `max_alerts` open records, one mass alert says how many there are. The oldest ones stay alerts of their own,
//! so that no alert ends because another one began. An instance that does not resend counts only what it has sent
//! lately.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use hyper::Method;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::http_target::{HttpConfig, HttpTarget, Request, parse_url};
use super::webhook::bearer;
use super::{Channel, Failure, LastingBlindness, OpenRecords, ReceiverAnswer};
use crate::alerting::alert::{Alert, BLIND, alerts, mass_alert};
use crate::alerting::message::{MessageConfig, ReceiverMessage, test_delivery};
use crate::clock::Timestamp;
use crate::presence::{Labels, OfflineRecord, RecordId};
use crate::routing::alert::{ALERT_NAME, BREAKER_TRIPPED, DATA_LOST_ALERT};
use crate::store::Delivery;
use crate::telemetry::Unreached;

mod missed;

use missed::Missed;

/// The path of the API below the address of a server.
const PATH: &str = "api/v2/alerts";
/// For how many resends an alert is valid.
const VALID_FOR: u32 = 4;
/// The least time for which blindness, a trip of the mass-offline breaker and a loss of data are valid. The first two
/// are sent again like records; an instance that has just started waits for `hearing.tell_after`, or for the engine,
/// before it sends them.
const BLIND_FOR: Duration = Duration::from_secs(900);

#[derive(Clone, Default)]
pub struct AlertmanagerConfig {
    /// The addresses of all servers of the cluster.
    pub urls: Vec<String>,
    /// A token for `Authorization: Bearer`.
    pub token: Option<String>,
    pub http: HttpConfig,
    pub resend: Duration,
    /// The most alerts of single records.
    pub max_alerts: usize,
}

/// A server is slow if it takes this much longer than another one.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// A slow server gets notifications again after at most this many resends.
const SLOW_FOR: u32 = 3;

pub struct Alertmanager {
    receiver: String,
    servers: Vec<AlertmanagerServer>,
    authorization: Option<HeaderValue>,
    resend: Duration,
    max_alerts: usize,
    /// How long a server may take before it is left to the next resend.
    timeout: Duration,
    counted: Mutex<OpenRecordCount>,
    /// The alerts of the last resend.
    resent: Mutex<HashMap<ActiveAlert, Alert>>,
    /// The servers that did not take the last alerts, and why.
    refused: Mutex<Option<String>>,
    /// The ends of alerts that single servers did not take.
    missed: Mutex<Missed>,
    /// Records that were closed within the last two resends, and when. A resend may have read them before. Every
    /// instance forgets them by time, whether or not it resends.
    closed: Mutex<HashMap<RecordId, Timestamp>>,
    message: MessageConfig,
}

/// Why alerts are posted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PostReason {
    Notification,
    Resend,
}

struct AlertmanagerServer {
    target: HttpTarget,
    /// Until when it gets only resends, because it was slow; in ms since 1970.
    slow_until: AtomicI64,
}

impl AlertmanagerServer {
    fn is_slow(&self, now: Timestamp) -> bool {
        now.as_millis() < self.slow_until.load(Ordering::Relaxed)
    }

    fn left(&self) -> Failure {
        Failure::temporary(format!("{}: no answer lately, the next resend tries it", self.target.origin()))
    }
}

/// The subject of an alert that lasts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ActiveAlert {
    Record(RecordId),
    /// Records beyond the cap.
    Mass,
    /// With the fingerprint of the alert.
    Blindness(String),
}

/// How many records are open, as far as this instance knows.
#[derive(Default)]
struct OpenRecordCount {
    open: usize,
    at: Timestamp,
}

/// An alert as it is posted.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct PostedAlert {
    labels: Labels,
    annotations: Labels,
    starts_at: Timestamp,
    ends_at: Timestamp,
    #[serde(rename = "generatorURL", skip_serializing_if = "Option::is_none")]
    generator_url: Option<String>,
    #[serde(skip)]
    is_over: bool,
}

impl PostedAlert {
    /// An alert that lasts is valid until `valid_until`.
    fn new(alert: Alert, valid_until: Timestamp) -> PostedAlert {
        PostedAlert {
            labels: alert.labels,
            annotations: alert.annotations,
            starts_at: alert.starts_at,
            is_over: alert.ends_at.is_some(),
            ends_at: alert.ends_at.unwrap_or(valid_until),
            generator_url: alert.url,
        }
    }
}

impl Alertmanager {
    /// A channel. Errors name the option and show no secret.
    pub fn new(
        receiver: &str,
        config: &AlertmanagerConfig,
        message: &MessageConfig,
        timeout: Duration,
    ) -> Result<Alertmanager, String> {
        if config.urls.is_empty() {
            return Err("urls is empty; write the address of each server of the cluster".to_owned());
        }
        let server = |url: &String| {
            let target = HttpTarget::new(api(url)?, &config.http, Vec::from_iter(config.token.clone()))?;
            Ok::<AlertmanagerServer, String>(AlertmanagerServer { target, slow_until: AtomicI64::new(0) })
        };
        Ok(Alertmanager {
            receiver: receiver.to_owned(),
            servers: config.urls.iter().map(server).collect::<Result<_, _>>()?,
            authorization: config.token.as_deref().map(bearer).transpose()?,
            resend: config.resend,
            max_alerts: config.max_alerts,
            timeout: timeout * 4 / 5,
            counted: Mutex::default(),
            resent: Mutex::default(),
            refused: Mutex::default(),
            missed: Mutex::new(Missed::new(config.urls.len())),
            closed: Mutex::default(),
            message: message.clone(),
        })
    }

    /// Posts to all servers, and to each the ends of alerts that it has missed. An error if none took it.
    async fn post(&self, alerts: Vec<PostedAlert>, why: PostReason, now: Timestamp) -> Result<(), Failure> {
        let missed = self.missed.lock().beside(&alerts, now);
        if alerts.is_empty() && missed.iter().all(Vec::is_empty) {
            *self.refused.lock() = None;
            return Ok(());
        }
        let is_taken = CancellationToken::new();
        let leaves_slow =
            why == PostReason::Notification && !self.servers.iter().all(|server| server.is_slow(now));
        let posts = self.servers.iter().zip(&missed).map(async |(server, missed)| {
            let alerts: Vec<&PostedAlert> = alerts.iter().chain(missed).collect();
            match alerts.is_empty() {
                true => Ok(()),
                false if leaves_slow && server.is_slow(now) => Err(server.left()),
                false => self.post_to(server, &alerts, why, &is_taken, now).await,
            }
        });
        let results = join_all(posts).await;
        let failures: Vec<&Failure> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        let refused: Vec<String> = failures.iter().map(ToString::to_string).collect();
        if failures.len() == self.servers.len() {
            // The next attempt leaves no server out.
            self.servers.iter().for_each(|server| server.slow_until.store(0, Ordering::Relaxed));
            // Alertmanager knows no receiver that wants nothing more: the server of another program answered.
            let asked = failures.iter().filter_map(|failure| match failure {
                Failure::Temporary { retry_after, .. } => *retry_after,
                Failure::Partial { .. } | Failure::TooLarge { .. } | Failure::Gone { .. } => None,
            });
            return Err(Failure::Temporary { why: refused.join(", "), retry_after: asked.min() });
        }
        let until = now + (VALID_FOR * self.resend).max(BLIND_FOR);
        for (server, (result, ends)) in results.iter().zip(&missed).enumerate() {
            match result {
                Ok(()) => self.missed.lock().taken(server, ends),
                Err(_) => self.missed.lock().refused(server, &alerts, until),
            }
        }
        *self.refused.lock() = (!refused.is_empty()).then(|| refused.join(", "));
        Ok(())
    }

    /// `is_taken`: another server has taken the alerts.
    async fn post_to(
        &self,
        server: &AlertmanagerServer,
        alerts: &[&PostedAlert],
        why: PostReason,
        is_taken: &CancellationToken,
        now: Timestamp,
    ) -> Result<(), Failure> {
        let body = serde_json::to_string(alerts).expect("names and times are always JSON");
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.extend(self.authorization.clone().map(|value| (AUTHORIZATION, value)));
        let target = &server.target;
        let request = Request { method: Method::POST, address: target.address().clone(), headers, body };
        let mut send = pin!(tokio::time::timeout(self.timeout, target.send(request, now)));
        let after_others = async |wait| {
            is_taken.cancelled().await;
            tokio::time::sleep(wait).await;
        };
        let prompt = tokio::select! {
            answer = &mut send => Some(answer),
            () = after_others(SLOW_AFTER) => None,
        };
        let is_slow = !matches!(prompt, Some(Ok(_)));
        let slow_until = if is_slow { now + self.timeout + SLOW_FOR * self.resend } else { Timestamp::ZERO };
        server.slow_until.store(slow_until.as_millis(), Ordering::Relaxed);
        let answer = match prompt {
            Some(answer) => answer.ok(),
            None if why == PostReason::Notification => None,
            None => tokio::select! {
                answer = send => answer.ok(),
                () = tokio::time::sleep(self.resend.saturating_sub(SLOW_AFTER)) => None,
            },
        };
        let origin = target.origin();
        answer.unwrap_or_else(|| Err(Failure::temporary(format!("{origin}: no answer in time"))))?;
        is_taken.cancel();
        Ok(())
    }

    /// The records that were closed within the last two resends; forgets older ones.
    fn closed(&self, now: Timestamp) -> MutexGuard<'_, HashMap<RecordId, Timestamp>> {
        let mut closed = self.closed.lock();
        closed.retain(|_, at| now.since(*at) < 2 * self.resend);
        closed
    }

    /// The count of open records. It is forgotten where this instance does not resend.
    fn counted(&self, now: Timestamp) -> MutexGuard<'_, OpenRecordCount> {
        let mut counted = self.counted.lock();
        if now.since(counted.at) >= 2 * self.resend {
            *counted = OpenRecordCount { open: 0, at: now };
        }
        counted
    }

    /// The alerts of a message: all that are over, and the oldest of those that last, as far as the cap allows.
    fn of_message(&self, message: &ReceiverMessage<'_>, now: Timestamp) -> Vec<PostedAlert> {
        let open = self.counted(now).open;
        let mut delivery = message.delivery.clone();
        delivery.offline.sort_by_cached_key(|record| (record.detected_at, record.id.to_string()));
        let room = self.max_alerts.saturating_sub(open);
        let beyond = delivery.offline.len().saturating_sub(room);
        delivery.offline.truncate(room);
        let alerts =
            alerts(&ReceiverMessage { delivery: &delivery, is_test: message.is_test }, &self.message);
        let mass = (beyond > 0).then(|| self.mass(open.max(self.max_alerts) + beyond, now));
        alerts.into_iter().chain(mass).map(|alert| self.posted(alert, now)).collect()
    }

    fn posted(&self, alert: Alert, now: Timestamp) -> PostedAlert {
        let resends = VALID_FOR * self.resend;
        let valid_for = match alert.labels.get(ALERT_NAME).map(String::as_str) {
            Some(BLIND | BREAKER_TRIPPED | DATA_LOST_ALERT) => resends.max(BLIND_FOR),
            _ => resends,
        };
        PostedAlert::new(alert, now + valid_for)
    }

    fn mass(&self, open: usize, now: Timestamp) -> Alert {
        mass_alert(&self.receiver, open, self.max_alerts, now, &self.message)
    }

    /// The alerts of open records, by record.
    fn of_records(&self, open: OpenRecords, now: Timestamp) -> HashMap<ActiveAlert, Alert> {
        let mass = (open.count > self.max_alerts).then(|| (ActiveAlert::Mass, self.mass(open.count, now)));
        let ids: Vec<RecordId> = open.oldest.iter().map(|record| record.id.clone()).collect();
        let delivery = Delivery { offline: open.oldest, ..test_delivery(&self.receiver, now) };
        let alerts = alerts(&ReceiverMessage::new(&delivery), &self.message);
        ids.into_iter().map(ActiveAlert::Record).zip(alerts).chain(mass).collect()
    }

    fn of_blindness(&self, blind: &LastingBlindness, now: Timestamp) -> Option<(ActiveAlert, Alert)> {
        let LastingBlindness { group, interval } = blind.clone();
        let delivery = Delivery { group, blind: vec![interval], ..test_delivery(&self.receiver, now) };
        let alert = alerts(&ReceiverMessage::new(&delivery), &self.message).pop()?;
        Some((ActiveAlert::Blindness(alert.fingerprint()), alert))
    }
}

#[async_trait]
impl Channel for Alertmanager {
    fn keeps_alerts(&self) -> bool {
        true
    }

    async fn send(&self, delivery: &Delivery, now: Timestamp) -> Result<ReceiverAnswer, Failure> {
        self.post(self.of_message(&ReceiverMessage::new(delivery), now), PostReason::Notification, now)
            .await?;
        let lasts = |one: &&OfflineRecord| delivery.offline.iter().any(|open| open.id == one.id);
        let ids = delivery.online.iter().filter(|one| !lasts(one)).map(|record| (record.id.clone(), now));
        self.closed(now).extend(ids);
        // The next resend counts again.
        let mut counted = self.counted(now);
        counted.open = (counted.open + delivery.offline.len()).saturating_sub(delivery.online.len());
        Ok(ReceiverAnswer::default())
    }

    async fn send_test(&self, now: Timestamp) -> Result<(), Failure> {
        let delivery = test_delivery(&self.receiver, now);
        self.post(self.of_message(&ReceiverMessage::test(&delivery), now), PostReason::Resend, now).await
    }

    /// Connects to every server.
    async fn probe(&self) -> Result<(), Failure> {
        for result in join_all(self.servers.iter().map(|server| server.target.probe())).await {
            result?;
        }
        Ok(())
    }

    fn render(&self, delivery: &Delivery) -> Result<String, String> {
        let posted = self.of_message(&ReceiverMessage::new(delivery), delivery.sealed_at);
        Ok(serde_json::to_string(&posted).expect("names and times are always JSON"))
    }

    fn unreached(&self) -> Option<Unreached> {
        self.refused.lock().clone().map(Unreached::Servers)
    }

    fn resend_every(&self) -> Option<Duration> {
        Some(self.resend)
    }

    async fn resend_missed(&self, now: Timestamp) -> Result<(), Failure> {
        drop(self.closed(now));
        self.post(Vec::new(), PostReason::Resend, now).await
    }

    fn most_resent(&self) -> usize {
        self.max_alerts
    }

    async fn resend(
        &self,
        open: Option<OpenRecords>,
        blind: &[LastingBlindness],
        now: Timestamp,
    ) -> Result<(), Failure> {
        let closed = self.closed(now).clone();
        let before = self.resent.lock().clone();
        let is_notified = |of: &ActiveAlert| matches!(of, ActiveAlert::Record(id) if closed.contains_key(id));
        let mut lasting = match open {
            Some(mut open) => {
                open.oldest.retain(|record| !closed.contains_key(&record.id));
                *self.counted(now) = OpenRecordCount { open: open.count, at: now };
                self.of_records(open, now)
            }
            // Without an answer of the engine, the last open records count as open.
            None => {
                let records = before
                    .iter()
                    .filter(|(of, _)| !matches!(of, ActiveAlert::Blindness(_)) && !is_notified(of));
                records.map(|(of, alert)| (of.clone(), alert.clone())).collect()
            }
        };
        lasting.extend(blind.iter().filter_map(|blind| self.of_blindness(blind, now)));
        let mut alerts: Vec<Alert> = lasting.values().cloned().collect();
        for (_, alert) in before.into_iter().filter(|(of, _)| !lasting.contains_key(of) && !is_notified(of)) {
            alerts.push(Alert { ends_at: Some(now.max(alert.starts_at)), ..alert });
        }
        let posted = alerts.into_iter().map(|alert| self.posted(alert, now)).collect();
        self.post(posted, PostReason::Resend, now).await?;
        *self.resent.lock() = lasting;
        Ok(())
    }
}

/// The address of the API of a server.
fn api(url: &str) -> Result<Url, String> {
    let mut url = parse_url(url)?;
    let path = format!("{}/{PATH}", url.path().trim_end_matches('/'));
    url.set_path(&path);
    Ok(url)
}

#[cfg(test)]
mod tests;
