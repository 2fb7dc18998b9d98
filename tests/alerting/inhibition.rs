//! Claims about inhibition: while a source is offline, its targets are recorded and not notified.

use std::time::Duration;

use rollcall::routing::{InhibitRule, Inhibition, parse_matchers};

use super::world::{TIMEOUT, WAIT, World, hook, listed, unit};
use super::*;

/// A world in which `gw` inhibits all units whose names begin with `s`.
async fn world(group_by: &str, receiver: ReceiverConfig) -> World {
    let mut world = World::new(group_by, vec![receiver]).await;
    let [source, target] = ["unit=gw", "unit=~\"s.*\""].map(|text| parse_matchers(text).unwrap());
    let rule = InhibitRule { source, target, equal: Vec::new() };
    world.config.inhibition = Inhibition { rules: [rule].into(), longest: TIMEOUT };
    world.stop().await;
    world.start();
    world
}

/// Moves these units beyond their deadlines.
async fn expire(world: &World, ids: &[&str]) {
    let units: Vec<Unit> = ids.iter().map(|id| unit(id)).collect();
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    assert!(world.roll.check_deadlines(&units, world.clock.now()).await.unwrap().is_empty());
    world.joined().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_gateway_is_offline_its_sensors_are_recorded_and_not_notified() {
    for group_by in ["kind", "unit"] {
        let sink = hook().await;
        let mut world = world(group_by, webhook_to(sink.url(), None)).await;
        world.hear(&["gw", "s1", "s2", "s3", "other"]).await;
        // A sensor is missed seconds before its gateway, and the others after it.
        world.advance(TIMEOUT + Duration::from_secs(1));
        expire(&world, &["s1"]).await;
        world.advance(Duration::from_secs(2));
        expire(&world, &["s2", "gw"]).await;
        expire(&world, &["s3"]).await;
        world.pass(2 * WAIT).await;
        let received = sink.wait_for(1, MAX_WAIT).await.unwrap();
        assert_eq!(listed(&received[0], "offline"), ["gw"], "{group_by}");
        assert_eq!(world.metric("rollcall_inhibiting_units", &[]), 1.0);
        assert_eq!(world.engine.records(true, None, 10).await.unwrap().len(), 4, "they are recorded");

        // The inhibition lasts for a long time, and across a crash. A sensor that returns meanwhile is never notified;
        // others are.
        world.delivered("hook").await;
        world.pass(10 * TIMEOUT).await;
        world.crash().await;
        world.start();
        world.hear(&["s2"]).await;
        expire(&world, &["other"]).await;
        world.pass(10 * TIMEOUT).await;
        let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
        assert_eq!(listed(&received[1], "offline"), ["other"]);

        // The gateway is back. The sensors have their timeout to be heard, and one is.
        world.hear(&["gw"]).await;
        world.joined().await;
        world.delivered("hook").await;
        world.pass(TIMEOUT - Duration::from_secs(5)).await;
        world.hear(&["s3"]).await;
        world.joined().await;
        let received = sink.wait_for(3, MAX_WAIT).await.unwrap();
        assert_eq!(
            (listed(&received[2], "online"), listed(&received[2], "offline")),
            (vec!["gw".into()], vec![])
        );
        assert_eq!(world.metric("rollcall_inhibiting_units", &[]), 0.0);
        world.delivered("hook").await;
        world.pass(TIMEOUT + 6 * WAIT).await;
        let received = sink.wait_for(4, MAX_WAIT).await.unwrap();
        assert_eq!(
            (listed(&received[3], "offline"), listed(&received[3], "online")),
            (vec!["s1".into()], vec![])
        );
        // A sensor that was notified before its gateway fell silent is notified of its return.
        world.hear(&["s1"]).await;
        world.joined().await;
        world.delivered("hook").await;
        world.pass(6 * WAIT).await;
        let received = sink.wait_for(5, MAX_WAIT).await.unwrap();
        assert_eq!(listed(&received[4], "online"), ["s1"]);
        world.stop().await;
        assert_eq!(sink.received().len(), 5);
    }
}
