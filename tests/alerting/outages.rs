//! Claims about the loops when the engine, Rollcall or a receiver dies, and
//! about the notifications of a silence and its return in every order of events.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;

use rollcall::simulate::webhook_sink::{Answer, WebhookSink};
use rollcall::store::{OutboxEntry, OutboxEvent};

use super::world::{WAIT, World, hook, listed, named, unit, until};
use super::*;
use ::redis;

/// Loops with one webhook.
async fn one_hook() -> (WebhookSink, World) {
    let sink = hook().await;
    let world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    (sink, world)
}

/// Puts entries into the outbox again, as if the engine had died before they were settled.
fn unsettle(world: &World, entries: &[OutboxEntry]) {
    let mut client = world.redis.client();
    for OutboxEntry { position, event } in entries {
        let OutboxEvent::Record(record) = event else { panic!("{event:?}") };
        let key = format!("rollcall:{{p{}}}:outbox", position.outbox);
        let json = serde_json::to_string(record).unwrap();
        redis::cmd("XADD").arg(key).arg(&["*", "record", &json]).exec(&mut client).unwrap();
    }
    world.outbox_grew.notify_one();
}

/// How often each unit is listed, as `offline` or `online`.
fn notified(sink: &WebhookSink, which: &str) -> BTreeMap<String, usize> {
    let mut ids: BTreeMap<String, String> = BTreeMap::new();
    let mut count = BTreeMap::new();
    for received in sink.received() {
        let (id, body) =
            (received.header("webhook-id").to_owned(), String::from_utf8_lossy(&received.body).into_owned());
        match ids.insert(id.clone(), body.clone()) {
            // A receiver recognises a repeated notification by its id.
            Some(before) => assert_eq!(before, body, "two notifications have the id {id}"),
            None => {
                for unit in listed(&received, which) {
                    *count.entry(unit).or_default() += 1;
                }
            }
        }
    }
    count
}

fn once_each(names: &[String]) -> BTreeMap<String, usize> {
    names.iter().map(|name| (name.clone(), 1)).collect()
}

/// Keeps all records from joining a group until the keys are removed: the keys of the members hold another type.
fn spoil_groups(world: &World) -> Vec<String> {
    let keys: Vec<String> =
        world.partitions().iter().map(|n| format!("rollcall:{{p{n}}}:cells:members")).collect();
    let mut client = world.redis.client();
    for key in &keys {
        redis::cmd("SET").arg(key).arg("something else").exec(&mut client).unwrap();
    }
    keys
}

#[tokio::test(flavor = "multi_thread")]
async fn blindness_that_the_engine_does_not_take_is_a_problem_and_is_written_again() {
    let (sink, mut world) = one_hook().await;
    world.stop().await;
    world.config.blind_after = HOUR;
    let asked = world.commands("outbox");
    world.start();
    // Blindness that began before the start would not be notified.
    until("alerting runs", async || world.commands("outbox") > asked).await;
    let keys = spoil_groups(&world);
    world.advance(2 * HOUR);
    let is_shown = async || world.telemetry.problems().iter().any(|one| one.text.contains("blindness"));
    until("the error is a problem", is_shown).await;
    redis::cmd("DEL").arg(keys).exec(&mut world.redis.client()).unwrap();
    until("it is taken", async || !is_shown().await).await;
    world.advance(WAIT);
    let is_blind = async || sink.received().iter().any(|one| one.json()["type"] == "rollcall.blind");
    until("operators are notified", is_blind).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_cannot_join_yet_are_not_settled() {
    let (sink, world) = one_hook().await;
    let groups = spoil_groups(&world);
    let mut client = world.redis.client();
    world.lose(&["a"]).await;
    let tried = world.commands("read_cells");
    until("it was tried again", async || world.commands("read_cells") > tried + 1).await;
    let waiting = world.engine.outbox(&world.outboxes(), 10).await.unwrap();
    assert_eq!(waiting.len(), 1, "it waits in the outbox");
    redis::cmd("DEL").arg(groups).exec(&mut client).unwrap();
    world.joined().await;
    world.advance(WAIT);
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    world.delivered("hook").await;
    assert_eq!(notified(&sink, "offline"), once_each(&["a".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_joins_again_after_a_lost_settle_is_notified_once() {
    let (sink, mut world) = one_hook().await;
    world.stop().await;
    world.lose(&["a"]).await;
    let silence = world.engine.outbox(&world.outboxes(), 10).await.unwrap();
    world.start();
    world.joined().await;
    unsettle(&world, &silence);
    world.joined().await;
    world.advance(WAIT);
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    world.delivered("hook").await;
    unsettle(&world, &silence);
    world.joined().await;

    world.stop().await;
    world.hear(&["a"]).await;
    let back = world.engine.outbox(&world.outboxes(), 10).await.unwrap();
    world.start();
    world.joined().await;
    unsettle(&world, &[silence, back.clone()].concat());
    world.joined().await;
    world.advance(5 * WAIT);
    sink.wait_for(2, MAX_WAIT).await.unwrap();
    world.delivered("hook").await;
    unsettle(&world, &back);
    world.joined().await;

    world.lose(&["b"]).await;
    world.joined().await;
    world.advance(5 * WAIT);
    let received = sink.wait_for(3, MAX_WAIT).await.unwrap();
    assert_eq!((listed(&received[2], "offline"), listed(&received[2], "online")), (vec!["b".into()], vec![]));
    assert_eq!(notified(&sink, "offline"), once_each(&["a".into(), "b".into()]));
    assert_eq!(notified(&sink, "online"), once_each(&["a".into()]));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_dies_during_a_delivery_causes_no_second_notification() {
    let (sink, mut world) = one_hook().await;
    sink.answer_with([Answer::Hang]);
    world.notify_loss(&["a"]).await;
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    world.redis.kill();
    sink.release();
    let down = async || world.metric("rollcall_engine_up", &[]) == 0.0;
    until("it is noticed that the engine is away", down).await;
    world.redis.restart();
    world.delivered("hook").await;
    world.advance(HOUR);
    world.notify_loss(&["b"]).await;
    let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
    assert_eq!(listed(&received[1], "offline"), ["b"]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_could_not_be_extended_is_no_problem_once_its_delivery_has_ended() {
    let (sink, mut world) = one_hook().await;
    sink.answer_with([Answer::Hang]);
    world.notify_loss(&["a"]).await;
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    world.redis.kill();
    world.advance(Duration::from_secs(1));
    // These problems follow from the engine, which is down.
    let is_named = |what: &str| {
        let problems = world.telemetry.problems();
        let texts =
            problems.iter().flat_map(|one| one.consequences.iter().map(|of| &of.text).chain([&one.text]));
        texts.into_iter().any(|text| text.contains(what))
    };
    until("its lease cannot be extended", async || is_named("leases of hook")).await;
    sink.release();
    until("its end cannot be recorded", async || is_named("ends of hook")).await;
    world.redis.restart();
    world.delivered("hook").await;
    until("nothing is left of it", async || !is_named("of hook")).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_during_which_everything_dies_is_repeated_with_the_same_id() {
    let (sink, mut world) = one_hook().await;
    sink.answer_with([Answer::Hang]);
    world.notify_loss(&["a"]).await;
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    world.crash().await;
    world.redis.restart();
    sink.release();
    world.start();
    // No other instance gets the delivery before the lease of the dead one ends.
    world.advance(HOUR);
    let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
    assert_eq!(received[0].header("webhook-id"), received[1].header("webhook-id"));
    assert_eq!(received[0].body, received[1].body);
    world.delivered("hook").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_killed_again_and_again_loses_no_silence_and_notifies_none_twice() {
    let sink = hook().await;
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    let names: Vec<String> = (0..300).map(|n| format!("u{n:03}")).collect();
    world.stop().await;
    world.lose(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    world.start();
    // Each kill hits the loops at another step: joining, sealing, leasing, delivering.
    for part in 1..=6 {
        world.redis.restart();
        let more = async || {
            world.advance(Duration::from_millis(100));
            notified(&sink, "offline").len() >= names.len() * part / 6
        };
        until("more are delivered", more).await;
    }
    assert_eq!(notified(&sink, "offline"), once_each(&names));
    world.delivered("hook").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_return_is_never_notified_before_its_silence() {
    let (sink, mut world) = one_hook().await;
    sink.answer_with(vec![Answer::Status(500); 3]);
    world.notify_loss(&["a"]).await;
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    world.hear(&["a"]).await;
    world.joined().await;
    for attempts in 2..=4 {
        let retried = async || {
            world.metric("rollcall_notifications_total", &["hook", "retry"]) == (attempts - 1) as f64
        };
        until("the attempt is over", retried).await;
        world.advance(HOUR);
        sink.wait_for(attempts, MAX_WAIT).await.unwrap();
    }
    let received = sink.wait_for(5, MAX_WAIT).await.unwrap();
    for silence in &received[..4] {
        assert_eq!((listed(silence, "offline").len(), listed(silence, "online").len()), (1, 0));
    }
    assert_eq!((listed(&received[4], "offline").len(), listed(&received[4], "online").len()), (0, 1));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_return_of_a_silence_in_a_dead_letter_does_not_go_to_that_receiver() {
    let (picky, other) = (hook().await, hook().await);
    picky.answer_with([Answer::Status(410)]);
    let receivers =
        vec![named("picky", webhook_to(picky.url(), None)), named("other", webhook_to(other.url(), None))];
    let mut world = World::new("kind", receivers).await;
    world.notify_loss(&["a"]).await;
    world.dead("picky", 1).await;
    // The receiver is disabled until a restart.
    world.stop().await;
    world.start();
    world.hear(&["a"]).await;
    world.joined().await;
    world.advance(5 * WAIT);
    assert_eq!(listed(&other.wait_for(2, MAX_WAIT).await.unwrap()[1], "online"), ["a"]);
    world.delivered("picky").await;
    let unnotified = async || {
        let mut client = world.redis.client();
        let keys: Vec<String> =
            ::redis::cmd("KEYS").arg("rollcall:{p*}:cells:unnotified:picky").query(&mut client).unwrap();
        keys.len()
    };
    until("nothing is kept of what is over", async || unnotified().await == 0).await;
    // Both receivers get the next silence of the same unit, and its return.
    world.notify_loss(&["a"]).await;
    world.advance(5 * WAIT);
    assert_eq!(listed(&picky.wait_for(2, MAX_WAIT).await.unwrap()[1], "offline"), ["a"]);
    world.hear(&["a"]).await;
    world.joined().await;
    world.advance(5 * WAIT);
    assert_eq!(listed(&picky.wait_for(3, MAX_WAIT).await.unwrap()[2], "online"), ["a"]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_in_one_group_is_one_notification_that_lists_them_all() {
    let (sink, mut world) = one_hook().await;
    let names: Vec<String> = (0..6000).map(|n| format!("u{n:04}")).collect();
    world.notify_loss(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let received = sink.wait_for(1, MAX_WAIT).await.unwrap();
    let body = received[0].json();
    assert_eq!(listed(&received[0], "offline"), names, "each once");
    assert_eq!(body["data"]["truncated"], 0);
    assert_eq!(body["data"]["still_offline"], 6000);
    world.delivered("hook").await;
    assert_eq!(sink.received().len(), 1);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silence_that_was_taken_back_and_holds_after_all_is_notified_again() {
    let (sink, mut world) = one_hook().await;
    world.notify_loss(&["a"]).await;
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    // The timeout is longer for a while, and then the old one again: the deadline is the same.
    for (timeout, which, count) in [(Some(HOUR), "online", 2), (None, "offline", 3)] {
        let set = rollcall::presence::Override { timeout, grace: None };
        let wanted = rollcall::presence::Registration { set, ..Default::default() };
        assert!(world.roll.register(&unit("a"), &wanted, world.clock.now()).await.unwrap());
        world.roll.check_deadlines(&[unit("a")], world.clock.now()).await.unwrap();
        world.joined().await;
        world.delivered("hook").await;
        world.advance(5 * WAIT);
        world.roll.canary_returned(world.clock.now()).await.unwrap();
        assert_eq!(listed(&sink.wait_for(count, MAX_WAIT).await.unwrap()[count - 1], which), ["a"]);
    }
    let received = sink.received();
    assert_ne!(
        received[0].header("webhook-id"),
        received[2].header("webhook-id"),
        "it is another notification"
    );
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_outbox_entry_is_quarantined_and_delays_no_other() {
    let (sink, mut world) = one_hook().await;
    let mut client = world.redis.client();
    let (outbox, quarantine) = ("rollcall:{p3}:outbox", "rollcall:{p3}:outbox:unreadable");
    redis::cmd("XADD").arg(outbox).arg(&["*", "record", "{"]).exec(&mut client).unwrap();
    redis::cmd("XADD").arg(outbox).arg(&["*", "strange", "\u{1}", "more", ""]).exec(&mut client).unwrap();
    world.notify_loss(&["a", "b", "c"]).await;
    assert_eq!(listed(&sink.wait_for(1, MAX_WAIT).await.unwrap()[0], "offline"), ["a", "b", "c"]);
    // An entry that two readers read at the same moment, as the loops and this world do, is kept twice and never lost.
    type Kept = Vec<(String, Vec<Vec<u8>>)>;
    let kept: Kept = redis::cmd("XRANGE").arg(quarantine).arg("-").arg("+").query(&mut client).unwrap();
    let kept: BTreeSet<_> = kept.into_iter().map(|(_, fields)| fields).collect();
    let fields = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    assert_eq!(kept, [fields(&["record", "{"]), fields(&["strange", "\u{1}", "more", ""])].into());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_notification_delays_its_own_group_and_no_other() {
    let sink = hook().await;
    sink.answer_with(vec![Answer::Status(500); 2]);
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["a", "b"]).await;
    let retried = async || world.metric("rollcall_notifications_total", &["hook", "retry"]) == 2.0;
    until("both attempts are over", retried).await;
    let mut client = world.redis.client();
    let damaged = sink.received()[0].header("webhook-id").trim_end_matches(".hook").to_owned();
    let stays = listed(&sink.received()[1], "offline");
    let keys: Vec<String> =
        redis::cmd("KEYS").arg("rollcall:*:cells:notifications").query(&mut client).unwrap();
    for key in keys {
        if redis::cmd("HEXISTS").arg(&key).arg(&damaged).query(&mut client).unwrap() {
            redis::cmd("HSET").arg(&key).arg(&damaged).arg("garbage").exec(&mut client).unwrap();
        }
    }
    world.advance(HOUR);
    assert_eq!(listed(&sink.wait_for(3, MAX_WAIT).await.unwrap()[2], "offline"), stays);
    world.stop().await;
}
