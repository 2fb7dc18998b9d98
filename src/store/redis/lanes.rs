//! The lane of a group: the notifications of the group that wait for one receiver.

/// The ids of the notifications in a lane, and the first notification if the lane has its only copy: see `lease.lua`.
pub(super) fn in_lane(lane: &str) -> (impl Iterator<Item = &str>, Option<&str>) {
    let (ids, own) = lane.split_once('\n').map_or((lane, None), |(ids, own)| (ids, Some(own)));
    // The number of attempts at the first notification comes before the ids.
    (ids.split(' ').skip(1), own)
}

/// Whether a notification is in a lane.
pub(super) fn has_notification(lane: &[u8], id: &str) -> bool {
    in_lane(&String::from_utf8_lossy(lane)).0.any(|known| known == id)
}

/// The lane with one notification more, behind the others; a new lane if there is none.
pub(super) fn with_notification(lane: Option<&[u8]>, id: &str) -> Vec<u8> {
    let lane = lane.unwrap_or(b"0");
    let end = lane.iter().position(|byte| *byte == b'\n').unwrap_or(lane.len());
    [&lane[..end], b" ", id.as_bytes(), &lane[end..]].concat()
}
