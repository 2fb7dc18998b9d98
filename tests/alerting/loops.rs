//! Claims about the loops from the outbox to the receivers, over a real engine and a clock that is
//! moved by hand.

use std::time::Duration;

use rollcall::alerting::Route;
use rollcall::fleet::deliveries::WantedState;
use rollcall::presence::{Probed, Recoveries};
use rollcall::routing::parse_matchers;
use rollcall::simulate::mail_sink::{self, MailSink};
use rollcall::simulate::webhook_sink::Answer;
use rollcall::store::{Escalation, FollowUps, StoredDeliveries};
use serde_json::json;

use super::world::{On, TIMEOUT, WAIT, World, hook, listed, named, until};
use super::*;

/// A silence that had no receiver, and its return after one was added, begin no interval of the receiver.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_silence_after_a_receiver_is_added_waits_for_group_wait_alone() {
    tokio::join!(first_after_a_receiver(On::Redis), first_after_a_receiver(On::Directory));
}

async fn first_after_a_receiver(on: On) {
    for group_by in ["kind", "unit"] {
        let sink = hook().await;
        let mut world = World::on(on, group_by, vec![webhook_to(sink.url(), None)]).await;
        world.stop().await;
        let receivers = std::mem::take(&mut world.config.route.receivers);
        world.config.route.pace.interval = HOUR;
        world.start();
        world.notify_loss(&["a", "b"]).await;
        world.sealed().await;
        // A unit is back before the receiver was added, and another one afterwards.
        world.hear(&["a"]).await;
        world.joined().await;
        world.pass(2 * WAIT).await;
        world.stop().await;
        world.config.route.receivers = receivers;
        world.start();
        world.hear(&["b"]).await;
        world.joined().await;
        world.pass(2 * WAIT).await;
        assert_eq!(sink.received().len(), 0, "nobody was told of the silence");
        world.notify_loss(&["a", "b"]).await;
        world.pass(WAIT).await;
        let count = if group_by == "kind" { 1 } else { 2 };
        let received = sink.wait_for(count, MAX_WAIT).await.unwrap();
        let mut told: Vec<String> = received.iter().flat_map(|one| listed(one, "offline")).collect();
        told.sort();
        assert_eq!(told, ["a", "b"], "by {group_by}, on {on:?}");
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silence_is_notified_after_group_wait_and_the_return_after_it() {
    let (sink, mail) = (hook().await, MailSink::start(mail_sink::MailSinkOptions::default()).await.unwrap());
    let receivers = vec![webhook_to(sink.url(), None), mail_to(mail.url(), &["ops@example.org"])];
    let mut world = World::new("kind", receivers).await;
    world.notify_loss(&["a", "b"]).await;
    let received = sink.wait_for(1, MAX_WAIT).await.unwrap();
    assert_eq!(
        (listed(&received[0], "offline"), listed(&received[0], "online")),
        (vec!["a".into(), "b".into()], vec![])
    );
    assert_eq!(
        mail.wait_for(1, MAX_WAIT).await.unwrap()[0].header("Subject").unwrap(),
        "OFFLINE: 2 detectors"
    );
    for receiver in ["hook", "mail"] {
        let settled = async || {
            StoredDeliveries::new(world.engine.clone()).backlog(&world.partitions(), receiver).await.unwrap()
                == Default::default()
        };
        until("both have it", settled).await;
        assert_eq!(world.metric("rollcall_notifications_total", &[receiver, "delivered"]), 1.0);
    }

    world.hear(&["a"]).await;
    world.joined().await;
    world.delivered("hook").await;
    world.delivered("mail").await;
    world.advance(5 * WAIT);
    let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
    assert_eq!((listed(&received[1], "offline"), listed(&received[1], "online")), (vec![], vec!["a".into()]));
    assert_eq!(
        mail.wait_for(2, MAX_WAIT).await.unwrap()[1].header("Subject").unwrap(),
        "BACK: detector a, 1 still offline"
    );
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_return_is_notified_after_a_change_of_groups_and_to_no_new_receiver() {
    let (sink, late) = (hook().await, hook().await);
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["a", "b", "c"]).await;
    sink.wait_for(3, MAX_WAIT).await.unwrap();
    world.stop().await;
    world.config.route.group_by = vec!["kind".to_owned(), "site".to_owned()];
    world.config.route.receivers.push("late".to_owned());
    world.config.receivers.push(named("late", webhook_to(late.url(), None)));
    world.start();
    world.hear(&["a", "b", "c"]).await;
    world.joined().await;
    world.delivered("hook").await;
    world.advance(5 * WAIT);
    let received = sink.wait_for(6, MAX_WAIT).await.unwrap();
    let mut returned: Vec<String> =
        received[3..].iter().flat_map(|received| listed(received, "online")).collect();
    returned.sort();
    assert_eq!(returned, ["a", "b", "c"]);
    world.notify_loss(&["d"]).await;
    assert_eq!(listed(&late.wait_for(1, MAX_WAIT).await.unwrap()[0], "offline"), ["d"]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_backlog_of_a_renamed_receiver_is_shown_until_it_has_its_name_again() {
    let (sink, other) = (hook().await, hook().await);
    sink.answer_with([Answer::Status(503)]);
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["a"]).await;
    let retried = async || world.metric("rollcall_notifications_total", &["hook", "retry"]) == 1.0;
    until("the attempt is over", retried).await;
    world.stop().await;
    let before = world.config.clone();
    world.config.route.receivers = vec!["renamed".to_owned()];
    world.config.receivers = vec![named("renamed", webhook_to(other.url(), None))];
    world.start();
    until("it shows", async || world.metric("rollcall_orphaned_notifications", &[]) == 1.0).await;
    let is_it = |problem: &rollcall::telemetry::HealthProblem| {
        problem.name == "orphaned_notifications"
            && problem.text.contains("hook (1 groups wait, 0 dead letters)")
    };
    until("it is said", async || world.telemetry.problems().iter().any(is_it)).await;
    world.stop().await;
    world.config = before;
    world.start();
    world.advance(HOUR);
    assert_eq!(listed(&sink.wait_for(2, MAX_WAIT).await.unwrap()[1], "offline"), ["a"]);
    until("it shows no more", async || world.metric("rollcall_orphaned_notifications", &[]) == 0.0).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_has_its_name_again_is_notified_of_what_still_holds() {
    let (sink, other) = (hook().await, hook().await);
    sink.answer_with([Answer::Status(503), Answer::Status(503)]);
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["a", "b"]).await;
    let retried = async || world.metric("rollcall_notifications_total", &["hook", "retry"]) == 2.0;
    until("the attempts are over", retried).await;
    world.stop().await;
    let before = world.config.clone();
    world.config.route.receivers = vec!["renamed".to_owned()];
    world.config.receivers = vec![named("renamed", webhook_to(other.url(), None))];
    world.start();
    until("it shows", async || world.metric("rollcall_orphaned_notifications", &[]) == 2.0).await;
    world.hear(&["a"]).await;
    world.joined().await;
    world.stop().await;
    world.config = before;
    world.start();
    world.advance(HOUR);
    assert_eq!(listed(&sink.wait_for(3, MAX_WAIT).await.unwrap()[2], "offline"), ["b"]);
    // The return is left out too, as soon as it is sealed.
    let left_out = async || world.metric("rollcall_notifications_total", &["hook", "left_out"]) >= 1.0;
    until("the other is left out", left_out).await;
    world.hear(&["b"]).await;
    world.joined().await;
    world.advance(5 * WAIT);
    let received = sink.wait_for(4, MAX_WAIT).await.unwrap();
    assert_eq!(listed(&received[3], "online"), ["b"]);
    let settled = async || {
        StoredDeliveries::new(world.engine.clone()).backlog(&world.partitions(), "hook").await.unwrap()
            == Default::default()
    };
    until("there is nothing left", settled).await;
    assert_eq!(sink.received().len(), 4);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_that_is_refused_is_shown_until_it_is_taken() {
    let mail = MailSink::start(mail_sink::MailSinkOptions::default()).await.unwrap();
    mail.reply_with([mail_sink::Reply::Recipient("gone@example.org".to_owned(), 550)]);
    let mut world =
        World::new("unit", vec![mail_to(mail.url(), &["ops@example.org", "gone@example.org"])]).await;
    world.notify_loss(&["a"]).await;
    let shown = || {
        let problems = world.telemetry.problems();
        problems.into_iter().find(|one| one.name == "recipients_refused").map(|one| one.text)
    };
    until("it is shown", async || {
        shown().is_some_and(|text| {
            text.contains("receiver mail ") && text.contains("gone@example.org (mail server")
        })
    })
    .await;
    world.notify_loss(&["b"]).await;
    mail.wait_for(2, MAX_WAIT).await.unwrap();
    until("it is shown no more", async || shown().is_none()).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_that_is_put_off_delays_no_other_and_gets_its_mails_after_a_restart() {
    const OPS: &str = "ops@example.org";
    for on in [On::Redis, On::Directory] {
        let mail = MailSink::start(mail_sink::MailSinkOptions::default()).await.unwrap();
        mail.reply_with([mail_sink::Reply::Recipient(OPS.to_owned(), 450)]);
        let receiver = mail_to(mail.url(), &[OPS, "boss@example.org"]);
        let mut world = World::on(on, "kind", vec![receiver]).await;
        world.notify_loss(&["a"]).await;
        mail.wait_for(1, MAX_WAIT).await.unwrap();
        mail.reply_with(vec![mail_sink::Reply::Recipient(OPS.to_owned(), 450); 100]);
        world.lose(&["b"]).await;
        world.joined().await;
        world.advance(5 * WAIT);
        let mails = mail.wait_for(2, MAX_WAIT).await.unwrap();
        assert!(mails.iter().all(|mail| mail.to == ["boss@example.org"]));
        let named = || world.telemetry.problems().into_iter().find(|one| one.name.starts_with("recipients_"));
        until("it is deferred", async || named().is_some()).await;
        let problem = named().unwrap();
        assert!(problem.name == "recipients_deferred" && problem.text.contains("450"), "{problem:?}");
        let waits = async || {
            let waiting =
                StoredDeliveries::new(world.engine.clone()).waiting("mail", None).await.unwrap().waiting;
            waiting.len() == 2
                && waiting.iter().all(|one| one.delivery.group.key.ends_with(OPS))
                && world.metric("rollcall_receiver_failing", &["mail"]) == 0.0
        };
        until("two mails wait for one recipient, and the server does not fail", waits).await;
        world.crash().await;
        mail.reply_with([]);
        world.start();
        // A return comes after its silence, though only the engine knows that the silence waits.
        world.hear(&["a", "b"]).await;
        world.joined().await;
        world.advance(WAIT);
        let mails = mail.wait_for(3, MAX_WAIT).await.unwrap();
        assert_eq!(mails[2].to, ["boss@example.org"]);
        world.advance(HOUR);
        let mails = mail.wait_for(6, MAX_WAIT).await.unwrap();
        assert!(mails[3..].iter().all(|mail| mail.to == [OPS]));
        let backs = mails[3..].iter().map(|mail| mail.data.contains("BACK")).collect::<Vec<bool>>();
        assert_eq!(backs, [false, false, true]);
        world.delivered("mail").await;
        world.stop().await;
        assert_eq!(mail.mails().len(), 6);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_returns_within_group_wait_is_never_notified() {
    let sink = hook().await;
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.lose(&["a", "b"]).await;
    world.joined().await;
    world.hear(&["a"]).await;
    world.joined().await;
    world.advance(WAIT);
    let received = sink.wait_for(1, MAX_WAIT).await.unwrap();
    assert_eq!((listed(&received[0], "offline"), listed(&received[0], "online")), (vec!["b".into()], vec![]));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_return_after_which_no_unit_is_offline_does_not_wait_for_group_interval() {
    let sink = hook().await;
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["a", "b"]).await;
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    world.hear(&["a", "b"]).await;
    world.joined().await;
    world.delivered("hook").await;
    world.advance(WAIT);
    assert_eq!(listed(&sink.wait_for(2, MAX_WAIT).await.unwrap()[1], "online"), ["a", "b"]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_are_reminded_and_others_are_notified_until_the_unit_is_back() {
    let (sink, boss) = (hook().await, hook().await);
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.stop().await;
    let step = Escalation { after: HOUR / 2, receivers: vec!["boss".to_owned()] };
    world.config.route.again = FollowUps { repeat: Some(HOUR), escalate: vec![step] };
    world.config.receivers.push(named("boss", webhook_to(boss.url(), None)));
    world.start();
    world.notify_loss(&["a"]).await;
    let first = sink.wait_for(1, MAX_WAIT).await.unwrap().remove(0);
    assert_eq!(first.json()["data"]["reminder"], false);
    world.delivered("hook").await;
    world.advance(HOUR / 2);
    let escalated = boss.wait_for(1, MAX_WAIT).await.unwrap().remove(0);
    assert_eq!(
        (listed(&escalated, "offline"), &escalated.json()["data"]["reminder"]),
        (vec!["a".into()], &json!(false))
    );
    world.delivered("boss").await;
    world.advance(HOUR / 2 + WAIT);
    let reminder = sink.wait_for(2, MAX_WAIT).await.unwrap().remove(1);
    assert_eq!(
        (listed(&reminder, "offline"), &reminder.json()["data"]["reminder"]),
        (vec!["a".into()], &json!(true))
    );
    let reminder = boss.wait_for(2, MAX_WAIT).await.unwrap().remove(1);
    assert_eq!(reminder.json()["data"]["reminder"], true, "it knows of the silence, too");
    world.hear(&["a"]).await;
    world.joined().await;
    world.delivered("hook").await;
    world.delivered("boss").await;
    world.advance(5 * WAIT);
    assert_eq!(listed(&sink.wait_for(3, MAX_WAIT).await.unwrap()[2], "online"), ["a"]);
    assert_eq!(listed(&boss.wait_for(3, MAX_WAIT).await.unwrap()[2], "online"), ["a"]);
    world.delivered("hook").await;
    world.delivered("boss").await;
    world.advance(3 * HOUR);
    let none = async || world.groups().first_reminder(&world.partitions()).await.unwrap().is_none();
    until("the group is looked at no more", none).await;
    world.stop().await;
    assert_eq!((sink.received().len(), boss.received().len()), (3, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_is_silent_again_before_its_return_is_notified_is_offline_in_the_last_message() {
    for (on, group_by) in [(On::Redis, "unit"), (On::Directory, "unit"), (On::Redis, "kind")] {
        let sink = hook().await;
        let mut world = World::on(on, group_by, vec![webhook_to(sink.url(), None)]).await;
        world.stop().await;
        world.config.route.pace.recoveries = Recoveries::After(3 * TIMEOUT);
        world.start();
        world.notify_loss(&["a"]).await;
        sink.wait_for(1, MAX_WAIT).await.unwrap();
        world.delivered("hook").await;
        world.lose(&["a"]).await;
        world.joined().await;
        world.pass(6 * TIMEOUT).await;
        world.stop().await;
        let received = sink.received();
        let count = |what: &str| received.iter().map(|one| listed(one, what).len()).sum::<usize>();
        assert_eq!((count("offline"), count("online")), (2, 1), "{group_by}");
        assert_eq!(listed(received.last().unwrap(), "offline"), ["a"], "{group_by}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_receiver_delays_no_other() {
    let (alive, dead) = (hook().await, hook().await);
    dead.answer_with(vec![Answer::Hang; 100]);
    let receivers =
        vec![named("dead", webhook_to(dead.url(), None)), named("alive", webhook_to(alive.url(), None))];
    let mut world = World::new("unit", receivers).await;
    let ids: Vec<String> = (0..20).map(|i| i.to_string()).collect();
    world.notify_loss(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    alive.wait_for(20, MAX_WAIT).await.unwrap();
    dead.wait_for(4, MAX_WAIT).await.unwrap();
    for (late, count) in [("late", 21), ("later", 22), ("latest", 23)] {
        world.notify_loss(&[late]).await;
        alive.wait_for(count, MAX_WAIT).await.unwrap();
    }
    assert_eq!(dead.received().len(), 4, "never more at a time than its concurrency");
    drop(dead);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn body_and_id_stay_the_same_over_retries_and_restarts() {
    let sink = hook().await;
    sink.answer_with([Answer::Status(500), Answer::Status(503), Answer::Status(429)]);
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["a"]).await;
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    world.stop().await;
    // Later events of the group go into a notification of their own.
    world.lose(&["b"]).await;
    world.start();
    world.joined().await;
    for failed in 1..=3 {
        let retried =
            async || world.metric("rollcall_notifications_total", &["hook", "retry"]) >= failed as f64;
        until("the attempt is over", retried).await;
        world.advance(HOUR);
    }
    let received = sink.wait_for(4, MAX_WAIT).await.unwrap();
    assert!(received[0].header("webhook-id").ends_with(".hook"));
    for again in &received[1..4] {
        assert_eq!(again.body, received[0].body);
        assert_eq!(again.header("webhook-id"), received[0].header("webhook-id"));
    }
    let next = &sink.wait_for(5, MAX_WAIT).await.unwrap()[4];
    assert_ne!(next.header("webhook-id"), received[0].header("webhook-id"));
    assert_eq!(listed(next, "offline"), ["b"]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_asks_for_a_longer_wait_gets_it() {
    let sink = hook().await;
    sink.answer_with([Answer::RetryAfter(429, "1800".to_owned())]);
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["a"]).await;
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    let next = world.clock.now() + Duration::from_secs(1800);
    let refused = async || world.metric("rollcall_notifications_total", &["hook", "retry"]) == 1.0;
    until("the attempt is over", refused).await;
    // The receiver gets nothing else meanwhile.
    world.lose(&["b"]).await;
    world.joined().await;
    world.advance(5 * WAIT);
    let sealed = async || {
        StoredDeliveries::new(world.engine.clone())
            .backlog(&world.partitions(), "hook")
            .await
            .unwrap()
            .waiting
            == 2
    };
    until("the other waits, too", sealed).await;
    world.advance(next.since(world.clock.now()) - Duration::from_secs(1));
    assert_eq!(sink.received().len(), 1);
    world.advance(Duration::from_secs(1));
    sink.wait_for(3, MAX_WAIT).await.unwrap();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_retried_until_an_operator_has_fixed_its_reason() {
    let sink = hook().await;
    sink.answer_with(
        [404, 401, 403, 400, 308].map(|status| Answer::Say(status, format!("no such hook {status}"))),
    );
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["a"]).await;
    for (failed, status) in (1..).zip([404, 401, 403, 400, 308]) {
        let retried =
            async || world.metric("rollcall_notifications_total", &["hook", "retry"]) == f64::from(failed);
        until("the attempt is over", retried).await;
        assert_eq!(world.metric("rollcall_receiver_failing", &["hook"]), 1.0);
        let problems = world.telemetry.problems();
        let why = format!("no such hook {status}");
        let is_it = |problem: &rollcall::telemetry::HealthProblem| {
            problem.name == "not_delivered" && problem.text.contains("hook") && problem.text.contains(&why)
        };
        assert!(problems.iter().any(is_it), "{problems:?}");
        world.advance(HOUR);
    }
    let received = sink.wait_for(6, MAX_WAIT).await.unwrap();
    assert_eq!(received[0].body, received[5].body);
    let delivered = async || world.metric("rollcall_notifications_total", &["hook", "delivered"]) == 1.0;
    until("it was delivered", delivered).await;
    assert_eq!(world.metric("rollcall_receiver_failing", &["hook"]), 0.0);
    assert!(world.telemetry.problems().iter().all(|problem| problem.name != "not_delivered"));
    let backlog =
        StoredDeliveries::new(world.engine.clone()).backlog(&world.partitions(), "hook").await.unwrap();
    assert_eq!(backlog.dead, 0, "nothing is lost");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_with_nothing_but_dead_letters_is_failing() {
    let sink = hook().await;
    sink.answer_with(vec![Answer::Status(410); 3]);
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["a", "b", "c"]).await;
    world.dead("hook", 3).await;
    let dead = StoredDeliveries::new(world.engine.clone()).dead_letters("hook", 10).await.unwrap();
    assert!(dead.iter().all(|letter| letter.reason.contains("410")), "{dead:?}");
    assert_eq!(world.metric("rollcall_notifications_total", &["hook", "dead"]), 3.0);
    until("it shows", async || world.metric("rollcall_dead_letters", &["hook"]) == 3.0).await;
    assert_eq!(world.metric("rollcall_receiver_failing", &["hook"]), 1.0);
    // Nothing waits, and after a restart there is no attempt: the receiver counts as failing until a delivery
    // succeeds.
    world.stop().await;
    world.telemetry = std::sync::Arc::new(rollcall::telemetry::Telemetry::new(&world.clock));
    world.telemetry.receiver_configured("hook");
    world.start();
    until("it fails", async || world.metric("rollcall_receiver_failing", &["hook"]) == 1.0).await;
    let said = || world.telemetry.problems().into_iter().find(|problem| problem.name == "not_delivered");
    until("its last answer is known", async || said().is_some_and(|one| one.text.contains("410"))).await;
    world.notify_loss(&["d"]).await;
    until("it fails no more", async || world.metric("rollcall_receiver_failing", &["hook"]) == 0.0).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_kept_and_counted() {
    let sink = hook().await;
    sink.answer_with([Answer::Status(404), Answer::Status(404)]);
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["a"]).await;
    let retried = async || world.metric("rollcall_notifications_total", &["hook", "retry"]) == 1.0;
    until("the attempt is over", retried).await;
    world.advance(72 * HOUR);
    world.dead("hook", 1).await;
    let dead = StoredDeliveries::new(world.engine.clone()).dead_letters("hook", 10).await.unwrap();
    assert!(dead[0].reason.contains("404"), "{}", dead[0].reason);
    assert_eq!(dead[0].delivery.id, sink.received()[0].header("webhook-id"));
    assert_eq!(world.metric("rollcall_notifications_total", &["hook", "dead"]), 1.0);
    until("it shows", async || world.metric("rollcall_dead_letters", &["hook"]) == 1.0).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_that_cannot_be_delivered_for_too_long_becomes_a_dead_letter() {
    let sink = hook().await;
    sink.answer_with(vec![Answer::Status(500); 2]);
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["a"]).await;
    let retried = async || world.metric("rollcall_notifications_total", &["hook", "retry"]) == 1.0;
    until("the attempt is over", retried).await;
    world.advance(72 * HOUR);
    world.dead("hook", 1).await;
    assert_eq!(sink.received().len(), 2);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_delivered_again_after_an_outage_that_was_longer_than_they_are_tried() {
    for on in [On::Redis, On::Directory] {
        let sink = hook().await;
        sink.answer_with(vec![Answer::Status(503); 100]);
        let mut world = World::on(on, "unit", vec![webhook_to(sink.url(), None)]).await;
        world.notify_loss(&["a", "b", "c"]).await;
        sink.wait_for(3, MAX_WAIT).await.unwrap();
        world.advance(73 * HOUR);
        let dead = async || {
            StoredDeliveries::new(world.engine.clone())
                .backlog(&world.partitions(), "hook")
                .await
                .unwrap()
                .dead
        };
        while dead().await < 3 {
            world.pass(Duration::from_secs(60)).await;
        }
        assert_eq!(world.replay(WantedState::Dead).await, 3);
        // The receiver is still down: replayed notifications are tried for as long as new ones.
        let time_passes = async || {
            world.advance(Duration::from_secs(10));
            assert_eq!(dead().await, 0);
        };
        let probed = sink.received().len() + 4;
        let is_probed = async || {
            time_passes().await;
            sink.received().len() >= probed
        };
        until("it is probed", is_probed).await;
        // The probe is one of the notifications; the others follow as soon as it succeeds.
        sink.answer_with([]);
        let all_are_delivered = async || {
            time_passes().await;
            world.metric("rollcall_notifications_total", &["hook", "delivered"]) == 3.0
        };
        until("all are delivered", all_are_delivered).await;
        world.delivered("hook").await;
        world.dead("hook", 0).await;
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gone_disables_the_receiver_until_a_restart() {
    let sink = hook().await;
    sink.answer_with([Answer::Status(410)]);
    let mut world = World::new("unit", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["a"]).await;
    world.dead("hook", 1).await;
    world.notify_loss(&["b"]).await;
    world.dead("hook", 2).await;
    assert_eq!(sink.received().len(), 1, "the second was not even tried");
    world.stop().await;
    world.start();
    world.notify_loss(&["c"]).await;
    assert_eq!(listed(&sink.wait_for(2, MAX_WAIT).await.unwrap()[1], "offline"), ["c"]);
    world.stop().await;
}

/// How often hearing was read from the engine: no other script asks the server for its time.
fn reads(world: &World) -> u64 {
    let mut client = world.redis.client();
    let said: String = ::redis::cmd("INFO").arg("commandstats").query(&mut client).unwrap();
    let calls = said.split("cmdstat_time:calls=").nth(1).and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

/// Waits until an instance has read `heard`, and counts from then on.
async fn watches(world: &World) {
    let asked = reads(world);
    until("it watches", async || reads(world) > asked + 1).await;
}

/// Loops that notify of blindness after an hour.
pub async fn that_watch(sink: &rollcall::simulate::webhook_sink::WebhookSink) -> World {
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.stop().await;
    world.config.blind_after = HOUR;
    world.start();
    // The instance has read `heard`, and counts from then on.
    let asked = reads(&world);
    until("it watches", async || reads(&world) > asked).await;
    world
}

/// The blind interval of a notification.
fn blind(received: &rollcall::simulate::webhook_sink::Received) -> serde_json::Value {
    let json = received.json();
    assert_eq!(json["type"], "rollcall.blind");
    json["data"]["intervals"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn blindness_is_notified_once_while_it_lasts_and_so_is_its_end() {
    let sink = hook().await;
    let mut world = that_watch(&sink).await;
    let from = world.clock.now();
    world.advance(HOUR / 2);
    let asked = reads(&world);
    until("hearing was read", async || reads(&world) > asked + 1).await;
    assert_eq!(sink.received().len(), 0, "no notification comes early");
    world.advance(HOUR);
    let received = sink.wait_for(1, MAX_WAIT).await.unwrap();
    let id = format!("blind:{}", from.as_millis());
    assert_eq!((&blind(&received[0])["id"], &blind(&received[0])["to"]), (&json!(id), &json!(null)));
    // Neither a restart nor time causes a second notification.
    world.stop().await;
    world.start();
    let asked = reads(&world);
    until("it watches", async || reads(&world) > asked).await;
    world.delivered("hook").await;
    world.advance(2 * HOUR);
    let asked = reads(&world);
    until("it was noticed again", async || reads(&world) > asked + 1).await;
    // Hearing goes on. The gap is not an interval of the ledger: its end is notified anyway.
    let to = world.clock.now();
    world.roll.canary_returned(to).await.unwrap();
    let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
    assert_eq!((&blind(&received[1])["id"], &blind(&received[1])["to"]), (&json!(id), &json!(to)));
    // An interval of the ledger is notified with its own times.
    world.delivered("hook").await;
    world.advance(200 * HOUR);
    let received = sink.wait_for(3, MAX_WAIT).await.unwrap();
    assert_eq!(blind(&received[2])["to"], json!(null));
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    world.outbox_grew.notify_one();
    let received = sink.wait_for(4, MAX_WAIT).await.unwrap();
    assert_eq!(blind(&received[3])["seconds"], json!(720_000.0));
    let asked = reads(&world);
    until("hearing was read", async || reads(&world) > asked + 1).await;
    world.notify_loss(&["a"]).await;
    assert_eq!(listed(&sink.wait_for(5, MAX_WAIT).await.unwrap()[4], "offline"), ["a"]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_was_notified_of_blindness_and_leaves_the_route_is_notified_of_its_end() {
    let (sink, other) = (hook().await, hook().await);
    let mut world = that_watch(&sink).await;
    world.stop().await;
    world.config.receivers.push(named("other", webhook_to(other.url(), None)));
    world.config.route.receivers.push("other".to_owned());
    world.start();
    watches(&world).await;
    world.advance(2 * HOUR);
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    other.wait_for(1, MAX_WAIT).await.unwrap();
    world.delivered("hook").await;
    world.delivered("other").await;
    world.stop().await;
    world.config.route.receivers.pop();
    world.start();
    watches(&world).await;
    world.advance(2 * HOUR);
    watches(&world).await;
    let to = world.clock.now();
    world.roll.canary_returned(to).await.unwrap();
    for receiver in [&sink, &other] {
        let received = receiver.wait_for(2, MAX_WAIT).await.unwrap();
        assert_eq!(blind(&received[1])["to"], json!(to));
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blindness_is_notified_without_the_engine_while_that_is_away() {
    let sink = hook().await;
    sink.answer_with([Answer::Status(503)]);
    let mut world = that_watch(&sink).await;
    let from = world.clock.now();
    world.redis.kill();
    world.advance(2 * HOUR);
    let received = sink.wait_for(2, 3 * MAX_WAIT).await.unwrap();
    assert_eq!(received[0].header("webhook-id"), received[1].header("webhook-id"));
    assert_eq!((&blind(&received[1])["from"], &blind(&received[1])["to"]), (&json!(from), &json!(null)));
    world.redis.restart();
    // The engine is back and nothing is heard yet: the interval is stored, and not notified again.
    let joined = world.commands("read_cells");
    until("it is written down", async || world.commands("read_cells") > joined).await;
    let to = world.clock.now();
    world.roll.canary_returned(to).await.unwrap();
    let received = sink.wait_for(3, 3 * MAX_WAIT).await.unwrap();
    assert_eq!((&blind(&received[2])["from"], &blind(&received[2])["to"]), (&json!(from), &json!(to)));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_blindness_of_one_kind_is_notified_while_it_lasts_and_so_is_its_end() {
    let sink = hook().await;
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.stop().await;
    world.config.blind_after = HOUR;
    world.config.filters = [("detector".parse().unwrap(), vec!["units/+/heartbeat".to_owned()])].into();
    world.start();
    let from = world.clock.now();
    let prove = async |at: Timestamp| {
        world.engine.prove(&Probed::all(&world.config.filters, at, HOUR)).await.unwrap();
        world.roll.canary_returned(at).await.unwrap();
    };
    prove(from).await;
    let asked = reads(&world);
    until("it watches", async || reads(&world) > asked).await;
    // The fleet is heard whenever the watch reads, and its one kind is not.
    world.roll.canary_returned(from + 2 * HOUR).await.unwrap();
    world.clock.advance(2 * HOUR);
    let received = sink.wait_for(1, MAX_WAIT).await.unwrap();
    let id = format!("blind:detector:{}", from.as_millis());
    let data = received[0].json()["data"].clone();
    assert_eq!((&data["kind"], &data["topics"]), (&json!("detector"), &json!("units/+/heartbeat")));
    assert_eq!((&blind(&received[0])["id"], &blind(&received[0])["to"]), (&json!(id), &json!(null)));
    let to = world.clock.now();
    prove(to).await;
    let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
    assert_eq!((&blind(&received[1])["id"], &blind(&received[1])["to"]), (&json!(id), &json!(to)));
    assert_eq!(received[1].json()["data"]["kind"], "detector");
    // Another instance reads the same ledger, and repeats no notification.
    world.stop().await;
    world.start();
    let joined = world.commands("read_cells");
    until("it was noticed again", async || world.commands("read_cells") > joined).await;
    world.notify_loss(&["a"]).await;
    assert_eq!(listed(&sink.wait_for(3, MAX_WAIT).await.unwrap()[2], "offline"), ["a"]);
    world.stop().await;
}

/// While the broker is away, neither the fleet nor its kinds are heard.
#[tokio::test(flavor = "multi_thread")]
async fn the_blindness_of_the_fleet_is_not_notified_once_more_of_each_kind() {
    let sink = hook().await;
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.stop().await;
    world.config.blind_after = HOUR;
    let filters = |kind: &str| (kind.parse().unwrap(), vec![format!("{kind}/+/heartbeat")]);
    world.config.filters = [filters("detector"), filters("pump")].into();
    world.start();
    let from = world.clock.now();
    let prove = async |at: Timestamp| {
        world.engine.prove(&Probed::all(&world.config.filters, at, HOUR)).await.unwrap();
    };
    // Probes are sent less often than canaries.
    prove(from).await;
    world.roll.canary_returned(from + Duration::from_secs(30)).await.unwrap();
    world.clock.advance(Duration::from_secs(30));
    let asked = reads(&world);
    until("it watches", async || reads(&world) > asked).await;
    world.clock.advance(2 * HOUR);
    let received = sink.wait_for(1, MAX_WAIT).await.unwrap();
    assert_eq!(received[0].json()["data"]["kind"], json!(null));
    // The canary is back before the first probe.
    let asked = reads(&world);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
    assert_eq!(received[1].json()["data"]["kind"], json!(null));
    until("it has looked at the kinds", async || reads(&world) > asked + 3).await;
    world.advance(Duration::from_secs(30));
    prove(world.clock.now()).await;
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    let asked = reads(&world);
    until("it has looked again", async || reads(&world) > asked + 3).await;
    world.notify_loss(&["a"]).await;
    assert_eq!(listed(&sink.wait_for(3, MAX_WAIT).await.unwrap()[2], "offline"), ["a"]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_was_never_heard_is_notified_as_well() {
    let sink = hook().await;
    let mut world = that_watch(&sink).await;
    world.stop().await;
    let mut client = world.redis.client();
    let () = ::redis::cmd("HDEL").arg("rollcall:{hearing}:heard").arg("at").query(&mut client).unwrap();
    assert_eq!(world.engine.hearing().await.unwrap().heard, None);
    let from = world.clock.now();
    world.start();
    let asked = reads(&world);
    until("it watches", async || reads(&world) > asked).await;
    world.advance(2 * HOUR);
    let received = sink.wait_for(1, MAX_WAIT).await.unwrap();
    assert_eq!((&blind(&received[0])["from"], &blind(&received[0])["to"]), (&json!(from), &json!(null)));
    let to = world.clock.now();
    world.roll.canary_returned(to).await.unwrap();
    let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
    assert_eq!((&blind(&received[1])["from"], &blind(&received[1])["to"]), (&json!(from), &json!(to)));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_blindness_is_notified_on_its_own() {
    let sink = hook().await;
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.advance(200 * HOUR);
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    world.joined().await;
    world.advance(WAIT);
    let received = &sink.wait_for(1, MAX_WAIT).await.unwrap()[0].json();
    assert_eq!(received["type"], "rollcall.blind");
    assert_eq!(received["data"]["intervals"][0]["seconds"], 720_000.0);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_lost_its_data_is_notified_as_such_and_not_as_blindness() {
    let sink = hook().await;
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    let mut client = world.redis.client();
    let () = ::redis::cmd("FLUSHALL").query(&mut client).unwrap();
    world.advance(Duration::from_secs(1));
    world.roll.canary_returned(world.clock.now()).await.unwrap();
    world.joined().await;
    world.advance(WAIT);
    let received = &sink.wait_for(1, MAX_WAIT).await.unwrap()[0].json();
    assert_eq!(received["type"], "rollcall.data_lost");
    assert_eq!(received["data"]["lost"], "the whole fleet");
    let text = received["data"]["text"].as_str().unwrap();
    assert!(text.contains("it lost the whole fleet") && text.contains("restore a backup"), "{text}");
    world.delivered("hook").await;
    assert_eq!(sink.received().len(), 1, "its second is no blindness that anybody is notified of");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_under_way_is_recorded_when_the_loops_stop() {
    let sink = hook().await;
    sink.answer_with([Answer::Hang]);
    let mut world = World::new("kind", vec![webhook_to(sink.url(), None)]).await;
    world.notify_loss(&["a"]).await;
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    let (stop, loops) = world.loops.take().unwrap();
    stop.cancel();
    sink.release();
    tokio::time::timeout(MAX_WAIT, loops).await.expect("the loops end").unwrap().unwrap();
    assert_eq!(
        StoredDeliveries::new(world.engine.clone()).backlog(&world.partitions(), "hook").await.unwrap(),
        Default::default(),
        "it was delivered"
    );
}

/// A route whose matchers change counts as gone, and its silences belong to no route.
#[tokio::test(flavor = "multi_thread")]
async fn receivers_of_a_route_that_is_gone_hear_of_returns_and_the_root_escalates_nothing_of_it() {
    for on in [On::Redis, On::Directory] {
        let (sink, boss) = (hook().await, hook().await);
        let receivers = vec![webhook_to(sink.url(), None), named("boss", webhook_to(boss.url(), None))];
        let mut world = World::on(on, "kind", receivers).await;
        world.stop().await;
        let root = world.config.route.clone();
        let of = |matchers: &str| Route {
            matchers: parse_matchers(matchers).unwrap(),
            receivers: vec!["hook".to_owned()],
            ..root.clone()
        };
        let escalate = vec![Escalation { after: HOUR / 2, receivers: vec!["boss".to_owned()] }];
        let route = &mut world.config.route;
        route.receivers = vec!["hook".to_owned()];
        route.pace.recoveries = Recoveries::None;
        route.again = FollowUps { repeat: None, escalate };
        route.routes = vec![of("unit=~\"a|b\"")];
        world.start();
        world.notify_loss(&["a"]).await;
        sink.wait_for(1, MAX_WAIT).await.unwrap();
        // Unit b waits in its group while the route changes.
        world.lose(&["b"]).await;
        world.joined().await;
        world.stop().await;
        world.config.route.routes = vec![of("unit=~\"a|b|c\"")];
        world.start();
        world.pass(HOUR).await;
        world.hear(&["a", "b"]).await;
        world.pass(60 * WAIT).await;
        let received = sink.received();
        let all = |list: &str| {
            let mut units: Vec<String> = received.iter().flat_map(|one| listed(one, list)).collect();
            units.sort_unstable();
            units
        };
        assert_eq!(
            (all("offline"), all("online")),
            (vec!["a".into(), "b".into()], vec!["a".into(), "b".into()])
        );
        assert_eq!(boss.received().len(), 0);
        world.stop().await;
    }
}
