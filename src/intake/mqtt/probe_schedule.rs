//! Decides which probes are due, and notes which the broker accepts.
//!
//! # When the broker does not accept a probe
//! A missing right to publish on a filter does not make the filter unheard: the messages of units prove it, the missing
//! right is reported to an operator, and the probe is tried again every ten minutes. Some brokers end a connection that
//! publishes without the right. Rollcall must not lose one connection after another by probing. So a probe is given up
//! by this process if connections ended twice right after it was published, without an answer; once is enough if the
//! broker reports a missing right.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rumqttc::PubAckReason;

use crate::fleet::BrokerPace;
use crate::intake::probe::Probes;
use crate::telemetry::ConnectionLoss;

/// The wait before a refused probe is published again.
const RETRY: Duration = Duration::from_secs(600);

/// While this many probes of a filter have no answer, further ones are sent only once a gap.
const MOST_OPEN: usize = 8;

/// A broker that ends a connection because of a publication does so within this time.
const AT_ONCE: Duration = Duration::from_secs(2);

/// This many such ends of connections are no coincidence.
const COINCIDENCES: u32 = 2;

pub(in crate::intake) struct ProbeSchedule {
    probes: Arc<Probes>,
    states: Vec<ProbeState>,
}

/// The publications of one probe.
#[derive(Default)]
struct ProbeState {
    /// When this connection last published the probe.
    published: Option<Instant>,
    /// The number of publications without an answer.
    open: usize,
    /// The probe waits until this moment.
    retry_at: Option<Instant>,
    /// How many connections in a row ended right after the probe was published.
    ended: u32,
    is_given_up: bool,
}

/// The answer of the broker to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    Accepted,
    Refused(PubAckReason),
    /// The broker ends the connection because of the probe.
    EndsConnection,
}

impl ProbeSchedule {
    pub fn new(probes: Arc<Probes>) -> ProbeSchedule {
        let states = probes.all().iter().map(|_| ProbeState::default()).collect();
        ProbeSchedule { probes, states }
    }

    /// The probes that are due; `period` is the time between two canaries.
    pub fn due(&self, now: Instant, pace: &BrokerPace, period: Duration) -> impl Iterator<Item = usize> {
        let is_due = move |(probe, state): (&crate::intake::probe::Probe, &ProbeState)| {
            let wait = if state.open < MOST_OPEN { probe.period(pace) } else { pace.gap() };
            let regular = state.published.map_or(now, |published| published + wait);
            // A refused probe has its own pace.
            let due = regular.max(state.retry_at.unwrap_or(now));
            !state.is_given_up && due <= now + period / 2
        };
        let all = self.probes.all().iter().zip(&self.states).enumerate();
        all.filter(move |(_, each)| is_due(*each)).map(|(index, _)| index)
    }

    pub fn published(&mut self, index: usize, now: Instant) {
        let state = &mut self.states[index];
        (state.published, state.open) = (Some(now), state.open + 1);
    }

    /// Takes the broker's answer to a probe; `None` if no answer will come, because the connection of the probe is
    /// gone.
    pub fn answered(
        &mut self,
        index: usize,
        answer: Option<PubAckReason>,
        now: Instant,
    ) -> Option<ProbeOutcome> {
        let state = &mut self.states[index];
        state.open = state.open.saturating_sub(1);
        let answer = answer?;
        state.ended = 0;
        Some(match answer {
            PubAckReason::Success | PubAckReason::NoMatchingSubscribers => {
                state.retry_at = None;
                ProbeOutcome::Accepted
            }
            reason => {
                state.retry_at = Some(now + RETRY);
                ProbeOutcome::Refused(reason)
            }
        })
    }

    /// Notes the end of the connection; returns the probes that are given up.
    pub fn connection_lost(&mut self, loss: ConnectionLoss, now: Instant) -> Vec<usize> {
        let may_be_for_it = matches!(loss, ConnectionLoss::Broken | ConnectionLoss::Refused);
        let mut given_up = Vec::new();
        for (index, state) in self.states.iter_mut().enumerate() {
            let published = state.published.take();
            let was_open = std::mem::take(&mut state.open) > 0;
            let is_recent = published.is_some_and(|at| now.duration_since(at) <= AT_ONCE);
            if !was_open || !may_be_for_it || !is_recent {
                continue;
            }
            state.ended += 1;
            if state.ended >= COINCIDENCES || loss == ConnectionLoss::Refused {
                state.is_given_up = true;
                given_up.push(index);
            }
        }
        given_up
    }
}
