//! Claims about silences that wait, or that last, while the routes are changed.

use std::sync::Arc;

use rollcall::alerting::Route;
use rollcall::routing::{RouteTimes, TimeInterval, parse_matchers, zone};
use rollcall::simulate::webhook_sink::WebhookSink;
use rollcall::store::{Escalation, FollowUps};

use super::world::{On, WAIT, World, hook, listed, named};
use super::*;

/// A route with these matchers below the root, and below it a route with its own matchers and receivers.
fn below(root: &Route, above: &str, own: &str, receivers: &[&str], times: &RouteTimes) -> Route {
    let matchers = parse_matchers(own).unwrap();
    let receivers = receivers.iter().map(|name| (*name).to_owned()).collect();
    let own = Route { matchers, receivers, times: times.clone(), ..root.clone() };
    let above = Route { matchers: parse_matchers(above).unwrap(), routes: vec![own], ..root.clone() };
    Route { routes: vec![above], ..root.clone() }
}

/// The times of a route that is always muted.
pub fn always() -> RouteTimes {
    let time = TimeInterval {
        name: "always".to_owned(),
        times: vec![],
        weekdays: vec![],
        days_of_month: vec![],
        months: vec![],
        years: vec![],
        zone: zone("UTC").unwrap(),
    };
    RouteTimes { mute: vec![Arc::new(time)], active: vec![] }
}

/// A fleet with the receivers `hook`, `new` and `boss`; the root notifies `hook`.
async fn fleet(on: On, sinks: [&WebhookSink; 3]) -> World {
    let [first, new, boss] = sinks.map(|sink| webhook_to(sink.url(), None));
    let mut world = World::on(on, "unit", vec![first, named("new", new), named("boss", boss)]).await;
    world.stop().await;
    world.config.route.receivers = vec!["hook".to_owned()];
    world
}

/// What a sink was notified of: `off` for a silence, `again` for a reminder, `on` for a return.
fn heard(sink: &WebhookSink) -> Vec<&'static str> {
    let what = |received: &_| match (listed(received, "offline").len(), &received.json()["data"]["reminder"])
    {
        (0, _) => "on",
        (_, is_reminder) if is_reminder == true => "again",
        _ => "off",
    };
    sink.received().iter().map(what).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mute_lasts_when_its_route_or_a_route_above_it_is_edited() {
    for on in [On::Redis, On::Directory] {
        let (sink, new, boss) = (hook().await, hook().await, hook().await);
        let mut world = fleet(on, [&sink, &new, &boss]).await;
        let root = world.config.route.clone();
        let route =
            |above: &str, own: &str, receivers: &[&str]| below(&root, above, own, receivers, &always());
        world.config.route = route("kind=detector", "unit=~\"c.*\"", &["hook"]);
        world.start();
        world.notify_loss(&["c1"]).await;
        world.pass(2 * WAIT).await;
        assert_eq!(heard(&sink), [""; 0], "it is muted");
        for (above, own, receivers) in [
            ("kind=detector", "unit=~\"c.*|z\"", &["hook"][..]),
            ("kind=~\"detector|other\"", "unit=~\"c.*\"", &["hook"]),
            ("kind=detector", "unit=~\"c.*\"", &["hook", "new"]),
            ("kind=detector", "unit=~\"c.*\"", &["new"]),
            ("kind=detector", "unit=~\"c.*|z\"", &["new"]),
        ] {
            world.stop().await;
            world.config.route = route(above, own, receivers);
            world.start();
            world.pass(3 * WAIT).await;
            assert_eq!((heard(&sink), heard(&new)), (vec![], vec![]), "{on:?} {above} {own} {receivers:?}");
        }
        world.stop().await;
        world.config.route =
            below(&root, "kind=detector", "unit=~\"c.*\"", &["hook"], &RouteTimes::default());
        world.start();
        world.pass(2 * WAIT).await;
        assert_eq!((heard(&sink), heard(&new)), (vec!["off"], vec![]), "{on:?}: once, when the mute is over");
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silence_that_waits_in_a_route_without_receivers_is_notified_to_the_first_that_the_route_gets() {
    for on in [On::Redis, On::Directory] {
        let (sink, new, boss) = (hook().await, hook().await, hook().await);
        let mut world = fleet(on, [&sink, &new, &boss]).await;
        let root = world.config.route.clone();
        let route =
            |receivers: &[&str]| below(&root, "kind=detector", "unit=c", receivers, &RouteTimes::default());
        world.config.route = route(&[]);
        world.start();
        world.lose(&["c"]).await;
        world.joined().await;
        world.stop().await;
        world.config.route = route(&["new"]);
        world.start();
        world.advance(WAIT);
        new.wait_for(1, MAX_WAIT).await.unwrap();
        assert_eq!((heard(&sink), heard(&new)), (vec![], vec!["off"]), "{on:?}");
        world.delivered("new").await;
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reminders_and_escalations_of_a_route_go_on_when_a_receiver_is_added_to_it() {
    for on in [On::Redis, On::Directory] {
        let (sink, new, boss) = (hook().await, hook().await, hook().await);
        let mut world = fleet(on, [&sink, &new, &boss]).await;
        let step = Escalation { after: HOUR, receivers: vec!["boss".to_owned()] };
        let again = FollowUps { repeat: Some(HOUR * 3 / 4), escalate: vec![step] };
        let root = world.config.route.clone();
        let own = Route { again, ..root.clone() };
        let route = |receivers: &[&str]| Route {
            routes: below(&own, "kind=detector", "unit=c", receivers, &RouteTimes::default()).routes,
            ..root.clone()
        };
        world.config.route = route(&["hook"]);
        world.start();
        world.notify_loss(&["c"]).await;
        sink.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("hook").await;
        world.stop().await;
        world.config.route = route(&["hook", "new"]);
        world.start();
        world.advance(HOUR * 3 / 4);
        sink.wait_for(2, MAX_WAIT).await.unwrap();
        new.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("hook").await;
        world.delivered("new").await;
        world.advance(HOUR / 4);
        boss.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("boss").await;
        world.hear(&["c"]).await;
        world.joined().await;
        world.advance(60 * WAIT);
        boss.wait_for(2, MAX_WAIT).await.unwrap();
        for name in ["hook", "new", "boss"] {
            world.delivered(name).await;
        }
        let all = (heard(&sink), heard(&new), heard(&boss));
        assert_eq!(all, (vec!["off", "again", "on"], vec!["off", "on"], vec!["off", "on"]), "{on:?}");
        world.stop().await;
    }
}
