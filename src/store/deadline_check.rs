//! A look at units that may be due: what was found, and what the engine has watched until it is decided.

use async_trait::async_trait;

use super::Result;
use crate::presence::{Change, Hearing, Snapshot};

/// Units as they were looked at.
pub struct DeadlineCheck<'a> {
    /// In order.
    pub units: Vec<Snapshot>,
    /// As it was after they were read: an engine that came back as it was some time ago has forgotten
    /// their heartbeats, and what was heard before must not vouch for that.
    pub hearing: Hearing,
    /// Takes what was decided.
    pub hold: Box<dyn CheckGuard + 'a>,
}

/// What a look has of the engine until it was decided. To drop it is to change nothing.
#[async_trait]
pub trait CheckGuard: Send {
    /// Applies changes of the units that were looked at, as [`UnitStore::apply`](super::UnitStore::apply)
    /// does.
    async fn apply(self: Box<Self>, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>>;
}
