//! A receiver with a rate limit.

use std::collections::{BTreeMap, BTreeSet};

use rollcall::alerting::{LEASE, RateLimit};
use rollcall::fleet::Attempts;
use rollcall::fleet::Ownership;
use rollcall::fleet::ownership::View;
use rollcall::simulate::webhook_sink::{Answer, Received, WebhookSink};
use rollcall::store::{Attempt, AttemptResult, EntryOrder, StoredDeliveries};

use super::*;
use crate::services::configured;
use crate::world::{World, hook, listed, until};

fn limited(messages: usize, receiver: ReceiverConfig) -> ReceiverConfig {
    ReceiverConfig { rate_limit: Some(RateLimit { messages, per: HOUR }), ..receiver }
}

impl World {
    async fn waits(&self, count: usize) {
        let waiting = async || {
            StoredDeliveries::new(self.engine.clone()).waiting("hook", None).await.unwrap().waiting.len()
        };
        until("so many notifications wait", async || waiting().await == count).await;
    }

    async fn attempts(&self) -> Vec<Attempt> {
        let attempts = Attempts::new(self.engine.clone());
        let (from, until) = (Timestamp::ZERO, self.clock.now());
        let written = attempts.between(from, until, 10_000, EntryOrder::NewestFirst).await.unwrap();
        written.into_iter().flat_map(|one| one.attempts).collect()
    }
}

fn names(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| format!("{name}{at:02}")).collect()
}

fn strs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

async fn message(sink: &WebhookSink, number: usize) -> Received {
    sink.wait_for(number, MAX_WAIT).await.unwrap().remove(number - 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_room_is_one_message_with_the_last_state_of_each_unit_over_all_instances() {
    let sink = hook().await;
    let mut world = World::new("unit", vec![limited(3, webhook_to(sink.url(), None))]).await;
    world.stop().await;
    let both = || vec!["one".to_owned(), "two".to_owned()];
    world.ownership = Ownership::fixed(View::new("one", both(), world.engine.partitions()));
    world.start();
    let first = world.loops.take();
    world.ownership = Ownership::fixed(View::new("two", both(), world.engine.partitions()));
    world.start();
    for (number, unit) in [(1, "a"), (2, "b"), (3, "c")] {
        world.notify_loss(&[unit]).await;
        assert_eq!(listed(&message(&sink, number).await, "offline"), [unit], "there is room for it");
    }
    let lost = names("u", 30);
    world.notify_loss(&strs(&lost)).await;
    world.waits(30).await;
    let back = [&["a"][..], &strs(&lost)[..5]].concat();
    world.hear(&back).await;
    world.joined().await;
    world.advance(Duration::from_secs(60));
    world.waits(36).await;
    assert_eq!(sink.received().len(), 3, "there is no room");

    world.advance(HOUR);
    let digest = message(&sink, 4).await;
    assert_eq!(listed(&digest, "offline"), lost[5..]);
    assert_eq!(listed(&digest, "online"), back);
    assert_eq!(digest.json()["data"]["merged"], 36);
    world.waits(0).await;
    until("they are counted", async || {
        world.metric("rollcall_notifications_merged_total", &["hook"]) == 36.0
    })
    .await;
    // The end of each notification is on record.
    let attempts = world.attempts().await;
    let id = digest.header("webhook-id").strip_suffix(".hook").unwrap();
    let of_digest: BTreeMap<&str, &Attempt> = attempts
        .iter()
        .filter(|one| one.answer.starts_with(&format!("in digest {id}: 2")))
        .map(|one| (one.notification.as_str(), one))
        .collect();
    assert_eq!((of_digest.len(), attempts.len()), (36, 39));
    assert!(attempts.iter().all(|one| one.result == AttemptResult::Delivered && one.number == 1));
    // Operators find the notifications by the id that the receiver has.
    let hook = ["hook".to_owned()];
    let shown = world.deliveries().show(digest.header("webhook-id"), &hook).await.unwrap();
    let shown: BTreeSet<String> = shown.deliveries.into_iter().map(|line| line.id).collect();
    let expected: BTreeSet<String> = of_digest.keys().map(|id| format!("{id}.hook")).collect();
    assert_eq!(shown, expected);
    // Later notifications have room again: each gets a message.
    world.hear(&[&lost[6]]).await;
    world.joined().await;
    world.advance(Duration::from_secs(60));
    assert_eq!(listed(&message(&sink, 5).await, "online"), [lost[6].clone()]);
    world.stop().await;
    world.loops = first;
    world.stop().await;
    assert_eq!(
        StoredDeliveries::new(world.engine.clone()).waiting("hook", None).await.unwrap().waiting,
        [],
        "its end is recorded"
    );
    assert_eq!(sink.received().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_of_one_group_are_merged_as_well() {
    let sink = hook().await;
    let mut world = World::new("kind", vec![limited(1, webhook_to(sink.url(), None))]).await;
    let all = names("u", 4);
    for (at, unit) in all.iter().enumerate() {
        world.notify_loss(&[unit]).await;
        world.advance(Duration::from_secs(600));
        if at == 0 {
            message(&sink, 1).await;
        } else {
            world.waits(at).await;
        }
    }
    world.advance(HOUR);
    let digest = message(&sink, 2).await;
    assert_eq!(
        (listed(&digest, "offline"), &digest.json()["data"]["merged"]),
        (all[1..].to_vec(), &3.into())
    );
    world.waits(0).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_keeps_its_id_and_its_content_over_failures_and_a_crash() {
    let sink = hook().await;
    let mut world = World::new("unit", vec![limited(1, webhook_to(sink.url(), None))]).await;
    world.notify_loss(&["a"]).await;
    message(&sink, 1).await;
    let lost = names("u", 10);
    world.notify_loss(&strs(&lost)).await;
    world.waits(10).await;
    sink.answer_with([Answer::Status(503), Answer::Hang]);
    world.advance(HOUR);
    let refused = message(&sink, 2).await;
    until("that is on record", async || world.attempts().await.len() == 2).await;
    world.advance(HOUR);
    let unrecorded = message(&sink, 3).await;
    world.crash().await;
    sink.release();
    // Units that fall silent meanwhile are not part of the digest.
    world.start();
    world.notify_loss(&["x", "y"]).await;
    world.waits(12).await;
    world.advance(HOUR);
    let again = message(&sink, 4).await;
    for one in [&refused, &unrecorded, &again] {
        assert_eq!(listed(one, "offline"), lost);
        assert_eq!((one.header("webhook-id"), &one.body), (refused.header("webhook-id"), &refused.body));
    }
    world.waits(2).await;
    world.advance(HOUR);
    assert_eq!(listed(&message(&sink, 5).await, "offline"), ["x", "y"]);
    world.waits(0).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_digest_of_a_dead_instance_is_attempted_again_when_its_lease_is_over() {
    let sink = hook().await;
    let mut world = World::new("unit", vec![limited(2, webhook_to(sink.url(), None))]).await;
    for (number, unit) in [(1, "a"), (2, "b")] {
        world.notify_loss(&[unit]).await;
        message(&sink, number).await;
    }
    world.notify_loss(&strs(&names("u", 5))).await;
    world.waits(5).await;
    sink.answer_with([Answer::Hang]);
    world.advance(HOUR);
    let unanswered = message(&sink, 3).await;
    world.crash().await;
    sink.release();
    world.start();
    // Much less than the time that an attempt may take.
    world.advance(LEASE);
    let again = message(&sink, 4).await;
    assert_eq!(
        (again.header("webhook-id"), &again.body),
        (unanswered.header("webhook-id"), &unanswered.body)
    );
    assert_eq!(again.json()["data"]["merged"], 5);
    world.waits(0).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_that_was_attempted_keeps_its_id_beside_a_digest() {
    let sink = hook().await;
    let mut world = World::new("unit", vec![limited(2, webhook_to(sink.url(), None))]).await;
    world.notify_loss(&["b"]).await;
    message(&sink, 1).await;
    sink.answer_with([Answer::Status(503)]);
    world.notify_loss(&["a"]).await;
    let refused = message(&sink, 2).await;
    until("that is on record", async || world.attempts().await.len() == 2).await;
    let lost = names("u", 5);
    world.notify_loss(&strs(&lost)).await;
    world.waits(6).await;
    world.advance(HOUR);
    message(&sink, 4).await;
    let (repeat, digest): (Vec<_>, Vec<_>) =
        sink.received()[2..].iter().cloned().partition(|one| one.json()["data"]["merged"].is_null());
    assert_eq!(repeat[0].header("webhook-id"), refused.header("webhook-id"));
    assert_eq!((listed(&repeat[0], "offline"), listed(&digest[0], "offline")), (vec!["a".to_owned()], lost));
    world.waits(0).await;
    world.stop().await;
    assert_eq!(sink.received().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_that_fails_often_is_taken_apart_and_its_notifications_are_delivered_all_the_same() {
    let sink = hook().await;
    let mut world = World::new("unit", vec![limited(1, webhook_to(sink.url(), None))]).await;
    world.notify_loss(&["a"]).await;
    message(&sink, 1).await;
    world.notify_loss(&strs(&names("u", 3))).await;
    world.waits(3).await;
    sink.answer_with((0..5).map(|_| Answer::Status(413)));
    let mut told = BTreeSet::new();
    for number in 2..20 {
        world.advance(HOUR);
        let received = message(&sink, number).await;
        let attempted = || world.metric("rollcall_notifications_total", &["hook"]);
        until("its outcome is known", async || attempted() == number as f64).await;
        if number > 6 {
            told.extend(listed(&received, "offline"));
        }
        if told.len() == 3 {
            break;
        }
    }
    world.waits(0).await;
    let ids: BTreeSet<String> =
        sink.received()[1..6].iter().map(|one| one.header("webhook-id").to_owned()).collect();
    assert_eq!(ids.len(), 1);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pager_gets_each_event_by_itself_and_a_limit_delays_them() {
    let sink = hook().await;
    let options = "url = \"SINK/v2/enqueue\"\nrouting_key_file = \"routing_key\"";
    let options = format!("{options}\nrate_limit = {{ messages = 3, per = \"1h\" }}");
    let mut world = World::new("kind", vec![configured("pagerduty", &options, &sink)]).await;
    let lost = names("u", 7);
    world.notify_loss(&strs(&lost)).await;
    let so_far = || world.metric("rollcall_notifications_total", &["hook", "delivered"]);
    for count in [3, 6, 7] {
        message(&sink, count).await;
        assert!(sink.received().len() == count && (so_far() == 0.0 || count == 7));
        world.advance(HOUR);
    }
    world.waits(0).await;
    let keys: BTreeSet<String> =
        sink.received().iter().map(|one| one.json()["dedup_key"].as_str().unwrap().to_owned()).collect();
    assert_eq!((keys.len(), world.attempts().await.len()), (7, 1));
    world.stop().await;
}
