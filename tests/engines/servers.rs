//! Several servers as an operator sees them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::cmd;
use rollcall::clock::{Clock, Timestamp};
use rollcall::presence::{Interval, NewTimer, TimerId};
use rollcall::store::redis::{RedisConfig, servers, survey};
use rollcall::store::{
    Advance, Capacity, Destinations, EngineError, Examine, Gap, Group, HearingStore, Join, Layout,
    OutboxStore, Pace, Queries, Roster, ServerCondition, StoredDeliveries, StoredGroups, StoredTimers,
    Subscription, Warning, partition_of_group,
};
use rollcall::telemetry::{EngineWarning, Telemetry};

use crate::conformance::world::kept_session;
use crate::endpoints::is_served;
use crate::support;
use crate::support::cluster::{Cluster, ClusterPlan};
use crate::support::connect::connected;
use crate::support::node::{Node, Place, until};
use crate::support::sentinel::{SERVICE, Sentinel, SentinelPlan};

fn config(url: String) -> RedisConfig {
    RedisConfig { url, ..RedisConfig::default() }
}

fn now() -> Timestamp {
    Clock::system().now()
}

fn telemetry() -> Arc<Telemetry> {
    Arc::new(Telemetry::new(&Clock::system()))
}

async fn seen(config: &RedisConfig) -> Vec<ServerCondition> {
    servers(config, now(), telemetry()).await.unwrap()
}

fn count(all: &[ServerCondition], role: &str) -> usize {
    all.iter().filter(|one| one.state.as_ref().is_ok_and(|state| state.starts_with(role))).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_server_of_a_cluster_is_examined_and_one_without_a_replica_is_named() {
    let mut cluster = Cluster::start(ClusterPlan::new(1)).await;
    let config = config(cluster.url());
    let engine = connected(&config, telemetry()).await;
    let all = seen(&config).await;
    assert_eq!((count(&all, "primary, "), count(&all, "replica of ")), (3, 3), "{all:?}");
    assert!(all.iter().all(|one| one.warnings.is_empty()), "{all:?}");
    assert_eq!(engine.examine(now()).await.unwrap(), []);

    cluster.nodes[3].kill();
    let address = cluster.nodes[0].address();
    let missing = async || {
        let warnings = engine.examine(now()).await.unwrap();
        let missing = warnings.into_iter().find(|one| one.name == EngineWarning::ReplicaMissing);
        missing.is_some_and(|warning| warning.text.contains(&address))
    };
    until("the loss of the replica is named", missing).await;
}

/// By each instance, so that none goes on with what it read of them before.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_of_a_cluster_that_are_emptied_are_noticed_by_every_instance() {
    let cluster = Cluster::start(ClusterPlan::new(0)).await;
    let config = config(cluster.url());
    let connect = async || connected(&config, telemetry()).await;
    let instances = [connect().await, connect().await];
    let gap = Gap { blind: Duration::from_secs(1), tell_after: Duration::from_secs(1) };
    let hear = async |second: u64| {
        let at = Timestamp::from_millis(1_700_000_000_000) + Duration::from_secs(second);
        for instance in &instances {
            instance.advance(&Subscription::Plain, at, gap).await.unwrap();
        }
        instances.each_ref().map(|instance| instance.fleet_id())
    };
    hear(0).await;
    let before = hear(1).await;
    let watermark: String = "rollcall:{p3*}:heard".to_owned();
    let mut removed = 0;
    for node in &cluster.nodes {
        for key in node.ask::<Vec<String>>(cmd("KEYS").arg(&watermark)).await {
            removed += node.ask::<usize>(cmd("DEL").arg(key)).await;
        }
    }
    assert!(removed > 0);
    hear(2).await;
    let after = hear(3).await;
    assert!(after.iter().zip(&before).all(|(after, before)| after != before), "{before:?} {after:?}");
    assert_eq!(after[0], after[1]);
    assert_eq!(hear(4).await, after, "once");
    assert_eq!(connect().await.fleet_id(), after[0]);
    let shown = instances[0].examine(Timestamp::from_millis(1_700_000_060_000)).await.unwrap();
    let text = shown.into_iter().find(|one| one.name == EngineWarning::LostItsData).map(|one| one.text);
    assert!(text.is_some_and(|text| text.contains("lost its part of the fleet")), "it is shown");
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_differ_from_the_one_of_hearing_are_named_also_those_of_replicas() {
    let ahead = support::clock::Clock::right();
    ahead.step("+3600");
    let place = Place { before: ahead.before(), ..Place::default() };
    // The clock is wrong at a primary, and at a replica of another one; hearing has a slot of the first third.
    let right = Place::default();
    let places = [&right, &place, &right, &right, &right, &place].map(Place::clone).to_vec();
    let cluster = Cluster::start(ClusterPlan { places, ..ClusterPlan::new(1) }).await;
    let config = config(cluster.url());
    let expected = [1, 5].map(|number| format!("that of {} is ", cluster.nodes[number].address()));
    let of_hearing = cluster.nodes[cluster.primary_of("rollcall:{hearing}:heard").await].address();
    let found: Vec<ServerCondition> =
        seen(&config).await.into_iter().filter(|one| !one.warnings.is_empty()).collect();
    for (expected, found) in expected.iter().zip(&found) {
        let [Warning { name: EngineWarning::ServerClockOff, text }] = &found.warnings[..] else {
            panic!("{found:?}")
        };
        assert!(text.contains(expected) && text.contains(&format!("the clock of {of_hearing}")), "{text}");
    }
    assert_eq!(found.len(), 2, "{found:?}");
    let engine = connected(&config, telemetry()).await;
    let warnings = engine.examine(now()).await.unwrap();
    let [Warning { name: EngineWarning::ServerClockOff, text }] = &warnings[..] else {
        panic!("{warnings:?}")
    };
    assert!(
        expected.iter().all(|expected| text.contains(expected)) && text.contains("ms ahead of it"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_does_not_answer_hides_no_other_server() {
    let mut cluster = Cluster::start(ClusterPlan::new(0)).await;
    let config = config(cluster.url());
    let telemetry = telemetry();
    let engine = connected(&config, telemetry.clone()).await;
    let address = cluster.nodes[1].address();
    cluster.nodes[1].kill();
    let all = seen(&config).await;
    let failed: Vec<&str> =
        all.iter().filter(|one| one.state.is_err()).map(|one| one.address.as_str()).collect();
    assert_eq!((failed, count(&all, "primary, ")), (vec![address.as_str()], 2), "{all:?}");
    let mut warnings = engine.examine(now()).await.unwrap();
    let named = |one: &Warning| one.name == EngineWarning::ServerDown;
    assert!(!warnings.iter().any(named), "a failover may be under way");
    until("it is a warning", async || {
        warnings = engine.examine(now()).await.unwrap();
        warnings.iter().any(named)
    })
    .await;
    let down = warnings.iter().find(|one| named(one)).expect("it came");
    assert!(down.text.contains(&address), "{down:?}");
    assert!(warnings.iter().any(|one| one.name == EngineWarning::ReplicaMissing), "{warnings:?}");
    let up = |server: &str| crate::support::metrics::sum(&telemetry, "rollcall_engine_up", &[server]);
    assert_eq!(up(&address), Some(0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_are_examined_beside_the_primary_and_its_replicas() {
    let sentinel = Sentinel::start(SentinelPlan::new(2)).await;
    let all = seen(&config(sentinel.url())).await;
    assert_eq!(count(&all, "primary, "), 1, "{all:?}");
    assert_eq!(count(&all, "replica of "), 2, "{all:?}");
    assert_eq!(count(&all, "sentinel, "), 3, "{all:?}");
    assert!(all.iter().all(|one| one.warnings.is_empty()), "{all:?}");
}

/// The former primary takes writes for a second after the promotion, and its other replica acknowledges them.
#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_of_sentinel_loses_no_timer_that_was_answered() {
    let sentinel = Sentinel::start(SentinelPlan::new(2)).await;
    let engine = connected(&config(sentinel.url()), telemetry()).await;
    let timers = StoredTimers::new(Arc::new(engine));
    for one in &sentinel.sentinels {
        until("its events are followed", async || {
            let clients: String = one.ask(cmd("CLIENT").arg("LIST")).await;
            clients.contains(" sub=2 ")
        })
        .await;
    }
    let is_over = AtomicBool::new(false);
    let register = async {
        let mut answered = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let id: TimerId = format!("t{}", answered.len()).parse().unwrap();
            let due = now() + Duration::from_secs(3600);
            let new = NewTimer {
                is_span: false,
                id: id.clone(),
                timer_type: "report".parse().unwrap(),
                due,
                data: "null".parse().unwrap(),
            };
            if timers.register(&[new], false).await.is_ok() {
                answered.push(id);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        answered
    };
    let fail_over = async {
        for _ in 0..3 {
            let former = sentinel.failover().await;
            sentinel.until_whole().await;
            let used = async || timers.count_timers(&[0]).await.is_ok() && sentinel.primary().await == former;
            until("the new primary serves", used).await;
        }
        is_over.store(true, Ordering::Relaxed);
    };
    let (answered, ()) = tokio::join!(register, fail_over);
    let found = timers.timers(&answered).await.unwrap();
    let lost: Vec<&TimerId> =
        answered.iter().zip(&found).filter_map(|(id, found)| found.is_none().then_some(id)).collect();
    assert!(answered.len() > 100 && lost.is_empty(), "{} answered, lost: {lost:?}", answered.len());
}

/// The blind interval that a canary of this subscription ended.
async fn ended(
    engine: &impl HearingStore,
    subscription: &Subscription,
    at: Timestamp,
    gap: Gap,
) -> Option<Interval> {
    match engine.advance(subscription, at, gap).await.unwrap() {
        Advance::Heard(blind) => blind,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_server_whose_clock_jumps_forward_makes_the_time_up_to_the_canary_blind() {
    let (clock, dir) = (support::clock::Clock::right(), tempfile::tempdir().unwrap());
    let node = Node::start_in(dir.path(), "", &Place { before: clock.before(), ..Place::default() });
    let engine = connected(&config(format!("redis://{}", node.address())), telemetry()).await;
    let lease = Duration::from_secs(60);
    engine.renew("alpha", lease, None).await.unwrap();
    let began = now();
    let at = |second: u64| began + Duration::from_secs(second);
    let gap = Gap { blind: Duration::from_secs(10), tell_after: Duration::from_secs(10) };
    let hear = async |second: u64| ended(&engine, &kept_session("alpha", 1), at(second), gap).await;
    assert_eq!([hear(0).await, hear(1).await], [None, None]);
    clock.step("+3600");
    engine.renew("alpha", lease, None).await.unwrap();
    let blind = hear(2).await.unwrap();
    assert_eq!(blind.to, at(2));
    assert!(blind.from < began, "{}", blind.from);
    assert_eq!(hear(3).await, None);
}

/// The keys of its units have expired too early, whichever session hears the fleet, and since when.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_whose_clock_jumps_forward_makes_the_time_up_to_the_canary_blind() {
    let clock = support::clock::Clock::right();
    clock.step("-3602");
    let right = Place::default();
    let places = [right.clone(), Place { before: clock.before(), ..Place::default() }, right].to_vec();
    let cluster = Cluster::start(ClusterPlan { places, ..ClusterPlan::new(0) }).await;
    let engine = connected(&config(cluster.url()), telemetry()).await;
    engine.renew("alpha", Duration::from_secs(60), None).await.unwrap();
    let began = now();
    let at = |second: u64| began + Duration::from_secs(second);
    let gap = Gap { blind: Duration::from_secs(10), tell_after: Duration::from_secs(10) };
    let hear = async |second: u64| ended(&engine, &kept_session("alpha", 1), at(second), gap).await;
    assert_eq!([hear(0).await, hear(1).await], [None, None]);
    // The second jump is shorter than any gap that counts otherwise.
    for (second, offset, jump) in [(2, "-2", 3600), (4, "+0", 2)] {
        clock.step(offset);
        let blind = hear(second).await.unwrap();
        assert_eq!(blind.to, at(second), "{offset}");
        let expected = at(second - 1) - Duration::from_secs(jump);
        let apart = (blind.from.as_millis() - expected.as_millis()).abs();
        assert!(apart < 500, "{offset}: from {}, and not about {expected}", blind.from);
        assert_eq!(hear(second + 1).await, None, "{offset}");
    }
}

/// A server that refuses a canary as a former primary may have answered heartbeats that the new one lacks.
#[tokio::test(flavor = "multi_thread")]
async fn a_canary_that_goes_to_the_new_primary_after_all_ends_a_blind_interval() {
    let sentinel = Sentinel::start(SentinelPlan::new(1)).await;
    let engine = connected(&config(sentinel.url()), telemetry()).await;
    let at = |second: u64| Timestamp::from_millis(1_700_000_000_000) + Duration::from_secs(second);
    let gap = Gap { blind: Duration::from_secs(10), tell_after: Duration::from_secs(10) };
    let hear = async |second: u64| ended(&engine, &Subscription::Plain, at(second), gap).await;
    assert_eq!([hear(0).await, hear(1).await], [None, None]);
    let [former, heir] = &sentinel.servers[..] else { panic!("there are two") };
    let heard = cmd("HGET").arg("rollcall:{hearing}:heard").arg("at").to_owned();
    until("the replica has it", async || heir.ask::<i64>(&heard).await == at(1).as_millis()).await;

    // No sentinel names a primary until the former one has refused the canary.
    for one in &sentinel.sentinels {
        one.ask::<()>(cmd("SENTINEL").arg("REMOVE").arg(SERVICE)).await;
    }
    heir.ask::<()>(cmd("REPLICAOF").arg("NO").arg("ONE")).await;
    former.ask::<()>(cmd("CONFIG").arg("SET").arg("min-replicas-to-write").arg(1)).await;
    let is_promoted = async {
        let refused = async || former.info("errorstats").await.unwrap().contains("errorstat_NOREPLICAS");
        until("the former primary refuses the canary", refused).await;
        let watch = cmd("SENTINEL").arg("MONITOR").arg(SERVICE).arg(heir.host()).arg(heir.port()).to_owned();
        for one in &sentinel.sentinels {
            one.ask::<()>(watch.clone().arg(2)).await;
        }
    };
    let (blind, ()) = tokio::join!(hear(2), is_promoted);
    assert_eq!(blind, Some(Interval { from: at(1), to: at(2) }));
    assert_eq!(hear(3).await, None);
}

/// As when an operator adds a primary: a slot with many keys is between two servers for long.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_is_loaded_at_a_primary_to_which_another_one_refers() {
    let cluster = Cluster::start(ClusterPlan::new(0)).await;
    let config = config(cluster.url());
    is_served(cluster, config).await;
}

/// The group is on another server than the outbox, and that server dies right after the event has joined.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_stays_in_its_outbox_if_the_server_of_its_group_dies_and_joins_again() {
    let mut cluster = Cluster::start(ClusterPlan::new(1)).await;
    let config = config(cluster.url());
    let telemetry = telemetry();
    let engine = std::sync::Arc::new(connected(&config, telemetry.clone()).await);
    let partitions: Vec<u16> = (0..engine.partitions()).collect();
    let outbox = [engine.partitions()];
    let hearing = cluster.primary_of("rollcall:{hearing}:outbox").await;
    // Partitions are dealt over the slots in order.
    let is_elsewhere = |number: usize| number != hearing;
    let victim = (0..3).find(|number| is_elsewhere(*number)).unwrap();
    let slot = cluster.slot_at(victim).await;
    let partition = usize::from(slot) * usize::from(engine.partitions()) / 16384 + 1;
    let key = |number: usize| format!("group-{number}");
    let is_there = |key: &String| usize::from(partition_of_group(key, engine.partitions())) == partition;
    let key = (0..).map(key).find(is_there).unwrap();
    let group = Group { key, labels: BTreeMap::new() };

    let blind = async |at: u64| {
        let gap = Gap { blind: Duration::from_secs(1), tell_after: Duration::from_secs(1) };
        let moment = Timestamp::from_millis(1_700_000_000_000) + Duration::from_secs(at);
        engine.advance(&Subscription::Plain, moment, gap).await.unwrap();
    };
    let receivers = ["hook".to_owned()];
    let pace = Pace::AT_ONCE;
    let joined = async || {
        let entries = engine.outbox(&outbox, 100).await?;
        let joins: Vec<Join> = entries
            .iter()
            .map(|entry| Join { groups: vec![group.clone()], event: entry.event.clone() })
            .collect();
        let to = Destinations::all(pace, &receivers);
        let joined = StoredGroups::new(engine.clone()).join(&joins, &to, &Capacity::NONE, now()).await?;
        let positions: Vec<_> = entries.into_iter().map(|entry| entry.position).collect();
        Ok::<_, EngineError>((positions, joined.groups))
    };
    let join = async || {
        let (positions, groups) = joined().await?;
        engine.remove_entries(&positions, &groups).await.map(|()| positions.len())
    };
    let length = async |cluster: &Cluster| {
        let mut command = redis::cmd("XLEN");
        command.arg("rollcall:{hearing}:outbox");
        cluster.nodes[hearing].ask::<usize>(&command).await
    };

    // The other nodes learn of a new replica from each other.
    let is_replicated = || {
        crate::support::metrics::sum(&telemetry, "rollcall_engine_replica_waits_total", &["ok"])
            .is_some_and(|n| n > 0.0)
    };
    let mut at = 0;
    until("replicas have what joined", async || {
        at += 100;
        blind(at).await;
        join().await.unwrap();
        is_replicated()
    })
    .await;
    assert_eq!(length(&cluster).await, 0, "replicas have what joined");
    let leased = StoredDeliveries::new(engine.clone())
        .lease(&partitions, "hook", now(), now() + Duration::from_secs(60), 10)
        .await
        .unwrap();
    StoredDeliveries::new(engine.clone()).delivered(&leased, now()).await.unwrap();

    let replica = cluster.replicas_of(victim).await[0];
    cluster.nodes[replica].freeze();
    blind(at + 100).await;
    let (positions, groups) = joined().await.unwrap();
    assert_eq!((positions.len(), length(&cluster).await), (1, 1));
    cluster.nodes[victim].kill();
    let removed = engine.remove_entries(&positions, &groups).await;
    assert!(
        matches!(&removed, Err(EngineError::Passing(why)) if why.contains("they join again")),
        "{removed:?}"
    );
    assert_eq!(length(&cluster).await, 1, "it may be lost with the server");
    cluster.nodes[replica].thaw();
    cluster.until_moved(slot, victim).await;
    until("the event joins again", async || join().await.is_ok_and(|count| count == 1)).await;
    let leased = StoredDeliveries::new(engine.clone())
        .lease(&partitions, "hook", now(), now() + Duration::from_secs(60), 10)
        .await
        .unwrap();
    assert_eq!(leased.len(), 1, "{leased:?}");
    assert_eq!(length(&cluster).await, 0, "nothing waits for a replica that is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_finds_a_refused_login_and_each_primary_that_refuses_writes() {
    let cluster = Cluster::start(ClusterPlan::new(0)).await;
    let config = config(cluster.url());
    connected(&config, telemetry()).await;
    let found = async |config: &RedisConfig| {
        survey(config, now(), telemetry()).await.err().map(|why| why.to_string())
    };
    assert_eq!(found(&config).await, None);
    for node in &cluster.nodes {
        let limit =
            async |bytes: u8| node.ask::<()>(cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes)).await;
        limit(1).await;
        let why = found(&config).await.expect("it refuses writes");
        assert!(why.contains("maxmemory"), "{why}");
        limit(0).await;
    }
    let url = cluster.url().replace("redis-cluster://", "redis-cluster://nobody@");
    let nobody = RedisConfig { url, password: Some("wrong".to_owned()), ..config };
    let why = found(&nobody).await.expect("there is no such user");
    assert!(why.contains("refused the login") && !why.contains("slots"), "{why}");
}
