//! The query parameters that select units, which are alike on every page.

use super::http_error::HttpError;
use crate::fleet::Mirror;
use crate::presence::Kind;

/// A kind that is configured.
pub(super) fn known_kind(kind: &str, mirror: &Mirror) -> Result<Kind, HttpError> {
    let found = mirror.kinds().find(|known| known.as_str() == kind).cloned();
    found.ok_or_else(|| HttpError::bad_request(format!("there is no kind {kind:?} in the configuration")))
}

/// A label that the mirror holds, and its value.
pub(super) fn label_pair(label: &str, mirror: &Mirror) -> Result<(String, String), HttpError> {
    let Some((name, value)) = label.split_once('=') else {
        return Err(HttpError::bad_request("label is written name=value, e.g. label=site=north"));
    };
    if !mirror.labels().iter().any(|known| known == name) {
        return Err(HttpError::bad_request(format!(
            "units can be selected by the labels in http.count_by_labels only; add {name:?} there"
        )));
    }
    if mirror.has_too_many_values(name) {
        return Err(HttpError::bad_request(format!(
            "label {name:?} has too many values to select units by; take one with fewer"
        )));
    }
    Ok((name.to_owned(), value.to_owned()))
}
