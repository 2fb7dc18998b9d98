//! Why a store could not do what was asked.

use crate::telemetry::Failure;

/// Why the engine could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// It cannot be reached or did not answer; the same call may be made again.
    #[error("{0}")]
    Unavailable(String),
    /// It refused; an operator has to change something.
    #[error("{0}")]
    Refused(String),
    /// A stored value is of a wrong type, or no value at all. It is put aside within a second or two; the same call
    /// may be made again then.
    #[error("{0}")]
    WrongType(String),
    /// What is stored cannot be read.
    #[error("{0}")]
    Damaged(String),
}

impl Failure for EngineError {
    fn is_blocking_value(&self) -> bool {
        matches!(self, EngineError::WrongType(_))
    }
}

/// What an engine answers.
pub type Result<T> = std::result::Result<T, EngineError>;
