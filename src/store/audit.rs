//! The audit: the last changes that operators made.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

/// The most entries of the audit; the oldest leave first.
pub const MAX_AUDITED: usize = 1000;

/// The change that an operator made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Audited {
    SilenceAdded,
    SilenceChanged,
    SilenceExpired,
    Acknowledged,
    AcknowledgementUndone,
    Paused,
    PauseEnded,
    Registered,
    Removed,
    DeliveriesReplayed,
    DeliveriesPurged,
    DeliveriesDiscarded,
    BreakerReleased,
    InventoryImported,
    TimerRegistered,
    TimerCancelled,
    TimersRegistered,
    TimersCancelled,
}

impl Audited {
    pub fn as_str(self) -> &'static str {
        match self {
            Audited::SilenceAdded => "silence_added",
            Audited::SilenceChanged => "silence_changed",
            Audited::SilenceExpired => "silence_expired",
            Audited::Acknowledged => "acknowledged",
            Audited::AcknowledgementUndone => "acknowledgement_undone",
            Audited::Paused => "paused",
            Audited::PauseEnded => "pause_ended",
            Audited::Registered => "registered",
            Audited::Removed => "removed",
            Audited::DeliveriesReplayed => "deliveries_replayed",
            Audited::DeliveriesPurged => "deliveries_purged",
            Audited::DeliveriesDiscarded => "deliveries_discarded",
            Audited::BreakerReleased => "breaker_released",
            Audited::InventoryImported => "inventory_imported",
            Audited::TimerRegistered => "timer_registered",
            Audited::TimerCancelled => "timer_cancelled",
            Audited::TimersRegistered => "timers_registered",
            Audited::TimersCancelled => "timers_cancelled",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    pub at: Timestamp,
    pub author: String,
    pub change: Audited,
    /// The changed thing: an id, `<kind>/<unit>`, a name, or a number of timers.
    pub subject: String,
    /// The new state, such as matchers and times; a number; or a comment.
    pub text: String,
}
