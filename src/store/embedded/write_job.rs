//! A part of a transaction of the embedded engine, run by the writer thread.

use rusqlite::Connection;

use super::error::DatabaseResult;
use crate::store::EngineError;

/// A part of a transaction.
pub(super) trait WriteJob: Send {
    /// May be called again after [`WriteJob::undo`].
    fn write(&mut self, database: &Connection) -> DatabaseResult<()>;
    /// Called after the transaction was rolled back.
    fn undo(&mut self) {}
    /// Called after the transaction was committed.
    fn finish(self: Box<Self>);
    /// Called after the job has failed permanently.
    fn fail(self: Box<Self>, why: EngineError);
}
