//! The mass-offline breaker.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::{MassBreaker, Silences};
use rollcall::presence::{
    Declared, FleetCount, Heartbeat, MassOfflineRule, Override, Registration, ReleaseReason, Trip, Unit,
};
use rollcall::store::{Audited, Engine};
use rollcall::telemetry::Telemetry;

use super::ground::Ground;
use super::silences::wanted;
use super::world::{HOUR, World};

const SECOND: Duration = Duration::from_secs(1);
const RULE: MassOfflineRule =
    MassOfflineRule { share: 0.5, min_units: 10, window: Duration::from_secs(60), max_hold: HOUR };

fn breaker(engine: &Arc<dyn Engine>, rule: MassOfflineRule) -> MassBreaker {
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let silences = Arc::new(Silences::new(engine.clone()));
    MassBreaker::new(Some((rule, engine.clone())), engine.clone(), engine.clone(), silences, telemetry)
}

fn why(trip: Option<Trip>) -> Option<ReleaseReason> {
    trip.unwrap().released.map(|over| over.why)
}

impl<G: Ground> World<G> {
    /// These units were heard at this hour, and are offline 49 hours later.
    async fn fall_silent(&self, units: &[Unit], heard: u32) -> Timestamp {
        let now = self.hours(heard + 49);
        self.hear_all(units, self.hours(heard)).await;
        self.heard_until(now).await;
        self.roll.check_deadlines(units, now).await.unwrap();
        now
    }
}

pub async fn the_breaker_trips_once_for_all_instances_and_is_released_once<G: Ground>(world: World<G>) {
    let units = world.units(10);
    let (engine, _) = world.another().await;
    let (one, two) = (breaker(&world.engine, RULE), breaker(&engine, RULE));
    world.hear_all(&units, world.at(0)).await;
    world.hear_all(&units[6..], world.hours(40)).await;
    world.heard_until(world.hours(50)).await;
    let now = world.hours(49);
    world.roll.check_deadlines(&units[..3], now).await.unwrap();
    let count = async |since| world.engine.count_since(since).await.unwrap();
    assert_eq!(count(now).await, FleetCount { online: 7, silent: 3 });
    assert_eq!(one.judge(now).await.unwrap(), None, "3 of 10");
    // The second half falls silent within the window, and no moment later.
    let now = now + 59 * SECOND;
    world.roll.check_deadlines(&units[3..6], now).await.unwrap();
    assert_eq!(count(world.hours(49)).await, FleetCount { online: 4, silent: 6 });
    assert_eq!(count(now).await, FleetCount { online: 4, silent: 3 });
    assert_eq!(one.judge(now + 2 * SECOND).await.unwrap(), None, "3 of 7 within a minute");
    let small = breaker(&engine, MassOfflineRule { min_units: 11, ..RULE });
    assert_eq!(small.judge(now).await.unwrap(), None, "a small fleet");
    assert_eq!(one.last().await.unwrap(), None);
    let (a, b) = tokio::join!(one.judge(now), two.judge(now));
    let trip = a.unwrap().unwrap();
    assert_eq!((b.unwrap().as_ref(), trip.offline, trip.units, trip.at), (Some(&trip), 6, 10, now));
    assert_eq!(two.judge(now + SECOND).await.unwrap(), Some(trip.clone()), "it holds");

    // The trip is notified once, and released when all units are back.
    let notified = trip.notified(6);
    one.notified(&trip, &notified).await.unwrap();
    two.notified(&trip, &trip.notified(9)).await.unwrap();
    assert_eq!(two.last().await.unwrap(), Some(notified));
    world.hear_all(&units[..5], now + SECOND).await;
    assert_eq!(why(two.end_if_over(now + SECOND).await.unwrap()), None, "one of six is missing");
    world.hear_all(&units[5..6], now + SECOND).await;
    let (a, b) = tokio::join!(one.end_if_over(now + SECOND), two.end_if_over(now + SECOND));
    let over = a.unwrap();
    assert_eq!((&over, over.as_ref().unwrap().is_notified), (&b.unwrap(), false));
    assert_eq!(why(over), Some(ReleaseReason::Returned));

    // After a release by hand, the units that were held do not trip the breaker again. A new instance knows that.
    let now = world.fall_silent(&units, 50).await;
    assert!(one.judge(now).await.unwrap().is_some_and(|trip| trip.offline == 10));
    let new = breaker(&engine, RULE);
    assert!(new.held().await.unwrap().is_some());
    assert!(new.release(("ana", "seen"), now + SECOND).await.unwrap());
    assert!(!one.release(("ana", "seen"), now + SECOND).await.unwrap());
    assert_eq!((one.held().await.unwrap(), two.judge(now + 2 * SECOND).await.unwrap()), (None, None));
    let audit = Silences::new(engine.clone()).audit(10).await.unwrap();
    assert_eq!(audit.iter().map(|entry| entry.change).collect::<Vec<_>>(), [Audited::BreakerReleased]);

    // After a release by time, units that fall silent later may trip the breaker again.
    let now = world.fall_silent(&units, 100).await;
    assert!(two.judge(now).await.unwrap().is_some());
    assert_eq!(why(one.end_if_over(now + HOUR - SECOND).await.unwrap()), None);
    assert_eq!(why(one.end_if_over(now + HOUR).await.unwrap()), Some(ReleaseReason::Time));

    // Units that operators silenced do not trip the breaker.
    let silences = Silences::new(engine.clone());
    let works = wanted("unit=~\"unit-.*\"", world.hours(150), world.hours(300));
    silences.put(None, works, "ana", world.hours(150)).await.unwrap();
    let now = world.fall_silent(&units, 150).await;
    assert_eq!(one.judge(now).await.unwrap(), None);
}

pub async fn units_that_operators_silenced_are_in_no_figure_of_the_breaker_and_do_not_keep_it<G: Ground>(
    world: World<G>,
) {
    let units = world.units(20);
    let is_covered = |unit: &&Unit| unit.to_string().ends_with(['0', '1', '2', '3', '4']);
    let (covered, others): (Vec<Unit>, Vec<Unit>) = units.iter().cloned().partition(|unit| is_covered(&unit));
    assert_eq!((covered.len(), others.len()), (10, 10));
    let works = wanted("unit=~\"unit-.*[0-4]\"", world.at(0), world.hours(300));
    Silences::new(world.engine.clone()).put(None, works, "ana", world.at(0)).await.unwrap();
    let one = breaker(&world.engine, RULE);
    let now = world.fall_silent(&units, 1).await;
    let trip = one.judge(now).await.unwrap().expect("all of the ten that count");
    let silent = one.still_silent(&trip).await.unwrap();
    assert_eq!((trip.offline, trip.units, silent), (10, 10, 10));
    assert_eq!(why(one.end_if_over(now + SECOND).await.unwrap()), None);
    world.hear_all(&others, now + SECOND).await;
    let over = one.end_if_over(now + SECOND).await.unwrap();
    assert_eq!(over.as_ref().and_then(|trip| Some(trip.released.as_ref()?.offline)), Some(0));
    assert_eq!(why(over), Some(ReleaseReason::Returned));
}

pub async fn units_that_operators_silence_while_the_breaker_holds_are_as_offline_as_before<G: Ground>(
    world: World<G>,
) {
    let units = world.units(20);
    let one = breaker(&world.engine, RULE);
    let now = world.fall_silent(&units, 1).await;
    let trip = one.judge(now).await.unwrap().expect("all are silent");
    let all = wanted("unit=~\"unit-.*\"", now + SECOND, world.hours(300));
    let silences = Silences::new(world.engine.clone());
    silences.put(None, all, "ana", now + SECOND).await.unwrap();
    assert_eq!(why(one.end_if_over(now + 2 * SECOND).await.unwrap()), None, "none of them is back");
    assert_eq!(one.still_silent(&trip).await.unwrap(), 20);
    world.hear_all(&units[..18], now + 3 * SECOND).await;
    let over = one.end_if_over(now + 3 * SECOND).await.unwrap().and_then(|trip| trip.released).unwrap();
    assert_eq!((over.why, over.offline), (ReleaseReason::Returned, 2));
}

pub async fn units_that_were_registered_a_moment_ago_neither_trip_the_breaker_nor_hide_a_mass<G: Ground>(
    world: World<G>,
) {
    let units = world.units(160);
    let (fleet, imported) = units.split_at(100);
    let (one, young) = (breaker(&world.engine, RULE), breaker(&world.engine, RULE));
    young.count(world.hours(49) - 59 * SECOND).await.unwrap();
    world.hear_all(fleet, world.at(0)).await;
    one.count(world.hours(49) - 59 * SECOND).await.unwrap();
    let then = world.hours(49) - 20 * SECOND;
    world.hear_all(&fleet[50..], then).await;
    let set = Override { timeout: Some(SECOND), grace: Some(Duration::ZERO) };
    for unit in imported {
        let wanted = Registration { set, ..Registration::default() };
        world.roll.register(unit, &wanted, then).await.unwrap();
    }
    let now = world.hours(49);
    world.heard_until(now).await;
    world.roll.check_deadlines(imported, now).await.unwrap();
    let count = world.engine.count_since(then).await.unwrap();
    assert_eq!(count, FleetCount { online: 100, silent: 60 });
    assert_eq!(one.judge(now).await.unwrap(), None, "60 units that were never heard hold nothing");
    assert_eq!(young.judge(now).await.unwrap(), None, "nor do they in a fleet that is as young");
    world.roll.check_deadlines(&fleet[..50], now).await.unwrap();
    let trip = one.judge(now).await.unwrap().expect("a half of the hundred that are known");
    assert_eq!((trip.offline, trip.units), (50, 100));
}

pub async fn units_that_nobody_knew_a_minute_ago_neither_trip_the_breaker_nor_hide_a_mass<G: Ground>(
    world: World<G>,
) {
    let units = world.units(130);
    let (fleet, invented) = units.split_at(30);
    let one = breaker(&world.engine, RULE);
    world.hear_all(fleet, world.at(0)).await;
    one.count(world.hours(49) - 59 * SECOND).await.unwrap();
    // All invented units fall silent, seconds after they were first heard.
    let now = world.hours(49) - 2 * SECOND;
    world.hear_all(&fleet[15..], now).await;
    let declared = Declared { timeout: Some(SECOND), ..Declared::default() };
    let beat = |unit: &Unit| Heartbeat { declared: declared.clone(), ..world.beat(unit, now) };
    world.roll.hear(&invented.iter().map(beat).collect::<Vec<_>>(), now).await.unwrap();
    let now = world.hours(49);
    world.heard_until(now).await;
    // A key that expires while its unit is checked leaves the unit to the next check.
    for _ in 0..2 {
        world.roll.check_deadlines(invented, now).await.unwrap();
    }
    let count = async |since| world.engine.count_since(since).await.unwrap();
    assert_eq!(count(now).await, FleetCount { online: 30, silent: 100 });
    assert_eq!(one.judge(now).await.unwrap(), None, "a hundred invented units hold nothing");
    // The invented units are heard again, and a half of the fleet falls silent.
    world.hear_all(invented, now + SECOND).await;
    let now = now + SECOND;
    world.roll.check_deadlines(&fleet[..15], now).await.unwrap();
    assert_eq!(count(now).await, FleetCount { online: 115, silent: 15 });
    let trip = one.judge(now).await.unwrap().expect("a half of the thirty that are known");
    assert_eq!((trip.offline, trip.units), (15, 30));
    // Invented units that stay silent do not keep the trip.
    world.heard_until(now + 3 * SECOND).await;
    world.hear_all(&fleet[..15], now + 3 * SECOND).await;
    world.roll.check_deadlines(invented, now + 3 * SECOND).await.unwrap();
    assert_eq!(why(one.end_if_over(now + 3 * SECOND).await.unwrap()), Some(ReleaseReason::Returned));
}
