//! The rhythms of units: learned on both engines from what is recorded, kept over restarts and changes of the owner.

use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::mirror::{Cursor, ListQuery, UnitRhythm, WantedUnits};
use rollcall::fleet::{HearingConfig, Mirror, Ownership, RhythmKeeper, Roll, Rules, UnitChange};
use rollcall::presence::{Declared, Heartbeat, Kind, KindRules, Policy, State, TimeSource, Unit};
use rollcall::store::{Engine, Table, embedded, embedded::EmbeddedEngine};
use rollcall::telemetry::Telemetry;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::both_engines::{PARTITIONS, engines};
use crate::support::facts::until;
use crate::support::redis::Redis;

const BEGIN: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const MINUTE: Duration = Duration::from_secs(60);
/// How often the units of the cases are heard.
const USUAL: Duration = Duration::from_secs(300);

/// An instance with a clock that its cases move.
struct Instance {
    engine: Arc<dyn Engine>,
    mirror: Arc<Mirror>,
    roll: Roll,
    clock: Clock,
    telemetry: Arc<Telemetry>,
}

impl Instance {
    /// Units are allowed 45 minutes; two canaries more than ten minutes apart enclose blind time.
    async fn new(engine: Arc<dyn Engine>, clock: Clock) -> Instance {
        let kind: Kind = "gate".parse().unwrap();
        let policy = Policy { timeout: 45 * MINUTE, grace: Duration::ZERO };
        let rules = KindRules { policy, accept_timeout: true, ..KindRules::new(kind.clone()) };
        let logger: Kind = "logger".parse().unwrap();
        let of_logger = KindRules { kind: logger.clone(), clock: TimeSource::Device, ..rules.clone() };
        let rules = Arc::new(Rules::from_iter([(kind, rules), (logger, of_logger)]));
        let mirror = Arc::new(Mirror::of(&*engine, rules.clone(), &[]));
        let telemetry = Arc::new(Telemetry::new(&clock));
        let (gap, settle) = (10 * MINUTE, Duration::ZERO);
        let config = HearingConfig { gap, follows: false, settle, tell_after: 100 * 3600 * MINUTE };
        let grew = Arc::new(Notify::new());
        let roll = Roll::new(engine.clone(), rules, mirror.clone(), telemetry.clone(), config, grew);
        let instance = Instance { engine, mirror, roll, clock, telemetry };
        instance.roll.canary_returned(instance.clock.now()).await.unwrap();
        instance.fill().await;
        instance
    }

    /// Reads all units, as the walk does.
    async fn fill(&self) {
        for partition in 0..PARTITIONS {
            let whole = self.mirror.mark(partition);
            for page in 0..self.engine.pages() {
                let mark = self.mirror.mark(partition);
                self.mirror.compare(mark, &self.engine.walk(partition, page).await.unwrap());
            }
            self.mirror.finish(whole, self.clock.now());
        }
    }

    /// Time passes, and all of it is heard.
    async fn pass(&self, time: Duration) {
        let end = self.clock.now() + time;
        while self.clock.now() < end {
            self.clock.advance(end.since(self.clock.now()).min(5 * MINUTE));
            self.roll.canary_returned(self.clock.now()).await.unwrap();
        }
    }

    /// The unit is heard over a broker: the canary before the heartbeat was sent now.
    async fn hear(&self, unit: &Unit) {
        self.hear_sent_after(unit, self.clock.now()).await;
    }

    async fn hear_sent_after(&self, unit: &Unit, canary: Timestamp) {
        let now = self.clock.now();
        let heartbeat = Heartbeat { not_before: Some(canary), ..Heartbeat::of(unit.clone(), now) };
        self.roll.hear(&[heartbeat], now).await.unwrap();
    }

    /// The unit is heard so often, each time after the usual interval.
    async fn hear_often(&self, unit: &Unit, times: usize) {
        for _ in 0..times {
            self.pass(USUAL).await;
            self.hear(unit).await;
        }
    }

    fn rhythm(&self, unit: &Unit) -> UnitRhythm {
        self.mirror.rhythm(unit, &self.roll.hearing(), self.clock.now()).expect("the unit is known")
    }

    fn longest(&self, unit: &Unit) -> Duration {
        self.rhythm(unit).rhythm.longest()
    }

    /// The units whose silence is unusual, as lists have them, and how many the summary counts.
    fn unusual(&self) -> (Vec<String>, u64) {
        let query = ListQuery { unusual: Some(true), limit: 100, ..ListQuery::default() };
        let (hearing, now) = (self.roll.hearing(), self.clock.now());
        let listed = self.mirror.list(&query, &hearing, now);
        assert!(listed.iter().all(|unit| unit.unusual && unit.state == State::Online), "{listed:?}");
        let names = listed.iter().map(|unit| unit.unit.as_str().to_owned()).collect();
        (names, self.mirror.summary(&hearing, now).unusual.iter().sum())
    }

    fn keeper(&self) -> RhythmKeeper {
        RhythmKeeper {
            mirror: self.mirror.clone(),
            ownership: Ownership::of_everything(PARTITIONS),
            cells: self.engine.clone(),
            clock: self.clock.clone(),
            telemetry: self.telemetry.clone(),
        }
    }

    /// Reads the stored rhythms, and writes those of now.
    async fn keep(&self) {
        let stop = CancellationToken::new();
        let running = tokio::spawn(self.keeper().run(stop.clone()));
        let is_read = async || (0..PARTITIONS).all(|partition| !self.mirror.wants_rhythms(partition));
        until("the stored rhythms are read", is_read).await;
        stop.cancel();
        running.await.unwrap().unwrap();
    }
}

fn unit(id: &str) -> Unit {
    format!("gate:{id}").parse().unwrap()
}

fn near(found: Duration, expected: Duration) -> bool {
    found.abs_diff(expected) < expected / 50
}

/// Runs a case on an instance with an engine of each sort.
async fn on_each(case: usize, run: impl AsyncFn(Instance)) {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().unwrap());
    for engine in engines(&redis, case, &dir).await {
        run(Instance::new(engine, Clock::by_hand(BEGIN)).await).await;
    }
}

#[tokio::test]
async fn a_unit_is_learned_from_what_it_sends_and_a_much_longer_silence_is_unusual() {
    on_each(1, async |instance| {
        let (gate, other) = (unit("7"), unit("8"));
        instance.hear(&gate).await;
        instance.hear_often(&gate, 7).await;
        assert_eq!(instance.rhythm(&gate).rhythm.progress(), (7, 8));
        instance.pass(30 * MINUTE).await;
        assert_eq!(instance.unusual(), (vec![], 0), "seven intervals judge nothing");
        instance.hear(&other).await;
        instance.hear(&gate).await;
        instance.hear_often(&gate, 20).await;
        let UnitRhythm { rhythm, unusual_since } = instance.rhythm(&gate);
        assert!(near(rhythm.usual(), USUAL) || rhythm.usual() > USUAL, "{:?}", rhythm.usual());
        assert_eq!(unusual_since, None);

        // The longest interval of thirty minutes is remembered.
        instance.pass(36 * MINUTE).await;
        assert_eq!(instance.unusual(), (vec![], 0));
        instance.pass(4 * MINUTE).await;
        assert_eq!(instance.unusual(), (vec!["7".to_owned()], 1));
        let since = instance.rhythm(&gate).unusual_since.unwrap();
        assert!(near(instance.clock.now().since(since), 40 * MINUTE - rhythm.longest() * 5 / 4), "{since}");
        let cadences = instance.mirror.cadences(None);
        let [(kind, cadences), _] = &cadences[..] else { panic!("two kinds") };
        assert_eq!((kind.as_str(), cadences.units(), cadences.learning), ("gate", 1, 1));
        instance.hear(&gate).await;
        assert_eq!(instance.unusual(), (vec![], 0));
    })
    .await;
}

#[tokio::test]
async fn blind_time_a_pause_an_outage_a_late_message_and_a_burst_teach_nothing() {
    on_each(2, async |instance| {
        let gate = unit("7");
        instance.hear(&gate).await;
        instance.hear_often(&gate, 10).await;
        let before = instance.rhythm(&gate).rhythm;
        assert!(near(before.longest(), USUAL));

        // The link is cut. What waited at the broker comes before the first canary.
        instance.clock.advance(25 * MINUTE);
        instance.hear(&gate).await;
        instance.roll.canary_returned(instance.clock.now()).await.unwrap();
        assert_eq!(instance.rhythm(&gate).rhythm, before, "blind time");

        let now = instance.clock.now();
        let pause = UnitChange::Pause(Some(now + 20 * MINUTE));
        assert!(instance.roll.change(&gate, None, &pause, now, async { Ok(()) }).await.unwrap());
        instance.pass(30 * MINUTE).await;
        instance.hear(&gate).await;
        assert_eq!(instance.rhythm(&gate).rhythm, before, "a pause");

        instance.pass(60 * MINUTE).await;
        instance.roll.check_deadlines(std::slice::from_ref(&gate), instance.clock.now()).await.unwrap();
        assert!(instance.mirror.is_offline(&gate));
        instance.hear(&gate).await;
        assert!(!instance.mirror.is_offline(&gate));
        assert_eq!(instance.rhythm(&gate).rhythm, before, "an outage");

        instance.pass(30 * MINUTE).await;
        instance.hear_sent_after(&gate, instance.clock.now() - 11 * MINUTE).await;
        assert_eq!(instance.rhythm(&gate).rhythm, before, "a message that was in transit for long");

        for _ in 0..50 {
            instance.clock.advance(Duration::from_millis(2));
            instance.hear(&gate).await;
        }
        assert!(near(instance.rhythm(&gate).rhythm.usual(), before.usual()), "a burst");

        // A silence that ends in time does teach.
        instance.pass(30 * MINUTE).await;
        instance.hear(&gate).await;
        assert!(near(instance.longest(&gate), 30 * MINUTE), "{:?}", instance.longest(&gate));
    })
    .await;
}

/// Ten messages, each with its own time, that a logger uploads together: in one batch, or one after the other.
#[tokio::test]
async fn a_device_that_gathers_messages_and_sends_them_at_once_is_learned_by_when_they_come() {
    on_each(9, async |instance| {
        let (together, apart): (Unit, Unit) = ("logger:1".parse().unwrap(), "logger:2".parse().unwrap());
        let upload = async || {
            let now = instance.clock.now();
            let message = |unit: &Unit, age: u32| Heartbeat {
                not_before: Some(now),
                arrived: instance.clock.now(),
                ..Heartbeat::of(unit.clone(), now - USUAL / 10 * age)
            };
            let all: Vec<Heartbeat> = (0..10).rev().map(|age| message(&together, age)).collect();
            instance.roll.hear(&all, now).await.unwrap();
            for age in (0..10).rev() {
                instance.clock.advance(Duration::from_millis(3));
                instance.roll.hear(&[message(&apart, age)], instance.clock.now()).await.unwrap();
            }
        };
        for _ in 0..20 {
            upload().await;
            instance.pass(USUAL - Duration::from_secs(1)).await;
            assert_eq!(instance.unusual(), (vec![], 0), "it is about to send again");
        }
        for logger in [&together, &apart] {
            let rhythm = instance.rhythm(logger).rhythm;
            assert!(near(rhythm.usual(), USUAL) && rhythm.progress().0 <= 20, "{rhythm:?}");
        }
        // A device whose clock is behind is heard as often, and its last seen time is always old.
        let behind: Unit = "logger:3".parse().unwrap();
        for _ in 0..20 {
            instance.pass(MINUTE).await;
            let now = instance.clock.now();
            let late = Heartbeat { arrived: now, ..Heartbeat::of(behind.clone(), now - 10 * MINUTE) };
            instance.roll.hear(&[late], now).await.unwrap();
        }
        assert_eq!(instance.rhythm(&behind).unusual_since, None);
        assert!(near(instance.longest(&behind), 11 * MINUTE), "{:?}", instance.longest(&behind));
        // Meanwhile the others were silent for much longer than they are.
        let mut unusual = instance.unusual().0;
        unusual.sort();
        assert_eq!(unusual, ["1", "2"]);
    })
    .await;
}

#[tokio::test]
async fn a_reader_of_unusual_units_meets_all_that_it_wants_however_few_it_takes_at_once() {
    on_each(4, async |instance| {
        let units: Vec<Unit> = (0..20).map(|number| unit(&number.to_string())).collect();
        for _ in 0..10 {
            instance.pass(USUAL).await;
            for unit in &units {
                instance.hear(unit).await;
            }
        }
        instance.pass(4 * USUAL).await;
        let mut wanted = WantedUnits { kinds: [units[0].kind.clone()].into(), ..WantedUnits::default() };
        let mut cursor = Cursor::default();
        let mut met = Vec::new();
        // A step ends with a partition; the last step ends with the fleet.
        for _ in 0..PARTITIONS + 1 {
            let found = instance.roll.unusual(&mut cursor, &wanted, instance.clock.now(), 1);
            met.extend(found.into_iter().map(|one| one.unit));
        }
        for unit in &units {
            assert!(met.contains(unit), "{unit} is not met");
        }
        let all = |wanted: &WantedUnits| {
            let found = instance.roll.unusual(&mut Cursor::default(), wanted, instance.clock.now(), 100);
            found.into_iter().map(|one| one.unit).collect::<Vec<Unit>>()
        };
        wanted.without = units[1..].iter().cloned().collect();
        assert_eq!(all(&wanted), [units[0].clone()]);
        assert!(all(&WantedUnits::default()).is_empty(), "no kind is wanted");
    })
    .await;
}

#[tokio::test]
async fn a_unit_that_declares_something_new_with_each_heartbeat_is_learned_too() {
    on_each(3, async |instance| {
        let gate = unit("7");
        for minutes in 30..45 {
            instance.pass(USUAL).await;
            let declared = Declared { timeout: Some(minutes * MINUTE), ..Declared::default() };
            let now = instance.clock.now();
            let heartbeat = Heartbeat { declared, ..Heartbeat::of(gate.clone(), now) };
            instance.roll.hear(&[heartbeat], now).await.unwrap();
        }
        let UnitRhythm { rhythm, .. } = instance.rhythm(&gate);
        assert!(near(rhythm.usual(), USUAL) && rhythm.is_known(), "{rhythm:?}");
    })
    .await;
}

#[tokio::test]
async fn rhythms_survive_a_restart_of_the_embedded_engine() {
    let dir = tempfile::tempdir().unwrap();
    let open = async || {
        let config = embedded::EmbeddedConfig { path: dir.path().to_owned(), partitions: Some(PARTITIONS) };
        let telemetry = Arc::new(Telemetry::new(&Clock::system()));
        let engine = EmbeddedEngine::open(&config, telemetry).await.unwrap();
        Arc::new(engine) as Arc<dyn Engine>
    };
    let (gates, clock) = ([unit("7"), unit("ü")], Clock::by_hand(BEGIN));
    let instance = Instance::new(open().await, clock.clone()).await;
    for _ in 0..10 {
        instance.pass(USUAL).await;
        for gate in &gates {
            instance.hear(gate).await;
        }
    }
    let before = gates.each_ref().map(|gate| instance.rhythm(gate).rhythm);
    instance.keep().await;
    drop(instance);
    clock.advance(15 * MINUTE);
    let instance = Instance::new(open().await, clock).await;
    assert!(!instance.rhythm(&gates[0]).rhythm.is_known(), "not read yet");
    instance.keep().await;
    assert_eq!(gates.each_ref().map(|gate| instance.rhythm(gate).rhythm), before);
    // They go on from there.
    instance.pass(USUAL).await;
    instance.hear(&gates[0]).await;
    assert_eq!(instance.rhythm(&gates[0]).rhythm, before[0], "the time of the restart teaches nothing");
    instance.hear_often(&gates[0], 2).await;
    assert_eq!(instance.rhythm(&gates[0]).rhythm.progress().0, before[0].progress().0 + 2);
}

#[tokio::test]
async fn the_next_owner_of_a_partition_has_the_rhythms_of_its_units() {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().unwrap());
    let [engine, _] = engines(&redis, 5, &dir).await;
    let clock = Clock::by_hand(BEGIN);
    let first = Instance::new(engine.clone(), clock.clone()).await;
    let gates: Vec<Unit> = (0..20).map(|number| unit(&number.to_string())).collect();
    for _ in 0..10 {
        first.pass(USUAL).await;
        for gate in &gates {
            first.hear(gate).await;
        }
    }
    first.keep().await;
    // Another instance has the units in other rows.
    let next = Instance::new(engine.clone(), clock.clone()).await;
    next.keep().await;
    for gate in &gates {
        assert_eq!(next.rhythm(gate).rhythm, first.rhythm(gate).rhythm, "{gate}");
    }
    // Partitions that it loses and gets again are read again.
    next.mirror.keep(|_| false);
    next.mirror.keep(|_| true);
    assert!(!next.mirror.wants_rhythms(0), "its units are not there yet");
    next.fill().await;
    assert!(next.mirror.wants_rhythms(0) && !next.rhythm(&gates[0]).rhythm.is_known());
    next.keep().await;
    assert!(next.rhythm(&gates[0]).rhythm.is_known());
    let stored = engine.all_cells(Table::Rhythms, 0).await.unwrap();
    assert_eq!(stored.keys().collect::<Vec<_>>(), ["0.0"], "one block");
}

#[tokio::test]
async fn instances_that_share_a_fleet_learn_the_same_whoever_hears_a_unit() {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().unwrap());
    let [engine, _] = engines(&redis, 6, &dir).await;
    let clock = Clock::by_hand(BEGIN);
    let (owner, other) =
        (Instance::new(engine.clone(), clock.clone()).await, Instance::new(engine, clock.clone()).await);
    let (shared, twice) = (unit("shared"), unit("twice"));
    for turn in 0..40 {
        owner.pass(USUAL).await;
        other.roll.refresh_hearing().await.unwrap();
        // A shared subscription gives each message to one of them.
        if turn % 3 == 0 { &owner } else { &other }.hear(&shared).await;
        // Two subscriptions give it to both.
        other.hear(&twice).await;
        clock.advance(Duration::from_millis(3));
        owner.hear(&twice).await;
    }
    for gate in [shared, twice] {
        let rhythm = owner.rhythm(&gate).rhythm;
        assert!(near(rhythm.usual(), USUAL) && rhythm.is_known(), "{gate}: {rhythm:?}");
        assert!(near(rhythm.longest(), USUAL), "{gate}: {rhythm:?}");
    }
}
