//! Units that go offline and come back again and again.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::Clock;
use rollcall::fleet::FlapDetector;
use rollcall::presence::{Closing, FlapNotification, FlapRule, OfflineRecord, Pace, Unit};
use rollcall::store::{
    Capacity, Destination, Destinations, Engine, FollowUps, Group, Join, OutboxEvent, StoredDeliveries,
    StoredGroups,
};
use rollcall::telemetry::Telemetry;

use super::alerts::{back, offline};
use super::ground::Ground;
use super::world::{HOUR, World};

const MINUTE: Duration = Duration::from_secs(60);

fn flapping(engine: &Arc<dyn Engine>) -> FlapDetector {
    let rule = FlapRule { transitions: 4, window: HOUR, stable: 10 * MINUTE };
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    FlapDetector::new(engine.clone(), [("detector".parse().unwrap(), rule)].into(), telemetry)
}

/// A silence that was detected after `minutes` minutes, and its return a minute later.
fn transitions<G: Ground>(world: &World<G>, unit: &Unit, minutes: u64) -> [OfflineRecord; 2] {
    let opened = offline(unit, world.at(60_000 * minutes));
    let returned =
        OfflineRecord { back_at: Some(opened.detected_at + MINUTE), ..back(&opened, Closing::Return) };
    [opened, returned]
}

pub async fn a_flapping_unit_is_known_to_every_instance_and_after_a_crash<G: Ground>(mut world: World<G>) {
    let (engine, _) = world.another().await;
    let (one, two) = (flapping(&world.engine), flapping(&engine));
    let (unit, other) = (world.unit("gate"), world.unit("other"));
    let first = transitions(&world, &unit, 0);
    let [opened, returned] = transitions(&world, &unit, 5);
    let batch: Vec<&OfflineRecord> = first.iter().chain([&opened]).collect();
    // Two instances let the same transitions join at the same time: they count once.
    let both = tokio::join!(one.note(&batch), two.note(&batch));
    let plain = vec![FlapNotification::Plain; 3];
    assert_eq!((both.0.unwrap(), both.1.unwrap()), (plain.clone(), plain));
    let noted = two.note(&[&returned, &offline(&other, world.at(0))]).await.unwrap();
    let [FlapNotification::Episode(begun), FlapNotification::Plain] = &noted[..] else { panic!("{noted:?}") };
    assert_eq!(one.note(&[&returned]).await.unwrap(), noted[..1], "again, as after a crash");
    let all = world.partitions();
    let lasting = one.lasting([&unit, &other].into_iter()).await.unwrap();
    assert_eq!(lasting, [(unit.clone(), (**begun).clone())].into());
    drop((one, two, engine));

    world.crash().await;
    let one = flapping(&world.engine);
    assert_eq!(one.all_lasting(&all).await.unwrap(), lasting);
    let stable = returned.back_at.unwrap() + 10 * MINUTE;
    assert_eq!(one.first(&all).await.unwrap(), Some(stable));
    assert_eq!(one.due(&all, stable - MINUTE, 10).await.unwrap().len(), 0);
    let due = one.due(&all, stable, 10).await.unwrap();
    assert_eq!(due.iter().map(|one| &one.name).collect::<Vec<_>>(), [&unit]);
    // A decision has no effect if its unit has changed meanwhile.
    let void = due.into_iter().map(|stored| (stored, None)).collect::<Vec<_>>();
    one.note(&[&transitions(&world, &unit, 10)[0]]).await.unwrap();
    assert_eq!(one.change(&void).await.unwrap(), [false]);
    let forget = one.due(&all, world.hours(9), 10).await.unwrap().into_iter().map(|stored| (stored, None));
    assert_eq!(one.change(&forget.collect::<Vec<_>>()).await.unwrap(), [true, true]);
    assert_eq!((one.first(&all).await.unwrap(), one.all_lasting(&all).await.unwrap().len()), (None, 0));
    an_episode_is_not_reminded_of(&world, (**begun).clone(), opened).await;
}

/// In a group with an episode and a silence.
async fn an_episode_is_not_reminded_of<G: Ground>(
    world: &World<G>,
    begun: OfflineRecord,
    silence: OfflineRecord,
) {
    let (engine, all, now) = (&world.engine, world.partitions(), world.hours(2));
    let root = Destination::new(vec!["hook".to_owned()], Pace::new(Duration::ZERO, Duration::ZERO))
        .with(FollowUps { repeat: Some(HOUR), escalate: Vec::new() });
    let to = Destinations::new(root, Vec::new(), Default::default()).with_receivers(vec!["hook".to_owned()]);
    let group = Group { key: "flapping,all".to_owned(), labels: Default::default() };
    let join = |record| Join { groups: vec![group.clone()], event: OutboxEvent::Record(record) };
    StoredGroups::new(engine.clone())
        .join(&[join(begun), join(silence.clone())], &to, &Capacity::NONE, now)
        .await
        .unwrap();
    let mut told = Vec::new();
    for now in [now + MINUTE, now + HOUR + 2 * MINUTE] {
        while StoredGroups::new(engine.clone()).seal(&all, &to, now).await.unwrap()
            + StoredGroups::new(engine.clone()).remind(&all, &to, now).await.unwrap()
            > 0
        {}
        let leased =
            StoredDeliveries::new(engine.clone()).lease(&all, "hook", now, now + MINUTE, 10).await.unwrap();
        StoredDeliveries::new(engine.clone()).delivered(&leased, now).await.unwrap();
        told.extend(leased.iter().map(|one| (one.reminder, one.offline.len(), one.situation.lasting)));
    }
    assert_eq!(told, [(false, 2, None), (true, 1, None)]);
}
