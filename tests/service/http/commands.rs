//! The commands that ask a running instance.

use std::process::{Command, Output};

use rollcall::fleet::ReceiverHealths;
use rollcall::http::{Role, UnitMetrics};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::changes::token;
use super::roles::MinimumSince;
use super::world::{Fleet, SECOND};

/// Runs the program beside the server of this process.
pub(super) async fn rollcall(url: &str, arguments: &[&str], secret: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
    command.env_remove("ROLLCALL_CONFIG").env("ROLLCALL_URL", url).env("USER", "ana").args(arguments);
    if let Some(secret) = secret {
        command.env("ROLLCALL_TOKEN", secret);
    }
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

async fn printed(fleet: &Fleet, arguments: &[&str]) -> String {
    let output = rollcall(&fleet.url, arguments, None).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn units_are_printed_as_a_table_as_json_and_as_csv() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear_at("=north", "detector:=1-1").await;
    fleet.hear_at("a,b", "detector:pump,\"7\"").await;
    fleet.pass(121 * SECOND, &["detector:=1-1"]).await;
    fleet.hear_at("a,b", "detector:pump,\"7\"").await;

    let table = printed(&fleet, &["units"]).await;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("KIND      UNIT      STATE"), "{table}");
    assert!(lines[1].starts_with("detector  =1-1      offline"), "{table}");
    assert!(lines[2].starts_with("detector  pump,\"7\"  online"), "{table}");
    assert!(!table.contains('\u{1b}'), "no colours beside a terminal");

    let csv = printed(&fleet, &["units", "--csv", "--state", "offline"]).await;
    let row = "detector,\"'=1-1\",offline,2026-03-01T12:00:00.000Z,2026-03-01T12:02:00.000Z,site==north\r\n";
    assert_eq!(csv, format!("kind,unit,state,last_seen,offline_since,labels\r\n{row}"));
    let page: Value =
        serde_json::from_str(&printed(&fleet, &["units", "--json", "--contains", "pump"]).await).unwrap();
    assert_eq!(page["units"][0]["unit"], "pump,\"7\"");

    let summary = printed(&fleet, &["summary"]).await;
    assert!(summary.starts_with("Rollcall is blind"), "{summary}");
    assert!(summary.contains("kind=detector"), "{summary}");
    let explained = printed(&fleet, &["explain", "detector/=1-1"]).await;
    assert!(explained.starts_with("detector/=1-1 is offline. It was last heard 2m 1s ago."), "{explained}");
    let records = printed(&fleet, &["records", "--open", "--cause", "silence"]).await;
    assert!(records.contains("detector:=1-1:1772366400000"), "{records}");
    let share: Value = serde_json::from_str(
        &printed(&fleet, &["availability", "detector/=1-1", "--from", "2026-03-01T12:00:00Z", "--json"])
            .await,
    )
    .unwrap();
    assert_eq!(share["outages"], 1);
    let share = printed(&fleet, &["availability", "detector:=1-1", "--from", "2026-03-01T12:00:00Z"]).await;
    for row in ["online                     99.", "complete                   yes"] {
        assert!(share.contains(row), "{share}");
    }
    assert!(printed(&fleet, &["instances"]).await.contains("one"));
}

#[tokio::test]
async fn a_long_list_is_printed_page_by_page() {
    let fleet = Fleet::start().await;
    fleet.fill();
    let names: Vec<String> = (0..2100).map(|number| format!("detector:{number:04}")).collect();
    fleet.hear(&names.iter().map(String::as_str).collect::<Vec<&str>>()).await;
    let csv = printed(&fleet, &["units", "--all", "--csv", "--sort", "unit"]).await;
    let ids: Vec<&str> = csv.lines().skip(1).map(|line| line.split(',').nth(1).unwrap()).collect();
    assert_eq!(ids, names.iter().map(|name| &name["detector:".len()..]).collect::<Vec<&str>>());
    let output = rollcall(&fleet.url, &["units", "--limit", "5"], None).await;
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 6);
    assert!(String::from_utf8(output.stderr).unwrap().contains("--limit or --all"));
}

#[tokio::test]
async fn what_goes_wrong_is_said_with_what_to_do() {
    let fleet = Fleet::start_with(vec![token("screen", Role::Viewer)], UnitMetrics::All).await;
    let closed = "http://127.0.0.1:1";
    for (url, arguments, secret, expected) in [
        (
            fleet.url.as_str(),
            &["summary"][..],
            None,
            "none is given; pass it with --token-file or ROLLCALL_TOKEN",
        ),
        (&fleet.url, &["summary"], Some("wrong"), "that of ROLLCALL_TOKEN is unknown there or has expired"),
        (&fleet.url, &["explain", "detector/none"], Some("screen"), "answers 404: there is no unit"),
        (closed, &["units"], None, "start rollcall serve there"),
        (closed, &["silence", "list"], None, "start rollcall serve there"),
        (closed, &["deliveries", "discard", "--receiver", "gone"], None, "start rollcall serve there"),
    ] {
        let output = rollcall(url, arguments, secret).await;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
    }
    for (arguments, expected) in [
        (&["units", "--state", "up"][..], "states are online, late, offline"),
        (&["units", "--label", "site"], "write NAME=VALUE"),
        (&["units", "--limit", "0"], "0 is not in"),
        (&["units", "--kind", "gone"], "there is no kind"),
        (&["records", "--cause", "flapping"], "[possible values: silence, never_seen, last_will,"),
        (&["records", "--from", "2026-02-01T00:00:00Z", "--until", "2026-01-01T00:00:00Z"], "before --until"),
        (&["deliveries", "replay"], "select deliveries by id"),
        (&["deliveries", "list", "--limit", "0"], "from 1 to 1000"),
        (&["timers", "add", "x", "--type", "y"], "--due <TIME>|--in <SPAN>"),
        (&["units", "--url", "ftp://127.0.0.1"], "begins with http:// or https://"),
        (&["remove", "detector/1", "--author", "a\nb"], "--author is a short text"),
    ] {
        let output = rollcall(&fleet.url, arguments, Some("screen")).await;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
    }
    let none = rollcall(&fleet.url, &["records", "--kind", "nope"], Some("screen")).await;
    let errors = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(none.status.success() && errors.contains("there is no kind nope"), "{errors}");
    let output = rollcall(&fleet.url, &["summary", "--json"], Some("screen\n")).await;
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["instances"][0]["name"], json!("one"));
}

#[tokio::test]
async fn every_command_has_the_rights_of_its_token() {
    use MinimumSince::{Admin, Operator, Viewer};

    let roles = [("screen", Role::Viewer), ("desk", Role::Operator), ("owner", Role::Admin)];
    let tokens = roles.map(|(name, role)| token(name, role)).into();
    let fleet = Fleet::start_with(tokens, UnitMetrics::All).await;
    fleet.fill();
    fleet.hear(&["detector:1", "detector:2"]).await;
    fleet.pass(121 * SECOND, &["detector:1"]).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("units.csv");
    std::fs::write(&file, "kind,unit\ndetector,3\n").unwrap();
    let file = file.to_str().unwrap();
    let silence = "5c9c9b7e-3d2c-4a55-9f0c-2d7d0c8a4a11";
    // The last commands find nothing to change, and say so if the client may ask.
    let commands: [(&[&str], MinimumSince, &str); 28] = [
        (&["summary"], Viewer, ""),
        (&["units"], Viewer, ""),
        (&["explain", "detector/1"], Viewer, ""),
        (&["records"], Viewer, ""),
        (&["availability"], Viewer, ""),
        (&["instances"], Viewer, ""),
        (&["receivers"], Viewer, ""),
        (&["export"], Viewer, ""),
        (&["audit"], Viewer, ""),
        (&["silence", "list"], Viewer, ""),
        (&["deliveries", "list"], Viewer, ""),
        (&["breaker", "show"], Viewer, ""),
        (&["breaker", "release"], Viewer, ""),
        (&["deliveries", "purge", "--all", "--yes"], Viewer, ""),
        (&["silence", "add", "site=x", "--for", "2h", "--comment", "c"], Operator, ""),
        (&["ack", "detector/1"], Operator, ""),
        (&["ack", "detector/1", "--undo"], Operator, ""),
        (&["pause", "detector/2", "--until", "2027-01-01T00:00:00Z"], Operator, ""),
        (&["pause", "detector/2", "--end"], Operator, ""),
        (&["deliveries", "replay", "--all"], Operator, ""),
        (&["import", "--dry-run", file], Admin, ""),
        (&["import", file], Admin, ""),
        (&["deliveries", "discard", "--receiver", "gone"], Admin, ""),
        (&["remove", "detector/none"], Admin, "there is no unit detector/none"),
        (&["deliveries", "show", "ntf_0"], Viewer, "there is no delivery"),
        (&["silence", "extend", silence, "--for", "2h"], Operator, "there is no silence"),
        (&["silence", "expire", silence], Viewer, "there is no silence"),
        (&["deliveries", "replay", "ntf_0"], Operator, "there is no delivery"),
    ];
    let tokens = [
        (None, MinimumSince::Anyone),
        (Some("screen"), Viewer),
        (Some("desk"), Operator),
        (Some("owner"), Admin),
    ];
    for (secret, role) in tokens {
        for (arguments, least, nothing) in commands {
            let output = rollcall(&fleet.url, arguments, secret).await;
            let (code, said) = (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned());
            let expected = match role {
                MinimumSince::Anyone => (Some(1), "needs a valid token"),
                role if role < least => (Some(1), "answers 403: the role of this token"),
                _ => (Some(i32::from(!nothing.is_empty())), nothing),
            };
            assert!(
                code == expected.0 && said.contains(expected.1),
                "{arguments:?} as {secret:?}: {code:?} {said}"
            );
        }
    }
    let (audit, text) = (printed_as(&fleet, &["audit", "--json"], "screen").await, "ana (desk)");
    assert!(audit.contains(text) && !audit.contains("screen"), "{audit}");
}

#[tokio::test]
async fn an_import_that_removes_units_asks_first_and_refuses_to_remove_most_of_them() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear(&["detector:1", "detector:2", "detector:3", "detector:4", "detector:5"]).await;
    let dir = tempfile::tempdir().unwrap();
    let file = |units: &[&str]| {
        let path = dir.path().join("units.csv");
        let lines: String = units.iter().map(|unit| format!("detector,{unit}\n")).collect();
        std::fs::write(&path, format!("kind,unit\n{lines}")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    // The cases: units of the file, more arguments, exit code, and the output.
    let cases: [(&[&str], &[&str], i32, &str); 7] = [
        (&["1", "a/b"], &["--dry-run"], 1, "a unit id has no /"),
        (&["1", "a/b"], &["--replace", "--dry-run"], 1, "a unit id has no /"),
        (&["1", "2", "3", "4"], &["--replace"], 2, "would remove 1 of 5 units; look at them"),
        (&["1"], &["--replace", "--yes"], 2, "would remove 4 of 5 units, more than half"),
        (&["1", "2", "3", "4"], &["--replace", "--yes"], 0, "removed"),
        (&["1", "2", "3", "4"], &["--replace"], 0, "same"),
        (&["1"], &["--replace", "--force"], 0, "removed"),
    ];
    for (units, more, code, said) in cases {
        let file = file(units);
        let output = rollcall(&fleet.url, &[&["import", &file], more].concat(), None).await;
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.code() == Some(code) && text.contains(said), "{units:?} {more:?}: {text}");
    }
    let audit = printed(&fleet, &["audit", "--json"]).await;
    assert!(audit.contains("ana (http)") && audit.contains("removes 1 of 5 units"), "{audit}");
}

/// A server that is not Rollcall, and answers every request with this text.
async fn other_server(answer: &'static str) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_is_no_fleet_without_units() {
    for answer in [
        "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
        "HTTP/1.1 201 Created\r\ncontent-length: 12\r\nconnection: close\r\n\r\n{\"units\":[]}",
    ] {
        let url = other_server(answer).await;
        for arguments in [
            &["units"][..],
            &["silence", "list"],
            &["summary"],
            &["receivers"],
            &["deliveries", "list"],
            &["audit"],
        ] {
            let output = rollcall(&url, arguments, None).await;
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{arguments:?} of {answer:?}: {errors}");
            assert!(errors.contains("does not answer as Rollcall does"), "{arguments:?}: {errors}");
        }
    }
}

async fn printed_as(fleet: &Fleet, arguments: &[&str], secret: &str) -> String {
    let output = rollcall(&fleet.url, arguments, Some(secret)).await;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn receivers_are_printed_and_what_they_answered_is_escaped() {
    let fleet = Fleet::start().await;
    let health = ReceiverHealths::new(fleet.engine.clone());
    health.note("mail", Some("451 \u{1b}[2J\u{202e}later"), fleet.clock.now());
    health.write().await.unwrap();
    let table = printed(&fleet, &["receivers"]).await;
    let cells = |line: &str| {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    let rows: Vec<Vec<String>> = table.lines().map(cells).collect();
    assert_eq!(rows[1], ["hook", "webhook", "no attempt yet", "0", "0"]);
    let failing =
        ["mail", "email", "failing", "0", "0", "2026-03-01T12:00:00.000Z", "451 \\u{1b}[2J\\u{202e}later"];
    assert_eq!(rows[2], failing, "{table}");
    let json: Value = serde_json::from_str(&printed(&fleet, &["receivers", "--json"]).await).unwrap();
    assert_eq!(json[1]["why"], "451 \u{1b}[2J\u{202e}later");
    let csv = printed(&fleet, &["receivers", "--csv"]).await;
    assert!(
        csv.starts_with("receiver,type,state,waiting,dead_letters,last_success,failing_since,why\r\n"),
        "{csv}"
    );
}
