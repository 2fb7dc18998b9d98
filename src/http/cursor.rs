//! Cursors of lists: the place after the last item of a page. An answer gives it as `next`, and the next request sends
//! it as `cursor`.
//!
//! A cursor is JSON in hexadecimal digits, which need no escaping in a URL. Clients do not read it, so its content may
//! change.

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::http_error::HttpError;

/// The cursor of a place: numbers and texts.
pub(super) fn cursor(place: &impl Serialize) -> String {
    HEXLOWER.encode(&serde_json::to_vec(place).expect("numbers and texts are JSON"))
}

/// The place of a cursor, if `parse` takes it.
///
/// # Errors
/// 400: the cursor does not come from a page.
pub(super) fn place<P: DeserializeOwned, T>(
    cursor: &str,
    parse: impl FnOnce(P) -> Option<T>,
) -> Result<T, HttpError> {
    let json = HEXLOWER_PERMISSIVE.decode(cursor.as_bytes()).ok();
    let place = json.and_then(|json| parse(serde_json::from_slice(&json).ok()?));
    place.ok_or_else(|| HttpError::bad_request("cursor is not valid: take the `next` of a page of this list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_its_place_and_any_other_text_is_refused() {
        let written = cursor(&(7, "ü:a"));
        let read = |text: &str| place(text, |(at, id): (i64, String)| (at == 7).then_some(id));
        assert_eq!(read(&written).unwrap(), "ü:a");
        let other = cursor(&(8, "ü:a"));
        for wrong in ["", "0", "zz", "é", "ff", "7b7d", "6e756c6c", &written[2..], &other] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
