//! Claims about receivers that are notified after others: those of escalations, and fallbacks.

use std::time::Duration;

use rollcall::alerting::Fallback;
use rollcall::presence::Recoveries;
use rollcall::simulate::servers::free_port;
use rollcall::simulate::webhook_sink::WebhookSink;
use rollcall::store::{Escalation, FollowUps, StoredDeliveries};
use serde_json::Value;

use super::incidents::{names, open_pages};
use super::services::{actions, pager};
use super::world::{On, TIMEOUT, WAIT, World, hook, named, until};
use super::*;

const MINUTE: Duration = Duration::from_secs(60);

/// A fleet that notifies `hook`, and a pager of silences that last for half an hour.
async fn escalating(on: On, group_by: &str, chat: &WebhookSink, calls: &WebhookSink) -> World {
    let mut world = World::on(on, group_by, vec![webhook_to(chat.url(), None)]).await;
    world.stop().await;
    let step = Escalation { after: HOUR / 2, receivers: vec!["pager".to_owned()] };
    world.config.route.again = FollowUps { repeat: None, escalate: vec![step] };
    world.config.receivers.push(named("pager", pager(calls)));
    world.start();
    world
}

/// A fleet that notifies `hook`, which takes nothing, and after ten minutes a pager in its place.
async fn falling_back(on: On, calls: &WebhookSink) -> World {
    let port = free_port().unwrap();
    let fallback = Some(Fallback { receiver: "pager".to_owned(), after: 10 * MINUTE });
    let down = ReceiverConfig { fallback, ..webhook_to(format!("http://127.0.0.1:{port}/hook"), None) };
    let mut world = World::on(on, "unit", vec![down, named("pager", pager(calls))]).await;
    world.stop().await;
    world.config.route.receivers = vec!["hook".to_owned()];
    world.start();
    world
}

/// The keys of the alerts of these requests.
fn keys(received: &[rollcall::simulate::webhook_sink::Received]) -> Vec<Value> {
    received.iter().map(|one| one.json()["dedup_key"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incident_that_is_escalated_is_one_page_and_its_end_closes_it() {
    for on in [On::Redis, On::Directory] {
        let (chat, calls) = (hook().await, hook().await);
        let mut world = escalating(on, "site", &chat, &calls).await;
        let north = names("north", 8);
        world.hear_at("north", &north).await;
        world.advance(TIMEOUT / 2);
        world.hear_at("north", &north[7..]).await;
        world.advance(TIMEOUT / 2 + Duration::from_secs(1));
        world.check(&north).await;
        world.advance(2 * WAIT);
        chat.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("hook").await;
        world.advance(HOUR / 2);
        let first = calls.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("pager").await;
        let page = keys(&first)[0].clone();
        assert!(page.as_str().unwrap().starts_with("incident:"), "{page}");
        assert_eq!(first[0].json()["payload"]["summary"], "OFFLINE: 7 of 8 units at site north");
        world.hear_at("north", &north[..7]).await;
        world.advance(60 * WAIT);
        calls.wait_for(2, MAX_WAIT).await.unwrap();
        world.delivered("pager").await;
        let received = calls.received();
        assert_eq!(actions(&received), ["trigger", "resolve"]);
        assert_eq!(keys(&received), [page.clone(), page]);
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pager_that_knows_of_a_part_of_an_incident_closes_its_alert_with_the_last_unit_of_that_part() {
    for on in [On::Redis, On::Directory] {
        let (chat, calls) = (hook().await, hook().await);
        let mut world = escalating(on, "site", &chat, &calls).await;
        let north = names("north", 8);
        world.hear_at("north", &north).await;
        world.advance(TIMEOUT + Duration::from_secs(1));
        world.check(&north[..6]).await;
        world.advance(2 * WAIT);
        chat.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("hook").await;
        world.advance(HOUR / 2);
        calls.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("pager").await;
        // A unit of which the pager is not notified before those that it knows of are back.
        world.check(&north[6..7]).await;
        world.advance(2 * WAIT);
        chat.wait_for(2, MAX_WAIT).await.unwrap();
        world.delivered("hook").await;
        world.hear_at("north", &north[..6]).await;
        world.advance(60 * WAIT);
        chat.wait_for(3, MAX_WAIT).await.unwrap();
        world.delivered("pager").await;
        assert_eq!(actions(&calls.received()), ["trigger", "resolve"], "{on:?}");
        assert_eq!(open_pages(&calls).len(), 0);
        let incident = chat.received()[2].json()["data"]["incident"].clone();
        assert_eq!((&incident["still_offline"], &incident["until"]), (&1.into(), &Value::Null));
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_reaches_a_pager_that_knows_of_the_unit_by_escalation() {
    for on in [On::Redis, On::Directory] {
        let (chat, calls) = (hook().await, hook().await);
        let mut world = escalating(on, "unit", &chat, &calls).await;
        world.notify_loss(&["a"]).await;
        chat.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("hook").await;
        world.advance(HOUR / 2);
        calls.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("pager").await;
        world.acknowledge("a").await;
        let received = calls.wait_for(2, MAX_WAIT).await.unwrap();
        assert_eq!(actions(&received), ["trigger", "acknowledge"]);
        assert_eq!(keys(&received)[0], keys(&received)[1]);
        world.stop().await;
        assert_eq!(chat.received().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_reaches_a_pager_that_knows_of_the_unit_as_a_fallback() {
    for on in [On::Redis, On::Directory] {
        let calls = hook().await;
        let mut world = falling_back(on, &calls).await;
        world.notify_loss(&["a"]).await;
        for attempts in 1..=3 {
            let failures = || world.metric("rollcall_notifications_total", &["hook", "retry"]);
            until("an attempt fails", async || failures() >= f64::from(attempts)).await;
            let now = world.clock.now();
            let is_down = async || {
                StoredDeliveries::new(world.engine.clone()).down_since("hook", now).await.unwrap() <= now
            };
            until("that is known", is_down).await;
            world.advance(6 * MINUTE);
        }
        calls.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("pager").await;
        world.acknowledge("a").await;
        let received = calls.wait_for(2, MAX_WAIT).await.unwrap();
        assert_eq!(actions(&received), ["trigger", "acknowledge"]);
        assert_eq!(keys(&received)[0], keys(&received)[1]);
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_of_an_escalation_hears_of_no_return_while_the_unit_is_offline_again() {
    for on in [On::Redis, On::Directory] {
        let (chat, calls) = (hook().await, hook().await);
        let mut world = escalating(on, "unit", &chat, &calls).await;
        world.stop().await;
        world.config.route.pace.recoveries = Recoveries::After(10 * WAIT);
        world.start();
        world.notify_loss(&["a"]).await;
        chat.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("hook").await;
        world.advance(HOUR / 2);
        calls.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("pager").await;
        // Unit a falls silent again before its return is notified.
        world.hear(&["a"]).await;
        world.joined().await;
        world.lose(&["a"]).await;
        world.joined().await;
        world.advance(12 * WAIT);
        let received = calls.wait_for(3, MAX_WAIT).await.unwrap();
        assert_eq!(actions(&received), ["trigger", "trigger", "resolve"]);
        let keys = keys(&received);
        assert_eq!((&keys[0], keys[1] == keys[0]), (&keys[2], false), "the first silence is over");
        world.delivered("pager").await;
        // The second silence is not escalated again, and its return closes it.
        world.advance(HOUR);
        world.hear(&["a"]).await;
        world.joined().await;
        world.advance(12 * WAIT);
        let received = calls.wait_for(4, MAX_WAIT).await.unwrap();
        assert_eq!(actions(&received)[3..], ["resolve"]);
        assert_eq!(received[3].json()["dedup_key"], keys[1]);
        world.stop().await;
        assert_eq!(calls.received().len(), 4);
    }
}

/// A fleet whose route neither reminds nor escalates, in which `a` is offline and `hook` knows of it.
async fn with_a_loss_before_any_follow_up(
    on: On,
    group_by: &str,
    chat: &WebhookSink,
    calls: &WebhookSink,
) -> World {
    let mut world = World::on(on, group_by, vec![webhook_to(chat.url(), None)]).await;
    world.stop().await;
    world.config.receivers.push(named("pager", pager(calls)));
    world.start();
    world.notify_loss(&["a"]).await;
    chat.wait_for(1, MAX_WAIT).await.unwrap();
    world.delivered("hook").await;
    world
}

/// When a group is looked at for a reminder or an escalation.
async fn first_look(world: &World) -> Option<Timestamp> {
    world.groups().first_reminder(&world.partitions()).await.unwrap()
}

/// Changes the routes as a reload does. Waits until the groups are looked at as soon as the new routes say.
async fn change(world: &mut World, again: FollowUps) {
    world.stop().await;
    let first = again.first().unwrap();
    world.config.route.again = again;
    world.start();
    let is_applied = async || {
        let next = first_look(world).await;
        next.is_none_or(|next| next > world.clock.now() && next <= world.clock.now() + first)
    };
    until("the routes are applied", is_applied).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_escalation_reaches_silences_that_were_notified_before_it() {
    for (on, group_by) in [On::Redis, On::Directory].into_iter().flat_map(|on| [(on, "unit"), (on, "kind")]) {
        let (chat, calls) = (hook().await, hook().await);
        let mut world = with_a_loss_before_any_follow_up(on, group_by, &chat, &calls).await;
        let step = Escalation { after: 10 * MINUTE, receivers: vec!["pager".to_owned()] };
        let again = FollowUps { repeat: None, escalate: vec![step] };
        change(&mut world, again.clone()).await;
        until("the escalation is planned", async || first_look(&world).await.is_some()).await;
        world.advance(11 * MINUTE);
        calls.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("pager").await;
        // The pager is told of the return, and once of the silence, however often the routes are read.
        change(&mut world, again).await;
        world.hear(&["a"]).await;
        world.joined().await;
        world.advance(60 * WAIT);
        calls.wait_for(2, MAX_WAIT).await.unwrap();
        world.delivered("pager").await;
        assert_eq!(actions(&calls.received()), ["trigger", "resolve"], "{on:?} {group_by}");
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_repeat_interval_reaches_silences_that_were_notified_before_it() {
    for on in [On::Redis, On::Directory] {
        let (chat, calls) = (hook().await, hook().await);
        let mut world = with_a_loss_before_any_follow_up(on, "kind", &chat, &calls).await;
        let every = |interval: Duration| FollowUps { repeat: Some(interval), escalate: Vec::new() };
        change(&mut world, every(4 * HOUR)).await;
        until("a reminder is planned", async || first_look(&world).await.is_some()).await;
        world.advance(20 * MINUTE);
        change(&mut world, every(30 * MINUTE)).await;
        world.advance(11 * MINUTE);
        let received = chat.wait_for(2, MAX_WAIT).await.unwrap();
        assert_eq!(received[1].json()["data"]["reminder"], true);
        world.delivered("hook").await;
        // The same routes, read again, remind no sooner.
        change(&mut world, every(30 * MINUTE)).await;
        world.advance(20 * MINUTE);
        world.pass(WAIT).await;
        assert_eq!(chat.received().len(), 2);
        world.advance(10 * MINUTE);
        chat.wait_for(3, MAX_WAIT).await.unwrap();
        world.delivered("hook").await;
        world.stop().await;
        assert_eq!(chat.received().len(), 3);
    }
}
