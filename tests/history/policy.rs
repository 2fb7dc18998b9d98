//! A policy tried on the silences of history.

use std::time::Duration;

use rollcall::history::{Database, recorded, written_until};
use rollcall::presence::{Interval, OfflineRecord, Policy};
use rollcall::routing::trial::TrialRules;
use rollcall::routing::{Route, Routes};

use crate::world::{EngineType, SECOND, TIMEOUT, World, units, until};

#[tokio::test(flavor = "multi_thread")]
async fn silences_read_back_as_the_engine_has_them_and_their_policy_decided_each() {
    let mut world = World::new(EngineType::Embedded).await;
    let (all, begin) = (units(60), world.clock.now());
    world.roll.canary_returned(begin).await.unwrap();
    world.hear(&all).await;
    // Half of their silence is blind, and does not count.
    world.pass(TIMEOUT / 2).await;
    world.clock.advance(TIMEOUT);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    world.silence(&all).await;
    world.hear(&all[..20]).await;
    world.pass(100 * SECOND).await;
    world.hear(&all[20..40]).await;
    world.write();
    world.until_alike().await;
    let database = Database::connect(&world.access).await.unwrap();
    until(async || written_until(&database).await.unwrap() > Some(begin)).await;
    let range = Interval { from: begin, to: world.clock.now() + SECOND };
    let read = recorded(&database, &"detector".parse().unwrap(), range).await.unwrap();
    let in_order = |mut records: Vec<OfflineRecord>| {
        records.sort_by(|a, b| a.id.cmp(&b.id));
        records
    };
    assert_eq!(in_order(read.silences.clone()), in_order(world.records().await));
    assert_eq!(read.ledger.intervals(), world.roll.hearing().ledger.intervals());
    let routes = Routes::new(Route::default());
    let rules = |timeout| TrialRules {
        policy: Policy { timeout, grace: Duration::ZERO },
        routes: &routes,
        settle: Duration::ZERO,
        ledger: &read.ledger,
    };
    assert!(read.silences.iter().all(|one| rules(TIMEOUT).has_decided(one)), "{:?}", read.silences[0]);
    let now = world.clock.now();
    let tried = |timeout| read.silences.iter().filter_map(|one| rules(timeout).tried(one, now)).count();
    assert_eq!((tried(TIMEOUT), tried(3 * TIMEOUT)), (60, 0));
    let first = read.silences.iter().filter(|one| one.back_at.is_none_or(|at| at > now - 50 * SECOND));
    assert_eq!(tried(2 * TIMEOUT), first.count(), "the first twenty were back before");
    let none = recorded(&database, &"gate".parse().unwrap(), range).await.unwrap();
    assert!(none.silences.is_empty() && none.losses.is_empty());
}
