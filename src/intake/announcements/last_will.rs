//! Last wills and states with words from the configuration: the whole payload, or a field of a JSON object.

use serde_json::Value;

use super::Said;
use crate::presence::Cause;

/// The longest text that is compared.
const MAX_TEXT: usize = 256;

/// The meanings of payloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateWords {
    pub online: Vec<String>,
    pub offline: Vec<String>,
    /// The field of a JSON object that holds the word; empty means the whole payload.
    pub field: String,
}

impl StateWords {
    /// Ignores upper and lower case.
    pub(super) fn read(&self, payload: &[u8]) -> Option<Said> {
        let word = match self.field.as_str() {
            "" => text(payload)?.to_owned(),
            field => field_of(payload, field)?,
        };
        let is_in = |words: &[String]| words.iter().any(|one| one.eq_ignore_ascii_case(&word));
        if is_in(&self.offline) {
            Some(Said::Gone(Cause::LastWill))
        } else {
            is_in(&self.online).then_some(Said::Here)
        }
    }
}

/// A payload as text, if it is short enough to be a word.
pub(super) fn text(payload: &[u8]) -> Option<&str> {
    let payload = payload.trim_ascii();
    (payload.len() <= MAX_TEXT).then(|| std::str::from_utf8(payload).ok()).flatten()
}

/// The value of a field of a JSON object, as text.
pub(super) fn field_of(payload: &[u8], field: &str) -> Option<String> {
    if payload.trim_ascii_start().first() != Some(&b'{') {
        return None;
    }
    match serde_json::from_slice::<Value>(payload).ok()?.get(field)? {
        Value::String(text) => Some(text.clone()),
        value @ (Value::Number(_) | Value::Bool(_)) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_configuration_are_the_payload_or_a_field() {
        let words = |field: &str| StateWords {
            online: ["online", "1", "true"].map(str::to_owned).into(),
            offline: ["offline", "0", "lost", "false"].map(str::to_owned).into(),
            field: field.to_owned(),
        };
        let (gone, here) = (Some(Said::Gone(Cause::LastWill)), Some(Said::Here));
        let cases: [(&str, &[u8], Option<Said>); 16] = [
            ("", b"offline", gone),
            ("", b"Offline\n", gone),
            ("", b"0", gone),
            ("", b"online", here),
            ("", b"", None),
            ("", b"offline 2", None),
            ("", b"{\"status\":\"offline\"}", None),
            ("", b"\xff", None),
            ("status", b"{\"status\":\"offline\"}", gone),
            ("status", b" {\"status\":\"LOST\",\"uptime\":3}", gone),
            ("status", b"{\"status\":0}", gone),
            ("status", b"{\"status\":true}", here),
            ("status", b"{\"status\":null}", None),
            ("status", b"{\"other\":\"offline\"}", None),
            ("status", b"offline", None),
            ("status", b"{\"status\":\"offline\"", None),
        ];
        for (field, payload, expected) in cases {
            assert_eq!(
                words(field).read(payload),
                expected,
                "{field} {:?}",
                String::from_utf8_lossy(payload)
            );
        }
        assert_eq!(words("").read(&[b'0'; 300]), None);
    }
}
