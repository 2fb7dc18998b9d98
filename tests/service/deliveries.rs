//! `rollcall deliveries`, at an instance with either engine.

use std::process::Command;

use rollcall::simulate::webhook_sink::Answer;
use serde_json::Value;

use crate::support::http::CLIENT;
use crate::world::{World, units};

const OPTIONS: &str = "kind = [{ name = \"detector\", timeout = \"1s\" }]";

/// How the program finds the instance.
#[derive(Clone, Copy)]
enum By {
    Configuration,
    Address,
}

fn rollcall(world: &World, by: By, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
    command.args(arguments).env("USER", "ana").env_remove("ROLLCALL_CONFIG");
    match by {
        By::Address => command.arg("--url").arg(world.url("")),
        By::Configuration => {
            let config = world.dir.path().join("cli.toml");
            let listen = world.url("").trim_start_matches("http://").to_owned();
            std::fs::write(&config, format!("http.listen = \"{listen}\"\n")).unwrap();
            command.arg("--config").arg(&config)
        }
    };
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap().trim().to_owned())
}

async fn are_listed_shown_replayed_and_purged(world: &World, by: By) {
    let run = |arguments: &[&str]| rollcall(world, by, &[&["deliveries"], arguments].concat());
    let list = |state: &str| -> Vec<Value> {
        let (code, text) = run(&["list", "--json", "--receiver", "hook", "--state", state]);
        let page: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{code:?} {text}"));
        page["deliveries"].as_array().unwrap().clone()
    };
    world.rewrite("name = \"hook\"", "name = \"hook\"\nretry = { first = \"100ms\" }");
    assert_eq!(CLIENT.post(world.url("/-/reload")).send().await.unwrap().status(), 200);
    world.hook.answer_with([Answer::Say(503, "come later".to_owned()), Answer::Status(204)]);
    world.beat(&units(1)).await;
    world.eventually("it is delivered", async || list("delivered").len() == 1).await;
    let delivered = list("delivered").remove(0);
    let id = delivered["id"].as_str().unwrap().to_owned();
    assert_eq!((&delivered["attempts"], &delivered["offline"]), (&2.into(), &1.into()), "{delivered}");
    let told =
        ["1 notification</a> in the last hour, none waiting.", "<td>hook, mail<span class=\"note\"> <time"];
    world
        .eventually("the page says who was notified", async || {
            let page = world.text_of("/?state=offline").await;
            told.iter().all(|said| page.contains(said))
        })
        .await;
    let (code, text) = run(&["show", &id, "--json"]);
    let details: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{code:?} {text}"));
    let attempts = details["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 2, "{text}");
    let first = attempts[0]["answer"].as_str().unwrap();
    assert!(first.contains("503") && first.contains("come later"), "{first}");
    let second = attempts[1]["answer"].as_str().unwrap();
    assert!(attempts[0]["result"] == "failed" && second.starts_with("204 No Content"), "{text}");
    assert_eq!(details["offline"][0]["unit"], "unit-000");
    let shown = run(&["show", &id]).1;
    for part in ["NUMBER  RECEIVER", "1       hook", "failed", "come later", "detector/unit-000"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }

    // A delivered notification comes again under its id.
    let before = world.hook.received();
    assert_eq!(run(&["replay", &id]), (Some(0), "1 notifications are delivered again".to_owned()));
    world.eventually("it comes again", async || world.hook.received().len() > before.len()).await;
    let received = world.hook.received();
    let (old, new) = (&before[before.len() - 1], &received[before.len()]);
    assert_eq!((old.header("webhook-id"), &old.body), (new.header("webhook-id"), &new.body));

    // The receiver wants no more; the undelivered notifications are delivered again by a range.
    world.hook.answer_with([Answer::Status(410)]);
    world.beat(&units(1)).await;
    world.eventually("there is a dead letter", async || !list("dead").is_empty()).await;
    world.eventually("and another", async || list("dead").len() == 2).await;
    assert!(run(&["list", "--state", "dead"]).1.contains("410 Gone"));
    let page = world.text_of("/deliveries?state=dead&receiver=hook").await;
    // One line for the group of both, which says who has got them.
    for said in
        ["410 Gone", "Deliver all of these again", "2 deliveries", ", given up for <a class=\"short\""]
    {
        assert!(page.contains(said), "{said} in {page}");
    }
    // The list of units and the page of the unit know of it, also once the dead letters are gone.
    let is_said = async |why: &str| {
        let page = world.text_of("/?state=offline").await;
        let timeline = world.json("/api/v1/units/detector/unit-000/timeline").await;
        let in_full = timeline["notified"].as_str().unwrap().contains(why);
        in_full && page.contains("<td>mail") && page.contains("<span class=\"note\">, given up for hook")
    };
    let dead = "; not hook: the notification became a dead letter at ";
    world.eventually("hook was not notified", async || is_said(dead).await).await;
    let letter = list("dead")[0]["id"].as_str().unwrap().to_owned();
    let page = world.text_of(&format!("/deliveries/{letter}")).await;
    assert!(page.contains("410 Gone") && page.contains("/units/detector/unit-000"), "{page}");
    for path in ["/deliveries/replay".to_owned(), format!("/deliveries/{letter}/replay")] {
        let form = CLIENT.post(world.url(&path)).header("content-type", "application/x-www-form-urlencoded");
        assert_eq!(form.body("receiver=hook").send().await.unwrap().status(), 200, "{path}");
        world.eventually("the page delivers them without result", async || list("dead").len() == 2).await;
    }
    let dry = run(&["purge", "--receiver", "hook", "--dry-run"]);
    assert_eq!(dry, (Some(0), "2 dead letters would be removed".to_owned()));
    let (code, why) = run(&["purge", "--receiver", "hook"]);
    assert!(code == Some(1) && why.contains("add --yes"), "{why}");
    let again = run(&["replay", "--receiver", "hook"]);
    assert_eq!(again, (Some(0), "2 notifications are delivered again".to_owned()));
    // A receiver that answered 410 is disabled.
    world.eventually("they are given up again", async || list("dead").len() == 2).await;
    let purged = run(&["purge", "--receiver", "hook", "--yes"]);
    assert_eq!(purged, (Some(0), "2 dead letters were removed".to_owned()));
    assert_eq!(list("dead"), [Value::Null; 0]);
    let removed = "; not hook: the notification was given up, and its dead letter is removed.";
    world.eventually("hook was not notified, as before", async || is_said(removed).await).await;
    for (arguments, text) in [
        (&["show", "ntf_0"][..], "there is no delivery"),
        (&["show", "a/b"], "is not an id of a delivery"),
        (&["replay"], "select deliveries"),
        (&["replay", "--all", "--state", "delivered"], "--from"),
        (&["purge", "--yes"], "name dead letters"),
        (&["list", "--cursor", "zz"], "cursor is not one"),
    ] {
        let (code, why) = run(arguments);
        let expected = if text == "there is no delivery" { 1 } else { 2 };
        assert!(code == Some(expected) && why.contains(text), "{arguments:?}: {why}");
    }
    let none = run(&["purge", "--receiver", "nope", "--yes"]);
    assert_eq!(none, (Some(0), "no dead letters match; nothing is removed".to_owned()));
    let audit = world.text_of("/api/v1/audit").await;
    for change in ["deliveries_replayed", "deliveries_purged"] {
        assert!(audit.contains(change) && audit.contains("ana"), "{audit}");
    }
    // Pages of one line each hold the same as one page.
    let mut cursor = String::new();
    let mut ids = Vec::new();
    loop {
        let page = world.json(&format!("/api/v1/deliveries?limit=1{cursor}")).await;
        let lines = page["deliveries"].as_array().unwrap();
        assert!(lines.len() <= 1, "{page}");
        ids.extend(lines.iter().map(|line| line["id"].clone()));
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let all = world.json("/api/v1/deliveries").await;
    let all: Vec<Value> =
        all["deliveries"].as_array().unwrap().iter().map(|line| line["id"].clone()).collect();
    let unique = |mut ids: Vec<Value>| {
        ids.sort_by_key(Value::to_string);
        ids.dedup();
        ids
    };
    assert_eq!(unique(ids), unique(all));
}

const EMBEDDED: &str = "engine.type = \"embedded\"\nengine.path = \"{dir}/fleet\"";

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_are_listed_shown_replayed_and_purged_on_redis() {
    let world = World::new(OPTIONS, &[]).await;
    are_listed_shown_replayed_and_purged(&world, By::Configuration).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_are_listed_shown_replayed_and_purged_in_a_directory() {
    let world = World::new(&format!("{EMBEDDED}\n{OPTIONS}"), &[]).await;
    are_listed_shown_replayed_and_purged(&world, By::Address).await;
}

/// A receiver that does not take its notifications is renamed in the configuration, and they are discarded while the
/// instance runs.
async fn are_discarded(world: &World) {
    let run = |arguments: &[&str]| rollcall(world, By::Configuration, arguments);
    world.hook.answer_with(vec![Answer::Status(503); 1000]);
    world.beat(&units(1)).await;
    let waits = |state: &str| run(&["deliveries", "list", "--receiver", "hook", "--state", state]).1;
    world.eventually("it waits", async || waits("failed").contains("1 offline")).await;
    world.rewrite("\"hook\"", "\"hock\"");
    assert_eq!(CLIENT.post(world.url("/-/reload")).send().await.unwrap().status(), 200);
    world.eventually("its receiver is gone", async || waits("orphaned").contains("1 offline")).await;
    // The page of what waits has it, too, whatever it waits for.
    let page = world.text_of("/deliveries?state=waiting&receiver=hook").await;
    assert!(waits("waiting").contains("1 offline") && page.contains("1 offline"), "{page}");
    assert!(waits("pending").contains("no deliveries match"), "{}", waits("pending"));
    let (code, why) = run(&["deliveries", "discard", "--receiver", "hock"]);
    assert!(code == Some(1) && why.contains("receiver hock is configured"), "{code:?}: {why}");
    let discard = ["deliveries", "discard", "--receiver", "hook"];
    for count in [1, 0] {
        let said = format!("{count} notifications and dead letters of receiver hook were discarded");
        assert_eq!(run(&discard), (Some(0), said));
    }
    assert!(waits("orphaned").contains("no deliveries match"), "{}", waits("orphaned"));
    assert!(!run(&["receivers"]).1.contains("not configured"));
    let audit = run(&["audit"]).1;
    let entry = audit.lines().find(|line| line.contains(" deliveries_discarded "));
    assert!(entry.is_some_and(|entry| entry.contains("ana") && entry.contains("hook")), "{audit}");
    let (code, said) = run(&["deliveries", "discard", "--receiver", "hock", "--force"]);
    assert!(code == Some(0) && said.contains("of receiver hock were discarded"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_renamed_receiver_is_discarded_on_redis() {
    are_discarded(&World::new(OPTIONS, &[]).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_renamed_receiver_is_discarded_in_a_directory() {
    are_discarded(&World::new(&format!("{EMBEDDED}\n{OPTIONS}"), &[]).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_says_why_a_notification_that_waits_has_failed() {
    let world = World::new(OPTIONS, &[]).await;
    world.hook.answer_with(vec![Answer::Say(503, "come later".to_owned()); 1000]);
    world.beat(&units(1)).await;
    let list = ["deliveries", "list", "--receiver", "hook", "--state", "failed"];
    let listed = async || rollcall(&world, By::Address, &list).1;
    world.eventually("it is in the list", async || listed().await.contains("come later")).await;
}
