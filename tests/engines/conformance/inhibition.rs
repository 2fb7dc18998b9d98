//! The units whose silence inhibits others.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::Clock;
use rollcall::fleet::Inhibitions;
use rollcall::presence::{Closing, OfflineRecord};
use rollcall::routing::{InhibitRule, Inhibition, parse_matchers};
use rollcall::store::{Engine, Queries};
use rollcall::telemetry::Telemetry;

use super::alerts::{back, offline};
use super::ground::Ground;
use super::world::{HOUR, World};

fn inhibitions(engine: &Arc<dyn Engine>) -> Inhibitions {
    let [source, target] = ["unit=~\"gate.*\"", "unit=~\".+\""].map(|text| parse_matchers(text).unwrap());
    let rules = [InhibitRule { source, target, equal: Vec::new() }].into();
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    Inhibitions::new(engine.clone(), Inhibition { rules, longest: HOUR }, telemetry)
}

pub async fn units_that_inhibit_others_are_known_to_every_instance_and_survive_a_crash<G: Ground>(
    mut world: World<G>,
) {
    an_open_record_that_was_never_entered_is_found(&world).await;
    let (now, later) = (world.at(0), world.at(0) + Duration::from_secs(60));
    let [gate, other, sensor] = ["gate-1", "gate-2", "s"].map(|name| offline(&world.unit(name), now));
    let (engine, _) = world.another().await;
    let (one, two) = (inhibitions(&world.engine), inhibitions(&engine));
    let open = async |of: &Inhibitions| of.current().await.unwrap().open();
    one.enter([&sensor, &gate].into_iter(), now).await.unwrap();
    two.enter([&other].into_iter(), now).await.unwrap();
    assert_eq!((open(&one).await, open(&two).await), (2, 2));
    // A silence ends; an entry that joins again after a crash changes nothing.
    let ended = OfflineRecord { back_at: Some(later), ..back(&gate, Closing::Return) };
    two.enter([&ended].into_iter(), later).await.unwrap();
    one.enter([&gate].into_iter(), later).await.unwrap();
    assert_eq!((open(&one).await, open(&two).await), (1, 1));
    let by = async |of: &Inhibitions, target: &OfflineRecord| {
        let held = of.current().await.unwrap().held(target, later);
        held.map_or(0, |held| held.by.len())
    };
    assert_eq!((by(&two, &sensor).await, by(&two, &gate).await), (2, 0));
    drop((one, two, engine));

    world.crash().await;
    let one = inhibitions(&world.engine);
    assert_eq!((open(&one).await, by(&one, &sensor).await), (1, 2));
    // Compared with the open records, of which there are none: both have ended. An hour later they are forgotten.
    let queries: &dyn Queries = &*world.engine;
    one.compare(queries, later).await.unwrap();
    assert_eq!((open(&one).await, by(&one, &sensor).await), (0, 2));
    one.compare(queries, later + HOUR).await.unwrap();
    assert!(one.current().await.unwrap().is_empty());
}

async fn an_open_record_that_was_never_entered_is_found<G: Ground>(world: &World<G>) {
    let (unit, one) = (world.unit("gate-3"), inhibitions(&world.engine));
    world.hear(&unit, world.at(0)).await;
    world.heard_until(world.hours(50)).await;
    world.check(&unit, world.hours(49)).await;
    one.compare(&*world.engine, world.hours(49)).await.unwrap();
    assert_eq!(one.current().await.unwrap().open(), 1);
    // The end of the silence is noted too, and forgotten when it inhibits no more.
    world.hear(&unit, world.hours(50)).await;
    one.compare(&*world.engine, world.hours(50)).await.unwrap();
    let inhibitors = one.current().await.unwrap();
    assert_eq!((inhibitors.open(), inhibitors.is_empty()), (0, false));
    one.compare(&*world.engine, world.hours(51)).await.unwrap();
    assert!(one.current().await.unwrap().is_empty());
}
