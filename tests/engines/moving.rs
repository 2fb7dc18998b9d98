//! `rollcall move`: a fleet is migrated from one engine to another, with everything that is still to be
//! notified.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use redis::cmd;
use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::{HearingConfig, Rules};
use rollcall::fleet::{Mirror, Roll, Silences, UnitChange};
use rollcall::presence::{
    Acknowledgement, Change, Closing, Filters, Guarantee, Heartbeat, IndexChange, KeyChange, Kind, KindRules,
    NewTimer, OfflineRecord, Override, Probed, Registration, TimerClass, Unit,
};
use rollcall::routing::{alert_silence::SilenceRequest, parse_label_matchers};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::{
    AttemptEnd, AttemptMade, Capacity, ChangeSet, Delivery, Destination, Destinations, EndedLease, Engine,
    EngineError, Escalation, FollowUps, Gap, Group, HearingStore, Index, Join, MeantFor, OutboxEvent,
    OutboxStore, Pace, Reading, ReceiverName, Roster, StoredDeliveries, StoredGroups, Subscription, Table,
    TimerCapacity, UnitStore, partition_of, partition_of_group,
};
use rollcall::store::{Layout, StoredTimers};
use rollcall::store::{embedded, embedded::EmbeddedEngine, embedded::EmbeddedImporter};
use rollcall::store::{
    migration::Exporter, migration::Importer, migration::MigrationItem, migration::Moved, migration::migrate,
};
use rollcall::store::{redis as on_redis, redis::RedisEngine, redis::RedisImporter};
use rollcall::telemetry::Telemetry;
use tempfile::TempDir;
use tokio::sync::Notify;

use crate::support::cluster::{Cluster, ClusterPlan};
use crate::support::sentinel::{Sentinel, SentinelPlan};

mod alerts;
mod replaced;

const BEGIN: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// Units share the groups.
const PACE: Pace = Pace { is_shared: true, ..Pace::new(MINUTE, HOUR) };
/// A gap that nothing exceeds.
const NEVER: Gap = Gap { blind: Duration::from_secs(1 << 40), tell_after: Duration::from_secs(1 << 40) };

fn hours(hours: u32) -> Timestamp {
    BEGIN + hours * HOUR
}

fn telemetry() -> Arc<Telemetry> {
    Arc::new(Telemetry::new(&Clock::by_hand(BEGIN)))
}

fn unit(number: usize) -> Unit {
    format!("detector:unit-{number:03}").parse().unwrap()
}

/// A server and a directory to migrate between.
struct Places {
    dir: TempDir,
    redis: Server,
}

impl Places {
    fn new() -> Places {
        let dir = TempDir::new().unwrap();
        let redis = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &[]).unwrap();
        Places { dir, redis }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.redis.port())
    }

    fn on_redis(&self) -> on_redis::RedisConfig {
        on_redis::RedisConfig { url: self.url(), ..on_redis::RedisConfig::default() }
    }

    fn embedded(&self, name: &str) -> embedded::EmbeddedConfig {
        embedded::EmbeddedConfig { path: self.dir.path().join(name), partitions: Some(16) }
    }

    async fn open(&self, name: &str) -> Arc<EmbeddedEngine> {
        Arc::new(EmbeddedEngine::open(&self.embedded(name), telemetry()).await.unwrap())
    }

    async fn connect(&self) -> Result<Arc<RedisEngine>, EngineError> {
        RedisEngine::connect(&self.on_redis(), telemetry()).await.map(Arc::new)
    }

    async fn to_redis(&self) -> Result<RedisImporter, EngineError> {
        RedisImporter::prepare(&self.on_redis(), telemetry()).await
    }

    async fn to_directory(&self, name: &str) -> Result<EmbeddedImporter, EngineError> {
        EmbeddedImporter::prepare(&self.embedded(name)).await
    }
}

/// The fleet on an engine, with simulated time.
async fn roll(engine: Arc<dyn Engine>) -> Roll {
    let kind: Kind = "detector".parse().unwrap();
    let rules = Arc::new(Rules::from_iter([(kind.clone(), KindRules::new(kind))]));
    let mirror = Arc::new(Mirror::of(&*engine, rules.clone(), &[]));
    let (gap, settle) = (Duration::from_secs(3), 5 * MINUTE);
    let config = HearingConfig { gap, follows: false, settle, tell_after: 5 * MINUTE };
    let roll = Roll::new(engine, rules, mirror, telemetry(), config, Arc::new(Notify::new()));
    roll.refresh_hearing().await.unwrap();
    roll
}

async fn hear(roll: &Roll, units: impl Iterator<Item = usize>, at: Timestamp) {
    let beat = |number| Heartbeat::of(unit(number), at);
    roll.hear(&units.map(beat).collect::<Vec<_>>(), at).await.unwrap();
}

fn receivers() -> [String; 2] {
    ["hook".to_owned(), "mail".to_owned()]
}

fn group(name: &str) -> Group {
    let labels = [("kind".to_owned(), name.to_owned())].into();
    Group { key: format!("kind={name}"), labels }
}

fn joins(events: &[OutboxEvent], group: &Group) -> Vec<Join> {
    events.iter().map(|event| Join { groups: vec![group.clone()], event: event.clone() }).collect()
}

/// Two groups of one partition.
fn in_one_partition(partitions: u16) -> [Group; 2] {
    let mut groups: Vec<Group> = (0..).map(|n| group(&n.to_string())).take(100).collect();
    groups.sort_by_key(|group| partition_of_group(&group.key, partitions));
    let pair = groups.windows(2).find(|pair| {
        partition_of_group(&pair[0].key, partitions) == partition_of_group(&pair[1].key, partitions)
    });
    pair.unwrap().to_vec().try_into().unwrap()
}

/// A fleet with at least one item of every kind.
async fn fill(engine: Arc<dyn Engine>) {
    let roll = roll(engine.clone()).await;
    roll.canary_returned(BEGIN).await.unwrap();
    hear(&roll, 0..60, BEGIN).await;
    let wanted =
        Registration { set: Override { timeout: Some(5 * HOUR), grace: None }, ..Registration::default() };
    roll.register(&unit(7), &wanted, BEGIN).await.unwrap();
    roll.register(&unit(900), &Registration::default(), BEGIN).await.unwrap();
    roll.retire(&unit(8), BEGIN).await.unwrap();
    let value = Reading { unit: &unit(9), metric: "battery", at: BEGIN, value: "87" };
    assert_eq!(engine.keep_values(&[value]).await.unwrap(), [true]);
    let name = unit(9).to_string();
    let flaps = ChangeSet::of(partition_of(&unit(9), engine.partitions()))
        .put(Table::Flaps, &name, Some(br#"{"last":1}"#))
        .enter(Index::FlapChecks, &name, Some(BEGIN.as_millis()));
    assert_eq!(engine.write_cells(&[flaps]).await.unwrap(), [true]);
    // Ten minutes are blind, and notified; heartbeats go on except for those of five units.
    engine
        .advance(&Subscription::Plain, BEGIN + 10 * MINUTE, Gap { blind: MINUTE, tell_after: MINUTE })
        .await
        .unwrap();
    hear(&roll, 10..58, hours(40)).await;
    engine.advance(&Subscription::Plain, hours(60), NEVER).await.unwrap();
    roll.refresh_hearing().await.unwrap();
    let silent: Vec<Unit> = (0..6).chain(58..60).map(unit).collect();
    roll.check_deadlines(&silent, hours(60)).await.unwrap();
    hear(&roll, 0..1, hours(60) + MINUTE).await;
    let ana =
        Acknowledgement { at: hours(60), author: "ana".to_owned(), comment: "on \"my\" way".to_owned() };
    for (of, change) in [(1, UnitChange::Acknowledge(Some(ana))), (20, UnitChange::Pause(Some(hours(90))))] {
        let done = roll.change(&unit(of), None, &change, hours(60), std::future::ready(Ok(()))).await;
        assert!(done.unwrap(), "{change:?}");
    }
    let wanted = SilenceRequest {
        matchers: parse_label_matchers("site=\"nor\\\"th\",kind=~\"a,b\"").unwrap(),
        starts_at: hours(60),
        ends_at: hours(70),
        author: "ana".to_owned(),
        comment: "cable works".to_owned(),
    };
    Silences::new(engine.clone()).put(None, wanted, "ana", hours(60)).await.unwrap();
    // Some events are sealed, one waits in its group, two are leased by an instance that is gone, and
    // the rest have joined no group.
    let outboxes: Vec<u16> = (0..=engine.partitions()).collect();
    let partitions: Vec<u16> = (0..engine.partitions()).collect();
    let mut entries = engine.outbox(&outboxes, 1000).await.unwrap();
    assert_eq!(entries.len(), 11, "eight silences, a return, an acknowledgement and an interval");
    entries.retain(|entry| !entry.event.record().is_some_and(OfflineRecord::is_acknowledged));
    assert_eq!(entries.len(), 10);
    entries.sort_by_key(|entry| entry.event.record().map(|record| (record.unit.to_string(), record.back_at)));
    let events: Vec<OutboxEvent> = entries.iter().map(|entry| entry.event.clone()).collect();
    let receivers = receivers();
    let now = hours(61);
    StoredGroups::new(engine.clone())
        .join(
            &[joins(&events[..1], &group("blind")), joins(&events[1..4], &group("detector"))].concat(),
            &Destinations::all(PACE, &receivers),
            &Capacity::NONE,
            now,
        )
        .await
        .unwrap();
    StoredGroups::new(engine.clone())
        .seal(&partitions, &Destinations::all(PACE, &receivers), now + 2 * MINUTE)
        .await
        .unwrap();
    let later = now + 3 * MINUTE;
    let leased = StoredDeliveries::new(engine.clone())
        .lease(&partitions, "hook", later, later + MINUTE, 10)
        .await
        .unwrap();
    let of_silences = |all: &[Delivery]| all.iter().find(|one| !one.offline.is_empty()).unwrap().clone();
    let given_up = of_silences(&leased);
    StoredDeliveries::new(engine.clone()).dead_letter(&given_up, "410 Gone", later).await.unwrap();
    let leased = StoredDeliveries::new(engine.clone())
        .lease(&partitions, "mail", later, later + MINUTE, 10)
        .await
        .unwrap();
    let attempt = Some(AttemptMade { at: later, took: MINUTE, answer: "503 \"later\"".to_owned() });
    let ended =
        EndedLease { delivery: Arc::new(of_silences(&leased)), end: AttemptEnd::RetryAt(hours(62)), attempt };
    StoredDeliveries::new(engine.clone()).end_attempts(&[ended], later).await.unwrap();
    StoredGroups::new(engine.clone())
        .join(
            &joins(&events[4..5], &group("detector")),
            &Destinations::all(PACE, &receivers),
            &Capacity::NONE,
            later,
        )
        .await
        .unwrap();
    StoredGroups::new(engine.clone())
        .join(
            &joins(&events[5..6], &group("other")),
            &Destinations::all(PACE, &receivers),
            &Capacity::NONE,
            later,
        )
        .await
        .unwrap();
    let in_hand = events[8..].iter().zip(in_one_partition(engine.partitions()));
    let in_hand: Vec<Join> =
        in_hand.map(|(event, group)| Join { groups: vec![group], event: event.clone() }).collect();
    let (at_once, room) = (Pace::new(Duration::ZERO, HOUR), Capacity { most: vec![2, 1], until: later });
    let handed_out = StoredGroups::new(engine.clone())
        .join(&in_hand, &Destinations::all(at_once, &receivers), &room, later)
        .await
        .unwrap();
    assert_eq!(handed_out.sealed, 2);
    // "hook" takes nothing, and its fallback has got what waits but for the timers that follow.
    let since = StoredDeliveries::new(engine.clone()).down_since("hook", later).await.unwrap();
    let meant_for = MeantFor { receiver: "hook".to_owned(), since };
    assert_eq!(
        StoredDeliveries::new(engine.clone())
            .fall_back(&partitions, &meant_for, "spare", later)
            .await
            .unwrap(),
        3,
        "the interval, which waits for nothing, is a notification of its own"
    );
    fill_timers(engine.clone(), later).await;
    let source =
        ChangeSet::of(engine.partitions()).put(Table::Sources, "detector:gate", Some(br#"{"unit":"gate"}"#));
    assert_eq!(engine.write_cells(&[source]).await.unwrap(), [true]);
    let done: Vec<_> = entries[..6].iter().chain(&entries[8..]).map(|entry| entry.position.clone()).collect();
    engine.remove_entries(&done, &Default::default()).await.unwrap();
}

/// Two timers wait, one was cancelled, two have fired: receivers have got none of them.
async fn fill_timers(engine: Arc<dyn Engine>, now: Timestamp) {
    let timer = |name: &str, of: &str, due| NewTimer {
        is_span: false,
        id: name.parse().unwrap(),
        timer_type: of.parse().unwrap(),
        due,
        data: r#"{"a": [1.0, "\u00fc"]}"#.parse().unwrap(),
    };
    let class = TimerClass {
        timer_type: "report".parse().unwrap(),
        receivers: vec!["hook".to_owned()],
        guarantee: Guarantee::AtLeastOnce,
        keep: HOUR,
        most: 10,
    };
    let once =
        TimerClass { timer_type: "once".parse().unwrap(), guarantee: Guarantee::AtMostOnce, ..class.clone() };
    let classes = [class, once].map(|class| (class.timer_type.clone(), class)).into();
    let all = [
        timer("waits", "report", now + HOUR),
        timer("waits too", "once", now + HOUR),
        timer("is cancelled", "report", now + HOUR),
        timer("fires", "report", now),
        timer("fires once", "once", now),
    ];
    let engine = StoredTimers::new(engine);
    engine.register(&all, false).await.unwrap();
    engine.cancel(&[all[2].id.clone()], &classes, now).await.unwrap();
    let partitions: Vec<u16> = (0..engine.partitions()).collect();
    let due = engine.due_timers(&partitions, now, 10).await.unwrap();
    assert_eq!(engine.fire(&due, &classes, &TimerCapacity::NONE, now).await.unwrap().timers.len(), 2);
}

/// The whole contents, in an order that no engine decides.
async fn contents(engine: &impl Engine) -> Vec<String> {
    let mut all = Vec::new();
    let receivers: Vec<ReceiverName> = engine.receivers_with_cells().await.unwrap().into_iter().collect();
    for partition in 0..=engine.partitions() {
        for page in 0..engine.pages() {
            if partition < engine.partitions() {
                all.extend(engine.export_units(partition, page).await.unwrap());
            }
        }
        all.extend(engine.export_rest(partition, &receivers).await.unwrap());
    }
    let text = |item: &MigrationItem| match item {
        // Leases of an embedded engine end with its process: these are due at once then.
        MigrationItem::Entry { index: index @ Index::Queue(_), name, at, .. }
            if *at < hours(62).as_millis() =>
        {
            format!("{index} {name}")
        }
        item => format!("{item:?}"),
    };
    let mut all: Vec<String> = all.iter().map(text).collect();
    all.sort();
    all.push(format!("{:?}", engine.hearing().await.unwrap()));
    all
}

async fn carry(from: &impl Engine, to: &dyn Importer) -> Moved {
    migrate(from, to, |_| {}).await.unwrap()
}

#[tokio::test]
async fn a_fleet_is_the_same_after_a_migration_there_and_back() {
    let places = Places::new();
    let here = places.open("here").await;
    fill(here.clone()).await;
    let before = contents(&*here).await;
    let moved = carry(&*here, &places.to_redis().await.unwrap()).await;
    let expected = Moved {
        units: 61,
        values: 1,
        open_records: 7,
        closed_records: 1,
        unsealed: 5,
        undelivered: 12,
        dead_letters: 1,
        timers: 2,
        silences: 1,
        blind: 1,
    };
    assert_eq!(moved, expected);
    let there = places.connect().await.unwrap();
    similar(&contents(&*there).await, &before);
    let back = places.to_directory("back").await.unwrap();
    assert_eq!(carry(&*there, &back).await, expected);
    drop(back);
    let back = places.open("back").await;
    similar(&contents(&*back).await, &before);
    let here = seen(here.clone()).await;
    similar(&seen(there.clone()).await, &here);
    similar(&seen(back.clone()).await, &here);
}

#[tokio::test]
async fn a_fleet_of_a_cluster_is_the_same_after_a_migration_to_other_tags() {
    let places = Places::new();
    let fields = [("fleet", "0123456789abcdef"), ("layout", "10"), ("partitions", "48"), ("tags", "spread")];
    let server = redis::Client::open(places.url()).unwrap();
    let mut server = server.get_connection().unwrap();
    redis::cmd("HSET").arg("rollcall:meta").arg(&fields).exec(&mut server).unwrap();
    let here = places.connect().await.unwrap();
    assert_eq!(here.partitions(), 48);
    fill(here.clone()).await;
    let before = contents(&*here).await;
    let there = on_redis::RedisConfig { prefix: "there".into(), partitions: Some(48), ..places.on_redis() };
    carry(&*here, &RedisImporter::prepare(&there, telemetry()).await.unwrap()).await;
    let there = RedisEngine::connect(&there, telemetry()).await.unwrap();
    similar(&contents(&there).await, &before);
    similar(&seen(Arc::new(there)).await, &seen(here.clone()).await);
    let plain: Vec<String> = redis::cmd("KEYS").arg("there:{p[0-9]*.*").query(&mut server).unwrap();
    assert_eq!(plain, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_the_same_after_a_migration_to_a_cluster_to_sentinels_and_to_one_server() {
    let places = Places::new();
    let cluster = Cluster::start(ClusterPlan::new(0)).await;
    let sentinel = Sentinel::start(SentinelPlan::new(1)).await;
    let here = places.open("here").await;
    fill(here.clone()).await;
    let (before, heard) = (contents(&*here).await, here.hearing().await.unwrap().heard);
    drop(here);
    let last = place(&places.dir.path().join("last"));
    let mut from = place(&places.dir.path().join("here"));
    for url in [cluster.url(), sentinel.url(), places.url()] {
        let output = rollcall_move(&from, &url);
        assert_eq!(output.status.code(), Some(0), "{url}: {}", String::from_utf8(output.stderr).unwrap());
        let config = on_redis::RedisConfig { url: url.clone(), ..Default::default() };
        let there = RedisEngine::connect(&config, telemetry()).await.unwrap();
        assert_eq!(there.partitions(), 16, "the number of the source");
        similar(&contents(&there).await, &before);
        from = url;
    }
    assert_eq!(rollcall_move(&from, &last).status.code(), Some(0));
    let last = places.open("last").await;
    similar(&contents(&*last).await, &before);
    similar(&seen(last.clone()).await, &seen(places.open("here").await).await);

    let tags: String = cluster.ask("rollcall:meta", cmd("HGET").arg("rollcall:meta").arg("tags")).await;
    assert_eq!(tags, "spread");
    let mut shares = BTreeMap::<usize, usize>::new();
    for partition in 0..16 {
        let watermark = format!("rollcall:{{{}}}:heard", on_redis::HashTags::Spread.tag(partition, 16));
        let at: i64 = cluster.ask(&watermark, cmd("GET").arg(&watermark)).await;
        assert_eq!(Some(Timestamp::from_millis(at)), heard, "{watermark}");
        *shares.entry(cluster.primary_of(&watermark).await).or_default() += 1;
    }
    assert_eq!(shares.len(), 3, "{shares:?}");
    assert!(shares.values().all(|share| (5..=6).contains(share)), "{shares:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_to_a_cluster_that_was_interrupted_begins_anew_on_every_server() {
    let places = Places::new();
    let cluster = Cluster::start(ClusterPlan::new(0)).await;
    let config = on_redis::RedisConfig { url: cluster.url(), partitions: Some(16), ..Default::default() };
    let here = places.open("here").await;
    fill(here.clone()).await;
    let before = contents(&*here).await;
    let broken_off = RedisImporter::prepare(&config, telemetry()).await.unwrap();
    let stray = here.read(&[unit(0)]).await.unwrap().remove(0).stored.unwrap().to_string();
    let stray = |number| {
        let facts = stray.clone();
        MigrationItem::Unit { unit: unit(number), facts, alive: Some(BEGIN), next_check: Some(BEGIN) }
    };
    broken_off.import((500..600).map(stray).collect()).await.unwrap();
    let why = RedisEngine::connect(&config, telemetry()).await.err().unwrap().to_string();
    assert!(why.contains("has begun and is not complete"), "{why}");
    carry(&*here, &RedisImporter::prepare(&config, telemetry()).await.unwrap()).await;
    let there = RedisEngine::connect(&config, telemetry()).await.unwrap();
    similar(&contents(&there).await, &before);
}

fn similar(found: &[String], expected: &[String]) {
    for line in expected {
        assert!(found.contains(line), "{line} is missing in\n{}", found.join("\n"));
    }
    assert_eq!(found.len(), expected.len());
}

/// A fleet in a directory with two silences, of which receivers were notified. It is migrated to Redis and back.
/// Answers their events, and both engines.
async fn moved_with_two_silences(
    places: &Places,
    to: &Destinations,
    sealed: Timestamp,
) -> (Vec<OutboxEvent>, [Arc<dyn Engine>; 2]) {
    let here = places.open("here").await;
    let (roll, units) = (roll(here.clone()).await, (0..2).map(unit).collect::<Vec<Unit>>());
    roll.canary_returned(BEGIN).await.unwrap();
    hear(&roll, 0..2, BEGIN).await;
    here.advance(&Subscription::Plain, hours(60), NEVER).await.unwrap();
    roll.refresh_hearing().await.unwrap();
    roll.check_deadlines(&units, hours(60)).await.unwrap();
    let partitions: Vec<u16> = (0..here.partitions()).collect();
    let entries = here.outbox(&partitions, 10).await.unwrap();
    let events: Vec<OutboxEvent> = entries.iter().map(|entry| entry.event.clone()).collect();
    StoredGroups::new(here.clone())
        .join(&joins(&events, &group("site")), to, &Capacity::NONE, hours(60))
        .await
        .unwrap();
    assert_eq!(StoredGroups::new(here.clone()).seal(&partitions, to, sealed).await.unwrap(), 2);
    let done: Vec<_> = entries.into_iter().map(|entry| entry.position).collect();
    here.remove_entries(&done, &Default::default()).await.unwrap();
    carry(&*here, &places.to_redis().await.unwrap()).await;
    let there = places.connect().await.unwrap();
    carry(&*there, &places.to_directory("back").await.unwrap()).await;
    (events, [there, places.open("back").await])
}

/// The silence is over, and its return joins the group.
async fn returns(engine: &Arc<dyn Engine>, event: &OutboxEvent, to: &Destinations, at: Timestamp) {
    let OutboxEvent::Record(record) = event else { panic!("{event:?}") };
    let back = OfflineRecord { back_at: Some(at), closed_by: Some(Closing::Return), ..record.clone() };
    let joins = joins(&[OutboxEvent::Record(back)], &group("site"));
    StoredGroups::new(engine.clone()).join(&joins, to, &Capacity::NONE, at).await.unwrap();
}

#[tokio::test]
async fn a_group_still_knows_after_a_migration_which_notified_silences_last() {
    let (places, to, sealed) = (Places::new(), Destinations::all(PACE, &receivers()), hours(60) + MINUTE);
    let (events, moved) = moved_with_two_silences(&places, &to, sealed).await;
    for engine in moved {
        let partitions: Vec<u16> = (0..engine.partitions()).collect();
        returns(&engine, &events[0], &to, sealed + MINUTE).await;
        let due = StoredGroups::new(engine.clone()).first_seal(&partitions).await.unwrap();
        assert_eq!(due, Some(sealed + HOUR), "the other unit is offline");
        returns(&engine, &events[1], &to, sealed + 2 * MINUTE).await;
        let due = StoredGroups::new(engine.clone()).first_seal(&partitions).await.unwrap();
        assert_eq!(due, Some(sealed + 3 * MINUTE), "every unit is back");
    }
}

#[tokio::test]
async fn reminders_and_escalations_go_on_after_a_migration() {
    let (places, sealed) = (Places::new(), hours(60) + MINUTE);
    let boss = Escalation { after: 30 * MINUTE, receivers: vec!["mail".to_owned()] };
    let root = Destination::new(vec!["hook".to_owned()], PACE)
        .with(FollowUps { repeat: Some(HOUR), escalate: vec![boss] });
    let to = Destinations::new(root, vec![], Default::default()).with_receivers(receivers().to_vec());
    let (events, moved) = moved_with_two_silences(&places, &to, sealed).await;
    for engine in moved {
        let partitions: Vec<u16> = (0..engine.partitions()).collect();
        let delivered = async |receiver: &str, now: Timestamp| {
            while StoredGroups::new(engine.clone()).seal(&partitions, &to, now).await.unwrap() > 0 {}
            while StoredGroups::new(engine.clone()).remind(&partitions, &to, now).await.unwrap() > 0 {}
            let mut counts = Vec::new();
            loop {
                let leased = StoredDeliveries::new(engine.clone())
                    .lease(&partitions, receiver, now, now + MINUTE, 10)
                    .await
                    .unwrap();
                StoredDeliveries::new(engine.clone()).delivered(&leased, now).await.unwrap();
                let Some(one) = leased.first() else { return counts };
                counts.push((one.reminder, one.offline.len(), one.online.len()));
            }
        };
        assert_eq!(delivered("hook", sealed).await, [(false, 2, 0)]);
        assert_eq!(delivered("mail", sealed + 29 * MINUTE).await, []);
        assert_eq!(delivered("mail", sealed + 30 * MINUTE).await, [(false, 2, 0)]);
        returns(&engine, &events[0], &to, sealed + 31 * MINUTE).await;
        assert_eq!(
            delivered("hook", sealed + HOUR).await,
            [(false, 0, 1)],
            "it waited, so there is no reminder"
        );
        assert_eq!(delivered("mail", sealed + HOUR).await, [(false, 0, 1)], "of its return, too");
        assert_eq!(delivered("hook", sealed + 2 * HOUR).await, [(true, 1, 0)]);
    }
}

/// The fleet as the traits of an engine show it, without migration items. Seals and leases at the end.
async fn seen(engine: Arc<dyn Engine>) -> Vec<String> {
    let partitions: Vec<u16> = (0..engine.partitions()).collect();
    let outboxes: Vec<u16> = (0..=engine.partitions()).collect();
    let all: Vec<Unit> = (0..60).chain([900]).map(unit).collect();
    let mut seen = Vec::new();
    for snapshot in engine.read(&all).await.unwrap() {
        seen.push(format!("{snapshot:?}"));
    }
    for partition in &partitions {
        let mut due = engine.due(*partition, None, Timestamp::NEVER, 0, 100).await.unwrap();
        due.sort();
        seen.push(format!("{due:?}"));
    }
    let mut events: Vec<String> = Vec::new();
    for entry in engine.outbox(&outboxes, 1000).await.unwrap() {
        events.push(format!("{:?}", entry.event));
    }
    events.sort();
    seen.extend(events);
    seen.push(format!("{:?}", engine.hearing().await.unwrap()));
    seen.push(format!("{:?}", engine.records(true, None, 100).await.unwrap()));
    seen.push(format!("{:?}", engine.records(false, None, 100).await.unwrap()));
    seen.push(format!("{:?}", engine.values(&unit(9), &["battery"]).await.unwrap()));
    seen.push(format!("{:?}", StoredGroups::new(engine.clone()).first_seal(&partitions).await.unwrap()));
    let entries = engine.entries(Index::FlapChecks, &partitions, BEGIN.as_millis(), 10).await.unwrap();
    let flaps = entries.iter().map(|entry| format!("{} at {}", entry.name, entry.at)).collect::<Vec<_>>();
    seen.push(format!("{flaps:?}"));
    seen.push(format!(
        "{:?}",
        StoredDeliveries::new(engine.clone()).down_since("hook", hours(70)).await.unwrap()
    ));
    seen.push(format!(
        "{:?}",
        engine.scan_cells(Table::Sources, engine.partitions(), None).await.unwrap().cells
    ));
    for receiver in ["hook", "mail", "spare"] {
        seen.push(format!(
            "{:?}",
            StoredDeliveries::new(engine.clone()).first_lease(&partitions, receiver).await.unwrap()
        ));
        seen.push(format!(
            "{:?}",
            StoredDeliveries::new(engine.clone()).backlog(&partitions, receiver).await.unwrap()
        ));
        seen.push(format!(
            "{:?}",
            StoredDeliveries::new(engine.clone()).dead_letters(receiver, 10).await.unwrap()
        ));
    }
    // A receiver that was not notified of a silence, because it became a dead letter, is not notified of the return.
    let (now, receivers) = (hours(70), receivers());
    let open = engine.records(true, None, 100).await.unwrap();
    let mut back = open.into_iter().find(|record| record.unit.as_str() == "unit-001").unwrap();
    (back.back_at, back.closed_by) = (Some(hours(65)), Some(Closing::Return));
    let back = joins(&[OutboxEvent::Record(back)], &group("detector"));
    StoredGroups::new(engine.clone())
        .join(&back, &Destinations::all(PACE, &receivers), &Capacity::NONE, hours(65))
        .await
        .unwrap();
    while StoredGroups::new(engine.clone())
        .seal(&partitions, &Destinations::all(PACE, &receivers), now)
        .await
        .unwrap()
        > 0
    {}
    for receiver in receivers {
        // The notifications of a group are leased one after the other.
        for _ in 0..3 {
            let mut leased = StoredDeliveries::new(engine.clone())
                .lease(&partitions, &receiver, now, now + MINUTE, 10)
                .await
                .unwrap();
            leased.sort_by(|a, b| a.group.key.cmp(&b.group.key));
            seen.extend(leased.iter().map(shown));
            StoredDeliveries::new(engine.clone()).delivered(&leased, now).await.unwrap();
        }
    }
    seen
}

/// A delivery without the order of its members and its id, which follows from that: each engine seals
/// members in an order of its own.
fn shown(delivery: &Delivery) -> String {
    let ids = |records: &[OfflineRecord]| {
        records.iter().map(|record| record.id.to_string()).collect::<BTreeSet<String>>()
    };
    let Delivery { receiver, group, attempt, blind, .. } = delivery;
    let (offline, online) = (ids(&delivery.offline), ids(&delivery.online));
    format!("{receiver} {group:?} attempt {attempt}: {offline:?} {online:?} {blind:?}")
}

#[tokio::test]
async fn a_migration_that_was_interrupted_leaves_no_fleet_and_begins_anew() {
    let places = Places::new();
    let here = places.open("here").await;
    fill(here.clone()).await;
    let before = contents(&*here).await;
    // Another fleet on that server, with the same beginning of its prefix.
    let config = on_redis::RedisConfig { prefix: "rollcall:two".into(), ..places.on_redis() };
    let other = RedisEngine::connect(&config, telemetry()).await.unwrap();
    hear(&roll(Arc::new(other)).await, 0..3, BEGIN).await;

    let broken_off = places.to_redis().await.unwrap();
    for partition in 0..5 {
        broken_off.import(here.export_rest(partition, &[]).await.unwrap()).await.unwrap();
        for page in 0..here.pages() {
            broken_off.import(here.export_units(partition, page).await.unwrap()).await.unwrap();
        }
    }
    let stray = here.read(&[unit(0)]).await.unwrap().remove(0).stored.unwrap().to_string();
    let stray = MigrationItem::Unit { unit: unit(999), facts: stray, alive: None, next_check: None };
    broken_off.import(vec![stray.clone()]).await.unwrap();
    let why = places.connect().await.err().unwrap().to_string();
    assert!(why.contains("has begun and is not complete"), "{why}");
    let surveyed = on_redis::survey(&places.on_redis(), BEGIN, telemetry()).await;
    assert!(surveyed.err().unwrap().to_string().contains("has begun and is not complete"));
    carry(&*here, &places.to_redis().await.unwrap()).await;
    let there = places.connect().await.unwrap();
    similar(&contents(&*there).await, &before);
    let other = RedisEngine::connect(&config, telemetry()).await.unwrap();
    assert!(other.read(&[unit(0)]).await.unwrap()[0].facts.is_some(), "it is not ours");

    let broken_off = places.to_directory("back").await.unwrap();
    broken_off.import(vec![stray]).await.unwrap();
    drop(broken_off);
    let refused =
        EmbeddedEngine::open(&places.embedded("back"), telemetry()).await.err().unwrap().to_string();
    assert!(refused.contains("has begun and is not complete"), "{refused}");
    carry(&*there, &places.to_directory("back").await.unwrap()).await;
    similar(&contents(&*places.open("back").await).await, &before);
}

#[tokio::test]
async fn an_import_into_an_emptied_directory_keeps_nothing_of_the_old_fleet() {
    let places = Places::new();
    let here = places.open("here").await;
    fill(here.clone()).await;
    let back = places.open("back").await;
    let gone = roll(back.clone()).await;
    gone.canary_returned(hours(100)).await.unwrap();
    for hour in [101, 102] {
        hear(&gone, 0..60, hours(hour)).await;
    }
    // Only their heartbeats are left, on disk.
    drop((gone, back));
    let back = places.open("back").await;
    for seen in back.read(&(0..60).map(unit).collect::<Vec<_>>()).await.unwrap() {
        let forgotten =
            Change { key: KeyChange::Delete, index: IndexChange::Take, facts: None, record: None };
        assert_eq!(back.apply(&[(seen, forgotten)]).await.unwrap(), [true]);
    }
    drop(back);
    carry(&*here, &places.to_directory("back").await.unwrap()).await;
    similar(&contents(&*places.open("back").await).await, &contents(&*here).await);
}

#[tokio::test]
async fn an_import_into_an_existing_fleet_is_refused() {
    let places = Places::new();
    fill(places.open("here").await).await;
    fill(places.connect().await.unwrap()).await;
    let why = places.to_redis().await.err().unwrap().to_string();
    assert!(why.contains("there is a fleet at redis://127.0.0.1:"), "{why}");
    let why = places.to_directory("here").await.err().unwrap().to_string();
    assert!(why.contains("here already (units)"), "{why}");
    let timers = places.open("timers").await;
    let id = "alone".parse().unwrap();
    let alone = NewTimer {
        is_span: false,
        id,
        timer_type: "report".parse().unwrap(),
        due: hours(2),
        data: "1".parse().unwrap(),
    };
    StoredTimers::new(timers).register(&[alone], false).await.unwrap();
    let why = places.to_directory("timers").await.err().unwrap().to_string();
    assert!(why.contains("timers already (timers)"), "{why}");
}

#[tokio::test]
async fn a_target_that_evicts_keys_is_refused_as_at_the_start() {
    let places = Places::new();
    let mut client = redis::Client::open(places.url()).unwrap().get_connection().unwrap();
    for (policy, is_refused) in [("volatile-lru", true), ("allkeys-random", true), ("noeviction", false)] {
        redis::cmd("CONFIG").arg(&["SET", "maxmemory-policy", policy]).exec(&mut client).unwrap();
        let prepared = places.to_redis().await.map(drop);
        assert_eq!(prepared.is_err(), is_refused, "{policy}");
        if let Err(why) = prepared {
            let why = why.to_string();
            assert!(why.contains(policy) && why.contains("set maxmemory-policy noeviction"), "{why}");
        }
    }
}

#[tokio::test]
async fn a_fleet_that_is_in_use_is_not_migrated() {
    let places = Places::new();
    let there = places.connect().await.unwrap();
    fill(there.clone()).await;
    there.renew("one", Duration::from_secs(600), None).await.unwrap();
    let to = places.to_directory("here").await.unwrap();
    let why = migrate(&*there, &to, |_| {}).await.unwrap_err().to_string();
    assert!(why.contains("is served by one; stop every instance"), "{why}");
    there.resign("one").await.unwrap();
    // The server's clock was set back by an hour: the time of the fleet goes on, and leases end by it.
    let mut client = redis::Client::open(places.url()).unwrap().get_connection().unwrap();
    let (seconds, _): (i64, i64) = redis::cmd("TIME").query(&mut client).unwrap();
    let (then, fleet) = ((seconds - 20) * 1000, (seconds + 3600) * 1000);
    let clock = ["rollcall:{hearing}:clock", "server", &then.to_string(), "fleet", &fleet.to_string()];
    redis::cmd("HSET").arg(&clock).exec(&mut client).unwrap();
    for (lease, is_there) in [(30_000, true), (8_000, false)] {
        let roster = ["rollcall:{hearing}:roster", &(fleet + lease).to_string(), "one"];
        redis::cmd("ZADD").arg(&roster).exec(&mut client).unwrap();
        assert_eq!(there.check_not_served().await.is_err(), is_there);
    }
    // An instance starts and stops during the migration.
    let moved = migrate(&*there, &Interrupting(there.clone(), &to), |_| {}).await;
    assert!(moved.unwrap_err().to_string().contains("an instance used the fleet while it was moved"));
}

/// Hearing goes on while a fleet is migrated.
struct Interrupting<'a>(Arc<RedisEngine>, &'a EmbeddedImporter);

#[async_trait::async_trait]
impl Importer for Interrupting<'_> {
    async fn import(&self, items: Vec<MigrationItem>) -> Result<(), EngineError> {
        self.0.advance(&Subscription::Plain, hours(100), NEVER).await?;
        self.1.import(items).await
    }

    async fn complete(&self, _: rollcall::presence::Hearing) -> Result<(), EngineError> {
        panic!("it is not")
    }
}

#[tokio::test]
async fn a_unit_that_is_silent_during_a_migration_is_notified_exactly_once() {
    let places = Places::new();
    let here = places.open("here").await;
    let before = roll(here.clone()).await;
    before.canary_returned(BEGIN).await.unwrap();
    hear(&before, 0..2, BEGIN).await;
    carry(&*here, &places.to_redis().await.unwrap()).await;
    let there = places.connect().await.unwrap();
    let after = roll(there.clone()).await;
    // Ten hours are blind; then one of them is heard and the other one is not.
    after.canary_returned(hours(10)).await.unwrap();
    hear(&after, 0..1, hours(11)).await;
    let both = [unit(0), unit(1)];
    let outboxes: Vec<u16> = (0..there.partitions()).collect();
    let mut shown = Vec::new();
    for hour in 11..62 {
        there.advance(&Subscription::Plain, hours(hour), NEVER).await.unwrap();
        after.refresh_hearing().await.unwrap();
        if hour % 10 == 0 {
            hear(&after, 0..1, hours(hour)).await;
        }
        after.check_deadlines(&both, hours(hour)).await.unwrap();
        let entries = there.outbox(&outboxes, 1000).await.unwrap();
        shown = entries.into_iter().map(|entry| (hour, entry.event)).collect();
        if hour < 58 {
            assert!(shown.is_empty(), "48 hours of hearing are not over: {shown:?}");
        }
    }
    let [(_, OutboxEvent::Record(record))] = shown.as_slice() else { panic!("{shown:?}") };
    assert_eq!((record.unit.as_str(), record.last_seen), ("unit-001", BEGIN));
    assert!(record.deadline >= hours(58), "{record:?}");
}

fn rollcall_move(from: &str, to: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
    command.args(["move", "--from", from, "--to", to]).env_remove("RUST_LOG").output().unwrap()
}

fn place(path: &Path) -> String {
    format!("embedded:{}", path.display())
}

#[tokio::test]
async fn the_command_reports_what_was_migrated_and_why_something_was_not() {
    let places = Places::new();
    let (here, back) = (place(&places.dir.path().join("here")), place(&places.dir.path().join("back")));
    let refused = |from: &str, to: &str| {
        let output = rollcall_move(from, to);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&here, &places.url()).contains("there is no fleet at "));
    let engine = places.open("here").await;
    fill(engine.clone()).await;
    let why = refused(&here, &places.url());
    assert!(why.contains("is in use by process "), "{why}");
    drop(engine);
    for (from, to) in [(&here, &places.url()), (&places.url(), &back)] {
        let output = rollcall_move(from, to);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8(output.stderr).unwrap());
        assert!(said.starts_with("moved: 61 units and 1 values of their metrics; 7 open records"), "{said}");
    }
    let why = refused(&here, &places.url());
    assert!(why.contains("there is a fleet at "), "{why}");
    let output = rollcall_move("elsewhere", &back);
    assert_eq!(output.status.code(), Some(2));
}

#[tokio::test]
async fn a_configuration_file_names_an_engine_with_all_that_belongs_to_it() {
    let places = Places::new();
    let here = on_redis::RedisConfig { prefix: "mine".into(), partitions: Some(8), ..places.on_redis() };
    fill(Arc::new(RedisEngine::connect(&here, telemetry()).await.unwrap())).await;
    let file = |name: &str, text: &str| {
        let path = places.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        format!("config:{}", path.display())
    };
    let from = file("old.toml", &format!("[engine]\nurl = {:?}\nprefix = \"mine\"", places.url()));
    let embedded = "[engine]\ntype = \"embedded\"\npath = \"new\"\n";
    let refused = |from: &str, to: &str, expected: &str| {
        let output = rollcall_move(from, to);
        let why = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() != Some(0) && why.contains(expected), "{why}");
    };
    refused(&from, &file("other.toml", &format!("{embedded}partitions = 16")), "the fleet has 8 partitions");
    refused(&from, "redis-cluster://", "the address names no server");
    refused(&from, "config:", "--to: write embedded:PATH, config:FILE");
    let mistyped = rollcall_move("redis://:hunter2@a,b", &from);
    let why = String::from_utf8(mistyped.stderr).unwrap();
    assert!(mistyped.status.code() == Some(2) && why.contains("--from: "), "{why}");
    assert!(!why.contains("hunter2"), "a password in an address is not shown: {why}");
    let output = rollcall_move(&from, &file("new.toml", embedded));
    let why = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{why}");
    assert_eq!(embedded::partitions(&places.dir.path().join("new")).unwrap(), Some(8));
}

#[tokio::test]
async fn a_migration_that_ctrl_c_interrupts_says_where_the_fleet_is() {
    let places = Places::new();
    drop(places.open("here").await);
    // A server that accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("redis://{}/0", silent.local_addr().unwrap());
    let here = place(&places.dir.path().join("here"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
    let moving = command.args(["move", "--from", &here, "--to", &to]).stderr(Stdio::piped()).spawn().unwrap();
    let _called = silent.accept().unwrap();
    assert!(Command::new("kill").args(["-INT", &moving.id().to_string()]).status().unwrap().success());
    let ended = moving.wait_with_output().unwrap();
    let why = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(why.contains("broken off: nothing has arrived, and the fleet is where it was"), "{why}");
    assert!(embedded::partitions(&places.embedded("here").path).unwrap().is_some());
}

#[tokio::test]
async fn hearing_of_single_kinds_is_migrated_too() {
    let places = Places::new();
    let here = places.open("here").await;
    roll(here.clone()).await.canary_returned(hours(9)).await.unwrap();
    let filters: Filters = [("detector".parse().unwrap(), vec!["a/+".to_owned(), "b/+".to_owned()])].into();
    for hour in [1, 2, 9] {
        here.prove(&Probed::all(&filters, hours(hour), HOUR)).await.unwrap();
    }
    let known = here.hearing().await.unwrap().filters;
    assert_eq!((known.proved.len(), known.blind.len()), (3, 1), "both filters, and HTTP");
    carry(&*here, &places.to_redis().await.unwrap()).await;
    let there = places.connect().await.unwrap();
    assert_eq!(there.hearing().await.unwrap().filters, known);
    carry(&*there, &places.to_directory("back").await.unwrap()).await;
    assert_eq!(places.open("back").await.hearing().await.unwrap().filters, known);
}
