//! ESPHome: `<topic_prefix>/status` is `online`, or `offline` as last will and at a shutdown. Both use one word, so a
//! device that restarts on purpose is announced as gone, too. `topic_prefix` is the name of the device unless its
//! configuration sets another.

use super::Said;
use super::last_will::text;
use crate::presence::Cause;

pub(super) fn read(payload: &[u8]) -> Option<Said> {
    match text(payload)? {
        "online" => Some(Said::Here),
        "offline" => Some(Said::Gone(Cause::LastWill)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_node_is_a_word() {
        for (payload, expected) in
            [("online", Some(Said::Here)), ("offline", Some(Said::Gone(Cause::LastWill))), ("ON", None)]
        {
            assert_eq!(read(payload.as_bytes()), expected, "{payload}");
        }
    }
}
