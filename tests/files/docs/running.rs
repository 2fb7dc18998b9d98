//! The commands and requests of the documentation, run: against a Redis, a Mosquitto, a receiver and a Rollcall of
//! their own, in a directory of their own.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rollcall::alerting;
use rollcall::clock::Timestamp;
use rollcall::presence::Interval;
use rollcall::simulate::servers::{Server, free_port};
use rollcall::simulate::webhook_sink::{Options, Received, WebhookSink};
use rollcall::store::{Delivery, Group};
use serde_json::Value;
use tempfile::TempDir;

use super::{blocks, none};
use crate::docs::blocks::lines;
use crate::support::postgres::{PASSWORD, Postgres};

/// How long anything may take.
const MAX_WAIT: Duration = Duration::from_secs(120);
const AGAIN: Duration = Duration::from_millis(50);

struct World {
    dir: TempDir,
    redis: Server,
    broker: Server,
    sink: WebhookSink,
    _postgres: Postgres,
    http: u16,
    rollcall: Option<Child>,
}

impl World {
    async fn start() -> World {
        let dir = tempfile::tempdir().unwrap();
        let redis = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &[]).unwrap();
        let broker = Server::mosquitto(&dir.path().join("mosquitto"), free_port().unwrap(), "").unwrap();
        let sink = WebhookSink::start(Options::default()).await.unwrap();
        let postgres = Postgres::start();
        let history =
            postgres.url().replace("rollcall@", &format!("rollcall:{}@", PASSWORD.replace(' ', "%20")));
        let http = free_port().unwrap();
        let text = format!(
            r#"
            engine.url = "redis://127.0.0.1:{}/0"
            mqtt.url = "mqtt://127.0.0.1:{}"
            mqtt.timers = true
            timer = [{{ type = "report-due", receivers = ["hook"] }}]
            history.url = "{history}"
            http.listen = "127.0.0.1:{http}"
            http.count_by_labels = ["site"]
            route = {{ receivers = ["hook"], group_wait = "0s" }}
            receiver = [{{ name = "hook", type = "webhook", url = "{}" }}]
            [[kind]]
            name = "detector"
            topics = ["sites/{{site}}/{{unit}}/heartbeat", "units/{{unit}}/heartbeat"]
            timeout = "1s"
            "#,
            redis.port(),
            broker.port(),
            sink.url(),
        );
        std::fs::create_dir(dir.path().join("config")).unwrap();
        for name in ["rollcall.toml", "config/rollcall.toml"] {
            std::fs::write(dir.path().join(name), &text).unwrap();
        }
        let mut world = World { dir, redis, broker, sink, _postgres: postgres, http, rollcall: None };
        world.rollcall = Some(world.command(&["serve"], &[]).spawn().unwrap());
        world.ready(http).await;
        world
    }

    fn command(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollcall"));
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ROLLCALL_"))
        {
            command.env_remove(name);
        }
        command.current_dir(self.dir.path()).args(arguments).envs(variables.iter().copied());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Waits until the instance at that port does its work.
    async fn ready(&self, port: u16) {
        let ready = async {
            while answer(port, "/readyz").is_none_or(|(status, _)| status != 200) {
                tokio::time::sleep(AGAIN).await;
            }
        };
        tokio::time::timeout(MAX_WAIT, ready).await.expect("Rollcall does its work");
    }

    /// Publishes a message of a unit.
    fn speak(&self, topic: &str, payload: &str) {
        let port = self.broker.port().to_string();
        let sent =
            Command::new("mosquitto_pub").args(["-p", &port, "-q", "1", "-t", topic, "-m", payload]).status();
        assert!(sent.unwrap().success(), "{topic}");
    }

    /// The arguments for this world: other ports, directories that tests may write to, and little time.
    fn here(&self, arguments: &[String]) -> Vec<String> {
        let mut here: Vec<String> = arguments.iter().map(|word| self.word(word)).collect();
        let lives = matches!(here.first().map(String::as_str), Some("demo" | "simulate"));
        match here.iter().position(|word| word == "--duration") {
            Some(at) => here[at + 1] = "1s".to_owned(),
            None if lives => here.extend(["--duration".to_owned(), "1s".to_owned()]),
            None => {}
        }
        if lives && here[0] == "simulate" && !here.iter().any(|word| word == "--url") {
            here.extend(["--url".to_owned(), self.word("mqtt://127.0.0.1:1883")]);
        }
        here
    }

    fn word(&self, word: &str) -> String {
        // The fleet of this world has the database 0.
        let word =
            word.replace("redis://127.0.0.1:6379/0", &format!("redis://127.0.0.1:{}/1", self.redis.port()));
        let word = word.replace("127.0.0.1:1883", &format!("127.0.0.1:{}", self.broker.port()));
        let word = word.replace("127.0.0.1:8080", &format!("127.0.0.1:{}", self.http));
        let word = word.replace("/var/lib/rollcall", &self.dir.path().join("fleet").to_string_lossy());
        word.replace("/etc/rollcall/rollcall.toml", "rollcall.toml")
    }

    /// Runs Rollcall to its end, and `serve` until it does its work, beside the running instance.
    async fn run(&self, arguments: &[String]) -> Result<(), String> {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        if words.first() == Some(&"serve") {
            return self.serve(&words, &[("ROLLCALL_MQTT__CLIENT_ID", "beside")]).await;
        }
        let mut command = self.command(&words, &[]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = tokio::task::spawn_blocking(move || command.output());
        let Output { status, stdout, stderr } =
            tokio::time::timeout(MAX_WAIT, ended).await.unwrap().unwrap().unwrap();
        let said = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
        if status.success() { Ok(()) } else { Err(format!("{status}: {said}")) }
    }

    async fn serve(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Result<(), String> {
        let port = free_port().unwrap();
        let listen = format!("127.0.0.1:{port}");
        let variables = [variables, &[("ROLLCALL_HTTP__LISTEN", listen.as_str())]].concat();
        let mut child = self.command(arguments, &variables).spawn().unwrap();
        self.ready(port).await;
        let asked = Command::new("kill").arg(child.id().to_string()).status().unwrap();
        let ended = tokio::task::spawn_blocking(move || child.wait()).await.unwrap().unwrap();
        if asked.success() && ended.success() { Ok(()) } else { Err(format!("{ended}")) }
    }

    /// Makes a fleet in a directory, for the commands that move a fleet elsewhere.
    async fn found_a_fleet(&self) {
        let path = self.dir.path().join("fleet");
        let config = self.dir.path().join("embedded.toml");
        let text = format!(
            "engine = {{ type = \"embedded\", path = {path:?} }}\nmqtt.url = \"mqtt://127.0.0.1:{}\"\nmqtt.client_id = \
             \"x\"\n",
            self.broker.port()
        );
        std::fs::write(&config, text).unwrap();
        self.serve(&["serve", "--config", config.to_str().unwrap()], &[]).await.unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut child) = self.rollcall.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The status and the body of a page; `None` if no server answers.
fn answer(port: u16, path: &str) -> Option<(u16, String)> {
    answer_to("GET", port, path, ("", ""))
}

fn answer_to(method: &str, port: u16, path: &str, (header, body): (&str, &str)) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(MAX_WAIT)).ok()?;
    let of_body = match body.len() {
        0 => String::new(),
        length => format!("{header}\r\ncontent-length: {length}\r\n"),
    };
    write!(stream, "{method} {path} HTTP/1.0\r\nhost: 127.0.0.1\r\n{of_body}\r\n{body}").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_works() {
    let world = World::start().await;
    world.found_a_fleet().await;
    world.speak("sites/north/pump-7/heartbeat", "{}");
    let (mut found, mut run) = (BTreeSet::new(), BTreeSet::new());
    for line in lines() {
        let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
        let says = |why: &str| format!("{}: {}: {why}", line.place, line.text);
        if let Some(arguments) = line.arguments().map(|arguments| world.here(&arguments)) {
            if run.insert(arguments.clone()) {
                found.extend(world.run(&arguments).await.err().map(|why| says(&why)));
            }
        } else if words[0] == "mosquitto_pub" {
            let port = world.broker.port().to_string();
            let sent = Command::new("mosquitto_pub").args(["-p", &port]).args(&words[1..]).status().unwrap();
            found.extend((!sent.success()).then(|| says("did not publish")));
        } else if words[0] == "curl" {
            found.extend(asked(&world, &words).await.err().map(|why| says(&why)));
        }
    }
    assert!(run.len() > 15, "{run:?}");
    none(found);
}

/// Asks for the page of a request.
async fn asked(world: &World, words: &[&str]) -> Result<(), String> {
    let url = words
        .iter()
        .find(|word| word.starts_with("http://127.0.0.1:8080/"))
        .ok_or("asks no page of Rollcall")?;
    let path = url.strip_prefix("http://127.0.0.1:8080").unwrap_or_default();
    let option = |name| words.windows(2).find(|pair| pair[0] == name).map(|pair| pair[1]);
    let (header, body) = (option("-H").unwrap_or_default(), option("-d").unwrap_or_default());
    let method = option("-X").unwrap_or(if body.is_empty() { "GET" } else { "POST" });
    // The effect of the previous command may show a moment later.
    for _ in 0..100 {
        match answer_to(method, world.http, path, (header, body)) {
            Some((200 | 201 | 204, _)) => return Ok(()),
            Some((status, _)) if status < 500 && status != 404 => {
                return Err(format!("{path} answers {status}"));
            }
            _ => tokio::time::sleep(AGAIN).await,
        }
    }
    Err(format!("{path}: {:?}", answer(world.http, path)))
}

/// The shape of a value: keys of objects, and the shape of the first element of a list.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(all) => all.iter().map(|(key, value)| (key.clone(), shape(value))).collect(),
        Value::Array(all) => all.iter().take(1).map(shape).collect(),
        _ => Value::Null,
    }
}

/// The examples of a page, found by a key that only they have.
fn example(page: &str, key: &str) -> Value {
    let all = blocks(&["json"]).into_iter().filter(|block| block.place.starts_with(page));
    let mut all = all.map(|block| serde_json::from_str::<Value>(&block.text).unwrap());
    let pointer = format!("/{key}");
    all.find(|value| value.pointer(&pointer).is_some() || value["type"] == key)
        .unwrap_or_else(|| panic!("{page}: {key}"))
}

/// Removes parts that depend on earlier commands, or that only some examples have.
fn without(mut value: Value, parts: &[&str]) -> Value {
    for part in parts {
        if let Some(found) = value.pointer_mut(part) {
            *found = Value::Null;
        }
    }
    shape(&value)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_has_the_shape_of_an_answer_of_rollcall() {
    let world = World::start().await;
    world.speak("sites/north/pump-7/heartbeat", r#"{"labels": {"room": "12"}}"#);
    let received = world.sink.wait_for(1, MAX_WAIT).await.unwrap();
    let notification =
        received.iter().map(|one| one.json()).find(|it| it["type"] == "rollcall.notification").unwrap();
    assert_eq!(shape(&notification), shape(&example("docs/webhooks.md", "rollcall.notification")));

    world.run(&["send-test", "--receiver", "hook"].map(str::to_owned)).await.unwrap();
    let received = world.sink.received();
    let test = received.iter().map(|one| one.json()).find(|it| it["type"] == "rollcall.test").unwrap();
    assert_eq!(shape(&test), shape(&example("docs/webhooks.md", "rollcall.test")));

    let timer = r#"{"type": "report-due", "in": "0s", "data": {"site": "north"}}"#;
    let json = "content-type: application/json";
    let path = "/api/v1/timers/pump-7-report";
    assert_eq!(answer_to("PUT", world.http, path, (json, timer)).unwrap().0, 201);
    let is_timer = |one: &Received| one.json()["type"] == "rollcall.timer";
    let fired = async {
        loop {
            if let Some(one) = world.sink.received().iter().find(|one| is_timer(one)) {
                return one.json();
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    let fired = tokio::time::timeout(MAX_WAIT, fired).await.expect("the timer fires");
    assert_eq!(shape(&fired), shape(&example("docs/webhooks.md", "rollcall.timer")));

    let page = |path: &str| serde_json::from_str::<Value>(&answer(world.http, path).unwrap().1).unwrap();
    let is = |path: &str, key: &str, parts: &[&str]| {
        assert_eq!(without(page(path), parts), without(example("docs/http.md", key), parts), "{path}");
    };
    is("/api/v1/records", "records", &[]);
    is("/api/v1/units/detector/pump-7", "state", &["/record", "/values", "/rhythm"]);
    is("/api/v1/units/gone/pump-7", "detail", &[]);
    is("/api/v1/prometheus/targets", "0/targets", &[]);
    let readiness = example("docs/readiness.md", "ready");
    let of_the_moment = ["/problems", "/notes"];
    assert_eq!(without(page("/readyz"), &of_the_moment), without(readiness, &of_the_moment));
}

#[test]
fn the_example_of_blindness_is_the_body_that_is_posted() {
    let example = example("docs/webhooks.md", "rollcall.blind");
    let at = |pointer: &str| -> Timestamp {
        serde_json::from_value(example.pointer(pointer).unwrap().clone()).unwrap()
    };
    let body = |labels: &[(&str, &str)]| -> Value {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let interval = Interval { from: at("/data/intervals/0/from"), to: at("/data/intervals/0/to") };
        let delivery = Delivery {
            blind: vec![interval],
            ..Delivery::new("ntf_0.hook", "hook", Group { key: "blind".to_owned(), labels }, at("/timestamp"))
        };
        serde_json::from_str(&alerting::body(&delivery)).unwrap()
    };
    assert_eq!(body(&[]), example);
    let data = body(&[("kind", "pump"), ("topics", "sites/+/pump/+")])["data"].clone();
    let names: Vec<&str> = data.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, ["intervals", "kind", "receiver", "topics"]);
}

#[test]
fn the_example_of_lost_data_is_the_body_that_is_posted() {
    let mut example = example("docs/webhooks.md", "rollcall.data_lost");
    let mut body: Value =
        serde_json::from_str(&alerting::body(&alerting::Example::DataLost.delivery("hook"))).unwrap();
    let texts = [&mut example, &mut body].map(|one| one["data"]["text"].take());
    let [shown, whole] = texts.each_ref().map(|text| text.as_str().unwrap());
    assert!(whole.starts_with(shown.trim_end_matches('…')), "{whole}");
    let times = ["/timestamp", "/data/intervals/0/id", "/data/intervals/0/from", "/data/intervals/0/to"];
    assert_eq!(without(body, &times), without(example, &times));
}

#[test]
fn the_example_of_a_signature_is_right() {
    let page = super::Page::new("docs/webhooks.md");
    let value = |name: &str| -> String {
        let mut row = page.text.lines().filter_map(|line| line.strip_prefix(&format!("| {name} | `")));
        // The table of headers describes; the last one has values.
        row.next_back().unwrap_or_else(|| panic!("no row of {name}")).split('`').next().unwrap().to_owned()
    };
    let (id, seconds) = (value("`webhook-id`"), value("`webhook-timestamp`"));
    let secret = value("secret");
    let signer = standardwebhooks::Webhook::new(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let signature = signer.sign(&id, seconds.parse().unwrap(), value("body").as_bytes()).unwrap();
    assert_eq!(signature, value("`webhook-signature`"));
}
