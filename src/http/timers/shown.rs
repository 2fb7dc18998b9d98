//! Timers in answers.

use serde::Serialize;

use crate::clock::Timestamp;
use crate::http::cursor::{cursor, place};
use crate::http::http_error::HttpError;
use crate::presence::{Receipt, Timer, TimerData, TimerId, TimerLifecycle, TimerState, TimerType};
use crate::store::TimerPosition;

/// A timer in a list.
#[derive(Serialize)]
pub(in crate::http) struct ShownTimer {
    pub id: TimerId,
    #[serde(rename = "type")]
    pub timer_type: TimerType,
    pub state: TimerState,
    pub due: Timestamp,
    pub fired_at: Option<Timestamp>,
    pub cancelled_at: Option<Timestamp>,
}

/// A timer with its data, its notification and its receipts.
#[derive(Serialize)]
pub(super) struct WholeTimer {
    #[serde(flatten)]
    pub timer: ShownTimer,
    /// The id of its notification, once it has fired.
    pub notification: Option<String>,
    /// Its receipt at each receiver, once it has fired.
    pub receivers: Vec<ShownReceipt>,
    pub data: TimerData,
}

#[derive(Serialize)]
pub(super) struct ShownReceipt {
    receiver: String,
    state: Receipt,
}

#[derive(Serialize)]
pub(in crate::http) struct TimersPage {
    pub timers: Vec<ShownTimer>,
    /// The `cursor` of the next page; `null` on the last.
    pub next: Option<String>,
}

impl From<&Timer> for ShownTimer {
    fn from(timer: &Timer) -> ShownTimer {
        let cancelled_at = match timer.lifecycle {
            TimerLifecycle::Cancelled { at } => Some(at),
            _ => None,
        };
        ShownTimer {
            id: timer.id.clone(),
            timer_type: timer.timer_type.clone(),
            state: timer.state(),
            due: timer.due,
            fired_at: timer.fired_at(),
            cancelled_at,
        }
    }
}

impl From<Timer> for WholeTimer {
    fn from(timer: Timer) -> WholeTimer {
        let shown = ShownTimer::from(&timer);
        let notification = timer.fired_at().map(|_| timer.firing());
        let receipts = match timer.lifecycle {
            TimerLifecycle::Fired { receipts, .. } => receipts,
            TimerLifecycle::Waiting | TimerLifecycle::Cancelled { .. } => Vec::new(),
        };
        let receivers =
            receipts.into_iter().map(|(receiver, state)| ShownReceipt { receiver, state }).collect();
        WholeTimer { timer: shown, notification, receivers, data: timer.data }
    }
}

/// A place in a list as a cursor.
pub(super) fn to_cursor(place: &TimerPosition) -> String {
    cursor(&(place.due.as_millis(), place.id.as_str()))
}

pub(super) fn from_cursor(text: &str) -> Result<TimerPosition, HttpError> {
    place(text, |(due, id): (i64, String)| {
        Some(TimerPosition { due: Timestamp::from_millis(due), id: id.parse().ok()? })
    })
}
