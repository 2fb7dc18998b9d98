//! The names of members in indexes that are read in the order of their names.
//!
//! A name is the group, the sort key and the member, separated by line breaks. None of these contains a line break.

use crate::clock::Timestamp;
use crate::presence::Unit;
use crate::store::{NameRange, partition_of_group};

/// A member, as [`Table::Members`](crate::store::Table::Members) names it.
pub(super) fn member_name(group: &str, member: &str) -> String {
    format!("{group}\n{member}")
}

/// The group and the member of such a name.
pub(super) fn read_member(name: &str) -> Option<(&str, &str)> {
    name.split_once('\n')
}

/// A unit whose return waits, as [`Index::Returning`](crate::store::Index::Returning) names it.
pub(super) fn returning_name(group: &str, unit: &Unit) -> String {
    format!("{group}\n{unit}")
}

/// A member that waits, as [`Index::Waiting`](crate::store::Index::Waiting) names it.
///
/// Members that are final come first, then silences; both in the order in which their waits began.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaitingName {
    pub is_silence: bool,
    pub since: Timestamp,
    pub member: String,
}

impl WaitingName {
    pub fn text(&self, group: &str) -> String {
        let letter = if self.is_silence { SILENCE } else { FINAL };
        format!("{group}\n{letter}{}\n{}", moment(self.since), self.member)
    }

    pub fn read(name: &str) -> Option<WaitingName> {
        let mut parts = name.splitn(3, '\n').skip(1);
        let (sorted, member) = (parts.next()?, parts.next()?.to_owned());
        let is_silence = sorted.starts_with(SILENCE);
        Some(WaitingName { is_silence, since: read_moment(sorted.get(1..)?)?, member })
    }
}

const FINAL: char = '0';
const SILENCE: char = '1';

/// A lasting member, as [`Index::Lasting`](crate::store::Index::Lasting) names it: sorted by when receivers were
/// notified.
pub(super) fn lasting_name(group: &str, at: Timestamp, member: &str) -> String {
    format!("{group}\n{}\n{member}", moment(at))
}

/// When receivers were notified, and the member.
pub(super) fn read_lasting(name: &str) -> Option<(Timestamp, &str)> {
    let mut parts = name.splitn(3, '\n').skip(1);
    Some((read_moment(parts.next()?)?, parts.next()?))
}

/// The names of the waiting members of a group that are silences, or that are final.
pub(super) fn waiting_in(group: &str, partitions: u16, is_silence: bool) -> NameRange {
    let letter = if is_silence { SILENCE } else { FINAL };
    NameRange::of(partition_of_group(group, partitions), &format!("{group}\n{letter}"))
}

/// All names of a group.
pub(super) fn of_group(group: &str, partitions: u16) -> NameRange {
    NameRange::of(partition_of_group(group, partitions), &format!("{group}\n"))
}

/// The lasting members of which receivers were notified between these moments.
pub(super) fn lasting_between(
    group: &str,
    partitions: u16,
    from: Timestamp,
    before: Option<Timestamp>,
) -> NameRange {
    let all = of_group(group, partitions);
    let before = before.map_or(all.before.clone(), |before| format!("{group}\n{}", moment(before)));
    NameRange { from: format!("{group}\n{}", moment(from)), before, ..all }
}

/// A moment in ms, always with 15 digits.
fn moment(at: Timestamp) -> String {
    format!("{:015}", at.as_millis().clamp(0, MAX_MOMENT))
}

/// The greatest moment that a name can have (ms).
pub(super) const MAX_MOMENT: i64 = 999_999_999_999_999;

fn read_moment(text: &str) -> Option<Timestamp> {
    text.parse().ok().map(Timestamp::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_group_are_in_the_order_in_which_its_members_are_sealed() {
        let at = Timestamp::from_millis;
        let waiting = |is_silence, since, member: &str| WaitingName {
            is_silence,
            since: at(since),
            member: member.to_owned(),
        };
        let all = [
            waiting(false, 2_000, "1 gate:b"),
            waiting(false, 1_700_000_000_000, "1 gate:a"),
            waiting(true, 999, "1 gate:z"),
            waiting(true, 1_000, "1 gate:a"),
            waiting(true, 1_000, "1 gate:b"),
        ];
        let names: Vec<String> = all.iter().map(|one| one.text("site=north")).collect();
        assert!(names.is_sorted() && all.is_sorted(), "{names:?}");
        let range = of_group("site=north", 16);
        assert!(names.iter().all(|name| range.from <= *name && *name < range.before));
        assert!(range.before < waiting(false, 0, "").text("site=north2"), "of another group");
        let read: Vec<WaitingName> = names.iter().filter_map(|name| WaitingName::read(name)).collect();
        assert_eq!(read, all);
        for damaged in ["", "site=north", "site=north\n0", "site=north\n0x\ny", "site=north\n\ny"] {
            assert_eq!(WaitingName::read(damaged), None, "{damaged:?}");
        }
    }

    #[test]
    fn members_that_last_are_found_by_when_receivers_were_notified() {
        let at = Timestamp::from_millis;
        let name = lasting_name("all", at(5_000), "1 gate:a");
        assert_eq!(read_lasting(&name), Some((at(5_000), "1 gate:a")));
        for (from, before, is_in) in
            [(5_000, None, true), (5_001, None, false), (0, Some(5_000), false), (0, Some(5_001), true)]
        {
            let range = lasting_between("all", 16, at(from), before.map(at));
            assert_eq!(range.from <= name && name < range.before, is_in, "{from} {before:?}");
        }
    }
}
