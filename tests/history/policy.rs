//! A policy tried on history: what is read back is what was, and what is told is what receivers got.

use std::time::Duration;

use rollcall::clock::{Stopwatch, Timestamp};
use rollcall::fleet::Silences;
use rollcall::history::{Database, past_fleet};
use rollcall::presence::{Interval, OfflineRecord, Policy, Registration};
use rollcall::routing::alert_silence::SilenceRequest;
use rollcall::routing::trial::{PastFleet, TrialRules};
use rollcall::routing::{Inhibition, Route, Routes, parse_label_matchers};

use crate::world::{EngineType, MAX_WAIT, SECOND, TIMEOUT, World, units, until};

/// The past up to a moment, once all of it is written.
async fn past(database: &Database, kind: &str, since: Duration, until: Timestamp) -> PastFleet {
    let (kind, started) = (kind.parse().unwrap(), Stopwatch::start());
    loop {
        let past = past_fleet(database, &kind, (since, Some(until)), until).await.unwrap();
        if past.range.to == until {
            return past;
        }
        assert!(started.elapsed() < MAX_WAIT, "written until {}", past.range.to);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_reads_back_as_it_was_and_its_policy_decided_each_silence() {
    let mut world = World::new(EngineType::Embedded).await;
    let (all, begin) = (units(60), world.clock.now());
    world.roll.canary_returned(begin).await.unwrap();
    world.hear(&all).await;
    // Half of their silence is blind, and does not count; nor does the pause of one of them.
    let pause = Interval { from: begin + 10 * SECOND, to: begin + 30 * SECOND };
    let paused = Registration { pause: Some(pause), ..Registration::default() };
    world.roll.register(&all[59], &paused, begin + SECOND).await.unwrap();
    let silences = Silences::new(world.engine.clone());
    let wanted = SilenceRequest {
        matchers: parse_label_matchers("unit=~\"unit-000.\", kind=\"detector\"").unwrap(),
        starts_at: begin,
        ends_at: begin + 1000 * SECOND,
        author: "ana".to_owned(),
        comment: "works from here until there: done".to_owned(),
    };
    let id = silences.put(None, wanted, "ana", begin).await.unwrap();
    world.pass(TIMEOUT / 2).await;
    world.clock.advance(TIMEOUT);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    world.silence(&all).await;
    let ended = world.clock.now();
    silences.expire(id, "ana", ended).await.unwrap();
    world.hear(&all[..20]).await;
    world.pass(100 * SECOND).await;
    world.hear(&all[20..40]).await;
    world.write();
    world.until_alike().await;
    until(async || world.count("operations").await == 2 && world.count("pauses").await == 1).await;
    world.pass(200 * SECOND).await;
    let (database, now) = (Database::connect(&world.access).await.unwrap(), world.clock.now() - 100 * SECOND);
    let past = past(&database, "detector", now.since(begin), now).await;
    let closed = |record: &OfflineRecord| record.back_at.zip(record.closed_by);
    let mut read: Vec<OfflineRecord> = past
        .silences
        .iter()
        .map(|silence| {
            let (back_at, closed_by) = silence.closed.unzip();
            OfflineRecord { back_at, closed_by, ..past.open_record(silence) }
        })
        .collect();
    read.sort_by(|a, b| a.id.cmp(&b.id));
    let mut records = world.records().await;
    records.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(read, records);
    assert_eq!(read.iter().filter(|record| closed(record).is_some()).count(), 40);
    assert_eq!(past.ledger.intervals(), world.roll.hearing().ledger.intervals());
    let covers: Vec<_> = past.alert_silences.iter().map(|one| (one.starts_at, one.ends_at)).collect();
    assert_eq!(covers, [(begin, ended)]);
    let covered = past.silences.iter().map(|one| past.open_record(one));
    let covered = covered.filter(|record| past.alert_silences.covered_until(record, begin).is_some());
    assert_eq!((covered.count(), past.gaps.len()), (10, 0), "{:?}", past.gaps);
    let (routes, inhibition) = (Routes::new(Route::default()), Inhibition::default());
    let rules = |timeout| TrialRules {
        policy: Policy { timeout, grace: Duration::ZERO },
        settle: Duration::ZERO,
        routes: &routes,
        receivers: &[],
        inhibition: &inhibition,
        breaker: None,
        has_flapping: false,
    };
    assert!(past.silences.iter().all(|one| rules(TIMEOUT).has_decided(&past, one)));
    let tried = |timeout| past.silences.iter().filter_map(|one| rules(timeout).tried(&past, one)).count();
    assert_eq!((tried(TIMEOUT), tried(20 * TIMEOUT)), (60, 0));
    assert_eq!(tried(2 * TIMEOUT), 40, "the first twenty were back before");
    // Silences that were over before the range are not in it, nor are those of later.
    let late = past_fleet(&database, &past.kind, (SECOND, Some(now)), now).await.unwrap();
    assert_eq!(late.silences.len(), 20);
    let early = past_fleet(&database, &past.kind, (SECOND, Some(begin + SECOND)), now).await.unwrap();
    assert!(early.silences.is_empty());
}
