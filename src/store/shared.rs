//! Small states that all instances share: each is a list of named texts with a version, which an instance reads again
//! only when the version is another one.

use async_trait::async_trait;

use super::Result;

/// The names of the shared states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// Units whose silence inhibits others, see `fleet/inhibitions.rs`.
    Sources,
    /// The last trip of the mass-offline breaker, see `fleet/mass_breaker.rs`.
    Breaker,
    /// Rate limits of receivers, see `alerting/limit.rs`.
    Limits,
    /// How attempts at receivers ended, see `fleet/receivers.rs`.
    Receivers,
    /// Sessions of browsers that were ended, see `http/ended_sessions.rs`.
    Sessions,
    /// Since when the fleet is watched, see `http/beginning.rs`.
    Beginning,
}

impl Shared {
    pub const ALL: [Shared; 6] = [
        Shared::Sources,
        Shared::Breaker,
        Shared::Limits,
        Shared::Receivers,
        Shared::Sessions,
        Shared::Beginning,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Shared::Sources => "sources",
            Shared::Breaker => "breaker",
            Shared::Limits => "limits",
            Shared::Receivers => "receivers",
            Shared::Sessions => "sessions",
            Shared::Beginning => "beginning",
        }
    }
}

/// The name of the version among the entries.
pub(super) const VERSION: &str = "version";

/// A shared state at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedEntries {
    /// Another one after each change; `None`: there was no change yet.
    pub version: Option<String>,
    /// Names and texts, unordered.
    pub entries: Vec<(String, String)>,
}

/// A change of a shared state, decided from that of one version. No name is `version`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedChange {
    pub version: Option<String>,
    /// New entries, and those that are changed.
    pub write: Vec<(String, String)>,
    pub forget: Vec<String>,
}

#[async_trait]
pub trait SharedStore: Send + Sync {
    async fn shared_version(&self, of: Shared) -> Result<Option<String>>;

    /// The entries and their version, read in one step.
    async fn shared(&self, of: Shared) -> Result<SharedEntries>;

    /// Writes a change in one step if the version is still that of the change; answers whether it was.
    async fn change_shared(&self, of: Shared, change: &SharedChange) -> Result<bool>;
}
