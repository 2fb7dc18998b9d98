//! The lane of a group: the notifications that wait there for one receiver.

/// The ids of the notifications of a lane, and what the first says if it is nowhere else: see `lease.lua`.
pub(super) fn in_lane(lane: &str) -> (impl Iterator<Item = &str>, Option<&str>) {
    let (ids, own) = lane.split_once('\n').map_or((lane, None), |(ids, own)| (ids, Some(own)));
    // The attempts at the first come before them.
    (ids.split(' ').skip(1), own)
}
