//! The mass-offline breaker of a service: its pages, its commands, and what Alertmanager's clients see of it.

use std::process::Command;

use serde_json::{Value, json};

use crate::world::{MAX_WAIT, World, units};

const OPTIONS: &str = r#"
engine.type = "embedded"
engine.path = "{dir}/fleet"
breaker = { min_units = 6, window = "1s", max_hold = "1h" }
kind = [{ name = "detector", timeout = "2s" }]
"#;

fn rollcall(world: &World, arguments: &[&str]) -> String {
    let config = world.dir.path().join("cli.toml");
    let listen = world.url("").trim_start_matches("http://").to_owned();
    let dir = world.dir.path().display().to_string();
    let text = format!("http.listen = \"{listen}\"\n{}", OPTIONS.replace("{dir}", &dir));
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
    command.args(arguments).arg("--config").arg(&config).env("USER", "ana");
    let output = command.output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap().trim().to_owned()
}

fn type_of(world: &World, message: &str) -> Vec<Value> {
    let bodies = world.hook.received().into_iter().map(|received| received.json());
    bodies.filter(|json| json["type"] == message).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_and_release_it_through_the_instance_that_serves_a_directory() {
    let world = World::new(OPTIONS, &[]).await;
    let shown = rollcall(&world, &["breaker", "show"]);
    assert_eq!(shown, "the breaker holds nothing; it has never tripped");
    let all = units(6);
    world.beat(&all).await;
    world.eventually("it trips", async || world.json("/api/v1/breaker").await["tripped"] == true).await;
    world.eventually("all are offline", async || world.records().await.len() == 6).await;
    let told = async || !type_of(&world, "rollcall.breaker").is_empty();
    world.eventually("operators are notified", told).await;
    let mail = world.mail.wait_for(1, MAX_WAIT).await.unwrap().remove(0);
    let subject = mail.header("Subject").unwrap();
    assert!(subject.starts_with("MASS OFFLINE: ") && subject.contains(" of 6 units since "), "{subject}");
    assert!(world.text_of("/metrics").await.contains("\nrollcall_breaker_tripped 1\n"));

    // For clients of Alertmanager the breaker is an alert that inhibits the others.
    let alerts = world.json("/alertmanager/api/v2/alerts").await;
    let (breaker, held) = alerts.as_array().unwrap().split_first().unwrap();
    assert_eq!(breaker["labels"], json!({ "alertname": "RollcallBreakerTripped" }));
    assert_eq!(breaker["receivers"], json!([{ "name": "hook" }, { "name": "mail" }]));
    let status = json!({
        "state": "suppressed", "silencedBy": [], "inhibitedBy": [breaker["fingerprint"]], "mutedBy": []
    });
    assert!(held.len() == 6 && held.iter().all(|alert| alert["status"] == status), "{held:?}");
    for (query, count) in
        [("?inhibited=false", 1), ("?active=false", 6), ("?filter=alertname%3DRollcallBreakerTripped", 1)]
    {
        let some = world.json(&format!("/alertmanager/api/v2/alerts{query}")).await;
        assert_eq!(some.as_array().unwrap().len(), count, "{query}");
    }
    let groups = world.json("/alertmanager/api/v2/alerts/groups").await;
    assert_eq!(groups[0]["alerts"][0]["labels"], breaker["labels"]);

    let shown = rollcall(&world, &["breaker", "show"]);
    assert!(shown.starts_with("the breaker holds notifications until "), "{shown}");
    let shown: Value = serde_json::from_str(&rollcall(&world, &["breaker", "show", "--json"])).unwrap();
    assert_eq!((&shown["enabled"], &shown["trip"]["offline"]), (&true.into(), &6.into()));
    let summary = rollcall(&world, &["summary"]);
    assert!(summary.starts_with("the mass-offline breaker holds notifications until 20"), "{summary}");
    assert!(!summary.contains("no problems"), "{summary}");
    let explained = rollcall(&world, &["explain", "detector:unit-001"]);
    let held = explained.lines().find(|line| line.contains("  held  "));
    assert!(held.is_some_and(|held| held.contains("breaker holds notifications until ")), "{explained}");
    let deliveries = rollcall(&world, &["deliveries", "list", "--json"]);
    assert!(!deliveries.contains("rollcall breaker release"), "{deliveries}");
    assert_eq!(type_of(&world, "rollcall.notification"), Vec::<Value>::new());
    let released = rollcall(&world, &["breaker", "release", "--comment", "seen"]);
    assert_eq!(
        released,
        "the breaker is released: receivers are notified of held units that are still offline"
    );
    assert_eq!(rollcall(&world, &["breaker", "release"]), "the breaker holds nothing");
    assert!(rollcall(&world, &["audit"]).contains(" breaker_released "));
    let notified = async || type_of(&world, "rollcall.notification").len() == 1;
    world.eventually("what was held is notified", notified).await;
    assert!(!rollcall(&world, &["explain", "detector/unit-001"]).contains(" held "));
    assert!(rollcall(&world, &["summary"]).starts_with("no problems\n"));
    let offline = &type_of(&world, "rollcall.notification")[0]["data"]["offline"];
    assert_eq!(offline.as_array().unwrap().len(), 6);
    assert_eq!(type_of(&world, "rollcall.breaker")[1]["data"]["breaker"]["released"]["why"], "operator");
}
