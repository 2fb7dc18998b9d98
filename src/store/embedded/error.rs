//! Errors of the database and its files, with advice.

use std::io;
use std::path::Path;

use rusqlite::ErrorCode;

use crate::store::EngineError;

#[derive(Debug)]
pub(super) enum DatabaseError {
    Database(rusqlite::Error),
    Engine(EngineError),
}

pub(super) type DatabaseResult<T> = std::result::Result<T, DatabaseError>;

impl From<rusqlite::Error> for DatabaseError {
    fn from(error: rusqlite::Error) -> DatabaseError {
        DatabaseError::Database(error)
    }
}

impl From<EngineError> for DatabaseError {
    fn from(error: EngineError) -> DatabaseError {
        DatabaseError::Engine(error)
    }
}

impl DatabaseError {
    /// Whether a stored value does not fit its column, see `table_rules.rs`.
    pub fn is_of_a_value(&self) -> bool {
        matches!(self, DatabaseError::Database(error) if is_of_a_value(error))
    }

    /// The error for operators.
    pub fn explain(self, path: &Path) -> EngineError {
        match self {
            DatabaseError::Engine(error) => error,
            DatabaseError::Database(error) => explain(&error, path),
        }
    }
}

fn is_of_a_value(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::*;
    matches!(
        error,
        InvalidColumnType(..)
            | FromSqlConversionFailure(..)
            | IntegralValueOutOfRange(..)
            | Utf8Error(..)
            | QueryReturnedNoRows
    )
}

fn explain(error: &rusqlite::Error, path: &Path) -> EngineError {
    let directory = path.display();
    let unavailable =
        |what: &str| EngineError::Unavailable(format!("the fleet in {directory} {what}: {error}"));
    let refused = |what: &str| EngineError::Refused(format!("the fleet in {directory} {what}: {error}"));
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => unavailable("cannot be written, its disk is full; make room"),
        Some(ErrorCode::SystemIoFailure) => {
            unavailable("cannot be written or read; look at its disk and at the limit of file sizes")
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            refused("cannot be written; check the rights of the directory and of everything in it")
        }
        _ if is_of_a_value(error) => {
            unavailable("holds a value that cannot be read, which is quarantined; rollcall tries again")
        }
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            EngineError::Damaged(damaged(path, &error.to_string()))
        }
        _ => unavailable("did not do what was asked"),
    }
}

/// The advice for a damaged fleet. Rollcall does not repair it: a repair would be a guess.
pub(super) fn damaged(path: &Path, what: &str) -> String {
    format!(
        "the fleet in {} is damaged ({what}); nothing was changed: put the directory back from a backup, or move \
         it away to begin with an empty fleet",
        path.display()
    )
}

pub(super) fn explain_file(error: &io::Error, what: &str, path: &Path) -> EngineError {
    let text = format!("{} cannot be {what}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            EngineError::Unavailable(format!("{text}; make room on its disk"))
        }
        _ => EngineError::Refused(format!("{text}; check engine.path and the rights of the directory")),
    }
}
