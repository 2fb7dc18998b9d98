//! The directory of the embedded engine: its lock and permissions, and failures of the disk or of a
//! file in it. The promises of every engine stand in `tests/engines/conformance`.
//!
//! A full or read-only disk is a small file system in memory. Only root may mount a file system, or an ordinary user
//! within a user namespace.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp, monotonic};
use rollcall::presence::{
    BrokerName, Change, Facts, IndexChange, Interval, KeyChange, Lifecycle, Snapshot, Unit,
};
use rollcall::simulate::servers::ExitCleanup;
use rollcall::store::Examine;
use rollcall::store::Layout;
use rollcall::store::{
    Capacity, DataLoss, Delivery, Destinations, EngineError, Gap, Group, HearingStore, Join, OutboxEvent,
    OutboxStore, Pace, Queries, Refresh, StoredDeliveries, StoredGroups, Subscription, UnitStore,
};
use rollcall::store::{embedded::EmbeddedConfig, embedded::EmbeddedEngine, embedded::survey};
use rollcall::telemetry::{EngineWarning, Telemetry};
use tempfile::TempDir;

use crate::support::namespaces::{Own, is_done_elsewhere, this_test};

const BEGIN: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);
const DATABASE: &str = "rollcall.db";

fn config(path: &Path) -> EmbeddedConfig {
    EmbeddedConfig { path: path.to_owned(), partitions: Some(16) }
}

async fn open(path: &Path) -> Result<Arc<EmbeddedEngine>, EngineError> {
    let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(BEGIN)));
    EmbeddedEngine::open(&config(path), telemetry).await.map(Arc::new)
}

async fn refusal(path: &Path) -> EngineError {
    match open(path).await {
        Ok(_) => panic!("it is not refused"),
        Err(error) => error,
    }
}

fn unit(number: usize) -> Unit {
    format!("detector:unit-{number:06}").parse().unwrap()
}

/// The change that adds a unit, seen at the beginning.
fn present(unit: Unit) -> (Snapshot, Change) {
    let change = Change {
        key: KeyChange::Set { last_seen: BEGIN, ttl: HOUR },
        index: IndexChange::CheckAt(BEGIN + HOUR),
        facts: Some(Facts::new(Lifecycle::Present, BEGIN)),
        record: None,
    };
    (Snapshot { unit, alive: None, alive_at: None, facts: None, stored: None }, change)
}

async fn fill(engine: &EmbeddedEngine, units: std::ops::Range<usize>) -> Result<(), EngineError> {
    let changes: Vec<_> = units.map(|number| present(unit(number))).collect();
    let applied = engine.apply(&changes).await?;
    assert!(applied.into_iter().all(|applied| applied));
    Ok(())
}

async fn known(engine: &EmbeddedEngine) -> usize {
    let mut known = 0;
    for partition in 0..engine.partitions() {
        for page in 0..engine.pages() {
            known += engine.walk(partition, page).await.unwrap().len();
        }
    }
    known
}

/// A fleet whose process has ended in order.
async fn fleet(units: usize) -> TempDir {
    let dir = TempDir::new().unwrap();
    let engine = open(dir.path()).await.unwrap();
    fill(&engine, 0..units).await.unwrap();
    dir
}

/// A heartbeat that may be written for an hour from now, as long as its unit is allowed to be silent.
fn refresh(unit: &Unit, at: Timestamp) -> Refresh<'_> {
    let until = monotonic() + HOUR;
    Refresh { unit, at, arrived: at, broker: None, ttl: HOUR, check_by: at + HOUR, unbroken: None, until }
}

#[tokio::test]
async fn leases_of_a_process_are_free_as_soon_as_the_next_one_starts() {
    let dir = TempDir::new().unwrap();
    let (hook, partitions) = (["hook".to_owned()], (0..16).collect::<Vec<u16>>());
    let group = |key: &str| Group { key: key.to_owned(), labels: Default::default() };
    let blind = |hours: u32| OutboxEvent::Blind(Interval { from: BEGIN - hours * HOUR, to: BEGIN });
    let pace = Pace::AT_ONCE;
    let engine = open(dir.path()).await.unwrap();
    let joins = [
        Join { groups: vec![group("a")], event: blind(1) },
        Join { groups: vec![group("b")], event: blind(2) },
    ];
    StoredGroups::new(engine.clone())
        .join(&joins, &Destinations::all(pace, &hook), &Capacity::NONE, BEGIN)
        .await
        .unwrap();
    StoredGroups::new(engine.clone())
        .seal(&partitions, &Destinations::all(pace, &hook), BEGIN)
        .await
        .unwrap();
    let held = StoredDeliveries::new(engine.clone())
        .lease(&partitions, "hook", BEGIN, BEGIN + HOUR, 10)
        .await
        .unwrap();
    assert_eq!(held.len(), 2);
    assert_eq!(
        StoredDeliveries::new(engine.clone()).first_lease(&partitions, "hook").await.unwrap(),
        Some(BEGIN + HOUR)
    );
    // A delivery that is retried later waits, also across a restart.
    let (retried, held): (Vec<Delivery>, Vec<Delivery>) =
        held.into_iter().partition(|delivery| delivery.group.key == "a");
    StoredDeliveries::new(engine.clone()).retry_later(&retried[0], BEGIN + 2 * HOUR).await.unwrap();
    drop(engine);
    let engine = open(dir.path()).await.unwrap();
    let free = StoredDeliveries::new(engine.clone())
        .lease(&partitions, "hook", BEGIN, BEGIN + HOUR, 10)
        .await
        .unwrap();
    let again: Vec<Delivery> = held.into_iter().map(|one| Delivery { attempt: 2, ..one }).collect();
    assert_eq!(free, again);
    let later = BEGIN + 2 * HOUR;
    let ids: Vec<String> = StoredDeliveries::new(engine.clone())
        .lease(&partitions, "hook", later, later + HOUR, 10)
        .await
        .unwrap()
        .into_iter()
        .map(|one| one.id)
        .collect();
    assert_eq!(ids.len(), 2, "the other waited: {ids:?}");
}

#[tokio::test]
async fn recorded_heartbeats_survive_an_orderly_end() {
    let dir = fleet(1000).await;
    let later = BEGIN + Duration::from_secs(7);
    let engine = open(dir.path()).await.unwrap();
    let units: Vec<Unit> = (0..1000).map(unit).collect();
    let beat = |unit| refresh(unit, later);
    let applied = engine.refresh(&units.iter().map(beat).collect::<Vec<_>>()).await.unwrap();
    assert!(applied.into_iter().all(|before| before.is_some()));
    engine.advance(&Subscription::Plain, later, Gap { blind: HOUR, tell_after: HOUR }).await.unwrap();
    drop(engine);
    let log = dir.path().join(format!("{DATABASE}-wal"));
    assert!(!log.exists(), "the log is carried over");
    let engine = open(dir.path()).await.unwrap();
    assert!(engine.read(&units).await.unwrap().iter().all(|seen| seen.alive == Some(later)));
    assert_eq!(engine.hearing().await.unwrap().heard, Some(later));
}

#[tokio::test]
async fn the_brokers_of_recorded_heartbeats_survive_an_orderly_end_also_of_units_that_changed_since() {
    let dir = fleet(1000).await;
    let brokers = ["eu", "us", "http"].map(|name| name.parse::<BrokerName>().unwrap());
    let broker_of = |number: usize| brokers.get(number % 4);
    let units: Vec<Unit> = (0..1000).map(unit).collect();
    let note = |seen: Snapshot| {
        let facts = Some(Facts { note: "in the lift".to_owned(), ..seen.facts.clone().unwrap() });
        (seen, Change { key: KeyChange::Keep, index: IndexChange::Keep, facts, record: None })
    };
    let mut at = BEGIN;
    for _ in 0..2 {
        let engine = open(dir.path()).await.unwrap();
        at = at + Duration::from_secs(7);
        let beat = |number: usize| Refresh { broker: broker_of(number), ..refresh(&units[number], at) };
        engine.refresh(&(0..1000).map(beat).collect::<Vec<_>>()).await.unwrap();
        // Some units change before their heartbeats are on disk, and others after that.
        for some in [&units[..100], &units[100..200]] {
            let changes: Vec<_> = engine.read(some).await.unwrap().into_iter().map(note).collect();
            assert!(engine.apply(&changes).await.unwrap().into_iter().all(|applied| applied));
            // Blind time is written at once, together with all heartbeats.
            let gap = Gap { blind: Duration::ZERO, tell_after: HOUR };
            engine.advance(&Subscription::Plain, at, gap).await.unwrap();
        }
        drop(engine);
        let engine = open(dir.path()).await.unwrap();
        for (number, seen) in engine.read(&units).await.unwrap().iter().enumerate() {
            assert_eq!((seen.alive, seen.alive_at.as_ref()), (Some(at), broker_of(number)), "{}", seen.unit);
        }
    }
}

/// Many beats for few units: they are merged into pages again and again.
#[tokio::test]
async fn heartbeats_over_a_long_time_do_not_grow_the_database() {
    let dir = fleet(2000).await;
    let engine = open(dir.path()).await.unwrap();
    let units: Vec<Unit> = (0..2000).map(unit).collect();
    let gap = Gap { blind: Duration::ZERO, tell_after: HOUR };
    let broker: BrokerName = "eu".parse().unwrap();
    let room = || std::fs::metadata(dir.path().join(DATABASE)).unwrap().len();
    let mut at = BEGIN;
    for _ in 0..400 {
        at = at + Duration::from_millis(10);
        let beat = |unit| Refresh { broker: Some(&broker), ..refresh(unit, at) };
        engine.refresh(&units.iter().map(beat).collect::<Vec<_>>()).await.unwrap();
        // Blind time is written at once, together with all heartbeats.
        engine.advance(&Subscription::Plain, at, gap).await.unwrap();
    }
    drop(engine);
    assert!(room() < 3 << 20, "{} bytes after 800 000 heartbeats", room());
    let engine = open(dir.path()).await.unwrap();
    let is_known = |seen: &Snapshot| seen.alive == Some(at) && seen.alive_at.as_ref() == Some(&broker);
    assert!(engine.read(&units).await.unwrap().iter().all(is_known));
}

#[tokio::test]
async fn a_second_process_is_refused_and_the_error_names_the_first() {
    let dir = fleet(1).await;
    let engine = open(dir.path()).await.unwrap();
    match refusal(dir.path()).await {
        EngineError::Refused(why) => {
            let me = format!("in use by process {}; only one process can use it", std::process::id());
            assert!(why.contains(&me), "{why}");
        }
        other => panic!("{other:?}"),
    }
    let server = survey(&config(dir.path())).await.unwrap().server;
    assert!(server.contains("in use by rollcall"), "{server}");
    drop(engine);
    open(dir.path()).await.unwrap();
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// The modes of all files in a directory.
fn modes(dir: &Path) -> Vec<(String, u32)> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut modes: Vec<_> =
        files.map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), mode(&path))).collect();
    modes.sort();
    modes
}

#[tokio::test]
async fn a_fleet_is_closed_to_other_users_also_one_that_was_open_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("above/fleet");
    let closed = |names: [&str; 4]| names.map(|name| (name.to_owned(), 0o600)).to_vec();
    let all = closed(["lock", "rollcall.db", "rollcall.db-shm", "rollcall.db-wal"]);
    let engine = open(&path).await.unwrap();
    fill(&engine, 0..10).await.unwrap();
    assert_eq!((mode(&path), modes(&path)), (0o700, all.clone()));
    // The permissions are too wide while the fleet is in use, so that all four files exist.
    for (name, _) in &all {
        std::fs::set_permissions(path.join(name), Permissions::from_mode(0o644)).unwrap();
    }
    let copy = dir.path().join("copy");
    assert!(
        Command::new("cp")
            .args(["-a".as_ref(), path.as_os_str(), copy.as_os_str()])
            .status()
            .unwrap()
            .success()
    );
    drop(engine);
    let engine = open(&copy).await.unwrap();
    fill(&engine, 10..20).await.unwrap();
    assert_eq!(modes(&copy), all);
}

#[tokio::test]
async fn a_file_of_a_fleet_that_is_a_link_is_refused_and_what_it_leads_to_stays_as_it_is() {
    for name in ["lock", "rollcall.db", "rollcall.db-wal", "rollcall.db-shm"] {
        for has_fleet in [false, true] {
            let dir = if has_fleet { fleet(1).await } else { tempfile::tempdir().unwrap() };
            let other = dir.path().join("of another program");
            std::fs::write(&other, "").unwrap();
            std::fs::set_permissions(&other, Permissions::from_mode(0o666)).unwrap();
            let file = dir.path().join(name);
            let _ = std::fs::remove_file(&file);
            std::os::unix::fs::symlink(&other, &file).unwrap();
            let EngineError::Refused(why) = refusal(dir.path()).await else { panic!("{name}") };
            assert!(why.contains(name) && why.contains("is a link"), "{why}");
            let surveyed = survey(&config(dir.path())).await;
            assert!(surveyed.is_err() || name == "lock" || !has_fleet, "{name}: {surveyed:?}");
            assert_eq!((mode(&other), std::fs::read(&other).unwrap()), (0o666, Vec::new()), "{name}");
        }
    }
}

#[tokio::test]
async fn a_pipe_in_the_place_of_a_file_is_refused_and_nothing_waits_for_its_other_end() {
    for name in ["lock", "rollcall.db"] {
        let dir = tempfile::tempdir().unwrap();
        assert!(Command::new("mkfifo").arg(dir.path().join(name)).status().unwrap().success());
        let why = refusal(dir.path()).await.to_string();
        assert!(why.contains("is not a regular file"), "{why}");
    }
}

#[tokio::test]
async fn the_directory_of_a_fleet_may_be_a_link() {
    let dir = fleet(3).await;
    let place = tempfile::tempdir().unwrap();
    let link = place.path().join("fleet");
    std::os::unix::fs::symlink(dir.path(), &link).unwrap();
    drop(open(&link).await.unwrap());
    survey(&config(&link)).await.unwrap();
}

#[tokio::test]
async fn a_fleet_of_another_number_of_partitions_is_refused_and_the_error_says_which() {
    let dir = fleet(1).await;
    let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(BEGIN)));
    let other = EmbeddedConfig { partitions: Some(32), ..config(dir.path()) };
    let Err(EngineError::Refused(why)) = EmbeddedEngine::open(&other, telemetry).await else { panic!() };
    assert!(why.contains("16 partitions"), "{why}");
    assert!(survey(&other).await.is_err());
}

/// The contents of all files, by name.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entry = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    let mut all: Vec<_> = std::fs::read_dir(dir).unwrap().map(entry).collect();
    all.sort();
    all
}

#[tokio::test]
async fn a_damaged_file_is_reported_and_not_overwritten() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 5] = [
        ("its head is gone", |file| file[..100].fill(7)),
        ("pages are gone", |file| {
            for page in file.chunks_mut(4096).skip(4) {
                page[..64].fill(0xff);
            }
        }),
        ("its end is gone", |file| file.truncate(file.len() / 2)),
        ("it is empty", Vec::clear),
        ("it is text", |file| *file = b"Dear diary, today nothing happened.\n".repeat(200)),
    ];
    for (damage, spoil) in damages {
        let dir = fleet(3000).await;
        let path = dir.path().join(DATABASE);
        let mut file = std::fs::read(&path).unwrap();
        spoil(&mut file);
        std::fs::write(&path, &file).unwrap();
        let before = contents(dir.path());
        let surveyed = survey(&config(dir.path())).await;
        assert!(matches!(surveyed, Err(EngineError::Damaged(_))), "{damage}: {surveyed:?}");
        match refusal(dir.path()).await {
            EngineError::Damaged(why) => {
                assert!(why.contains("is damaged") && why.contains("backup"), "{why}")
            }
            other => panic!("{damage}: {other:?}"),
        }
        assert!(contents(dir.path()) == before, "{damage}, and something was written");
    }
}

#[tokio::test]
async fn a_missing_database_is_reported_and_not_made_anew() {
    let dir = fleet(1).await;
    std::fs::remove_file(dir.path().join(DATABASE)).unwrap();
    let EngineError::Damaged(why) = refusal(dir.path()).await else { panic!() };
    assert!(why.contains("its database is missing"), "{why}");
    assert!(!dir.path().join(DATABASE).exists());
}

#[tokio::test]
async fn a_database_of_another_program_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let theirs = rusqlite::Connection::open(dir.path().join(DATABASE)).unwrap();
    theirs.execute_batch("CREATE TABLE songs(title TEXT); INSERT INTO songs VALUES('Gloria')").unwrap();
    drop(theirs);
    let EngineError::Refused(why) = refusal(dir.path()).await else { panic!() };
    assert!(why.contains("another program's"), "{why}");
    let theirs = rusqlite::Connection::open(dir.path().join(DATABASE)).unwrap();
    let mode: String = theirs.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "delete", "as it was");
}

#[tokio::test]
async fn a_fleet_that_is_replaced_while_it_is_in_use_is_a_warning() {
    let dir = fleet(1).await;
    let engine = open(dir.path()).await.unwrap();
    let names = |warnings: Vec<rollcall::store::Warning>| {
        warnings.into_iter().map(|warning| warning.name).collect::<Vec<_>>()
    };
    assert!(!names(engine.examine(BEGIN).await.unwrap()).contains(&EngineWarning::LostItsData));
    std::fs::rename(dir.path().join(DATABASE), dir.path().join("elsewhere")).unwrap();
    assert!(names(engine.examine(BEGIN).await.unwrap()).contains(&EngineWarning::LostItsData));
}

#[tokio::test]
async fn a_directory_that_is_removed_while_in_use_is_reported_once() {
    let dir = fleet(1).await;
    let engine = open(dir.path()).await.unwrap();
    let gap = Gap { blind: HOUR, tell_after: HOUR };
    let hear = async |second: u64| {
        let sent_at = BEGIN + HOUR + Duration::from_secs(second);
        engine.advance(&Subscription::Plain, sent_at, gap).await.unwrap();
    };
    let outboxes: Vec<u16> = (0..=engine.partitions()).collect();
    let outbox = async || engine.outbox(&outboxes, 100).await.unwrap();
    // A part of the time around the restart was lost: it is blind, and too short to be notified.
    hear(1).await;
    hear(2).await;
    assert_eq!(outbox().await, []);
    std::fs::remove_dir_all(dir.path()).unwrap();
    for second in 3..6 {
        hear(second).await;
    }
    // Also several reads at once need no file of it.
    let reads = (0..8).map(|_| engine.outbox(&outboxes, 100));
    futures_util::future::try_join_all(reads).await.unwrap();
    tokio::time::timeout(HOUR, engine.wants_examination()).await.expect("it is surveyed at, at once");
    let warnings = engine.examine(BEGIN).await.unwrap();
    assert!(warnings.iter().any(|warning| warning.name == EngineWarning::LostItsData), "{warnings:?}");
    // Operators are notified, though the notification does not survive a restart.
    let notified = outbox().await;
    let [entry] = &notified[..] else { panic!("{notified:?}") };
    let at = |second: u64| BEGIN + HOUR + Duration::from_secs(second);
    let loss = DataLoss { interval: Interval { from: at(2), to: at(3) }, partitions: None };
    assert_eq!(entry.event, OutboxEvent::DataLost(loss));
    let pace = Pace::AT_ONCE;
    let (hook, now) = (["hook".to_owned()], at(6));
    let group = Group { key: "blind".to_owned(), labels: Default::default() };
    let joins = [Join { groups: vec![group], event: entry.event.clone() }];
    StoredGroups::new(engine.clone())
        .join(&joins, &Destinations::all(pace, &hook), &Capacity::NONE, now)
        .await
        .unwrap();
    engine.remove_entries(std::slice::from_ref(&entry.position), &Default::default()).await.unwrap();
    let leased =
        StoredDeliveries::new(engine.clone()).lease(&outboxes, "hook", now, now + HOUR, 10).await.unwrap();
    assert_eq!((leased.len(), leased[0].blind.len()), (1, 1));
    StoredDeliveries::new(engine.clone()).delivered(&leased, now).await.unwrap();
}

/// A private file system in memory.
struct Disk {
    dir: TempDir,
    // The guard unmounts it even if this process is killed.
    _guard: ExitCleanup,
}

impl Disk {
    fn of_mib(size: u32) -> Disk {
        let dir = TempDir::new().unwrap();
        let guard = ExitCleanup::new("umount -l \"$1\"", dir.path().display().to_string()).unwrap();
        mount(&["-t", "tmpfs", "-o", &format!("size={size}m"), "tmpfs"], dir.path());
        Disk { dir, _guard: guard }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("fleet")
    }

    fn remount(&self, option: &str) {
        // This changes the mount, not the file system: that is allowed within a user namespace, too.
        mount(&["-o", &format!("remount,bind,{option}")], self.dir.path());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).status();
    }
}

fn mount(args: &[&str], at: &Path) {
    let done = Command::new("mount").args(args).arg(at).output();
    let done = done.unwrap_or_else(|why| panic!("mount cannot be run: {why}"));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "mount {args:?}: {said}; this test needs the right to mount");
}

#[tokio::test]
async fn a_full_disk_is_reported_and_work_goes_on_when_it_has_room() {
    if is_done_elsewhere(this_test!(), Own::Mounts) {
        return;
    }
    let disk = Disk::of_mib(8);
    let engine = open(&disk.path()).await.unwrap();
    fill(&engine, 0..500).await.unwrap();
    let warnings = engine.examine(BEGIN).await.unwrap();
    assert_eq!(
        warnings.iter().map(|w| w.name).collect::<Vec<_>>(),
        [EngineWarning::DiskNearlyFull],
        "{warnings:?}"
    );
    let ballast = disk.dir.path().join("ballast");
    std::fs::write(&ballast, vec![1; 6 << 20]).unwrap();
    let mut units = 500;
    let why = loop {
        match fill(&engine, units..units + 500).await {
            Ok(()) => units += 500,
            Err(EngineError::Unavailable(why)) => break why,
            Err(other) => panic!("{other:?}"),
        }
        assert!(units < 100_000, "it is never full");
    };
    assert!(why.contains("its disk is full; make room"), "{why}");
    // Heartbeats need no disk and continue.
    let (first, later) = (unit(0), BEGIN + HOUR);
    assert!(engine.refresh(&[refresh(&first, later)]).await.unwrap()[0].is_some());
    assert_eq!(known(&engine).await, units);
    std::fs::remove_file(ballast).unwrap();
    fill(&engine, units..units + 500).await.unwrap();
    drop(engine);
    let engine = open(&disk.path()).await.unwrap();
    assert_eq!(known(&engine).await, units + 500, "answered changes are complete, others absent");
    assert_eq!(engine.read(&[first]).await.unwrap()[0].alive, Some(later));
}

#[tokio::test]
async fn a_directory_on_a_full_disk_is_waited_for() {
    if is_done_elsewhere(this_test!(), Own::Mounts) {
        return;
    }
    let disk = Disk::of_mib(1);
    let path = disk.path();
    std::fs::create_dir(&path).unwrap();
    // SQLite writes as much as fits.
    std::fs::write(disk.dir.path().join("ballast"), vec![1; 2 << 20]).unwrap_err();
    match refusal(&path).await {
        EngineError::Unavailable(why) => assert!(why.contains("make room"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_refused() {
    if is_done_elsewhere(this_test!(), Own::Mounts) {
        return;
    }
    let disk = Disk::of_mib(4);
    let engine = open(&disk.path()).await.unwrap();
    fill(&engine, 0..10).await.unwrap();
    drop(engine);
    disk.remount("ro");
    for path in [disk.path(), disk.dir.path().join("none/yet")] {
        let surveyed = survey(&config(&path)).await;
        assert!(matches!(surveyed, Err(EngineError::Refused(_))), "{surveyed:?}");
    }
    match refusal(&disk.path()).await {
        EngineError::Refused(why) => assert!(why.contains("Read-only file system"), "{why}"),
        other => panic!("{other:?}"),
    }
    disk.remount("rw");
    assert_eq!(known(&open(&disk.path()).await.unwrap()).await, 10);
}
