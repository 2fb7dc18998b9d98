//! Claims about the webhook channel.

use std::time::Duration;

use rollcall::alerting::{Failure, Format, open, probe, send_test};
use rollcall::presence::Interval;
use rollcall::simulate::webhook_sink::{Answer, Options, WebhookSink};
use serde_json::json;

use super::*;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

async fn sink() -> WebhookSink {
    WebhookSink::start(Options::default()).await.unwrap()
}

/// The outcome of an attempt with this answer of the sink, and the number of requests to the sink.
async fn answered(answer: Answer) -> (Result<(), Failure>, usize) {
    let sink = sink().await;
    sink.answer_with([answer]);
    let channel = open(&webhook_to(sink.url(), None)).unwrap();
    let result = channel.send(&delivery(vec![silent("detector:a", now())], vec![]), now()).await;
    (result.map(|_| ()), sink.received().len())
}

#[tokio::test]
async fn a_notification_has_the_documented_body_and_a_signature_that_verifies() {
    let sink = WebhookSink::start(Options { secret: Some(SECRET.to_owned()), ..Options::default() });
    let sink = sink.await.unwrap();
    let (down, up) = (silent("detector:a", now()), silent("detector:b", now()));
    let mut delivery = delivery(vec![down.clone()], vec![back(&up, now())]);
    let channel = open(&webhook_to(sink.url(), Some(SECRET))).unwrap();
    channel.send(&delivery, now()).await.unwrap();
    delivery.attempt = 2;
    channel.send(&delivery, now() + Duration::from_secs(60)).await.unwrap();

    let received = sink.received();
    let expected = json!({
        "type": "rollcall.notification",
        "timestamp": delivery.sealed_at,
        "data": {
            "receiver": "hook",
            "group": {"kind": "detector"},
            "offline": [down],
            "online": [delivery.online[0]],
            "reminder": false,
            "still_offline": null,
            "incident": null,
            "truncated": 0,
        },
    });
    assert_eq!(received[0].json(), expected);
    assert_eq!(received[0].header("webhook-id"), delivery.id);
    assert_eq!(received[0].header("content-type"), "application/json");
    assert!(received[0].header("user-agent").starts_with("rollcall/"));
    // The next attempt has the same body and id, and its own timestamp.
    assert_eq!(received[1].body, received[0].body);
    assert_eq!(received[1].header("webhook-id"), delivery.id);
    assert_ne!(received[1].header("webhook-timestamp"), received[0].header("webhook-timestamp"));
}

#[tokio::test]
async fn a_body_of_a_storm_is_bounded_and_says_how_many_records_are_left_out() {
    let storm: Vec<_> = (0..10_000).map(|at| silent(&format!("detector:{at:0>120}"), now())).collect();
    let all = delivery(storm, vec![back(&silent("gate:1", now()), now())]);
    for format in [Format::Rollcall, Format::Alertmanager] {
        let (sink, is_own) = (sink().await, format == Format::Rollcall);
        let config = WebhookConfig { url: sink.url(), format, ..WebhookConfig::default() };
        open(&receiver("hook", webhook_of(config))).unwrap().send(&all, now()).await.unwrap();
        let received = sink.received().remove(0);
        assert!(received.body.len() < 5 << 20, "{} bytes", received.body.len());
        let body = received.json();
        let (listed, left_out) = match is_own {
            true => (&body["data"]["offline"], &body["data"]["truncated"]),
            false => (&body["alerts"], &body["truncatedAlerts"]),
        };
        let listed = listed.as_array().unwrap().len() as u64;
        assert!(listed > 1000 && listed + left_out.as_u64().unwrap() == 10_001, "{listed} and {left_out}");
        if is_own {
            let counts = json!([
                {"label": "kind", "value": "detector", "offline": 10_000, "online": 0},
                {"label": "kind", "value": "gate", "offline": 0, "online": 1},
            ]);
            assert_eq!(body["data"]["counts"], counts);
        }
    }
}

/// Otherwise such a request would block its group until it is given up, days later.
#[tokio::test]
async fn a_body_that_the_server_refuses_as_too_large_is_shorter_at_the_next_attempt() {
    let storm: Vec<_> = (0..500).map(|at| silent(&format!("detector:{at}"), now())).collect();
    let all = delivery(storm, vec![]);
    for format in [Format::Rollcall, Format::Alertmanager, Format::CloudEvents] {
        let sink = sink().await;
        sink.answer_with([Answer::Status(413), Answer::Status(413)]);
        let config = WebhookConfig { url: sink.url(), format, ..WebhookConfig::default() };
        let channel = open(&receiver("hook", webhook_of(config))).unwrap();
        for _ in 0..2 {
            let failure = channel.send(&all, now()).await.unwrap_err();
            assert!(
                matches!(&failure, Failure::Partial { why, .. } if why.contains("fewer units")),
                "{failure}"
            );
        }
        channel.send(&all, now()).await.unwrap();
        let lengths: Vec<usize> = sink.received().iter().map(|one| one.body.len()).collect();
        assert!(lengths[1] < lengths[0] * 2 / 3 && lengths[2] < lengths[1] * 2 / 3, "{lengths:?}");
        assert_eq!(sink.received()[2].header("webhook-id"), all.id);
    }
    // A request that cannot become shorter waits for the operator.
    let (failed, _) = answered(Answer::Status(413)).await;
    assert!(matches!(&failed, Err(Failure::TooLarge { .. })), "{failed:?}");
}

#[tokio::test]
async fn a_wrong_or_missing_signature_is_refused_by_a_verifier() {
    let options = || Options { secret: Some(SECRET.to_owned()), ..Options::default() };
    for secret in [None, Some("whsec_d3JvbmcgYnV0IGxvbmcgZW5vdWdoIQ==")] {
        let sink = WebhookSink::start(options()).await.unwrap();
        let channel = open(&webhook_to(sink.url(), secret)).unwrap();
        let result = channel.send(&delivery(vec![], vec![]), now()).await;
        assert!(matches!(result, Err(Failure::Temporary { why, .. }) if why.contains("401")));
        assert_eq!(sink.received()[0].header("webhook-signature").is_empty(), secret.is_none());
    }
}

#[tokio::test]
async fn blindness_has_a_type_of_its_own() {
    let sink = sink().await;
    let from = now();
    let blind = Interval { from, to: from + Duration::from_millis(400_500) };
    let delivery = Delivery { blind: vec![blind], ..delivery(vec![], vec![]) };
    open(&webhook_to(sink.url(), None)).unwrap().send(&delivery, now()).await.unwrap();
    let expected = json!({
        "type": "rollcall.blind",
        "timestamp": delivery.sealed_at,
        "data": {
            "receiver": "hook",
            "intervals": [{"id": format!("blind:{}", blind.from.as_millis()), "from": blind.from, "to": blind.to, "seconds": 400.5}],
        },
    });
    assert_eq!(sink.received()[0].json(), expected);
}

#[tokio::test]
async fn answers_that_may_pass_are_temporary() {
    for status in [408, 425, 429, 500, 502, 503, 504] {
        let (result, asked) = answered(Answer::Status(status)).await;
        let why = matches!(&result, Err(Failure::Temporary { why, retry_after: None }) if why.contains(&status.to_string()));
        assert!(why, "{status}: {result:?}");
        assert_eq!(asked, 1);
    }
}

#[tokio::test]
async fn blindness_that_lasts_has_no_end() {
    let sink = sink().await;
    let blind = Interval { from: now(), to: Timestamp::NEVER };
    let delivery = Delivery { blind: vec![blind], ..delivery(vec![], vec![]) };
    open(&webhook_to(sink.url(), None)).unwrap().send(&delivery, now()).await.unwrap();
    let id = format!("blind:{}", blind.from.as_millis());
    let expected = json!([{"id": id, "from": blind.from, "to": null, "seconds": null}]);
    assert_eq!(sink.received()[0].json()["data"]["intervals"], expected);
}

#[tokio::test]
async fn a_refusal_is_retried_because_an_operator_may_fix_its_reason() {
    for status in [300, 304, 400, 401, 403, 404, 405, 407, 422, 451, 499] {
        let (result, asked) = answered(Answer::Status(status)).await;
        let names_it =
            matches!(&result, Err(Failure::Temporary { why, .. }) if why.contains(&status.to_string()));
        assert!(names_it, "{status}: {result:?}");
        assert_eq!(asked, 1);
    }
}

#[tokio::test]
async fn the_answer_of_a_receiver_is_shown_on_one_line_and_shortened() {
    let said = format!("no\r\nlevel=error msg=\"faked\"\u{1b}[2J\u{202e}{}", "x".repeat(10_000));
    let (result, _) = answered(Answer::Say(404, said)).await;
    let Err(Failure::Temporary { why, .. }) = result else { panic!("{result:?}") };
    assert!(why.contains("404") && why.contains("no  level=error"), "{why}");
    assert!(!why.chars().any(|c| c.is_control() || c == '\u{202e}'), "{why:?}");
    assert!(why.len() < 400, "{} bytes", why.len());
}

#[tokio::test]
async fn retry_after_is_handed_on() {
    for status in [404, 429, 503] {
        let (result, _) = answered(Answer::RetryAfter(status, "37".to_owned())).await;
        let asked = |wait: &Option<Duration>| *wait == Some(Duration::from_secs(37));
        assert!(matches!(&result, Err(Failure::Temporary { retry_after, .. }) if asked(retry_after)));
    }
}

#[tokio::test]
async fn gone_has_an_error_of_its_own() {
    let (result, _) = answered(Answer::Status(410)).await;
    assert!(matches!(result, Err(Failure::Gone { .. })), "{result:?}");
}

#[tokio::test]
async fn a_redirect_is_a_failure_and_is_not_followed() {
    let elsewhere = sink().await;
    let (result, asked) = answered(Answer::Redirect(elsewhere.url())).await;
    assert!(
        matches!(&result, Err(Failure::Temporary { why, .. }) if why.contains("change its url")),
        "{result:?}"
    );
    assert_eq!((asked, elsewhere.received().len()), (1, 0));
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_after_the_timeout() {
    let sink = sink().await;
    sink.answer_with([Answer::Hang]);
    let receiver = ReceiverConfig { timeout: Duration::from_millis(200), ..webhook_to(sink.url(), None) };
    let result = send_test(&receiver, now()).await;
    assert!(
        matches!(&result, Err(Failure::Temporary { why, .. }) if why.contains("within 200ms")),
        "{result:?}"
    );
    assert_eq!(sink.received().len(), 1);
}

#[tokio::test]
async fn an_unreachable_server_and_one_without_tls_are_temporary_and_the_secret_part_of_the_address_stays_secret()
 {
    let closed = rollcall::simulate::servers::free_port().unwrap();
    let plain = sink().await;
    for address in [
        format!("http://user:s3cret@127.0.0.1:{closed}/s3cret?key=s3cret"),
        format!("https://user:s3cret@127.0.0.1:{}/s3cret?key=s3cret", plain.port()),
    ] {
        let receiver = webhook_to(address, None);
        let sent = send_test(&receiver, now()).await.unwrap_err();
        let probed = probe(&receiver).await.unwrap_err();
        for failure in [sent, probed] {
            assert!(matches!(failure, Failure::Temporary { .. }), "{failure:?}");
            assert!(!failure.to_string().contains("s3cret"), "{failure}");
            assert!(failure.to_string().contains("127.0.0.1"), "{failure}");
        }
    }
}

#[tokio::test]
async fn a_probe_connects_and_posts_nothing() {
    let sink = sink().await;
    probe(&webhook_to(sink.url(), None)).await.unwrap();
    assert!(sink.received().is_empty());
}

#[tokio::test]
async fn a_test_is_plainly_a_test() {
    let sink = sink().await;
    send_test(&webhook_to(sink.url(), None), now()).await.unwrap();
    assert_eq!(sink.received()[0].json()["type"], "rollcall.test");
}

#[tokio::test]
async fn a_hostile_id_stays_within_its_json_string() {
    let sink = sink().await;
    let record = silent("detector:\"},{\\ <script>", now());
    let delivery = delivery(vec![record.clone()], vec![]);
    open(&webhook_to(sink.url(), None)).unwrap().send(&delivery, now()).await.unwrap();
    assert_eq!(sink.received()[0].json()["data"]["offline"][0]["unit"], record.unit.as_str());
}
