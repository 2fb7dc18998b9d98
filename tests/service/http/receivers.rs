//! `/api/v1/receivers`.

use std::sync::Arc;

use rollcall::fleet::ReceiverHealths;
use rollcall::presence::{Labels, OfflineRecord};
use rollcall::store::{Capacity, Destinations, Group, GroupStore, Join, OutboxEvent, Pace, StoredDeliveries};
use serde_json::{Value, json};

use super::world::{Fleet, SECOND, the};

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
    // A receiver that is not configured any more left notifications behind.
    let now = fleet.clock.now();
    let gone = ["gone".to_owned()];
    StoredDeliveries::new(fleet.engine.clone()).register_receivers(&gone, now).await.unwrap();
    let record = OfflineRecord::open(the("detector:1"), now, now, now);
    let group = Group { key: "a".to_owned(), labels: Labels::new() };
    let join = Join { groups: vec![group], event: OutboxEvent::Record(record) };
    let to = Destinations::all(Pace::AT_ONCE, &gone);
    fleet.engine.join(&[join], &to, &Capacity::NONE, now).await.unwrap();
    fleet.engine.seal(&[0, 1], &to, now).await.unwrap();

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
