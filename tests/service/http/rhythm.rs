//! The rhythm of units, as operators see it: on pages, in lists, metrics and the chart, and what it suggests.

use rollcall::fleet::{CountRecorder, Ownership, WorstOfMinute};
use rollcall::store::{Layout, Roster};
use serde_json::{Value, json};

use super::commands::rollcall;
use super::world::{Fleet, SECOND, assert_problem, samples};

/// A fleet of two meters that are heard every five minutes; the first has been silent for forty.
async fn fleet() -> Fleet {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    fleet.hear(&["meter:a", "meter:b"]).await;
    for _ in 0..12 {
        fleet.pass(300 * SECOND, &[]).await;
        fleet.hear(&["meter:a", "meter:b"]).await;
    }
    let unit = fleet.json("/api/v1/units/meter/a").await;
    let sentence = fleet.json("/api/v1/units/meter/a/timeline").await["sentence"].clone();
    let sentence = sentence.as_str().unwrap();
    assert!(sentence.ends_with(" Usually every 5m."), "{sentence}");
    assert_eq!((&unit["rhythm"]["intervals"], &unit["rhythm"]["unusual_since"]), (&json!(12), &Value::Null));
    assert_eq!(fleet.json("/api/v1/summary").await["unusual"], 0);
    for _ in 0..8 {
        fleet.pass(300 * SECOND, &[]).await;
        fleet.hear(&["meter:b"]).await;
    }
    fleet
}

fn ids(page: &Value) -> Vec<&str> {
    page["units"].as_array().unwrap().iter().map(|unit| unit["unit"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_unit_that_is_silent_for_unusually_long_is_listed_explained_and_counted() {
    let fleet = fleet().await;
    let unusual = fleet.json("/api/v1/units?unusual=true").await;
    assert_eq!((ids(&unusual), &unusual["units"][0]["state"]), (vec!["a"], &json!("online")));
    assert_eq!(ids(&fleet.json("/api/v1/units?unusual=false").await), ["b"]);
    assert_eq!(ids(&fleet.json("/api/v1/units?unusual=true&kind=detector").await), [""; 0]);
    assert_problem(fleet.get("/api/v1/units?unusual=often").await, 400).await;

    let rhythm = fleet.json("/api/v1/units/meter/a/rhythm").await;
    let usual = rhythm["usual_seconds"].as_f64().unwrap();
    assert!((usual - 300.0).abs() < 1.0, "{rhythm}");
    // Twice as long and a little more: one lost heartbeat is not unusual.
    assert!((600.0..700.0).contains(&rhythm["allows_seconds"].as_f64().unwrap()), "{rhythm}");
    assert!(rhythm["unusual_since"].as_str().unwrap().starts_with("2026-03-01T13:10:"), "{rhythm}");
    assert_problem(fleet.get("/api/v1/units/meter/nobody/rhythm").await, 404).await;
    let sentence = fleet.json("/api/v1/units/meter/a/timeline").await["sentence"].clone();
    let said = "Usually every 5m; silent for 40m, as long as never before.";
    assert!(sentence.as_str().unwrap().ends_with(said), "{sentence}");
    assert!(fleet.json("/api/v1/records").await["records"].as_array().unwrap().is_empty());

    let summary = fleet.json("/api/v1/summary").await;
    assert_eq!((&summary["unusual"], &summary["kinds"][1]["unusual"]), (&json!(1), &json!(1)), "{summary}");
    let metrics = fleet.text("/metrics").await;
    let expected =
        ["rollcall_units_unusual{kind=\"detector\"} 0", "rollcall_units_unusual{kind=\"meter\"} 1"];
    assert_eq!(samples(&metrics, "rollcall_units_unusual{"), expected);
    let page = fleet.text("/").await;
    assert!(page.contains("href=\"/?unusual=true\""), "{page}");
    assert!(fleet.text("/?unusual=true").await.contains("/units/meter/a\""));
    assert!(fleet.text("/units/meter/a").await.contains("Unusual since"));

    let recorder = CountRecorder {
        mirror: fleet.mirror.clone(),
        roll: fleet.roll.clone(),
        ownership: Ownership::of_everything(fleet.engine.partitions()),
        cells: fleet.engine.clone(),
        clock: fleet.clock.clone(),
        telemetry: fleet.telemetry.clone(),
    };
    recorder.count(fleet.clock.now(), &mut WorstOfMinute::default()).await.unwrap();
    let hour = fleet.json("/api/v1/history/counts?range=1h").await;
    assert_eq!(hour["points"][59]["unusual"], 1, "{hour}");
    assert!(fleet.text("/?range=1h").await.contains("unusually silent"));

    // It is heard again.
    fleet.hear(&["meter:a"]).await;
    assert_eq!(ids(&fleet.json("/api/v1/units?unusual=true").await), [""; 0]);
}

#[tokio::test]
async fn the_rhythms_of_two_instances_add_up() {
    let (fleet, other) = (Fleet::start().await, Fleet::start().await);
    let pass = async || {
        for one in [&fleet, &other] {
            one.pass(300 * SECOND, &[]).await;
        }
    };
    for one in [&fleet, &other] {
        one.fill();
    }
    for _ in 0..13 {
        pass().await;
        fleet.hear(&["meter:a"]).await;
        other.hear(&["meter:b"]).await;
    }
    for _ in 0..8 {
        pass().await;
        fleet.hear(&["meter:a"]).await;
    }
    let address = other.url.trim_start_matches("http://");
    let roster: &dyn Roster = &*fleet.engine;
    roster.announce("two", address).await.unwrap();
    let suggested = fleet.json("/api/v1/suggest?kind=meter").await;
    let kind = &suggested["kinds"][0];
    assert_eq!((&suggested["incomplete"], &kind["classes"][0]["units"]), (&json!([]), &json!(2)), "{kind}");
    assert_eq!(ids(&fleet.json("/api/v1/units?unusual=true").await), ["b"]);
    assert_eq!(fleet.json("/api/v1/summary").await["unusual"], 1);
}

#[tokio::test]
async fn timeouts_are_suggested_with_their_false_alarms_and_the_time_to_detection() {
    let fleet = fleet().await;
    fleet.hear(&["detector:new"]).await;
    let all = fleet.json("/api/v1/suggest").await;
    assert_eq!(all["incomplete"], json!([]));
    let kinds = &all["kinds"];
    assert_eq!(
        (&kinds[0]["kind"], &kinds[0]["learning"], &kinds[0]["classes"]),
        (&json!("detector"), &json!(1), &json!([]))
    );
    let class = &kinds[1]["classes"][0];
    assert_eq!((&kinds[1]["kind"], &class["units"]), (&json!("meter"), &json!(2)));
    assert_eq!(class["present"]["timeout_seconds"], 172_800.0);
    assert!(class["present"]["detection_seconds"].as_f64().unwrap() > 172_000.0, "{class}");
    assert_eq!(class["suggested"]["timeout_seconds"], 720.0, "{class}");
    assert!(class["suggested"]["false_alarms"].as_f64().unwrap() < 0.2, "{class}");
    let meters = fleet.json("/api/v1/suggest?kind=meter").await;
    assert_eq!((&meters["kinds"][0], &meters["kinds"][1]), (&kinds[1], &Value::Null));
    for wrong in ["kind=pump", "kind=", "site=north"] {
        assert_problem(fleet.get(&format!("/api/v1/suggest?{wrong}")).await, 400).await;
    }

    let printed = async |arguments: &[&str]| {
        let output = rollcall(&fleet.url, arguments, None).await;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let table = printed(&["suggest"]).await;
    assert!(table.contains("meter  2      5m     5m       2d       0             1d 23h"), "{table}");
    assert!(
        table.contains("12m") && table.contains("detector: units that have not shown a rhythm yet: 1."),
        "{table}"
    );
    let json: Value =
        serde_json::from_str(&printed(&["suggest", "--kind", "meter", "--json"]).await).unwrap();
    assert_eq!(json["kinds"][0], kinds[1]);
    assert_eq!(printed(&["units", "--unusual", "--csv"]).await.lines().count(), 2);
    assert!(printed(&["summary"]).await.contains("silent for unusually long: 1;"));
}
