//! `/api/v1/receivers`.

use std::sync::Arc;

use reqwest::Method;
use rollcall::fleet::ReceiverHealths;
use rollcall::presence::{Labels, OfflineRecord};
use rollcall::store::{
    Capacity, Destinations, Group, Join, Layout, OutboxEvent, Pace, StoredDeliveries, StoredGroups,
};
use serde_json::{Value, json};

use super::changes::send;
use super::world::{Fleet, SECOND, the};

/// A notification of a unit that waits for a receiver.
async fn leave_behind(fleet: &Fleet, receiver: &str) {
    let (now, receivers) = (fleet.clock.now(), [receiver.to_owned()]);
    StoredDeliveries::new(fleet.engine.clone()).register_receivers(&receivers, now).await.unwrap();
    let record = OfflineRecord::open(the(&format!("detector:{receiver}")), now, now, now);
    let group = Group { key: receiver.to_owned(), labels: Labels::new() };
    let join = Join { groups: vec![group], event: OutboxEvent::Record(record) };
    let to = Destinations::all(Pace::AT_ONCE, &receivers);
    StoredGroups::new(fleet.engine.clone()).join(&[join], &to, &Capacity::NONE, now).await.unwrap();
    StoredGroups::new(fleet.engine.clone())
        .seal(&(0..fleet.engine.partitions()).collect::<Vec<u16>>(), &to, now)
        .await
        .unwrap();
}

#[tokio::test]
async fn what_waits_for_a_receiver_that_is_not_configured_is_discarded_and_what_will_be_delivered_is_not() {
    let fleet = Fleet::start().await;
    leave_behind(&fleet, "gone").await;
    leave_behind(&fleet, "hook").await;
    let discard = async |body: Value| {
        let answer = send(&fleet, "", Method::POST, "/api/v1/deliveries/discard", body).await;
        (answer.status().as_u16(), serde_json::from_str::<Value>(&answer.text().await.unwrap()).unwrap())
    };
    for (wrong, status) in [
        (json!({ "receiver": "hook" }), 409),
        (json!({ "receiver": "a:b" }), 400),
        (json!({ "receiver": "" }), 400),
        (json!({}), 400),
    ] {
        assert_eq!(discard(wrong.clone()).await.0, status, "{wrong}");
    }
    let waiting = async || {
        let page = fleet.json("/api/v1/receivers").await;
        let lines = page["receivers"].as_array().unwrap().iter();
        lines.map(|line| format!("{} {}", line["name"], line["waiting"])).collect::<Vec<String>>()
    };
    assert_eq!(waiting().await, [r#""gone" 1"#, r#""hook" 1"#, r#""mail" 0"#]);
    for count in [1, 0] {
        let discarded = discard(json!({ "receiver": "gone" })).await;
        assert_eq!(discarded, (200, json!({ "count": count, "more": false })));
    }
    assert_eq!(waiting().await, [r#""hook" 1"#, r#""mail" 0"#]);
    let forced = discard(json!({ "receiver": "hook", "force": true })).await;
    assert_eq!(forced, (200, json!({ "count": 1, "more": false })));
    let audit = fleet.json("/api/v1/audit").await;
    let entries = audit["audit"].as_array().unwrap().iter();
    let entries: Vec<String> =
        entries.map(|one| format!("{} {} {}", one["change"], one["subject"], one["text"])).collect();
    let of = |receiver: &str| format!(r#""deliveries_discarded" "{receiver}" "1 deliveries""#);
    assert_eq!(entries, [of("hook"), of("gone")]);
}

#[tokio::test]
async fn receivers_are_shown_with_what_waits_for_them_and_with_what_any_instance_saw() {
    let fleet = Fleet::start().await;
    let page = fleet.json("/api/v1/receivers").await;
    let unknown = |name: &str, of: &str| {
        json!({ "name": name, "type": of, "waiting": 0, "dead_letters": 0, "last_success": null,
                "last_failure": null, "why": "", "failing_since": null })
    };
    assert_eq!(page["receivers"], json!([unknown("hook", "webhook"), unknown("mail", "email")]));

    // Two instances: one has failures after the other had a success.
    let [one, other] = [0, 1].map(|_| ReceiverHealths::new(fleet.engine.clone()));
    one.note("mail", None, fleet.clock.now());
    fleet.clock.advance(SECOND);
    other.note("mail", Some("451 greylisted"), fleet.clock.now());
    fleet.clock.advance(SECOND);
    other.note("mail", Some("450 come back later"), fleet.clock.now());
    other.write().await.unwrap();
    one.write().await.unwrap();
    leave_behind(&fleet, "gone").await;

    let page: Value = fleet.json("/api/v1/receivers").await;
    let [gone, hook, mail] = page["receivers"].as_array().unwrap().as_slice() else { panic!("{page}") };
    assert_eq!((&gone["name"], &gone["type"], &gone["waiting"]), (&"gone".into(), &Value::Null, &1.into()));
    assert_eq!(hook, &unknown("hook", "webhook"));
    assert_eq!(mail["last_success"], "2026-03-01T12:00:00.000Z");
    assert_eq!(mail["failing_since"], "2026-03-01T12:00:01.000Z");
    assert_eq!(
        (&mail["last_failure"], &mail["why"]),
        (&"2026-03-01T12:00:02.000Z".into(), &"450 come back later".into())
    );

    // Outcomes that cannot be written wait for the next write.
    let healths = Arc::new(ReceiverHealths::new(fleet.engine.clone()));
    healths.note("mail", None, fleet.clock.now());
    let mut client = redis::Client::open(format!("redis://127.0.0.1:{}/0", fleet.redis.port())).unwrap();
    let mut permit = |rule: &str| {
        redis::cmd("ACL").arg("SETUSER").arg("default").arg(rule).exec(&mut client).unwrap();
    };
    permit("-evalsha");
    permit("-eval");
    assert!(healths.write().await.is_err());
    permit("+@all");
    healths.write().await.unwrap();
    let page: Value = fleet.json("/api/v1/receivers").await;
    assert_eq!(page["receivers"][2]["failing_since"], Value::Null);
    assert_eq!(page["receivers"][2]["last_success"], "2026-03-01T12:00:02.000Z");
}
