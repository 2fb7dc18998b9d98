//! Claims about unusual silences: receivers that ask for them are told once of each, and of its end; others are not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rollcall::alerting::Route;
use rollcall::presence::Heartbeat;
use rollcall::routing::parse_matchers;
use rollcall::simulate::webhook_sink::{Received, WebhookSink};
use rollcall::store::Table;
use serde_json::Value;

use super::silences::silence;
use super::world::{On, TIMEOUT, WAIT, World, hook, listed, named, unit, until};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// `hook` is notified of silences, `early` of unusual ones.
async fn world(on: On, hook: &WebhookSink, early: &WebhookSink) -> World {
    let receivers = vec![webhook_to(hook.url(), None), named("early", webhook_to(early.url(), None))];
    let mut world = World::on(on, "unit", receivers).await;
    world.config.route.receivers = vec!["hook".to_owned()];
    world.config.route.routes = vec![Route {
        matchers: parse_matchers("unusual=\"true\"").unwrap(),
        receivers: vec!["early".to_owned()],
        ..world.config.route.clone()
    }];
    world.stop().await;
    world.start();
    world
}

/// The units are heard every two seconds, so that a silence of five is unusual.
async fn teach(world: &World, ids: &[&str]) {
    for _ in 0..12 {
        world.clock.advance(2 * SECOND);
        let now = world.clock.now();
        world.roll.canary_returned(now).await.unwrap();
        let beats: Vec<Heartbeat> = ids.iter().map(|id| Heartbeat::of(unit(id), now)).collect();
        world.roll.hear(&beats, now).await.unwrap();
    }
}

/// Time passes, and all of it is heard.
async fn silent(world: &World, span: Duration) {
    world.pass(span).await;
    world.delivered("early").await;
    world.roll.canary_returned(world.clock.now()).await.unwrap();
}

/// Time passes in which these units are heard as usual.
async fn alive(world: &World, span: Duration, ids: &[&str]) {
    let end = world.clock.now() + span;
    while world.clock.now() < end {
        silent(world, 2 * SECOND).await;
        world.hear(ids).await;
    }
}

/// The notices: the unit and the stage of each.
async fn notices(world: &World) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for partition in world.partitions() {
        for (name, stored) in world.engine.all_cells(Table::Unusual, partition).await.unwrap() {
            let notice: Value = serde_json::from_slice(&stored).unwrap();
            found.insert(name, notice["stage"].as_str().unwrap().to_owned());
        }
    }
    found
}

/// Waits until there are exactly these notices: the unit and the stage of each.
async fn noticed(world: &World, expected: &[(&str, &str)]) {
    let expected: BTreeMap<String, String> =
        expected.iter().map(|(id, stage)| (unit(id).to_string(), (*stage).to_owned())).collect();
    until("the notices have come so far", async || notices(world).await == expected).await;
}

fn types(sink: &WebhookSink) -> Vec<String> {
    sink.received().iter().map(|one| one.json()["type"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_asks_is_told_once_of_an_unusual_silence_and_once_of_its_end() {
    for on in [On::Redis, On::Directory] {
        let (hook, early) = (hook().await, hook().await);
        let mut world = world(on, &hook, &early).await;
        teach(&world, &["g"]).await;
        silent(&world, 6 * SECOND).await;
        noticed(&world, &[("g", "lasts")]).await;
        silent(&world, 2 * WAIT).await;
        let told = early.wait_for(1, MAX_WAIT).await.unwrap().remove(0);
        assert_eq!(
            (types(&early), listed(&told, "offline")),
            (vec!["rollcall.unusual".to_owned()], vec!["g".to_owned()])
        );
        assert_eq!(told.json()["data"]["offline"][0]["cause"], "unusual");
        assert!(world.engine.records(true, None, 10).await.unwrap().is_empty(), "no record");

        // It is told once, also after a crash; then the unit is offline, of which others are notified as ever.
        world.crash().await;
        world.start();
        silent(&world, TIMEOUT).await;
        world.roll.check_deadlines(&[unit("g")], world.clock.now()).await.unwrap();
        world.joined().await;
        silent(&world, 2 * WAIT).await;
        let offline = hook.wait_for(1, MAX_WAIT).await.unwrap().remove(0);
        assert_eq!(offline.json()["data"]["offline"][0]["cause"], "silence");
        noticed(&world, &[("g", "lasts")]).await;
        assert_eq!(early.received().len(), 1);

        world.hear(&["g"]).await;
        noticed(&world, &[]).await;
        world.joined().await;
        alive(&world, 6 * WAIT, &["g"]).await;
        let back = early.wait_for(2, MAX_WAIT).await.unwrap().remove(1);
        assert_eq!((listed(&back, "offline"), listed(&back, "online")), (vec![], vec!["g".to_owned()]));
        hook.wait_for(2, MAX_WAIT).await.unwrap();
        assert_eq!(
            (types(&early), types(&hook)),
            (vec!["rollcall.unusual".to_owned(); 2], vec!["rollcall.notification".to_owned(); 2])
        );
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_notice_of_a_kind_that_is_gone_ends_after_an_hour_also_if_its_route_is_gone() {
    for has_route in [true, false] {
        let (hook, early) = (hook().await, hook().await);
        let mut world = world(On::Redis, &hook, &early).await;
        teach(&world, &["g"]).await;
        silent(&world, 6 * SECOND).await;
        noticed(&world, &[("g", "lasts")]).await;
        silent(&world, 2 * WAIT).await;
        early.wait_for(1, MAX_WAIT).await.unwrap();
        world.stop().await;
        world.configure("pump");
        if !has_route {
            world.config.route.routes.clear();
        }
        let kinds = || BTreeSet::from([unit("g").kind]);
        let (view, removed) = (world.ownership.view().clone(), world.removed_kinds.clone());
        let due =
            async || removed.due(kinds(), &*world.engine, &view, world.clock.now()).await.unwrap() == kinds();
        assert!(!due().await);
        world.clock.advance(HOUR - SECOND);
        assert!(!due().await, "a wrong file ends nothing");
        world.clock.advance(SECOND);
        world.start();
        noticed(&world, &[]).await;
        silent(&world, 6 * WAIT).await;
        let end = early.wait_for(2, MAX_WAIT).await.unwrap().remove(1);
        assert_eq!(listed(&end, "online"), ["g"]);
        assert_eq!(end.json()["data"]["online"][0]["closed_by"], "kind_removed");
        assert_eq!((early.received().len(), hook.received().len()), (2, 0));
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_dead_units_leave_room_for_the_notice_of_another() {
    let (hook, early) = (hook().await, hook().await);
    let mut world = world(On::Directory, &hook, &early).await;
    world.config.route.routes[0].group_by = vec!["kind".to_owned()];
    world.config.route.group_by = vec!["kind".to_owned()];
    world.stop().await;
    world.start();
    let names: Vec<String> = (0..1001).map(|number| format!("n{number}")).collect();
    let mut ids: Vec<&str> = names.iter().map(String::as_str).collect();
    ids.push("g");
    teach(&world, &ids).await;
    let is_full = || world.telemetry.problems().iter().any(|one| one.name == "unusual_full");
    // One of them is not told of while a thousand are silent. The other unit is heard, and learns no longer interval.
    alive(&world, 6 * SECOND, &["g"]).await;
    until("a thousand notices are all", async || notices(&world).await.len() == 1000).await;
    until("a problem says so", async || is_full()).await;
    // They go offline, and the notices of the thousand that are left take no room any more.
    alive(&world, TIMEOUT, &["g"]).await;
    let units: Vec<_> = names.iter().map(|name| unit(name)).collect();
    world.roll.check_deadlines(&units, world.clock.now()).await.unwrap();
    until("there is room", async || !is_full()).await;
    alive(&world, 2 * SECOND, &["g"]).await;
    silent(&world, 6 * SECOND).await;
    let name = unit("g").to_string();
    until("it has a notice", async || notices(&world).await.get(&name).is_some_and(|stage| stage == "lasts"))
        .await;
    silent(&world, 6 * WAIT).await;
    let of_g = |one: &Received| listed(one, "offline").contains(&"g".to_owned());
    assert!(early.received().iter().any(of_g), "it is told");
    // With it, more than a thousand are offline: the others keep their notices.
    world.roll.check_deadlines(&[unit("g")], world.clock.now()).await.unwrap();
    until("the newest thousand are left", async || notices(&world).await.len() == 1000).await;
    assert!(early.received().iter().all(|one| listed(one, "online").is_empty()), "none is back");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusual_silence_that_is_held_or_ends_in_time_is_not_told() {
    let (hook, early) = (hook().await, hook().await);
    let mut world = world(On::Redis, &hook, &early).await;
    teach(&world, &["g", "h"]).await;
    let added = silence(&world, "unit=g", HOUR).await;
    silent(&world, 6 * SECOND).await;
    noticed(&world, &[("h", "lasts")]).await;
    // The silence of alerts is over, and the unit is unusual still.
    world.silences.expire(added, "ana", world.clock.now()).await.unwrap();
    noticed(&world, &[("g", "lasts"), ("h", "lasts")]).await;
    // Both are heard within the wait of their groups.
    world.hear(&["g", "h"]).await;
    noticed(&world, &[]).await;
    alive(&world, 2 * WAIT, &["g", "h"]).await;
    assert_eq!((early.received().len(), hook.received().len()), (0, 0));
    world.stop().await;
}
