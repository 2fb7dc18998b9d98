//! Claims about receivers of escalations.

use std::time::Duration;

use rollcall::simulate::webhook_sink::WebhookSink;
use rollcall::store::{Again, Escalation};
use serde_json::Value;

use super::incidents::names;
use super::services::{actions, pager};
use super::world::{On, TIMEOUT, WAIT, World, hook, named};
use super::*;

/// A fleet that notifies `hook`, and a pager of what lasts for half an hour.
async fn escalating(on: On, group_by: &str, chat: &WebhookSink, calls: &WebhookSink) -> World {
    let mut world = World::on(on, group_by, vec![webhook_to(chat.url(), None)]).await;
    world.stop().await;
    let step = Escalation { after: HOUR / 2, receivers: vec!["pager".to_owned()] };
    world.config.route.again = Again { repeat: None, escalate: vec![step] };
    world.config.receivers.push(named("pager", pager(calls)));
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
        chat.wait_for(1, PATIENCE).await.unwrap();
        world.delivered("hook").await;
        world.advance(HOUR / 2);
        let first = calls.wait_for(1, PATIENCE).await.unwrap();
        world.delivered("pager").await;
        let page = keys(&first)[0].clone();
        assert!(page.as_str().unwrap().starts_with("incident:"), "{page}");
        assert_eq!(first[0].json()["payload"]["summary"], "OFFLINE: 7 of 8 units at site north");
        world.hear_at("north", &north[..7]).await;
        world.advance(60 * WAIT);
        calls.wait_for(2, PATIENCE).await.unwrap();
        world.delivered("pager").await;
        let received = calls.received();
        assert_eq!(actions(&received), ["trigger", "resolve"]);
        assert_eq!(keys(&received), [page.clone(), page]);
        world.stop().await;
    }
}
