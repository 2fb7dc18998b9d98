//! The names of group members that are records.

use crate::clock::Timestamp;
use crate::presence::{OfflineRecord, RecordId};

/// The name of the member of a record: its deadline (ms), and the record's id.
pub(super) fn name_of(record: &OfflineRecord) -> String {
    format!("{} {}", record.deadline.as_millis(), record.id)
}

/// The names that a member may have: its own, and the name after a second detection of its silence.
pub(super) fn names_of(name: &str, detected_at: Timestamp) -> [String; 2] {
    [name.to_owned(), format!("{name} {}", detected_at.as_millis())]
}

/// Parses the name of the member of a record into its [`name_of`] and the record's id. After a second detection, the
/// name ends with the time of that detection.
pub(super) fn of_member(name: &str) -> Option<(&str, RecordId)> {
    let record = |id: &str| id.split_once(' ')?.1.parse().ok();
    let whole = record(name).map(|id| (name, id));
    whole.or_else(|| name.rsplit_once(' ').and_then(|(id, _)| Some((id, record(id)?))))
}
