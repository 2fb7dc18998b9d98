//! A digest: one message with the notifications that wait for a receiver, because its limit has no room for one each.
//!
//! A digest has the last state of every record: of a silence and its return only the return, in whatever order groups
//! name them. A unit that flapped and is offline has its record and the end of its episode, as in one notification. The
//! notifications of a group are taken in their order, so that the rest of the group comes later than the digest.

use std::collections::{HashMap, HashSet};

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};

use super::put_off;
use crate::clock::Timestamp;
use crate::presence::{Incident, Labels, OfflineRecord, RecordId};
use crate::store::{DIGEST, Delivery, Group, GroupContext, Result, StoredDeliveries, WaitingDelivery};

/// The most records of a digest, and the most bytes in which its notifications are stored. Further notifications are in
/// the next one.
const MAX_RECORDS: usize = 10_000;
const MAX_BYTES: usize = 4 << 20;
/// The most notifications of one group. Each takes a step to end.
const MAX_OF_GROUP: usize = 16;

/// The group of a receiver's digests.
pub(super) fn group_key(receiver: &str) -> String {
    format!("digest for {receiver}")
}

/// The id of a new digest. A single notification keeps its own id.
pub(super) fn id_of(members: &[Delivery], now: Timestamp) -> String {
    if let [alone] = members {
        return alone.notification().to_owned();
    }
    let ids: Vec<&str> = members.iter().map(Delivery::notification).collect();
    let digest = digest(&SHA256, format!("{} {}", now.as_millis(), ids.join(" ")).as_bytes());
    format!("{DIGEST}{}", HEXLOWER.encode(&digest.as_ref()[..12]))
}

/// The digest of notifications, which are in the order of their groups. A single notification stays as it is.
pub(super) fn merged(
    id: &str,
    sealed_at: Timestamp,
    attempt: u32,
    receiver: &str,
    members: &[Delivery],
) -> Delivery {
    if let [alone] = members {
        return Delivery { attempt, ..alone.clone() };
    }
    let mut last: HashMap<(&RecordId, bool, bool), &OfflineRecord> = HashMap::new();
    let mut order = Vec::new();
    for record in members.iter().flat_map(|one| one.offline.iter().chain(&one.online)) {
        let name = (&record.id, record.is_flapping(), record.is_unusual());
        let known = last.entry(name).or_insert_with(|| {
            order.push(name);
            record
        });
        if age(record) >= age(known) {
            *known = record;
        }
    }
    let records = order.into_iter().map(|name| last[&name].clone());
    let (offline, online) = records.partition(|record| record.closed_by.is_none());
    let situation = GroupContext {
        merged: Some(members.len() as u64),
        incident: only_incident(members),
        is_judged: true,
        ..GroupContext::default()
    };
    let first = members.first();
    let same_origin = first.filter(|first| members.iter().all(|one| one.meant_for == first.meant_for));
    Delivery {
        id: Delivery::id_of(id, receiver),
        receiver: receiver.to_owned(),
        group: Group { key: group_key(receiver), labels: shared_labels(members) },
        sealed_at,
        offline,
        online,
        blind: Vec::new(),
        timers: Vec::new(),
        reminder: !members.is_empty() && members.iter().all(|one| one.reminder),
        situation,
        meant_for: same_origin.and_then(|first| first.meant_for.clone()),
        of_group: None,
        again_at: None,
        attempt,
        is_alone: false,
    }
}

/// The last state of the incident, if the notifications name exactly one incident.
fn only_incident(members: &[Delivery]) -> Option<Incident> {
    let incidents = || members.iter().filter_map(|one| one.situation.incident.as_ref());
    let name = |incident: &'_ Incident| (incident.label.clone(), incident.value.clone(), incident.since);
    let last = incidents().next_back()?;
    incidents().all(|one| name(one) == name(last)).then(|| last.clone())
}

/// The order of the states of one record.
fn age(record: &OfflineRecord) -> (Timestamp, bool) {
    (record.detected_at, record.closed_by.is_some())
}

/// The labels that all groups share.
fn shared_labels(members: &[Delivery]) -> Labels {
    let Some((first, rest)) = members.split_first() else { return Labels::new() };
    let mut labels = first.group.labels.clone();
    labels.retain(|name, value| rest.iter().all(|one| one.group.labels.get(name) == Some(value)));
    labels
}

/// The waiting notifications of a receiver that fit into one digest, in the order of their groups. A notification of
/// blindness is in no digest: it is sent first, by itself.
///
/// A notification that was attempted stays out of the digest while there is room to send it alone: its receiver may
/// have it already, under its own id. `room`: the most messages.
pub(super) async fn gather(
    records: &StoredDeliveries,
    receiver: &str,
    room: usize,
    now: Timestamp,
) -> Result<Vec<Delivery>> {
    let mut gathered = GroupMembers { apart: room, ..GroupMembers::default() };
    let mut after: Option<String> = None;
    loop {
        let page = records.waiting(receiver, after.as_deref()).await?;
        for waiting in page.waiting {
            if waiting.next.is_some_and(|next| next <= now) && !waiting.delivery.blind.is_empty() {
                return Ok(vec![waiting.delivery]);
            }
            gathered.add(waiting, now);
        }
        match page.next.filter(|_| !gathered.is_full) {
            Some(next) => after = Some(next),
            None => return Ok(gathered.members),
        }
    }
}

/// Whether a notification of the digest still waits.
pub(super) async fn any_waits(
    records: &StoredDeliveries,
    receiver: &str,
    members: &[Delivery],
) -> Result<bool> {
    let ids: HashSet<&str> = members.iter().map(|one| one.id.as_str()).collect();
    let mut after: Option<String> = None;
    loop {
        let page = records.waiting(receiver, after.as_deref()).await?;
        if page.waiting.iter().any(|waiting| ids.contains(waiting.delivery.id.as_str())) {
            return Ok(true);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(false),
        }
    }
}

#[derive(Default)]
struct GroupMembers {
    members: Vec<Delivery>,
    ids: HashSet<String>,
    /// How many members each group has; absent once its next notification may not be one.
    of_group: HashMap<String, usize>,
    records: usize,
    bytes: usize,
    is_full: bool,
    /// How many more attempted notifications stay apart.
    apart: usize,
}

impl GroupMembers {
    fn add(&mut self, WaitingDelivery { delivery, next }: WaitingDelivery, now: Timestamp) {
        let key = delivery.group.key.clone();
        let before = match next {
            Some(next) if next <= now => Some(0),
            // The notification is leased, or was attempted and waits.
            Some(_) => None,
            None => self.of_group.get(&key).copied(),
        };
        let Some(before) = before.filter(|_| !self.ids.contains(&delivery.id)) else { return };
        if delivery.attempt > 0 && self.apart > 0 {
            // The rest of its group comes after it.
            self.apart -= 1;
            self.of_group.remove(&key);
            return;
        }
        let records = delivery.offline.len() + delivery.online.len();
        let bytes = serde_json::to_string(&delivery).map_or(usize::MAX, |text| text.len());
        let fits = self.records + records <= MAX_RECORDS && self.bytes.saturating_add(bytes) <= MAX_BYTES;
        // A digest goes to all recipients.
        let is_mergeable =
            records > 0 && delivery.blind.is_empty() && put_off::recipient(&delivery).is_none();
        if !fits || !is_mergeable || before >= MAX_OF_GROUP {
            // The rest of its group comes after it.
            self.is_full |= !fits;
            self.of_group.remove(&key);
            return;
        }
        self.records += records;
        self.bytes += bytes;
        self.of_group.insert(key, before + 1);
        self.ids.insert(delivery.id.clone());
        self.members.push(delivery);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerting::message::test_delivery;
    use crate::presence::{Cause, Closing, FirstUnit};

    fn record(unit: &str) -> OfflineRecord {
        let at = Timestamp::ZERO;
        OfflineRecord::open(format!("detector:{unit}").parse().unwrap(), at, at, at)
    }

    fn back(unit: &str) -> OfflineRecord {
        OfflineRecord { closed_by: Some(Closing::Return), back_at: Some(Timestamp::ZERO), ..record(unit) }
    }

    fn waiting(id: &str, group: &str, records: &[OfflineRecord], next: Option<u64>) -> WaitingDelivery {
        let (offline, online) = records.iter().cloned().partition(|record| record.closed_by.is_none());
        let labels = [("kind".to_owned(), "detector".to_owned()), ("unit".to_owned(), group.to_owned())];
        let group = Group { key: group.to_owned(), labels: labels.into() };
        let id = format!("{id}.hook");
        let delivery = Delivery { id, group, offline, online, ..test_delivery("hook", Timestamp::ZERO) };
        WaitingDelivery { delivery, next: next.map(|next| Timestamp::from_millis(next as i64)) }
    }

    #[test]
    fn a_digest_has_the_last_state_of_each_record_and_leaves_out_what_is_leased() {
        let mut gathered = GroupMembers::default();
        for one in [
            waiting("1", "a", &[record("a")], Some(0)),
            waiting("2", "b", &[record("b")], Some(5)),
            waiting("3", "leased", &[record("c")], Some(99)),
            waiting("4", "leased", &[back("c")], None),
            waiting("5", "a", &[back("a")], None),
            waiting("5", "a", &[back("a")], None),
            waiting("6", "unreadable", &[], Some(0)),
            waiting("7", "unreadable", &[back("d")], None),
        ] {
            gathered.add(one, Timestamp::from_millis(10));
        }
        let ids: Vec<&str> = gathered.members.iter().map(Delivery::notification).collect();
        assert_eq!(ids, ["1", "2", "5"]);
        let digest = merged("dig_1", Timestamp::ZERO, 1, "hook", &gathered.members);
        assert_eq!((digest.offline, digest.online), (vec![record("b")], vec![back("a")]));
        assert_eq!(digest.group.labels, Labels::from([("kind".to_owned(), "detector".to_owned())]));
        assert_eq!(digest.situation.merged, Some(3));
    }

    #[test]
    fn a_digest_names_the_incident_of_its_notifications_if_they_have_one() {
        let incident = |value: &str, still_offline| Incident {
            label: "site".to_owned(),
            value: value.to_owned(),
            offline: 9,
            units: 10,
            since: Timestamp::ZERO,
            first: FirstUnit { kind: "detector".to_owned(), unit: "a".to_owned() },
            still_offline,
            until: None,
            notified_from: None,
            acknowledged_at: None,
        };
        let with = |id: &str, incident: Option<Incident>| {
            let mut delivery = waiting(id, id, &[record(id)], Some(0)).delivery;
            delivery.situation.incident = incident;
            delivery
        };
        let of = |members: &[Delivery]| {
            let digest = merged("dig_1", Timestamp::ZERO, 1, "hook", members);
            digest.situation.incident.map(|one| (one.value, one.still_offline))
        };
        let members =
            [with("1", Some(incident("north", 9))), with("2", None), with("3", Some(incident("north", 7)))];
        assert_eq!(of(&members), Some(("north".to_owned(), 7)));
        assert_eq!(of(&members[1..2]), None);
        assert_eq!(of(&[members[0].clone(), with("4", Some(incident("south", 9)))]), None);
    }

    #[test]
    fn a_digest_names_no_unit_offline_that_is_back_whatever_the_order_of_groups() {
        let silence = waiting("1", "a", &[record("a")], Some(0)).delivery;
        let return_ = waiting("2", "a", &[back("a")], None).delivery;
        let other = waiting("3", "b", &[record("a"), record("b")], Some(0)).delivery;
        for members in [[&silence, &return_, &other], [&other, &silence, &return_]] {
            let digest = merged("dig_1", Timestamp::ZERO, 1, "hook", &members.map(Clone::clone));
            assert_eq!((digest.offline, digest.online), (vec![record("b")], vec![back("a")]));
        }
    }

    #[test]
    fn a_unit_that_flapped_and_is_offline_stays_offline_in_a_digest() {
        let episode = OfflineRecord { cause: Cause::Flapping, ..back("a") };
        let ended = waiting("1", "a", &[record("a"), episode.clone()], Some(0)).delivery;
        let other = waiting("2", "b", &[record("b")], Some(0)).delivery;
        let digest = merged("dig_1", Timestamp::ZERO, 1, "hook", &[ended, other]);
        assert_eq!((digest.offline, digest.online), (vec![record("a"), record("b")], vec![episode]));
    }

    #[test]
    fn a_digest_is_bounded_and_what_does_not_fit_is_left_with_the_rest_of_its_group() {
        let mut gathered = GroupMembers::default();
        let many = |name: &str| (0..6000).map(|at| record(&format!("{name}{at}"))).collect::<Vec<_>>();
        let now = Timestamp::from_millis(10);
        gathered.add(waiting("1", "a", &many("a"), Some(0)), now);
        gathered.add(waiting("2", "b", &many("b"), Some(0)), now);
        gathered.add(waiting("3", "b", &[back("b1")], None), now);
        assert!(gathered.is_full);
        assert_eq!(gathered.members.len(), 1);
        let mut long = GroupMembers::default();
        long.add(waiting("0", "a", &[record("a")], Some(0)), now);
        (1..40).for_each(|at| long.add(waiting(&at.to_string(), "a", &[record("a")], None), now));
        assert_eq!(long.members.len(), MAX_OF_GROUP);
    }
}
