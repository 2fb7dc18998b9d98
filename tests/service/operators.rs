//! `rollcall ack`, `rollcall pause` and `rollcall remove`, at an instance with either engine.

use std::process::Command;

use serde_json::Value;

use crate::world::{World, units};

const OPTIONS: &str = "kind = [{ name = \"detector\", timeout = \"4s\" }]";

/// How the program finds the instance.
#[derive(Clone, Copy)]
enum By {
    Configuration,
    Address,
}

fn rollcall(world: &World, by: By, arguments: &[&str]) -> (Option<i32>, String) {
    let config = world.dir.path().join("cli.toml");
    let listen = world.url("").trim_start_matches("http://").to_owned();
    std::fs::write(&config, format!("http.listen = \"{listen}\"\n{OPTIONS}\n")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
    command.args(arguments).env("USER", "ana").env_remove("ROLLCALL_CONFIG");
    match by {
        By::Address => command.arg("--url").arg(world.url("")),
        By::Configuration => command.arg("--config").arg(&config),
    };
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap().trim().to_owned())
}

async fn acknowledges_and_pauses(world: &World, by: By) {
    let all = units(2);
    world.beat(&all).await;
    let run = |world: &World, arguments: &[&str]| rollcall(world, by, arguments);
    world.eventually("both are online", async || world.state("unit-001").await == "online").await;
    let paused = run(world, &["pause", "detector/unit-001", "--for", "4h", "--comment", "new battery"]);
    assert!(paused.0 == Some(0) && paused.1.starts_with("detector/unit-001 is paused until"), "{paused:?}");
    world.eventually("it is paused", async || world.state("unit-001").await == "paused").await;
    world.eventually("one is offline", async || world.state("unit-000").await == "offline").await;
    assert_eq!(world.records().await.len(), 1);

    let id = world.records().await[0]["id"].as_str().unwrap().to_owned();
    let acknowledged = run(world, &["ack", "detector/unit-000", "--comment", "on my way"]);
    assert_eq!(acknowledged, (Some(0), "detector/unit-000 is acknowledged".to_owned()));
    let of_record = |records: Vec<Value>| records[0]["acknowledged"].clone();
    let shown = of_record(world.records().await);
    assert_eq!((&shown["author"], &shown["comment"]), (&"ana".into(), &"on my way".into()));
    let alerts = world.json("/alertmanager/api/v2/alerts").await;
    assert_eq!(alerts[0]["annotations"]["acknowledged_by"], "ana");
    assert_eq!(run(world, &["ack", &id, "--undo", "--comment", "cannot come"]).0, Some(0));
    let undone = run(world, &["ack", &id, "--undo"]);
    assert!(undone.0 == Some(1) && undone.1.contains("that is acknowledged"), "{undone:?}");
    assert!(of_record(world.records().await).is_null());
    assert_eq!(run(world, &["ack", &id, "--author", "bo"]).0, Some(0));

    let ended = run(world, &["pause", "detector/unit-001", "--end", "--comment", "works again"]);
    assert_eq!(ended, (Some(0), "the pause of detector/unit-001 is over now".to_owned()));
    world.eventually("it counts again", async || world.state("unit-001").await == "offline").await;
    for (arguments, text) in [
        (&["ack", "detector/nowhere"][..], "there is no unit"),
        (&["ack", "detector:nowhere:17"], "no open record"),
        (&["pause", "detector/unit-001", "--end"], "no operator has paused unit"),
        (&["pause", "gone/unit-001", "--for", "1h"], "kind gone is not configured; see [[kind]]"),
        (&["pause", "detector/nowhere", "--for", "1h"], "there is no unit"),
        (&["pause", "detector/unit-001", "--until", "2020-01-01T00:00:00Z"], "in the future"),
        (&["pause", "detector/unit-001"], "--for"),
        (&["ack", "nonsense"], "KIND/UNIT"),
    ] {
        let (code, why) = run(world, arguments);
        assert!(code != Some(0) && why.contains(text), "{arguments:?}: {why}");
    }
    world.beat(&all).await;
    world.eventually("it is back", async || world.state("unit-000").await == "online").await;
    let record = world.json(&format!("/api/v1/records/{}", id.replace(':', "%3A"))).await;
    assert_eq!((&record["acknowledged"]["author"], &record["closed_by"]), (&"bo".into(), &"return".into()));
    let removed = run(world, &["remove", "detector/nowhere", "detector:unit-001", "--comment", "sold"]);
    assert!(removed.0 == Some(1) && removed.1.starts_with("detector/unit-001 is removed\n"), "{removed:?}");
    assert!(removed.1.contains("there is no unit detector/nowhere"), "{removed:?}");
    world
        .eventually("it is gone", async || world.status("/api/v1/units/detector/unit-001").await == 404)
        .await;
    let explained = run(world, &["explain", "detector:unit-000"]).1;
    assert_eq!(explained.matches("on my way").count(), 1, "{explained}");
    let (_, audit) = run(world, &["audit"]);
    assert_eq!(audit.matches(" acknowledgement_undone ").count(), 1, "{audit}");
    for change in ["paused", "acknowledged", "acknowledgement_undone", "pause_ended", "removed"] {
        assert!(audit.contains(&format!(" {change} ")), "{change}: {audit}");
    }
    for comment in ["new battery", "on my way", "cannot come", "works again", "sold"] {
        assert!(audit.contains(comment), "{comment}: {audit}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_acknowledged_and_units_paused_on_redis() {
    let world = World::new(OPTIONS, &[]).await;
    acknowledges_and_pauses(&world, By::Configuration).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_acknowledged_and_units_paused_in_a_directory() {
    let options = format!("engine.type = \"embedded\"\nengine.path = \"{{dir}}/fleet\"\n{OPTIONS}");
    let world = World::new(&options, &[]).await;
    acknowledges_and_pauses(&world, By::Address).await;
}
