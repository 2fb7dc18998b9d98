//! Why a store could not do what was asked.

/// Why the engine could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// It cannot be reached or did not answer; the same call may be made again.
    #[error("{0}")]
    Unavailable(String),
    /// It answered that it will not; somebody has to change something.
    #[error("{0}")]
    Refused(String),
    /// What is stored cannot be read.
    #[error("{0}")]
    Damaged(String),
}

/// What an engine answers.
pub type Result<T> = std::result::Result<T, EngineError>;
