//! Every column of the embedded engine, of a wrong type, unreadable and missing, while the service runs and before it
//! starts.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollcall::store::{Engine, HearingStore};
use rollcall::store::{embedded::EmbeddedConfig, embedded::EmbeddedEngine, embedded::columns};
use rusqlite::Connection;

use super::fleet::{Fleet, POISONED, TIMERS, UNITS, hours, telemetry, units};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Poison {
    WrongType,
    NoText,
    Unreadable,
    Missing,
}

use Poison::*;
use When::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    WhileItRuns,
    BeforeItStarts,
}

/// These columns name the fleet: the service reads them at its start, and reports an error there.
const NOT_POISONED: [&str; 2] = ["fleet", "partitions"];

/// Rows of `meta`, each as a column of its own.
const META: [&str; 3] = ["hearing", "number", "kept"];

fn open_database(path: &Path) -> Connection {
    let database = Connection::open(path.join("rollcall.db")).unwrap();
    database.busy_timeout(Duration::from_secs(20)).unwrap();
    database
}

async fn open(path: &Path, telemetry: &Arc<rollcall::telemetry::Telemetry>) -> Arc<EmbeddedEngine> {
    let config = EmbeddedConfig { path: path.to_owned(), partitions: Some(2) };
    Arc::new(EmbeddedEngine::open(&config, telemetry.clone()).await.unwrap())
}

#[tokio::test]
async fn every_column_has_a_rule_and_a_row_on_the_page() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), &telemetry().0).await);
    let database = open_database(dir.path());
    let mut select = database
        .prepare(
            "SELECT m.name, c.name FROM sqlite_schema m JOIN pragma_table_info(m.name) c WHERE m.type = 'table' \
             AND m.name NOT LIKE 'sqlite_%'",
        )
        .unwrap();
    let found = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let mut found: BTreeSet<(String, String)> = found.map(Result::unwrap).collect();
    found.retain(|(table, _)| table != "meta" && table != "unreadable");
    let of = |(table, names): (&str, Vec<&str>)| -> Vec<(String, String)> {
        names.into_iter().map(|name| (table.to_owned(), name.to_owned())).collect()
    };
    let known: BTreeSet<(String, String)> = columns().into_iter().flat_map(of).collect();
    assert_eq!(found, known, "the layout and TABLE_RULES in table_rules.rs differ");
    let mut select = database.prepare("SELECT name FROM meta").unwrap();
    let names: BTreeSet<String> =
        select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let listed: BTreeSet<String> = META.iter().chain(&NOT_POISONED).map(|name| (*name).to_owned()).collect();
    assert!(names.is_subset(&listed), "{names:?} are in meta");
    let page = include_str!("../../../docs/broken-values.md");
    for name in known
        .iter()
        .map(|(table, column)| format!("{table}.{column}"))
        .chain(META.map(|n| format!("meta.{n}")))
    {
        assert!(page.contains(&format!("`{name}`")), "docs/broken-values.md does not speak of {name}");
    }
}

macro_rules! poisoned {
    ($($case:ident: $poison:expr, $when:expr)*) => { $(
        #[tokio::test(flavor = "multi_thread")]
        async fn $case() {
            let mut all: Vec<(&str, &str)> = META.iter().map(|name| ("meta", *name)).collect();
            all.extend(columns().iter().flat_map(|(table, names)| names.iter().map(move |name| (*table, *name))));
            if $poison == Missing {
                all.dedup_by_key(|(table, name)| if *table == "meta" { *name } else { *table });
            }
            let mut wrong = Vec::new();
            for (table, column) in all {
                let done = neighbours_are_notified(table, column, $poison, $when).await;
                wrong.extend(done.err().map(|why| format!("{table}.{column} {:?} {:?}: {why}", $poison, $when)));
            }
            assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
        }
    )* };
}

poisoned! {
    a_running_fleet_notifies_of_other_units_when_a_column_is_of_a_wrong_type: WrongType, WhileItRuns
    a_running_fleet_notifies_of_other_units_when_a_column_is_not_utf8: NoText, WhileItRuns
    a_running_fleet_notifies_of_other_units_when_a_column_is_unreadable: Unreadable, WhileItRuns
    a_running_fleet_notifies_of_other_units_when_rows_are_missing: Missing, WhileItRuns
    a_fleet_starts_and_notifies_of_other_units_when_a_column_is_of_a_wrong_type: WrongType, BeforeItStarts
    a_fleet_starts_and_notifies_of_other_units_when_a_column_is_not_utf8: NoText, BeforeItStarts
    a_fleet_starts_and_notifies_of_other_units_when_a_column_is_unreadable: Unreadable, BeforeItStarts
    a_fleet_starts_and_notifies_of_other_units_when_rows_are_missing: Missing, BeforeItStarts
}

async fn neighbours_are_notified(
    table: &str,
    column: &str,
    poison: Poison,
    when: When,
) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let (telemetry, clock) = telemetry();
    let engine = open(dir.path(), &telemetry).await;
    let mut fleet = Fleet::on(engine.clone(), telemetry.clone(), clock.clone());
    fleet.live().await;
    engine.attend(&member(), hours(POISONED), Duration::from_secs(360_000_000)).await.unwrap();
    let spared;
    let is_poisoned;
    let mut engine = engine;
    match when {
        WhileItRuns => (spared, is_poisoned) = poison_one(dir.path(), table, column, poison),
        BeforeItStarts => {
            drop(fleet);
            drop(Arc::into_inner(engine).unwrap());
            (spared, is_poisoned) = poison_one(dir.path(), table, column, poison);
            engine = open(dir.path(), &telemetry).await;
            fleet = Fleet::on(engine.clone(), telemetry.clone(), clock);
            // The restart is a short blind interval.
            fleet.heard_until(hours(POISONED) + Duration::from_millis(1)).await;
        }
    }
    let engine: Arc<dyn Engine> = engine;
    for round in [49, 98] {
        fleet.heard_until(hours(POISONED + round)).await;
        for number in 0..3 {
            fleet.pass(hours(POISONED + round), number == 0).await;
        }
    }
    let mut wrong = Vec::new();
    for unit in units().iter().map(ToString::to_string) {
        let notified = fleet.notified.get(&unit).copied().unwrap_or(0);
        if notified != 1 && !(spared.contains(&unit) && notified == 0) {
            wrong.push(format!("{unit} was notified {notified} times"));
        }
    }
    let more = wrong.len().saturating_sub(3);
    wrong.truncate(3);
    if more > 0 {
        wrong.push(format!("and {more} more"));
    }
    let may_lose = matches!(table, "cells" | "entries");
    if fleet.fired.values().any(|times| *times > 1) || fleet.fired.len() < TIMERS && !may_lose {
        wrong.push(format!("of the timers were delivered: {:?}", fleet.fired));
    }
    let open: BTreeSet<String> = (fleet.records().await.iter())
        .filter(|record| record.back_at.is_none())
        .map(|record| record.unit.to_string())
        .collect();
    if open.len() + spared.len() < UNITS {
        wrong.push(format!("{} records are open", open.len()));
    }
    if let Err(why) = engine.examine(hours(POISONED + 98)).await {
        wrong.push(format!("the examination fails: {why}"));
    }
    if is_poisoned && fleet.warnings().is_empty() {
        wrong.push("it is not shown".to_owned());
    }
    for (at, unit) in units().iter().enumerate() {
        let at = hours(POISONED + 99) + Duration::from_millis(at as u64);
        if let Err(why) = fleet.try_hear(std::slice::from_ref(unit), at).await {
            wrong.push(format!("{unit} cannot be heard: {why}"));
        }
    }
    fleet.pass(hours(POISONED + 100), true).await;
    let mut known = 0;
    for partition in 0..engine.partitions() {
        for page in 0..engine.pages() {
            known += engine
                .walk(partition, page)
                .await
                .unwrap()
                .iter()
                .filter(|seen| seen.facts.is_some())
                .count();
        }
    }
    if known != UNITS {
        wrong.push(format!("{known} units are known after all"));
    }
    if !wrong.is_empty() {
        wrong.push(format!("{:?}", fleet.failures.last()));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

fn member() -> rollcall::store::ShareMember {
    rollcall::store::ShareMember { share: "t".into(), client_id: "d".into(), connection: 1 }
}

/// Poisons the first row of a table, or removes all rows. Returns the units that lose something, and whether the loss
/// must be shown.
pub fn poison_one(path: &Path, table: &str, column: &str, poison: Poison) -> (Vec<String>, bool) {
    let database = open_database(path);
    let owners = |some: &str| -> Vec<String> {
        let mut select = database.prepare(&format!("SELECT name FROM units {some}")).unwrap();
        select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    if poison == Missing {
        let spared =
            if table == "units" { owners("WHERE id = (SELECT max(id) FROM units)") } else { Vec::new() };
        let rows = match table {
            "units" => " WHERE id = (SELECT max(id) FROM units)".to_owned(),
            "meta" => format!(" WHERE name = '{column}'"),
            _ => String::new(),
        };
        database.execute(&format!("DELETE FROM {table}{rows}"), []).unwrap();
        return (spared, false);
    }
    let (column, at) = match table {
        "meta" => ("value", format!("name = '{column}'")),
        _ => (column, format!("rowid = (SELECT max(rowid) FROM {table})")),
    };
    let at = match table {
        "data" | "cells" | "entries" => {
            let key = match table {
                "cells" => "tbl",
                "entries" => "idx",
                _ => "id",
            };
            format!("{key} = (SELECT max({key}) FROM {table})")
        }
        _ => at,
    };
    let value = match (poison, column) {
        (_, "entries" | "times") => "'garbage{'",
        (WrongType, _) => "x'ff00'",
        (NoText, _) => "CAST(x'fffe' AS TEXT)",
        (_, _) => "'garbage{'",
    };
    let spared = match (table, column) {
        ("units", "name" | "facts") => owners("WHERE id = (SELECT max(id) FROM units)"),
        _ => Vec::new(),
    };
    let update = format!("UPDATE OR REPLACE {table} SET \"{column}\" = {value} WHERE {at}");
    // A row id holds nothing but numbers.
    let changed = match database.execute(&update, []) {
        Ok(changed) => changed,
        Err(error) if column == "id" => {
            assert!(error.to_string().contains("datatype mismatch"), "{error}");
            0
        }
        Err(error) => panic!("{update}: {error}"),
    };
    // Any text is valid in these columns.
    let is_fine = poison == Unreadable
        && matches!(
            column,
            "metric"
                | "value"
                | "member"
                | "key"
                | "receiver"
                | "grp"
                | "notification"
                | "silence"
                | "text"
                | "type"
        );
    // Rows that are written every two seconds recover by themselves.
    let is_rewritten = table == "meta";
    let is_any_name =
        poison == Unreadable && matches!((table, column), ("cells" | "entries", "name") | ("cells", "body"));
    let is_harmless = is_fine || is_rewritten || is_any_name;
    (spared, changed > 0 && !is_harmless)
}
