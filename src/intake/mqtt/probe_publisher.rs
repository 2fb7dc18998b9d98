//! Publishes probes, and receives the broker's answers: the I/O of a `ProbeSchedule`.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt;
use rumqttc::{
    AsyncClient, PubAckReason, PublishNoticeError, PublishOptions, PublishProperties, PublishResult, QoS,
};

use super::probe_schedule::ProbeOutcome;
use crate::clock::Timestamp;
use crate::intake::canary::{Canary, Key};
use crate::intake::probe::{Probe, Probes};

/// Publishes the probes of all filters.
pub(in crate::intake) struct ProbePublisher {
    pub(super) probes: Arc<Probes>,
    key: Key,
    /// The user name of Rollcall at the broker, for operators.
    user: String,
    /// The pending answers to the probes of each filter, in order.
    open: Vec<VecDeque<PubAckFuture>>,
}

/// The broker's answer to a publication at QoS 1.
pub(super) type PubAckFuture = Pin<Box<dyn Future<Output = Option<PubAckReason>> + Send + Sync>>;

/// Publishes at QoS 1, whatever the QoS of the fleet: the answer shows whether the broker accepts the message. `None`
/// if the client has no room. `answers`: the topic on which another member of the share that receives the probe reports
/// it to this one.
pub(super) fn publish_tracked(
    client: &AsyncClient,
    topic: &str,
    canary: &Canary,
    answers: Option<&str>,
) -> Option<PubAckFuture> {
    let response_topic = answers.map(str::to_owned);
    let properties = PublishProperties { response_topic, ..PublishProperties::default() };
    let options = PublishOptions::new(QoS::AtLeastOnce).properties(properties);
    let notice = client.try_publish_tracked(topic.to_owned(), canary.to_json(), options).ok()?;
    // Without a result, the connection of the publication is gone.
    let reason = |result: Result<PublishResult, PublishNoticeError>| match result {
        Ok(PublishResult::Qos1(answer)) => Some(answer.reason),
        _ => None,
    };
    Some(Box::pin(notice.wait_async().map(reason)))
}

impl ProbePublisher {
    pub fn new(probes: Arc<Probes>, key: Key, user: String) -> ProbePublisher {
        let open = probes.all().iter().map(|_| VecDeque::new()).collect();
        ProbePublisher { probes, key, user, open }
    }

    /// Publishes a probe; returns whether the client had room for it. A probe without room is sent with the next
    /// canary.
    pub fn publish(&mut self, client: &AsyncClient, index: usize, now: Timestamp) -> bool {
        let probe = &self.probes.all()[index];
        let canary = Canary::new(&self.key, &probe.topic, &self.key.tag(), 0, now);
        let Some(answer) = publish_tracked(client, &probe.topic, &canary, self.probes.answers_topic()) else {
            return false;
        };
        self.open[index].push_back(answer);
        self.probes.sent(index, now);
        true
    }

    /// The answers that have arrived: the number of the probe and the reason code; no code if its connection is gone.
    pub fn take_answers(&mut self) -> Vec<(usize, Option<PubAckReason>)> {
        let mut answers = Vec::new();
        for (index, open) in self.open.iter_mut().enumerate() {
            while let Some(answer) = open.front_mut().and_then(|answer| answer.as_mut().now_or_never()) {
                open.pop_front();
                answers.push((index, answer));
            }
        }
        answers
    }

    pub fn connection_lost(&mut self) {
        self.open.iter_mut().for_each(VecDeque::clear);
        self.probes.all().iter().for_each(Probe::connection_lost);
    }

    /// Records the answer of the broker to the probe with this number.
    pub fn answered(&self, index: usize, outcome: ProbeOutcome) {
        let probe = &self.probes.all()[index];
        let refused = |why: &str, then: &str| Some(refused(probe, &self.user, why, then));
        probe.answered(match outcome {
            ProbeOutcome::Accepted => None,
            ProbeOutcome::Refused(reason) => refused(
                &format!("the broker refuses ({reason:?}) what Rollcall publishes"),
                "; Rollcall tries again every ten minutes",
            ),
            ProbeOutcome::EndsConnection => {
                refused("the broker ends the connection when Rollcall publishes", ", and restart Rollcall")
            }
        });
    }
}

/// The reason why Rollcall cannot prove that a filter is heard, with advice.
fn refused(Probe { topic, filter, .. }: &Probe, user: &str, why: &str, then: &str) -> String {
    format!(
        "only messages of units prove that {filter} is heard; while all units are silent, no unit is declared offline: \
         {why} to {topic}; allow {user} to read {filter} and to write {topic}{then}"
    )
}
