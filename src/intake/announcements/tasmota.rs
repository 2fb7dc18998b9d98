//! Tasmota: `tele/<topic>/LWT` is `Online`, and as last will `Offline`. The options `LwtOnline` and `LwtOffline` of a
//! device change these words: then use the format `last_will`.

use super::Said;
use super::last_will::text;
use crate::presence::Cause;

pub(super) fn read(payload: &[u8]) -> Option<Said> {
    match text(payload)? {
        "Online" => Some(Said::Here),
        "Offline" => Some(Said::Gone(Cause::LastWill)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_will_of_tasmota_is_a_word() {
        for (payload, expected) in [
            ("Online", Some(Said::Here)),
            ("Offline", Some(Said::Gone(Cause::LastWill))),
            ("", None),
            ("{\"Time\":\"2026-02-01T10:00:00\",\"Uptime\":\"0T00:10:11\"}", None),
        ] {
            assert_eq!(read(payload.as_bytes()), expected, "{payload}");
        }
    }
}
