//! Claims about services: each is configured as an operator does it, and its requests are compared with the request
//! that the service documents.

use rollcall::store::StoredDeliveries;
use std::time::Duration;

use rollcall::alerting::{Example, Failure, Format, ReceiverConfig, open, render, send_test};
use rollcall::config;
use rollcall::fleet::UnitChange;
use rollcall::presence::{Acknowledgement, FirstUnit, Incident};
use rollcall::simulate::webhook_sink::{Answer, Options, Received, WebhookSink};
use serde_json::Value;

use super::shapes::differences;
use super::world::{self, On, World, until};
use super::*;

const KEY: &str = "k3y-that-nothing-shows";

/// A receiver from a configuration in which every file that it names holds [`KEY`], or the address of the sink.
pub fn configured(kind: &str, options: &str, sink: &WebhookSink) -> ReceiverConfig {
    let dir = tempfile::tempdir().unwrap();
    for name in ["token", "routing_key", "api_key", "user_key"] {
        std::fs::write(dir.path().join(name), KEY).unwrap();
    }
    std::fs::write(dir.path().join("url"), format!("{}/{KEY}", sink.url())).unwrap();
    let options = options.replace("SINK", &sink.base());
    let text = format!(
        "[http]\nexternal_url = \"https://rollcall.example.org\"\n\
         [[receiver]]\nname = \"hook\"\ntype = \"{kind}\"\n{options}\n[route]\nreceivers = [\"hook\"]"
    );
    let config = config::parse(&text, Some(&dir.path().join("rollcall.toml")), []);
    config.unwrap_or_else(|error| panic!("{error}")).alerting.receivers.remove(0)
}

/// Every service with its options and the shape of its requests.
fn all() -> [(&'static str, &'static str, Value); 8] {
    [
        ("slack", "url_file = \"url\"", shapes::slack()),
        ("teams", "url_file = \"url\"", shapes::teams()),
        ("discord", "url_file = \"url\"", shapes::discord()),
        ("pagerduty", "url = \"SINK/v2/enqueue\"\nrouting_key_file = \"routing_key\"", shapes::pagerduty()),
        ("opsgenie", "url = \"SINK/\"\napi_key_file = \"api_key\"", shapes::opsgenie()),
        (
            "telegram",
            "url = \"SINK\"\ntoken_file = \"token\"\nchat_id = \"-100123\"\nthread_id = \"7\"",
            shapes::telegram(),
        ),
        ("ntfy", "url = \"SINK\"\ntopic = \"fleet\"\ntoken_file = \"token\"", shapes::ntfy()),
        (
            "pushover",
            "url = \"SINK/\"\ntoken_file = \"token\"\nuser_key_file = \"user_key\"\npriority = \"1\"",
            shapes::pushover(),
        ),
    ]
}

async fn sink() -> WebhookSink {
    WebhookSink::start(Options::default()).await.unwrap()
}

fn shape_of<'a>(kind: &str, shape: &'a Value, request: &Received, change: &'a Value) -> &'a Value {
    let is_change = request.path.ends_with("/close") || request.path.ends_with("/acknowledge");
    if kind == "opsgenie" && is_change { change } else { shape }
}

#[tokio::test]
async fn every_service_gets_the_request_that_it_documents() {
    let close = shapes::opsgenie_change();
    for (kind, options, shape) in all() {
        let sink = sink().await;
        let receiver = configured(kind, options, &sink);
        let channel = open(&receiver).unwrap();
        for example in Example::ALL {
            channel.send(&example.delivery("hook"), now()).await.unwrap();
        }
        let named = silent("detector:a\"\\<b>&*_[x](y)@everyone", now());
        channel.send(&delivery(vec![named.clone()], vec![]), now()).await.unwrap();
        channel.send(&delivery(vec![taken_care_of(&named)], vec![]), now()).await.unwrap();
        send_test(&receiver, now()).await.unwrap();
        let received = sink.received();
        assert!(received.len() >= 6, "{kind}");
        for request in received {
            let shape = shape_of(kind, &shape, &request, &close);
            let wrong = differences(shape, &request.json());
            assert!(wrong.is_empty(), "{kind}: {wrong:#?}\n{}", String::from_utf8_lossy(&request.body));
            assert_eq!(request.method, "POST");
            assert_eq!(request.header("content-type"), "application/json");
        }
    }
}

#[tokio::test]
async fn no_secret_is_in_an_error_or_in_what_is_rendered() {
    for (kind, options, _) in all() {
        let sink = sink().await;
        let receiver = configured(kind, options, &sink);
        sink.answer_with([Answer::Say(400, format!("unknown key {KEY}"))]);
        let failure = send_test(&receiver, now()).await.unwrap_err();
        assert!(failure.to_string().contains("400"), "{kind}: {failure}");
        assert!(!failure.to_string().contains(KEY), "{kind}: {failure}");
        assert!(!format!("{receiver:?}").contains(KEY), "{kind}");
        let (_, text) = render(&receiver, Example::Storm).unwrap();
        assert!(!text.contains(KEY) && !text.is_empty(), "{kind}: {text}");
        let uses_it = |request: &Received| {
            let whole =
                format!("{} {:?} {}", request.path, request.headers, String::from_utf8_lossy(&request.body));
            whole.contains(KEY)
        };
        assert!(sink.received().iter().any(uses_it), "{kind} is not asked with its secret");
    }
}

/// The record when an operator takes care of it.
fn taken_care_of(record: &OfflineRecord) -> OfflineRecord {
    let (author, comment) = ("ana \"<b>".to_owned(), "on my way".to_owned());
    OfflineRecord { acknowledged: Some(Acknowledgement { at: now(), author, comment }), ..record.clone() }
}

/// The action of each delivery at a pager, `trigger`, `acknowledge` or `resolve`, and its key.
async fn pages(kind: &str, deliveries: &[Delivery]) -> Vec<(String, String)> {
    let (_, options, _) = all().into_iter().find(|(name, ..)| *name == kind).unwrap();
    let sink = sink().await;
    let channel = open(&configured(kind, options, &sink)).unwrap();
    for delivery in deliveries {
        channel.send(delivery, now()).await.unwrap();
    }
    let page = |request: &Received| {
        let (json, path) = (request.json(), request.path.clone());
        let text = |name: &str| json[name].as_str().unwrap().to_owned();
        if kind == "pagerduty" {
            assert_eq!(path, "/v2/enqueue");
            return (text("event_action"), text("dedup_key"));
        }
        assert_eq!(request.header("authorization"), format!("GenieKey {KEY}"));
        let Some(path) = path.strip_prefix("/v2/alerts/") else {
            return ("trigger".to_owned(), text("alias"));
        };
        assert_eq!(request.query, "identifierType=alias");
        let (key, change) = path.rsplit_once('/').unwrap();
        let change = if change == "close" { "resolve" } else { change };
        (change.to_owned(), percent_encoding::percent_decode_str(key).decode_utf8().unwrap().into_owned())
    };
    sink.received().iter().map(page).collect()
}

#[tokio::test]
async fn an_alert_is_opened_acknowledged_and_closed_under_one_key() {
    let record = silent("detector:pump 7", now());
    for kind in ["pagerduty", "opsgenie"] {
        let silence = delivery(vec![record.clone()], vec![]);
        let acknowledged =
            Delivery { id: "ack_1.hook".to_owned(), ..delivery(vec![taken_care_of(&record)], vec![]) };
        let returned = delivery(vec![], vec![back(&taken_care_of(&record), now())]);
        let expected =
            ["trigger", "acknowledge", "resolve"].map(|what| (what.to_owned(), record.id.to_string()));
        assert_eq!(pages(kind, &[silence, acknowledged, returned]).await, expected, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_before_the_page_follows_it() {
    for on in [On::Redis, On::Directory] {
        let sink = sink().await;
        let mut world = World::on(on, "unit", vec![pager(&sink)]).await;
        world.lose(&["a"]).await;
        world.joined().await;
        world.acknowledge("a").await;
        world.joined().await;
        world.advance(world::WAIT);
        let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
        assert_eq!(actions(&received), ["trigger", "acknowledge"]);
        world.hear(&["a"]).await;
        world.joined().await;
        world.delivered("hook").await;
        world.advance(60 * world::WAIT);
        let received = sink.wait_for(3, MAX_WAIT).await.unwrap();
        assert_eq!(actions(&received), ["trigger", "acknowledge", "resolve"]);
        world.stop().await;
        assert_eq!(sink.received().len(), 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_alerts_of_a_unit_that_is_removed_are_closed_and_other_receivers_are_not_notified() {
    for on in [On::Redis, On::Directory] {
        let (sink, chat, alerts) = (sink().await, world::hook().await, world::hook().await);
        let config =
            WebhookConfig { url: alerts.url(), format: Format::Alertmanager, ..WebhookConfig::default() };
        let receivers = vec![
            pager(&sink),
            world::named("chat", webhook_to(chat.url(), None)),
            receiver("alerts", webhook_of(config)),
        ];
        let mut world = World::on(on, "unit", receivers).await;
        world.notify_loss(&["a"]).await;
        sink.wait_for(1, MAX_WAIT).await.unwrap();
        chat.wait_for(1, MAX_WAIT).await.unwrap();
        world.sent().await;
        let (unit, now) = (world::unit("a"), world.clock.now());
        assert!(world.roll.change(&unit, None, &UnitChange::Remove, now, async { Ok(()) }).await.unwrap());
        world.outbox_grew.notify_one();
        let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
        assert_eq!(actions(&received), ["trigger", "resolve"]);
        assert_eq!(received[0].json()["dedup_key"], received[1].json()["dedup_key"]);
        let ended = alerts.wait_for(2, MAX_WAIT).await.unwrap()[1].json();
        assert_eq!(
            (&ended["status"], &ended["alerts"][0]["labels"]["unit"]),
            (&"resolved".into(), &"a".into())
        );
        world.joined().await;
        world.advance(60 * world::WAIT);
        world.sent().await;
        world.stop().await;
        assert_eq!((sink.received().len(), chat.received().len()), (2, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_an_incident_is_acknowledged_with_the_last_of_its_units() {
    for (on, last) in [(On::Redis, "is acknowledged"), (On::Directory, "is back")] {
        let sink = sink().await;
        let mut world = World::on(on, "kind", vec![pager(&sink)]).await;
        let north: Vec<String> = (0..6).map(|number| format!("n{number}")).collect();
        world.hear_at("north", &north).await;
        world.advance(world::TIMEOUT + Duration::from_secs(1));
        world.check(&north).await;
        world.advance(2 * world::WAIT);
        let first = sink.wait_for(1, MAX_WAIT).await.unwrap();
        let page = first[0].json()["dedup_key"].clone();
        assert!(page.as_str().unwrap().starts_with("incident:"), "{page}");
        for unit in &north[..4] {
            world.acknowledge(unit).await;
        }
        world.sent().await;
        // A unit of the site north returns, without an operator.
        world.hear_at("north", &north[4..5]).await;
        world.delivered("hook").await;
        world.advance(60 * world::WAIT);
        world.sent().await;
        assert_eq!(sink.received().len(), 1, "one unit is still without an operator");
        match last {
            "is acknowledged" => world.acknowledge(&north[5]).await,
            _ => {
                world.hear_at("north", &north[5..6]).await;
                world.advance(60 * world::WAIT);
            }
        }
        let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
        assert_eq!(actions(&received), ["trigger", "acknowledge"], "{last}");
        assert_eq!(received[1].json()["dedup_key"], page);
        // An acknowledged page calls no operator again.
        world.advance(world::TIMEOUT + Duration::from_secs(1));
        world.check(&north[4..5]).await;
        world.advance(60 * world::WAIT);
        let received = sink.wait_for(3, MAX_WAIT).await.unwrap();
        assert_eq!(actions(&received)[2..], ["trigger"], "{last}");
        assert_ne!(received[2].json()["dedup_key"], page);
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_an_incident_is_closed_when_its_last_units_are_removed() {
    for on in [On::Redis, On::Directory] {
        let (sink, chat) = (sink().await, world::hook().await);
        let receivers = vec![pager(&sink), world::named("chat", webhook_to(chat.url(), None))];
        let mut world = World::on(on, "kind", receivers).await;
        let fall_silent = async |units: &[String]| {
            world.hear_at("north", units).await;
            world.advance(world::TIMEOUT + Duration::from_secs(1));
            world.check(units).await;
            world.advance(2 * world::WAIT);
        };
        let remove = async |units: &[String]| {
            for unit in units {
                assert!(world.roll.retire(&world::unit(unit), world.clock.now()).await.unwrap());
            }
            world.joined().await;
            world.sent().await;
        };
        let (first, next) = (super::incidents::names("first", 6), super::incidents::names("next", 6));
        fall_silent(&first).await;
        let page = sink.wait_for(1, MAX_WAIT).await.unwrap()[0].json()["dedup_key"].clone();
        assert!(page.as_str().unwrap().starts_with("incident:"), "{page}");
        remove(&first[..5]).await;
        assert_eq!(sink.received().len(), 1, "one unit is still offline");
        remove(&first[5..]).await;
        let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
        assert_eq!(actions(&received), ["trigger", "resolve"]);
        assert_eq!(received[1].json()["dedup_key"], page);

        // The next incident has nothing of the first one.
        fall_silent(&next).await;
        let received = sink.wait_for(3, MAX_WAIT).await.unwrap();
        assert_eq!(actions(&received), ["trigger", "resolve", "trigger"]);
        assert_ne!(received[2].json()["dedup_key"], page);
        let incident = chat.wait_for(2, MAX_WAIT).await.unwrap()[1].json()["data"]["incident"].clone();
        assert_eq!((&incident["offline"], &incident["units"]), (&6.into(), &6.into()));
        assert_eq!(incident["first"]["unit"], "next-00");
        world.stop().await;
        assert_eq!((sink.received().len(), chat.received().len()), (3, 2));
    }
}

pub fn pager(sink: &WebhookSink) -> ReceiverConfig {
    let (_, options, _) = all().into_iter().find(|(name, ..)| *name == "pagerduty").unwrap();
    configured("pagerduty", options, sink)
}

/// The action of each request to PagerDuty.
pub fn actions(received: &[Received]) -> Vec<String> {
    let action = |one: &Received| one.json()["event_action"].as_str().unwrap().to_owned();
    received.iter().map(action).collect()
}

impl World {
    /// Waits until the outbox is empty and nothing waits for the pager.
    async fn sent(&self) {
        self.joined().await;
        self.sealed().await;
        self.delivered("hook").await;
    }

    /// Acknowledges the open record of a unit, as an operator.
    pub async fn acknowledge(&self, id: &str) {
        let change = UnitChange::Acknowledge(taken_care_of(&silent("detector:a", now())).acknowledged);
        let (unit, now) = (world::unit(id), self.clock.now());
        assert!(self.roll.change(&unit, None, &change, now, async { Ok(()) }).await.unwrap());
        self.outbox_grew.notify_one();
    }
}

#[tokio::test]
async fn an_incident_is_one_page_and_units_outside_of_it_have_their_own() {
    let at = now();
    let at_site = |unit: &str, site: &str| OfflineRecord {
        labels: labels(&[("site", site)]),
        ..silent(&format!("detector:{unit}"), at)
    };
    let north: Vec<_> = (0..20).map(|n| at_site(&format!("n{n}"), "north")).collect();
    // Two units were notified before they were known to be part of an incident.
    let early: Vec<_> = north[..2]
        .iter()
        .map(|one| OfflineRecord { detected_at: one.detected_at - HOUR, ..one.clone() })
        .collect();
    let south = at_site("s", "south");
    let first = FirstUnit { kind: "detector".to_owned(), unit: "n0".to_owned() };
    let incident = Incident {
        label: "site".to_owned(),
        value: "north".to_owned(),
        offline: 20,
        units: 22,
        since: at,
        first,
        still_offline: 20,
        until: None,
        notified_from: Some(north[2].detected_at),
        acknowledged_at: None,
    };
    let with = |until: Option<Timestamp>, one: Delivery| Delivery {
        situation: GroupContext {
            incident: Some(Incident { until, ..incident.clone() }),
            ..GroupContext::default()
        },
        ..one
    };
    let all_back =
        |records: &[OfflineRecord]| records.iter().map(|one| back(one, at + HOUR)).collect::<Vec<_>>();
    let storm = [&north[2..], std::slice::from_ref(&south)].concat();
    let deliveries = [
        delivery(early.clone(), vec![]),
        with(None, delivery(storm, vec![])),
        with(None, delivery(vec![], all_back(&[&early[..1], &north[2..4]].concat()))),
        with(Some(at + HOUR), delivery(vec![], all_back(&[&early[1..], &north[4..]].concat()))),
        delivery(vec![], all_back(std::slice::from_ref(&south))),
    ];
    for kind in ["pagerduty", "opsgenie"] {
        let pages = pages(kind, &deliveries).await;
        let incident = pages[2].1.clone();
        assert!(incident.starts_with("incident:"), "{incident}");
        let [one, two] = [0, 1].map(|n| early[n].id.to_string());
        let expected = [
            ("trigger", &one),
            ("trigger", &two),
            ("trigger", &incident),
            ("trigger", &south.id.to_string()),
            ("resolve", &one),
            ("resolve", &incident),
            ("resolve", &two),
            ("resolve", &south.id.to_string()),
        ];
        assert_eq!(pages, expected.map(|(what, key)| (what.to_owned(), key.clone())), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pager_is_told_that_an_operator_takes_care_of_a_silence_and_other_receivers_are_not() {
    let (sink, other) = (sink().await, sink().await);
    let hook = world::named("other", webhook_to(other.url(), None));
    let mut world = World::new("unit", vec![pager(&sink), hook]).await;
    world.notify_loss(&["a"]).await;
    sink.wait_for(1, MAX_WAIT).await.unwrap();
    world.acknowledge("a").await;
    let received = sink.wait_for(2, MAX_WAIT).await.unwrap();
    let part = |name: &str| received.iter().map(|one| one.json()[name].clone()).collect::<Vec<_>>();
    assert_eq!(part("event_action"), ["trigger", "acknowledge"]);
    let keys = part("dedup_key");
    assert_eq!(keys[0], keys[1]);
    world.hear(&["a"]).await;
    world.joined().await;
    world.delivered("hook").await;
    world.advance(60 * world::WAIT);
    assert_eq!(sink.wait_for(3, MAX_WAIT).await.unwrap()[2].json()["event_action"], "resolve");
    other.wait_for(2, MAX_WAIT).await.unwrap();
    assert_eq!(other.received().len(), 2);
    assert_eq!(world.metric("rollcall_unit_transitions_total", &["offline"]), 1.0);
    world.stop().await;
}

#[tokio::test]
async fn a_storm_of_alerts_goes_on_where_a_rate_limit_stopped_it() {
    let sink = sink().await;
    let (_, options, _) = all().into_iter().find(|(kind, ..)| *kind == "pagerduty").unwrap();
    let channel = open(&configured("pagerduty", options, &sink)).unwrap();
    let storm: Vec<_> = (0..10).map(|at| silent(&format!("detector:{at}"), now())).collect();
    let storm = delivery(storm, vec![]);
    sink.answer_with((0..4).map(|_| Answer::Status(202)).chain([Answer::RetryAfter(429, "17".to_owned())]));
    let failure = channel.send(&storm, now()).await.unwrap_err();
    let asked = Some(Duration::from_secs(17));
    assert!(
        matches!(&failure, Failure::Temporary { retry_after, .. } if *retry_after == asked),
        "{failure:?}"
    );
    channel.send(&storm, now()).await.unwrap();
    let keys: Vec<Value> =
        sink.received().iter().map(|request| request.json()["dedup_key"].clone()).collect();
    assert_eq!(keys.len(), 11, "four are not sent again");
    assert_eq!(keys[4], keys[5], "the refused one is");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pager_that_takes_a_part_has_not_failed_and_gets_the_rest_when_it_says() {
    const MINUTE: Duration = Duration::from_secs(60);
    let sink = sink().await;
    let mut world = World::new("kind", vec![pager(&sink)]).await;
    // The pager accepts one alert a minute.
    let answers = (0..11).flat_map(|_| [Answer::Status(202), Answer::RetryAfter(429, "60".to_owned())]);
    sink.answer_with(answers);
    let ids: Vec<String> = (0..12).map(|number| format!("u{number}")).collect();
    world.notify_loss(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for taken in 1..12 {
        sink.wait_for(2 * taken, MAX_WAIT).await.unwrap();
        // The rest is due soon, but the pager is left alone for a minute.
        let next = world.clock.now() + crate::FIRST_RETRY;
        until("the rest waits", async || {
            StoredDeliveries::new(world.engine.clone())
                .first_lease(&world.partitions(), "hook")
                .await
                .unwrap()
                == Some(next)
        })
        .await;
        let problems = world.telemetry.problems();
        assert!(problems.iter().all(|problem| problem.name != "not_delivered"), "{problems:?}");
        world.advance(MINUTE);
    }
    world.delivered("hook").await;
    let received = sink.received();
    let keys: std::collections::BTreeSet<String> =
        received.iter().map(|request| request.json()["dedup_key"].to_string()).collect();
    assert_eq!((received.len(), keys.len()), (23, 12));
    world.stop().await;
}

#[tokio::test]
async fn an_operator_may_write_title_and_text() {
    let sink = sink().await;
    let options = "url_file = \"url\"\nzone = \"Europe/Berlin\"\ntitle = \"{{ offline | length }} down\"\n\
                   text = \"{% for record in offline %}{{ record.unit }} {{ record.deadline | time('%Z') }}{% endfor \
                            %}\"";
    let channel = open(&configured("discord", options, &sink)).unwrap();
    let winter = Timestamp::from_millis(1_768_471_200_000);
    channel.send(&delivery(vec![silent("detector:a", winter)], vec![]), now()).await.unwrap();
    let embed = &sink.received()[0].json()["embeds"][0];
    assert_eq!([&embed["title"], &embed["description"]], ["1 down", "a CET"]);
    assert!(embed["url"].as_str().unwrap().starts_with("https://rollcall.example.org/units/detector/a"));
}

#[test]
fn an_option_that_is_missing_wrong_or_of_another_service_is_named() {
    let cases = [
        ("type = \"slack\"", "receiver[0].url: is missing or not an address"),
        ("type = \"telegram\"\nchat_id = \"1\"", "receiver[0].token_file: is missing"),
        (
            "type = \"telegram\"\ntopic = \"x\"",
            "receiver[0].topic: is not an option of a receiver of type telegram",
        ),
        (
            "type = \"pagerduty\"\nseverity = \"bad\"",
            "receiver[0].severity: \"bad\" is not possible; write one of",
        ),
        (
            "type = \"ntfy\"\ntopic = \"x\"\nzone = \"Mars\"",
            "receiver[0].zone: there is no zone \"Mars\"; write",
        ),
        ("type = \"ntfy\"\ntopic = \"x\"\ntitle = \"{{ unit }}\"", "title, line 1: "),
        ("type = \"exec\"\ncommand = [\"notify\"]", "is not an absolute path"),
        ("type = \"webhook\"\nurl = \"http://h\"\nbody = \"x\"", "receiver[0].body: belongs to format"),
        (
            "type = \"webhook\"\nurl = \"http://h\"\nca_file = \"x\"",
            "receiver[0].ca_file: is of no use without TLS",
        ),
        (
            "type = \"mqtt\"\nurl = \"mqtt://h\"\nrate_limit = { messages = 9 }",
            "receiver[0].rate_limit.messages: is of no use for a broker",
        ),
        ("type = \"sms\"", "unknown value `sms`"),
    ];
    for (options, expected) in cases {
        let text = format!("[[receiver]]\nname = \"hook\"\n{options}\n[route]\nreceivers = [\"hook\"]");
        let error = config::parse(&text, None, []).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n--- expected\n{expected}");
    }
}

#[tokio::test]
async fn a_loss_of_data_pages_an_operator_and_stays_open() {
    let sink = sink().await;
    let (kind, options, _) = all().into_iter().find(|(kind, ..)| *kind == "pagerduty").unwrap();
    let channel = open(&configured(kind, options, &sink)).unwrap();
    channel.send(&Example::DataLost.delivery("hook"), now()).await.unwrap();
    let received: Vec<Value> = sink.received().iter().map(Received::json).collect();
    let [event] = &received[..] else { panic!("{received:?}") };
    assert_eq!(event["event_action"], "trigger");
    assert_eq!(event["payload"]["summary"], "DATA LOST: the engine lost the whole fleet");
}
