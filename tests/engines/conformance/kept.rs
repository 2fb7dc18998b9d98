//! Deliveries that are kept: attempts on record, dead letters, and waiting notifications.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::fleet::Attempts;
use rollcall::presence::{Closing, Interval, OfflineRecord};
use rollcall::store::{
    ATTEMPT_BYTES, Attempt, AttemptEnd, AttemptMade, AttemptResult, Capacity, Cell, Delivery, Destinations,
    EndedLease, Engine, EntryOrder, Group, Index, Join, MAX_ATTEMPT_BYTES, MeantFor, OutboxEvent, Pace,
    StoredDeliveries, Table, partition_of_group,
};

use super::alerts::{back, delivered_to, offline};
use super::ground::Ground;
use super::pace::{line, returned};
use super::world::World;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

impl<G: Ground> World<G> {
    async fn sealed_in(&self, key: &str, records: &[OfflineRecord], now: Timestamp) -> Vec<Delivery> {
        let group = Group { key: key.to_owned(), labels: [("kind".into(), "detector".into())].into() };
        let join = |record: &OfflineRecord| Join {
            groups: vec![group.clone()],
            event: OutboxEvent::Record(record.clone()),
        };
        let joins: Vec<Join> = records.iter().map(join).collect();
        let hook = Destinations::all(Pace::AT_ONCE, &["hook".to_owned()]);
        self.groups().join(&joins, &hook, &Capacity::NONE, now).await.unwrap();
        self.groups().seal(&self.partitions(), &hook, now).await.unwrap();
        self.leased(now).await
    }

    async fn leased(&self, now: Timestamp) -> Vec<Delivery> {
        self.deliveries().lease(&self.partitions(), "hook", now, now + MINUTE, 100).await.unwrap()
    }

    async fn end(&self, delivery: &Delivery, end: AttemptEnd, answer: &str, now: Timestamp) {
        let attempt = Some(AttemptMade { at: now, took: MINUTE / 60, answer: answer.to_owned() });
        let ended = EndedLease { delivery: Arc::new(delivery.clone()), end, attempt };
        self.deliveries().end_attempts(&[ended], now).await.unwrap();
    }

    fn record_of_attempts(&self) -> Attempts {
        Attempts::new(self.engine.clone())
    }

    /// The attempts on record, newest first.
    async fn attempts(&self, from: Timestamp) -> Vec<Attempt> {
        let order = EntryOrder::NewestFirst;
        let entries = self.record_of_attempts().between(from, self.hours(100), 1000, order).await.unwrap();
        assert!(entries.is_sorted_by_key(|entry| std::cmp::Reverse(entry.at)));
        entries.into_iter().flat_map(|entry| entry.attempts).collect()
    }
}

pub async fn every_attempt_is_on_record_for_a_while<G: Ground>(world: World<G>) {
    let record = offline(&world.unit("a"), world.at(0));
    let (now, later) = (world.hours(1), world.hours(1) + MINUTE);
    let first = world.sealed_in("a", std::slice::from_ref(&record), now).await.remove(0);
    world.end(&first, AttemptEnd::RetryAt(later), &"503 \"later\"".repeat(100), now).await;
    let again = world.leased(later).await.remove(0);
    world.end(&again, AttemptEnd::Delivered, "204 No Content", later).await;
    // An engine that lost an answer repeats the write.
    world.end(&again, AttemptEnd::Delivered, "204 No Content", later).await;
    let other = world.sealed_in("b", &[offline(&world.unit("b"), world.at(0))], later).await.remove(0);
    world.end(&other, AttemptEnd::DeadLetter("410 Gone".to_owned()), "410 Gone", later).await;

    let mut attempts = world.record_of_attempts().of_notification(first.notification()).await.unwrap();
    attempts.sort_by_key(|one| std::cmp::Reverse(one.at));
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    let delivered = &attempts[0];
    assert_eq!((delivered.result, delivered.number, delivered.at), (AttemptResult::Delivered, 2, later));
    assert_eq!((delivered.took_ms, delivered.answer.as_str()), (1000, "204 No Content"));
    assert_eq!((&delivered.offline, &delivered.group), (&vec![record.id.clone()], &"a".to_owned()));
    assert_eq!(&world.record_of_attempts().of_record(&record.id).await.unwrap(), &attempts[..1]);
    assert_eq!((delivered.delivery(), delivered.labels.len()), (first.id, 1));
    assert_eq!((attempts[1].result, attempts[1].number), (AttemptResult::Failed, 1));
    assert!(attempts[1].answer.starts_with("503 \"later\"503") && attempts[1].answer.len() <= 400);
    assert!(attempts[1].offline.is_empty(), "what waits has its content elsewhere");
    let all = world.attempts(now + MINUTE / 2).await;
    assert!(all.iter().any(|one| one.result == AttemptResult::Dead) && all.iter().all(|one| one.at == later));

    // Each leaves with its words.
    let last =
        world.sealed_in("b", &[offline(&world.unit("c"), world.at(0))], world.hours(2)).await.remove(0);
    world.end(&last, AttemptEnd::Delivered, "", world.hours(2) + MINUTE / 2).await;
    let kept = |attempts: Vec<Attempt>| attempts.iter().any(|one| one.result == AttemptResult::Failed);
    let record_of_attempts = world.record_of_attempts();
    assert!(kept(world.attempts(Timestamp::ZERO).await));
    record_of_attempts.forget(&world.partitions(), later).await.unwrap();
    assert!(!kept(world.attempts(Timestamp::ZERO).await));
    assert!(!world.attempts(Timestamp::ZERO).await.is_empty(), "newer ones stay");
    world.forgets_all_attempts().await;
}

impl<G: Ground> World<G> {
    async fn forgets_all_attempts(&self) {
        self.record_of_attempts().forget(&self.partitions(), self.hours(99)).await.unwrap();
        assert_eq!(self.attempts(Timestamp::ZERO).await, []);
        let partitions = self.partitions();
        let written = self.engine.entries(Index::AttemptsWritten, &partitions, i64::MAX, 10).await;
        assert_eq!(written.unwrap(), []);
        for partition in partitions {
            for table in [Table::Attempts, Table::AttemptsOf, Table::Counts] {
                assert_eq!(self.engine.all_cells(table, partition).await.unwrap().len(), 0, "{table}");
            }
        }
    }
}

pub async fn the_newest_letters_and_attempts_of_all_partitions_come_first<G: Ground>(world: World<G>) {
    const GROUPS: u64 = 40;
    for n in 0..GROUPS {
        let key = format!("group-{n}");
        let record = offline(&world.unit(&format!("unit-{n}")), world.at(0));
        let delivery = world.sealed_in(&key, &[record], world.at(n)).await.remove(0);
        world.end(&delivery, AttemptEnd::DeadLetter("410 Gone".to_owned()), "410 Gone", world.at(n)).await;
    }
    for (newest, limit) in [(GROUPS - 1, 1), (GROUPS - 1, 7), (GROUPS - 10, 20), (GROUPS - 1, GROUPS)] {
        let (from, until) = (world.at(0), world.at(newest));
        let last: Vec<Timestamp> = (0..limit).map(|back| world.at(newest - back)).collect();
        let first: Vec<Timestamp> = (0..limit.min(newest + 1)).map(|on| world.at(on)).collect();
        let limit = limit as usize;
        for (order, expected) in [(EntryOrder::NewestFirst, last), (EntryOrder::OldestFirst, first)] {
            let letters =
                world.deliveries().dead_letters_between("hook", from, until, limit, order).await.unwrap();
            assert_eq!(letters.iter().map(|letter| letter.at).collect::<Vec<_>>(), expected);
            let attempts = world.record_of_attempts().between(from, until, limit, order).await.unwrap();
            assert_eq!(attempts.iter().map(|entry| entry.at).collect::<Vec<_>>(), expected);
        }
    }
}

pub async fn the_record_of_attempts_of_a_partition_is_bounded<G: Ground>(world: World<G>) {
    let records: Vec<OfflineRecord> =
        world.units(1000).iter().map(|unit| offline(unit, world.at(0))).collect();
    let delivery = Arc::new(world.sealed_in("a", &records, world.at(0)).await.remove(0));
    let (attempts, mut written) = (world.record_of_attempts(), 0);
    let partition = partition_of_group("a", world.engine.partitions());
    let bytes = || async {
        let cell = Cell { table: Table::Counts, partition, name: ATTEMPT_BYTES.to_owned() };
        let stored = world.engine.read_cells(&[cell]).await.unwrap().remove(0);
        String::from_utf8(stored.unwrap()).unwrap().parse::<usize>().unwrap()
    };
    for n in 0.. {
        let attempt = Some(AttemptMade { at: world.at(n), took: HOUR, answer: String::new() });
        let ended = EndedLease { delivery: delivery.clone(), end: AttemptEnd::Delivered, attempt };
        let (ended, before) = (vec![ended; 8], if n == 0 { 0 } else { bytes().await });
        world.deliveries().end_attempts(&ended, world.at(n)).await.unwrap();
        written += bytes().await - before;
        attempts.were_put_on_record(&ended).await.unwrap();
        if written > MAX_ATTEMPT_BYTES * 3 / 2 {
            break;
        }
    }
    let kept = bytes().await;
    assert!(kept <= MAX_ATTEMPT_BYTES && kept > MAX_ATTEMPT_BYTES / 2, "{kept} of {written}");
    let oldest = attempts.between(world.at(0), world.hours(9), 1, EntryOrder::OldestFirst).await.unwrap();
    assert!(oldest[0].at > world.at(0), "the oldest are gone");
    world.forgets_all_attempts().await;
}

pub async fn a_dead_letter_is_delivered_again_under_its_id_and_can_be_purged<G: Ground>(world: World<G>) {
    let record = offline(&world.unit("a"), world.at(0));
    let first = world.sealed_in("a", std::slice::from_ref(&record), world.at(1)).await.remove(0);
    let id = first.notification();
    world.deliveries().dead_letter(&first, "410 Gone", world.at(2)).await.unwrap();
    let letters = async |from, until| {
        world
            .deliveries()
            .dead_letters_between("hook", from, until, 10, EntryOrder::NewestFirst)
            .await
            .unwrap()
    };
    assert_eq!(letters(world.at(3), world.hours(1)).await, []);
    let letter = letters(world.at(2), world.at(2)).await.remove(0);
    assert_eq!(world.deliveries().letter("hook", id).await.unwrap().as_ref(), Some(&letter));
    let given_up = async |receiver| {
        world.deliveries().given_up(receiver, &[(&first.group, &record)]).await.unwrap().remove(0)
    };
    assert_eq!((given_up("hook").await.as_deref(), given_up("mail").await), (Some(id), None));

    assert!(world.deliveries().replay(&letter.delivery, world.at(3)).await.unwrap());
    assert!(!world.deliveries().replay(&letter.delivery, world.at(3)).await.unwrap(), "it waits already");
    assert_eq!(world.deliveries().letter("hook", id).await.unwrap(), None);
    let page = world.deliveries().waiting("hook", None).await.unwrap();
    let waiting: Vec<(&str, u32)> =
        page.waiting.iter().map(|one| (one.delivery.id.as_str(), one.delivery.attempt)).collect();
    assert_eq!((waiting, page.waiting[0].next), (vec![(first.id.as_str(), 0)], Some(world.at(3))));
    let again = world.leased(world.at(3)).await;
    assert_eq!(again, [Delivery { attempt: 1, ..first.clone() }]);
    assert_eq!(given_up("hook").await, None, "it may be taken");
    world.deliveries().delivered(&again, world.at(4)).await.unwrap();
    assert_eq!(world.leased(world.hours(1)).await, []);
    // Its receiver knows of the silence now, so it is notified of the return.
    let returned = back(&record, Closing::Return);
    let notified = world.sealed_in("a", std::slice::from_ref(&returned), world.hours(1)).await;
    assert_eq!(notified[0].online, [returned]);

    // A delivered notification can be replayed too, while another of its group waits.
    assert!(world.deliveries().replay(&first, world.hours(1)).await.unwrap());
    assert_eq!(world.deliveries().waiting("hook", None).await.unwrap().waiting.len(), 2);
    world.deliveries().delivered(&notified, world.hours(1)).await.unwrap();
    let again = world.leased(world.hours(1)).await;
    assert_eq!((again.len(), &again[0].id, &again[0].offline), (1, &first.id, &vec![record.clone()]));
    world.deliveries().dead_letter(&again[0], "410 Gone", world.hours(1)).await.unwrap();
    let letters = world.deliveries().dead_letters("hook", 10).await.unwrap();
    assert_eq!(world.deliveries().purge(&letters).await.unwrap(), 1);
    assert_eq!(world.deliveries().purge(&letters).await.unwrap(), 0);
    assert_eq!(world.deliveries().kept().await.unwrap(), []);
    assert_eq!(given_up("hook").await.as_deref(), Some(id), "as long as the silence lasts");
}

/// Several notifications are queued in order, notifications of a lane together; a waiting notification is not queued
/// twice.
pub async fn notifications_of_many_lanes_and_receivers_are_queued_together<G: Ground>(world: World<G>) {
    let of = |id: &str, receiver: &str, group: &str| {
        let record = back(&offline(&world.unit(id), world.at(0)), Closing::Removed);
        let group = Group { key: group.to_owned(), labels: Default::default() };
        let delivery = Delivery::new(format!("rmv_{id}.{receiver}"), receiver, group, world.at(1));
        Delivery { online: vec![record], ..delivery }
    };
    // A list shows the first hundred of a lane.
    let ids: Vec<String> = (0..90).map(|number| format!("u{number:03}")).collect();
    let receivers = ["hook", "mail"];
    let in_one = ids.iter().flat_map(|id| receivers.map(|receiver| of(id, receiver, "one")));
    let own = ids[..20].iter().map(|id| of(&format!("own-{id}"), "hook", &format!("group-{id}")));
    let all: Vec<Delivery> = in_one.chain(own).collect();
    assert_eq!(world.deliveries().replay_all(&all, world.at(2)).await.unwrap(), vec![true; all.len()]);
    let again =
        world.deliveries().replay_all(&[&all[..2], &[of("new", "hook", "one")]].concat(), world.at(3)).await;
    assert_eq!(again.unwrap(), [false, false, true]);
    for receiver in receivers {
        let (mut after, mut waiting) = (None, Vec::new());
        loop {
            let page = world.deliveries().waiting(receiver, after.as_deref()).await.unwrap();
            waiting.extend(page.waiting.into_iter().map(|one| one.delivery));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let of_one =
            waiting.iter().filter(|one| one.group.key == "one").map(|one| one.notification().to_owned());
        let new = (receiver == "hook").then(|| "rmv_new".to_owned());
        let expected: Vec<String> = ids.iter().map(|id| format!("rmv_{id}")).chain(new).collect();
        assert_eq!(of_one.collect::<Vec<_>>(), expected, "{receiver}");
        assert!(waiting.iter().all(|one| one.online.len() == 1), "each has its record");
    }
}

/// A return that waits since before the dead letter is delivered again would come before its silence.
pub async fn returns_before_a_dead_letter_that_is_delivered_again_are_left_out<G: Ground>(world: World<G>) {
    let [a, b, c] = ["a", "b", "c"].map(|id| offline(&world.unit(id), world.at(0)));
    let letter = world.sealed_in("group", &[a.clone(), b.clone()], world.at(1)).await.remove(0);
    world.deliveries().dead_letter(&letter, "410 Gone", world.at(2)).await.unwrap();
    let under_way = world.sealed_in("group", std::slice::from_ref(&c), world.at(3)).await;
    assert_eq!(under_way[0].offline, [c]);
    assert_eq!(world.sealed_in("group", &[back(&a, Closing::Return)], world.at(4)).await, []);
    assert!(world.deliveries().replay(&letter, world.at(5)).await.unwrap());
    let returned = back(&b, Closing::Return);
    assert_eq!(world.sealed_in("group", std::slice::from_ref(&returned), world.at(6)).await, []);
    world.deliveries().delivered(&under_way, world.at(7)).await.unwrap();
    assert_eq!(world.leased(world.at(7)).await, [], "the first return is left out");
    let again = world.leased(world.at(7)).await;
    assert_eq!(again[0].id, letter.id);
    world.deliveries().delivered(&again, world.at(8)).await.unwrap();
    assert_eq!(world.leased(world.at(8)).await[0].online, [returned]);
}

pub async fn what_waits_in_a_group_can_be_ended_in_its_order_without_a_lease<G: Ground>(world: World<G>) {
    let records: Vec<OfflineRecord> = world.units(3).iter().map(|unit| offline(unit, world.at(0))).collect();
    for (at, record) in records.iter().enumerate() {
        let leased = world.sealed_in("a", std::slice::from_ref(record), world.at(at as u64)).await;
        for delivery in leased {
            world.deliveries().retry_later(&delivery, world.at(2)).await.unwrap();
        }
    }
    let (other, _) = world.another().await;
    let page = StoredDeliveries::new(other.clone()).waiting("hook", None).await.unwrap();
    let told: Vec<_> = page.waiting.iter().flat_map(|one| one.delivery.offline.clone()).collect();
    assert_eq!(told, records);
    assert_eq!(page.waiting.iter().map(|one| one.next.is_some()).collect::<Vec<_>>(), [true, false, false]);
    for twice in [0, 0, 1] {
        let delivery = Arc::new(page.waiting[twice].delivery.clone());
        let attempt = Some(AttemptMade { at: world.at(5), took: MINUTE, answer: "in digest".to_owned() });
        StoredDeliveries::new(other.clone())
            .end_attempts(&[EndedLease { delivery, end: AttemptEnd::Delivered, attempt }], world.at(5))
            .await
            .unwrap();
    }
    let left = world.leased(world.at(6)).await;
    assert_eq!(left.iter().map(|one| &one.offline).collect::<Vec<_>>(), [&records[2..]]);
}

pub async fn what_waits_goes_to_the_fallback_once<G: Ground>(world: World<G>) {
    let since = world.deliveries().down_since("hook", world.at(1)).await.unwrap();
    assert_eq!(
        (since, world.deliveries().down_since("hook", world.at(5)).await.unwrap()),
        (world.at(1), since)
    );
    let records: Vec<OfflineRecord> = world.units(3).iter().map(|unit| offline(unit, world.at(0))).collect();
    let first = world.sealed_in("a", &records[..1], world.at(1)).await.remove(0);
    let meant_for = MeantFor { receiver: "hook".to_owned(), since };
    let fall_back = async |engine: &Arc<dyn Engine>, now| {
        StoredDeliveries::new(engine.clone())
            .fall_back(&world.partitions(), &meant_for, "mail", now)
            .await
            .unwrap()
    };
    let (other, _) = world.another().await;
    assert_eq!(fall_back(&world.engine, world.at(2)).await, 1);
    assert_eq!((fall_back(&other, world.at(2)).await, fall_back(&world.engine, world.at(2)).await), (0, 0));
    // Other notifications of the same group follow, and one of another group.
    assert_eq!(world.sealed_in("a", &records[1..2], world.at(3)).await, []);
    let third = world.sealed_in("b", &records[2..], world.at(3)).await;
    assert_eq!((fall_back(&other, world.at(4)).await, fall_back(&world.engine, world.at(4)).await), (2, 0));
    let mut copies = Vec::new();
    for _ in 0..2 {
        let now = world.at(5);
        let leased =
            world.deliveries().lease(&world.partitions(), "mail", now, now + MINUTE, 10).await.unwrap();
        world.deliveries().delivered(&leased, now).await.unwrap();
        copies.extend(leased);
    }
    assert!(copies.iter().all(|copy| copy.meant_for.as_ref() == Some(&meant_for)), "{copies:?}");
    let mut told: Vec<_> = copies.iter().flat_map(|copy| copy.offline.clone()).collect();
    told.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(told, records);
    assert!(copies.iter().all(|copy| copy.notification() != first.notification()), "an id of its own");
    // The receiver itself still gets its notifications.
    world.deliveries().delivered(&[first, third[0].clone()], world.at(6)).await.unwrap();
    let next = world.leased(world.at(6)).await;
    assert_eq!((next.len(), &next[0].offline, &next[0].meant_for), (1, &vec![records[1].clone()], &None));
    world.deliveries().is_up("hook").await.unwrap();
    assert_eq!(world.deliveries().down_since("hook", world.at(9)).await.unwrap(), world.at(9));
    assert_eq!(fall_back(&world.engine, world.at(9)).await, 0, "what is left was queued before");
    // A fallback that is a receiver of the notification itself needs no copy; one that came to the route later does.
    let both = Destinations::all(Pace::AT_ONCE, &["hook", "mail"].map(str::to_owned));
    let seal = async |key: &str, record: &OfflineRecord, now: Timestamp| {
        let groups = vec![Group { key: key.to_owned(), labels: Default::default() }];
        let joins = [Join { groups, event: OutboxEvent::Record(record.clone()) }];
        world.groups().join(&joins, &both, &Capacity::NONE, now).await.unwrap();
    };
    seal("c", &offline(&world.unit("c"), world.at(0)), world.at(9)).await;
    assert_eq!(fall_back(&world.engine, world.at(10)).await, 0);
    world.sealed_in("d", &[offline(&world.unit("d"), world.at(0))], world.at(10)).await;
    seal("d", &offline(&world.unit("e"), world.at(0)), world.at(11)).await;
    assert_eq!(fall_back(&world.engine, world.at(11)).await, 1, "its route names the fallback since");
}

pub async fn a_fallback_is_notified_of_the_end_of_blindness_that_it_was_notified_of<G: Ground>(
    world: World<G>,
) {
    let blind = |to: Timestamp| OutboxEvent::Blind(Interval { from: world.at(0), to });
    let names = ["hook", "mail", "pager"].map(str::to_owned);
    let own =
        |receivers: &[String]| Destinations::all(Pace::AT_ONCE, receivers).with_receivers(names.to_vec());
    let join = async |event: OutboxEvent, to: &Destinations, now: Timestamp| {
        let groups = vec![Group { key: "blind".to_owned(), labels: Default::default() }];
        world.groups().join(&[Join { groups, event }], to, &Capacity::NONE, now).await.unwrap();
        world.groups().seal(&world.partitions(), to, now).await.unwrap();
    };
    let taken = async |receiver: &str, now: Timestamp| {
        let taken = delivered_to(&world, receiver, now).await;
        taken.iter().flat_map(|one| &one.blind).map(Interval::is_over).collect::<Vec<bool>>()
    };
    let since = world.deliveries().down_since("hook", world.at(1)).await.unwrap();
    let meant_for = MeantFor { receiver: "hook".to_owned(), since };
    let fall_back =
        async |now| world.deliveries().fall_back(&world.partitions(), &meant_for, "mail", now).await.unwrap();
    join(blind(Timestamp::NEVER), &own(&names[..1]), world.at(1)).await;
    assert_eq!((fall_back(world.at(2)).await, taken("mail", world.at(3)).await), (1, vec![false]));
    // Another one, that the group of the fallback is not notified of.
    let other = OutboxEvent::Blind(Interval { from: world.at(2), to: Timestamp::NEVER });
    join(other, &own(&names[..1]), world.at(3)).await;
    // A reload has put a pager in the place of the hook, which gets the end all the same.
    join(blind(world.at(4)), &own(&names[2..]), world.at(4)).await;
    assert_eq!(fall_back(world.at(5)).await, 1, "the fallback gets the end itself");
    assert_eq!(taken("mail", world.at(6)).await, [true, false]);
    assert_eq!(taken("hook", world.at(6)).await, [false, false, true]);
    assert_eq!(taken("pager", world.at(6)).await, [true]);
    // What was over before is over: a repetition changes nothing.
    join(blind(world.at(4)), &own(&names), world.at(7)).await;
    for receiver in &names {
        assert!(taken(receiver, world.at(8)).await.is_empty(), "{receiver}");
    }
}

pub async fn a_fallback_is_notified_of_the_returns_of_what_it_was_notified_of<G: Ground>(world: World<G>) {
    let since = world.deliveries().down_since("hook", world.at(1)).await.unwrap();
    let meant_for = MeantFor { receiver: "hook".to_owned(), since };
    let records = ["a", "b"].map(|name| offline(&world.unit(name), world.at(0)));
    let to = Destinations::all(Pace::AT_ONCE, &["hook".to_owned()])
        .with_receivers(["hook", "mail"].map(str::to_owned).to_vec());
    let join = async |record: &OfflineRecord, now: Timestamp| {
        let groups = vec![Group { key: "a".to_owned(), labels: Default::default() }];
        let joins = [Join { groups, event: OutboxEvent::Record(record.clone()) }];
        world.groups().join(&joins, &to, &Capacity::NONE, now).await.unwrap();
        world.groups().seal(&world.partitions(), &to, now).await.unwrap();
    };
    let taken = async |receiver: &str, now: Timestamp| {
        delivered_to(&world, receiver, now).await.iter().map(line).collect::<Vec<String>>()
    };
    let fall_back = async |now| {
        world.deliveries().fall_back(&world.partitions(), &meant_for, "mail", now).await.unwrap();
    };
    for record in &records {
        join(record, world.at(1)).await;
    }
    fall_back(world.at(2)).await;
    assert_eq!(taken("mail", world.at(3)).await, ["off: a, on: ", "off: b, on: "]);
    // Unit a is back while the receiver is down: the fallback gets its return once.
    join(&returned(&records[0]), world.at(4)).await;
    fall_back(world.at(5)).await;
    assert_eq!(taken("mail", world.at(6)).await, ["off: , on: a"]);
    // The other unit is back when the receiver is, too.
    world.deliveries().is_up("hook").await.unwrap();
    assert_eq!(taken("hook", world.at(7)).await.len(), 3);
    join(&returned(&records[1]), world.at(8)).await;
    for receiver in ["hook", "mail"] {
        assert_eq!(taken(receiver, world.at(9)).await, ["off: , on: b"], "{receiver}");
    }
}
