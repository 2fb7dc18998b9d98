//! The names of the members of groups that are records.

use crate::presence::{OfflineRecord, RecordId};

/// The names that the member of a record may have: the name that
/// [`GroupMember::new`](super::notification::GroupMember::new) makes, and the name of a silence that was detected
/// again.
pub(super) fn names_of(record: &OfflineRecord) -> [String; 2] {
    let name = format!("{} {}", record.deadline.as_millis(), record.id);
    let again = format!("{name} {}", record.detected_at.as_millis());
    [name, again]
}

/// Parses the name of the member of a record: the id that [`GroupMember::new`](super::notification::GroupMember::new)
/// makes, and the record's id. The name of a silence that was detected again ends with the time of that detection.
pub(super) fn of_member(name: &str) -> Option<(&str, RecordId)> {
    let record = |id: &str| id.split_once(' ')?.1.parse().ok();
    let whole = record(name).map(|id| (name, id));
    whole.or_else(|| name.rsplit_once(' ').and_then(|(id, _)| Some((id, record(id)?))))
}
