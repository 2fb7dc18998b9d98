//! Timers as Redis stores them: waiting timers are packed, whatever becomes of others.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::{Guarantee, NewTimer, TimerClass};
use rollcall::store::redis::{RedisConfig, RedisEngine};
use rollcall::store::{StoredTimers, TimerCancelled, TimerCapacity, TimerClasses};
use rollcall::telemetry::Telemetry;

use crate::support::redis::Redis;

/// As many on a page as in a fleet of some millions.
const TIMERS: usize = 3000;

#[tokio::test]
async fn a_page_stays_packed_when_some_of_its_timers_fire_or_are_cancelled() {
    let redis = Redis::start();
    let config = RedisConfig { url: redis.url(), partitions: Some(1), ..RedisConfig::default() };
    let engine = RedisEngine::connect(&config, Arc::new(Telemetry::new(&Clock::system()))).await.unwrap();
    let engine = StoredTimers::new(Arc::new(engine));
    let class = TimerClass {
        timer_type: "report-due".parse().unwrap(),
        receivers: vec!["hook".to_owned()],
        guarantee: Guarantee::AtLeastOnce,
        keep: Duration::from_secs(3600),
        most: 1_000_000,
    };
    let classes: TimerClasses = [(class.timer_type.clone(), class.clone())].into();
    let now = Timestamp::from_millis(1_764_000_000_000);
    let timer = |number: usize, due| NewTimer {
        is_span: false,
        id: format!("timer-{number:06}").parse().unwrap(),
        timer_type: class.timer_type.clone(),
        due,
        data: format!("\"{}\"", "x".repeat(38)).parse().unwrap(),
    };
    let day = now + Duration::from_secs(86_400);
    // Every third is cancelled, and every third fires.
    let timers: Vec<NewTimer> = (0..TIMERS).map(|n| timer(n, if n % 3 == 1 { now } else { day })).collect();
    engine.register(&timers, false).await.unwrap();
    let cancelled: Vec<_> = timers.iter().step_by(3).map(|timer| timer.id.clone()).collect();
    let answers = engine.cancel(&cancelled, &classes, now).await.unwrap();
    assert!(answers.iter().all(|answer| *answer == TimerCancelled::Yes));
    let due = engine.due_timers(&[0], now, TIMERS).await.unwrap();
    let fired = engine.fire(&due, &classes, &TimerCapacity::NONE, now).await.unwrap();
    assert_eq!(fired.timers.len(), TIMERS / 3);

    let mut client = redis.client();
    let pages: Vec<String> =
        redis::cmd("KEYS").arg("rollcall:{p0}:cells:timers:*").query(&mut client).unwrap();
    assert!(pages.len() > 500, "{} pages", pages.len());
    for page in pages {
        let encoding: String = redis::cmd("OBJECT").arg("ENCODING").arg(&page).query(&mut client).unwrap();
        assert!(["listpack", "ziplist"].contains(&encoding.as_str()), "{page} is a {encoding}");
    }
    // All are found, wherever they lie.
    let ids: Vec<_> = timers.iter().map(|timer| timer.id.clone()).collect();
    assert!(engine.timers(&ids).await.unwrap().iter().all(Option::is_some));
}
