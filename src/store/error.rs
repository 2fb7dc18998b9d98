//! Errors of an engine.

use std::fmt::Display;

use crate::telemetry::LoopFailure;

/// Why an engine did not execute a call.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine cannot be reached or did not answer; the call may be repeated.
    #[error("{0}")]
    Unavailable(String),
    /// The engine cannot be reached or did not answer, with Sentinel or Cluster: the promotion of a replica may end
    /// this within seconds. The call may be repeated.
    #[error("{0}")]
    Passing(String),
    /// The engine refused the call; an operator has to change something.
    #[error("{0}")]
    Refused(String),
    /// A stored value has a wrong type or is not valid. The value is quarantined within about two seconds; then the
    /// call may be repeated.
    #[error("{0}")]
    WrongType(String),
    /// A stored value is unreadable.
    #[error("{0}")]
    Damaged(String),
}

/// How often a change is decided again while others change what it is about.
pub const MAX_CHANGES: usize = 20;

impl EngineError {
    /// Others changed something each time that it was to be changed.
    pub fn contended(what: impl Display) -> EngineError {
        EngineError::Unavailable(format!("gave up on {what} after {MAX_CHANGES} concurrent changes"))
    }
}

impl LoopFailure for EngineError {
    fn is_blocking_value(&self) -> bool {
        matches!(self, EngineError::WrongType(_))
    }

    fn is_away(&self) -> bool {
        matches!(self, EngineError::Unavailable(_) | EngineError::Passing(_))
    }

    fn is_passing(&self) -> bool {
        matches!(self, EngineError::Passing(_))
    }
}

pub type Result<T> = std::result::Result<T, EngineError>;
