//! Units of several sites with ids that repeat: named apart, or warned of.

use std::process::Command;

use serde_json::{Value, json};

use super::cli::{rollcall, text};
use super::world::World;
use crate::support::http::CLIENT;

const KINDS: &str = r#"
    [[kind]]
    name = "detector"
    topics = ["north/{site}/{unit}/heartbeat"]
    [[kind]]
    name = "pump"
    unit = "{site}.{unit}"
    topics = ["pumps/{site}/{unit}/heartbeat"]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn devices_of_two_sites_with_one_id_are_two_units_or_are_warned_of() {
    let world = World::new(KINDS, &[]).await;
    let of = |begin: &'static str, ids: &[&str]| {
        (begin, ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>())
    };
    let beat = async |(begin, units): (&str, Vec<String>)| world.beat_to(begin, &units).await;
    let known = async |unit: &str| world.status(&format!("/api/v1/units/{unit}")).await == 200;

    beat(of("pumps", &["a/1", "b/1", "a/2.3", "a.2/3"])).await;
    for unit in ["pump/a.1", "pump/b.1", "pump/a.2.3"] {
        world.eventually(unit, async || known(unit).await).await;
    }
    let page = world.json("/api/v1/units/pump/b.1").await;
    assert_eq!(page["labels"], json!({"site": "b"}));
    let refused =
        |page: &str| page.lines().any(|line| line == "rollcall_heartbeats_total{result=\"bad_unit\"} 1");
    world.eventually("a.2/3 is refused", async || refused(&world.text_of("/metrics").await)).await;

    // An id that no topic makes would never be heard.
    let path = world.url("/api/v1/units/pump/plain");
    let body = json!({"author": "ana"}).to_string();
    let request = CLIENT.put(path).header("content-type", "application/json").body(body);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 400);
    assert!(answer.text().await.unwrap().contains("topics name units {site}.{unit}"));

    let problem = async || -> Option<String> {
        let page = world.json("/readyz").await;
        let problems = page["problems"].as_array().cloned().unwrap_or_default();
        let found = problems.into_iter().find(|one: &Value| one["name"] == "unit_at_two_places");
        found.map(|one| one["text"].as_str().unwrap().to_owned())
    };
    // A device moves once.
    beat(of("north", &["a/1", "b/1", "b/1"])).await;
    world
        .eventually("it moved", async || {
            world.json("/api/v1/units/detector/1").await["labels"] == json!({"site": "b"})
        })
        .await;
    assert_eq!(problem().await, None);

    beat(of("north", &["a/1"])).await;
    world.eventually("it is heard in turn", async || problem().await.is_some()).await;
    let text = problem().await.unwrap();
    assert!(text.contains("detector:1 on north/b/1/heartbeat and north/a/1/heartbeat"), "{text}");
    let metrics = world.text_of("/metrics").await;
    assert!(metrics.contains("rollcall_units_at_two_places{kind=\"detector\"} 1"), "{metrics}");
    let timeline = world.json("/api/v1/units/detector/1/timeline").await;
    let sentence = timeline["sentence"].as_str().unwrap();
    assert!(sentence.contains("It is heard on two topics in turn, north/b/1/heartbeat and "), "{sentence}");
}

#[test]
fn check_names_the_kinds_whose_units_may_be_two_devices() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rollcall.toml");
    let check = |kinds: &str| -> Vec<String> {
        let text = format!("engine = {{ type = \"embedded\" }}\nmqtt.url = \"mqtt://127.0.0.1:1\"\n{kinds}");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
        let output = command.args(["check", "--config"]).arg(&file).current_dir(&dir).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        output.lines().filter(|line| line.contains("  names: ")).map(str::to_owned).collect()
    };
    let found = check(KINDS);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("warn  names: kind detector names its units {unit}, and {site} of its topics")
    );
    assert!(
        found[0].ends_with(
            "write unit = \"{site}.{unit}\", or unit = \"{unit}\" if no two devices have the same"
        )
    );
    // A site that stands only in the topics of announcements.
    let lamp = "[[kind]]\nname = \"lamp\"\ntopics = [\"lamps/{unit}/data\"]\n\
                presence = { format = \"last_will\", topics = [\"lamps/{site}/{unit}/status\"] }\n";
    let found = check(lamp);
    assert!(found[0].starts_with("warn  names: kind lamp names its units {unit}, and {site}"), "{found:?}");
    assert_eq!(check(&lamp.replace("{site}", "+")), [""; 0]);
    let said = check(&KINDS.replace("name = \"detector\"", "name = \"detector\"\nunit = \"{unit}\""));
    assert!(said[0].starts_with("ok    names: kind detector"), "{said:?}");
}

const SITES: &str = r#"
    [[kind]]
    name = "detector"
    topics = ["north/{site}/{unit}/heartbeat"]
    timeout = "1h"
    [[kind]]
    name = "quick"
    topics = ["quick/{site}/{unit}/heartbeat"]
    timeout = "2s"
"#;

/// Units get other ids while nothing runs: they are the same units, and none falls silent by it.
async fn units_get_other_ids(engine: &str) {
    let mut world = World::new(&format!("{engine}\n{SITES}"), &[]).await;
    let (dir, file) = (world.dir.path().to_owned(), world.file());
    let file = file.to_str().unwrap().to_owned();
    let move_ids = |kind: &str, more: &[&str]| {
        let output = rollcall(&dir, &[&["move-ids", "--config", &file, "--kind", kind], more].concat(), &[]);
        (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
    };
    let units = ["a/1", "a/2", "b/3"].map(str::to_owned);
    world.beat_to("north", &units).await;
    world.beat_to("quick", &["a/7".to_owned()]).await;
    for unit in ["1", "2", "3"] {
        world.eventually("it is online", async || world.state(unit).await == "online").await;
    }
    let path = world.url("/api/v1/units/detector/1");
    let body = json!({"timeout_seconds": 10_800, "note": "by the gate"}).to_string();
    let request = CLIENT.put(path).header("content-type", "application/json").body(body);
    assert_eq!(request.send().await.unwrap().status(), 204);
    let before = world.json("/api/v1/units/detector/1").await;
    let records = async |world: &World| world.records().await;
    world.eventually("one is offline", async || records(&world).await.len() == 1).await;
    world.hook.wait_for(1, super::world::MAX_WAIT).await.unwrap();

    let (status, said) = move_ids("detector", &[]);
    assert!(status != 0, "an instance serves the fleet, or nothing is to be done: {said}");
    world.stop().await;
    assert_eq!(move_ids("detector", &[]).0, 2, "its units have these ids");
    assert_eq!(move_ids("none", &[]).0, 2);
    let plain = "[\"north/{site}/{unit}/heartbeat\"]";
    let of_sites = "[\"north/{site}/+/heartbeat\"]\n    unit = \"x{site}\"";
    world.change(plain, of_sites);
    let (status, said) = move_ids("detector", &["--yes"]);
    assert!(status == 1 && said.contains("would both be detector:xa"), "{said}");
    world.change(of_sites, &format!("{plain}\n    unit = \"{{site}}.{{unit}}\""));
    world.change("name = \"quick\"", "name = \"quick\"\nunit = \"{site}.{unit}\"");
    let (status, said) = move_ids("detector", &[]);
    assert!(status == 0 && said.contains("detector:1 -> a.1"), "{said}");
    assert!(said.contains("3 units get another id") && said.contains("nothing is changed"), "{said}");
    let (status, said) = move_ids("detector", &["--yes"]);
    assert!(status == 0 && said.contains("3 units are renamed"), "{said}");
    let (status, said) = move_ids("detector", &["--yes"]);
    assert!(status == 0 && said.contains("0 units get another id, 3 have theirs already"), "{said}");
    let told = world.hook.received().len();
    let (_, said) = move_ids("quick", &[]);
    assert!(said.contains("1 units are offline and keep their ids"), "{said}");
    let (_, said) = move_ids("quick", &["--yes"]);
    assert!(said.contains("1 units are offline and keep their ids"), "{said}");

    world.start().await;
    let after = world.json("/api/v1/units/detector/a.1").await;
    for field in ["last_seen", "timeout_seconds", "labels", "note"] {
        assert_eq!(after[field], before[field], "{field}: {after}");
    }
    // The time before is that of the old id, which has the records of it.
    let known = |unit: &Value| unit["known_since"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert!(known(&after) > known(&before), "{after}");
    assert_eq!(world.status("/api/v1/units/detector/1").await, 404);
    world.beat_to("north", &units).await;
    let seen = before["last_seen"].clone();
    world
        .eventually("it is heard", async || {
            world.json("/api/v1/units/detector/a.1").await["last_seen"] != seen
        })
        .await;
    world.beat_to("quick", &["a/7".to_owned()]).await;
    let known = async || world.status("/api/v1/units/quick/a.7").await == 200;
    world.eventually("the offline unit is heard under its new id", known).await;
    world.stop().await;
    let (status, said) = move_ids("quick", &["--yes"]);
    assert!(status == 0 && said.contains("1 units are renamed"), "{said}");
    world.start().await;
    let records = world.records().await;
    let of = |unit: &str| records.iter().find(|record| record["unit"] == unit).unwrap()["closed_by"].clone();
    assert_eq!(of("7"), json!("return"), "{records:?}");
    world
        .eventually("its return is told, and nothing else", async || world.hook.received().len() == told + 1)
        .await;
    assert!(records.iter().all(|record| record["kind"] == "quick"), "{records:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn units_get_other_ids_on_redis() {
    units_get_other_ids("# redis").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_get_other_ids_with_the_embedded_engine() {
    units_get_other_ids("engine = { type = \"embedded\", path = \"{dir}/data\" }\n# engine.type").await;
}
