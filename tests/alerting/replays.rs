//! Notifications that are delivered again: their order, and what follows them.

use rollcall::store::StoredDeliveries;
use std::collections::BTreeSet;
use std::time::Duration;

use rollcall::alerting::RateLimit;
use rollcall::fleet::deliveries::{DeliveryFilter, WantedState};
use rollcall::simulate::webhook_sink::{Answer, Received, WebhookSink};
use serde_json::json;

use super::loops::that_watch;
use super::services::{actions, pager};
use super::world::{On, WAIT, World, hook, listed, named};
use super::*;

impl World {
    /// Replays all dead letters, or all delivered notifications; returns how many.
    pub async fn replay(&self, state: WantedState) -> usize {
        let filter = DeliveryFilter { state: Some(state), ..DeliveryFilter::default() };
        let configured: Vec<String> = self.config.receivers.iter().map(|one| one.name.clone()).collect();
        let (deliveries, now) = (self.deliveries(), self.clock.now());
        let replayed = deliveries.replay_all(&filter, None, &configured, "ana", now).await;
        let (changed, _) = replayed.unwrap();
        assert!(!changed.more);
        // The loops notice what another program has queued.
        self.advance(Duration::from_secs(1));
        changed.count
    }

    /// Waits until everything that is due by now is sealed, and nothing waits for the receiver.
    async fn settled(&self, receiver: &str) {
        self.joined().await;
        self.advance(5 * WAIT);
        self.sealed().await;
        self.delivered(receiver).await;
    }
}

/// A unit whose silence was delivered, and whose return is a dead letter.
async fn whose_return_is_a_dead_letter(on: On) -> (WebhookSink, World) {
    let sink = hook().await;
    let world = World::on(on, "unit", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["a"]).await;
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    world.delivered("hook").await;
    sink.answer_with([Answer::Status(410)]);
    world.hear(&["a"]).await;
    world.joined().await;
    world.advance(WAIT);
    world.dead("hook", 1).await;
    (sink, world)
}

/// The units of a message that are offline, and the units that are back.
fn states(received: &Received) -> (Vec<String>, Vec<String>) {
    (listed(received, "offline"), listed(received, "online"))
}

fn units(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_returns_of_silences_that_are_over_follow_a_dead_letter_that_is_delivered_again() {
    for on in [On::Redis, On::Directory] {
        let calls = hook().await;
        calls.answer_with([Answer::Status(410)]);
        let mut world = World::on(on, "kind", vec![named("pager", pager(&calls))]).await;
        world.notify_loss(&["a", "b"]).await;
        world.dead("pager", 1).await;
        world.stop().await;
        world.start();
        world.hear(&["a"]).await;
        world.joined().await;
        world.advance(5 * WAIT);
        world.sealed().await;
        let before = calls.received().len();
        assert_eq!(world.replay(WantedState::Dead).await, 1);
        let received = calls.wait_for(before + 3, MAX_WAIT).await.unwrap();
        assert_eq!(actions(&received[before..]), ["trigger", "trigger", "resolve"]);
        world.delivered("pager").await;
        // The return of the other unit is still to come, and comes once.
        world.hear(&["b"]).await;
        world.joined().await;
        world.advance(5 * WAIT);
        let received = calls.wait_for(before + 4, MAX_WAIT).await.unwrap();
        let keys = |action: &str| {
            let of_action =
                received[before..].iter().map(Received::json).filter(|json| json["event_action"] == action);
            of_action.map(|json| json["dedup_key"].to_string()).collect::<BTreeSet<String>>()
        };
        assert_eq!(keys("trigger"), keys("resolve"));
        world.delivered("pager").await;
        world.stop().await;
        assert_eq!(calls.received().len(), before + 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_are_delivered_again_in_the_order_in_which_they_were_sealed() {
    for on in [On::Redis, On::Directory] {
        let (sink, mut world) = whose_return_is_a_dead_letter(on).await;
        world.notify_loss(&["a"]).await;
        world.dead("hook", 2).await;
        world.stop().await;
        world.start();
        let before = sink.received().len();
        assert_eq!(world.replay(WantedState::Dead).await, 2);
        let received = sink.wait_for(before + 2, MAX_WAIT).await.unwrap();
        let expected = [(units(&[]), units(&["a"])), (units(&["a"]), units(&[]))];
        assert_eq!(received[before..].iter().map(states).collect::<Vec<_>>(), expected);
        world.delivered("hook").await;
        // Delivered notifications can be replayed, too.
        assert_eq!(world.replay(WantedState::Delivered).await, 3);
        let received = sink.wait_for(before + 5, MAX_WAIT).await.unwrap();
        let expected = [&expected[1..], &expected].concat();
        assert_eq!(received[before + 2..].iter().map(states).collect::<Vec<_>>(), expected);
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_delivered_again_does_not_make_the_return_of_a_unit_that_is_offline_the_last_word()
 {
    for on in [On::Redis, On::Directory] {
        let sink = hook().await;
        sink.answer_with([Answer::Status(410)]);
        let mut world = World::on(on, "unit", vec![webhook_to(sink.url(), None)]).await;
        world.notify_loss(&["a"]).await;
        world.dead("hook", 1).await;
        world.stop().await;
        world.start();
        world.hear(&["a"]).await;
        world.settled("hook").await;
        let before = sink.received().len();
        world.notify_loss(&["a"]).await;
        sink.wait_for(before + 1, MAX_WAIT).await.unwrap();
        world.delivered("hook").await;
        assert_eq!(world.replay(WantedState::Dead).await, 1);
        let received = sink.wait_for(before + 3, MAX_WAIT).await.unwrap();
        let last: Vec<_> = received[before + 1..].iter().map(states).collect();
        assert_eq!(last, [(units(&["a"]), units(&[])), (units(&["a"]), units(&["a"]))]);
        world.hear(&["a"]).await;
        world.settled("hook").await;
        assert_eq!(states(&sink.received()[before + 3]), (units(&[]), units(&["a"])));
        world.stop().await;
        assert_eq!(sink.received().len(), before + 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_return_that_is_delivered_again_is_not_the_last_word_on_a_unit_that_is_offline() {
    for on in [On::Redis, On::Directory] {
        let (sink, mut world) = whose_return_is_a_dead_letter(on).await;
        world.stop().await;
        world.start();
        let before = sink.received().len();
        world.notify_loss(&["a"]).await;
        sink.wait_for(before + 1, MAX_WAIT).await.unwrap();
        world.delivered("hook").await;
        assert_eq!(world.replay(WantedState::Dead).await, 1);
        let received = sink.wait_for(before + 3, MAX_WAIT).await.unwrap();
        let expected = [(units(&[]), units(&["a"])), (units(&["a"]), units(&[]))];
        assert_eq!(received[before + 1..].iter().map(states).collect::<Vec<_>>(), expected);
        assert_eq!(received[before + 2].json()["data"]["reminder"], true);
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_leaves_out_the_returns_of_silences_that_are_unknown_to_its_receiver() {
    for on in [On::Redis, On::Directory] {
        let sink = hook().await;
        sink.answer_with([Answer::Status(410)]);
        let limit = Some(RateLimit { messages: 1, per: HOUR });
        let receiver = ReceiverConfig { rate_limit: limit, ..webhook_to(sink.url(), None) };
        let mut world = World::on(on, "unit", vec![receiver]).await;
        world.notify_loss(&["a", "b", "c"]).await;
        world.dead("hook", 3).await;
        world.stop().await;
        world.start();
        let before = sink.received().len();
        world.hear(&["b", "c"]).await;
        world.joined().await;
        world.advance(5 * WAIT);
        // Both returns wait for room, and end as soon as there is some.
        world.advance(HOUR);
        world.settled("hook").await;
        assert_eq!(sink.received().len(), before);
        // Another message takes the room, so all replayed notifications wait.
        world.notify_loss(&["d"]).await;
        sink.wait_for(before + 1, MAX_WAIT).await.unwrap();
        world.delivered("hook").await;
        assert_eq!(world.replay(WantedState::Dead).await, 3);
        world.advance(HOUR);
        // The returns of a digest's silences are notified, also the returns that come later.
        let received = sink.wait_for(before + 2, MAX_WAIT).await.unwrap();
        assert_eq!(states(&received[before + 1]), (units(&["a"]), units(&["b", "c"])));
        world.delivered("hook").await;
        world.advance(HOUR);
        world.hear(&["a"]).await;
        world.settled("hook").await;
        assert_eq!(states(&sink.received()[before + 2]), (units(&[]), units(&["a"])));
        world.stop().await;
        assert_eq!(sink.received().len(), before + 3);
        // A replay by the id that the receiver has delivers everything again that was merged.
        let (digest, hook) = (received[before + 1].header("webhook-id"), ["hook".to_owned()]);
        let replayed = world.deliveries().replay(digest, &hook, "ana", world.clock.now()).await;
        assert_eq!(replayed.unwrap(), 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_blindness_follows_its_dead_letter_that_is_delivered_again() {
    let sink = hook().await;
    sink.answer_with([Answer::Status(410)]);
    let mut world = that_watch(&sink).await;
    let from = world.clock.now();
    world.clock.advance(2 * HOUR);
    world.dead("hook", 1).await;
    world.stop().await;
    world.start();
    let intervals = |received: &[Received]| {
        let of = |one: &Received| {
            let interval = &one.json()["data"]["intervals"][0];
            (interval["from"].clone(), interval["to"].clone())
        };
        received.iter().map(of).collect::<Vec<_>>()
    };
    // The blind interval has not ended yet.
    let before = sink.received().len();
    assert_eq!(world.replay(WantedState::Dead).await, 1);
    let received = sink.wait_for(before + 1, MAX_WAIT).await.unwrap();
    let begin = (json!(from), json!(null));
    assert_eq!(intervals(&received[before..]), std::slice::from_ref(&begin));
    world.delivered("hook").await;
    sink.answer_with([Answer::Status(410)]);
    assert_eq!(world.replay(WantedState::Delivered).await, 1);
    world.dead("hook", 1).await;
    world.stop().await;
    world.start();
    let to = world.clock.now();
    world.roll.canary_returned(to).await.unwrap();
    // The blind interval is over.
    assert_eq!(world.replay(WantedState::Dead).await, 1);
    let received = sink.wait_for(before + 4, MAX_WAIT).await.unwrap();
    assert_eq!(intervals(&received[before + 2..]), [begin, (json!(from), json!(to))]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_of_a_receiver_that_is_not_configured_stay() {
    let sink = hook().await;
    sink.answer_with([Answer::Status(410)]);
    let mut world = World::new("kind", vec![named("gone", webhook_to(sink.url(), None))]).await;
    world.notify_loss(&["a"]).await;
    world.dead("gone", 1).await;
    let letter = StoredDeliveries::new(world.engine.clone())
        .dead_letters("gone", 1)
        .await
        .unwrap()
        .remove(0)
        .delivery
        .id;
    let (deliveries, now) = (world.deliveries(), world.clock.now());
    let (all, other) = (DeliveryFilter::default(), ["other".to_owned()]);
    let (changed, _) = deliveries.replay_all(&all, None, &other, "ana", now).await.unwrap();
    assert_eq!((changed.count, changed.more), (0, false));
    let of_it = DeliveryFilter { receiver: Some("gone".to_owned()), ..all };
    let refused = [
        deliveries.replay_all(&of_it, None, &other, "ana", now).await.map(|_| ()),
        deliveries.replay(&letter, &other, "ana", now).await.map(|_| ()),
    ];
    for refused in refused {
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("the receiver gone is not configured"), "{why}");
    }
    world.dead("gone", 1).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_older_than_the_records_are_kept_opens_no_page_that_stays() {
    for on in [On::Redis, On::Directory] {
        let sink = hook().await;
        sink.answer_with([Answer::Status(410)]);
        let mut world = World::on(on, "unit", vec![webhook_to(sink.url(), None)]).await;
        world.notify_loss(&["a"]).await;
        world.dead("hook", 1).await;
        world.stop().await;
        world.start();
        world.hear(&["a"]).await;
        world.settled("hook").await;
        let later = world.clock.now() + HOUR;
        assert_eq!(world.engine.forget_records(&world.partitions(), later).await.unwrap(), 1);
        let before = sink.received().len();
        assert_eq!(world.replay(WantedState::Dead).await, 1);
        let received = sink.wait_for(before + 2, MAX_WAIT).await.unwrap();
        let expected = [(units(&["a"]), units(&[])), (units(&[]), units(&["a"]))];
        assert_eq!(received[before..].iter().map(states).collect::<Vec<_>>(), expected);
        world.stop().await;
    }
}
