//! The paths of web pages to which messages, alerts and other pages link.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::presence::OfflineRecord;

/// The page of open records in their groups, and of the mass-offline breaker.
pub const INCIDENTS: &str = "/incidents";
/// The page of the records of the whole fleet, the newest first.
pub const RECORDS: &str = "/records";

/// Characters to escape in a path: all that may have a meaning there.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// The page of a unit.
pub fn unit(kind: &str, id: &str) -> String {
    format!("/units/{kind}/{}", utf8_percent_encode(id, ESCAPED))
}

/// The page that tries another timeout of a kind.
pub fn trial(kind: &str) -> String {
    format!("/policy?kind={kind}")
}

/// The page of the unit of a record.
pub fn unit_of(record: &OfflineRecord) -> String {
    unit(record.kind.as_str(), record.unit.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_no_other_meaning_whatever_the_name_of_a_unit_holds() {
        for (id, expected) in [
            ("pump-7_a.b", "/units/gate/pump-7_a.b"),
            ("a <7>?#%/", "/units/gate/a%20%3C7%3E%3F%23%25%2F"),
            ("ü", "/units/gate/%C3%BC"),
        ] {
            assert_eq!(unit("gate", id), expected);
        }
    }
}
