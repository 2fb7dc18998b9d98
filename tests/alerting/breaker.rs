//! Claims about receivers that take nothing for a while.

use rollcall::store::StoredDeliveries;
use std::collections::HashSet;

use rollcall::simulate::webhook_sink::{Answer, WebhookSink};

use super::world::{World, hook, listed, until};
use super::*;

const MINUTE: Duration = Duration::from_secs(60);
/// Failures in a row that open the breaker, and further attempts that may be under way by then.
const FIRST_ATTEMPTS: usize = 5 + 3;

/// A storm of units with a notification each, for a receiver that answers nothing but 500; the breaker is open.
async fn storm() -> (WebhookSink, World, Vec<String>) {
    let sink = hook().await;
    let world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    sink.answer_with(vec![Answer::Status(500); 1000]);
    let names: Vec<String> = (0..100).map(|n| format!("u{n:03}")).collect();
    world.notify_loss(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let waiting = async || {
        StoredDeliveries::new(world.engine.clone())
            .backlog(&world.partitions(), "hook")
            .await
            .is_ok_and(|backlog| backlog.waiting == 100)
    };
    until("all wait", waiting).await;
    sink.wait_for(5, MAX_WAIT).await.unwrap();
    let ended = || world.metric("rollcall_notifications_total", &["hook", "retry"]) as usize;
    until("the attempts are over", async || ended() == sink.received().len() && ended() >= 5).await;
    (sink, world, names)
}

/// The units of the notifications after the first requests, in order. A notification that is under way when the clock
/// moves beyond its lease comes again, under its id.
fn taken(sink: &WebhookSink, after: usize) -> Vec<String> {
    let mut ids = HashSet::new();
    let mut received = sink.received().split_off(after);
    received.retain(|one| ids.insert(one.header("webhook-id").to_owned()));
    let mut units: Vec<String> = received.iter().flat_map(|received| listed(received, "offline")).collect();
    units.sort();
    units
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_takes_nothing_is_probed_once_a_minute_and_gets_all_when_it_is_back() {
    let (sink, mut world, names) = storm().await;
    for probe in 1..=10 {
        let before = sink.received().len();
        world.advance(MINUTE);
        sink.wait_for(before + 1, MAX_WAIT).await.unwrap();
        let failed = || world.metric("rollcall_notifications_total", &["hook", "retry"]) as usize;
        until("the probe is over", async || failed() > before).await;
        let requests = sink.received().len();
        assert!(requests <= FIRST_ATTEMPTS + probe, "{requests} requests after {probe} minutes");
    }
    let probes = sink.received().len();
    sink.answer_with([]);
    let taken = || taken(&sink, probes);
    world.advance(MINUTE);
    // All notifications except the few that were attempted are due at once.
    until("most are delivered", async || taken().len() > 100 - 2 * FIRST_ATTEMPTS - 10).await;
    world.advance(HOUR);
    until("all are delivered", async || taken().len() >= 100).await;
    assert_eq!(taken(), names, "each once");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_old_is_given_up_without_an_attempt_while_its_receiver_takes_nothing() {
    let (sink, mut world, _) = storm().await;
    world.advance(73 * HOUR);
    let dead = async || {
        StoredDeliveries::new(world.engine.clone()).backlog(&world.partitions(), "hook").await.unwrap().dead
    };
    let mut given_up = 0;
    while given_up < 100 {
        world.advance(MINUTE);
        // The clock waits for the loops: a lease must not end before they use it.
        until("more are dead letters", async || dead().await > given_up).await;
        given_up = dead().await;
    }
    assert_eq!(given_up, 100);
    assert!(sink.received().len() < 100, "{} requests", sink.received().len());
    world.stop().await;
}
