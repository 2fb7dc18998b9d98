//! Claims about alert silences: what they cover is not notified while they last, and what still holds is notified once
//! when they are over.

use std::time::Duration;

use rollcall::routing::alert_silence::SilenceRequest;
use rollcall::routing::{SilenceId, parse_label_matchers};
use rollcall::simulate::webhook_sink::WebhookSink;

use super::world::{On, WAIT, World, hook, listed, until};
use super::*;

/// An alert silence from now on.
pub async fn silence(world: &World, matchers: &str, span: Duration) -> SilenceId {
    let now = world.clock.now();
    let wanted = SilenceRequest {
        matchers: parse_label_matchers(matchers).unwrap(),
        starts_at: now,
        ends_at: now + span,
        author: "ana".to_owned(),
        comment: String::new(),
    };
    world.silences.put(None, wanted, "ana", now).await.unwrap()
}

/// Lets waits pass until there are `count` notifications: a group that was sealed just now may still seem to wait.
async fn notify_waiting(world: &World, sink: &WebhookSink, count: usize) {
    let notified = async || {
        if world.groups().first_seal(&world.partitions()).await.unwrap().is_some() {
            world.advance(WAIT);
        }
        sink.received().len() >= count
    };
    until("the waiting members are notified", notified).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_silence_covered_and_still_holds_when_it_ends_is_notified_once_then() {
    let sink = hook().await;
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["before"]).await;
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    silence(&world, "unit=~\"a|b|before\"", HOUR).await;
    world.lose(&["a", "b", "c"]).await;
    world.joined().await;
    world.delivered("hook").await;
    world.advance(5 * WAIT);
    let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
    assert_eq!(listed(&received[1], "offline"), ["c"]);

    // Unit b is back before the end of the alert silence, and the instance is killed.
    world.hear(&["b"]).await;
    world.joined().await;
    world.delivered("hook").await;
    world.crash().await;
    world.advance(HOUR);
    world.start();
    notify_waiting(&world, &sink, 3).await;
    let received = sink.wait_for(3, MAX_WAIT).await.unwrap();
    assert_eq!((listed(&received[2], "offline"), listed(&received[2], "online")), (vec!["a".into()], vec![]));

    // A restart joins all of these silences again, and none is notified twice.
    world.stop().await;
    world.start();
    world.hear(&["a", "before"]).await;
    world.joined().await;
    world.delivered("hook").await;
    world.advance(5 * WAIT);
    let received = sink.wait_for(4, MAX_WAIT).await.unwrap();
    assert_eq!(listed(&received[3], "online"), ["a", "before"]);
    assert_eq!(listed(&received[3], "offline"), [""; 0]);
    world.stop().await;
    assert_eq!(sink.received().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_return_of_a_unit_that_was_notified_is_not_held_by_a_silence() {
    for on in [On::Redis, On::Directory] {
        let sink = hook().await;
        let mut world = World::on(on, "unit", vec![webhook_to(sink.url(), None)]).await;
        world.notify_loss(&["a"]).await;
        sink.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("hook").await;
        silence(&world, "unit=a", 100 * HOUR).await;
        world.hear(&["a"]).await;
        world.joined().await;
        world.advance(WAIT);
        assert_eq!(listed(&sink.wait_for(2, MAX_WAIT).await.unwrap()[1], "online"), ["a"]);
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silence_that_is_ended_by_hand_ends_at_once_unless_another_one_covers_the_unit() {
    let sink = hook().await;
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    let [of_kind, of_a] =
        [silence(&world, "kind=detector", HOUR).await, silence(&world, "unit=a", 9 * HOUR).await];
    world.lose(&["a", "b"]).await;
    world.joined().await;
    world.advance(5 * WAIT);
    let now = world.clock.now();
    assert!(world.silences.expire(of_kind, "ana", now).await.unwrap());
    notify_waiting(&world, &sink, 1).await;
    let received = sink.wait_for(1, MAX_WAIT).await.unwrap();
    assert_eq!(listed(&received[0], "offline"), ["b"]);
    assert!(world.silences.expire(of_a, "ana", world.clock.now()).await.unwrap());
    notify_waiting(&world, &sink, 2).await;
    let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
    assert_eq!(listed(&received[1], "offline"), ["a"]);
    world.stop().await;
    assert_eq!(sink.received().len(), 2);
}
