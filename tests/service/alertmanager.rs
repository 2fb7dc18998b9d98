//! Alertmanager's API as its clients use it: the real `amtool`, and the requests of Grafana's data source.

use std::process::{Command, Output};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::http::CLIENT;
use crate::world::{World, units};

const OPTIONS: &str = "kind = [{ name = \"detector\", timeout = \"1s\" }]\n\
                       http.external_url = \"https://rollcall.example.org/fleet/\"";

/// Runs `amtool` on the API of this world.
fn amtool(world: &World, arguments: &[&str]) -> Output {
    let url = format!("--alertmanager.url={}", world.url("/alertmanager"));
    let mut amtool = Command::new("amtool");
    // The home directory is the test's, so that no configuration of this machine is used.
    amtool.current_dir(world.dir.path()).env("HOME", world.dir.path()).arg(url).args(arguments);
    amtool.output().expect("amtool is in the Debian package prometheus-alertmanager")
}

/// The standard output of a command that succeeds.
fn answer(world: &World, arguments: &[&str]) -> String {
    let output = amtool(world, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "amtool {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn json_of(world: &World, arguments: &[&str]) -> Value {
    let arguments = [&["-o", "json"], arguments].concat();
    let answer = answer(world, &arguments);
    serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {answer}"))
}

/// The units of alerts, in order.
fn units_in(alerts: &Value) -> Vec<&str> {
    let alerts = alerts.as_array().into_iter().flatten();
    let mut units: Vec<&str> = alerts.filter_map(|alert| alert["labels"]["unit"].as_str()).collect();
    units.sort_unstable();
    units
}

async fn three_offline() -> World {
    let world = World::new(OPTIONS, &[]).await;
    world.beat(&units(3)).await;
    world.eventually("all are offline", async || world.records().await.len() == 3).await;
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn amtool_queries_alerts_and_adds_changes_queries_and_expires_silences() {
    let world = three_offline().await;
    let alerts = json_of(&world, &["alert", "query"]);
    assert_eq!(units_in(&alerts), ["unit-000", "unit-001", "unit-002"]);
    let alert = &alerts[0];
    assert_eq!(alert["labels"]["alertname"], "UnitOffline");
    assert_eq!(alert["labels"]["kind"], "detector");
    assert_eq!(alert["receivers"], json!([{ "name": "hook" }, { "name": "mail" }]));
    assert_eq!(alert["status"]["state"], "active");
    assert!(alert["annotations"]["summary"].as_str().unwrap().contains("is offline since"), "{alert}");
    let table = answer(&world, &["-o", "extended", "alert", "query", "unit=unit-001"]);
    assert!(table.contains("unit=\"unit-001\"") && !table.contains("unit-002"), "{table}");
    let some = json_of(&world, &["alert", "query", "alertname=UnitOffline", "unit=~unit-00[01]"]);
    assert_eq!(units_in(&some), ["unit-000", "unit-001"]);
    assert_eq!(units_in(&json_of(&world, &["alert", "query", "--receiver", "pager"])), [""; 0]);

    assert_eq!(
        answer(&world, &["config", "routes"]).lines().last(),
        Some("└── default-route  receiver: hook+mail")
    );

    let add =
        ["silence", "add", "--author=ana", "--comment=cable works", "--duration=1h", "unit=~unit-00[01]"];
    let id = answer(&world, &add);
    assert_eq!(units_in(&json_of(&world, &["alert", "query"])), ["unit-002"]);
    let silenced = json_of(&world, &["alert", "query", "--silenced"]);
    assert_eq!(units_in(&silenced), ["unit-000", "unit-001"]);
    assert_eq!(
        silenced[0]["status"],
        json!({
            "state": "suppressed", "silencedBy": [id], "inhibitedBy": []
        })
    );
    let silences = json_of(&world, &["silence", "query"]);
    assert_eq!((&silences[0]["id"], &silences[0]["createdBy"]), (&json!(id), &json!("ana")));
    assert_eq!(silences[0]["matchers"][0]["value"], "unit-00[01]");
    // As in Alertmanager, the filter is a matcher of the silence, and not a value that it matches.
    assert_eq!(json_of(&world, &["silence", "query", "unit=unit-001"]), json!([]));
    assert_eq!(json_of(&world, &["silence", "query", "unit=~unit-00[01]"]), silences);

    // The end of the silence moves, and it stays the same silence.
    answer(&world, &["silence", "update", "--duration=5h", &id]);
    let silences = json_of(&world, &["silence", "query"]);
    assert_eq!(silences.as_array().unwrap().len(), 1);
    assert_eq!(silences[0]["id"], json!(id));

    answer(&world, &["silence", "expire", &id]);
    assert_eq!(units_in(&json_of(&world, &["alert", "query"])).len(), 3);
    assert_eq!(json_of(&world, &["silence", "query"]), json!([]));
    let over = json_of(&world, &["silence", "query", "--expired"]);
    assert_eq!((&over[0]["id"], &over[0]["status"]["state"]), (&json!(id), &json!("expired")));
    let refused = amtool(&world, &["silence", "add", "--author=ana", "--comment=x", "unit=~.*"]);
    assert!(!refused.status.success());
    let status = answer(&world, &["cluster", "show"]);
    assert!(status.contains("disabled"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn amtool_draws_the_routes_and_tries_them() {
    let world = three_offline().await;
    let routes = r#"routes = [
        { matchers = ['site="north"', 'unit=~"pump-.*"'], receivers = ["mail"], group_by = ["site"], routes = [
            { matchers = ["cause=never_seen"], receivers = [] },
        ] },
        { matchers = ["unit=unit-000"], receivers = [] },
        { matchers = ['kind="gate"'], continue = true, receivers = ["hook"] },
        { matchers = ['site!=""'], receivers = ["mail"] },
    ] }"#;
    world.rewrite(
        "group_interval = \"0s\" }",
        &format!("group_interval = \"0s\", {}", routes.replace('\n', " ")),
    );
    let reloaded = CLIENT.post(world.url("/-/reload")).send().await.unwrap();
    assert_eq!(reloaded.text().await.unwrap(), "routes and receivers are replaced");
    let drawn = r#"Routing tree:
.
└── default-route  receiver: hook+mail
    ├── {site="north",unit=~"pump-.*"}  receiver: mail
    │   └── {cause="never_seen"}  receiver: none
    ├── {unit="unit-000"}  receiver: none
    ├── {kind="gate"}  continue: true  receiver: hook
    └── {site!=""}  receiver: mail"#;
    // Some of amtool's spaces are non-breaking ones.
    assert_eq!(answer(&world, &["config", "routes", "show"]).replace('\u{a0}', " "), drawn);
    for (labels, expected) in [
        (&["kind=pump"][..], "hook+mail"),
        (&["kind=gate", "site=south"], "hook,mail"),
        (&["unit=pump-1", "site=north", "cause=never_seen"], "none"),
        (&["unit=pump-1", "site=north"], "mail"),
    ] {
        assert_eq!(answer(&world, &[&["config", "routes", "test"], labels].concat()), expected, "{labels:?}");
    }
    // Clients that read only groups also show alerts of which no receiver is notified.
    let (_, groups) = ask(&world, Method::GET, "/alertmanager/api/v2/alerts/groups", None).await;
    let of =
        groups.as_array().unwrap().iter().map(|one| (&one["receiver"]["name"], units_in(&one["alerts"])));
    // The newest Alertmanager requires it of each group; routes of Rollcall add no labels.
    for group in groups.as_array().unwrap() {
        assert_eq!(group["routeLabels"], json!({}), "{group}");
    }
    let rest = || vec!["unit-001", "unit-002"];
    let expected = [(json!("hook"), rest()), (json!("mail"), rest()), (json!("none"), vec!["unit-000"])];
    assert_eq!(
        of.collect::<Vec<_>>(),
        expected.iter().map(|(name, units)| (name, units.clone())).collect::<Vec<_>>()
    );
}

async fn ask(world: &World, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
    let request = CLIENT.request(method, world.url(path));
    let request = match body {
        Some(body) => request.header("content-type", "application/json").body(body.to_string()),
        None => request,
    };
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    let json = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() };
    (status, json)
}

#[tokio::test(flavor = "multi_thread")]
async fn grafana_checks_its_data_source_shows_groups_and_makes_silences() {
    let world = three_offline().await;
    let get = async |path: &str| ask(&world, Method::GET, path, None).await;
    // A data source of the implementation "prometheus": the first address belongs to Mimir and must not answer.
    assert_eq!(get("/alertmanager/alertmanager/api/v2/status").await.0, 404);
    let (status, page) = get("/alertmanager/api/v2/status").await;
    assert_eq!(status, 200);
    for field in ["cluster", "versionInfo", "config", "uptime"] {
        assert!(!page[field].is_null(), "{page}");
    }
    let metrics = CLIENT.get(world.url("/alertmanager/metrics")).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("alertmanager_build_info{version=\"0."), "{metrics}");
    let (_, receivers) = get("/alertmanager/api/v2/receivers").await;
    assert_eq!(receivers, json!([{ "name": "hook" }, { "name": "mail" }]));

    let path =
        "/alertmanager/api/v2/alerts/groups?silenced=true&active=true&inhibited=true&filter=kind%3Ddetector";
    let (_, groups) = get(path).await;
    let shown: Vec<_> = groups.as_array().unwrap().iter().collect();
    assert_eq!(shown.len(), 2, "{groups}");
    for (group, receiver) in shown.iter().zip(["hook", "mail"]) {
        assert_eq!(group["labels"], json!({ "kind": "detector" }));
        assert_eq!(group["receiver"], json!({ "name": receiver }));
        assert_eq!(units_in(&group["alerts"]).len(), 3);
    }
    let url = shown[0]["alerts"][0]["generatorURL"].as_str().unwrap();
    let path = url.strip_prefix("https://rollcall.example.org/fleet").expect(url);
    let page = CLIENT.get(world.url(path)).send().await.unwrap();
    assert!(page.status().is_success() && page.text().await.unwrap().contains("unit-00"), "{url}");

    // Clients in some languages write null for absent fields, and write true explicitly.
    let silence = json!({
        "id": null,
        "matchers": [{ "name": "unit", "value": "unit-000", "isRegex": false, "isEqual": null }],
        "startsAt": "2020-01-01T00:00:00.000Z",
        "endsAt": "2099-01-01T00:00:00+01:00",
        "createdBy": "grafana",
        "comment": "made in Grafana",
    });
    let silences = "/alertmanager/api/v2/silences";
    let (status, posted) = ask(&world, Method::POST, silences, Some(silence.clone())).await;
    assert_eq!(status, 200, "{posted}");
    let id = posted["silenceID"].as_str().unwrap().to_owned();
    let one = format!("/alertmanager/api/v2/silence/{id}");
    let (_, found) = get(&one).await;
    assert_eq!(found["endsAt"], "2098-12-31T23:00:00.000Z");
    assert!(found["startsAt"].as_str().unwrap() > "2020-01-02", "the past counts as now: {found}");
    let (_, page) = get("/alertmanager/api/v2/alerts?silenced=True&inhibited=&active=0&receiver=").await;
    assert_eq!(units_in(&page), ["unit-000"]);
    assert_eq!(page[0]["status"]["silencedBy"], json!([id]));
    assert_eq!(ask(&world, Method::DELETE, &one, None).await.0, 200);
    assert_eq!(ask(&world, Method::DELETE, &one, None).await.0, 200, "it may be repeated");
    let (_, page) = get(&one).await;
    assert_eq!(page["status"]["state"], "expired");

    // Impossible requests are refused with a JSON string, which the clients show.
    let other = "/alertmanager/api/v2/silence/5c9c9b7e-3d2c-4a55-9f0c-2d7d0c8a4a11";
    let bad = |change: Value| {
        let mut bad = silence.clone();
        bad.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        Some(bad)
    };
    for (method, path, body, expected) in [
        (Method::GET, other, None, 404),
        (Method::DELETE, other, None, 404),
        (Method::GET, "/alertmanager/api/v2/silence/x", None, 400),
        (Method::GET, "/alertmanager/api/v2/alerts?filter=%3D", None, 400),
        (Method::GET, "/alertmanager/api/v2/alerts?receiver=(", None, 400),
        (Method::GET, "/alertmanager/api/v2/alerts?active=perhaps", None, 400),
        (Method::POST, "/alertmanager/api/v2/alerts", Some(json!([])), 405),
        (Method::POST, silences, Some(json!({})), 400),
        (Method::POST, silences, bad(json!({ "matchers": [] })), 400),
        (Method::POST, silences, bad(json!({ "createdBy": "" })), 400),
        (Method::POST, silences, bad(json!({ "endsAt": "2020-01-01T00:00:00Z" })), 400),
        (Method::POST, silences, bad(json!({ "id": "5c9c9b7e-3d2c-4a55-9f0c-2d7d0c8a4a11" })), 404),
        (Method::POST, silences, None, 415),
    ] {
        let (status, why) = ask(&world, method.clone(), path, body).await;
        assert_eq!(status, expected, "{method} {path}: {why}");
        assert!(why.as_str().is_some_and(|why| !why.is_empty()), "{method} {path}: {why}");
    }

    // An alert that another one inhibits, after a reload.
    let rule =
        "inhibit = [{ source_matchers = [\"unit=unit-000\"], target_matchers = [\"unit!=unit-001\"] }]";
    world.rewrite(OPTIONS, &format!("{OPTIONS}\n{rule}"));
    assert_eq!(CLIENT.post(world.url("/-/reload")).send().await.unwrap().status(), 200);
    let inhibited = "/alertmanager/api/v2/alerts?active=false";
    world.eventually("one is inhibited", async || units_in(&get(inhibited).await.1) == ["unit-002"]).await;
    let (_, page) = get("/alertmanager/api/v2/alerts?inhibited=false").await;
    assert_eq!(units_in(&page), ["unit-000", "unit-001"]);
    let by = page.as_array().unwrap().iter().find(|alert| alert["labels"]["unit"] == "unit-000").unwrap();
    let status = &get(inhibited).await.1[0]["status"];
    assert_eq!(
        (&status["state"], &status["inhibitedBy"]),
        (&json!("suppressed"), &json!([by["fingerprint"]]))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_site_changes_no_silence() {
    let world = World::new(OPTIONS, &[]).await;
    let silences = world.url("/alertmanager/api/v2/silences");
    let body = json!({
        "matchers": [{ "name": "unit", "value": ".+", "isRegex": true }],
        "startsAt": "2020-01-01T00:00:00Z",
        "endsAt": "2099-01-01T00:00:00Z",
        "createdBy": "mallory",
        "comment": "",
    });
    let own = world.url("");
    for (name, value, expected) in [
        ("origin", "http://evil.example", 403),
        ("origin", "null", 403),
        ("sec-fetch-site", "cross-site", 403),
        ("host", "evil.example", 403),
        ("content-type", "text/plain", 415),
        ("origin", own.as_str(), 200),
    ] {
        let request = CLIENT.post(&silences).body(body.to_string());
        let request =
            if name == "content-type" { request } else { request.header("content-type", "application/json") };
        let response = request.header(name, value).send().await.unwrap();
        assert_eq!(response.status(), expected, "{name}: {value}");
    }
    assert_eq!(world.json("/alertmanager/api/v2/silences").await.as_array().unwrap().len(), 1);
}
