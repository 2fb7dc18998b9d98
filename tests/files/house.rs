//! The code keeps its architecture: imports go down only and never in a circle, things that may change have one home,
//! files and functions are short, scripts name their arguments and run on the oldest Redis that is promised.
//!
//! These are readings of the source, not of the behaviour. Each prints everything that it finds.

use source::{Source, files, root, sources};

mod commands;
mod imports;
mod length;
mod source;

/// Crates that are used in few places so that they can be replaced, and those places.
const KEPT_INSIDE: [(&str, &[&str]); 7] = [
    ("rumqttc", &["src/intake/mqtt", "src/alerting/channel/mqtt", "src/simulate/"]),
    ("tokio_tungstenite", &["src/intake/listener/websocket.rs"]),
    ("rusqlite", &["src/store/embedded/"]),
    ("lettre", &["src/alerting/", "src/config/receivers.rs"]),
    ("tokio_postgres", &["src/history/"]),
    ("axum", &["src/http/", "src/simulate/"]),
    ("minijinja", &["src/alerting/message/"]),
];
/// Crates that the floor of meaning must not use: it decides, and touches nothing.
const NOT_ON_THE_GROUND: [&str; 6] = ["tokio", "redis", "std::net", "std::fs", "std::process", "std::thread"];

/// Crates that are not built in: one TLS provider is enough, and nothing of the system is linked; deny.toml says it
/// too.
const NOT_BUILT_IN: [&str; 2] = ["aws-lc-sys", "openssl-sys"];
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn none(found: Vec<String>) {
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn imports_go_down_only_and_neither_loops_nor_engines_call_one_another() {
    none(forbidden(&sources()));
}

fn forbidden(sources: &[Source]) -> Vec<String> {
    let edges = imports::edges(sources);
    let pairs = edges.iter().flat_map(|(from, used)| used.iter().map(move |to| (from, to)));
    pairs.filter_map(|(from, to)| imports::forbidden(from, to)).collect()
}

#[test]
fn no_files_and_no_rooms_import_one_another() {
    none(imports::circles(&imports::edges(&sources())));
}

#[test]
fn every_module_has_its_floor() {
    none(sources().iter().filter_map(without_floor).collect());
}

fn without_floor(source: &Source) -> Option<String> {
    let homeless = imports::floor(&source.room()).is_none();
    homeless.then(|| format!("{} has no floor in tests/files/house/imports.rs", source.path))
}

#[test]
fn a_replaceable_crate_is_used_in_few_files_only() {
    none(sources().iter().flat_map(out_of_place).collect());
}

fn out_of_place(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (name, homes) in KEPT_INSIDE {
        let at_home = homes.iter().any(|home| source.path.starts_with(home));
        if source.code.contains(&format!("{name}::")) && !at_home {
            found.push(format!("{} uses {name}, which is kept inside {}", source.path, homes.join(", ")));
        }
    }
    if imports::floor(&source.room()) == Some(0) {
        let touched = NOT_ON_THE_GROUND.iter().filter(|name| source.code.contains(&format!("{name}::")));
        found.extend(touched.map(|name| format!("{} uses {name}: rules touch nothing", source.path)));
    }
    found
}

#[test]
fn no_file_is_long() {
    none(sources().iter().filter_map(length::long_file).collect());
}

#[test]
fn a_long_function_says_why_it_is_in_one_piece() {
    none(sources().iter().flat_map(length::long_functions).collect());
}

#[test]
fn every_dependency_comes_from_the_registry_and_needs_no_foreign_tls() {
    none(foreign(&std::fs::read_to_string(root().join("Cargo.lock")).expect("it is part of the repository")));
}

fn foreign(lock: &str) -> Vec<String> {
    let value = |line: &str, key: &str| line.strip_prefix(key).map(|text| text.trim_matches('"').to_owned());
    let names = lock.lines().filter_map(|line| value(line, "name = "));
    let tls = names.filter(|name| NOT_BUILT_IN.contains(&name.as_str()));
    let sources = lock.lines().filter_map(|line| value(line, "source = "));
    let elsewhere = sources.filter(|source| source != REGISTRY);
    let elsewhere = elsewhere.map(|source| format!("a crate comes from {source}"));
    tls.map(|name| format!("{name} is in Cargo.lock: TLS is ring's")).chain(elsewhere).collect()
}

#[test]
fn scripts_document_their_arguments_and_call_nothing_newer_than_redis_6_2() {
    let mut found = Vec::new();
    for path in files(&root().join("src"), "lua") {
        let text = std::fs::read_to_string(&path).expect("it can be read");
        found.extend(commands::of_script(&path, &text));
    }
    none(found);
}

#[test]
fn pipelines_send_nothing_newer_than_redis_6_2() {
    let sources = sources();
    let engine = sources.iter().filter(|source| source.path.starts_with("src/store/redis/"));
    none(engine.flat_map(commands::of_pipelines).collect());
}

/// Asserts that exactly one thing is found for each text, which it contains.
#[track_caller]
fn finds(found: Vec<String>, expected: &[&str]) {
    let matches = |(found, expected): (&String, &&str)| found.contains(*expected);
    let all = found.len() == expected.len() && found.iter().zip(expected).all(matches);
    assert!(all, "found {found:#?}, not {expected:?}");
}

fn house(files: &[(&str, &str)]) -> Vec<Source> {
    files.iter().map(|(path, text)| Source::new(&format!("src/{path}.rs"), text)).collect()
}

#[test]
fn the_readings_find_every_violation() {
    let grouped = house(&[
        ("clock", ""),
        ("presence/mod", "mod unit;\npub use unit::{Kind, Unit};"),
        ("presence/unit", "use crate::{clock, store::{redis::Config, Engine as It}};"),
        ("store/mod", "pub use self::engine::Engine;\nuse presence::Unit;"),
        (
            "store/engine",
            "// use crate::http;\nfn f() { let crate_ = \"crate::http::x\"; crate::clock::now() }",
        ),
        ("store/redis/mod", "use super::Engine; use crate::presence::Unit;"),
        ("store/embedded", "use super::redis::RedisConfig;"),
        ("store/migration", "use crate::fleet::Roll;"),
        ("fleet", "use crate::store::Engine;"),
        ("intake", "use super::alerting::{self};"),
        ("alerting", "fn f() { crate::attic::g(); }"),
        ("cli", "use crate::intake;"),
    ]);
    let expected = [
        "alerting uses attic: give both a floor",
        "intake uses alerting: the rooms of floor 2",
        "presence (floor 0) uses store (floor 1): imports go down only",
        "presence (floor 0) uses store (floor 1): imports go down only",
        "store::embedded uses store::redis: engines meet",
        "store uses fleet, which stands above it",
    ];
    finds(forbidden(&grouped), &expected);
    let edges = imports::edges(&grouped);
    assert!(edges["store::redis"].contains("presence::unit"), "a re-export leads to where it is defined");
    let expected = [
        "fleet and store import one another",
        "presence and store import one another",
        "presence::unit and store::redis import one another",
    ];
    finds(imports::circles(&edges), &expected);
    let pair = house(&[
        ("fleet/roll", "mod gone;\nuse gone::Gone;"),
        ("fleet/roll/gone", "use super::{Roll, super::Lease};"),
        ("fleet/mod", "pub(crate) use lease::{Lease as Ours, Owned as Lease};"),
        ("fleet/lease", "impl super::roll::gone::Gone {}"),
    ]);
    let circles = imports::circles(&imports::edges(&pair));
    finds(circles, &["fleet::lease and fleet::roll::gone import one another"]);
    let three = house(&[
        ("intake/config", "use super::reader::Reader;"),
        ("intake/reader", "use super::json::scan;"),
        ("intake/json", "use super::config::Fields;"),
    ]);
    let circles = imports::circles(&imports::edges(&three));
    finds(circles, &["intake::config and intake::json and intake::reader import one another"]);

    finds(house(&[("attic/mod", "")]).iter().filter_map(without_floor).collect(), &["has no floor"]);
    let misplaced = house(&[("clock", "use tokio::time::Instant;"), ("intake/topic", "rumqttc::x();")]);
    let expected = ["src/clock.rs uses tokio: rules", "src/intake/topic.rs uses rumqttc, which is kept"];
    finds(misplaced.iter().flat_map(out_of_place).collect(), &expected);
    let lock = "name = \"openssl-sys\"\nsource = \"git+https://example.org\"";
    finds(foreign(lock), &["openssl-sys is in Cargo.lock", "comes from git+https://example.org"]);
    lengths_are_read();
    commands_are_read();
}

fn lengths_are_read() {
    let files = house(&[("a", &"x\n".repeat(800)), ("b", &"x\n".repeat(801))]);
    finds(files.iter().filter_map(length::long_file).collect(), &["src/b.rs has 801 lines"]);

    let body = |lines| format!("{{\n{}}}\n", "x('{', \"}\", r#\"}\"#); // }\n".repeat(lines));
    let reason = "/// What it does.\n///\n/// In one piece: for a reason.\n#[test]\n";
    let text = format!(
        "trait T {{\nfn none(a: [u8; 2])\n-> u8;\n}}\npub async fn short() {}fn long(P {{ a, .. }}: &'a P)\n-> u8 {}\
         {reason}fn excused() {}{reason}fn needless() {}#[cfg(test)]\nmod tests {{\nfn test() {}}}",
        body(58),
        body(58),
        body(59),
        body(1),
        body(70),
    );
    let expected = [
        "long (line 65) has 61 lines, and its head",
        "needless (line 195) has 3 lines, which need no reason",
    ];
    finds(length::long_functions(&Source::new("src/a.rs", &text)), &expected);
}

fn commands_are_read() {
    let script = "-- KEYS, ARGV\nredis.call('GET', KEYS[1]) -- redis.call('TIME')\nredis.pcall(\"LMPOP\", 1)\n\
                  redis.call(name)\nredis.call('TIME')";
    let expected = ["does not say Returns", "\"name)\" is not", "\"TIME\" is not", "\"LMPOP\" is not"];
    finds(commands::of_script("a.lua".as_ref(), script), &expected);
    let pipelines = "cmd(\"GET\"); cmd(\"HEXPIRE\").arg(1); pipe.zmpop(1);";
    let expected = ["\"HEXPIRE\" is not among", "zmpop is newer"];
    finds(commands::of_pipelines(&Source::new("src/store/redis/a.rs", pipelines)), &expected);
}
