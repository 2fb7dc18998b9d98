//! A replica takes over that lacks silences of which receivers have the notification.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use rollcall::alerting::LostSilences;
use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::Roll;
use rollcall::presence::{Declared, Heartbeat, OfflineRecord, Unit};
use rollcall::routing::{Destination, Destinations, FollowUps, Route, Routes};
use rollcall::store::redis::{Config, HashTags, RedisEngine};
use rollcall::store::{
    Capacity, Delivery, DeliveryStore, End, Ended, EngineError, Gap, Group, GroupStore, HearingStore, Join,
    Layout, NotifiedSilences, Pace, Position, Queries, Roster, Subscription, UnitStore, partition_of,
    partition_of_group,
};
use rollcall::telemetry::Telemetry;

use crate::conformance::world;
use crate::support::cluster::{Cluster, ClusterPlan};
use crate::support::connect::connected;
use crate::support::node::{Node, leave_behind, until};
use crate::support::sentinel::{Sentinel, SentinelPlan};

const BEGIN: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const SECOND: Duration = Duration::from_secs(1);
const SILENT: Duration = Duration::from_secs(49 * 3600);
const AT_ONCE: Pace = Pace::AT_ONCE;
/// How long after a notification the receivers are reminded: when no case looks any more.
const REPEAT: Duration = Duration::from_secs(30 * 24 * 3600);
const PARTITIONS: u16 = 48;
/// So many calls are answered while a silence waits: a silence that does not wait is notified meanwhile.
const CALLS: usize = 200;

enum Servers {
    Cluster(Cluster),
    Sentinel(Sentinel),
}

impl Servers {
    fn nodes(&mut self) -> &mut [Node] {
        match self {
            Servers::Cluster(cluster) => &mut cluster.nodes,
            Servers::Sentinel(sentinel) => &mut sentinel.servers,
        }
    }

    /// The primary of a partition.
    async fn primary(&self, partition: u16) -> usize {
        match self {
            Servers::Cluster(cluster) => cluster.primary_of(&key_in(partition)).await,
            Servers::Sentinel(sentinel) => sentinel.primary().await,
        }
    }

    async fn replicas(&self, primary: usize) -> Vec<usize> {
        match self {
            Servers::Cluster(cluster) => cluster.replicas_of(primary).await,
            Servers::Sentinel(sentinel) => {
                (0..sentinel.servers.len()).filter(|one| *one != primary).collect()
            }
        }
    }

    /// Waits until the replicas of a primary have all that it has.
    async fn are_replicated(&mut self, primary: usize) {
        until("the replica has it all", async || {
            let info = self.nodes()[primary].info("replication").await.unwrap();
            let offset =
                |name: &str| info.split(&format!("{name}:")).nth(1)?.split("\r\n").next().map(str::to_owned);
            let own = offset("master_repl_offset");
            own.is_some_and(|own| info.contains(&format!("offset={own},")))
        })
        .await;
    }

    /// The primary of a partition dies, and its replicas go on without it.
    async fn fail_over(&mut self, partition: u16, replicas: &[usize]) {
        let primary = self.primary(partition).await;
        self.nodes()[primary].kill();
        replicas.iter().for_each(|number| self.nodes()[*number].thaw());
        match self {
            Servers::Cluster(cluster) => {
                cluster.until_promoted(&key_in(partition), primary).await;
                cluster.until_whole().await;
            }
            Servers::Sentinel(sentinel) => drop(sentinel.until_promoted(primary).await),
        }
    }
}

fn key_in(partition: u16) -> String {
    format!("rollcall:{{{}}}:heard", HashTags::Spread.tag(partition, PARTITIONS))
}

/// An instance; it notifies two receivers at once.
struct Instance {
    engine: Arc<RedisEngine>,
    roll: Arc<Roll>,
    lost: LostSilences,
    group: Group,
}

impl Instance {
    async fn new(url: &str, group: &Group) -> Instance {
        let (clock, timeout) = (Clock::by_hand(BEGIN), Duration::from_millis(50));
        let telemetry = Arc::new(Telemetry::new(&clock));
        let config = Config { url: url.to_owned(), wait_timeout: timeout, ..Config::default() };
        let engine = Arc::new(connected(&config, telemetry.clone()).await);
        let roll = Arc::new(world::roll(engine.clone()));
        roll.refresh_hearing().await.unwrap();
        let routes = Routes::new(Route { receivers: receivers(), ..Route::default() });
        let destinations = destinations();
        let lost = LostSilences {
            routes,
            destinations,
            notified: engine.clone(),
            groups: engine.clone(),
            roll: roll.clone(),
            clock,
            telemetry,
        };
        Instance { engine, roll, lost, group: group.clone() }
    }

    async fn hear(&self, unit: &Unit, at: Timestamp) {
        let beat = Heartbeat { unit: unit.clone(), at, not_before: None, declared: Declared::default() };
        again(async || self.roll.hear(std::slice::from_ref(&beat), at).await).await;
    }

    /// Hears without a gap up to that moment, and finds those that are silent.
    async fn find(&self, units: &[Unit], now: Timestamp) {
        let gap = Gap { blind: 2 * SILENT, tell_after: 2 * SILENT };
        again(async || self.engine.advance(&Subscription::Plain, now, gap).await).await;
        self.roll.refresh_hearing().await.unwrap();
        self.roll.check_deadlines(units, now).await.unwrap();
    }

    /// Lets all that is in the outbox join one group, and delivers what there is for a receiver.
    async fn deliveries(&self, receiver: &str, now: Timestamp) -> Vec<Delivery> {
        let mut all = Vec::new();
        loop {
            let leased = self.leased(receiver, now).await;
            if leased.is_empty() {
                return all;
            }
            again(async || self.engine.delivered(&leased, now).await).await;
            all.extend(leased);
        }
    }

    /// The same without the deliveries.
    async fn leased(&self, receiver: &str, now: Timestamp) -> Vec<Delivery> {
        let outboxes: Vec<u16> = (0..=self.engine.partitions()).collect();
        let entries = again(async || self.engine.outbox(&outboxes, 1000).await).await;
        let (positions, joins): (Vec<Position>, Vec<Join>) = entries
            .into_iter()
            .map(|entry| (entry.position, Join { groups: vec![self.group.clone()], event: entry.event }))
            .unzip();
        let join = async || self.engine.join(&joins, &destinations(), &Capacity::NONE, now).await;
        let groups = again(join).await.groups;
        again(async || self.engine.remove_entries(&positions, &groups).await).await;
        let own = &outboxes[..outboxes.len() - 1];
        again(async || self.engine.seal(own, &destinations(), now).await).await;
        let until = now + SECOND;
        again(async || self.engine.lease(own, receiver, now, until, 100).await).await
    }

    /// Compares what receivers know with what is stored. Answers how many records were written again.
    async fn compare(&self, now: Timestamp) -> usize {
        again(async || self.lost.step(now).await).await
    }
}

fn receivers() -> Vec<String> {
    ["hook", "mail"].map(str::to_owned).to_vec()
}

fn destinations() -> Destinations {
    let again = FollowUps { repeat: Some(REPEAT), escalate: Vec::new() };
    Destinations::new(Destination::new(receivers(), AT_ONCE).with(again), vec![], Default::default())
        .with_receivers(receivers())
}

/// Calls until the servers are there again.
async fn again<T>(call: impl AsyncFn() -> Result<T, EngineError>) -> T {
    let mut answer = None;
    until("the engine answers", async || {
        answer = match call().await {
            Ok(answer) => Some(answer),
            Err(EngineError::Unavailable(_) | EngineError::Passing(_)) => None,
            Err(error) => panic!("{error}"),
        };
        answer.is_some()
    })
    .await;
    answer.expect("it was awaited")
}

/// The ids of the records that a receiver is told to be offline, and back.
fn told(deliveries: &[Delivery]) -> (Vec<String>, Vec<String>) {
    let ids = |records: fn(&Delivery) -> &[OfflineRecord]| {
        let mut ids: Vec<String> =
            deliveries.iter().flat_map(records).map(|record| record.id.to_string()).collect();
        ids.sort();
        ids
    };
    (ids(|one| &one.offline), ids(|one| &one.online))
}

/// Units and a group, named so that their partitions fit.
fn names(of_units: impl Fn(u16) -> bool, of_group: impl Fn(u16) -> bool) -> ([Unit; 3], Group) {
    let units = (0..).map(|number| format!("detector:unit-{number}").parse::<Unit>().unwrap());
    let mut units = units.filter(|unit| of_units(partition_of(unit, PARTITIONS)));
    let mut keys = (0..).map(|number| format!("group-{number}"));
    let key = keys.find(|key| of_group(partition_of_group(key, PARTITIONS))).expect("there is one");
    let group = Group { key, labels: Default::default() };
    ([(); 3].map(|()| units.next().expect("there are many")), group)
}

/// Which partition's primary dies, and whether a return joins its group before the instance that delivered compares.
struct Loss {
    partition: u16,
    is_return_first: bool,
}

/// One unit is heard as soon as the replica has taken over, one stays silent, and one had come back before. The
/// instance that delivered and the one that does the rest are not the same.
async fn nothing_is_forgotten(mut servers: Servers, url: String, units: [Unit; 3], group: Group, loss: Loss) {
    let lost = loss.partition;
    let [returns, lasts, ended] = &units;
    let delivers = Instance::new(&url, &group).await;
    let other = Instance::new(&url, &group).await;
    other.roll.canary_returned(BEGIN).await.unwrap();
    for unit in &units {
        other.hear(unit, BEGIN).await;
    }
    let primary = servers.primary(lost).await;
    let replicas = servers.replicas(primary).await;
    servers.are_replicated(primary).await;
    leave_behind(servers.nodes(), primary, &replicas).await;

    let now = BEGIN + SILENT;
    // Heard without a gap.
    let gap = Gap { blind: 2 * SILENT, tell_after: 2 * SILENT };
    delivers.engine.advance(&Subscription::Plain, now, gap).await.unwrap();
    delivers.roll.refresh_hearing().await.unwrap();
    let overdue: Vec<Unit> = units.to_vec();
    assert!(delivers.roll.check_deadlines(&overdue, now).await.unwrap().is_empty());
    let records = delivers.engine.records(true, None, 10).await.unwrap();
    assert_eq!(records.len(), 3, "{records:?}");
    let id = |unit: &Unit| records.iter().find(|one| one.id.unit == *unit).unwrap().id.to_string();
    let mut all: Vec<String> = units.iter().map(id).collect();
    all.sort();
    assert_eq!(told(&delivers.deliveries("hook", now).await), (all, vec![]));
    other.hear(ended, now + SECOND).await;
    assert_eq!(told(&delivers.deliveries("hook", now + SECOND).await), (vec![], vec![id(ended)]));
    assert_eq!(delivers.compare(now + SECOND).await, 0, "nothing is lost yet");

    servers.fail_over(lost, &replicas).await;
    let now = now + 10 * SECOND;
    other.hear(returns, now).await;
    // An instance calls every server within a second, and so learns of another primary.
    again(async || delivers.engine.first_checks(&HashMap::new()).await).await;
    if loss.is_return_first {
        let (offline, online) = told(&other.deliveries("hook", now).await);
        assert!(online.is_empty(), "no receiver seems to know its silence: {online:?}");
        assert!(offline.iter().all(|one| *one == id(lasts)), "{offline:?}");
    }
    let mut written = 0;
    until("the silences are compared", async || {
        written += delivers.compare(now).await;
        delivers.engine.doubtful().await.unwrap().is_empty()
    })
    .await;
    println!("{written} records were written again");
    assert_eq!(told(&other.deliveries("hook", now).await), (vec![], vec![id(returns)]));
    let open =
        other.engine.record(&records.iter().find(|one| one.id.unit == *lasts).unwrap().id).await.unwrap();
    assert_eq!(open.as_ref(), records.iter().find(|one| one.id.unit == *lasts), "the same facts");
    let all: Vec<u16> = (0..other.engine.partitions()).collect();
    assert!(
        other.engine.first_reminder(&all).await.unwrap().is_some(),
        "receivers are reminded of what lasts"
    );
    // The other receiver has acknowledged nothing.
    let (offline, online) = told(&other.deliveries("mail", now + 120 * SECOND).await);
    assert!(offline.contains(&id(lasts)), "{offline:?}");
    assert!(online.iter().all(|back| offline.contains(back)), "{offline:?} {online:?}");

    let now = now + 180 * SECOND;
    assert_eq!(delivers.compare(now).await, 0);
    other.hear(lasts, now).await;
    assert_eq!(told(&other.deliveries("hook", now).await), (vec![], vec![id(lasts)]));
    assert_eq!(told(&other.deliveries("mail", now).await), (vec![], vec![id(lasts)]));
    assert_eq!(delivers.compare(now).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silence_that_a_failover_lost_is_written_again_and_its_return_is_notified_with_sentinel() {
    let sentinel = Sentinel::start(SentinelPlan::new(1)).await;
    let (units, group) = names(|_| true, |_| true);
    let url = sentinel.url();
    let loss = Loss { partition: 0, is_return_first: false };
    nothing_is_forgotten(Servers::Sentinel(sentinel), url, units, group, loss).await;
}

/// The units and the group are on different primaries, of which one dies.
async fn in_a_cluster(units_are_lost: bool, is_return_first: bool) {
    let cluster = Cluster::start(ClusterPlan::new(1)).await;
    let servers = Servers::Cluster(cluster);
    let first = servers.primary(0).await;
    let mut on_first = Vec::new();
    for partition in 0..PARTITIONS {
        on_first.push(servers.primary(partition).await == first);
    }
    let (units, group) = names(|one| on_first[usize::from(one)], |one| !on_first[usize::from(one)]);
    let lost = if units_are_lost { 0 } else { partition_of_group(&group.key, PARTITIONS) };
    let Servers::Cluster(cluster) = &servers else { unreachable!("it was made above") };
    let url = cluster.url();
    nothing_is_forgotten(servers, url, units, group, Loss { partition: lost, is_return_first }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silence_whose_primary_is_lost_is_written_again_and_its_return_is_notified() {
    in_a_cluster(true, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silence_whose_group_is_lost_is_marked_again_and_its_return_is_notified() {
    in_a_cluster(false, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_return_that_joins_before_its_lost_silence_is_marked_again_is_notified() {
    in_a_cluster(false, true).await;
}

/// The primary dies after the receiver has acknowledged, and before that is recorded.
#[tokio::test(flavor = "multi_thread")]
async fn a_silence_whose_delivery_was_not_recorded_before_a_failover_is_written_again() {
    let sentinel = Sentinel::start(SentinelPlan::new(1)).await;
    let ([unit, ..], group) = names(|_| true, |_| true);
    let url = sentinel.url();
    let mut servers = Servers::Sentinel(sentinel);
    let delivers = Instance::new(&url, &group).await;
    let other = Instance::new(&url, &group).await;
    delivers.roll.canary_returned(BEGIN).await.unwrap();
    delivers.hear(&unit, BEGIN).await;
    servers.are_replicated(0).await;
    leave_behind(servers.nodes(), 0, &[1]).await;
    let now = BEGIN + SILENT;
    let gap = Gap { blind: 2 * SILENT, tell_after: 2 * SILENT };
    delivers.engine.advance(&Subscription::Plain, now, gap).await.unwrap();
    delivers.roll.refresh_hearing().await.unwrap();
    delivers.roll.check_deadlines(std::slice::from_ref(&unit), now).await.unwrap();
    let leased = delivers.leased("hook", now).await;
    let (silences, returns) = told(&leased);
    assert_eq!((silences.len(), returns.len()), (1, 0));
    let ended = leased.iter().map(|one| Ended {
        delivery: Arc::new(one.clone()),
        end: End::Delivered,
        attempt: None,
    });
    delivers.engine.keep_acknowledged(&ended.collect::<Vec<_>>(), now);
    assert_eq!(delivers.compare(now).await, 0, "nothing is lost yet");
    assert_eq!(delivers.engine.wait_for_doubtful().now_or_never(), None);

    servers.fail_over(0, &[1]).await;
    let now = now + 10 * SECOND;
    tokio::time::timeout(60 * SECOND, delivers.engine.wait_for_doubtful())
        .await
        .expect("another primary is learned");
    let mut written = 0;
    until("the silence is compared", async || {
        written += delivers.compare(now).await;
        delivers.engine.doubtful().await.unwrap().is_empty()
    })
    .await;
    assert_eq!(written, 1);
    other.hear(&unit, now).await;
    assert_eq!(told(&other.deliveries("hook", now).await), (vec![], silences));
}

/// Two units, in different partitions.
fn two_apart(partitions: u16) -> [Unit; 2] {
    let unit = |number: usize| format!("detector:unit-{number}").parse::<Unit>().unwrap();
    let of = |unit: &Unit| partition_of(unit, partitions);
    let first = unit(0);
    let other = (1..).map(unit).find(|other| of(other) != of(&first)).expect("there are many");
    [first, other]
}

/// The instance that delivered a silence compares late. Until then a return is notified, and the silence waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_silence_that_another_instance_finds_again_is_not_notified_again() {
    let sentinel = Sentinel::start(SentinelPlan::new(1)).await;
    let (_, group) = names(|_| true, |_| true);
    let url = sentinel.url();
    let mut servers = Servers::Sentinel(sentinel);
    let delivers = Instance::new(&url, &group).await;
    let other = Instance::new(&url, &group).await;
    for (name, instance) in [("delivers", &delivers), ("other", &other)] {
        instance.engine.renew(name, 60 * SECOND, None).await.unwrap();
    }
    let units = two_apart(other.engine.partitions());
    let [returns, lasts] = &units;
    let partition = partition_of(returns, other.engine.partitions());
    delivers.roll.canary_returned(BEGIN).await.unwrap();
    delivers.hear(returns, BEGIN).await;
    delivers.hear(lasts, BEGIN + SILENT).await;
    delivers.find(&units, BEGIN + SILENT).await;
    let (before, _) = told(&delivers.deliveries("hook", BEGIN + SILENT).await);
    assert_eq!(before.len(), 1);
    servers.are_replicated(0).await;
    leave_behind(servers.nodes(), 0, &[1]).await;
    let now = BEGIN + 2 * SILENT;
    delivers.find(&units, now).await;
    assert_eq!(told(&delivers.deliveries("hook", now).await).0.len(), 1);
    assert_eq!(delivers.compare(now).await, 0, "nothing is lost yet");

    servers.fail_over(0, &[1]).await;
    let now = now + 10 * SECOND;
    for instance in [&delivers, &other] {
        let learned = tokio::time::timeout(60 * SECOND, instance.engine.wait_for_doubtful());
        learned.await.expect("another primary is learned");
    }
    other.find(&units, now).await;
    assert_eq!(other.engine.records(true, None, 10).await.unwrap().len(), 2, "it is found again");
    other.hear(returns, now).await;
    assert_eq!(other.compare(now).await, 0);
    let is_notified = AtomicBool::new(false);
    let notifies = async {
        let deliveries = other.deliveries("hook", now).await;
        is_notified.store(true, Ordering::SeqCst);
        deliveries
    };
    let compares = async {
        let of_return = again(async || other.engine.outbox(&[partition], 10).await).await;
        assert_eq!(of_return.len(), 1, "a return does not wait for it");
        for _ in 0..CALLS {
            again(async || other.engine.outbox(&[partition], 10).await).await;
        }
        assert!(!is_notified.load(Ordering::SeqCst), "the silence waits");
        until("it is compared", async || {
            assert_eq!(delivers.compare(now).await, 0);
            delivers.engine.doubtful().await.unwrap().is_empty()
        })
        .await;
    };
    let (deliveries, ()) = tokio::join!(notifies, compares);
    assert_eq!(told(&deliveries), (vec![], before));
    other.hear(lasts, now + SECOND).await;
    assert_eq!(told(&other.deliveries("hook", now + SECOND).await).1.len(), 1, "its return is notified");
}
