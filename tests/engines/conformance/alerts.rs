//! Promises about groups and deliveries.

use std::sync::Arc;

use std::collections::HashSet;
use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::presence::{Closing, Interval, Labels, OfflineRecord, Unit};
use rollcall::store::{
    Backlog, Capacity, ChangeSet, Delivery, Destinations, Discarded, Group, GroupContext, Index, Join,
    OutboxEvent, Pace, ReceiverName, StoredDeliveries, partition_of_group,
};

use super::ground::Ground;
use super::world::World;

const AT_ONCE: Pace = Pace::AT_ONCE;
const MINUTE: Duration = Duration::from_secs(60);

fn group(key: &str) -> Group {
    Group { key: key.into(), labels: [("kind".into(), "detector".into())].into() }
}

pub fn offline(unit: &Unit, at: Timestamp) -> OfflineRecord {
    OfflineRecord {
        labels: [("site".into(), "\"north\"\n".into())].into(),
        silent_from: Some(at + Duration::from_millis(700)),
        ..OfflineRecord::open(unit.clone(), at, at + MINUTE, at + MINUTE)
    }
}

pub fn back(record: &OfflineRecord, why: Closing) -> OfflineRecord {
    OfflineRecord { back_at: Some(record.detected_at + MINUTE), closed_by: Some(why), ..record.clone() }
}

impl<G: Ground> World<G> {
    async fn join(&self, records: &[&OfflineRecord], now: Timestamp) {
        self.join_at(records, AT_ONCE, now).await;
    }

    async fn join_at(&self, records: &[&OfflineRecord], pace: Pace, now: Timestamp) -> usize {
        let join = |record: &OfflineRecord| Join {
            groups: vec![group("g")],
            event: OutboxEvent::Record(record.clone()),
        };
        let joins: Vec<Join> = records.iter().map(|record| join(record)).collect();
        self.groups()
            .join(&joins, &Destinations::all(pace, &["hook".to_owned()]), &Capacity::NONE, now)
            .await
            .unwrap()
            .sealed
    }

    async fn seal(&self, now: Timestamp) -> usize {
        self.seal_at(AT_ONCE, now).await
    }

    async fn seal_at(&self, pace: Pace, now: Timestamp) -> usize {
        self.groups()
            .seal(&self.partitions(), &Destinations::all(pace, &["hook".to_owned()]), now)
            .await
            .unwrap()
    }

    async fn lease(&self, now: Timestamp) -> Vec<Delivery> {
        self.deliveries().lease(&self.partitions(), "hook", now, now + MINUTE, 100).await.unwrap()
    }

    async fn sealed(&self, records: &[&OfflineRecord], now: Timestamp) -> Vec<Delivery> {
        self.join(records, now).await;
        self.seal(now).await;
        self.lease(now).await
    }
}

pub async fn promise_06_a_dead_holders_lease_comes_back<G: Ground>(world: World<G>) {
    let record = offline(&world.unit("a"), world.at(0));
    let now = world.at(1000);
    let first = world.sealed(&[&record], now).await.remove(0);
    assert_eq!((first.attempt, first.offline.as_slice()), (1, [record].as_slice()));
    assert_eq!(world.lease(now).await, []);
    let (other, _) = world.another().await;
    // A living holder may extend its lease.
    let later = now + 2 * MINUTE;
    let held = [Arc::new(first.clone())];
    world.deliveries().extend_leases(&held, later).await.unwrap();
    assert_eq!(world.lease(now + MINUTE).await, []);
    assert_eq!(world.deliveries().first_lease(&world.partitions(), "hook").await.unwrap(), Some(later));
    let again = StoredDeliveries::new(other.clone())
        .lease(&world.partitions(), "hook", later, later + MINUTE, 100)
        .await
        .unwrap();
    assert_eq!(again, [Delivery { attempt: 2, ..first }]);
}

pub async fn promise_06_a_delivery_that_was_taken_over_cannot_be_extended<G: Ground>(world: World<G>) {
    let record = offline(&world.unit("a"), world.at(0));
    let (now, later) = (world.at(1000), world.at(1000) + MINUTE);
    let first = world.sealed(&[&record], now).await.remove(0);
    let (other, _) = world.another().await;
    let second = StoredDeliveries::new(other.clone())
        .lease(&world.partitions(), "hook", later, later + MINUTE, 100)
        .await
        .unwrap()
        .remove(0);
    assert_eq!((first.attempt, second.attempt), (1, 2));
    // The first holder continues.
    let held = [Arc::new(first.clone())];
    assert_eq!(world.deliveries().extend_leases(&held, later + 9 * MINUTE).await.unwrap(), [false]);
    world.deliveries().retry_later(&first, later).await.unwrap();
    assert_eq!(world.lease(later).await, [], "the second holds it");
    assert_eq!(
        StoredDeliveries::new(other.clone())
            .extend_leases(&[Arc::new(second.clone())], later + 2 * MINUTE)
            .await
            .unwrap(),
        [true]
    );
    assert_eq!(world.lease(later + MINUTE).await, []);
    // A delivery that the first holder has made anyway counts.
    world.deliveries().delivered(&[first], later).await.unwrap();
    assert_eq!(
        StoredDeliveries::new(other.clone())
            .extend_leases(&[Arc::new(second)], later + 3 * MINUTE)
            .await
            .unwrap(),
        [false]
    );
    assert_eq!(world.lease(world.hours(100)).await, []);
}

pub async fn promise_06_a_delivery_that_joining_hands_out_is_leased_in_the_same_step<G: Ground>(
    world: World<G>,
) {
    let records = world.units(5).into_iter().map(|unit| offline(&unit, world.at(0)));
    let join = |record: OfflineRecord| Join {
        groups: vec![group(record.unit.as_str())],
        event: OutboxEvent::Record(record),
    };
    let joins: Vec<Join> = records.map(join).collect();
    let now = world.at(1000);
    let receivers = ["hook".to_owned(), "mail".to_owned()];
    let room = Capacity { most: vec![3, 2], until: now + MINUTE };
    let joined =
        world.groups().join(&joins, &Destinations::all(AT_ONCE, &receivers), &room, now).await.unwrap();
    assert_eq!(joined.sealed, 5);
    for (receiver, most) in receivers.iter().zip(room.most) {
        let lease = async |at| {
            world.deliveries().lease(&world.partitions(), receiver, at, at + MINUTE, 100).await.unwrap()
        };
        let handed_out = joined.deliveries.iter().filter(|delivery| delivery.receiver == *receiver);
        let handed_out: Vec<Delivery> = handed_out.cloned().collect();
        assert!(handed_out.len() <= most, "there is room for {most}");
        let fetched = lease(now).await;
        assert_eq!(handed_out.len() + fetched.len(), 5, "each is held once");
        assert_eq!(lease(now).await, []);
        // The deliveries of a dead holder come back unchanged.
        world.deliveries().delivered(&fetched, now).await.unwrap();
        let mut again = lease(now + MINUTE).await;
        let mut lost: Vec<Delivery> =
            handed_out.into_iter().map(|delivery| Delivery { attempt: 2, ..delivery }).collect();
        again.sort_by(|a, b| a.id.cmp(&b.id));
        lost.sort_by(|a, b| a.id.cmp(&b.id));
        assert_eq!(again, lost);
        world.deliveries().delivered(&again, now + MINUTE).await.unwrap();
        assert_eq!(lease(world.hours(100)).await, []);
    }
}

pub async fn promise_06_deliveries_leased_together_end_one_by_one<G: Ground>(world: World<G>) {
    // Many records, so that some share a partition.
    let records: Vec<OfflineRecord> = world.units(64).iter().map(|unit| offline(unit, world.at(0))).collect();
    let join = |record: &OfflineRecord| Join {
        groups: vec![group(record.unit.as_str())],
        event: OutboxEvent::Record(record.clone()),
    };
    let joins: Vec<Join> = records.iter().map(join).collect();
    let hook = ["hook".to_owned()];
    let now = world.at(1000);
    let room = Capacity { most: vec![64], until: now + MINUTE };
    let joined = world.groups().join(&joins, &Destinations::all(AT_ONCE, &hook), &room, now).await.unwrap();
    // If joining hands nothing out, the deliveries are leased.
    let mut held = joined.deliveries;
    held.extend(world.lease(now).await);
    held.sort_by(|a, b| a.group.key.cmp(&b.group.key));
    assert_eq!(held.len(), 64);
    let backlog = world.deliveries().backlog(&world.partitions(), "hook").await.unwrap();
    assert_eq!((backlog.waiting, backlog.dead), (64, 0));
    // Some are delivered, retried later, dead-lettered or extended; the holders of the rest never answer.
    let (delivered, rest) = held.split_at(40);
    let (retried_later, rest) = rest.split_at(4);
    let (dead_lettered, rest) = rest.split_at(4);
    let (extended, lost) = rest.split_at(8);
    world.deliveries().delivered(delivered, now).await.unwrap();
    world.deliveries().retry_later(&retried_later[0], now + 3 * MINUTE).await.unwrap();
    for delivery in &retried_later[1..] {
        world.deliveries().retry_later(delivery, now + MINUTE / 2).await.unwrap();
    }
    for delivery in dead_lettered {
        world.deliveries().dead_letter(delivery, "gone", now).await.unwrap();
    }
    let extended: Vec<Arc<Delivery>> = extended.iter().cloned().map(Arc::new).collect();
    world.deliveries().extend_leases(&extended, now + 2 * MINUTE).await.unwrap();
    // A return follows its silence, which is under way.
    let returns: Vec<Join> =
        [&extended[0], &lost[0]].map(|delivery| join(&back(&delivery.offline[0], Closing::Return))).into();
    world.groups().join(&returns, &Destinations::all(AT_ONCE, &hook), &room, now).await.unwrap();
    assert_eq!(world.lease(now).await, []);
    let ids = |deliveries: &[Delivery]| -> HashSet<(String, u32)> {
        deliveries.iter().map(|delivery| (delivery.id.clone(), delivery.attempt)).collect()
    };
    let again = |deliveries: &[Delivery]| -> HashSet<(String, u32)> {
        deliveries.iter().map(|delivery| (delivery.id.clone(), delivery.attempt + 1)).collect()
    };
    let early = world.lease(now + MINUTE / 2).await;
    assert_eq!(ids(&early), again(&retried_later[1..]));
    world.deliveries().delivered(&early, now + MINUTE / 2).await.unwrap();
    // The engine may take several steps.
    let mut found = world.lease(now + MINUTE).await;
    found.extend(world.lease(now + MINUTE).await);
    assert_eq!(ids(&found), again(lost));
    let same = |delivery: &&Delivery| lost.iter().any(|lost| lost.offline == delivery.offline);
    assert_eq!(found.iter().filter(same).count(), lost.len(), "their contents are unchanged");
    world.deliveries().delivered(&found, now + MINUTE).await.unwrap();
    let follows = world.lease(now + MINUTE).await;
    assert_eq!(follows.len(), 1, "the return");
    assert_eq!(follows[0].online[0].id, lost[0].offline[0].id);
    world.deliveries().delivered(&follows, now + MINUTE).await.unwrap();
    let held: Vec<Delivery> = extended.iter().map(|delivery| (**delivery).clone()).collect();
    assert_eq!(ids(&world.lease(now + 2 * MINUTE).await), again(&held));
    world.deliveries().delivered(&held, now + 2 * MINUTE).await.unwrap();
    assert_eq!(world.lease(now + 2 * MINUTE).await.len(), 1, "the other return");
    assert_eq!(ids(&world.lease(now + 3 * MINUTE).await).len(), 2, "the one that was retried latest, too");
    let backlog = world.deliveries().backlog(&world.partitions(), "hook").await.unwrap();
    assert_eq!((backlog.waiting, backlog.dead), (2, 4));
}

pub async fn promise_06_a_delivery_that_has_ended_cannot_be_extended<G: Ground>(world: World<G>) {
    let (first, second) = (offline(&world.unit("a"), world.at(0)), offline(&world.unit("a"), world.hours(1)));
    // A second record in the same partition, so that both are handed out together.
    let partition = |key: &str| partition_of_group(key, world.engine.partitions());
    let beside = (0..).map(|n| format!("beside-{n}")).find(|key| partition(key) == partition("g")).unwrap();
    let hand_out = async |record: &OfflineRecord, now: Timestamp| {
        let twin = offline(&world.unit("twin"), record.last_seen);
        let join = |key: &str| {
            let record = if key == "g" { record } else { &twin };
            Join { groups: vec![group(key)], event: OutboxEvent::Record(record.clone()) }
        };
        let room = Capacity { most: vec![2], until: now + 2 * MINUTE };
        let (joins, hook) = ([join("g"), join(&beside)], ["hook".to_owned()]);
        let mut held = world
            .groups()
            .join(&joins, &Destinations::all(AT_ONCE, &hook), &room, now)
            .await
            .unwrap()
            .deliveries;
        held.extend(
            world.deliveries().lease(&world.partitions(), "hook", now, room.until, 10).await.unwrap(),
        );
        assert_eq!(held.len(), 2);
        let (own, other): (Vec<Delivery>, Vec<Delivery>) =
            held.into_iter().partition(|delivery| delivery.group.key == "g");
        world.deliveries().delivered(&other, now).await.unwrap();
        own.into_iter().next().unwrap()
    };
    let now = world.hours(2);
    let notified = hand_out(&first, now).await;
    world.deliveries().delivered(std::slice::from_ref(&notified), now).await.unwrap();
    // The earlier holder does not know yet.
    world.deliveries().extend_leases(&[Arc::new(notified.clone())], now + MINUTE).await.unwrap();
    world.deliveries().retry_later(&notified, now + MINUTE).await.unwrap();
    let next = hand_out(&second, now).await;
    // The next notification of its group waits for it.
    let third = offline(&world.unit("b"), world.hours(1));
    let joins = [Join { groups: vec![group("g")], event: OutboxEvent::Record(third.clone()) }];
    let room = Capacity { most: vec![1], until: now + 2 * MINUTE };
    let joined = world
        .groups()
        .join(&joins, &Destinations::all(AT_ONCE, &["hook".to_owned()]), &room, now)
        .await
        .unwrap();
    assert_eq!((joined.sealed, joined.deliveries.len()), (1, 0));
    assert_eq!(world.lease(now + MINUTE).await, [], "the second is under way");
    let mut again = world.lease(now + 2 * MINUTE).await;
    again.extend(world.lease(now + 2 * MINUTE).await);
    assert_eq!(again, [Delivery { attempt: 2, is_alone: false, ..next }]);
    world.deliveries().delivered(&again, now + 2 * MINUTE).await.unwrap();
    assert_eq!(world.lease(now + 2 * MINUTE).await[0].offline, [third]);
}

/// The deliveries of a receiver at `now`, each delivered at once.
pub async fn delivered_to<G: Ground>(world: &World<G>, receiver: &str, now: Timestamp) -> Vec<Delivery> {
    let mut notified = Vec::new();
    loop {
        let leased =
            world.deliveries().lease(&world.partitions(), receiver, now, now + MINUTE, 100).await.unwrap();
        if leased.is_empty() {
            return notified;
        }
        world.deliveries().delivered(&leased, now).await.unwrap();
        notified.extend(leased);
    }
}

/// Lets these records join a group, and seals due groups for these receivers.
pub async fn notify<G: Ground>(
    world: &World<G>,
    key: &str,
    records: &[&OfflineRecord],
    receivers: &[&str],
    now: Timestamp,
) {
    let join = |record: &&OfflineRecord| Join {
        groups: vec![group(key)],
        event: OutboxEvent::Record((*record).clone()),
    };
    let joins: Vec<Join> = records.iter().map(join).collect();
    let receivers: Vec<String> = receivers.iter().map(|name| (*name).to_owned()).collect();
    world.groups().join(&joins, &Destinations::all(AT_ONCE, &receivers), &Capacity::NONE, now).await.unwrap();
    while world
        .groups()
        .seal(&world.partitions(), &Destinations::all(AT_ONCE, &receivers), now)
        .await
        .unwrap()
        > 0
    {}
}

pub async fn promise_05_a_return_is_notified_whatever_group_it_falls_into_now<G: Ground>(world: World<G>) {
    let records = world.units(8).into_iter().map(|unit| offline(&unit, world.at(0)));
    let records: Vec<OfflineRecord> = records.collect();
    let all: Vec<&OfflineRecord> = records.iter().collect();
    notify(&world, "g", &all, &["hook"], world.at(1)).await;
    let silences = world.lease(world.at(1)).await;
    assert_eq!(silences.iter().map(|delivery| delivery.offline.len()).sum::<usize>(), 8);
    // Some units come back while their silence is being delivered, others afterwards: no return comes before its
    // silence.
    let returns: Vec<OfflineRecord> = records.iter().map(|record| back(record, Closing::Return)).collect();
    for one in &returns[..4] {
        notify(&world, &format!("other-{}", one.unit), &[one], &["hook"], world.at(2)).await;
    }
    assert_eq!(world.lease(world.at(2)).await, [], "their silence is under way");
    world.deliveries().delivered(&silences, world.at(3)).await.unwrap();
    for one in &returns[4..] {
        notify(&world, &format!("other-{}", one.unit), &[one], &["hook"], world.at(4)).await;
        notify(&world, "a third", &[one], &["hook"], world.at(5)).await;
    }
    let mut notified: Vec<OfflineRecord> = delivered_to(&world, "hook", world.hours(1))
        .await
        .into_iter()
        .flat_map(|delivery| delivery.online)
        .collect();
    notified.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(notified, returns);
    let all: Vec<&OfflineRecord> = returns.iter().collect();
    notify(&world, "other", &all, &["hook"], world.hours(2)).await;
    assert_eq!(delivered_to(&world, "hook", world.hours(2)).await, [], "once");
}

pub async fn promise_05_a_return_goes_to_the_receivers_that_were_notified_of_the_silence<G: Ground>(
    world: World<G>,
) {
    let record = |name: &str| offline(&world.unit(name), world.at(0));
    let (early, both, late, alone) = (record("early"), record("both"), record("late"), record("alone"));
    let on = |record: &OfflineRecord| back(record, Closing::Return);
    // Records without a receiver, with one, and with two; one is handed out as it joins.
    notify(&world, "g", &[&early], &[], world.at(1)).await;
    notify(&world, "g", &[&late], &["hook"], world.at(2)).await;
    let join = Join { groups: vec![group("own")], event: OutboxEvent::Record(alone.clone()) };
    let room = Capacity { most: vec![1], until: world.at(3) + MINUTE };
    let hook = ["hook".to_owned()];
    let handed = world
        .groups()
        .join(&[join], &Destinations::all(AT_ONCE, &hook), &room, world.at(3))
        .await
        .unwrap()
        .deliveries;
    world.deliveries().delivered(&handed, world.at(4)).await.unwrap();
    notify(&world, "g", &[&both], &["hook", "mail"], world.at(5)).await;
    let offline_to = async |name| -> Vec<String> {
        let notified = delivered_to(&world, name, world.at(6)).await;
        notified.iter().flat_map(|delivery| &delivery.offline).map(|record| record.unit.to_string()).collect()
    };
    let mut hook_has = offline_to("hook").await;
    hook_has
        .extend(handed.iter().flat_map(|delivery| &delivery.offline).map(|record| record.unit.to_string()));
    hook_has.sort();
    assert_eq!(
        (hook_has, offline_to("mail").await),
        (vec!["alone".into(), "both".into(), "late".into()], vec!["both".into()])
    );
    // All units come back, and both receivers get a new silence.
    let fresh = record("fresh");
    let all_receivers = ["hook", "mail", "new"];
    notify(&world, "own", &[&on(&alone)], &all_receivers, world.at(7)).await;
    notify(&world, "g", &[&on(&early), &on(&both), &on(&late), &fresh], &all_receivers, world.at(7)).await;
    for (receiver, expected) in [
        ("hook", vec!["alone", "both", "fresh", "late"]),
        ("mail", vec!["both", "fresh"]),
        ("new", vec!["fresh"]),
    ] {
        let notified = delivered_to(&world, receiver, world.at(8)).await;
        let mut named: Vec<&str> = notified
            .iter()
            .flat_map(|delivery| delivery.offline.iter().chain(&delivery.online))
            .map(|one| one.unit.as_str())
            .collect();
        named.sort_unstable();
        assert_eq!(named, expected, "{receiver}");
        let backlog = world.deliveries().backlog(&world.partitions(), receiver).await.unwrap();
        assert_eq!(backlog, Default::default(), "{receiver}");
    }
}

pub async fn promise_05_a_return_is_notified_when_an_earlier_silence_of_its_record_is_forgotten<G: Ground>(
    world: World<G>,
) {
    let first = offline(&world.unit("a"), world.at(0));
    let again = OfflineRecord { detected_at: first.detected_at + MINUTE, ..first.clone() };
    for record in [first.clone(), back(&first, Closing::Policy), again.clone()] {
        notify(&world, "g", &[&record], &["hook"], world.at(1)).await;
        assert_eq!(delivered_to(&world, "hook", world.at(1)).await.len(), 1, "{record:?}");
    }
    // Members that are over are forgotten after a day, when due groups are sealed.
    world.seal(world.hours(30)).await;
    let on = back(&again, Closing::Return);
    notify(&world, "g", &[&on], &["hook"], world.hours(31)).await;
    let notified = delivered_to(&world, "hook", world.hours(31)).await;
    assert_eq!(notified.iter().flat_map(|delivery| &delivery.online).collect::<Vec<_>>(), [&on]);
    notify(&world, "g", &[&on], &["hook"], world.hours(32)).await;
    assert_eq!(delivered_to(&world, "hook", world.hours(32)).await, [], "once");
}

pub async fn promise_07_a_record_that_joins_another_group_too_is_notified_once<G: Ground>(world: World<G>) {
    let (one, two) = (offline(&world.unit("a"), world.at(0)), offline(&world.unit("b"), world.at(0)));
    notify(&world, "g", &[&one], &["hook"], world.at(1)).await;
    notify(&world, "other", &[&one], &["hook"], world.at(2)).await;
    assert_eq!(delivered_to(&world, "hook", world.at(3)).await.len(), 1);
    // A return that joins first cancels its silence, whatever its group.
    notify(&world, "other", &[&back(&two, Closing::Return)], &["hook"], world.at(4)).await;
    notify(&world, "g", &[&two], &["hook"], world.at(5)).await;
    assert_eq!(delivered_to(&world, "hook", world.at(6)).await, []);
    // A record that is opened again is notified again.
    let again = OfflineRecord { detected_at: one.detected_at + MINUTE, ..one.clone() };
    notify(&world, "other", &[&back(&one, Closing::Policy)], &["hook"], world.at(7)).await;
    notify(&world, "a third", &[&again], &["hook"], world.at(8)).await;
    let notified = delivered_to(&world, "hook", world.at(9)).await;
    assert_eq!(
        notified.iter().map(|delivery| (delivery.offline.len(), delivery.online.len())).collect::<Vec<_>>(),
        [(0, 1), (1, 0)]
    );
    notify(&world, "a fourth", &[&back(&again, Closing::Return)], &["hook"], world.at(10)).await;
    assert_eq!(delivered_to(&world, "hook", world.at(11)).await[0].online.len(), 1);
}

pub async fn promise_07_transitions_of_one_call_join_the_groups_of_their_records_in_any_order<G: Ground>(
    world: World<G>,
) {
    let record = |name: &str| offline(&world.unit(name), world.at(0));
    let on = |record: &OfflineRecord| back(record, Closing::Return);
    let join = async |joins: [(&str, &OfflineRecord); 2], now| {
        let event = |record: &OfflineRecord| OutboxEvent::Record(record.clone());
        let joins = joins.map(|(key, record)| Join { groups: vec![group(key)], event: event(record) });
        world
            .groups()
            .join(&joins, &Destinations::all(AT_ONCE, &["hook".to_owned()]), &Capacity::NONE, now)
            .await
            .unwrap()
            .sealed
    };
    let notified = async |now| -> Vec<(String, usize, usize)> {
        let notified = delivered_to(&world, "hook", now).await;
        let mut found: Vec<_> = notified
            .into_iter()
            .map(|delivery| (delivery.group.key, delivery.offline.len(), delivery.online.len()))
            .collect();
        found.sort();
        found
    };
    // A return cancels its silence in either order, though its group changed in between.
    let (a, b) = (record("a"), record("b"));
    assert_eq!(join([("g", &a), ("other", &on(&a))], world.at(1)).await, 0);
    assert_eq!(join([("other", &on(&b)), ("g", &b)], world.at(1)).await, 0);
    assert_eq!(world.seal(world.at(1)).await, 0);
    // Each of two records is alone in the group that it joins, though their groups are the same by now.
    let (c, d) = (record("c"), record("d"));
    notify(&world, "g", &[&c], &["hook"], world.at(2)).await;
    assert_eq!(notified(world.at(2)).await, [("g".to_owned(), 1, 0)]);
    assert_eq!(join([("other", &on(&c)), ("other", &d)], world.at(3)).await, 2);
    assert_eq!(notified(world.at(3)).await, [("g".to_owned(), 0, 1), ("other".to_owned(), 1, 0)]);
    // Two records that join one group are in one notification, though their groups differ by now.
    let e = record("e");
    assert_eq!(join([("other", &e), ("elsewhere", &on(&d))], world.at(4)).await, 2);
    assert_eq!(world.seal(world.at(4)).await, 0);
    assert_eq!(notified(world.at(4)).await, [("other".to_owned(), 1, 1)]);
}

pub async fn promise_07_joining_is_idempotent_also_after_it_was_sent<G: Ground>(world: World<G>) {
    let off = offline(&world.unit("a"), world.at(0));
    let on = back(&off, Closing::Return);
    world.join(&[&off, &off], world.at(0)).await;
    let notified = world.sealed(&[&off], world.at(1)).await;
    assert_eq!(notified.len(), 1);
    assert_eq!(world.sealed(&[&off], world.at(2)).await, []);
    world.deliveries().delivered(&notified, world.at(2)).await.unwrap();
    assert_eq!(world.sealed(&[&off], world.at(3)).await, []);
    let notified = world.sealed(&[&on, &off, &on], world.at(4)).await;
    assert_eq!((notified.len(), notified[0].online.as_slice()), (1, [on.clone()].as_slice()));
    world.deliveries().delivered(&notified, world.at(5)).await.unwrap();
    assert_eq!(world.sealed(&[&off, &on], world.at(6)).await, []);
}

pub async fn promise_07_a_return_that_joins_first_cancels_its_silence<G: Ground>(world: World<G>) {
    let off = offline(&world.unit("a"), world.at(0));
    world.join(&[&back(&off, Closing::Return)], world.at(0)).await;
    assert_eq!(world.sealed(&[&off], world.at(1)).await, []);
}

pub async fn promise_07_a_unit_that_returns_before_its_group_is_sealed_is_never_notified<G: Ground>(
    world: World<G>,
) {
    let off = offline(&world.unit("a"), world.at(0));
    let stays = offline(&world.unit("b"), world.at(0));
    let pace = Pace::new(MINUTE, MINUTE);
    world.join_at(&[&off, &stays], pace, world.at(0)).await;
    world.join_at(&[&back(&off, Closing::Return)], pace, world.at(1)).await;
    world.seal(world.at(0) + MINUTE).await;
    let notified = world.lease(world.at(0) + MINUTE).await;
    assert_eq!((notified.len(), notified[0].offline.as_slice()), (1, [stays.clone()].as_slice()));
    // Without a member there is no notification.
    world.join_at(&[&back(&stays, Closing::Return)], pace, world.hours(1)).await;
    let other = offline(&world.unit("c"), world.at(0));
    world.join_at(&[&other, &back(&other, Closing::Return)], pace, world.hours(1)).await;
    world.deliveries().delivered(&notified, world.hours(1)).await.unwrap();
    world.seal(world.hours(2)).await;
    let notified = world.lease(world.hours(2)).await;
    assert_eq!((notified.len(), notified[0].online.len(), notified[0].offline.len()), (1, 1, 0));
}

pub async fn promise_08_delivered_is_never_leased_again<G: Ground>(world: World<G>) {
    let notified = world.sealed(&[&offline(&world.unit("a"), world.at(0))], world.at(0)).await;
    assert_eq!(notified.len(), 1);
    for _ in 0..2 {
        world.deliveries().delivered(&notified, world.at(1)).await.unwrap();
        assert_eq!(world.lease(world.hours(1000)).await, []);
    }
    assert_eq!(world.deliveries().first_lease(&world.partitions(), "hook").await.unwrap(), None);
    assert_eq!(world.deliveries().backlog(&world.partitions(), "hook").await.unwrap(), Default::default());
    // A late end of a lease that is over changes nothing either.
    world.deliveries().retry_later(&notified[0], world.at(2)).await.unwrap();
    world.deliveries().dead_letter(&notified[0], "late", world.at(2)).await.unwrap();
    assert_eq!(world.lease(world.hours(1000)).await, []);
    assert_eq!(world.deliveries().backlog(&world.partitions(), "hook").await.unwrap().dead, 0);
}

pub async fn promise_12_the_silence_of_a_removed_unit_is_no_longer_notified<G: Ground>(world: World<G>) {
    let off = offline(&world.unit("a"), world.at(0));
    let pace = Pace::new(MINUTE, MINUTE);
    world.join_at(&[&off], pace, world.at(0)).await;
    world.join_at(&[&back(&off, Closing::Removed)], pace, world.at(1)).await;
    assert_eq!(world.seal(world.hours(1)).await, 0);
    let off = offline(&world.unit("b"), world.at(0));
    assert_eq!(world.sealed(&[&off], world.at(2)).await.len(), 1);
    assert_eq!(world.sealed(&[&back(&off, Closing::Removed)], world.hours(1)).await.len(), 1);
    assert_eq!(world.seal(world.hours(2)).await, 0);
}

pub async fn a_group_keeps_group_wait_and_group_interval<G: Ground>(world: World<G>) {
    let pace = Pace::new(Duration::from_secs(10), Duration::from_secs(300));
    let seconds = |s: u64| world.at(s * 1000);
    let first_seal = async || world.groups().first_seal(&world.partitions()).await.unwrap();
    let silent = |name: &str| offline(&world.unit(name), seconds(0));
    world.join_at(&[&silent("a")], pace, seconds(0)).await;
    world.join_at(&[&silent("b")], pace, seconds(5)).await;
    world.join_at(&[&silent("c")], pace, seconds(7)).await;
    assert_eq!(first_seal().await, Some(seconds(10)));
    assert_eq!(world.seal_at(pace, seconds(9)).await, 0);
    // Each group has a wait of its own; members that have joined by now follow together.
    assert_eq!(world.seal_at(pace, seconds(10)).await, 1);
    assert_eq!(first_seal().await, Some(seconds(17)));
    world.join_at(&[&silent("d")], pace, seconds(15)).await;
    assert_eq!(world.seal_at(pace, seconds(17)).await, 2);
    // A member that joins in between waits for group_interval after the first.
    world.join_at(&[&silent("e")], pace, seconds(20)).await;
    assert_eq!(first_seal().await, Some(seconds(310)));
    assert_eq!(world.seal_at(pace, seconds(309)).await, 0);
    assert_eq!(world.seal_at(pace, seconds(310)).await, 2);
    assert_eq!(first_seal().await, None);
    world.join_at(&[&silent("f")], pace, seconds(320)).await;
    assert_eq!(first_seal().await, Some(seconds(610)));
    // A member that joins just before group_interval ends waits no less than others.
    world.join_at(&[&silent("g")], pace, seconds(605)).await;
    assert_eq!(world.seal_at(pace, seconds(610)).await, 1);
    assert_eq!(first_seal().await, Some(seconds(615)));
    assert_eq!(world.seal_at(pace, seconds(615)).await, 1);
    assert_eq!(first_seal().await, None);
}

pub async fn a_unit_that_returns_within_its_own_wait_is_never_notified<G: Ground>(world: World<G>) {
    let pace = Pace::new(Duration::from_secs(10), Duration::from_secs(300));
    let seconds = |s: u64| world.at(s * 1000);
    let silent = |name: &str| offline(&world.unit(name), seconds(0));
    world.join_at(&[&silent("first")], pace, seconds(0)).await;
    world.join_at(&[&silent("blip")], pace, seconds(9)).await;
    assert_eq!(world.seal_at(pace, seconds(10)).await, 1);
    world.join_at(&[&back(&silent("blip"), Closing::Return)], pace, seconds(11)).await;
    assert_eq!(world.groups().first_seal(&world.partitions()).await.unwrap(), None, "no member waits");
    // The first member of a group comes back: the wait of the others does not change.
    world.join_at(&[&silent("gone")], pace, seconds(400)).await;
    world.join_at(&[&silent("stays")], pace, seconds(404)).await;
    world.join_at(&[&back(&silent("gone"), Closing::Return)], pace, seconds(405)).await;
    assert_eq!(world.seal_at(pace, seconds(410)).await, 0);
    assert_eq!(world.groups().first_seal(&world.partitions()).await.unwrap(), Some(seconds(414)));
    assert_eq!(world.seal_at(pace, seconds(414)).await, 1);
    let notified = delivered_to(&world, "hook", seconds(420)).await;
    let named: Vec<&str> = notified
        .iter()
        .flat_map(|delivery| delivery.offline.iter().chain(&delivery.online))
        .map(|one| one.unit.as_str())
        .collect();
    assert_eq!(named, ["first", "stays"]);
    // A return has no wait of its own: it is part of its group's next notification.
    world.join_at(&[&silent("last")], pace, seconds(800)).await;
    world.join_at(&[&back(&silent("first"), Closing::Return)], pace, seconds(809)).await;
    assert_eq!(world.seal_at(pace, seconds(810)).await, 2);
}

pub async fn a_group_that_members_keep_joining_is_sealed_all_the_same<G: Ground>(world: World<G>) {
    let pace = Pace::new(Duration::from_secs(10), Duration::from_secs(60));
    let mut sealed = Vec::new();
    for second in 0..200u64 {
        let now = world.at(second * 1000);
        world.join_at(&[&offline(&world.unit(&second.to_string()), world.at(0))], pace, now).await;
        let count = world.seal_at(pace, now).await;
        if count > 0 {
            sealed.push((second, count));
        }
    }
    // After group_wait, once more for the members that had joined by then, and again after each group_interval.
    assert_eq!(sealed, [(10, 1), (20, 10), (70, 50), (80, 10), (130, 50), (140, 10), (190, 50)]);
}

pub async fn the_members_of_a_due_group_do_not_wait<G: Ground>(world: World<G>) {
    let record = |unit: &str| offline(&world.unit(unit), world.at(0));
    let (a, b, c, d) = (record("a"), record("b"), record("c"), record("d"));
    let pace = Pace::new(Duration::ZERO, MINUTE);
    assert_eq!(world.join_at(&[&a], pace, world.at(1)).await, 1);
    assert_eq!(world.groups().first_seal(&world.partitions()).await.unwrap(), None);
    let notified = world.lease(world.at(1)).await;
    assert_eq!((notified.len(), notified[0].offline.as_slice()), (1, [a.clone()].as_slice()));
    world.deliveries().delivered(&notified, world.at(2)).await.unwrap();
    // The group keeps group_interval, and a later member does not overtake waiting ones.
    let next = world.at(1) + MINUTE;
    assert_eq!(world.join_at(&[&b], pace, world.at(3)).await, 0);
    assert_eq!(world.groups().first_seal(&world.partitions()).await.unwrap(), Some(next));
    assert_eq!(world.join_at(&[&c], pace, next + MINUTE).await, 0);
    assert_eq!(world.seal(next + MINUTE).await, 2);
    let notified = world.lease(next + MINUTE).await;
    assert_eq!((notified.len(), notified[0].offline.as_slice()), (1, [b, c].as_slice()));
    // Members that join together share a notification.
    assert_eq!(world.join_at(&[&d, &back(&a, Closing::Return)], pace, world.hours(1)).await, 2);
    assert_eq!(world.seal(world.hours(1)).await, 0);
    // A return is sealed at once if its silence was.
    assert_eq!(world.join_at(&[&back(&d, Closing::Return)], pace, world.hours(2)).await, 1);
    assert_eq!(world.join_at(&[&back(&d, Closing::Return), &d], pace, world.hours(3)).await, 0);
    assert_eq!(world.seal(world.hours(3)).await, 0);
}

pub async fn notifications_of_one_group_are_handed_out_in_order<G: Ground>(world: World<G>) {
    let off = offline(&world.unit("a"), world.at(0));
    let on = back(&off, Closing::Return);
    let first = world.sealed(&[&off], world.at(0)).await;
    // The first attempt fails; the return waits behind it.
    assert_eq!(world.sealed(&[&on], world.at(1)).await, []);
    world.deliveries().retry_later(&first[0], world.hours(1)).await.unwrap();
    assert_eq!(world.lease(world.at(2)).await, []);
    let again = world.lease(world.hours(1)).await;
    assert_eq!((again.len(), again[0].id.as_str()), (1, first[0].id.as_str()));
    world.deliveries().delivered(&again, world.hours(1)).await.unwrap();
    let next = world.lease(world.hours(1)).await;
    assert_eq!((next.len(), next[0].online.as_slice()), (1, [on].as_slice()));
}

/// A fault lost the entry of a lane: nothing leases its notifications until another one comes.
pub async fn a_lane_that_has_left_the_queue_is_due_again_with_its_next_notification<G: Ground>(
    world: World<G>,
) {
    let [one, other, third] = ["a", "b", "c"].map(|id| offline(&world.unit(id), world.at(0)));
    let now = world.at(1000);
    world.join(&[&one], now).await;
    world.seal(now).await;
    let (queue, partition) =
        (Index::Queue(ReceiverName::of("hook")), partition_of_group("g", world.engine.partitions()));
    let lost = ChangeSet::of(partition).enter(queue, "g", None);
    assert_eq!(world.engine.write_cells(&[lost]).await.unwrap(), [true]);
    assert_eq!(world.lease(now + MINUTE).await, [], "the queue is lost");
    let later = now + 2 * MINUTE;
    let first = world.sealed(&[&other], later).await;
    assert_eq!(first.len(), 1, "of a lane one notification is leased");
    assert_eq!((first[0].attempt, first[0].offline.as_slice()), (1, [one].as_slice()));
    // The entry of a lane that is leased stays as it is.
    assert_eq!(world.sealed(&[&third], later).await, []);
    world.deliveries().delivered(&first, later).await.unwrap();
    assert_eq!(world.lease(later).await[0].offline, [other]);
}

pub async fn a_return_does_not_go_to_a_receiver_whose_silence_became_a_dead_letter<G: Ground>(
    world: World<G>,
) {
    let (off, fine) = (offline(&world.unit("a"), world.at(0)), offline(&world.unit("b"), world.at(0)));
    let first = world.sealed(&[&off], world.at(0)).await;
    world.deliveries().dead_letter(&first[0], "410 gone", world.at(1)).await.unwrap();
    let backlog = world.deliveries().backlog(&world.partitions(), "hook").await.unwrap();
    assert_eq!((backlog.waiting, backlog.dead), (0, 1));
    let letters = world.deliveries().dead_letters("hook", 10).await.unwrap();
    assert_eq!((letters[0].reason.as_str(), &letters[0].delivery), ("410 gone", &first[0]));
    assert_eq!(world.sealed(&[&back(&off, Closing::Return)], world.at(2)).await, []);
    let notified = world.sealed(&[&fine], world.at(3)).await;
    world.deliveries().delivered(&notified, world.at(3)).await.unwrap();
    let notified = world.sealed(&[&back(&fine, Closing::Return)], world.at(4)).await;
    assert_eq!(notified[0].online, [back(&fine, Closing::Return)]);
}

pub async fn the_backlog_of_a_receiver_is_counted_and_can_be_discarded<G: Ground>(world: World<G>) {
    let now = world.at(0);
    let names = ["hook".to_owned(), "mail".to_owned()];
    world.deliveries().register_receivers(&["hook".to_owned()], now).await.unwrap();
    world.deliveries().register_receivers(&["mail".to_owned()], now).await.unwrap();
    assert_eq!(world.deliveries().kept().await.unwrap(), []);
    let records: Vec<OfflineRecord> = world.units(120).iter().map(|unit| offline(unit, now)).collect();
    let join = |record: &OfflineRecord| Join {
        groups: vec![group(&format!("g{}", record.unit))],
        event: OutboxEvent::Record(record.clone()),
    };
    let joins: Vec<Join> = records.iter().map(join).collect();
    world.groups().join(&joins, &Destinations::all(AT_ONCE, &names), &Capacity::NONE, now).await.unwrap();
    world.groups().seal(&world.partitions(), &Destinations::all(AT_ONCE, &names), now).await.unwrap();
    let leased = world.lease(now).await;
    world.deliveries().dead_letter(&leased[0], "410 gone", now).await.unwrap();
    let kept = |waiting: u64, dead: u64| Backlog { waiting, dead };
    let mail = ("mail".to_owned(), kept(120, 0));
    assert_eq!(world.deliveries().kept().await.unwrap(), [("hook".to_owned(), kept(119, 1)), mail.clone()]);
    let mut removed = 0;
    loop {
        let step = world.deliveries().discard("hook", now).await.unwrap();
        removed += step.removed;
        assert!(step.ended <= 500 && step.removed <= 500, "{step:?}");
        if step == Discarded::default() {
            break;
        }
    }
    assert_eq!(removed, 120);
    assert_eq!(world.deliveries().kept().await.unwrap(), [mail]);
    assert_eq!(world.deliveries().first_lease(&world.partitions(), "hook").await.unwrap(), None);
    // The deliveries of the other receiver are unchanged, and it alone is notified of the returns.
    let later = world.hours(2);
    let notified =
        world.deliveries().lease(&world.partitions(), "mail", later, later + MINUTE, 500).await.unwrap();
    assert_eq!(notified.iter().map(|delivery| delivery.offline.len()).sum::<usize>(), 120);
    world.deliveries().delivered(&notified, later).await.unwrap();
    let returned: Vec<OfflineRecord> = records.iter().map(|record| back(record, Closing::Return)).collect();
    let joins: Vec<Join> = returned.iter().map(join).collect();
    world.groups().join(&joins, &Destinations::all(AT_ONCE, &names), &Capacity::NONE, later).await.unwrap();
    world.groups().seal(&world.partitions(), &Destinations::all(AT_ONCE, &names), later).await.unwrap();
    assert_eq!(world.lease(later).await, []);
    let notified =
        world.deliveries().lease(&world.partitions(), "mail", later, later + MINUTE, 500).await.unwrap();
    assert_eq!(notified.iter().map(|delivery| delivery.online.len()).sum::<usize>(), 120);
}

pub async fn a_receiver_that_was_absent_is_notified_of_what_still_holds<G: Ground>(world: World<G>) {
    let both = ["hook".to_owned(), "mail".to_owned()];
    let mail = ["mail".to_owned()];
    world.deliveries().register_receivers(&both, world.at(0)).await.unwrap();
    let names = ["stays", "blip", "notified", "back", "swallowed", "both-stays", "both-blip"];
    let units = names.map(|name| world.unit(name));
    world.hear_all(&units, world.at(0)).await;
    world.heard_until(world.hours(49)).await;
    world.roll.check_deadlines(&units, world.hours(49)).await.unwrap();
    world.seal_outbox(&both, world.hours(49)).await;
    for interval in [Timestamp::NEVER, world.hours(41)] {
        let event = OutboxEvent::Blind(Interval { from: world.hours(40), to: interval });
        let join = [Join { groups: vec![Group { key: "blind".into(), labels: Labels::new() }], event }];
        world
            .groups()
            .join(&join, &Destinations::all(AT_ONCE, &both), &Capacity::NONE, world.hours(49))
            .await
            .unwrap();
    }
    // A kind that is still blind.
    let lasting = OutboxEvent::Blind(Interval { from: world.hours(40), to: Timestamp::NEVER });
    let of_kind = [Join { groups: vec![group("blind,kind=detector")], event: lasting }];
    world
        .groups()
        .join(&of_kind, &Destinations::all(AT_ONCE, &both), &Capacity::NONE, world.hours(49))
        .await
        .unwrap();
    // Two notifications are delivered, and the receiver fails for the others. A unit of the two is back before the
    // receiver is absent.
    for delivery in world.lease(world.hours(49)).await {
        let is_notified = |record: &OfflineRecord| ["notified", "back"].contains(&record.unit.as_str());
        if delivery.offline.iter().any(is_notified) {
            world.deliveries().delivered(&[delivery], world.hours(49)).await.unwrap();
        } else {
            world.deliveries().retry_later(&delivery, world.hours(50)).await.unwrap();
        }
    }
    for name in ["back", "swallowed"] {
        world.hear(&world.unit(name), world.hours(49)).await;
    }
    world.seal_outbox(&both, world.hours(50)).await;
    world.deliveries().register_receivers(&mail, world.hours(50)).await.unwrap();
    for name in ["blip", "notified", "both-blip"] {
        world.hear(&world.unit(name), world.hours(51)).await;
    }
    world.seal_outbox(&mail, world.hours(51)).await;

    let now = world.hours(52);
    for name in &both {
        let (another, _) = world.another().await;
        StoredDeliveries::new(another.clone()).register_receivers(&both, now).await.unwrap();
        // A crash halfway is the same as a pause.
        let past = StoredDeliveries::new(another.clone()).bring_up_to_date(name, now).await.unwrap();
        assert_eq!(past, if name == "hook" { 4 } else { 0 }, "{name}");
        assert_eq!(
            StoredDeliveries::new(another.clone()).bring_up_to_date(name, now).await.unwrap(),
            0,
            "it is no longer absent"
        );
    }
    let notified = world.deliver_all("hook", now).await;
    let mut offline = notified
        .iter()
        .flat_map(|delivery| &delivery.offline)
        .map(|one| one.unit.as_str())
        .collect::<Vec<_>>();
    offline.sort();
    assert_eq!(offline, ["both-stays", "stays"]);
    let online: Vec<&str> =
        notified.iter().flat_map(|delivery| &delivery.online).map(|one| one.unit.as_str()).collect();
    assert_eq!(online, ["back"]);
    let blind = notified
        .iter()
        .filter(|notified| !notified.blind.is_empty())
        .map(|delivery| delivery.group.key.as_str());
    assert_eq!(blind.collect::<Vec<&str>>(), ["blind,kind=detector"], "blindness that lasts is notified");
    let notified = world.deliver_all("mail", now).await;
    assert_eq!(notified.iter().map(|delivery| delivery.offline.len()).sum::<usize>(), 7, "it was not absent");
    assert_eq!(notified.iter().map(|delivery| delivery.online.len()).sum::<usize>(), 5);
    // Later notifications are as usual.
    for name in ["stays", "both-stays", "blip"] {
        world.hear(&world.unit(name), world.hours(53)).await;
    }
    world.seal_outbox(&both, world.hours(53)).await;
    let notified = world.deliver_all("hook", world.hours(53)).await;
    let mut online = notified
        .iter()
        .flat_map(|delivery| &delivery.online)
        .map(|one| one.unit.as_str())
        .collect::<Vec<_>>();
    online.sort();
    assert_eq!(online, ["both-stays", "stays"]);
    assert_eq!(world.deliveries().backlog(&world.partitions(), "hook").await.unwrap(), Backlog::default());
}

impl<G: Ground> World<G> {
    /// Outbox entries join a group for each unit, or for a prefix of names, and are sealed.
    async fn seal_outbox(&self, receivers: &[String], now: Timestamp) {
        let entries = self.outbox().await;
        let join = |entry: &rollcall::store::OutboxEntry| {
            let unit = entry.event.record().map(|record| record.unit.as_str());
            let key = unit.map_or("blind", |unit| unit.split('-').next().unwrap());
            Join { groups: vec![group(key)], event: entry.event.clone() }
        };
        let joins: Vec<Join> = entries.iter().map(join).collect();
        let to = Destinations::all(AT_ONCE, receivers);
        let joined = self.groups().join(&joins, &to, &Capacity::NONE, now).await.unwrap();
        self.groups().seal(&self.partitions(), &to, now).await.unwrap();
        let positions: Vec<rollcall::store::Position> =
            entries.into_iter().map(|entry| entry.position).collect();
        self.engine.remove_entries(&positions, &joined.groups).await.unwrap();
    }

    /// Delivers the whole backlog of a receiver.
    async fn deliver_all(&self, receiver: &str, now: Timestamp) -> Vec<Delivery> {
        let mut notified = Vec::new();
        for _ in 0..1000 {
            let leased =
                self.deliveries().lease(&self.partitions(), receiver, now, now + MINUTE, 100).await.unwrap();
            let waiting = self.deliveries().backlog(&self.partitions(), receiver).await.unwrap().waiting;
            if leased.is_empty() && waiting == 0 {
                return notified;
            }
            self.deliveries().delivered(&leased, now).await.unwrap();
            notified.extend(leased);
        }
        panic!("there is something left for {receiver} after all of this: {notified:?}");
    }
}

/// How many silences and returns each delivery has, how many silences of its group last, and since when it counts.
fn sizes(delivered: &[Delivery]) -> Vec<(usize, usize, Option<u64>, Option<Timestamp>)> {
    let size = |delivery: &Delivery| {
        let GroupContext { lasting, since, .. } = delivery.situation;
        (delivery.offline.len(), delivery.online.len(), lasting, since)
    };
    delivered.iter().map(size).collect()
}

pub async fn ten_thousand_silences_are_one_notification_and_an_update_says_how_many_last<G: Ground>(
    world: World<G>,
) {
    let pace = Pace { is_shared: true, ..Pace::new(MINUTE, 5 * MINUTE) };
    // The last units fall silent after the notification.
    let silence = |(number, unit)| offline(unit, world.at(if number < 10_020 { 0 } else { 5_000 }));
    let records: Vec<OfflineRecord> = world.units(10_023).iter().enumerate().map(silence).collect();
    let all: Vec<&OfflineRecord> = records.iter().collect();
    let (first, later) = all.split_at(10_020);
    world.join_at(first, pace, world.at(0)).await;
    let sealed_at = world.at(60_000);
    while world.seal_at(pace, sealed_at).await > 0 {}
    let delivered = delivered_to(&world, "hook", sealed_at).await;
    let expected = [(10_000, 0, Some(10_000), None), (20, 0, Some(10_020), Some(sealed_at))];
    assert_eq!(sizes(&delivered), expected, "more than ten thousand are split");
    let names: HashSet<String> =
        delivered.iter().flat_map(|one| &one.offline).map(|record| record.id.to_string()).collect();
    assert_eq!(names.len(), 10_020, "each is notified once");
    let back = [back(&records[7], Closing::Return), back(&records[9000], Closing::Return)];
    world.join_at(later, pace, world.at(70_000)).await;
    world.join_at(&back.iter().collect::<Vec<_>>(), pace, world.at(80_000)).await;
    let update = sealed_at + 5 * MINUTE;
    assert_eq!(world.seal_at(pace, update - Duration::from_millis(1)).await, 0);
    world.seal_at(pace, update).await;
    let delivered = delivered_to(&world, "hook", update).await;
    assert_eq!(sizes(&delivered), [(3, 2, Some(10_021), Some(sealed_at))]);
}

pub async fn a_long_blind_interval_is_notified_at_once_and_by_itself<G: Ground>(world: World<G>) {
    let (gap, tell_after) = (Duration::from_secs(3), Duration::from_secs(300));
    world.heard_until(world.hours(1)).await;
    world.canary(world.hours(1) + tell_after, gap, tell_after).await.unwrap();
    assert_eq!(world.outbox().await, [], "300 s are not longer than 300 s");
    let interval = world.canary(world.hours(2), gap, tell_after).await.unwrap();
    let outbox = world.outbox().await;
    assert_eq!(outbox[0].event, OutboxEvent::Blind(interval));
    let pace = Pace::new(MINUTE, MINUTE);
    let join = Join { groups: vec![group("blind")], event: outbox[0].event.clone() };
    for _ in 0..2 {
        let joins = std::slice::from_ref(&join);
        world
            .groups()
            .join(joins, &Destinations::all(pace, &["hook".to_owned()]), &Capacity::NONE, world.hours(2))
            .await
            .unwrap();
        world.seal(world.hours(2)).await;
    }
    let notified = world.lease(world.hours(2)).await;
    assert_eq!(notified.len(), 1);
    let Interval { from, .. } = notified[0].blind[0];
    assert_eq!((from, notified[0].offline.len(), notified[0].online.len()), (interval.from, 0, 0));
}

pub async fn the_same_members_give_the_same_id<G: Ground>(world: World<G>) {
    // The id is the same on every engine and by every path, because receivers know it.
    let id = "ntf_f184568f26713d8c139b599a.hook";
    let off = offline(&world.unit("a"), world.at(0));
    let twin = World::<G>::new().await;
    let one = world.sealed(&[&off], world.at(5)).await;
    let two = twin.sealed(&[&off], twin.at(9)).await;
    assert_eq!([&*one[0].id, &*two[0].id], [id; 2], "sealed as it joins");
    let waiting = World::<G>::new().await;
    waiting.join_at(&[&off], Pace::new(MINUTE, MINUTE), waiting.at(0)).await;
    waiting.seal(waiting.hours(1)).await;
    assert_eq!(waiting.lease(waiting.hours(1)).await[0].id, id, "sealed after its wait");
    let handing = World::<G>::new().await;
    let joins = [Join { groups: vec![group("g")], event: OutboxEvent::Record(off) }];
    let room = Capacity { most: vec![1], until: handing.hours(1) };
    let hook = ["hook".to_owned()];
    let joined = handing
        .groups()
        .join(&joins, &Destinations::all(AT_ONCE, &hook), &room, handing.at(5))
        .await
        .unwrap();
    let handed_out = joined.deliveries.into_iter().chain(handing.lease(handing.at(5)).await);
    assert_eq!(handed_out.map(|delivery| delivery.id).collect::<Vec<_>>(), [id], "handed out as it joins");
    let on = twin.sealed(&[&offline(&twin.unit("b"), twin.at(0))], twin.at(10)).await;
    assert_eq!(on, [], "its lane is busy");
    StoredDeliveries::new(twin.engine.clone()).delivered(&two, twin.at(11)).await.unwrap();
    assert_ne!(twin.lease(twin.at(12)).await[0].id, one[0].id);
}
