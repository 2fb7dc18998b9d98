//! The walk over the whole engine.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::engine::mirror::{Chunk, Cursor};
use rollcall::engine::roll::{HearingConfig, Rules};
use rollcall::engine::{Mirror, Queries, Roll, UnitStore, Walk};
use rollcall::presence::{
    Declared, Hearing, Heartbeat, Kind, KindRules, Override, Policy, Snapshot, Standing, Unit,
};
use rollcall::telemetry::Telemetry;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[path = "support/map.rs"]
mod map;

use map::Map;

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);

/// An engine with units, and what walks over it.
struct Fleet {
    engine: Arc<Map>,
    roll: Arc<Roll>,
    mirror: Arc<Mirror>,
    telemetry: Arc<Telemetry>,
    clock: Clock,
}

impl Fleet {
    fn new() -> Fleet {
        let kind: Kind = "detector".parse().unwrap();
        let policy = Policy { timeout: 100 * SECOND, grace: Duration::ZERO };
        let rules = Arc::new(Rules::from([(kind.clone(), KindRules { policy, ..KindRules::new(kind) })]));
        let clock = Clock::by_hand(Timestamp::from_millis(1_700_000_000_000));
        let engine = Arc::new(Map::default());
        let mirror = Arc::new(Mirror::new(rules.clone(), map::PARTITIONS));
        let telemetry = Arc::new(Telemetry::new(&clock));
        let config = HearingConfig { gap: 3 * SECOND, settle: Duration::ZERO, tell: 300 * SECOND };
        let news = Arc::new(Notify::new());
        let roll = Roll::new(engine.clone(), rules, mirror.clone(), telemetry.clone(), config, news);
        Fleet { engine, roll: Arc::new(roll), mirror, telemetry, clock }
    }

    /// The same engine and a mirror that knows nothing of it.
    fn restarted(&self) -> Fleet {
        let new = Fleet::new();
        let config = HearingConfig { gap: 3 * SECOND, settle: Duration::ZERO, tell: 300 * SECOND };
        let rules = Arc::new(new.roll.rules().clone());
        let (engine, news) = (self.engine.clone(), Arc::new(Notify::new()));
        let roll = Roll::new(engine, rules, new.mirror.clone(), new.telemetry.clone(), config, news);
        Fleet { engine: self.engine.clone(), roll: Arc::new(roll), clock: self.clock.clone(), ..new }
    }

    async fn hear(&self, count: usize) {
        let now = self.clock.now();
        let beat = |number| Heartbeat { unit: unit(number), at: now, declared: Declared::default() };
        let beats: Vec<Heartbeat> = (0..count).map(beat).collect();
        self.roll.hear(&beats, now).await.unwrap();
    }

    async fn pass(&self, span: Duration) {
        self.clock.advance(span);
        self.roll.canary_returned(self.clock.now()).await.unwrap();
    }

    fn walk(&self) -> (JoinHandle<anyhow::Result<()>>, CancellationToken) {
        let walk = Walk {
            engine: self.engine.clone(),
            roll: self.roll.clone(),
            mirror: self.mirror.clone(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
            period: Duration::from_millis(20),
            keep_records: 1000 * SECOND,
        };
        let stop = CancellationToken::new();
        (tokio::spawn(walk.run(stop.clone())), stop)
    }

    fn listed(&self) -> usize {
        let (mut cursor, mut chunk, mut count) = (Cursor::default(), Chunk::default(), 0);
        while self.mirror.read_next(&mut cursor, &mut chunk, &Hearing::default(), self.clock.now()) {
            count += self.mirror.units(&chunk).count();
        }
        count
    }

    /// Changes what is stored of the first unit behind everybody's back.
    fn tamper(&self, with: impl FnOnce(&mut Snapshot)) {
        with(self.engine.units.lock().unwrap().get_mut(&unit(0)).unwrap());
    }

    async fn standing(&self, unit: &Unit) -> Standing {
        self.engine.read(std::slice::from_ref(unit)).await.unwrap().remove(0).facts.unwrap().standing
    }

    async fn until_present(&self, unit: &Unit) {
        until(async || self.standing(unit).await == Standing::Present).await;
    }

    async fn until_offline(&self, unit: &Unit) {
        until(async || matches!(self.standing(unit).await, Standing::Offline(_))).await;
    }
}

fn unit(number: usize) -> Unit {
    format!("detector:{number}").parse().unwrap()
}

async fn until(fact: impl AsyncFn() -> bool) {
    let awaited = async {
        while !fact().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, awaited).await.expect("the fact comes true");
}

#[tokio::test]
async fn the_walk_fills_a_new_mirror_and_ends_with_the_stop() {
    let old = Fleet::new();
    old.hear(500).await;
    let fleet = old.restarted();
    assert_eq!(fleet.listed(), 0);
    let (walk, stop) = fleet.walk();
    until(async || fleet.mirror.is_filled()).await;
    assert_eq!(fleet.listed(), 500);
    stop.cancel();
    walk.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_mirror_follows_what_others_change_in_the_engine() {
    let fleet = Fleet::new();
    fleet.hear(10).await;
    let (_walk, _stop) = fleet.walk();
    until(async || fleet.mirror.is_filled()).await;
    fleet.engine.units.lock().unwrap().remove(&unit(3));
    until(async || fleet.listed() == 9).await;
    fleet.restarted().hear(12).await;
    until(async || fleet.listed() == 12).await;
}

#[tokio::test]
async fn an_engine_that_fails_is_named_and_the_walk_goes_on_when_it_is_back() {
    let old = Fleet::new();
    old.hear(10).await;
    let fleet = old.restarted();
    fleet.engine.set_down(true);
    let (_walk, _stop) = fleet.walk();
    let down = async || fleet.telemetry.problems().iter().any(|problem| problem.text.contains("folded"));
    until(down).await;
    assert!(!fleet.mirror.is_filled());
    fleet.engine.set_down(false);
    until(async || fleet.mirror.is_filled() && !down().await).await;
    assert_eq!(fleet.listed(), 10);
}

#[tokio::test]
async fn a_unit_with_an_open_record_whose_key_stands_is_brought_back() {
    let fleet = Fleet::new();
    fleet.hear(1).await;
    fleet.pass(101 * SECOND).await;
    fleet.roll.look(&[unit(0)], fleet.clock.now()).await.unwrap();
    fleet.until_offline(&unit(0)).await;
    let heard = fleet.clock.now();
    fleet.tamper(|seen| seen.alive = Some(heard));
    let (_walk, _stop) = fleet.walk();
    fleet.until_present(&unit(0)).await;
}

#[tokio::test]
async fn a_unit_with_an_open_record_that_is_allowed_more_now_is_brought_back() {
    let fleet = Fleet::new();
    fleet.hear(1).await;
    fleet.pass(101 * SECOND).await;
    fleet.roll.look(&[unit(0)], fleet.clock.now()).await.unwrap();
    let longer = Override { timeout: Some(200 * SECOND), grace: None };
    fleet.tamper(|seen| seen.facts.as_mut().unwrap().set = longer);
    let (_walk, _stop) = fleet.walk();
    fleet.until_present(&unit(0)).await;
}

#[tokio::test]
async fn a_unit_that_is_overdue_is_found_without_the_index() {
    let fleet = Fleet::new();
    fleet.hear(1).await;
    fleet.pass(101 * SECOND).await;
    let (_walk, _stop) = fleet.walk();
    fleet.until_offline(&unit(0)).await;
}

#[tokio::test]
async fn nobody_is_looked_at_while_rollcall_is_blind() {
    let fleet = Fleet::new();
    fleet.hear(1).await;
    fleet.clock.advance(500 * SECOND);
    let (_walk, _stop) = fleet.walk();
    let walked = || fleet.mirror.age(fleet.clock.now()) == Some(Duration::ZERO);
    until(async || walked()).await;
    fleet.clock.advance(SECOND);
    until(async || walked()).await;
    let text = prometheus::TextEncoder::new().encode_to_string(&fleet.telemetry.gather()).unwrap();
    assert!(text.contains("rollcall_suspects_total{source=\"walk\"} 0"), "{text}");
    assert_eq!(fleet.standing(&unit(0)).await, Standing::Present);
}

#[tokio::test]
async fn records_that_were_closed_long_ago_are_forgotten_and_open_ones_are_not() {
    let fleet = Fleet::new();
    fleet.hear(2).await;
    fleet.pass(101 * SECOND).await;
    fleet.roll.look(&[unit(0), unit(1)], fleet.clock.now()).await.unwrap();
    fleet.hear(1).await;
    fleet.pass(1001 * SECOND).await;
    let (_walk, _stop) = fleet.walk();
    let records = async || fleet.engine.records(false, None, 10).await.unwrap();
    // The unit that came back is silent again by now.
    until(async || records().await.iter().all(|record| record.back_at.is_none())).await;
    assert!(records().await.iter().any(|record| record.id.unit == unit(1)));
}
