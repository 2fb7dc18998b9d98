//! A delivery in a list, and its state.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::presence::Labels;
use crate::routing::{DATA_LOST, MASS_OFFLINE};
use crate::store::{Attempt, AttemptResult, DeadLetter, Delivery, WaitingDelivery, timer_of_group};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// The delivery waits, and no attempt was begun.
    Pending,
    /// The delivery waits for its next attempt.
    Failed,
    /// The delivery waits for a receiver that is not configured.
    Orphaned,
    /// The delivery was given up, and is kept as a dead letter.
    Dead,
    Delivered,
}

impl DeliveryState {
    pub fn as_str(self) -> &'static str {
        match self {
            DeliveryState::Pending => "pending",
            DeliveryState::Failed => "failed",
            DeliveryState::Orphaned => "orphaned",
            DeliveryState::Dead => "dead",
            DeliveryState::Delivered => "delivered",
        }
    }

    fn waits(self) -> bool {
        !matches!(self, DeliveryState::Dead | DeliveryState::Delivered)
    }
}

/// The state of the deliveries that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WantedState {
    /// Pending, failed or orphaned.
    Waiting,
    Pending,
    Failed,
    Orphaned,
    Dead,
    Delivered,
}

impl WantedState {
    pub const ALL: [WantedState; 6] = [
        WantedState::Waiting,
        WantedState::Pending,
        WantedState::Failed,
        WantedState::Orphaned,
        WantedState::Dead,
        WantedState::Delivered,
    ];

    pub fn as_str(self) -> &'static str {
        self.one().map_or("waiting", DeliveryState::as_str)
    }

    /// `None`: every state of a delivery that waits.
    fn one(self) -> Option<DeliveryState> {
        match self {
            WantedState::Waiting => None,
            WantedState::Pending => Some(DeliveryState::Pending),
            WantedState::Failed => Some(DeliveryState::Failed),
            WantedState::Orphaned => Some(DeliveryState::Orphaned),
            WantedState::Dead => Some(DeliveryState::Dead),
            WantedState::Delivered => Some(DeliveryState::Delivered),
        }
    }

    pub(super) fn takes(self, state: DeliveryState) -> bool {
        self.one().map_or(state.waits(), |one| one == state)
    }

    /// Whether the deliveries wait.
    pub(super) fn waits(self) -> bool {
        self.one().is_none_or(DeliveryState::waits)
    }
}

/// A delivery in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeliveryLine {
    pub id: String,
    pub receiver: String,
    pub state: DeliveryState,
    /// When the delivery was sealed, if it waits, else when it ended.
    pub at: Timestamp,
    pub sealed_at: Timestamp,
    pub labels: Labels,
    /// How many records, and blind intervals, the delivery has.
    pub offline: usize,
    pub online: usize,
    pub blind: usize,
    /// The event, if the delivery is about neither units, blindness nor a timer: `breaker` or `data_lost`.
    pub event: Option<&'static str>,
    /// The id of the timer, if the delivery is the notification of a timer.
    pub timer: Option<String>,
    pub reminder: bool,
    /// How many attempts were begun.
    pub attempts: u32,
    /// When it may be attempted.
    pub next_attempt: Option<Timestamp>,
    /// The answer of the receiver, why the last attempt failed, or why it was given up.
    pub answer: String,
}

/// The labels of a group to show; the group of the mass-offline breaker has its message there instead.
fn shown_labels(key: &str, labels: &Labels) -> Labels {
    if key == MASS_OFFLINE { Labels::new() } else { labels.clone() }
}

/// The event in a group of events that concern no unit.
pub(super) fn event(key: &str) -> Option<&'static str> {
    match key {
        MASS_OFFLINE => Some("breaker"),
        DATA_LOST => Some("data_lost"),
        _ => None,
    }
}

fn line(delivery: &Delivery, state: DeliveryState, at: Timestamp) -> DeliveryLine {
    let event = event(delivery.group_key());
    DeliveryLine {
        id: delivery.id.clone(),
        receiver: delivery.receiver.clone(),
        state,
        at,
        sealed_at: delivery.sealed_at,
        labels: shown_labels(delivery.group_key(), &delivery.group.labels),
        offline: delivery.offline.len(),
        online: delivery.online.len(),
        blind: if event.is_none() { delivery.blind.len() } else { 0 },
        event,
        timer: timer_of_group(&delivery.group.key).map(str::to_owned),
        reminder: delivery.reminder,
        attempts: delivery.attempt,
        next_attempt: None,
        answer: String::new(),
    }
}

pub(super) fn waiting_line(
    WaitingDelivery { delivery, next }: &WaitingDelivery,
    is_orphan: bool,
) -> DeliveryLine {
    let state = match (is_orphan, delivery.attempt) {
        (true, _) => DeliveryState::Orphaned,
        (false, 0) => DeliveryState::Pending,
        (false, _) => DeliveryState::Failed,
    };
    DeliveryLine { next_attempt: next.filter(|_| !is_orphan), ..line(delivery, state, delivery.sealed_at) }
}

pub(super) fn letter_line(letter: &DeadLetter) -> DeliveryLine {
    DeliveryLine { answer: letter.reason.clone(), ..line(&letter.delivery, DeliveryState::Dead, letter.at) }
}

pub(super) fn delivered_line(attempt: &Attempt, at: Timestamp) -> DeliveryLine {
    let state = match attempt.result {
        AttemptResult::Delivered => DeliveryState::Delivered,
        AttemptResult::Failed => DeliveryState::Failed,
        AttemptResult::Dead => DeliveryState::Dead,
    };
    let event = event(&attempt.group);
    let begun = attempt.flapping.iter().filter(|one| one.closed_by.is_none()).count();
    DeliveryLine {
        id: attempt.delivery(),
        receiver: attempt.receiver.clone(),
        state,
        at,
        sealed_at: attempt.sealed_at,
        labels: shown_labels(&attempt.group, &attempt.labels),
        offline: attempt.offline.len() + begun,
        online: attempt.online.len() + attempt.flapping.len() - begun,
        blind: if event.is_none() { attempt.blind.len() } else { 0 },
        event,
        timer: timer_of_group(&attempt.group).map(str::to_owned),
        reminder: attempt.reminder,
        attempts: attempt.number,
        next_attempt: None,
        answer: attempt.answer.clone(),
    }
}
