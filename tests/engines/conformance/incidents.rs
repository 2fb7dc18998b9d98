//! Promises about the incidents of which a notification tells.

use std::time::Duration;

use rollcall::clock::Timestamp;
use rollcall::presence::{Closing, FirstUnit, Incident, OfflineRecord};
use rollcall::store::{Capacity, Delivery, Destinations, Group, Join, OutboxEvent, Pace, StoredDeliveries};

use super::alerts::{back, offline};
use super::ground::Ground;
use super::world::World;

const MINUTE: Duration = Duration::from_secs(60);
const SHARED: Pace = Pace { is_shared: true, ..Pace::new(MINUTE, MINUTE) };
const GROUP: &str = "site=north";

impl<G: Ground> World<G> {
    fn at_hook() -> Destinations {
        Destinations::all(SHARED, &["hook".to_owned()])
    }

    async fn join_north(&self, record: OfflineRecord, now: Timestamp) {
        let group = Group { key: GROUP.into(), labels: Default::default() };
        let joins = [Join { groups: vec![group], event: OutboxEvent::Record(record) }];
        self.groups().join(&joins, &Self::at_hook(), &Capacity::NONE, now).await.unwrap();
    }

    /// The silence of a unit at this hour, and its notification.
    async fn notification(&self, name: &str, hour: u32) -> (OfflineRecord, Delivery) {
        let record = offline(&self.unit(name), self.hours(hour));
        self.join_north(record.clone(), self.hours(hour)).await;
        let now = self.hours(hour) + 2 * MINUTE;
        self.groups().seal(&self.partitions(), &Self::at_hook(), now).await.unwrap();
        let leased = self.deliveries().lease(&self.partitions(), "hook", now, now + MINUTE, 1).await.unwrap();
        (record, leased.into_iter().next().unwrap())
    }
}

pub async fn a_notification_tells_of_the_incidents_that_it_was_judged_by_first<G: Ground>(world: World<G>) {
    let now = world.hours(1);
    let (_, delivery) = world.notification("a", 1).await;
    assert!(!delivery.situation.is_judged);
    let incident = |value: &str| Incident {
        label: "site".to_owned(),
        value: value.to_owned(),
        offline: 7,
        units: 9,
        since: now,
        first: FirstUnit { kind: "gateway".to_owned(), unit: "gw 7".to_owned() },
        still_offline: 7,
        until: None,
        notified_from: None,
        acknowledged_at: None,
    };
    let told = vec![incident("a \"hall\" 3\n"), incident("b")];
    let engine = &world.engine;
    assert_eq!(StoredDeliveries::new(engine.clone()).judged(&delivery, None).await.unwrap(), None);
    assert_eq!(
        StoredDeliveries::new(engine.clone()).judged(&delivery, Some(&told)).await.unwrap(),
        Some(told.clone())
    );
    assert_eq!(
        StoredDeliveries::new(engine.clone()).judged(&delivery, Some(&[])).await.unwrap(),
        Some(told.clone())
    );
    assert_eq!(
        StoredDeliveries::new(engine.clone()).judged(&delivery, None).await.unwrap(),
        Some(told.clone())
    );
    let later = now + 4 * MINUTE;
    let leased = StoredDeliveries::new(engine.clone())
        .lease(&world.partitions(), "hook", later, later + MINUTE, 1)
        .await
        .unwrap()
        .remove(0);
    let situation = &leased.situation;
    assert!(situation.is_judged);
    assert_eq!([&situation.incident, &situation.replaced], [&Some(told[0].clone()), &Some(told[1].clone())]);
    assert_eq!(Delivery { attempt: 1, situation: delivery.situation.clone(), ..leased.clone() }, delivery);
    StoredDeliveries::new(engine.clone()).delivered(&[leased], later).await.unwrap();
    assert_eq!(
        StoredDeliveries::new(engine.clone()).judged(&delivery, Some(&[])).await.unwrap(),
        None,
        "it is gone"
    );

    let (_, second) = world.notification("b", 2).await;
    assert_eq!(
        StoredDeliveries::new(engine.clone()).judged(&second, Some(&[])).await.unwrap(),
        Some(Vec::new())
    );
    assert_eq!(
        StoredDeliveries::new(engine.clone()).judged(&second, Some(&told)).await.unwrap(),
        Some(Vec::new()),
        "that it has none is final"
    );
}

pub async fn silences_that_last_are_found_by_when_receivers_were_notified<G: Ground>(world: World<G>) {
    let (first, one) = world.notification("a", 1).await;
    world.deliveries().delivered(&[one], world.hours(1) + 2 * MINUTE).await.unwrap();
    let (second, _) = world.notification("b", 2).await;
    let lasting = async |from: Timestamp, before: Option<Timestamp>| {
        let mut lasting = world.groups().lasting(GROUP, from, before).await.unwrap();
        lasting.sort();
        lasting
    };
    let [at_first, at_second] = [1, 2].map(|hour| world.hours(hour) + 2 * MINUTE);
    assert_eq!(lasting(Timestamp::ZERO, None).await, [first.id.clone(), second.id.clone()]);
    assert_eq!(lasting(at_first, Some(at_second)).await, std::slice::from_ref(&first.id));
    assert_eq!(lasting(at_first + Duration::from_millis(1), None).await, std::slice::from_ref(&second.id));
    world.join_north(back(&first, Closing::Return), world.hours(3)).await;
    assert_eq!(lasting(Timestamp::ZERO, None).await, [second.id]);
}
