//! The timeline of a unit, and how much of the time it was online.

use std::sync::Arc;

use reqwest::header::CONTENT_TYPE;
use rollcall::clock::parse_moment;
use rollcall::store::{AttemptEnd, AttemptMade, Delivery, EndedLease, Group, Queries, StoredDeliveries};
use serde_json::{Value, json};

use super::world::{Fleet, SECOND, assert_problem};

#[tokio::test]
async fn the_timeline_of_a_unit_says_what_happened_and_why_it_is_offline() {
    let fleet = Fleet::start().await;
    fleet.hear_at("north", "detector:a").await;
    fleet.pass(125 * SECOND, &["detector:a"]).await;
    fleet.hear_at("north", "detector:a").await;
    fleet.pass(121 * SECOND, &["detector:a"]).await;
    let id = fleet.json("/api/v1/units/detector/a").await["record"]["id"].as_str().unwrap().to_owned();
    let acknowledged = fleet
        .client
        .put(format!("{}/api/v1/records/{id}/ack", fleet.url))
        .header(CONTENT_TYPE, "application/json")
        .body(json!({ "author": "ana", "comment": "<on my way>" }).to_string());
    assert!(acknowledged.send().await.unwrap().status().is_success());

    let timeline = fleet.json("/api/v1/units/detector/a/timeline").await;
    assert_eq!(timeline["sentence"], "It was last heard 2m 1s ago. Its deadline passed 1s ago.");
    assert_eq!((&timeline["state"], &timeline["is_complete"]), (&json!("offline"), &json!(true)));
    let notified = timeline["notified"].as_str().unwrap();
    assert!(notified.starts_with("No receiver was notified: "), "{notified}");
    let events: Vec<(&str, &str)> = timeline["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| (event["at"].as_str().unwrap(), event["event"].as_str().unwrap()))
        .collect();
    assert!(events.is_sorted_by(|a, b| a.0 >= b.0), "{events:?}");
    let mut named: Vec<&str> = events.iter().map(|(_, event)| *event).collect();
    named.sort_unstable();
    assert_eq!(named, ["acknowledged", "back", "heard", "heard", "offline", "offline"]);
    let days = timeline["days"].as_array().unwrap();
    assert_eq!((days.len(), &days[89]["from"]), (90, &json!("2026-03-01T00:00:00.000Z")));
    // The fleet is watched since noon: nothing is known of the days before.
    assert_eq!((&days[89]["offline_seconds"], &days[88]["offline_seconds"]), (&json!(6.0), &json!(null)));
    let watched = days[89]["watched_seconds"].as_f64().unwrap();
    assert!((120.0..600.0).contains(&watched) && days[88]["watched_seconds"] == 0.0, "{watched}");

    let page = fleet.text("/units/detector/a").await;
    assert!(page.contains("No receiver was notified: "), "{page}");
    for text in
        ["offline on the only day that is known, for 6s", "&lt;on my way&gt;", "heard again, 5s after"]
    {
        assert!(page.contains(text), "{text} in {page}");
    }
    let short = fleet.json("/api/v1/units/detector/a/timeline?limit=1").await;
    assert_eq!(short["is_complete"], false);
    for query in ["limit=0", "limit=101", "colour=red"] {
        let answer = fleet.get(&format!("/api/v1/units/detector/a/timeline?{query}")).await;
        assert_problem(answer, 400).await;
    }
    assert_problem(fleet.get("/api/v1/units/detector/b/timeline").await, 404).await;
}

#[tokio::test]
async fn a_unit_is_not_said_to_be_offline_soon_while_nothing_is_heard() {
    let fleet = Fleet::start().await;
    fleet.hear_at("north", "detector:a").await;
    fleet.pass(30 * SECOND, &[]).await;
    let sentence = async || fleet.json("/api/v1/units/detector/a/timeline").await["sentence"].to_string();
    let soon = sentence().await;
    assert!(soon.contains("It is offline in 1m 30s if it stays silent."), "{soon}");
    fleet.clock.advance(60 * SECOND);
    let blind = sentence().await;
    let since = "Rollcall hears nothing of its kind since 2026-03-01T12:00:30.000Z: that time does not count";
    assert!(blind.contains(since) && !blind.contains("It is offline"), "{blind}");
    fleet.clock.advance(240 * SECOND);
    fleet.pass(SECOND, &["detector:a"]).await;
    let online = sentence().await;
    let within =
        "It was last heard 5m 31s ago; what counts of that as silence is within its timeout of 1m 40s.";
    assert!(online.contains(within), "{online}");
}

#[tokio::test]
async fn time_before_a_unit_was_known_is_not_online() {
    let fleet = Fleet::start().await;
    fleet.fill();
    fleet.hear_at("north", "detector:old").await;
    // Half a day later a unit is heard for the first time, and another one is registered.
    for _ in 0..12 {
        fleet.pass(3600 * SECOND, &["detector:old"]).await;
        fleet.hear_at("north", "detector:old").await;
    }
    let joined = fleet.clock.now();
    fleet.hear_at("south", "detector:young").await;
    let registered = fleet
        .client
        .put(format!("{}/api/v1/units/detector/registered", fleet.url))
        .header(CONTENT_TYPE, "application/json")
        .body("{}");
    assert!(registered.send().await.unwrap().status().is_success());
    fleet.pass(100 * SECOND, &["detector:old", "detector:young"]).await;
    let of_unit = fleet.json("/api/v1/availability?unit=detector/young").await;
    assert_eq!((&of_unit["from"], &of_unit["online_share"]), (&json!(joined.to_string()), &json!(1.0)));
    let of_unit = fleet.json("/api/v1/availability?unit=detector/registered").await;
    assert_eq!(of_unit["from"], json!(joined.to_string()));
    let timeline = fleet.json("/api/v1/units/detector/young/timeline").await;
    assert_eq!(timeline["known_since"], json!(joined.to_string()));
    let watched: Vec<f64> = timeline["days"]
        .as_array()
        .unwrap()
        .iter()
        .map(|day| day["watched_seconds"].as_f64().unwrap())
        .collect();
    assert_eq!((watched[88], watched[89]), (0.0, 100.0));
    // The unit is silent for as long as it was heard: half of its time, not a hundredth of the time of the fleet.
    let deadline = fleet.json("/api/v1/units/detector/young").await["deadline"].as_str().unwrap().to_owned();
    fleet.pass(220 * SECOND, &["detector:old", "detector:young"]).await;
    // A record of exactly this moment does not count as before it.
    fleet.pass(SECOND, &[]).await;
    let now = fleet.clock.now();
    let deadline = parse_moment(&deadline).unwrap();
    let expected = 1.0 - now.since(deadline).as_secs_f64() / now.since(joined).as_secs_f64();
    let of_label = fleet.json(&format!("/api/v1/availability?label=site=south&until={now}")).await;
    let share = of_label["online_share"].as_f64().unwrap();
    assert!((share - expected).abs() < 0.001, "{share} {expected} {of_label}");
    let page = fleet.text("/units/detector/young").await;
    assert!(page.contains("Known since") && page.contains("only day that is known"), "{page}");
}

#[tokio::test]
async fn availability_is_the_share_of_time_that_units_were_not_offline() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    fleet.hear_at("north", "detector:a").await;
    fleet.hear_at("south", "detector:b").await;
    let noon = fleet.clock.now();
    fleet.pass(170 * SECOND, &["detector:a"]).await;
    fleet.hear_at("north", "detector:a").await;
    fleet.hear_at("south", "detector:b").await;
    fleet.pass(30 * SECOND, &[]).await;
    let share = async |query: &str| -> Value {
        fleet.json(&format!("/api/v1/availability?from={noon}&{query}")).await
    };
    // The unit was offline for 50 s of 200 s.
    let of_unit = share("unit=detector/a").await;
    assert_eq!((&of_unit["online_share"], &of_unit["outages"]), (&json!(0.75), &json!(1)));
    assert_eq!((&of_unit["longest_outage_seconds"], &of_unit["is_complete"]), (&json!(50.0), &json!(true)));
    assert_eq!(share("unit=detector/b").await["online_share"], 1.0);
    assert_eq!(share("label=site=north").await["online_share"], 0.75);
    for query in ["kind=detector", ""] {
        let all = share(query).await;
        assert_eq!((&all["online_share"], &all["units"]), (&json!(0.875), &json!(2)), "{query}");
        assert_eq!(
            (&all["offline_seconds"], &all["mean_seconds_between_outages"]),
            (&json!(50.0), &json!(350.0))
        );
    }
    // The answer for the usual range is kept for a moment, and names its moment.
    let usual = fleet.json("/api/v1/availability").await;
    fleet.clock.advance(SECOND);
    assert_eq!(fleet.json("/api/v1/availability").await, usual);
    assert_eq!((&usual["outages"], &usual["units"]), (&json!(1), &json!(2)), "{usual}");
    // The fleet is watched since noon, so the thirty days before do not count.
    assert_eq!(
        (&usual["from"], &usual["online_share"]),
        (&json!(noon.to_string()), &json!(0.875)),
        "{usual}"
    );
    let of_kind = fleet.json("/api/v1/availability?kind=detector").await;
    assert!(of_kind["until"].as_str() > usual["until"].as_str(), "{of_kind} {usual}");
    for query in [
        "unit=a",
        "unit=detector/a&kind=detector",
        "kind=x",
        "label=site",
        "from=2027-01-01T00:00:00Z",
        "kind=meter&label=site=north",
    ] {
        let answer = fleet.get(&format!("/api/v1/availability?{query}")).await;
        assert_problem(answer, 400).await;
    }
}

#[tokio::test]
async fn the_first_notification_of_each_receiver_is_named_however_many_reminders_follow() {
    let fleet = Fleet::start().await;
    fleet.hear_at("north", "detector:a").await;
    fleet.pass(121 * SECOND, &["detector:a"]).await;
    let unit = "detector:a".parse().unwrap();
    let record = fleet.engine.history(&unit, 1).await.unwrap().records.remove(0);
    let began = fleet.clock.now();
    let deliveries = StoredDeliveries::new(fleet.engine.clone());
    // Each is a step of its own, as reminders are that are hours apart.
    for number in 0..300_u32 {
        let (receiver, reminder) = match number {
            0 => ("hook", false),
            1 => ("boss", false),
            _ => ("hook", true),
        };
        let at = began + SECOND * number;
        let group = Group { key: "site=north".to_owned(), labels: record.labels.clone() };
        let new = Delivery::new(format!("ntf_{number}.{receiver}"), receiver, group, at);
        let delivery = Arc::new(Delivery { offline: vec![record.clone()], reminder, ..new });
        let attempt = Some(AttemptMade { at, took: SECOND, answer: "200 OK".to_owned() });
        let ended = EndedLease { delivery, end: AttemptEnd::Delivered, attempt };
        deliveries.end_attempts(&[ended], at).await.unwrap();
    }
    fleet.pass(300 * SECOND, &[]).await;
    let timeline = fleet.json("/api/v1/units/detector/a/timeline").await;
    let said = format!("Notified of the silence: boss at {}, hook at {began}", began + SECOND);
    let notified = timeline["notified"].as_str().unwrap();
    assert!(notified.starts_with(&said), "{notified}");
    let texts: Vec<&str> =
        timeline["events"].as_array().unwrap().iter().filter_map(|event| event["text"].as_str()).collect();
    let last = began + SECOND * 299;
    let reminders = format!("298 reminders to hook, the last at {last}");
    assert_eq!(
        &texts[..3],
        [
            reminders.as_str(),
            "boss was notified of its silence, which was escalated",
            "hook was notified of its silence"
        ]
    );
    assert_eq!(timeline["attempts_cut"], true, "failed attempts at old reminders are not looked up");
    let page = fleet.text("/units/detector/a").await;
    assert!(page.contains("298 reminders to hook, the last <time"), "{page}");
    // However many more there are, the number stays.
    assert!(fleet.text("/").await.contains("100 or more notifications"));
    assert!(page.contains("Attempts to notify are left out here") && !page.contains("200 OK"), "{page}");
}

#[tokio::test]
async fn availability_counts_each_pause_and_says_when_a_unit_is_missing() {
    let fleet = Fleet::start_alone(|_| ()).await;
    fleet.fill();
    fleet.hear_at("north", "detector:a").await;
    fleet.hear_at("south", "detector:b").await;
    let noon = fleet.clock.now();
    let pause = async |span: u32| {
        let body = json!({ "until": fleet.clock.now() + span * SECOND, "author": "ana", "comment": "works" });
        let put = fleet.client.put(format!("{}/api/v1/units/detector/a/pause", fleet.url));
        let answer = put.header(CONTENT_TYPE, "application/json").body(body.to_string()).send().await;
        assert!(answer.unwrap().status().is_success());
    };
    pause(20).await;
    fleet.pass(30 * SECOND, &[]).await;
    fleet.hear_at("north", "detector:a").await;
    pause(10).await;
    fleet.pass(20 * SECOND, &[]).await;
    let spent = async |query: &str| fleet.json(&format!("/api/v1/availability?from={noon}&{query}")).await;
    for query in ["unit=detector/a", "kind=detector", ""] {
        let answer = spent(query).await;
        let figures = (&answer["paused_seconds"], &answer["is_complete"]);
        assert_eq!(figures, (&json!(30.0), &json!(true)), "{query}: {answer}");
    }
    let timeline = fleet.json("/api/v1/units/detector/a/timeline").await;
    assert_eq!(timeline["days"][89]["watched_seconds"], 20.0);
    // A unit that was not there yet is none of the time before.
    fleet.hear_at("north", "detector:c").await;
    let before = spent(&format!("until={}", fleet.clock.now())).await;
    assert_eq!((&before["units"], &before["is_complete"]), (&json!(2), &json!(true)), "{before}");
    // With a unit, its outage leaves the sum.
    fleet.pass(75 * SECOND, &["detector:b"]).await;
    fleet.hear_at("south", "detector:b").await;
    assert_eq!(spent("").await["outages"], 1);
    let delete = fleet.client.delete(format!("{}/api/v1/units/detector/b", fleet.url));
    assert!(delete.send().await.unwrap().status().is_success());
    for (query, is_complete) in [("kind=detector", false), ("", false), ("label=site=north", true)] {
        let answer = spent(query).await;
        let figures = (&answer["outages"], &answer["is_complete"]);
        assert_eq!(figures, (&json!(0), &json!(is_complete)), "{query}: {answer}");
    }
}
