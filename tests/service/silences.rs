//! `rollcall silence` and `rollcall audit`, at an instance with either engine.

use std::process::{Command, Output};
use std::time::Duration;

use rollcall::clock::{Clock, parse_moment};
use serde_json::{Value, json};

use crate::support::http::CLIENT;
use crate::world::{World, units};

const OPTIONS: &str = "kind = [{ name = \"detector\", timeout = \"1s\" }]";

/// How the program finds the fleet: by a configuration, or by the address of an instance.
struct CommandLine(Vec<String>);

impl CommandLine {
    /// The engine of this configuration does not answer: the commands do not need it.
    fn new(world: &World) -> CommandLine {
        let config = world.dir.path().join("cli.toml");
        let listen = world.url("").trim_start_matches("http://").to_owned();
        let text = format!("engine.url = \"redis://127.0.0.1:1/0\"\nhttp.listen = \"{listen}\"\n");
        std::fs::write(&config, text).unwrap();
        CommandLine(vec!["--config".to_owned(), config.display().to_string()])
    }

    fn by_address(world: &World) -> CommandLine {
        CommandLine(vec!["--url".to_owned(), world.url("")])
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
        command.args(arguments).args(&self.0).env("USER", "ana").env_remove("ROLLCALL_CONFIG");
        command.output().unwrap()
    }

    fn answer(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.run(arguments);
        assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap().trim().to_owned()
    }

    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        serde_json::from_str(&self.answer(&[arguments, &["--json"]].concat())).unwrap()
    }
}

/// Makes silences, on every engine.
async fn makes_silences(world: &World, cli: &CommandLine) {
    let none = cli.run(&["silence", "list"]);
    assert_eq!(String::from_utf8_lossy(&none.stderr), "no silences match\n");
    assert!(String::from_utf8_lossy(&none.stdout).starts_with("ID  STATE  MATCHERS"), "{none:?}");
    let add = [
        "silence",
        "add",
        "site=\"a b\",kind=detector",
        "unit!~\"x|y\"",
        "--for",
        "2h",
        "--comment",
        "works",
    ];
    let added = cli.run(&add);
    let id = String::from_utf8(added.stdout).unwrap().trim().to_owned();
    let said = String::from_utf8_lossy(&added.stderr);
    assert!(said.starts_with("it covers no unit of the fleet now: compare its matchers"), "{said}");
    let shown = world.json("/alertmanager/api/v2/silences").await;
    assert_eq!((&shown[0]["id"], &shown[0]["createdBy"]), (&id.as_str().into(), &"ana".into()));
    assert_eq!(shown[0]["matchers"].as_array().unwrap().len(), 3);
    let listed = cli.json(&["silence", "list"]);
    assert_eq!((&listed[0]["state"], &listed[0]["comment"]), (&"active".into(), &"works".into()));
    assert_eq!(listed[0]["units"], 0);
    assert_eq!(listed[0]["matchers"][2], "unit!~\"x|y\"");
    cli.answer(&["silence", "extend", &id, "--until", "2099-01-01T00:00:00+01:00", "--author", "bo"]);
    let kept = cli.answer(&["silence", "extend", &id, "--for", "1h"]);
    assert!(kept.contains("already lasts until 2098-12-31T23:00:00.000Z, and is not shortened"), "{kept}");
    let listed = cli.json(&["silence", "list"]);
    assert_eq!(
        (&listed[0]["id"], &listed[0]["ends_at"]),
        (&id.as_str().into(), &"2098-12-31T23:00:00.000Z".into())
    );
    assert!(cli.answer(&["silence", "list"]).contains("site=\"a b\", kind=\"detector\", unit!~\"x|y\""));

    assert_eq!(cli.answer(&["silence", "expire", &id]), format!("silence {id} is over now"));
    assert_eq!(cli.answer(&["silence", "expire", &id]), format!("silence {id} was over already"));
    assert_eq!(cli.json(&["silence", "list"]), [""; 0]);
    assert_eq!(cli.json(&["silence", "list", "--expired"])[0]["state"], "expired");
    let later = cli.run(&["silence", "extend", &id, "--for", "1h"]);
    let why = String::from_utf8(later.stderr).unwrap();
    assert!(later.status.code() == Some(1) && why.contains("has expired; add a new one"), "{why}");
    let audit = cli.json(&["audit"]);
    let changes: Vec<&str> = audit.iter().map(|entry| entry["change"].as_str().unwrap()).collect();
    assert_eq!(changes, ["silence_expired", "silence_changed", "silence_added"]);
    let authors = audit.iter().map(|entry| entry["author"].as_str().unwrap().trim_end_matches(" (http)"));
    assert_eq!(authors.collect::<Vec<&str>>(), ["ana", "bo", "ana"]);
    let audit = cli.answer(&["audit", "--limit", "1"]);
    assert!(audit.contains(&format!("silence_expired  {id}")), "{audit}");
    let csv = cli.answer(&["silence", "list", "--expired", "--csv"]);
    assert!(csv.starts_with("id,state,matchers,units,starts_at,ends_at,author,comment\r\n"), "{csv}");

    for (wrong, code, text) in [
        (&["silence", "add", "site=~(", "--for", "1h", "--comment", "x"][..], 2, "unclosed group"),
        (&["silence", "add", "site=x", "--comment", "x"], 2, "--for"),
        (
            &["silence", "add", "site=~.*", "--for", "1h", "--comment", "x"],
            2,
            "does not match an empty value",
        ),
        (&["silence", "add", "site=x", "--until", "2020-01-01T00:00:00Z", "--comment", "x"], 2, "ends after"),
        (&["audit", "--limit", "0"], 2, "0 is not in"),
        (&["silence", "expire", "5c9c9b7e"], 2, "UUID"),
        (&["silence", "expire", "5c9c9b7e-3d2c-4a55-9f0c-2d7d0c8a4a11"], 1, "there is no silence"),
    ] {
        let refused = cli.run(wrong);
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(code) && why.contains(text), "{wrong:?}: {why}");
    }
}

/// Text that clients made reaches the terminal without its control characters.
async fn shows_hostile_text(world: &World, cli: &CommandLine) {
    let (value, comment) = ("\u{1b}[31m\u{202e}\"x", "one\r\n\u{202e}two");
    let body = json!({
        "matchers": [{ "name": "\u{1b}]0;", "value": value, "isRegex": false }],
        "startsAt": "2020-01-01T00:00:00Z",
        "endsAt": "2099-01-01T00:00:00Z",
        "createdBy": "m\u{202e}allory",
        "comment": comment,
    });
    let post = CLIENT.post(world.url("/alertmanager/api/v2/silences"));
    let post = post.header("content-type", "application/json").body(body.to_string());
    assert_eq!(post.send().await.unwrap().status(), 200);
    for command in
        [&["silence", "list"][..], &["audit"], &["silence", "list", "--json"], &["audit", "--json"]]
    {
        let answer = cli.answer(command);
        let is_plain = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
        assert!(answer.chars().all(is_plain) && answer.contains("allory"), "{command:?}: {answer:?}");
    }
    assert_eq!(cli.json(&["silence", "list"])[0]["comment"], comment);
}

#[tokio::test(flavor = "multi_thread")]
async fn silences_are_made_by_the_address_of_an_instance() {
    let world = World::new(OPTIONS, &[]).await;
    let cli = CommandLine::by_address(&world);
    makes_silences(&world, &cli).await;
    shows_hostile_text(&world, &cli).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silences_are_made_at_the_instance_of_a_configuration_and_without_it_the_command_says_what_to_do() {
    let options = format!("engine.type = \"embedded\"\nengine.path = \"{{dir}}/fleet\"\n{OPTIONS}");
    let mut world = World::new(&options, &[]).await;
    let cli = CommandLine::new(&world);
    makes_silences(&world, &cli).await;
    shows_hostile_text(&world, &cli).await;
    world.stop().await;
    let refused = cli.run(&["silence", "add", "site=x", "--for", "2h", "--comment", "while it is stopped"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{why}");
    let config = &cli.0[1];
    let place = format!("rollcall: {} (http.listen of {config}) does not answer: ", world.url(""));
    assert!(why.starts_with(&place), "{why}");
    assert!(
        why.contains("start rollcall serve there, or name another place with --config or --url"),
        "{why}"
    );
}

/// The units that were notified as offline, in order.
fn notified(world: &World) -> Vec<String> {
    let received = world.hook.received();
    let offline = received.iter().flat_map(|one| one.json()["data"]["offline"].as_array().unwrap().clone());
    let mut units: Vec<String> = offline.map(|record| record["unit"].as_str().unwrap().to_owned()).collect();
    units.sort_unstable();
    units
}

/// Counts covered units, on every engine.
async fn covers_until_it_ends(world: &mut World, cli: &CommandLine) {
    let id = cli.answer(&["silence", "add", "unit=unit-000", "--for", "2h", "--comment", "works"]);
    // From then on the instance knows the silence.
    assert_eq!(world.json("/alertmanager/api/v2/silences").await[0]["id"], id.as_str());
    world.beat(&units(2)).await;
    world.eventually("both are offline", async || world.records().await.len() == 2).await;
    world.eventually("one is notified", async || notified(world) == ["unit-001"]).await;
    world.stop().await;
    world.start().await;
    assert_eq!(notified(world), ["unit-001"]);
    cli.answer(&["silence", "expire", &id]);
    world.eventually("the other one is, too", async || notified(world) == ["unit-000", "unit-001"]).await;
    // After a restart, covered silences join again, before a third unit is notified.
    world.stop().await;
    world.start().await;
    world.beat(&["unit-002".to_owned()]).await;
    world.eventually("a third one is", async || notified(world).contains(&"unit-002".to_owned())).await;
    assert_eq!(notified(world), units(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_silence_covered_is_notified_when_it_ends_on_redis() {
    let mut world = World::new(OPTIONS, &[]).await;
    let cli = CommandLine::new(&world);
    covers_until_it_ends(&mut world, &cli).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_silence_covered_is_notified_when_it_ends_in_a_directory() {
    let options = format!("engine.type = \"embedded\"\nengine.path = \"{{dir}}/fleet\"\n{OPTIONS}");
    let mut world = World::new(&options, &[]).await;
    let cli = CommandLine::new(&world);
    covers_until_it_ends(&mut world, &cli).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silences_and_pauses_go_by_the_clock_of_the_instance_and_not_by_that_of_the_command() {
    let world = World::new(OPTIONS, &[]).await;
    let cli = CommandLine::new(&world);
    // The clock of this command is half an hour ahead.
    let ahead = |arguments: &[&str]| {
        let mut command = Command::new("faketime");
        command.args(["-f", "+30m", env!("CARGO_BIN_EXE_rollcall")]).args(arguments).args(&cli.0);
        let output = command.env("USER", "ana").env_remove("ROLLCALL_CONFIG").output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let is_within_20m = |moment: &Value| {
        parse_moment(moment.as_str().unwrap()).unwrap() <= Clock::system().now() + Duration::from_secs(1200)
    };
    let id = ahead(&["silence", "add", "site=x", "--for", "10m", "--comment", "x"]);
    assert_eq!(cli.json(&["silence", "list"])[0]["state"], "active");
    ahead(&["silence", "extend", &id, "--for", "20m"]);
    let listed = cli.json(&["silence", "list"]);
    assert!(is_within_20m(&listed[0]["ends_at"]), "{listed:?}");
    ahead(&["silence", "expire", &id]);
    assert_eq!(cli.json(&["silence", "list", "--expired"])[0]["state"], "expired");
    world.beat(&units(1)).await;
    world.eventually("it is heard", async || world.state("unit-000").await != "none").await;
    ahead(&["pause", "detector/unit-000", "--for", "20m"]);
    let unit = world.json("/api/v1/units/detector/unit-000").await;
    assert!(is_within_20m(&unit["paused_until"]), "{unit}");
}
