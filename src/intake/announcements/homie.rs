//! Homie 4 and 5: `$state` of a device. `lost` is its last will; `disconnected` is a departure on purpose; `sleeping`
//! is a sleep; with `init`, `ready` and `alert` the device is present.

use super::Said;
use super::last_will::text;
use crate::presence::Cause;

pub(super) fn read(payload: &[u8]) -> Option<Said> {
    match text(payload)? {
        "init" | "ready" | "alert" => Some(Said::Here),
        "disconnected" => Some(Said::Left),
        "sleeping" => Some(Said::Sleeps),
        "lost" => Some(Said::Gone(Cause::LastWill)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_says_each_state_of_its_life() {
        for (payload, expected) in [
            ("init", Some(Said::Here)),
            ("ready", Some(Said::Here)),
            ("alert", Some(Said::Here)),
            ("disconnected", Some(Said::Left)),
            ("sleeping", Some(Said::Sleeps)),
            ("lost", Some(Said::Gone(Cause::LastWill))),
            ("", None),
            ("READY", None),
        ] {
            assert_eq!(read(payload.as_bytes()), expected, "{payload}");
        }
    }
}
