//! Values as text in an engine.

use serde_json::value::RawValue;

use super::{EngineError, Result};
use crate::cause::json;

pub(super) fn to_json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(not_written)
}

/// Appends a value as JSON.
pub(super) fn append_json(buffer: &mut Vec<u8>, value: &impl serde::Serialize) -> Result<()> {
    serde_json::to_writer(buffer, value).map_err(not_written)
}

/// A value as JSON that becomes a part of another value.
pub(super) fn raw_json(value: &impl serde::Serialize) -> Result<Box<RawValue>> {
    serde_json::value::to_raw_value(value).map_err(not_written)
}

fn not_written(error: serde_json::Error) -> EngineError {
    EngineError::Damaged(format!("cannot be written: {error}"))
}

/// A value from JSON; `what` names it in the error.
pub(super) fn from_json<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    json::read(text.as_bytes())
        .map_err(|why| EngineError::Damaged(format!("{what} in the engine cannot be read: {why}")))
}
