//! A deadline check: snapshots of units that may be due, and the guard that the engine holds until they are decided.

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::Result;
use crate::clock::Timestamp;
use crate::presence::{Change, Hearing, Snapshot};

/// A check of one batch of units that has not begun.
pub type PendingCheck<'a> = BoxFuture<'a, Result<DeadlineCheck<'a>>>;

/// The check of one batch of units that have been read.
pub struct DeadlineCheck<'a> {
    /// The snapshots, in the order of the batch.
    pub units: Vec<Snapshot>,
    /// Up to when Rollcall had heard after the units were read. Read after them, because an engine that was restored
    /// to an earlier state has lost their heartbeats: hearing from before the restore must not count.
    pub hearing: Hearing,
    /// Up to when the server of the units has all heartbeats that were heard, if another server stores the hearing. A
    /// promoted replica lacks the newest heartbeats, and a server whose clock jumped forward has removed some too
    /// early; the hearing does not show that.
    pub watermark: Option<Timestamp>,
    pub guard: Box<dyn CheckGuard + 'a>,
}

/// Applies the decisions of a check. Dropping it changes nothing.
#[async_trait]
pub trait CheckGuard: Send {
    /// Applies changes of units of the check, like [`UnitStore::apply`](super::UnitStore::apply).
    async fn apply(self: Box<Self>, changes: &[(Snapshot, Change)]) -> Result<Vec<bool>>;
}
