//! The mirror as a view of the embedded engine: it shows at once what the engine has stored of each unit, whatever
//! happens to them, and the same after a restart.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::sync::Notify;

use rollcall::clock::{Clock, Timestamp};
use rollcall::fleet::mirror::{ListQuery, UnitFilter};
use rollcall::fleet::{HearingConfig, Mirror, Roll, Rules, UnitChange};
use rollcall::presence::{
    self, Change, Declared, Facts, Heartbeat, IndexChange, KeyChange, Kind, KindRules, Labels, Lifecycle,
    Override, Policy, Registration, Snapshot, State, Unit,
};
use rollcall::store::embedded::{EmbeddedConfig, EmbeddedEngine};
use rollcall::store::{Layout, Queries, UnitStore};
use rollcall::telemetry::Telemetry;

const BEGIN: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const SECOND: Duration = Duration::from_secs(1);
const SITES: [&str; 3] = ["north", "south", "east"];
const UNITS: usize = 60;

/// A unit as a list shows it: its name, its state, when it was last heard, and since when it is offline.
type Shown = (String, State, Option<Timestamp>, Option<Timestamp>);

struct Fleet {
    engine: Arc<EmbeddedEngine>,
    mirror: Arc<Mirror>,
    roll: Roll,
    rules: Arc<Rules>,
    now: Timestamp,
}

impl Fleet {
    async fn open(path: &Path, now: Timestamp) -> Fleet {
        let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(now)));
        let (config, labels) =
            (EmbeddedConfig { path: path.to_owned(), partitions: Some(3) }, ["site".to_owned()]);
        let engine = EmbeddedEngine::open_with_labels(&config, &labels, telemetry.clone()).await.unwrap();
        let engine = Arc::new(engine);
        let policy = Policy { timeout: 100 * SECOND, grace: 20 * SECOND };
        let kind = |name: &str, first_timeout| {
            let kind: Kind = name.parse().unwrap();
            let rules =
                KindRules { policy, accept_timeout: true, first_timeout, ..KindRules::new(kind.clone()) };
            (kind, rules)
        };
        let rules = Arc::new(Rules::from_iter([kind("pump", None), kind("detector", Some(40 * SECOND))]));
        let mirror = Arc::new(Mirror::of(&*engine, rules.clone(), &labels));
        let config = HearingConfig {
            gap: 3600 * SECOND,
            follows: false,
            settle: Duration::ZERO,
            tell_after: 3600 * SECOND,
        };
        let grew = Arc::new(Notify::new());
        let roll = Roll::new(engine.clone(), rules.clone(), mirror.clone(), telemetry, config, grew);
        let fleet = Fleet { engine, mirror, roll, rules, now };
        fleet.roll.canary_returned(now).await.unwrap();
        fleet
    }

    /// Something happens to a unit.
    async fn happens(&mut self, random: &mut StdRng) {
        let kind = ["detector", "pump"][random.random_range(0..2)];
        let unit: Unit = format!("{kind}:unit {}", random.random_range(0..UNITS)).parse().unwrap();
        let site = SITES[random.random_range(0..SITES.len())];
        let site = Labels::from([("site".to_owned(), site.to_owned()), ("room".to_owned(), "7".to_owned())]);
        let seconds = |random: &mut StdRng| random.random_range(1..200) * SECOND;
        match random.random_range(0..12) {
            0 => drop(self.roll.retire(&unit, self.now).await.unwrap()),
            1 => {
                let set = Override { timeout: Some(seconds(random)), grace: None };
                let wanted = Registration { set, labels: site, pause: None, note: None };
                assert!(self.roll.register(&unit, &wanted, self.now).await.unwrap());
            }
            2 => {
                let until = random.random_bool(0.7).then(|| self.now + seconds(random));
                let change = UnitChange::Pause(until);
                let done = self.roll.change(&unit, None, &change, self.now, async { Ok(()) }).await;
                done.unwrap();
            }
            3 | 4 => {
                self.now = self.now + random.random_range(1..30) * SECOND;
                self.roll.canary_returned(self.now).await.unwrap();
                let all: Vec<Unit> = self.stored().await.into_iter().map(|seen| seen.unit).collect();
                self.roll.check_deadlines(&all, self.now).await.unwrap();
            }
            5 => {
                let declared =
                    Declared { timeout: Some(seconds(random)), labels: site, ..Declared::default() };
                self.hear(unit, declared).await;
            }
            6 => {
                let sleep = Some(seconds(random));
                self.hear(unit, Declared { sleep, ..Declared::default() }).await;
            }
            _ => self.hear(unit, Declared::default()).await,
        }
    }

    async fn hear(&self, unit: Unit, declared: Declared) {
        let heartbeat = Heartbeat { declared, ..Heartbeat::of(unit, self.now) };
        self.roll.hear(&[heartbeat], self.now).await.unwrap();
    }

    async fn stored(&self) -> Vec<Snapshot> {
        let mut all = Vec::new();
        for partition in 0..self.engine.partitions() {
            for page in 0..self.engine.pages() {
                all.extend(self.engine.walk(partition, page).await.unwrap());
            }
        }
        all
    }

    fn shown(&self, filter: UnitFilter) -> Vec<Shown> {
        let query = ListQuery { filter, limit: 1000, ..ListQuery::default() };
        let listed = self.mirror.list(&query, &self.roll.hearing(), self.now).into_iter();
        let listed = listed
            .map(|one| (format!("{}:{}", one.kind, one.unit), one.state, one.last_seen, one.offline_since));
        sorted(listed)
    }

    /// What is stored is shown: by state, by label, and in the numbers of units.
    async fn check(&self) {
        let (stored, hearing) = (self.stored().await, self.roll.hearing());
        let expected = |site: Option<&str>| {
            let of_site = |seen: &&Snapshot| {
                let of_unit = seen.facts.as_ref().and_then(|facts| facts.labels.get("site"));
                site.is_none_or(|site| of_unit.is_some_and(|of_unit| of_unit == site))
            };
            sorted(stored.iter().filter(of_site).filter_map(|seen| {
                let (facts, rules) = (seen.facts.as_ref()?, self.rules.get(&seen.unit.kind)?);
                let state = presence::state(seen, rules, &hearing, self.now)?;
                let offline_since = match &facts.lifecycle {
                    Lifecycle::Offline(silence) => Some(silence.deadline),
                    _ => None,
                };
                Some((seen.unit.to_string(), state, seen.last_heard(), offline_since))
            }))
        };
        let all = expected(None);
        assert_eq!(self.shown(UnitFilter::default()), all);
        for site in SITES {
            let label = Some(("site".to_owned(), site.to_owned()));
            assert_eq!(
                self.shown(UnitFilter { label, ..UnitFilter::default() }),
                expected(Some(site)),
                "{site}"
            );
            assert_eq!(self.mirror.units_with("site", site), Some(expected(Some(site)).len() as u64));
        }
        let counted: u64 = self.mirror.kinds().map(|kind| self.mirror.unit_count(kind)).sum();
        assert_eq!(counted, all.len() as u64);
    }
}

fn sorted(shown: impl Iterator<Item = Shown>) -> Vec<Shown> {
    let mut shown: Vec<Shown> = shown.collect();
    shown.sort_by(|one, other| one.0.cmp(&other.0));
    shown
}

#[tokio::test]
async fn the_view_of_the_embedded_engine_shows_what_is_stored_whatever_happens_and_after_a_restart() {
    for seed in 0..2 {
        let (dir, mut random) = (TempDir::new().unwrap(), StdRng::seed_from_u64(seed));
        let mut now = BEGIN;
        for _ in 0..3 {
            let mut fleet = Fleet::open(dir.path(), now).await;
            fleet.check().await;
            for step in 1..=120 {
                fleet.happens(&mut random).await;
                if step % 6 == 0 {
                    fleet.check().await;
                }
            }
            now = fleet.now;
        }
    }
}

#[tokio::test]
async fn a_unit_with_unreadable_facts_and_one_of_another_kind_are_not_shown() {
    let dir = TempDir::new().unwrap();
    let fleet = Fleet::open(dir.path(), BEGIN).await;
    for name in ["pump:a", "pump:b"] {
        fleet.hear(name.parse().unwrap(), Declared::default()).await;
    }
    let change = Change {
        key: KeyChange::Set { last_seen: BEGIN, ttl: 100 * SECOND },
        index: IndexChange::CheckAt(BEGIN + 100 * SECOND),
        facts: Some(Facts::new(Lifecycle::Present, BEGIN)),
        record: None,
    };
    let valve =
        Snapshot { unit: "valve:c".parse().unwrap(), alive: None, alive_at: None, facts: None, stored: None };
    assert_eq!(fleet.engine.apply(&[(valve, change)]).await.unwrap(), [true]);
    let names = |fleet: &Fleet| {
        fleet.shown(UnitFilter::default()).into_iter().map(|(name, ..)| name).collect::<Vec<String>>()
    };
    assert_eq!(names(&fleet), ["pump:a", "pump:b"]);
    drop(fleet);
    let database = Connection::open(dir.path().join("rollcall.db")).unwrap();
    database.execute("UPDATE units SET facts = 'unreadable' WHERE name = 'pump:a'", []).unwrap();
    drop(database);
    let fleet = Fleet::open(dir.path(), BEGIN).await;
    assert_eq!(names(&fleet), ["pump:b"]);
    fleet.check().await;
}
