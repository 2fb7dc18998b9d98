//! A deadline check: the units that may be due as they were read, and what the engine watches until they are decided.

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::Result;
use crate::presence::{Change, Hearing, Snapshot};

/// A check of one batch of units that has yet to begin.
pub type PendingCheck<'a> = BoxFuture<'a, Result<DeadlineCheck<'a>>>;

/// One batch of units as they were read.
pub struct DeadlineCheck<'a> {
    /// In order.
    pub units: Vec<Snapshot>,
    /// How far Rollcall had heard after they were read. An engine that was restored to an earlier state has lost their
    /// heartbeats; what was heard before that must not count.
    pub hearing: Hearing,
    pub guard: Box<dyn CheckGuard + 'a>,
}

/// What a check holds of the engine until its units are decided. To drop it changes nothing.
#[async_trait]
pub trait CheckGuard: Send {
    /// Applies changes of the units of the check, as [`UnitStore::apply`](super::UnitStore::apply)
    /// does.
    async fn apply(self: Box<Self>, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>>;
}
