//! The lane of a group: the notifications of the group that wait for one receiver.

/// The ids of the notifications in a lane, and the first notification if the lane has its only copy: see `lease.lua`.
pub(super) fn in_lane(lane: &str) -> (impl Iterator<Item = &str>, Option<&str>) {
    let (ids, own) = lane.split_once('\n').map_or((lane, None), |(ids, own)| (ids, Some(own)));
    // The number of attempts at the first notification comes before the ids.
    (ids.split(' ').skip(1), own)
}
