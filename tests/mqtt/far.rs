//! A broker that is far away: everything is late by the round trip, and nothing is missing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::distance::Distance;
use crate::support::facts::until;
use crate::unheard::{DETECTORS, Engine, REASON, Rollcall, WRITES, World};

const TIMEOUT: &str = "timeout = \"6s\"";

/// A kind with timeouts of a second beside one with 48 hours, on topics without a unit.
const OTHERS: &str = "[[kind]]\nname = \"fast\"\ntopics = [\"meters/fast/{unit}\"]\ntimeout = \"1s\"\n\
                      [[kind]]\nname = \"lazy\"\ntopics = [\"meters/lazy/{unit}\"]\ntimeout = \"48h\"\n";

fn detectors() -> String {
    DETECTORS.replace("timeout = \"3s\"", TIMEOUT)
}

/// A fleet, and a Rollcall at this round trip from the broker.
async fn far(kinds: &str, round_trip: Duration) -> (World, Distance, Rollcall, impl Fn() + use<>) {
    let mut world = World::new(Engine::Embedded);
    world.rules(&[WRITES, "topic read units/#\ntopic read meters/#\ntopic write meters/#\n"]);
    let dies = world.fleet();
    let distance = Distance::to(world.broker.port(), round_trip).await;
    world.way = Some(distance.port());
    let rollcall = world.serve("far", kinds);
    (world, distance, rollcall, move || dies.store(true, Ordering::Relaxed))
}

async fn a_unit_that_dies_far_away_is_told_and_no_other(kinds: &str, filters: usize, round_trip: Duration) {
    let (_world, _distance, rollcall, die) = far(kinds, round_trip).await;
    rollcall.is_ready().await;
    rollcall.knows("detector/dies").await;
    rollcall.knows("detector/alive-19").await;
    die();
    until("the dead unit is reported", async || !rollcall.offline().await.is_empty()).await;
    rollcall.hears_on(10.0).await;
    assert_eq!(rollcall.offline().await, ["dies"]);
    assert!(rollcall.readyz(200, &[]).await);
    // No filter was ever said to be unheard, and each was said once to be heard.
    assert_eq!(rollcall.lines(&["ERROR"]), 0);
    assert_eq!(rollcall.lines(&["the topics of a filter are heard"]), filters);
    assert_eq!(rollcall.lines(&["was blind"]), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_timeout_beside_long_ones_behind_a_slow_link_blinds_no_kind() {
    let kinds = format!("{}{OTHERS}", detectors());
    a_unit_that_dies_far_away_is_told_and_no_other(&kinds, 3, Duration::from_millis(1600)).await;
}

/// The round trip is longer than the timeout of the units, and than the first wait for the broker.
#[tokio::test(flavor = "multi_thread")]
async fn a_round_trip_longer_than_the_timeout_delays_and_blinds_nothing() {
    a_unit_that_dies_far_away_is_told_and_no_other(&detectors(), 1, Duration::from_secs(7)).await;
}

/// The link gets slower, by more than the timeout, and fast again, and its delay varies from piece to piece.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_gets_slower_than_the_timeout_and_jitters_marks_no_living_unit_offline() {
    let (_world, distance, rollcall, die) = far(&detectors(), Duration::from_millis(20)).await;
    rollcall.is_ready().await;
    rollcall.knows("detector/dies").await;
    rollcall.knows("detector/alive-19").await;
    for round_trip in [1600, 8000, 4000] {
        distance.set(Duration::from_millis(round_trip));
        rollcall.hears_on(10.0).await;
        until("it is ready again", async || rollcall.readyz(200, &[]).await).await;
    }
    let stop = tokio_util::sync::CancellationToken::new();
    let jitter = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            distance.set(Duration::from_millis(rand::random_range(400..4000)));
        }
    };
    let told = async {
        rollcall.hears_on(30.0).await;
        assert_eq!(rollcall.offline().await, Vec::<String>::new());
        die();
        until("the dead unit is reported", async || !rollcall.offline().await.is_empty()).await;
        stop.cancel();
    };
    tokio::join!(jitter, told);
    distance.set(Duration::from_millis(20));
    rollcall.hears_on(30.0).await;
    assert_eq!(rollcall.offline().await, ["dies"]);
    rollcall.is_ready().await;
    assert_eq!(rollcall.lines(&["ERROR"]), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_broker_far_away_withholds_is_noticed_and_no_silence() {
    let (world, _distance, rollcall, die) = far(&detectors(), Duration::from_millis(1600)).await;
    rollcall.is_ready().await;
    rollcall.knows("detector/alive-19").await;
    world.rules(&[WRITES]);
    until("it says so", async || rollcall.readyz(503, REASON).await).await;
    die();
    rollcall.hears_on(30.0).await;
    assert_eq!(rollcall.offline().await, Vec::<String>::new());
    assert_eq!(rollcall.lines(&["ERROR", REASON[0]]), 1);
}
