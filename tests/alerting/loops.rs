//! Claims about the loops from the outbox to the receivers, over a real engine and a clock that is
//! moved by hand.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rollcall::alerting::{self, Config, Route};
use rollcall::engine::roll::{HearingConfig, Rules};
use rollcall::engine::{Engine, Mirror, Pace, Roll};
use rollcall::presence::{Declared, Heartbeat, KindRules};
use rollcall::simulate::mail_sink::{self, MailSink};
use rollcall::simulate::webhook_sink::{Answer, Options, Received, WebhookSink};
use rollcall::telemetry::Telemetry;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::redis::Redis;
use super::*;

const WAIT: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(60);

/// A fleet of detectors and the loops that tell of it.
struct World {
    engine: Arc<dyn Engine>,
    clock: Clock,
    telemetry: Arc<Telemetry>,
    roll: Roll,
    news: Arc<Notify>,
    config: Config,
    loops: Option<(CancellationToken, JoinHandle<anyhow::Result<()>>)>,
    redis: Redis,
}

impl World {
    /// Loops that group by `group_by` and tell these receivers.
    async fn new(group_by: &str, receivers: Vec<ReceiverConfig>) -> World {
        let redis = Redis::start();
        let clock = Clock::by_hand(now());
        let telemetry = Arc::new(Telemetry::new(&clock));
        let engine: Arc<dyn Engine> = redis.engine(&telemetry).await;
        let news = Arc::new(Notify::new());
        let mut rules = KindRules::new("detector".parse().unwrap());
        rules.policy.timeout = TIMEOUT;
        let hearing = HearingConfig { gap: 100 * HOUR, settle: WAIT, tell: HOUR };
        let rules: Arc<Rules> = Arc::new([(rules.kind.clone(), rules)].into());
        let mirror = Arc::new(Mirror::new(rules.clone(), engine.partitions()));
        let roll = Roll::new(engine.clone(), rules, mirror, telemetry.clone(), hearing, news.clone());
        roll.canary_returned(clock.now()).await.unwrap();
        let route = Route {
            receivers: receivers.iter().map(|receiver| receiver.name.clone()).collect(),
            group_by: vec![group_by.to_owned()],
            pace: Pace { wait: WAIT, interval: 5 * WAIT },
        };
        let config = Config { route, receivers };
        assert_eq!(alerting::check(&config), Vec::<String>::new());
        let mut world = World { engine, clock, telemetry, roll, news, config, loops: None, redis };
        world.start();
        world
    }

    fn start(&mut self) {
        let stop = CancellationToken::new();
        let (engine, clock, telemetry) = (self.engine.clone(), self.clock.clone(), self.telemetry.clone());
        let run =
            alerting::run(self.config.clone(), engine, clock, telemetry, self.news.clone(), stop.clone());
        self.loops = Some((stop, tokio::spawn(run)));
    }

    async fn stop(&mut self) {
        let (stop, loops) = self.loops.take().unwrap();
        stop.cancel();
        tokio::time::timeout(PATIENCE, loops).await.expect("the loops end").unwrap().unwrap();
    }

    /// Moves the clock, and lets the loops know without waiting for their tick.
    fn advance(&self, span: Duration) {
        self.clock.advance(span);
        self.news.notify_one();
    }

    async fn hear(&self, ids: &[&str]) {
        let at = self.clock.now();
        let beat = |id: &&str| Heartbeat { unit: unit(id), at, declared: Declared::default() };
        self.roll.hear(&ids.iter().map(beat).collect::<Vec<_>>(), at).await.unwrap();
    }

    /// These units are heard and then fall silent for longer than they may.
    async fn lose(&self, ids: &[&str]) {
        self.hear(ids).await;
        self.advance(TIMEOUT + Duration::from_secs(1));
        self.roll.canary_returned(self.clock.now()).await.unwrap();
        let units: Vec<Unit> = ids.iter().map(|id| unit(id)).collect();
        assert!(self.roll.look(&units, self.clock.now()).await.unwrap().is_empty());
    }

    /// Everything has left the outbox.
    async fn joined(&self) {
        until("the outbox is empty", async || self.engine.outbox(1).await.unwrap().is_empty()).await;
    }

    /// These units fall silent and their groups become due.
    async fn tell_loss(&self, ids: &[&str]) {
        self.lose(ids).await;
        self.joined().await;
        self.advance(WAIT);
    }

    async fn dead(&self, receiver: &str, count: u64) {
        let dead = async || self.engine.backlog(receiver).await.unwrap().dead == count;
        until("there are dead letters", dead).await;
    }

    /// The value of a series, by its name and the values of its labels.
    fn metric(&self, name: &str, values: &[&str]) -> f64 {
        let families = self.telemetry.gather();
        let family = families.iter().find(|family| family.name() == name).expect(name);
        let is_it = |metric: &&prometheus::proto::Metric| {
            values.iter().all(|value| metric.get_label().iter().any(|label| label.value() == *value))
        };
        let metric = family.get_metric().iter().find(is_it).expect("a series of these labels");
        metric.get_counter().get_value() + metric.get_gauge().get_value()
    }
}

fn unit(id: &str) -> Unit {
    format!("detector:{id}").parse().unwrap()
}

/// Waits until something is so, and fails the test if it does not become so.
async fn until<F: Future<Output = bool>>(what: &str, so: impl Fn() -> F) {
    let wait = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("it did not come true that {what}"));
}

async fn hook() -> WebhookSink {
    WebhookSink::start(Options::default()).await.unwrap()
}

fn named(name: &str, config: ReceiverConfig) -> ReceiverConfig {
    ReceiverConfig { name: name.to_owned(), ..config }
}

/// The ids of the units that a notification lists as `offline` or `online`.
fn listed(received: &Received, which: &str) -> Vec<String> {
    let json = received.json();
    let mut ids: Vec<String> = json["data"][which]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["unit"].as_str().unwrap().to_owned())
        .collect();
    ids.sort();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silence_is_told_after_group_wait_and_the_return_after_it() {
    let (sink, mail) = (hook().await, MailSink::start(mail_sink::Options::default()).await.unwrap());
    let receivers = vec![webhook_to(sink.url(), None), mail_to(mail.url(), &["ops@example.org"])];
    let mut world = World::new("kind", receivers).await;
    world.tell_loss(&["a", "b"]).await;
    let told = sink.wait_for(1, PATIENCE).await.unwrap();
    assert_eq!(
        (listed(&told[0], "offline"), listed(&told[0], "online")),
        (vec!["a".into(), "b".into()], vec![])
    );
    assert_eq!(
        mail.wait_for(1, PATIENCE).await.unwrap()[0].header("Subject").unwrap(),
        "OFFLINE: 2 detectors"
    );
    for receiver in ["hook", "mail"] {
        let settled = async || world.engine.backlog(receiver).await.unwrap() == Default::default();
        until("both have it", settled).await;
        assert_eq!(world.metric("rollcall_notifications_total", &[receiver, "delivered"]), 1.0);
    }

    world.hear(&["a"]).await;
    world.joined().await;
    world.advance(5 * WAIT);
    let told = sink.wait_for(2, PATIENCE).await.unwrap();
    assert_eq!((listed(&told[1], "offline"), listed(&told[1], "online")), (vec![], vec!["a".into()]));
    assert_eq!(mail.wait_for(2, PATIENCE).await.unwrap()[1].header("Subject").unwrap(), "BACK: detector a");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_returns_within_group_wait_is_never_told() {
    let sink = hook().await;
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.lose(&["a", "b"]).await;
    world.joined().await;
    world.hear(&["a"]).await;
    world.joined().await;
    world.advance(WAIT);
    let told = sink.wait_for(1, PATIENCE).await.unwrap();
    assert_eq!((listed(&told[0], "offline"), listed(&told[0], "online")), (vec!["b".into()], vec![]));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_receiver_delays_nobody() {
    let (alive, dead) = (hook().await, hook().await);
    dead.answer_with(vec![Answer::Hang; 100]);
    let receivers =
        vec![named("dead", webhook_to(dead.url(), None)), named("alive", webhook_to(alive.url(), None))];
    let mut world = World::new("unit", receivers).await;
    let ids: Vec<String> = (0..20).map(|i| i.to_string()).collect();
    world.tell_loss(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    alive.wait_for(20, PATIENCE).await.unwrap();
    dead.wait_for(4, PATIENCE).await.unwrap();
    for (late, count) in [("late", 21), ("later", 22), ("latest", 23)] {
        world.tell_loss(&[late]).await;
        alive.wait_for(count, PATIENCE).await.unwrap();
    }
    assert_eq!(dead.received().len(), 4, "never more at a time than its concurrency");
    drop(dead);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn body_and_id_stay_the_same_over_retries_and_restarts() {
    let sink = hook().await;
    sink.answer_with([Answer::Status(500), Answer::Status(503), Answer::Status(429)]);
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.tell_loss(&["a"]).await;
    sink.wait_for(1, PATIENCE).await.unwrap();
    world.stop().await;
    // More news of the group meanwhile goes into a notification of its own.
    world.lose(&["b"]).await;
    world.start();
    world.joined().await;
    for failed in 1..=3 {
        let retried =
            async || world.metric("rollcall_notifications_total", &["hook", "retry"]) >= failed as f64;
        until("the attempt is over", retried).await;
        world.advance(HOUR);
    }
    let told = sink.wait_for(4, PATIENCE).await.unwrap();
    assert!(told[0].header("webhook-id").ends_with(".hook"));
    for again in &told[1..4] {
        assert_eq!(again.body, told[0].body);
        assert_eq!(again.header("webhook-id"), told[0].header("webhook-id"));
    }
    let next = &sink.wait_for(5, PATIENCE).await.unwrap()[4];
    assert_ne!(next.header("webhook-id"), told[0].header("webhook-id"));
    assert_eq!(listed(next, "offline"), ["b"]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_asks_for_a_longer_wait_gets_it() {
    let sink = hook().await;
    sink.answer_with([Answer::RetryAfter(429, "7200".to_owned())]);
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.tell_loss(&["a"]).await;
    sink.wait_for(1, PATIENCE).await.unwrap();
    let next = world.clock.now() + Duration::from_secs(7200);
    until("it is postponed so long", async || world.engine.first_lease("hook").await.unwrap() == Some(next))
        .await;
    world.advance(Duration::from_secs(7200));
    sink.wait_for(2, PATIENCE).await.unwrap();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permanent_failure_becomes_a_dead_letter_and_is_counted() {
    let sink = hook().await;
    sink.answer_with([Answer::Status(404)]);
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.tell_loss(&["a"]).await;
    world.dead("hook", 1).await;
    let dead = world.engine.dead_letters("hook", 10).await.unwrap();
    assert!(dead[0].reason.contains("404"), "{}", dead[0].reason);
    assert_eq!(dead[0].delivery.id, sink.received()[0].header("webhook-id"));
    assert_eq!(world.metric("rollcall_notifications_total", &["hook", "dead"]), 1.0);
    until("it shows", async || world.metric("rollcall_dead_letters", &["hook"]) == 1.0).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_delivered_for_too_long_becomes_a_dead_letter() {
    let sink = hook().await;
    sink.answer_with(vec![Answer::Status(500); 2]);
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.tell_loss(&["a"]).await;
    let retried = async || world.metric("rollcall_notifications_total", &["hook", "retry"]) == 1.0;
    until("the attempt is over", retried).await;
    world.advance(72 * HOUR);
    world.dead("hook", 1).await;
    assert_eq!(sink.received().len(), 2);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gone_disables_the_receiver_until_a_restart() {
    let sink = hook().await;
    sink.answer_with([Answer::Status(410)]);
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    world.tell_loss(&["a"]).await;
    world.dead("hook", 1).await;
    world.tell_loss(&["b"]).await;
    world.dead("hook", 2).await;
    assert_eq!(sink.received().len(), 1, "the second was not even tried");
    world.stop().await;
    world.start();
    world.tell_loss(&["c"]).await;
    assert_eq!(listed(&sink.wait_for(2, PATIENCE).await.unwrap()[1], "offline"), ["c"]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_blindness_is_told_on_its_own() {
    let sink = hook().await;
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.advance(200 * HOUR);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    world.joined().await;
    world.advance(WAIT);
    let told = &sink.wait_for(1, PATIENCE).await.unwrap()[0].json();
    assert_eq!(told["type"], "rollcall.blind");
    assert_eq!(told["data"]["intervals"][0]["seconds"], 720_000.0);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_under_way_is_recorded_when_the_loops_stop() {
    let sink = hook().await;
    sink.answer_with([Answer::Hang]);
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.tell_loss(&["a"]).await;
    sink.wait_for(1, PATIENCE).await.unwrap();
    let (stop, loops) = world.loops.take().unwrap();
    stop.cancel();
    sink.release();
    tokio::time::timeout(PATIENCE, loops).await.expect("the loops end").unwrap().unwrap();
    assert_eq!(world.engine.backlog("hook").await.unwrap(), Default::default(), "it was delivered");
}
