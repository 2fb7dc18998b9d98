//! Several instances over one engine share the work, and take over from a dead or slow one.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::expiry;
use rollcall::fleet::coverage::Coverage;
use rollcall::fleet::ownership::View;
use rollcall::fleet::walk::Removed;
use rollcall::fleet::{Attempts, Lease, Ownership, Silences, Walk};
use rollcall::fleet::{mirror::Chunk, mirror::Cursor};
use rollcall::presence::{Announced, Announcement, Cause, State, Unit};
use rollcall::store::Layout;
use rollcall::store::{Gap, HearingStore, Roster, Subscription, partition_of};
use rollcall::store::{redis::RedisConfig, redis::RedisEngine};
use rollcall::telemetry::{Loop, Telemetry};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

#[path = "../faults/world/proxy.rs"]
pub mod proxy;

use crate::support::metrics;
use crate::support::parts::Parts;
use crate::support::redis::Redis;
use proxy::{Proxy, Wire};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(100);
const MAX_WAIT: Duration = Duration::from_secs(120);
const UNITS: usize = 400;

/// The instance "a" or the instance "b".
struct Instance {
    parts: Parts,
    name: &'static str,
    view: watch::Sender<Arc<View>>,
}

impl Deref for Instance {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl Instance {
    async fn new(name: &'static str, redis: &Redis, clock: &Clock) -> Instance {
        Instance::over(name, redis.url(), clock).await
    }

    /// An instance that reaches Redis at `url`.
    async fn over(name: &'static str, url: String, clock: &Clock) -> Instance {
        let telemetry = Arc::new(Telemetry::new(clock));
        let config = RedisConfig { url, ..RedisConfig::default() };
        let engine = Arc::new(RedisEngine::connect(&config, telemetry.clone()).await.unwrap());
        let view = watch::Sender::new(Arc::new(View::new(name, named(&["a", "b"]), engine.partitions())));
        let mut parts = Parts::new(engine, telemetry, clock, &[("detector", TIMEOUT)]);
        parts.ownership = Ownership::follow(view.subscribe());
        parts.mirror.keep(|partition| parts.ownership.owns(partition));
        Instance { parts, name, view }
    }

    /// Gives the instance the list of instances.
    fn sees(&self, instances: &[&str]) {
        self.view.send_replace(Arc::new(View::new(self.name, named(instances), self.engine.partitions())));
    }

    /// Walks until the guard is dropped.
    fn walk(&self, period: Duration) -> DropGuard {
        let walk = Walk {
            engine: self.engine.clone(),
            attempts: Attempts::new(self.engine.clone()),
            roster: self.engine.clone(),
            ownership: self.ownership.clone(),
            roll: self.roll.clone(),
            mirror: self.mirror.clone(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
            period,
            keep_records: 1000 * TIMEOUT,
            keep_deliveries: 1000 * TIMEOUT,
            removed: Removed::new(1000 * TIMEOUT),
            coverage: Arc::new(Coverage::new(Arc::new(Silences::new(self.engine.clone())))),
        };
        let stop = CancellationToken::new();
        tokio::spawn(walk.run(stop.clone()));
        stop.drop_guard()
    }

    /// The units of its mirror, by name, with their states and last seen times.
    fn listed(&self) -> BTreeMap<String, (State, Option<Timestamp>)> {
        let (mut cursor, mut chunk, mut all) = (Cursor::default(), Chunk::default(), BTreeMap::new());
        while self.mirror.read_next(&mut cursor, &mut chunk, &self.roll.hearing(), self.clock.now()) {
            all.extend(self.mirror.units(&chunk).map(|one| (one.id.to_owned(), (one.state, one.last_seen))));
        }
        all
    }

    /// Finds silences until the guard is dropped.
    fn expire(&self, sweep: bool, hints: bool) -> DropGuard {
        self.parts.expire(expiry::Config { tick: 10 * MILLISECOND, sweep, hints })
    }

    /// The sum of the series of a metric that have this label value.
    fn metric(&self, name: &str, label: &str) -> usize {
        metrics::sum(&self.telemetry, name, &[label]).expect("such a series") as usize
    }

    /// How many deadlines were checked, of that source or with that result.
    fn checked(&self, label: &str) -> usize {
        self.metric("rollcall_deadline_checks_total", label)
    }

    fn swept(&self) -> usize {
        self.checked("sweep")
    }

    /// How often it asked for the first due unit.
    fn asked_for_due(&self) -> usize {
        self.commands("first_checks")
    }

    /// How often it sent that command.
    fn commands(&self, name: &str) -> usize {
        self.metric("rollcall_engine_command_duration_seconds", name)
    }

    fn won(&self) -> usize {
        self.checked("offline")
    }

    /// How many of the units are in its partitions.
    fn own(&self) -> usize {
        let partition = |unit: &Unit| partition_of(unit, self.engine.partitions());
        units().iter().filter(|unit| self.ownership.owns(partition(unit))).count()
    }

    async fn records(&self) -> usize {
        self.engine.records(false, None, 10 * UNITS).await.unwrap().len()
    }
}

fn named(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// The public name of an expiry key.
fn alive(unit: &Unit, partitions: u16) -> String {
    format!("rollcall:{{p{}}}:alive:{unit}", partition_of(unit, partitions))
}

fn units() -> Vec<Unit> {
    (0..UNITS).map(detector).collect()
}

fn detector(number: usize) -> Unit {
    format!("detector:unit-{number}").parse().unwrap()
}

/// Two instances whose units were heard once, and it is a millisecond after their deadline.
async fn overdue() -> (Redis, Clock, Instance, Instance) {
    let redis = Redis::start();
    let clock = Clock::by_hand(Timestamp::from_millis(1_700_000_000_000));
    let a = Instance::new("a", &redis, &clock).await;
    let b = Instance::new("b", &redis, &clock).await;
    let now = clock.now();
    a.roll.canary_returned(now).await.unwrap();
    a.hear_all(&units()).await.unwrap();
    clock.advance(TIMEOUT + MILLISECOND);
    a.roll.canary_returned(clock.now()).await.unwrap();
    assert!(a.own() > 0 && b.own() > 0 && a.own() + b.own() == UNITS);
    (redis, clock, a, b)
}

async fn until(what: &str, fact: impl AsyncFn() -> bool) {
    let awaited = async {
        while !fact().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(MAX_WAIT, awaited).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}

#[tokio::test]
async fn each_silence_is_found_once_and_by_the_owner_of_its_partition() {
    let (_redis, _clock, a, b) = overdue().await;
    let _both = (a.expire(true, true), b.expire(true, true));
    until("all are recorded", async || a.records().await == UNITS).await;
    until("all is counted", async || a.won() + b.won() == UNITS).await;
    assert_eq!((a.won(), b.won()), (a.own(), b.own()));
    assert_eq!((a.swept(), b.swept()), (a.own(), b.own()), "neither swept for the other");
}

#[tokio::test]
async fn partitions_of_a_dead_owner_are_swept_after_a_second() {
    let (_redis, clock, a, b) = overdue().await;
    let _only_a = a.expire(true, true);
    until("its own are recorded", async || a.records().await == a.own()).await;
    clock.advance(SECOND - MILLISECOND);
    a.roll.canary_returned(clock.now()).await.unwrap();
    let before = a.asked_for_due();
    until("it has asked again", async || a.asked_for_due() > before + 2).await;
    assert_eq!(a.swept(), a.own(), "the others have a second");
    clock.advance(MILLISECOND);
    until("all are recorded", async || a.records().await == UNITS).await;
    until("all are counted", async || a.swept() == UNITS).await;
    assert_eq!((a.swept(), b.swept()), (UNITS, 0));
}

#[tokio::test]
async fn a_slow_owner_that_makes_progress_sweeps_alone() {
    let (_redis, clock, a, b) = overdue().await;
    let _only_a = a.expire(true, false);
    until("its own are recorded", async || a.records().await == a.own()).await;
    let has_asked = async || {
        let before = a.asked_for_due();
        until("it has asked again", async || a.asked_for_due() > before + 2).await;
    };
    has_asked().await;
    clock.advance(SECOND - MILLISECOND);
    a.roll.canary_returned(clock.now()).await.unwrap();
    let mut done = 0;
    for partition in b.ownership.view().partitions.clone() {
        let first = b.engine.due(partition, None, clock.now(), 0, 1).await.unwrap();
        done += first.len();
        b.roll.check_deadlines(&first, clock.now()).await.unwrap();
    }
    has_asked().await;
    clock.advance(SECOND / 2);
    a.roll.canary_returned(clock.now()).await.unwrap();
    has_asked().await;
    assert_eq!((a.swept(), b.won()), (a.own(), done), "the owner did something half a second ago");
    clock.advance(SECOND / 2 + MILLISECOND);
    until("all are recorded", async || a.records().await == UNITS).await;
    until("all is counted", async || (a.won(), b.won()) == (UNITS - done, done)).await;
}

#[tokio::test]
async fn a_storm_lasts_until_the_last_owner_is_done() {
    let redis = Redis::start();
    let clock = Clock::by_hand(Timestamp::from_millis(1_700_000_000_000));
    let a = Instance::new("a", &redis, &clock).await;
    let b = Instance::new("b", &redis, &clock).await;
    let partition = |unit: &Unit| partition_of(unit, a.engine.partitions());
    let of = |partitions: u16, count| {
        (0..).map(detector).filter(move |unit| partition(unit) == partitions).take(count)
    };
    let first_own = |instance: &Instance| instance.ownership.view().partitions[0];
    let (many, one): (Vec<Unit>, Vec<Unit>) =
        (of(first_own(&a), 1000).collect(), of(first_own(&b), 1).collect());
    let now = clock.now();
    a.roll.canary_returned(now).await.unwrap();
    a.hear_all(&[&many[..], &one].concat()).await.unwrap();
    let _only_a = a.expire(true, true);
    until("hints are heard", async || redis.listeners() == 1).await;
    clock.advance(TIMEOUT + MILLISECOND);
    a.roll.canary_returned(clock.now()).await.unwrap();
    until("its own are recorded", async || a.won() == many.len()).await;
    until("hints are not heard", async || redis.listeners() == 0).await;
    let before = a.asked_for_due();
    until("it has asked again", async || a.asked_for_due() > before + 5).await;
    assert_eq!(redis.listeners(), 0, "the other is not done");
    let read = a.engine.walk(first_own(&a), 0);
    tokio::time::timeout(50 * MILLISECOND, read).await.expect_err("the mirror is not read for meanwhile");
    b.roll.check_deadlines(&one, clock.now()).await.unwrap();
    until("hints are heard again", async || redis.listeners() == 1).await;
    assert_eq!((a.won(), b.won()), (many.len(), one.len()));
}

#[tokio::test]
async fn a_slow_owner_and_the_instances_that_help_it_record_each_silence_once() {
    let (_redis, clock, a, b) = overdue().await;
    clock.advance(SECOND);
    a.roll.canary_returned(clock.now()).await.unwrap();
    let _both = (a.expire(true, true), b.expire(true, true));
    until("all are recorded", async || a.records().await == UNITS).await;
    until("all is counted", async || a.won() + b.won() == UNITS).await;
    assert_eq!(
        a.engine.outbox(&(0..=a.engine.partitions()).collect::<Vec<u16>>(), 10 * UNITS).await.unwrap().len(),
        UNITS
    );
}

#[tokio::test]
async fn without_a_sweep_every_hint_is_followed() {
    let (redis, _clock, a, b) = overdue().await;
    let keys: Vec<String> = units().iter().map(|unit| alive(unit, a.engine.partitions())).collect();
    // Late enough that the server does not delete them at once, without an event.
    let expire = || {
        let mut client = redis.client();
        keys.iter().for_each(|key| ::redis::cmd("PEXPIRE").arg(key).arg(20).exec(&mut client).unwrap());
    };
    // Reading an overdue key makes it expire.
    let touch = || ::redis::cmd("EXISTS").arg(&keys).exec(&mut redis.client()).unwrap();
    let _only_a = a.expire(false, true);
    ::redis::cmd("CONFIG")
        .arg("SET")
        .arg("notify-keyspace-events")
        .arg("Ex")
        .exec(&mut redis.client())
        .unwrap();
    until("it listens", async || {
        let listening: Vec<(String, usize)> = ::redis::cmd("PUBSUB")
            .arg("NUMSUB")
            .arg("__keyevent@0__:expired")
            .query(&mut redis.client())
            .unwrap();
        listening[0].1 == 1
    })
    .await;
    expire();
    until("all are recorded", async || {
        touch();
        a.records().await == UNITS
    })
    .await;
    assert_eq!((a.won(), b.won()), (UNITS, 0));
}

/// A round that takes longer than any test.
const ENDLESS: Duration = Duration::from_secs(100_000);

#[tokio::test]
async fn each_mirror_keeps_its_own_partitions_and_follows_when_they_move() {
    let (_redis, _clock, a, b) = overdue().await;
    assert_eq!((a.listed().len(), b.listed().len()), (a.own(), 0), "it keeps only its own partitions");
    let _both = (a.walk(ENDLESS), b.walk(ENDLESS));
    until("both are filled", async || a.mirror.is_filled() && b.mirror.is_filled()).await;
    assert_eq!((a.listed().len(), b.listed().len()), (a.own(), b.own()));
    a.sees(&["a"]);
    until("one has all", async || a.listed().len() == UNITS && a.mirror.is_filled()).await;
    a.sees(&["b"]);
    until("one has nothing", async || a.listed().is_empty()).await;
    assert!(a.mirror.is_filled(), "and that is complete");
    a.sees(&["a", "b"]);
    until("it is as it was", async || a.mirror.is_filled() && a.listed().len() == a.own()).await;
}

#[tokio::test]
async fn changes_of_another_instance_show_in_the_mirror_of_the_owner() {
    let (_redis, clock, a, b) = overdue().await;
    let _only_b = b.walk(ENDLESS);
    until("it is filled", async || b.mirror.is_filled()).await;
    let bs = |unit: &&Unit| b.ownership.owns(partition_of(unit, b.engine.partitions()));
    let all = units();
    let [silent, back, gone]: [&Unit; 3] =
        all.iter().filter(bs).take(3).collect::<Vec<_>>().try_into().unwrap();
    let new: Vec<Unit> = (0..99).map(|number| format!("detector:new-{number}").parse().unwrap()).collect();
    let new = new.iter().find(bs).unwrap();
    let state = |unit: &Unit| b.listed().get(unit.id.as_str()).map(|(state, _)| *state);
    a.roll.check_deadlines(&[silent.clone(), back.clone()], clock.now()).await.unwrap();
    until("they are offline", async || {
        state(silent) == Some(State::Offline) && state(back) == Some(State::Offline)
    })
    .await;
    a.hear(back).await;
    a.hear(new).await;
    a.roll.retire(gone, clock.now()).await.unwrap();
    until("one is back", async || state(back) == Some(State::Online)).await;
    until("one is new", async || state(new) == Some(State::Online)).await;
    until("one is gone", async || state(gone).is_none()).await;
}

#[tokio::test]
async fn changes_of_another_instance_show_when_the_owner_could_not_read_them_at_first() {
    let (redis, _clock, a, b) = overdue().await;
    let filling = b.walk(ENDLESS);
    until("it is filled", async || b.mirror.is_filled()).await;
    drop(filling);
    let partition = |unit: &Unit| partition_of(unit, b.engine.partitions());
    // The first round reads every tenth partition whole.
    let is_read_by_notes = |unit: &Unit| b.ownership.owns(partition(unit)) && partition(unit) % 10 != 0;
    let mut all = (0..).map(|number| format!("detector:new-{number}").parse::<Unit>().unwrap());
    let new = all.find(is_read_by_notes).unwrap();
    a.hear(&new).await;
    redis.permit(&["-hgetall"]);
    let _only_b = b.walk(ENDLESS);
    let is_late = || b.telemetry.problems().iter().any(|one| one.text.contains("units cannot be read"));
    until("it cannot read a page", async || is_late()).await;
    assert!(!b.listed().contains_key(new.id.as_str()));
    redis.permit(&["+hgetall"]);
    until("it is new", async || b.listed().contains_key(new.id.as_str())).await;
}

#[tokio::test]
async fn heartbeats_that_another_instance_records_show_in_the_mirror_of_the_owner() {
    let (_redis, clock, a, b) = overdue().await;
    let only_b = b.walk(10 * MILLISECOND);
    until("it is filled", async || b.mirror.is_filled()).await;
    // The first round reads everything once more, each later one a tenth.
    let partitions = b.ownership.view().partitions.clone();
    let (asked, mut whole) = (partitions.len(), 0);
    for partition in &partitions {
        let occupied = b.engine.occupied(*partition, 16).await.unwrap();
        whole += 1 + occupied.iter().map(|step| step.len()).sum::<usize>();
    }
    until("it was read again", async || b.commands("page") >= asked + 2 * whole).await;
    let all = units();
    let unit_in = |partition: &u16| all.iter().find(|unit| partition_of(unit, 16) == *partition).unwrap();
    let own: Vec<&Unit> = partitions.iter().map(unit_in).collect();
    let were_seen = || own.iter().all(|unit| b.listed()[unit.id.as_str()].1 == Some(clock.now()));
    assert!(!were_seen());
    for unit in &own {
        a.hear(unit).await;
    }
    let before = b.commands("page");
    until("they were seen", async || were_seen()).await;
    let read = b.commands("page") - before;
    let most = whole * (own.len() - 2) / own.len();
    assert!(read < most, "by their keys, not because {read} pages were read whole");
    // Heartbeats that it has not compared yet make no unit silent, however long that takes.
    drop(only_b);
    clock.advance(TIMEOUT + MILLISECOND);
    for unit in &own {
        a.hear(unit).await;
    }
    let listed = b.listed();
    assert!(own.iter().all(|unit| listed[unit.id.as_str()].0 == State::Online), "{listed:?}");
}

#[tokio::test]
async fn an_instance_that_starts_while_the_engines_clock_is_behind_what_was_heard_goes_on_from_there() {
    let redis = Redis::start();
    let clock = Clock::system();
    let telemetry = Arc::new(Telemetry::new(&clock));
    let engine = redis.engine(&telemetry).await;
    let heard = clock.now() + 1000 * SECOND;
    engine.advance(&Subscription::Plain, heard, Gap { blind: SECOND, tell_after: SECOND }).await.unwrap();
    let lease = Lease::take(engine.clone(), engine, clock.clone(), telemetry.clone(), "late").await.unwrap();
    assert!(clock.now() >= heard, "{} is before {heard}", clock.now());
    assert_eq!(lease.ownership().view().instances, ["late"]);
    let said = telemetry.problems().into_iter().find(|problem| problem.name == "clock_off").unwrap();
    assert!(said.text.contains("behind the time of the fleet"), "{}", said.text);
}

#[tokio::test]
async fn an_instance_that_cannot_renew_keeps_its_view_and_still_stops() {
    let mut redis = Redis::start();
    let clock = Clock::system();
    let telemetry = Arc::new(Telemetry::new(&clock));
    let engine = redis.engine(&telemetry).await;
    engine.renew("other", 50 * SECOND, None).await.unwrap();
    let lease = Lease::take(engine.clone(), engine, clock.clone(), telemetry.clone(), "one").await.unwrap();
    let (ownership, leave) = (lease.ownership(), CancellationToken::new());
    let kept = tokio::spawn(lease.keep(leave.clone()));
    telemetry.engine_answered(Loop::Sweep, "");
    redis.kill();
    let down = || telemetry.problems().iter().any(|problem| problem.text.contains("redis at"));
    until("a renewal failed", async || {
        tokio::time::sleep(MILLISECOND).await;
        down()
    })
    .await;
    assert_eq!(ownership.view().instances, ["one", "other"]);
    leave.cancel();
    tokio::time::timeout(MAX_WAIT, kept).await.expect("it ends").unwrap().unwrap();
}

/// How many records the instance counts as opened, or closed.
fn counted(instance: &Instance, to: &str) -> usize {
    metrics::sum(&instance.telemetry, "rollcall_unit_transitions_total", &[to]).unwrap_or_default() as usize
}

#[tokio::test]
async fn a_change_that_was_applied_without_an_answer_is_counted_once_and_shown() {
    let redis = Redis::start();
    let wire =
        Proxy::start("127.0.0.1:0", redis.url().trim_start_matches("redis://").trim_end_matches("/0")).await;
    let clock = Clock::by_hand(Timestamp::from_millis(1_700_000_000_000));
    let a = Instance::over("a", format!("redis://127.0.0.1:{}/0", wire.port()), &clock).await;
    a.sees(&["a"]);
    a.mirror.keep(|_| true);
    let hear = async || a.hear_all(&units()).await;
    let all_are = |state: State| {
        let listed = a.listed();
        listed.len() == UNITS && listed.values().all(|(is, _)| *is == state)
    };
    a.roll.canary_returned(clock.now()).await.unwrap();
    hear().await.unwrap();
    clock.advance(TIMEOUT + MILLISECOND);
    a.roll.canary_returned(clock.now()).await.unwrap();
    // Units without a key take another path.
    let mut client = redis.client();
    for unit in units().iter().step_by(2) {
        ::redis::cmd("DEL").arg(alive(unit, a.engine.partitions())).exec(&mut client).unwrap();
    }
    // Every command that writes into an outbox.
    wire.set(Wire::Swallows(":outbox"));
    assert!(a.roll.check_deadlines(&units(), clock.now()).await.is_err(), "a reply was lost");
    wire.set(Wire::Whole);
    clock.advance(MILLISECOND);
    until("all are recorded", async || {
        let _ = a.roll.check_deadlines(&units(), clock.now()).await;
        a.records().await == UNITS
    })
    .await;
    until("all are counted and shown", async || {
        a.roll.settle().await.is_ok() && counted(&a, "offline") >= UNITS && all_are(State::Offline)
    })
    .await;
    // They return, and that reply is lost, too.
    clock.advance(SECOND);
    wire.set(Wire::Swallows(":outbox"));
    assert!(hear().await.is_err(), "a reply was lost");
    wire.set(Wire::Whole);
    clock.advance(MILLISECOND);
    until("all are back", async || hear().await.is_ok()).await;
    until("all are counted and shown", async || {
        a.roll.settle().await.is_ok() && counted(&a, "online") >= UNITS && all_are(State::Online)
    })
    .await;
    a.roll.settle().await.unwrap();
    assert_eq!((counted(&a, "offline"), counted(&a, "online")), (UNITS, UNITS), "and none twice");
}

#[tokio::test]
async fn the_owner_of_units_that_another_instance_took_and_did_not_note_shows_them_offline() {
    let redis = Redis::start();
    let clock = Clock::by_hand(Timestamp::from_millis(1_700_000_000_000));
    let a = Instance::new("a", &redis, &clock).await;
    let b = Instance::new("b", &redis, &clock).await;
    b.roll.canary_returned(clock.now()).await.unwrap();
    b.hear_all(&units()).await.unwrap();
    let at = clock.now() + MILLISECOND;
    clock.advance(2 * MILLISECOND);
    b.roll.canary_returned(clock.now()).await.unwrap();
    let says = Announced::Gone { cause: Cause::LastWill, settle: Duration::ZERO };
    let gone = units().into_iter().map(|unit| Announcement::of(unit, at, says));
    let gone: Vec<Announcement> = gone.collect();
    a.roll.announce(&gone, || clock.now()).await.unwrap();
    assert_eq!(b.records().await, UNITS);
    let offline = || b.listed().values().filter(|(state, _)| *state == State::Offline).count();
    assert_eq!(offline(), 0, "it reads no notes");
    b.roll.announce(&gone, || clock.now()).await.unwrap();
    b.roll.settle().await.unwrap();
    assert_eq!(offline(), b.own());
}

#[tokio::test]
async fn a_unit_whose_heartbeat_was_heard_twice_and_lost_once_is_shown_offline() {
    let redis = Redis::start();
    let clock = Clock::by_hand(Timestamp::from_millis(1_700_000_000_000));
    let a = Instance::new("a", &redis, &clock).await;
    let b = Instance::new("b", &redis, &clock).await;
    a.roll.canary_returned(clock.now()).await.unwrap();
    // Both hear each message, a few milliseconds apart, in varying order.
    for (first, second, from) in [(&a, &b, 0), (&b, &a, UNITS / 2)] {
        for unit in (from..from + UNITS / 2).map(detector) {
            first.hear(&unit).await;
            clock.advance(MILLISECOND);
            second.hear(&unit).await;
        }
    }
    clock.advance(TIMEOUT + MILLISECOND);
    // No check came before the keys were gone, and with them the later copies.
    let mut client = redis.client();
    for unit in units() {
        ::redis::cmd("DEL").arg(alive(&unit, a.engine.partitions())).exec(&mut client).unwrap();
    }
    a.roll.canary_returned(clock.now()).await.unwrap();
    b.roll.refresh_hearing().await.unwrap();
    let _walks = (a.walk(MAX_WAIT), b.walk(MAX_WAIT));
    let _both = (a.expire(true, false), b.expire(true, false));
    until("all are recorded", async || a.records().await == UNITS).await;
    let offline =
        |instance: &Instance| instance.listed().values().filter(|(is, _)| *is == State::Offline).count();
    until("all are shown", async || offline(&a) + offline(&b) == UNITS).await;
}
