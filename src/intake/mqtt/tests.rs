//! The queue's room, the canaries' honesty, the shape of sessions.

use std::sync::Arc;

use super::*;
use crate::engine::roll::Rules;
use crate::intake::{Config, Fields, topic::Template, topic::Topics};
use crate::presence::{Kind, KindRules};
use crate::telemetry::Telemetry;

const WINDOW: u16 = 3;
const DEAFNESS: Duration = Duration::from_secs(4);

fn config(share: &str) -> Config {
    Config {
        url: "mqtt://127.0.0.1".to_owned(),
        client_id: "me".to_owned(),
        credentials: None,
        share: share.to_owned(),
        qos: 1,
        keep_alive: Duration::from_secs(30),
        session_expiry: Duration::from_secs(3600),
        receive_maximum: WINDOW,
        max_payload: 1024,
        max_batch: 10,
        canary_period: Duration::from_secs(1),
        topics: vec![("units/{unit}".to_owned(), Some("pump".parse().unwrap()))],
        fields: Fields::default(),
    }
}

fn connection(room: usize) -> (Connection, mpsc::Receiver<Item>, Clock) {
    let kind: Kind = "pump".parse().unwrap();
    let rules: Rules = [(kind.clone(), KindRules::new(kind.clone()))].into();
    let topics = Topics::new(vec![Template::parse("units/{unit}", Some(kind)).unwrap()], &rules);
    let clock = Clock::by_hand(Timestamp::from_millis(1_000_000));
    let session = Session::new(&config(""), topics.filters()).unwrap();
    let reader = Reader {
        topics,
        fields: Fields::default(),
        client_id: session.client_id().to_owned(),
        max_payload: 1024,
        clock: clock.clone(),
        telemetry: Arc::new(Telemetry::new(&clock)),
    };
    let (queue, queued) = mpsc::channel(room);
    let link = watch::Sender::new(Link::default());
    let (stop, recorded) = Default::default();
    (Connection::new(session, reader, queue, link, DEAFNESS, stop, recorded), queued, clock)
}

fn heartbeat(qos: QoS, pkid: u16) -> Publish {
    Publish { pkid, ..Publish::new("units/7", qos, "", None) }
}

#[test]
fn the_last_places_in_the_queue_are_for_messages_that_are_acknowledged() {
    let (mut connection, mut queued, _) = connection(5);
    for _ in 0..9 {
        connection.take(&heartbeat(QoS::AtMostOnce, 0)).unwrap();
    }
    for pkid in 1..=WINDOW {
        connection.take(&heartbeat(QoS::AtLeastOnce, pkid)).unwrap();
    }
    assert!(connection.take(&heartbeat(QoS::AtLeastOnce, 4)).is_err(), "more than the broker may send");
    let acks: Vec<bool> =
        std::iter::from_fn(|| queued.try_recv().ok()).map(|item| item.ack.is_some()).collect();
    assert_eq!(acks, [false, false, true, true, true]);
}

#[test]
fn canaries_are_withheld_after_a_loss_until_the_gap_shows_in_the_ledger() {
    let (mut connection, mut queued, clock) = connection(usize::from(WINDOW) + 1);
    let mut canary = |connection: &mut Connection| {
        let canary = canary::Canary { instance: String::new(), seq: 0, sent_at: clock.now().as_millis() };
        let message = Publish::new("rollcall/canary/me-main", QoS::AtMostOnce, canary.to_json(), None);
        connection.take(&message).unwrap();
        std::iter::from_fn(|| queued.try_recv().ok()).any(|item| matches!(item.what, What::Canary(_)))
    };
    assert!(canary(&mut connection));
    for _ in 0..2 {
        connection.take(&heartbeat(QoS::AtMostOnce, 0)).unwrap();
    }
    let told: Vec<bool> = (0..7)
        .map(|_| {
            clock.advance(Duration::from_secs(1));
            canary(&mut connection)
        })
        .collect();
    // Lost at 0 s and withheld for 4 s: the gap between those at 0 s and 5 s shows the loss.
    assert_eq!(told, [false, false, false, false, true, true, true]);
}

#[test]
fn a_shared_session_is_nobody_elses_and_ends_with_its_connection() {
    let filters = || vec!["units/+".to_owned()];
    let plain = Session::new(&config(""), filters()).unwrap();
    assert_eq!((plain.client_id(), plain.expiry), ("me-main", Some(3600)));
    assert_eq!(plain.filters, ["units/+", "rollcall/canary/#"]);
    let shared = Session::new(&config("all"), filters()).unwrap();
    assert_eq!(shared.filters, ["$share/all/units/+", "$share/all/rollcall/canary/#"]);
    assert_eq!(shared.expiry, None);
    assert_ne!(shared.client_id(), Session::new(&config("all"), filters()).unwrap().client_id());
}
