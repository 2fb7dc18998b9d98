//! `/-/reload` and SIGHUP: routes and receivers are replaced while the service runs.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Method;
use rollcall::simulate::webhook_sink::{self, WebhookSink};

use rollcall::simulate::servers::free_port;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::support::http::{CLIENT, get};
use crate::support::node::until;
use crate::world::{World, units};

const OPTIONS: &str = "kind = [{ name = \"detector\", timeout = \"1s\" }]";

/// Asks for a reload. Returns the status and the text.
async fn reload(world: &World) -> (u16, String) {
    let answer = CLIENT.request(Method::POST, world.url("/-/reload")).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

async fn metric(world: &World) -> String {
    let page = world.text_of("/metrics").await;
    let line = page.lines().find(|line| line.starts_with("rollcall_config_last_reload_successful "));
    line.unwrap().rsplit(' ').next().unwrap().to_owned()
}

fn offline(sink: &WebhookSink) -> Vec<String> {
    let received = sink.received();
    let records = received.iter().flat_map(|one| one.json()["data"]["offline"].as_array().unwrap().clone());
    let mut units: Vec<String> = records.map(|record| record["unit"].as_str().unwrap().to_owned()).collect();
    units.sort_unstable();
    units
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_and_routes_are_those_of_the_file_after_a_reload_and_a_wrong_file_changes_nothing() {
    let world = World::new(OPTIONS, &[]).await;
    let all = units(3);
    world.beat(&all[..1]).await;
    world.eventually("the first is notified", async || offline(&world.hook) == all[..1]).await;
    assert_eq!(metric(&world).await, "1");

    world.rewrite("type = \"webhook\"", "type = \"nonsense\"");
    let (status, why) = reload(&world).await;
    assert!(status == 500 && why.contains("nonsense"), "{why}");
    assert_eq!(metric(&world).await, "0");
    world.beat(&all[1..2]).await;
    world.eventually("the second is, too", async || offline(&world.hook) == all[..2]).await;

    // The file is cut off.
    world.rewrite("receivers = [\"hook\", \"mail\"]", "receivers = []");
    let (status, why) = reload(&world).await;
    assert!(status == 500 && why.contains("no route names a receiver"), "{why}");

    let other = WebhookSink::start(webhook_sink::Options::default()).await.unwrap();
    world.rewrite(&world.hook.url(), &other.url());
    assert_eq!(reload(&world).await, (200, "routes and receivers are replaced".to_owned()));
    assert_eq!(metric(&world).await, "1");
    world.beat(&all[2..]).await;
    world.eventually("the third goes elsewhere", async || offline(&other) == all[2..]).await;
    assert_eq!(offline(&world.hook), all[..2]);

    // A removed receiver has no problem and no series of current values.
    world.rewrite("[\"hook\", \"mail\"]", "[\"hook\"]");
    assert_eq!(reload(&world).await.0, 200);
    let receivers = world.json("/alertmanager/api/v2/alerts").await[0]["receivers"].clone();
    assert_eq!(receivers.as_array().unwrap().len(), 1, "{receivers}");
    world.rewrite("timeout = \"1s\"", "timeout = \"1s\", topics = [\"other/{unit}\"]");
    let (status, text) = reload(&world).await;
    assert!(status == 200 && text.ends_with("a restart is needed for the changes in kind"), "{text}");
    assert_eq!(CLIENT.get(world.url("/-/reload")).send().await.unwrap().status(), 405);
    let foreign = CLIENT.post(world.url("/-/reload")).header("origin", "http://evil.example");
    assert_eq!(foreign.send().await.unwrap().status(), 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_silence_after_a_receiver_was_added_waits_for_no_interval() {
    let world = World::new(OPTIONS, &[]).await;
    let all = units(1);
    // The route has no receiver.
    let named = "receivers = [\"hook\", \"mail\"], group_wait = \"0s\", group_interval = \"0s\"";
    let elsewhere = "[{ matchers = ['kind=\"other\"'], receivers = [\"hook\"] }]";
    world.rewrite(
        named,
        &format!("receivers = [], routes = {elsewhere}, group_wait = \"0s\", group_interval = \"1h\""),
    );
    assert_eq!(reload(&world).await, (200, "routes and receivers are replaced".to_owned()));
    let falls_silent = async || {
        world.beat(&all).await;
        world.eventually("it is online", async || world.state(&all[0]).await == "online").await;
        world.eventually("it is offline", async || world.state(&all[0]).await == "offline").await;
    };
    falls_silent().await;
    world.beat(&all).await;
    world.eventually("it is back", async || world.state(&all[0]).await == "online").await;

    world.rewrite("group_interval = \"0s\"", "group_interval = \"1h\"");
    assert_eq!(reload(&world).await.0, 200);
    world.eventually("it is silent again", async || world.records().await.len() == 2).await;
    world.eventually("it is notified", async || offline(&world.hook) == all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_the_running_instance_has_not_read_is_named_by_check_and_by_a_test_of_its_receiver() {
    let world = World::new(OPTIONS, &[]).await;
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
        command.args(arguments).arg("--config").arg(world.dir.path().join("serves.toml"));
        let output = command.env_remove("ROLLCALL_TOKEN").output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (_, said) = run(&["check"]);
    assert!(!said.contains("running instance"), "{said}");
    let accepted = "receiver hook accepted the test\n".to_owned();
    assert_eq!(run(&["send-test", "--receiver", "hook"]), (Some(0), accepted.clone()));

    for (before, after) in
        [("name = \"hook\"", "name = \"pager\""), ("[\"hook\", \"mail\"]", "[\"pager\", \"mail\"]")]
    {
        let file = world.dir.path().join("serves.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(before), "{text}");
        std::fs::write(file, text.replace(before, after)).unwrap();
    }
    let (_, said) = run(&["check"]);
    assert!(said.contains("warn  running instance: running with other kinds"), "{said}");
    let (code, said) = run(&["send-test", "--receiver", "pager"]);
    assert!(code == Some(1) && said.contains("runs without receiver pager"), "{said}");

    assert_eq!(reload(&world).await.0, 200);
    assert_eq!(run(&["send-test", "--receiver", "pager"]), (Some(0), accepted.replace("hook", "pager")));
    let (_, said) = run(&["check"]);
    assert!(!said.contains("running instance"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn timeouts_are_those_of_the_file_after_a_reload_for_units_that_are_silent_already_too() {
    let world = World::new("kind = [{ name = \"detector\", timeout = \"1h\" }]", &[]).await;
    let all = units(3);
    world.beat(&all).await;
    for unit in &all {
        world.eventually("it is known", async || world.state(unit).await == "online").await;
    }
    let rules = |text: &str| assert!(text.ends_with("timeouts and other rules of detector"), "{text}");
    world.rewrite("\"1h\"", "\"1500ms\"");
    rules(&reload(&world).await.1);
    world.eventually("all are offline", async || offline(&world.hook) == all).await;
    world.beat(&all[..1]).await;
    world.eventually("one is back", async || world.state(&all[0]).await == "online").await;
    world.eventually("it is offline again", async || offline(&world.hook).len() == 4).await;

    // With a longer timeout, none of the units is overdue.
    world.rewrite("\"1h\"", "\"2h\"");
    rules(&reload(&world).await.1);
    for unit in &all {
        world.eventually("it is online", async || world.state(unit).await == "online").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_in_the_middle_of_a_storm_lose_nothing_and_repeat_nothing() {
    let world = World::new(OPTIONS, &[]).await;
    world.rewrite("group_wait = \"0s\"", "group_by = [\"unit\"], group_wait = \"0s\"");
    assert_eq!(reload(&world).await.0, 200);
    let all = units(300);
    world.beat(&all).await;
    let notified = || {
        let mut units = offline(&world.hook);
        units.dedup();
        units
    };
    for _ in 0..5 {
        let before = notified().len();
        assert_eq!(reload(&world).await.0, 200);
        world.eventually("more are notified", async || notified().len() > before || before == 300).await;
    }
    world.eventually("all are notified", async || notified() == all).await;
    let received = world.hook.received();
    let mut ids: Vec<&str> = received.iter().map(|one| one.header("webhook-id")).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 300, "a repetition has the same id");
}

/// A server that accepts requests and never answers. Returns its address, and a count of the connections that their
/// client has given up.
async fn hangs() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, given_up) = (format!("http://{}/", listener.local_addr().unwrap()), Arc::default());
    let count: Arc<AtomicUsize> = Arc::clone(&given_up);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let count = count.clone();
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                while client.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    (url, given_up)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_while_one_receiver_hangs_delays_no_other_one() {
    let (url, given_up) = hangs().await;
    let world = World::new(OPTIONS, &[]).await;
    let slow = format!(
        r#"name = "slow"
        type = "webhook"
        url = "{url}"
        [[timer]]
        type = "to-slow"
        receivers = ["slow"]
        [[timer]]
        type = "to-hook"
        receivers = ["hook"]
        [[receiver]]
        name = "mail""#
    );
    world.rewrite("name = \"mail\"", &slow);
    assert_eq!(reload(&world).await.0, 200);
    let register = async |class: &str| {
        let body = json!([{ "type": class, "in": "0s", "data": {} }]).to_string();
        let sent = CLIENT.post(world.url("/api/v1/timers")).header("content-type", "application/json");
        let sent = sent.body(body).send().await.unwrap();
        assert!(sent.status().is_success(), "{}", sent.text().await.unwrap());
    };
    register("to-slow").await;
    let waits = async || {
        world.text_of("/metrics").await.contains("rollcall_notification_queue_length{receiver=\"slow\"} 1")
    };
    world.eventually("an attempt is under way", waits).await;
    assert_eq!(reload(&world).await.0, 200);
    register("to-hook").await;
    world.eventually("the other one is notified", async || world.hook.received().len() == 1).await;
    assert_eq!(given_up.load(Ordering::Relaxed), 0, "the attempt of before the reload is still under way");
}

/// A process of `rollcall serve`, which ends with the value.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hang_up_loads_the_file_again_and_a_wrong_one_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let [http, broker] = [free_port().unwrap(), free_port().unwrap()];
    let write = |receiver: &str, kind: &str| {
        let text = format!(
            "engine = {{ type = \"embedded\", path = \"fleet\" }}\nbroker.listen = \"127.0.0.1:{broker}\"\n\
             http.listen = \"127.0.0.1:{http}\"\nroute.receivers = [\"{receiver}\"]\n\
             receiver = [{{ name = \"{receiver}\", type = \"{kind}\", url = \"http://127.0.0.1:1\" }}]\n"
        );
        std::fs::write(dir.path().join("rollcall.toml"), text).unwrap();
    };
    write("one", "webhook");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
    command.args(["serve", "--config"]).arg(dir.path().join("rollcall.toml")).current_dir(dir.path());
    let served = Served(command.stderr(Stdio::null()).spawn().unwrap());
    let page = async |path: &str| match get(format!("http://127.0.0.1:{http}{path}")).await {
        Ok(answer) => answer.text().await.unwrap_or_default(),
        Err(_) => String::new(),
    };
    let hang_up = || {
        let status = Command::new("kill").args(["-HUP", &served.0.id().to_string()]).status().unwrap();
        assert!(status.success());
    };
    let loaded = async |value: u8| {
        let line = format!("\nrollcall_config_last_reload_successful {value}\n");
        page("/metrics").await.contains(&line)
    };
    let receivers = async || page("/alertmanager/api/v2/receivers").await;
    until("it serves", async || receivers().await.contains("\"one\"") && loaded(1).await).await;
    let hash = async || {
        let answer: serde_json::Value = serde_json::from_str(&page("/api/v1/instances").await).unwrap();
        answer["instances"][0]["configuration"].as_str().unwrap().to_owned()
    };
    let of_the_start = hash().await;
    write("two", "nonsense");
    hang_up();
    until("the file is refused", async || loaded(0).await).await;
    assert_eq!(hash().await, of_the_start);
    assert!(receivers().await.contains("\"one\""), "{}", receivers().await);
    write("two", "webhook");
    hang_up();
    until("the file is loaded", async || loaded(1).await && receivers().await.contains("\"two\"")).await;
    assert!(!receivers().await.contains("\"one\""), "{}", receivers().await);
    assert_ne!(hash().await, of_the_start);
}
