//! A part of a transaction of the embedded engine, as the writer thread runs it.

use rusqlite::Connection;

use super::error::DatabaseResult;
use crate::store::EngineError;

/// A part of a transaction.
pub(super) trait WriteJob: Send {
    /// May be called again after [`WriteJob::undo`].
    fn write(&mut self, database: &Connection) -> DatabaseResult<()>;
    /// The transaction was rolled back.
    fn undo(&mut self) {}
    /// The transaction was committed.
    fn finish(self: Box<Self>);
    /// The job has failed permanently.
    fn fail(self: Box<Self>, why: EngineError);
}
