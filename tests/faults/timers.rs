//! Timers with whole processes: each is delivered, none is lost, and none has two ids, whatever dies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::simulate::webhook_sink::{Options, Received, WebhookSink};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::facts::until;
use crate::world::http::CLIENT;
use crate::world::instance::Instance;

const SECOND: Duration = Duration::from_secs(1);

/// How often each timer came, by the id of its notification, and when it came first.
type Told = Arc<Mutex<BTreeMap<String, (usize, Timestamp)>>>;

/// Servers, and processes that share them.
struct Timers {
    instances: Vec<Instance>,
    told: Told,
    sink: WebhookSink,
    redis: Server,
    _broker: Server,
    dir: TempDir,
}

impl Timers {
    async fn new(instances: usize, guarantee: &str) -> Timers {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = TempDir::new().unwrap();
        let redis = Server::redis(&dir.path().join("redis"), free_port().unwrap(), &["--appendonly", "yes"]);
        let broker = Server::mosquitto(&dir.path().join("broker"), free_port().unwrap(), "").unwrap();
        let told = Told::default();
        let (counted, clock) = (told.clone(), Clock::system());
        let watcher = Box::new(move |received: &Received| {
            let body = received.json();
            assert_eq!(body["type"], "rollcall.timer", "{body}");
            let timers = body["data"]["timers"].as_array().unwrap();
            assert_eq!(timers.len(), 1);
            let id = received.header("webhook-id").to_owned();
            let (of, due) = id.rsplit_once(':').unwrap();
            assert_eq!((timers[0]["id"].as_str(), timers[0]["data"]["of"].as_str()), (Some(of), Some(of)));
            let moment: Timestamp = serde_json::from_value(timers[0]["due"].clone()).unwrap();
            assert_eq!(moment.as_millis().to_string(), due);
            let now = clock.now();
            assert!(moment <= now, "{id} came early");
            counted.lock().unwrap().entry(id).or_insert((0, now)).0 += 1;
        });
        let sink =
            WebhookSink::start(Options { watcher: Some(watcher), ..Options::default() }).await.unwrap();
        let mut timers =
            Timers { instances: Vec::new(), told, sink, redis: redis.unwrap(), _broker: broker, dir };
        for number in 0..instances {
            timers.add(number, guarantee);
        }
        for instance in &mut timers.instances {
            instance.start();
        }
        timers.are_ready().await;
        timers
    }

    fn add(&mut self, number: usize, guarantee: &str) {
        let http = format!("127.0.0.1:{}", free_port().unwrap());
        let config = format!(
            r#"
            engine.url = "redis://127.0.0.1:{redis}/0"
            instance.name = "i{number}"
            mqtt.url = "mqtt://127.0.0.1:{broker}"
            mqtt.client_id = "i{number}"
            http.listen = "{http}"
            route.receivers = ["hook"]
            timers.rate = 0
            [[receiver]]
            name = "hook"
            type = "webhook"
            url = "{hook}"
            concurrency = 16
            retry.first = "1s"
            [[timer]]
            type = "report"
            receivers = ["hook"]
            guarantee = "{guarantee}"
            "#,
            redis = self.redis.port(),
            broker = self._broker.port(),
            hook = self.sink.url(),
        );
        self.instances.push(Instance::new(self.dir.path(), &format!("i{number}"), &http, &config));
    }

    async fn are_ready(&self) {
        for instance in &self.instances {
            until("the instance is ready", async || {
                instance.page("/readyz").await.is_some_and(|(status, _)| status == 200)
            })
            .await;
        }
    }

    /// Registers that many timers, by all processes in turn.
    async fn register(&self, count: usize, due: Timestamp) {
        let names: Vec<String> = (0..count).map(|n| format!("timer-{n:05}")).collect();
        let parts = names.chunks(count.div_ceil(self.instances.len()));
        for (part, instance) in parts.zip(&self.instances) {
            let line = |name: &String| {
                json!({ "id": name, "type": "report", "due": due, "data": { "of": name } }).to_string()
            };
            let lines: Vec<String> = part.iter().map(line).collect();
            let url = format!("http://{}/api/v1/timers", instance.http);
            let asked =
                CLIENT.post(url).header("content-type", "application/x-ndjson").body(lines.join("\n"));
            let answer = asked.send().await.unwrap();
            let (status, text) = (answer.status(), answer.text().await.unwrap());
            assert_eq!(status, 200, "{text}");
            let answer: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(answer["created"], part.len(), "{}", &text[..text.len().min(500)]);
        }
    }

    fn told(&self) -> BTreeMap<String, (usize, Timestamp)> {
        self.told.lock().unwrap().clone()
    }

    async fn all_told(&self, count: usize) {
        until(&format!("all of {count} are delivered"), async || self.told.lock().unwrap().len() >= count)
            .await;
    }

    /// Awaits that no timer waits for its delivery, at the first instance.
    async fn rests(&self) {
        until("nothing waits", async || {
            let page = self.instances[0].page("/api/v1/timers?state=fired&limit=1000").await;
            page.and_then(|(_, text)| serde_json::from_str::<Value>(&text).ok())
                .is_some_and(|page| page["timers"].as_array().is_some_and(Vec::is_empty))
        })
        .await;
    }
}

/// Registered for one instant: each comes once, soon, and no earlier.
async fn at_one_instant(instances: usize, count: usize, delay: Duration) {
    let timers = Timers::new(instances, "at_least_once").await;
    let due = Clock::system().now() + delay;
    timers.register(count, due).await;
    assert!(Clock::system().now() < due, "registering took longer than the delay");
    timers.all_told(count).await;
    timers.rests().await;
    let told = timers.told();
    let last = told.values().map(|(_, at)| at.since(due)).max().unwrap();
    println!("{count} timers, {instances} processes: the last came {last:?} after the moment");
    assert_eq!(told.len(), count, "none is lost");
    assert!(told.values().all(|(times, _)| *times == 1), "none is delivered twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn six_thousand_timers_for_one_instant_are_delivered_once_by_two_processes() {
    at_one_instant(2, 6000, 8 * SECOND).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_timers_are_delivered_once_by_one_process() {
    at_one_instant(1, 10_000, 10 * SECOND).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_timers_are_delivered_once_by_three_processes() {
    at_one_instant(3, 10_000, 12 * SECOND).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_whose_process_is_killed_in_the_middle_are_all_delivered() {
    let mut timers = Timers::new(2, "at_least_once").await;
    let due = Clock::system().now() + 6 * SECOND;
    timers.register(4000, due).await;
    until("some are delivered", async || timers.told().len() > 200).await;
    timers.instances[1].kill();
    timers.all_told(4000).await;
    timers.rests().await;
    let told = timers.told();
    assert_eq!(told.len(), 4000);
    // Deliveries that the dead process had under way come again under their ids.
    let again: usize = told.values().map(|(times, _)| times - 1).sum();
    assert!(again <= 200, "{again} came again");
}

#[tokio::test(flavor = "multi_thread")]
async fn overdue_timers_are_delivered_at_the_next_start() {
    let mut timers = Timers::new(1, "at_least_once").await;
    let due = Clock::system().now() + 3 * SECOND;
    timers.register(500, due).await;
    timers.instances[0].kill();
    until("the moment is over", async || Clock::system().now() > due + SECOND).await;
    assert_eq!(timers.told().len(), 0);
    timers.instances[0].start();
    timers.are_ready().await;
    timers.all_told(500).await;
    timers.rests().await;
    assert!(timers.told().values().all(|(times, _)| *times == 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_that_is_delivered_at_most_once_is_never_delivered_twice_though_processes_die() {
    let mut timers = Timers::new(2, "at_most_once").await;
    let due = Clock::system().now() + 6 * SECOND;
    timers.register(2000, due).await;
    until("some are delivered", async || timers.told().len() > 200).await;
    timers.instances[1].kill();
    timers.instances[1].start();
    until("most are delivered", async || timers.told().len() > 1000).await;
    timers.instances[1].kill();
    // Only deliveries that were marked and have no outcome are left.
    let ended = async || {
        let page = timers.instances[0].page("/api/v1/timers?state=delivered&limit=1").await;
        page.is_some() && timers.told().len() >= 2000 - 2 * 64
    };
    until("all but those under way are delivered", ended).await;
    let told = timers.told();
    assert!(told.values().all(|(times, _)| *times == 1), "{:?}", told.iter().find(|(_, one)| one.0 > 1));
}
