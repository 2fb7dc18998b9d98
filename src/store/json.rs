//! Values as text in an engine.

use super::{EngineError, Result};

pub(super) fn to_json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| EngineError::Damaged(format!("cannot be written: {error}")))
}

/// A value from JSON; `what` names it in the error.
pub(super) fn from_json<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|error| EngineError::Damaged(format!("{what} in the engine cannot be read: {error}")))
}
