//! Common complaints about such monitors, each as a claim that it does not happen here.

use std::time::Duration;

use rollcall::simulate::webhook_sink::Answer;

use crate::world::{Plan, TIMEOUT, World, crowd, now};

const SECOND: Duration = Duration::from_secs(1);

/// A kind with a longer timeout than any case takes.
const LONG: &str = "[[kind]]\nname = \"slow\"\ntimeout = \"20s\"\ntopics = [\"slow/{unit}/heartbeat\"]";

on_both_engines! {
    an_alert_is_not_lost_between_the_decision_and_the_sending
    an_alert_whose_receiver_fails_for_a_while_arrives_under_the_same_id
    the_monitors_own_outage_is_no_mass_offline
    a_device_that_dies_during_a_total_outage_is_reported_afterwards
    a_long_timeout_does_not_start_from_zero_at_each_restart
    a_restart_brings_no_spike_of_old_alerts
}

async fn an_alert_is_not_lost_between_the_decision_and_the_sending(plan: Plan) {
    // The receiver hangs; the delivering instance dies during the attempt.
    let mut world = World::new(Plan { units: 20, ..plan }).await;
    world.sink.answer_with(std::iter::repeat_n(Answer::Hang, 3));
    world.fleet.silence("unit-000");
    let before = world.sink.received().len();
    world.eventually("a delivery is under way", async |world| world.sink.received().len() > before).await;
    let mark = world.disturb();
    world.instances[0].kill();
    world.sink.answer_with([]);
    world.sink.release();
    world.instances[0].start();
    world.disturbed_since(mark);
    // Sent again under the same id, which the oracle checks.
    let again = async |world: &World| {
        world.notified_records().iter().filter(|notified| notified.record.unit.as_str() == "unit-000").count()
            >= 2
    };
    world.eventually("it is repeated", again).await;
    world.rests().await;
}

async fn an_alert_whose_receiver_fails_for_a_while_arrives_under_the_same_id(plan: Plan) {
    let mut world = World::new(Plan { units: 40, ..plan }).await;
    let mut answers = vec![Answer::Status(500), Answer::Status(503), Answer::Status(429), Answer::Hang];
    answers.push(Answer::RetryAfter(503, "1".to_owned()));
    world.sink.answer_with(answers);
    world.live(2 * TIMEOUT);
    world.rests().await;
    let received = world.sink.received();
    let first = received[0].header("webhook-id");
    assert!(received[1..].iter().any(|again| again.header("webhook-id") == first), "it was tried again");
}

async fn the_monitors_own_outage_is_no_mass_offline(plan: Plan) {
    // The monitor is down for three timeouts, and no unit is silent.
    let mut world = World::new(plan).await;
    let mark = world.disturb();
    world.instances[0].kill();
    world.redis.kill();
    world.pass(3 * TIMEOUT).await;
    world.redis.restart();
    world.instances[0].start();
    world.disturbed_since(mark);
    world.ready().await;
    world.pass(2 * TIMEOUT).await;
    assert_eq!(world.records_of_the_living().await, []);
    world.rests().await;
}

async fn a_device_that_dies_during_a_total_outage_is_reported_afterwards(plan: Plan) {
    let mut world = World::new(Plan { units: 40, ..plan }).await;
    let mark = world.disturb();
    world.instances[0].kill();
    world.redis.kill();
    world.kill_broker();
    for unit in ["unit-001", "unit-002", "unit-003"] {
        world.fleet.silence(unit);
    }
    world.pass(2 * TIMEOUT).await;
    world.start_broker();
    world.redis.restart();
    world.instances[0].start();
    world.broker_away_since(mark);
    world.rests().await;
    let dead: Vec<String> =
        world.notified_records().iter().map(|notified| notified.record.unit.to_string()).collect();
    for unit in ["unit-001", "unit-002", "unit-003"] {
        assert!(dead.iter().any(|dead| dead == unit), "{unit} was reported: {dead:?}");
    }
}

async fn a_long_timeout_does_not_start_from_zero_at_each_restart(plan: Plan) {
    let options = LONG.to_owned();
    let mut world = World::new(Plan { units: 10, kinds: options, ..plan }).await;
    world.fleet.join("turtle", "slow/turtle/heartbeat");
    let spoke =
        async |world: &World| world.fleet.devices().last().is_some_and(|turtle| turtle.beats.len() >= 2);
    world.eventually("the turtle has spoken", spoke).await;
    world.fleet.silence("turtle");
    let began = now();
    // Times that the embedded engine had not written yet are blind, too.
    let forgotten = if world.plan.embedded { 2 * SECOND } else { Duration::ZERO };
    let (mut blind, mut restarts) = (Duration::ZERO, 0);
    let found = async |world: &World| {
        let records = world.records().await.unwrap_or_default();
        records.into_iter().find(|record| record.kind.as_str() == "slow")
    };
    let record = loop {
        if let Some(record) = found(&world).await {
            break record;
        }
        assert!(restarts < 60, "it starts from zero at each of {restarts} restarts");
        let mark = now();
        world.instances[0].kill();
        world.instances[0].start();
        world.ready().await;
        blind += now().since(mark) + forgotten;
        restarts += 1;
        world.pass(2 * SECOND).await;
    };
    assert!(restarts >= 3, "it was restarted within the timeout");
    let timeout = Duration::from_secs(20);
    let shown = format!("{record:?}, {restarts} restarts, blind for at most {blind:?}");
    // The last heartbeat may have been under way.
    let heard = began + SECOND;
    assert!(record.last_seen <= heard && record.deadline.since(record.last_seen) >= timeout, "{shown}");
    // Blind time counts once, and after it a unit has at most one more timeout.
    assert!(record.deadline.since(record.last_seen) <= timeout + 2 * blind + 2 * SECOND, "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_moves_is_one_device_and_its_old_place_does_not_alarm() {
    let mut world = World::new(Plan::new(3)).await;
    for round in 0..4 {
        for unit in ["unit-000", "unit-001", "unit-002"] {
            world.fleet.with(unit, |device| device.topic = format!("sites/{round}/{unit}/heartbeat"));
        }
        world.pass(TIMEOUT / 2).await;
    }
    // The unit moves while an instance that heard it at its old place is frozen.
    let mark = world.disturb();
    world.instances[0].freeze();
    world.fleet.with("unit-000", |device| device.topic = "sites/last/unit-000/heartbeat".to_owned());
    world.pass(2 * TIMEOUT).await;
    world.instances[0].thaw();
    world.disturbed_since(mark);
    world.fleet.silence("unit-000");
    world.rests().await;
    let notified_records = world.notified_records();
    let found = notified_records
        .iter()
        .find(|notified| notified.record.unit.as_str() == "unit-000")
        .expect("it died");
    assert_eq!(found.record.labels.get("site").map(String::as_str), Some("last"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_at_exactly_now_is_not_yet_passed() {
    // A fleet that is due within a few milliseconds is checked by three instances at once: the oracle fails if any
    // unit is found too early.
    let mut world = World::new(Plan::new(3)).await;
    for unit in 0..100 {
        world.fleet.silence(&format!("unit-{unit:03}"));
    }
    world.rests().await;
    let records = world.redis.records().await.expect("it answers");
    assert!(records.len() >= 100);
    assert!(records.iter().all(|record| record.detected_at > record.deadline));
}

async fn a_restart_brings_no_spike_of_old_alerts(plan: Plan) {
    let mut world = World::new(plan).await;
    for unit in 0..60 {
        world.fleet.silence(&format!("unit-{unit:03}"));
    }
    world.agrees().await;
    world.eventually("nothing waits", async |world| world.waiting().await == Some(0)).await;
    // Count only the dead units: a busy machine may silence another one.
    let notified_of_the_dead = |world: &World| {
        let is_dead = |unit: &str| unit < "unit-060";
        world.notified_records().iter().filter(|notified| is_dead(notified.record.unit.as_str())).count()
    };
    let count = notified_of_the_dead(&world);
    for _ in 0..3 {
        let mark = world.disturb();
        world.instances[0].kill();
        world.redis.restart();
        world.instances[0].start();
        world.ready().await;
        world.disturbed_since(mark);
    }
    world.pass(TIMEOUT).await;
    assert_eq!(notified_of_the_dead(&world), count, "every known silence was notified before");
    world.rests().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_that_fall_silent_at_once_have_a_record_each_and_none_is_notified_twice() {
    // The number that a debug build notifies within a minute on a busy machine.
    const MANY: usize = 20_000;
    let mut world = World::new(Plan { units: 40, ..Plan::new(3) }).await;
    crowd::fill(&world, 0, MANY, now()).await;
    crowd::all_are_notified_once(&world, 0, MANY).await;
    world.rests().await;
}
