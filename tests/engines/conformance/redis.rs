//! Real Redis servers as grounds: an ordinary one, and a node of a cluster, which refuses commands
//! across slots.

use std::path::Path;
use std::sync::Arc;

use redis::{Client, cmd};
use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::Unit;
use rollcall::simulate::servers::{Server, free_cluster_port, free_port};
use rollcall::store::{Destinations, Engine, StoredDeliveries, StoredGroups, partition_of};
use rollcall::store::{redis::RedisConfig, redis::RedisEngine};
use rollcall::telemetry::Telemetry;
use tempfile::TempDir;

use super::ground::Ground;
use super::several::{a_prefix, own};
use super::shared::Shared;
use crate::support::client::client;
use crate::support::connect::connected;

/// An ordinary server.
pub struct Single(Running);

/// A server that is a cluster of one node, and the prefix of a fleet on it.
pub struct ClusterNode(Arc<Running>, String);

pub struct Running {
    server: Server,
    dir: TempDir,
    args: &'static [&'static str],
}

const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];
const CLUSTERED: &[&str] = &["--appendonly", "yes", "--appendfsync", "always", "--cluster-enabled", "yes"];

impl Running {
    fn start(args: &'static [&'static str]) -> Running {
        let dir = TempDir::new().unwrap();
        let port = if args == CLUSTERED { free_cluster_port() } else { free_port() };
        let server = start(dir.path(), port.unwrap(), args);
        Running { server, dir, args }
    }

    pub fn config(&self) -> RedisConfig {
        RedisConfig { url: format!("redis://127.0.0.1:{}", self.server.port()), ..RedisConfig::default() }
    }

    pub async fn ask<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> T {
        let mut connection = client(self.server.port()).await.unwrap();
        command.query_async(&mut connection).await.unwrap()
    }

    /// Waits until the clock of the server has passed this moment.
    async fn later_than(&self, moment: Timestamp) {
        loop {
            let (seconds, micros): (i64, i64) = self.ask(&cmd("TIME")).await;
            if Timestamp::from_millis(seconds * 1000 + micros / 1000) > moment {
                return;
            }
        }
    }

    async fn engine(&self, prefix: &str) -> Arc<dyn Engine> {
        let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(Timestamp::ZERO)));
        let config = RedisConfig { prefix: prefix.to_owned(), ..self.config() };
        Arc::new(connected(&config, telemetry).await)
    }

    fn crash(&mut self) {
        self.server.kill();
        self.server = start(self.dir.path(), self.server.port(), self.args);
    }

    async fn lapse(&self, prefix: &str, unit: &Unit) {
        let gone: u8 = self.ask(cmd("DEL").arg(alive_of(prefix, unit))).await;
        assert_eq!(gone, 1, "there was no key of {unit}");
    }

    async fn leave_key(&self, prefix: &str, unit: &Unit, ms: i64) {
        self.ask::<()>(cmd("SET").arg(alive_of(prefix, unit)).arg(ms)).await;
    }
}

fn start(dir: &Path, port: u16, args: &[&str]) -> Server {
    Server::redis(dir, port, args).unwrap()
}

const HEARD: &str = "rollcall:{hearing}:heard";

const PREFIX: &str = "rollcall";

/// The public name of an expiry key.
pub fn alive(unit: &Unit) -> String {
    alive_of(PREFIX, unit)
}

fn alive_of(prefix: &str, unit: &Unit) -> String {
    format!("{prefix}:{{p{}}}:alive:{unit}", partition_of(unit, 16))
}

impl Ground for Single {
    const IS_WITHIN: bool = false;

    async fn new() -> Single {
        Single(Running::start(DURABLE))
    }
    async fn engine(&self) -> Arc<dyn Engine> {
        self.0.engine(PREFIX).await
    }
    /// Redis writes to disk before it answers.
    async fn settle(&self) {}
    async fn crash(&mut self) {
        self.0.crash();
    }
    async fn lapse(&self, unit: &Unit) {
        self.0.lapse(PREFIX, unit).await;
    }
    async fn leave_key(&self, unit: &Unit, ms: i64) {
        self.0.leave_key(PREFIX, unit, ms).await;
    }
}

impl Ground for ClusterNode {
    const IS_WITHIN: bool = false;

    async fn new() -> ClusterNode {
        let node = Running::start(CLUSTERED);
        node.ask::<()>(cmd("CLUSTER").arg("ADDSLOTS").arg((0..16384).collect::<Vec<u16>>())).await;
        node.until_whole().await;
        ClusterNode(Arc::new(node), a_prefix())
    }
    async fn engine(&self) -> Arc<dyn Engine> {
        self.0.engine(&self.1).await
    }
    /// Redis writes to disk before it answers.
    async fn settle(&self) {}
    async fn crash(&mut self) {
        own(&mut self.0).crash();
        self.0.until_whole().await;
    }
    async fn lapse(&self, unit: &Unit) {
        self.0.lapse(&self.1, unit).await;
    }
    async fn leave_key(&self, unit: &Unit, ms: i64) {
        self.0.leave_key(&self.1, unit, ms).await;
    }
}

impl Shared for ClusterNode {
    fn apart(&self) -> ClusterNode {
        ClusterNode(self.0.clone(), a_prefix())
    }
}

impl Running {
    /// Waits until the cluster reports that all slots are served.
    async fn until_whole(&self) {
        let mut every = tokio::time::interval(std::time::Duration::from_millis(20));
        for _ in 0..1000 {
            let info: String = self.ask(cmd("CLUSTER").arg("INFO")).await;
            if info.contains("cluster_state:ok") {
                return;
            }
            every.tick().await;
        }
        panic!("the cluster of one node did not become whole");
    }
}

mod only_redis {
    use super::super::units::take;
    use super::super::world::World;
    use super::*;
    use futures_util::StreamExt;
    use rollcall::clock::monotonic;
    use rollcall::presence::Interval;
    use rollcall::store::{
        Capacity, DataLoss, EngineError, Group, Join, OutboxEvent, Pace, Refresh, Replaced,
    };
    use std::time::Duration;

    #[tokio::test]
    async fn the_time_goes_on_where_the_clock_of_the_server_went_back() {
        let world = World::<Single>::new().await;
        let hour = Duration::from_secs(3600);
        let renew = async || world.engine.renew("a", hour, None).await.unwrap();
        let before = renew().await;
        assert_eq!(before.now, before.engine_clock);
        // The state is as if the last renewal had been an hour later, by a clock that was right then.
        let key = "rollcall:{hearing}:clock";
        let later = (before.now + hour).as_millis();
        world.ground.0.ask::<()>(cmd("HSET").arg(key).arg("server").arg(later).arg("fleet").arg(later)).await;
        let after = renew().await;
        assert!(after.now >= before.now + hour && after.engine_clock < before.now + hour, "{after:?}");
        let next = renew().await;
        assert!(next.now >= after.now && next.instances == ["a"], "{next:?}");
    }

    #[tokio::test]
    async fn an_unreadable_time_of_the_fleet_keeps_no_instance_from_renewing() {
        let world = World::<Single>::new().await;
        for field in ["fleet", "server"] {
            world.engine.renew("a", Duration::from_secs(60), None).await.unwrap();
            let key = "rollcall:{hearing}:clock";
            world.ground.0.ask::<()>(cmd("HSET").arg(key).arg(field).arg("garbage{")).await;
            let after = world.engine.renew("a", Duration::from_secs(60), None).await.unwrap();
            assert_eq!(after.instances, ["a"]);
        }
    }

    #[tokio::test]
    async fn an_instance_that_comes_or_goes_is_noticed_at_once() {
        let world = World::<Single>::new().await;
        let (other, _) = world.another().await;
        let (hints, mut hinted) = tokio::sync::mpsc::channel(16);
        let listening = other.clone();
        tokio::spawn(async move { listening.listen(hints).await });
        hinted.recv().await.expect("it listens");
        let minute = Duration::from_secs(60);
        let noticed = async || tokio::time::timeout(minute, other.changed()).await.expect("it is noticed");
        // The second subscription follows the first at an unknown moment.
        while tokio::time::timeout(Duration::from_millis(10), other.changed()).await.is_err() {
            world.engine.resign("unknown").await.unwrap();
        }
        world.engine.renew("a", minute, None).await.unwrap();
        noticed().await;
        world.engine.resign("a").await.unwrap();
        noticed().await;
    }

    #[tokio::test]
    async fn a_script_that_the_server_forgot_is_loaded_again() {
        let world = World::<Single>::new().await;
        let unit = world.unit("a");
        world.hear(&unit, world.at(0)).await;
        world.ground.0.ask::<()>(cmd("SCRIPT").arg("FLUSH")).await;
        world.heard_until(world.hours(49)).await;
        world.check(&unit, world.hours(49)).await;
        assert_eq!(world.open_records().await.len(), 1);
    }

    #[tokio::test]
    async fn time_in_which_no_instance_could_renew_ends_no_lease() {
        let world = World::<Single>::new().await;
        let lease = Duration::from_millis(200);
        let renew = async |instance| world.engine.renew(instance, lease, None).await.unwrap();
        renew("a").await;
        let last = renew("b").await.engine_clock;
        world.ground.0.later_than(last + 2 * lease).await;
        assert_eq!(renew("a").await.instances, ["a", "b"], "the server did not answer meanwhile");
        let ended = async { while renew("a").await.instances != ["a"] {} };
        tokio::time::timeout(Duration::from_secs(60), ended).await.expect("b does not renew, and a does");
    }

    #[tokio::test]
    async fn units_watched_over_a_lost_connection_are_not_taken() {
        let world = World::<Single>::new().await;
        let unit = [world.unit("a")];
        world.register_all(&unit, world.at(0)).await;
        world.heard_until(world.hours(49)).await;
        let mut checked = world.begin_check(&unit).await;
        let change = take(&world, checked.units.remove(0));
        let kill = cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").to_owned();
        assert!(world.ground.0.ask::<u8>(&kill).await > 0);
        let answer = checked.guard.apply(&[change]).await;
        assert!(matches!(answer, Err(EngineError::Unavailable(_))), "{answer:?}");
        let (other, _) = world.another().await;
        assert_eq!(other.outbox(&world.outboxes(), 10).await.unwrap(), []);
        // The next check has a new connection; also if the old one was lost while idle.
        drop(world.begin_check(&unit).await);
        world.ground.0.ask::<u8>(&kill).await;
        world.check(&unit[0], world.hours(49)).await;
        let (other, _) = world.another().await;
        assert_eq!(other.outbox(&world.outboxes(), 10).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn the_expiry_key_is_as_the_contract_says() {
        let world = World::<Single>::new().await;
        let unit = world.unit("a");
        world.hear(&unit, world.at(5)).await;
        let value: i64 = world.ground.0.ask(cmd("GET").arg(alive(&unit))).await;
        assert_eq!(value, world.at(5).as_millis());
        let ttl: i64 = world.ground.0.ask(cmd("PTTL").arg(alive(&unit))).await;
        let allowed = 48 * 3600 * 1000;
        assert!((allowed - 60_000..=allowed).contains(&ttl), "{ttl} ms");
        let index = format!("rollcall:{{p{}}}:deadlines", partition_of(&unit, 16));
        let check: f64 = world.ground.0.ask(cmd("ZSCORE").arg(index).arg(unit.to_string())).await;
        assert_eq!(check as i64, world.at(5).as_millis() + allowed);
    }

    #[tokio::test]
    async fn a_heartbeat_that_was_held_back_for_too_long_overwrites_no_newer_one() {
        let world = World::<Single>::new().await;
        let (unit, ttl) = (world.unit("a"), Duration::from_secs(3600));
        world.hear(&unit, world.at(5)).await;
        let older = |until| Refresh {
            unit: &unit,
            at: world.at(1),
            arrived: world.at(1),
            broker: None,
            ttl,
            check_by: world.at(1) + ttl,
            unbroken: None,
            until,
        };
        let held_back = world.engine.refresh(&[older(monotonic())]).await;
        assert!(matches!(held_back, Err(EngineError::Unavailable(_))), "{held_back:?}");
        // One in time is written, and the newer one that it overwrote once more.
        let in_time = world.engine.refresh(&[older(monotonic() + ttl)]).await.unwrap();
        assert_eq!(in_time, [Some(Replaced { at: world.at(5), is_elsewhere: false })]);
        let value: i64 = world.ground.0.ask(cmd("GET").arg(alive(&unit))).await;
        assert_eq!(value, world.at(5).as_millis());
    }

    #[tokio::test]
    async fn a_caller_that_does_not_remove_a_unit_from_the_index_has_not_won() {
        let world = World::<Single>::new().await;
        let unit = world.unit("a");
        world.hear(&unit, world.at(0)).await;
        world.heard_until(world.hours(49)).await;
        let index = format!("rollcall:{{p{}}}:deadlines", partition_of(&unit, 16));
        world.ground.0.ask::<()>(cmd("ZREM").arg(index).arg(unit.to_string())).await;
        world.check(&unit, world.hours(49)).await;
        assert_eq!(world.open_records().await, []);
        assert_eq!(world.outbox().await, []);
    }

    fn lost(interval: Interval) -> OutboxEvent {
        OutboxEvent::DataLost(DataLoss { interval, partitions: None })
    }

    async fn empty(world: &World<Single>) {
        world.ground.0.ask::<()>(cmd("FLUSHALL").arg("SYNC")).await;
    }

    async fn fleet(world: &World<Single>) -> (Option<String>, Option<u16>) {
        world.ground.0.ask(cmd("HMGET").arg("rollcall:meta").arg("fleet").arg("partitions")).await
    }

    #[tokio::test]
    async fn a_server_that_lost_everything_is_notified_once_and_is_blind_however_short_that_was() {
        let world = World::<Single>::new().await;
        let before = fleet(&world).await;
        world.roll.canary_returned(world.at(1000)).await.unwrap();
        empty(&world).await;
        // `heard` is read every second, and is missing.
        assert_eq!(world.roll.refresh_hearing().await.unwrap().heard, None);
        world.roll.canary_returned(world.at(2000)).await.unwrap();
        let interval = Interval { from: world.at(1000), to: world.at(2000) };
        assert_eq!(world.outbox().await.remove(0).event, lost(interval));
        assert_eq!(world.roll.hearing().ledger.intervals(), [interval]);
        assert_eq!(world.roll.hearing().heard, Some(world.at(2000)));
        let after = fleet(&world).await;
        assert!(after.0.is_some() && after.0 != before.0 && after.1 == before.1, "{before:?} {after:?}");
        // The loss is noticed once; the next canary is an ordinary one.
        world.roll.canary_returned(world.at(3000)).await.unwrap();
        assert_eq!(world.outbox().await.len(), 1);
        // Another loss is noticed again, however soon it happens.
        empty(&world).await;
        world.roll.canary_returned(world.at(3001)).await.unwrap();
        let interval = Interval { from: world.at(3000), to: world.at(3001) };
        assert_eq!(world.outbox().await.remove(0).event, lost(interval));
    }

    #[tokio::test]
    async fn a_loss_is_notified_once_whichever_instance_notices_it_first() {
        let world = World::<Single>::new().await;
        let (_, other) = world.another().await;
        world.roll.canary_returned(world.at(1000)).await.unwrap();
        other.canary_returned(world.at(1100)).await.unwrap();
        empty(&world).await;
        other.refresh_hearing().await.unwrap();
        // An instance that starts at this moment knows of no loss, and begins a new fleet.
        let (_, third) = world.another().await;
        third.canary_returned(world.at(1900)).await.unwrap();
        assert_eq!(world.outbox().await, []);
        world.roll.canary_returned(world.at(2000)).await.unwrap();
        other.canary_returned(world.at(2100)).await.unwrap();
        third.canary_returned(world.at(2200)).await.unwrap();
        world.roll.canary_returned(world.at(3000)).await.unwrap();
        let interval = Interval { from: world.at(1000), to: world.at(2000) };
        let events: Vec<OutboxEvent> = world.outbox().await.into_iter().map(|entry| entry.event).collect();
        assert_eq!(events, [lost(interval)]);
        // All instances know the same fleet now, and notice the next loss as well.
        empty(&world).await;
        third.canary_returned(world.at(4000)).await.unwrap();
        other.canary_returned(world.at(4100)).await.unwrap();
        assert_eq!(world.outbox().await.len(), 1);
    }

    #[tokio::test]
    async fn a_loss_between_two_commands_is_found_by_the_next_canary() {
        let world = World::<Single>::new().await;
        world.roll.canary_returned(world.at(1000)).await.unwrap();
        empty(&world).await;
        // Only the canary that was just being written exists.
        world.ground.0.ask::<()>(cmd("HSET").arg(HEARD).arg("at").arg(world.at(2000).as_millis())).await;
        world.roll.refresh_hearing().await.unwrap();
        for ms in [3000, 4000] {
            world.roll.canary_returned(world.at(ms)).await.unwrap();
        }
        let interval = Interval { from: world.at(2000), to: world.at(3000) };
        let events: Vec<OutboxEvent> = world.outbox().await.into_iter().map(|entry| entry.event).collect();
        assert_eq!(events, [lost(interval)]);
    }

    #[tokio::test]
    async fn a_server_that_comes_back_without_its_last_writes_makes_their_time_blind() {
        let world = World::<Single>::new().await;
        for ms in [1000, 2000] {
            world.roll.canary_returned(world.at(ms)).await.unwrap();
        }
        world.ground.0.ask::<()>(cmd("HSET").arg(HEARD).arg("at").arg(world.at(1000).as_millis())).await;
        // `heard` is read every second.
        assert_eq!(world.roll.refresh_hearing().await.unwrap().heard, Some(world.at(1000)));
        let lost = Interval { from: world.at(1000), to: world.at(2500) };
        for ms in [2500, 3500] {
            world.roll.canary_returned(world.at(ms)).await.unwrap();
            assert_eq!(world.roll.hearing().ledger.intervals(), [lost], "once");
        }
    }

    #[tokio::test]
    async fn a_fleet_that_was_there_before_is_not_taken_for_lost() {
        let world = World::<Single>::new().await;
        // The state of another version.
        world.ground.0.ask::<u8>(cmd("HDEL").arg(HEARD).arg("fleet")).await;
        let (engine, roll) = world.another().await;
        roll.canary_returned(world.at(1000)).await.unwrap();
        world.roll.canary_returned(world.at(2000)).await.unwrap();
        assert_eq!(engine.outbox(&world.outboxes(), 10).await.unwrap(), []);
    }

    #[tokio::test]
    async fn heard_is_read_after_the_units_that_it_proves() {
        // A server that comes back with an old state between the two has forgotten heartbeats,
        // and an earlier `heard` must not prove their absence.
        let world = World::<Single>::new().await;
        let unit = world.unit("a");
        world.hear(&unit, world.at(0)).await;
        let client = Client::open(world.ground.0.config().url).unwrap();
        let monitor = client.get_async_monitor().await.unwrap();
        let mut commands = monitor.into_on_message::<String>();
        world.check(&unit, world.at(1)).await;
        let mut units_are_read = false;
        let first = tokio::time::timeout(Duration::from_secs(30), async {
            loop {
                let command = commands.next().await.expect("the server stands");
                if command.contains(":heard\"") {
                    return units_are_read;
                }
                units_are_read |= command.contains(&alive(&unit));
            }
        });
        assert!(first.await.expect("both are read"), "the units are not read first");
    }

    #[tokio::test]
    async fn without_receivers_no_notification_is_kept() {
        let world = World::<Single>::new().await;
        let unit = world.unit("a");
        world.hear(&unit, world.at(0)).await;
        world.heard_until(world.hours(49)).await;
        world.check(&unit, world.hours(49)).await;
        let group = Group { key: "g".into(), labels: Default::default() };
        let event = world.outbox().await.remove(0).event;
        let pace = Pace::AT_ONCE;
        let (now, later) = (world.hours(49), world.hours(50));
        let joins = [Join { groups: vec![group.clone()], event }];
        let joined =
            world.groups().join(&joins, &Destinations::all(pace, &[]), &Capacity::NONE, now).await.unwrap();
        assert_eq!(joined.sealed, 1);
        world.hear(&unit, now).await;
        let event = world.outbox().await.remove(1).event;
        let waits = Pace { wait: Duration::from_secs(60), ..pace };
        assert_eq!(
            world
                .groups()
                .join(
                    &[Join { groups: vec![group], event }],
                    &Destinations::all(waits, &[]),
                    &Capacity::NONE,
                    now
                )
                .await
                .unwrap()
                .sealed,
            0
        );
        assert_eq!(
            world.groups().seal(&world.partitions(), &Destinations::all(waits, &[]), later).await.unwrap(),
            0
        );
        assert_eq!(world.groups().first_seal(&world.partitions()).await.unwrap(), None);
        let kept: Vec<String> = world.ground.0.ask(cmd("KEYS").arg("*:cells:notifications")).await;
        assert_eq!(kept, [""; 0]);
    }

    #[tokio::test]
    async fn a_fleet_of_another_number_of_partitions_is_refused_and_the_error_says_which() {
        let world = World::<Single>::new().await;
        let config = RedisConfig { partitions: Some(32), ..world.ground.0.config() };
        let telemetry = Arc::new(Telemetry::new(&Clock::system()));
        match RedisEngine::connect(&config, telemetry).await.map(|_| ()) {
            Err(EngineError::Refused(why)) => assert!(why.contains("16 partitions"), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_unit_whose_key_holds_no_number_counts_as_heard_up_to_now() {
        let world = World::<Single>::new().await;
        let unit = world.unit("a");
        world.hear(&unit, world.at(0)).await;
        world.ground.0.ask::<()>(cmd("SET").arg(alive(&unit)).arg("yesterday")).await;
        world.heard_until(world.hours(3)).await;
        assert_eq!(world.read(&unit).await.alive, Some(world.hours(3)));
        let quarantine = format!("rollcall:{{p{}}}:unreadable", partition_of(&unit, 16));
        let kept: Option<String> = world.ground.0.ask(cmd("HGET").arg(quarantine).arg(alive(&unit))).await;
        assert_eq!(kept.as_deref(), Some("yesterday"));
    }

    #[tokio::test]
    async fn an_instance_that_owns_no_partition_finds_nothing_to_do() {
        let world = World::<Single>::new().await;
        let (engine, now) = (&world.engine, world.at(0));
        assert_eq!(engine.outbox(&[], 10).await.unwrap(), []);
        assert_eq!(
            StoredGroups::new(engine.clone())
                .seal(&[], &Destinations::all(Pace::AT_ONCE, &["hook".to_owned()]), now)
                .await
                .unwrap(),
            0
        );
        assert_eq!(StoredGroups::new(engine.clone()).first_seal(&[]).await.unwrap(), None);
        assert_eq!(StoredDeliveries::new(engine.clone()).lease(&[], "hook", now, now, 10).await.unwrap(), []);
        assert_eq!(StoredDeliveries::new(engine.clone()).first_lease(&[], "hook").await.unwrap(), None);
        assert_eq!(
            StoredDeliveries::new(engine.clone()).backlog(&[], "hook").await.unwrap(),
            Default::default()
        );
    }
}
