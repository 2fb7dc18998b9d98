//! Alert silences as an engine keeps them, and the audit of the changes that operators make.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::json::from_json;
use super::{EngineError, Result};
use crate::clock::Timestamp;
use crate::routing::{AlertSilence, SilenceId};

/// The most entries of the audit; the oldest leave first.
pub const MAX_AUDITED: usize = 1000;

/// All alert silences at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredSilences {
    /// Another one after each change; `None`: there was no change yet.
    pub version: Option<String>,
    /// Unordered; those that cannot be read are left out.
    pub silences: Vec<AlertSilence>,
}

/// Reads rows of alert silences, ids and JSON. Their expressions are compiled, so a thread of its own does it.
pub(super) async fn read_silences(
    rows: Vec<(String, String)>,
) -> Result<Vec<(String, Result<AlertSilence>)>> {
    let one = |(id, json): (String, String)| (id, from_json("an alert silence", &json));
    let reading = tokio::task::spawn_blocking(move || rows.into_iter().map(one).collect());
    reading.await.map_err(|error| EngineError::Unavailable(format!("reading alert silences failed: {error}")))
}

/// A change of alert silences, decided from those of one version.
#[derive(Clone, Debug, PartialEq)]
pub struct SilenceChange {
    pub version: Option<String>,
    /// New ones, and those that are changed.
    pub write: Vec<AlertSilence>,
    pub forget: Vec<SilenceId>,
    pub audit: Vec<AuditEntry>,
}

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

/// Alert silences and the audit.
#[async_trait]
pub trait SilenceStore: Send + Sync {
    /// The version of the alert silences, for readers that know those of an earlier version.
    async fn silences_version(&self) -> Result<Option<String>>;

    /// All alert silences and their version, read in one step.
    async fn silences(&self) -> Result<StoredSilences>;

    /// Writes a change in one step if the version is still that of the change; answers whether it was.
    async fn change_silences(&self, change: &SilenceChange) -> Result<bool>;

    /// Adds a change to the audit that belongs to no alert silence.
    async fn add_audit(&self, entry: &AuditEntry) -> Result<()>;

    /// Up to `limit` entries of the audit, newest first.
    async fn audit(&self, limit: usize) -> Result<Vec<AuditEntry>>;
}
