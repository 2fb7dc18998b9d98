//! Timers on their way to receivers.

use rollcall::store::StoredDeliveries;
use std::collections::BTreeMap;

use rollcall::alerting::RateLimit;
use rollcall::fleet::TimerRules;
use rollcall::fleet::timers::TimerRequest;
use rollcall::presence::{Guarantee, NewTimer, Timer, TimerClass, TimerState};
use rollcall::simulate::webhook_sink::{Answer, WebhookSink};

use super::*;
use crate::world::{On, World, hook, until};

fn class(name: &str, receivers: &[&str], guarantee: Guarantee) -> TimerClass {
    let receivers = receivers.iter().map(|name| (*name).to_owned()).collect();
    TimerClass { timer_type: name.parse().unwrap(), receivers, guarantee, keep: HOUR, most: 1000 }
}

impl World {
    /// Two classes, which the receiver `hook` gets.
    fn has_classes(&self) {
        let all = [
            class("report", &["hook"], Guarantee::AtLeastOnce),
            class("once", &["hook"], Guarantee::AtMostOnce),
        ];
        let classes = all.into_iter().map(|class| (class.timer_type.clone(), class)).collect();
        self.timers.replace_rules(TimerRules { classes, reports: Vec::new(), most: 1000, rate: 0 });
    }

    async fn registers(&self, name: &str, of: &str, due: Timestamp) {
        let (id, timer_type) = (name.parse().unwrap(), of.parse().unwrap());
        let timer = NewTimer { is_span: false, id, timer_type, due, data: r#"{"n": 1.0}"#.parse().unwrap() };
        let wanted = TimerRequest { timer, only_new: false };
        assert!(self.timers.register(&[wanted]).await.unwrap()[0].is_ok());
    }

    async fn is_in(&self, name: &str, state: TimerState) {
        let id = [name.parse().unwrap()];
        let is = async || self.timers.read(&id).await.unwrap()[0].as_ref().map(Timer::state) == Some(state);
        until(&format!("{name} is {}", state.as_str()), is).await;
    }
}

/// How often each id came.
fn told(sink: &WebhookSink) -> BTreeMap<String, usize> {
    let mut told = BTreeMap::new();
    for received in sink.received() {
        *told.entry(received.header("webhook-id").to_owned()).or_default() += 1;
    }
    told
}

async fn a_timer_is_posted_at_its_moment(on: On) {
    let sink = hook().await;
    let world = World::on(on, "unit", vec![webhook_to(sink.url(), None)]).await;
    world.has_classes();
    let due = world.clock.now() + HOUR;
    world.registers("pump 7", "report", due).await;
    world.is_in("pump 7", TimerState::Waiting).await;
    world.clock.advance(HOUR);
    let received = sink.wait_for(1, MAX_WAIT).await.unwrap().remove(0);
    assert_eq!(received.header("webhook-id"), format!("pump%207:{}", due.as_millis()));
    let body = String::from_utf8_lossy(&received.body).into_owned();
    assert!(body.contains(r#""data":{"n": 1.0}"#), "as it was registered: {body}");
    let body = received.json();
    let timers = serde_json::json!([
        {"id": "pump 7", "type": "report", "due": due, "fired_at": body["timestamp"], "data": {"n": 1.0}}
    ]);
    assert_eq!((&body["type"], &body["data"]["timers"]), (&"rollcall.timer".into(), &timers));
    world.is_in("pump 7", TimerState::Delivered).await;
    assert_eq!(sink.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_is_posted_at_its_moment_and_is_delivered_then() {
    a_timer_is_posted_at_its_moment(On::Redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_of_a_directory_is_posted_at_its_moment_and_is_delivered_then() {
    a_timer_is_posted_at_its_moment(On::Directory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_tried_again_under_the_same_id_but_for_a_timer_that_is_delivered_at_most_once() {
    let sink = hook().await;
    let world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    world.has_classes();
    let now = world.clock.now();
    sink.answer_with([Answer::Status(503)]);
    world.registers("once", "once", now).await;
    world.is_in("once", TimerState::Dead).await;
    sink.answer_with([Answer::Status(503)]);
    world.registers("often", "report", now).await;
    world.is_in("often", TimerState::Fired).await;
    until("the receiver is tried again", async || {
        world.clock.advance(Duration::from_secs(60));
        sink.received().len() == 3
    })
    .await;
    world.is_in("often", TimerState::Delivered).await;
    let ids = ["often", "once"].map(|name| format!("{name}:{}", now.as_millis()));
    assert_eq!(told(&sink), BTreeMap::from([(ids[0].clone(), 2), (ids[1].clone(), 1)]));
    assert_eq!(
        StoredDeliveries::new(world.engine.clone()).dead_letters("hook", 10).await.unwrap(),
        [],
        "no attempt follows"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_with_a_rate_limit_gets_each_timer_and_merges_none() {
    let sink = hook().await;
    let limit = RateLimit { messages: 3, per: HOUR };
    let receiver = ReceiverConfig { rate_limit: Some(limit), ..webhook_to(sink.url(), None) };
    let world = World::new("unit", vec![receiver]).await;
    world.has_classes();
    let now = world.clock.now();
    for number in 0..5 {
        world.registers(&format!("timer-{number}"), if number < 3 { "report" } else { "once" }, now).await;
    }
    let ids: Vec<_> = (0..5).map(|number| format!("timer-{number}").parse().unwrap()).collect();
    let delivered = async || {
        let timers = world.timers.read(&ids).await.unwrap();
        timers.into_iter().flatten().filter(|timer| timer.state() == TimerState::Delivered).count()
    };
    for count in 3..=5 {
        until("the next one comes", async || {
            if count > 3 && sink.received().len() < count {
                world.clock.advance(Duration::from_secs(600));
            }
            sink.received().len() >= count
        })
        .await;
        // A clock that went on meanwhile would end the lease of the attempt.
        until("it is delivered", async || delivered().await >= count).await;
    }
    let told = told(&sink);
    assert!(told.len() == 5 && told.values().all(|times| *times == 1), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_of_another_instance_is_fired_when_it_is_overdue() {
    let sink = hook().await;
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    world.stop().await;
    // The other instance, which owns half of the partitions, does not run.
    let both = vec!["one".to_owned(), "two".to_owned()];
    let view = rollcall::fleet::ownership::View::new("one", both, world.engine.partitions());
    world.ownership = rollcall::fleet::Ownership::fixed(view);
    world.start();
    world.has_classes();
    let now = world.clock.now();
    for number in 0..20 {
        world.registers(&format!("timer-{number}"), "report", now).await;
    }
    let waiting = async || {
        let counts = world.timers.store().count_timers(&world.partitions()).await.unwrap();
        counts.values().sum::<u64>()
    };
    until("those of its own have fired", async || waiting().await < 20).await;
    world.clock.advance(Duration::from_secs(2));
    until("all have fired", async || waiting().await == 0).await;
}
