//! The walk over the whole engine.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::coverage::Coverage;
use rollcall::fleet::ownership::View;
use rollcall::fleet::walk::Removed;
use rollcall::fleet::{Attempts, Mirror, Ownership, Roll, Silences, Walk};
use rollcall::fleet::{HearingConfig, Rules};
use rollcall::fleet::{mirror::Chunk, mirror::Cursor};
use rollcall::presence::{
    Closing, Facts, Hearing, Heartbeat, Kind, KindRules, Lifecycle, Override, Policy, Unit,
};
use rollcall::routing::alert_silence::SilenceRequest;
use rollcall::routing::{AlertSilence, parse_label_matchers};
use rollcall::simulate::servers::Server;
use rollcall::store::Layout;
use rollcall::store::redis::RedisEngine;
use rollcall::store::roster::{KindCount, KindCounts};
use rollcall::store::{Queries, Roster, UnitStore, encoding, partition_of};
use rollcall::telemetry::Telemetry;
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::client::client;
use crate::support::metrics;
use crate::support::redis as private;

const SECOND: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(120);

/// An engine with units, and a walk over it.
struct Fleet {
    engine: Arc<RedisEngine>,
    roll: Arc<Roll>,
    mirror: Arc<Mirror>,
    silences: Arc<Silences>,
    telemetry: Arc<Telemetry>,
    clock: Clock,
}

impl Fleet {
    fn new(engine: &Arc<RedisEngine>) -> Fleet {
        Fleet::of(engine, "detector")
    }

    /// The rules of one kind.
    fn of(engine: &Arc<RedisEngine>, kind: &str) -> Fleet {
        let kind: Kind = kind.parse().unwrap();
        let policy = Policy { timeout: 100 * SECOND, grace: Duration::ZERO };
        let rules =
            Arc::new(Rules::from_iter([(kind.clone(), KindRules { policy, ..KindRules::new(kind) })]));
        let clock = Clock::by_hand(Timestamp::from_millis(1_700_000_000_000));
        let mirror = Arc::new(Mirror::new(rules.clone(), engine.partitions()));
        let telemetry = Arc::new(Telemetry::new(&clock));
        let config = HearingConfig {
            gap: 3 * SECOND,
            follows: false,
            settle: Duration::ZERO,
            tell_after: 300 * SECOND,
        };
        let outbox_grew = Arc::new(Notify::new());
        let roll = Roll::new(engine.clone(), rules, mirror.clone(), telemetry.clone(), config, outbox_grew);
        let silences = Arc::new(Silences::new(engine.clone()));
        Fleet { engine: engine.clone(), roll: Arc::new(roll), mirror, silences, telemetry, clock }
    }

    /// A fleet on the same engine, with an empty mirror.
    fn restarted(&self) -> Fleet {
        Fleet { clock: self.clock.clone(), ..Fleet::new(&self.engine) }
    }

    /// A fleet on the same engine and clock, watched by an instance that has another kind.
    fn without_detectors(&self) -> Fleet {
        Fleet { clock: self.clock.clone(), ..Fleet::of(&self.engine, "pump") }
    }

    /// The warnings about open records of kinds that are not configured.
    fn unwatched(&self) -> Option<String> {
        let problems = self.telemetry.problems();
        problems.into_iter().find(|one| one.name == "kinds_not_configured").map(|one| one.text)
    }

    async fn hear(&self, count: usize) {
        let now = self.clock.now();
        let beat = |number| Heartbeat::of(unit(number), now);
        let beats: Vec<Heartbeat> = (0..count).map(beat).collect();
        self.roll.hear(&beats, now).await.unwrap();
    }

    /// Advances the clock, with everything heard.
    async fn pass(&self, span: Duration) {
        let end = self.clock.now() + span;
        // Canaries further apart would enclose blind time.
        while self.clock.now() < end {
            self.clock.advance(end.since(self.clock.now()).min(self.roll.gap()));
            self.roll.canary_returned(self.clock.now()).await.unwrap();
        }
    }

    fn walk(&self) -> (JoinHandle<anyhow::Result<()>>, CancellationToken) {
        let stop = CancellationToken::new();
        (tokio::spawn(self.walker().run(stop.clone())), stop)
    }

    fn walker(&self) -> Walk {
        Walk {
            engine: self.engine.clone(),
            attempts: Attempts::new(self.engine.clone()),
            roster: self.engine.clone(),
            ownership: Ownership::of_everything(self.engine.partitions()),
            roll: self.roll.clone(),
            mirror: self.mirror.clone(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
            period: Duration::from_millis(20),
            keep_records: 1000 * SECOND,
            keep_deliveries: 1000 * SECOND,
            removed: Removed::new(3600 * SECOND),
            coverage: Arc::new(Coverage::new(self.silences.clone())),
        }
    }

    fn listed(&self) -> usize {
        let (mut cursor, mut chunk, mut count) = (Cursor::default(), Chunk::default(), 0);
        while self.mirror.read_next(&mut cursor, &mut chunk, &Hearing::default(), self.clock.now()) {
            count += self.mirror.units(&chunk).count();
        }
        count
    }

    /// In how many steps a partition is read.
    fn steps(&self) -> u64 {
        self.engine.steps(16).len() as u64
    }

    async fn lifecycle(&self, unit: &Unit) -> Lifecycle {
        self.engine.read(std::slice::from_ref(unit)).await.unwrap().remove(0).facts.unwrap().lifecycle
    }

    async fn until_present(&self, unit: &Unit) {
        until(async || self.lifecycle(unit).await == Lifecycle::Present).await;
    }

    async fn until_offline(&self, unit: &Unit) {
        until(async || matches!(self.lifecycle(unit).await, Lifecycle::Offline(_))).await;
    }
}

/// A connection to the server, to change stored state past every instance.
struct Behind {
    server: Server,
    dir: TempDir,
}

impl Behind {
    async fn start() -> (Behind, Fleet) {
        let dir = tempfile::tempdir().unwrap();
        let (server, engine) = private::engine(dir.path()).await;
        (Behind { server, dir }, Fleet::new(&engine))
    }

    async fn ask<T: redis::FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        let mut connection = client(self.server.port()).await?;
        redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await
    }

    /// How many calls of that command the server counted.
    async fn asked(&self, command: &str) -> u64 {
        let stats: String = self.ask(&["INFO", "commandstats"]).await.unwrap();
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    }

    /// How many steps of whole partitions were begun since the last `CONFIG RESETSTAT`, unless a unit was due.
    async fn steps(&self) -> u64 {
        self.asked("exists").await
    }

    /// How many rounds the owner of some partitions has finished since then, if nothing changed:
    /// each ends with a search for old attempts and one for old records in each partition.
    async fn rounds(&self, partitions: usize) -> u64 {
        self.asked("zrangebyscore").await / (2 * partitions as u64)
    }

    /// The page that holds the facts of the unit.
    async fn page(&self, unit: &Unit) -> String {
        for page in self.ask::<Vec<String>>(&["KEYS", "rollcall:{p*}:facts:*"]).await.unwrap() {
            if self.ask::<bool>(&["HEXISTS", &page, &unit.to_string()]).await.unwrap() {
                return page;
            }
        }
        panic!("there are no facts of {unit}");
    }

    async fn change_facts(&self, unit: &Unit, change: impl FnOnce(&mut Facts)) {
        let page = self.page(unit).await;
        let text: String = self.ask(&["HGET", &page, &unit.to_string()]).await.unwrap();
        let mut facts = encoding::decode(&text).unwrap();
        change(&mut facts);
        let () = self.ask(&["HSET", &page, &unit.to_string(), &encoding::encode(&facts)]).await.unwrap();
    }

    /// Stops the server, which keeps its data on disk.
    async fn stop(&mut self) {
        // SHUTDOWN answers by closing the connection.
        let _ = self.ask::<()>(&["SHUTDOWN", "SAVE"]).await;
        self.server.kill();
    }

    fn start_again(&mut self) {
        self.server = Server::redis(self.dir.path(), self.server.port(), &[]).unwrap();
    }
}

/// A key of the unit's partition.
fn key(unit: &Unit, engine: &RedisEngine, name: &str) -> String {
    format!("rollcall:{{p{}}}:{name}", partition_of(unit, engine.partitions()))
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
    tokio::time::timeout(MAX_WAIT, awaited).await.expect("the fact comes true");
}

#[tokio::test]
async fn the_walk_fills_a_new_mirror_and_ends_with_the_stop() {
    let (_behind, old) = Behind::start().await;
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
async fn the_mirror_follows_changes_of_other_instances() {
    let (behind, fleet) = Behind::start().await;
    fleet.hear(10).await;
    let (_walk, _stop) = fleet.walk();
    until(async || fleet.mirror.is_filled()).await;
    let facts = behind.page(&unit(3)).await;
    let () = behind.ask(&["HDEL", &facts, &unit(3).to_string()]).await.unwrap();
    let alive = key(&unit(3), &fleet.engine, &format!("alive:{}", unit(3)));
    let () = behind.ask(&["DEL", &alive]).await.unwrap();
    until(async || fleet.listed() == 9).await;
    fleet.restarted().hear(12).await;
    until(async || fleet.listed() == 12).await;
}

#[tokio::test]
async fn an_engine_that_fails_is_named_and_the_walk_goes_on_when_it_is_back() {
    let (mut behind, old) = Behind::start().await;
    old.hear(10).await;
    let fleet = old.restarted();
    behind.stop().await;
    let (_walk, _stop) = fleet.walk();
    let down = async || fleet.telemetry.problems().iter().any(|problem| problem.text.contains("redis at"));
    until(down).await;
    assert!(!fleet.mirror.is_filled());
    behind.start_again();
    until(async || fleet.mirror.is_filled() && !down().await).await;
    assert_eq!(fleet.listed(), 10);
}

#[tokio::test]
async fn a_unit_with_an_open_record_and_a_key_is_brought_back() {
    let (behind, fleet) = Behind::start().await;
    fleet.hear(1).await;
    fleet.pass(101 * SECOND).await;
    fleet.roll.check_deadlines(&[unit(0)], fleet.clock.now()).await.unwrap();
    fleet.until_offline(&unit(0)).await;
    let alive = key(&unit(0), &fleet.engine, &format!("alive:{}", unit(0)));
    let heard = fleet.clock.now().as_millis().to_string();
    let () = behind.ask(&["SET", &alive, &heard]).await.unwrap();
    let (_walk, _stop) = fleet.walk();
    fleet.until_present(&unit(0)).await;
}

#[tokio::test]
async fn a_unit_with_an_open_record_and_a_longer_timeout_now_is_brought_back() {
    let (behind, fleet) = Behind::start().await;
    fleet.hear(1).await;
    fleet.pass(101 * SECOND).await;
    fleet.roll.check_deadlines(&[unit(0)], fleet.clock.now()).await.unwrap();
    let longer = Override { timeout: Some(200 * SECOND), grace: None };
    behind.change_facts(&unit(0), |facts| facts.set = longer).await;
    let (_walk, _stop) = fleet.walk();
    fleet.until_present(&unit(0)).await;
}

#[tokio::test]
async fn an_overdue_unit_is_found_though_its_next_check_is_far_away() {
    let (behind, fleet) = Behind::start().await;
    fleet.hear(1).await;
    fleet.pass(101 * SECOND).await;
    let deadlines = key(&unit(0), &fleet.engine, "deadlines");
    let far = Timestamp::NEVER.as_millis().to_string();
    let () = behind.ask(&["ZADD", &deadlines, &far, &unit(0).to_string()]).await.unwrap();
    let (_walk, _stop) = fleet.walk();
    fleet.until_offline(&unit(0)).await;
}

#[tokio::test]
async fn a_partition_that_was_just_read_is_read_again_only_in_its_turn() {
    let (behind, old) = Behind::start().await;
    old.hear(500).await;
    let fleet = old.restarted();
    let (steps, partitions) = (fleet.steps(), fleet.engine.partitions().into());
    let () = behind.ask(&["CONFIG", "RESETSTAT"]).await.unwrap();
    let (_walk, _stop) = fleet.walk();
    until(async || behind.rounds(partitions).await >= 1).await;
    let read = behind.steps().await;
    // The second partition has its turn in the tenth round.
    let is_early = behind.rounds(partitions).await < 9;
    assert!(!is_early || read == 3 * steps, "{read} steps, {steps} for each of two partitions");
    until(async || behind.rounds(partitions).await > 10).await;
    assert!(behind.steps().await >= 4 * steps);
}

#[tokio::test]
async fn after_a_check_without_a_decision_the_next_round_reads_everything() {
    let (behind, fleet) = Behind::start().await;
    fleet.hear(500).await;
    fleet.clock.advance(500 * SECOND);
    let steps = fleet.steps();
    let () = behind.ask(&["CONFIG", "RESETSTAT"]).await.unwrap();
    // Rollcall has heard nothing, so no unit is offline.
    let (_walk, _stop) = fleet.walk();
    until(async || behind.rounds(2).await >= 1).await;
    assert!(behind.steps().await >= 4 * steps);
}

#[tokio::test]
async fn beside_other_instances_the_next_round_reads_every_page_again() {
    let (behind, fleet) = Behind::start().await;
    fleet.hear(500).await;
    let view = View::new("two", ["one", "two"].map(str::to_owned).to_vec(), fleet.engine.partitions());
    assert_eq!(view.partitions, [0, 1]);
    let () = behind.ask(&["CONFIG", "RESETSTAT"]).await.unwrap();
    let walk = Walk { ownership: Ownership::fixed(view), ..fleet.walker() };
    let _walk = tokio::spawn(walk.run(CancellationToken::new()));
    until(async || behind.rounds(2).await >= 1).await;
    assert!(behind.steps().await >= 4 * fleet.steps());
}

/// Each instance counts the units of its own partitions; what it has not counted yet, it does not know.
#[tokio::test]
async fn the_walk_counts_the_units_that_each_silence_covers() {
    let (_behind, fleet) = Behind::start().await;
    fleet.hear(40).await;
    let now = fleet.clock.now();
    let add = async |matchers: &str| {
        let wanted = SilenceRequest {
            matchers: parse_label_matchers(matchers).unwrap(),
            starts_at: now,
            ends_at: now + 3600 * SECOND,
            author: "ana".to_owned(),
            comment: "works".to_owned(),
        };
        let id = fleet.silences.put(None, wanted, "ana", now).await.unwrap();
        let stored = fleet.silences.current().await.unwrap();
        stored.iter().find(|one| one.id == id).unwrap().clone()
    };
    let some = add("unit=~\"[0-9]\"").await;
    let (none, all) = (add("site=north").await, add("kind=detector").await);
    let other = fleet.restarted();
    let coverage = |fleet: &Fleet, partition| {
        let view = View::new("one", vec!["one".to_owned()], fleet.engine.partitions());
        let view = View { partitions: vec![partition], ..view };
        let walk = Walk { ownership: Ownership::fixed(view), ..fleet.walker() };
        let (coverage, stop) = (walk.coverage.clone(), CancellationToken::new());
        tokio::spawn(walk.run(stop.clone()));
        (coverage, stop.drop_guard())
    };
    let ((one, _one), (two, _two)) = (coverage(&fleet, 0), coverage(&other, 1));
    let sum = |of: &AlertSilence| Some(one.of_partitions(of, &[0])? + two.of_partitions(of, &[1])?);
    until(async || sum(&all) == Some(40)).await;
    assert_eq!((sum(&some), sum(&none)), (Some(10), Some(0)));
    assert_eq!(one.of_partitions(&all, &[0, 1]), None, "the other partition is of another instance");
    // Units that come, and silences that are made later.
    fleet.hear(50).await;
    let later = add("unit=~\"4[0-9]\"").await;
    assert_eq!(sum(&later), None);
    until(async || (sum(&all), sum(&later)) == (Some(50), Some(10))).await;
    // An expired alert silence is not counted.
    fleet.silences.expire(later.id, "ana", now).await.unwrap();
    fleet.clock.advance(SECOND);
    until(async || sum(&later).is_none()).await;
}

#[tokio::test]
async fn no_unit_is_checked_while_rollcall_is_blind() {
    let (_behind, fleet) = Behind::start().await;
    fleet.hear(1).await;
    fleet.clock.advance(500 * SECOND);
    let (_walk, _stop) = fleet.walk();
    let walked = || fleet.mirror.age(fleet.clock.now()) == Some(Duration::ZERO);
    until(async || walked()).await;
    fleet.clock.advance(SECOND);
    until(async || walked()).await;
    assert_eq!(metrics::sum(&fleet.telemetry, "rollcall_deadline_checks_total", &[]), Some(0.0));
    assert_eq!(fleet.lifecycle(&unit(0)).await, Lifecycle::Present);
}

#[tokio::test]
async fn records_that_were_closed_long_ago_are_forgotten_and_open_ones_are_not() {
    let (_behind, fleet) = Behind::start().await;
    fleet.hear(2).await;
    fleet.pass(101 * SECOND).await;
    fleet.roll.check_deadlines(&[unit(0), unit(1)], fleet.clock.now()).await.unwrap();
    fleet.hear(1).await;
    fleet.pass(1001 * SECOND).await;
    let (_walk, _stop) = fleet.walk();
    let records = async || fleet.engine.records(false, None, 10).await.unwrap();
    // The unit that came back is silent again by now.
    until(async || records().await.iter().all(|record| record.back_at.is_none())).await;
    assert!(records().await.iter().any(|record| record.id.unit == unit(1)));
}

#[tokio::test]
async fn open_records_of_a_kind_that_is_gone_are_shown_and_closed_after_an_hour() {
    let (behind, fleet) = Behind::start().await;
    fleet.hear(3).await;
    fleet.pass(101 * SECOND).await;
    fleet.roll.check_deadlines(&[unit(0), unit(1)], fleet.clock.now()).await.unwrap();
    let fleet = fleet.without_detectors();
    let (_walk, _stop) = fleet.walk();
    until(async || fleet.unwatched().is_some_and(|text| text.contains("detector (2 open)"))).await;
    let everything = fleet.steps() * u64::from(fleet.engine.partitions());
    let read_twice = async || {
        let () = behind.ask(&["CONFIG", "RESETSTAT"]).await.unwrap();
        until(async || behind.steps().await >= 2 * everything).await;
    };
    fleet.clock.advance(3599 * SECOND);
    read_twice().await;
    assert!(matches!(fleet.lifecycle(&unit(0)).await, Lifecycle::Offline(_)), "a wrong file closes nothing");
    fleet.clock.advance(2 * SECOND);
    until(async || fleet.unwatched().is_none()).await;
    read_twice().await;
    let closed = fleet.engine.records(false, None, 10).await.unwrap();
    let causes: Vec<Option<Closing>> = closed.iter().map(|record| record.closed_by).collect();
    assert_eq!(causes, [Some(Closing::KindRemoved); 2]);
    assert_eq!(fleet.lifecycle(&unit(0)).await, Lifecycle::NeverSeen);
    assert_eq!(fleet.lifecycle(&unit(2)).await, Lifecycle::Present, "it was not offline");
}

#[tokio::test]
async fn open_records_of_a_kind_that_another_instance_watches_stay_open() {
    let (behind, fleet) = Behind::start().await;
    fleet.hear(1).await;
    fleet.pass(101 * SECOND).await;
    fleet.roll.check_deadlines(&[unit(0)], fleet.clock.now()).await.unwrap();
    let fleet = fleet.without_detectors();
    let counts = KindCounts::from([("detector".to_owned(), KindCount::default())]);
    let roster: &dyn Roster = &*fleet.engine;
    roster.announce_counts("two", &counts).await.unwrap();
    // The instance owns all partitions anyway, as if the other one was not noticed yet.
    let instances = ["one", "two"].map(str::to_owned).to_vec();
    let partitions: Vec<u16> = (0..fleet.engine.partitions()).collect();
    let outboxes = partitions.clone();
    let view = View { instance: "one".into(), instances, terms: 1, outboxes, partitions };
    let walk = Walk { ownership: Ownership::fixed(view), ..fleet.walker() };
    let _walk = tokio::spawn(walk.run(CancellationToken::new()));
    let everything = fleet.steps() * u64::from(fleet.engine.partitions());
    for _ in 0..2 {
        fleet.clock.advance(7200 * SECOND);
        let () = behind.ask(&["CONFIG", "RESETSTAT"]).await.unwrap();
        until(async || behind.steps().await >= 2 * everything).await;
        assert!(matches!(fleet.lifecycle(&unit(0)).await, Lifecycle::Offline(_)));
    }
    // The hour begins when no instance watches it.
    let () = behind.ask(&["HDEL", "rollcall:{hearing}:cells:instance_counts", "two"]).await.unwrap();
    fleet.clock.advance(3601 * SECOND);
    until(async || fleet.lifecycle(&unit(0)).await == Lifecycle::NeverSeen).await;
}
