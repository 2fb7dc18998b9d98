//! Publishes probes, and learns whether the broker takes them.
//!
//! # When the broker does not take them
//! It is asked about no filter that it does not let Rollcall publish on: then what units say proves it,
//! an operator is told which right is missing, and it is tried again every ten minutes. Some brokers end a connection
//! that publishes where it may not. Rollcall must not lose one connection after the other by asking: what was just
//! published and never answered when a connection ends, twice, is not published again by this process; once
//! where the broker says that it is for want of a right.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rumqttc::{AsyncClient, PubAckReason, PublishNoticeError, PublishOptions, PublishResult, QoS};
use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::fleet::CanaryPace;
use crate::intake::canary::{Canary, Key};
use crate::intake::probe::{Probe, Probes};
use crate::telemetry::ConnectionLoss;

/// After how long a right that is missing is asked for again.
const AGAIN: Duration = Duration::from_secs(600);

/// A broker that ends a connection because of what was published does so within this.
const AT_ONCE: Duration = Duration::from_secs(2);

/// So many connections that end like that are no accident.
const ACCIDENTS: u32 = 2;

/// Publishes the probes of all filters.
pub(in crate::intake) struct Asking {
    probes: Arc<Probes>,
    key: Key,
    /// What the broker calls us, for people.
    user: String,
    filters: Vec<OfFilter>,
}

type Answer = Pin<Box<dyn Future<Output = Result<PublishResult, PublishNoticeError>> + Send + Sync>>;

/// How it stands with the probe of one filter.
#[derive(Default)]
struct OfFilter {
    /// When the last one went out by this connection.
    sent: Option<Instant>,
    /// What the broker has not answered; there is one at a time.
    open: Option<Answer>,
    /// Until when it is not tried.
    rests: Option<Instant>,
    /// Connections that ended right after it in a row.
    ended: u32,
    is_given_up: bool,
}

impl Asking {
    pub fn new(probes: Arc<Probes>, key: Key, user: String) -> Asking {
        let filters = probes.all().iter().map(|_| OfFilter::default()).collect();
        Asking { probes, key, user, filters }
    }

    /// Publishes those that are due. Canaries go out that far apart.
    pub fn ask(&mut self, client: &AsyncClient, now: Timestamp, pace: &CanaryPace, canaries: Duration) {
        self.hear();
        let moment = Instant::now();
        for (probe, of_filter) in self.probes.all().iter().zip(&mut self.filters) {
            let due = of_filter.sent.map_or(moment, |sent| sent + probe.period(pace)).max(
                // One that is refused has a pace of its own.
                of_filter.rests.unwrap_or(moment),
            );
            if of_filter.is_given_up || of_filter.open.is_some() || due > moment + canaries / 2 {
                continue;
            }
            let payload = Canary::new(&self.key, &probe.topic, &self.key.tag(), 0, now).to_json();
            // At QoS 1, whatever the fleet's is: the answer says whether it was taken.
            let options = PublishOptions::new(QoS::AtLeastOnce);
            // One that finds no room goes out with the next canary.
            let Ok(notice) = client.try_publish_tracked(probe.topic.clone(), payload, options) else {
                continue;
            };
            of_filter.sent = Some(moment);
            of_filter.open = Some(Box::pin(notice.wait_async()));
            probe.sent(now);
        }
    }

    /// The connection has ended, for that reason.
    pub fn connection_lost(&mut self, loss: ConnectionLoss) {
        self.hear();
        for (probe, of_filter) in self.probes.all().iter().zip(&mut self.filters) {
            probe.connection_lost();
            let sent = of_filter.sent.take();
            let is_open = of_filter.open.take().is_some();
            let may_be_for_it = matches!(loss, ConnectionLoss::Broken | ConnectionLoss::Refused);
            if !is_open || !may_be_for_it || sent.is_none_or(|sent| sent.elapsed() > AT_ONCE) {
                continue;
            }
            of_filter.ended += 1;
            if of_filter.ended >= ACCIDENTS || loss == ConnectionLoss::Refused {
                of_filter.is_given_up = true;
                let why = "the broker ends the connection when Rollcall publishes";
                probe.answered(Some(refused(probe, &self.user, why, "and start Rollcall anew")));
            }
        }
    }

    /// Takes what the broker has answered.
    fn hear(&mut self) {
        for (probe, of_filter) in self.probes.all().iter().zip(&mut self.filters) {
            let answer = of_filter.open.as_mut().and_then(|open| open.as_mut().now_or_never());
            let Some(answer) = answer else { continue };
            of_filter.open = None;
            // Without an answer its connection is gone.
            let Ok(PublishResult::Qos1(answer)) = answer else { continue };
            of_filter.ended = 0;
            match answer.reason {
                PubAckReason::Success | PubAckReason::NoMatchingSubscribers => {
                    of_filter.rests = None;
                    probe.answered(None);
                }
                reason => {
                    of_filter.rests = Some(Instant::now() + AGAIN);
                    let why = format!("the broker refuses ({reason:?}) what Rollcall publishes");
                    probe.answered(Some(refused(
                        probe,
                        &self.user,
                        &why,
                        "which is tried every ten minutes",
                    )));
                }
            }
        }
    }
}

/// Why it is not known whether a filter is heard, and what to do.
fn refused(Probe { topic, filter, .. }: &Probe, user: &str, why: &str, then: &str) -> String {
    format!(
        "only what units say proves that {filter} is heard, so while all of them are silent none is declared offline: \
         {why} to {topic}; allow {user} to read {filter} and to write {topic}, {then}"
    )
}
