//! Timers with whole processes: each timer is delivered, none is lost, and none has two ids, whatever dies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollcall::clock::{Clock, Timestamp};
use rollcall::simulate::servers::{Server, free_port};
use rollcall::simulate::webhook_sink::{Options, Received, WebhookSink};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::facts::until;
use crate::world::clock::Clock as FakeClock;
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

    /// Registers `count` timers, by all processes in turn.
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

    /// Waits at the first instance until no timer waits for its delivery.
    async fn rests(&self) {
        until("nothing waits", async || {
            let page = self.instances[0].page("/api/v1/timers?state=fired&limit=1000").await;
            page.and_then(|(_, text)| serde_json::from_str::<Value>(&text).ok())
                .is_some_and(|page| page["timers"].as_array().is_some_and(Vec::is_empty))
        })
        .await;
    }
}

/// The clock steps by an hour while timers wait for half an hour. Nothing fires early, and the step is shown.
async fn no_timer_fires_early(engine: &str, dir: &TempDir, clock: &FakeClock, is_of_instance: bool) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let told = Arc::new(Mutex::new(Vec::<String>::new()));
    let ids = told.clone();
    let watcher = Box::new(move |received: &Received| {
        // A step of Redis is also told as blind time.
        if let Some(id) = received.json()["data"]["timers"][0]["id"].as_str() {
            ids.lock().unwrap().push(id.to_owned());
        }
    });
    let sink = WebhookSink::start(Options { watcher: Some(watcher), ..Options::default() }).await.unwrap();
    let http = format!("127.0.0.1:{}", free_port().unwrap());
    let config = format!(
        r#"
        engine = {{ {engine} }}
        broker = {{ listen = "127.0.0.1:{}" }}
        http.listen = "{http}"
        receiver = [{{ name = "hook", type = "webhook", url = "{}" }}]
        route.receivers = ["hook"]
        timer = [{{ type = "report", receivers = ["hook"] }}]
        "#,
        free_port().unwrap(),
        sink.url()
    );
    let mut instance = Instance::new(dir.path(), "clock", &http, &config);
    if is_of_instance {
        instance.before = clock.before();
    }
    instance.start();
    until("it is ready", async || instance.page("/readyz").await.is_some_and(|(status, _)| status == 200))
        .await;
    let register = async |id: &str, field: &str, text: &str| {
        let url = format!("http://{http}/api/v1/timers/{id}");
        let timer = json!({ "type": "report", field: text }).to_string();
        let asked = CLIENT.put(url).header("content-type", "application/json").body(timer);
        assert_eq!(asked.send().await.unwrap().status(), 201);
    };
    for n in 0..30 {
        register(&format!("span-{n}"), "in", "30m").await;
    }
    register("moment", "due", &(Clock::system().now() + 1800 * SECOND).to_string()).await;
    let shows =
        async |name: &str| instance.page("/readyz").await.is_some_and(|(_, page)| page.contains(name));
    clock.step("+3600");
    until("readyz names the step", async || shows("clock_jumped").await).await;
    register("soon", "in", "1s").await;
    until("one that is due fires", async || !told.lock().unwrap().is_empty()).await;
    assert_eq!(*told.lock().unwrap(), ["soon"]);
    clock.step("+0");
    until("the step is over", async || !shows("clock_jumped").await).await;
    register("later", "in", "1s").await;
    until("one more fires", async || told.lock().unwrap().len() > 1).await;
    assert_eq!(*told.lock().unwrap(), ["soon", "later"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_the_machines_clock_fires_no_timer_of_a_fleet_in_a_directory() {
    let (dir, clock) = (TempDir::new().unwrap(), FakeClock::right());
    no_timer_fires_early("type = \"embedded\", path = \"fleet\"", &dir, &clock, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_the_clock_of_redis_fires_no_timer() {
    let (dir, clock) = (TempDir::new().unwrap(), FakeClock::right());
    let (place, port) = (dir.path().join("redis"), free_port().unwrap());
    let _redis = Server::redis_after(&clock.before(), &place, port, &["--appendonly", "yes"]).unwrap();
    no_timer_fires_early(&format!("url = \"redis://127.0.0.1:{port}/0\""), &dir, &clock, false).await;
}

/// A write beyond the limit of file sizes (KiB) raises a signal, which ends a process that does not handle it.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_beyond_the_limit_of_file_sizes_is_an_error_and_the_process_goes_on() {
    let dir = TempDir::new().unwrap();
    let http = format!("127.0.0.1:{}", free_port().unwrap());
    let config = format!(
        r#"
        engine = {{ type = "embedded", path = "fleet" }}
        broker = {{ listen = "127.0.0.1:{}" }}
        http.listen = "{http}"
        timers.rate = 0
        receiver = [{{ name = "hook", type = "webhook", url = "http://127.0.0.1:1/" }}]
        route.receivers = ["hook"]
        timer = [{{ type = "report", receivers = ["hook"] }}]
        "#,
        free_port().unwrap()
    );
    let mut instance = Instance::new(dir.path(), "small", &http, &config);
    instance.before = ["bash", "-c", "ulimit -f 2048 && exec \"$@\"", "bash"].map(str::to_owned).to_vec();
    instance.start();
    until("it is ready", async || instance.page("/readyz").await.is_some_and(|(status, _)| status == 200))
        .await;
    let url = format!("http://{http}/api/v1/timers");
    let due = Clock::system().now() + 3600 * SECOND;
    let line = |n: usize| {
        json!({ "id": format!("t-{n}"), "type": "report", "due": due, "data": "x".repeat(1000) }).to_string()
    };
    let lines: Vec<String> = (0..5000).map(line).collect();
    let asked = CLIENT.post(&url).header("content-type", "application/x-ndjson").body(lines.join("\n"));
    let answer = asked.send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert!(status == 503 && text.contains("limit of file sizes"), "{status} {text}");
    assert_eq!(instance.death(), None);
    assert_eq!(instance.page("/healthz").await.map(|(status, _)| status), Some(200));
}

/// Registers timers for one instant: each comes once, soon, and no earlier.
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
    // Deliveries that the dead process had begun come again under their ids.
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
