//! A receiver that takes nothing for long, and its fallback.

use rollcall::store::StoredDeliveries;
use std::time::Duration;

use rollcall::alerting::{Fallback, RateLimit};
use rollcall::simulate::servers::free_port;
use rollcall::simulate::webhook_sink::{Answer, Options, WebhookSink};

use super::*;
use crate::world::{On, World, hook, listed, named, until};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_receiver_that_is_down_goes_to_its_fallback_once_and_to_itself_when_it_is_back() {
    let (port, other) = (free_port().unwrap(), hook().await);
    let fallback = Some(Fallback { receiver: "other".to_owned(), after: 10 * MINUTE });
    let down = webhook_to(format!("http://127.0.0.1:{port}/hook"), None);
    let down = ReceiverConfig { fallback, ..named("hook", down) };
    let mut world = World::new("unit", vec![down, named("other", webhook_to(other.url(), None))]).await;
    world.stop().await;
    world.config.route.receivers = vec!["hook".to_owned()];
    world.start();
    let failures = || world.metric("rollcall_notifications_total", &["hook", "retry"]);
    world.notify_loss(&["a"]).await;
    until("an attempt fails", async || failures() >= 1.0).await;
    let since = world.clock.now();
    until("that is known", async || {
        StoredDeliveries::new(world.engine.clone()).down_since("hook", since).await.unwrap() <= since
    })
    .await;
    world.advance(6 * MINUTE);
    until("another fails", async || failures() >= 2.0).await;
    assert_eq!(other.received().len(), 0, "it is too early");
    // A restart does not start the wait anew.
    world.stop().await;
    world.start();
    let before = world.metric("rollcall_notifications_total", &["hook", "retry"]);
    world.advance(5 * MINUTE);
    let failures = || world.metric("rollcall_notifications_total", &["hook", "retry"]);
    until("one fails after the restart", async || failures() > before).await;
    let copy = other.wait_for(1, MAX_WAIT).await.unwrap().remove(0);
    assert_eq!(
        (listed(&copy, "offline"), &copy.json()["data"]["meant_for"]["receiver"]),
        (vec!["a".to_owned()], &"hook".into())
    );

    let sink = WebhookSink::start(Options { port, ..Options::default() }).await.unwrap();
    world.advance(HOUR);
    let original = sink.wait_for(1, MAX_WAIT).await.unwrap().remove(0);
    assert_eq!(
        (listed(&original, "offline"), original.json()["data"].get("meant_for")),
        (vec!["a".to_owned()], None)
    );
    assert_ne!(copy.header("webhook-id"), original.header("webhook-id"));
    // Both receivers are notified of the return of the units whose silence they know.
    world.hear(&["a"]).await;
    world.joined().await;
    world.delivered("hook").await;
    world.advance(MINUTE);
    assert_eq!(listed(&sink.wait_for(2, MAX_WAIT).await.unwrap()[1], "online"), ["a"]);
    let back = &other.wait_for(2, MAX_WAIT).await.unwrap()[1];
    assert_eq!((listed(back, "online"), back.json()["data"].get("meant_for")), (vec!["a".to_owned()], None));
    // From then on only the fallback is notified.
    world.notify_loss(&["b"]).await;
    world.delivered("hook").await;
    world.advance(MINUTE);
    assert_eq!(listed(&sink.wait_for(3, MAX_WAIT).await.unwrap()[2], "offline"), ["b"]);
    assert_eq!(other.received().len(), 2);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_of_a_receiver_that_wants_no_more_go_to_its_fallback_and_are_dead_letters() {
    for (on, limit) in [(On::Redis, None), (On::Directory, None), (On::Redis, Some(100))] {
        let (gone, other) = (hook().await, hook().await);
        gone.answer_with([Answer::Status(410)]);
        let fallback = Some(Fallback { receiver: "other".to_owned(), after: 10 * MINUTE });
        let rate_limit = limit.map(|messages| RateLimit { messages, per: MINUTE });
        let gone_hook = ReceiverConfig { fallback, rate_limit, ..webhook_to(gone.url(), None) };
        let receivers = vec![gone_hook, named("other", webhook_to(other.url(), None))];
        let mut world = World::on(on, "unit", receivers).await;
        world.stop().await;
        world.config.route.receivers = vec!["hook".to_owned()];
        world.start();
        for (count, unit) in [(1, "a"), (2, "b")] {
            world.notify_loss(&[unit]).await;
            let copy = &other.wait_for(count, MAX_WAIT).await.unwrap()[count - 1];
            assert_eq!(listed(copy, "offline"), [unit]);
            assert_eq!(copy.json()["data"]["meant_for"]["receiver"], "hook");
            world.dead("hook", count as u64).await;
        }
        world.stop().await;
        assert_eq!((gone.received().len(), other.received().len()), (1, 2));
    }
}
