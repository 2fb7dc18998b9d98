//! The queue's room, the canaries' honesty, the shape of sessions.

use std::sync::Arc;

use futures_util::FutureExt;
use tokio::sync::mpsc;

use super::*;
use crate::clock::Clock;
use crate::fleet::roll::Rules;
use crate::intake::canary::{self, Key};
use crate::intake::probe::Probes;
use crate::intake::{Config, Fields, topic::Template, topic::Topics};
use crate::presence::{Kind, KindRules};
use crate::telemetry::Telemetry;

const WINDOW: u16 = 3;
const DEAFNESS: Duration = Duration::from_secs(4);

fn config(share: &str) -> Config {
    Config {
        url: "mqtt://127.0.0.1".to_owned(),
        tls: None,
        client_id: "me".to_owned(),
        credentials: None,
        share: share.to_owned(),
        connections: 1,
        qos: 1,
        keep_alive: Duration::from_secs(10),
        session_expiry: Duration::from_secs(3600),
        receive_maximum: WINDOW,
        max_payload: 1024,
        max_age: Duration::ZERO,
        watch_sys: false,
        max_batch: 10,
        canary_period: Duration::from_secs(1),
        topics: vec![("units/{unit}".to_owned(), Some("pump".parse().unwrap()))],
        fields: Fields::default(),
    }
}

/// A connection that stands and hears, with that much room in its queue.
struct World {
    connection: Connection,
    visit: Visit,
    queued: mpsc::Receiver<Item>,
    clock: Clock,
    _proof: watch::Sender<Proof>,
}

impl World {
    fn new(room: usize) -> World {
        let kind: Kind = "pump".parse().unwrap();
        let rules: Rules = [(kind.clone(), KindRules::new(kind.clone()))].into();
        let topics = Topics::new(vec![Template::parse("units/{unit}", Some(kind)).unwrap()], &rules);
        let clock = Clock::by_hand(Timestamp::from_millis(1_000_000));
        let session = Session::new(&config(""), "main", topics.filters()).unwrap();
        let reader = Reader {
            probes: Arc::new(Probes::new(&topics.filters_of_kinds(&rules), &rules)),
            topics: Arc::new(topics),
            fields: Fields::default(),
            told: None,
            client_id: session.client_id().to_owned(),
            key: Key::of_fleet("fleet"),
            max_payload: 1024,
            max_age: None,
            clock: clock.clone(),
            telemetry: Arc::new(Telemetry::new(&clock)),
        };
        let (queue, queued) = mpsc::channel(room);
        let (_proof, proof) = watch::channel(Proof::default());
        let mut visit = Visit::new(session.open(1).0, session.patience, Instant::now());
        visit.stage = Stage::Hearing;
        let connection = Connection {
            given: Given::new(None, WINDOW, DEAFNESS),
            name: "main".to_owned(),
            canaries: Canaries::new(&session, Key::of_fleet("fleet"), Duration::from_secs(1)),
            session,
            reader,
            asking: None,
            drops: None,
            queue: Some(Heap::new(queue)),
            link: watch::Sender::new(Link::default()),
            proof,
            pace: Arc::new(CanaryPace::fixed(DEAFNESS - Duration::from_secs(1))),
            deaf_until: Timestamp::ZERO,
            number: 1,
            stop: CancellationToken::new(),
            recorded: CancellationToken::new(),
        };
        World { connection, visit, queued, clock, _proof }
    }

    fn take(&mut self, message: &Publish) -> Result<(), String> {
        self.connection.take(&mut self.visit, message)
    }

    fn came(&mut self) -> Vec<Item> {
        self.connection.hand_over();
        std::iter::from_fn(|| self.queued.try_recv().ok()).collect()
    }

    fn canary(&self, seq: u64) -> Publish {
        let canary = self.connection.canaries.canary(seq, self.clock.now());
        Publish::new("rollcall/canary/me-main", QoS::AtMostOnce, canary.to_json(), None)
    }
}

fn heartbeat(qos: QoS, pkid: u16) -> Publish {
    Publish { pkid, ..Publish::new("units/7", qos, "", None) }
}

#[tokio::test]
async fn the_last_places_in_the_queue_are_for_messages_that_are_acknowledged() {
    let mut world = World::new(6);
    for _ in 0..9 {
        world.take(&heartbeat(QoS::AtMostOnce, 0)).unwrap();
    }
    // One more than the broker may send.
    for pkid in 1..=WINDOW + 1 {
        world.take(&heartbeat(QoS::AtLeastOnce, pkid)).unwrap();
    }
    assert!(world.take(&heartbeat(QoS::AtLeastOnce, 5)).is_err());
    let acks: Vec<bool> = world.came().iter().map(|item| item.ack.is_some()).collect();
    assert_eq!(acks, [false, false, true, true, true, true]);
}

#[tokio::test]
async fn a_broker_that_sends_more_than_it_may_is_held_back_until_enough_is_acknowledged() {
    let mut world = World::new(10);
    world.connection.publish_link(&world.visit, None);
    let held = world.visit.held.clone();
    for pkid in 1..=WINDOW {
        world.take(&heartbeat(QoS::AtLeastOnce, pkid)).unwrap();
    }
    assert!(held.at_most(WINDOW.into()).now_or_never().is_some());
    world.take(&heartbeat(QoS::AtLeastOnce, 4)).unwrap();
    world.take(&heartbeat(QoS::AtMostOnce, 0)).unwrap();
    let mut waits = pin!(held.at_most(WINDOW.into()));
    assert!(waits.as_mut().now_or_never().is_none());
    let acks: Vec<Ack> = world.came().iter().filter_map(|item| item.ack).collect();
    let link = world.connection.link.borrow();
    link.acknowledge(&[Ack { connection: 0, ..acks[0] }]);
    assert!(waits.as_mut().now_or_never().is_none(), "that was another connection");
    link.acknowledge(&acks[..1]);
    assert!(waits.now_or_never().is_some());
}

#[tokio::test]
async fn canaries_are_withheld_after_a_loss_until_the_gap_shows_in_the_ledger() {
    let mut world = World::new(usize::from(WINDOW) + 2);
    let mut seq = 0;
    let mut canary = |world: &mut World| {
        seq += 1;
        world.take(&world.canary(seq)).unwrap();
        world.came().iter().any(|item| matches!(item.what, What::Canary(_)))
    };
    assert!(canary(&mut world));
    for _ in 0..2 {
        world.take(&heartbeat(QoS::AtMostOnce, 0)).unwrap();
    }
    let told: Vec<bool> = (0..7)
        .map(|_| {
            world.clock.advance(Duration::from_secs(1));
            canary(&mut world)
        })
        .collect();
    // Lost at 0 s and withheld for 4 s: the gap between those at 0 s and 5 s shows the loss.
    assert_eq!(told, [false, false, false, false, true, true, true]);
}

#[tokio::test]
async fn canaries_are_withheld_after_one_of_them_was_dropped_and_not_after_one_was_lost_on_the_way() {
    let mut world = World::new(100);
    let told = |world: &mut World, seq: u64| {
        world.clock.advance(Duration::from_secs(1));
        world.take(&world.canary(seq)).unwrap();
        world.came().iter().any(|item| matches!(item.what, What::Canary(_)))
    };
    // The third is missing: the gap between the second and the eighth shows it.
    let numbers = [1, 2, 4, 5, 6, 7];
    assert_eq!(numbers.map(|seq| told(&mut world, seq)), [true, true, false, false, false, false]);
    assert!(told(&mut world, 8));
    // Those of an earlier connection may never have come to the broker.
    world.connection.canaries.seq = 10;
    world.connection.canaries.connecting();
    assert!(!told(&mut world, 9), "what came before it may have been given to another client");
    assert!(told(&mut world, 11));
    assert!(!told(&mut world, 13));
}

#[tokio::test]
async fn after_the_last_canary_nothing_is_taken() {
    let mut world = World::new(100);
    world.visit.stage = Stage::Last(3);
    world.take(&world.canary(2)).unwrap();
    assert!(matches!(world.came()[..], [Item { what: What::Canary(_), .. }]), "that was on its way before");
    world.take(&heartbeat(QoS::AtLeastOnce, 1)).unwrap();
    world.take(&world.canary(3)).unwrap();
    world.take(&heartbeat(QoS::AtLeastOnce, 2)).unwrap();
    let came = world.came();
    let [beat, canary, farewell] = &came[..] else { panic!("{}", came.len()) };
    assert!(matches!((&beat.what, &canary.what), (What::Heartbeat(_), What::Canary(_))));
    assert_eq!(farewell.what, What::Farewell);
    assert_eq!(world.visit.stage, Stage::Closed);
}

#[test]
fn a_member_that_attends_is_impatient_and_a_plain_subscription_is_not() {
    // (share, silent for, unproved for, is over)
    let cases = [
        ("", 19, 19, false),
        ("", 20, 1, true),
        ("all", 2, 9, false),
        ("all", 3, 3, true),
        ("all", 1, 10, true),
    ];
    for (share, silent, unproved, is_over) in cases {
        let session = Session::new(&config(share), "main", Vec::new()).unwrap();
        let began = Instant::now();
        let mut visit = Visit::new(session.open(1).0, session.patience, began);
        visit.enter(began);
        let now = began + Duration::from_secs(100);
        visit.proved(now - Duration::from_secs(unproved));
        visit.came(now - Duration::from_secs(silent));
        assert_eq!(visit.overdue(now).is_some(), is_over, "{share:?} {silent} {unproved}");
        assert_eq!(visit.next_check() <= now, is_over, "{share:?} {silent} {unproved}");
    }
}

#[test]
fn a_shared_session_is_nobody_elses_and_ends_with_its_connection() {
    let filters = || vec!["units/+".to_owned()];
    let wished =
        |wishes: &[session::Wish]| -> Vec<String> { wishes.iter().map(|wish| wish.filter.clone()).collect() };
    let plain = Session::new(&config(""), "main", filters()).unwrap();
    assert_eq!((plain.client_id(), plain.expiry), ("me-main", Some(3600)));
    assert_eq!(wished(&plain.first), ["units/+", "rollcall/canary/me-main"]);
    assert_eq!(wished(&plain.shared), [""; 0]);
    let shared = Session::new(&config("all"), "main", filters()).unwrap();
    let own = canary::topic(shared.client_id());
    assert_eq!(wished(&shared.first), [own.as_str(), "rollcall/canary/+/gone"]);
    assert_eq!(wished(&shared.shared), ["$share/all/units/+"]);
    assert_eq!(shared.expiry, None);
    assert_ne!(shared.client_id(), Session::new(&config("all"), "main", filters()).unwrap().client_id());
}

#[test]
fn a_member_is_released_only_when_the_broker_is_certain_to_have_dropped_it() {
    let session = Session::new(&config("all"), "main", Vec::new()).unwrap();
    assert_eq!(session.release(Duration::from_secs(10)), Duration::from_secs(10 + 15 + 5));
    // Where the broker goes by a longer keep-alive than ours, that counts.
    assert_eq!(session.release(Duration::from_secs(60)), Duration::from_secs(10 + 90 + 5));
}

#[test]
fn what_ends_a_connection_that_stood_is_the_first_failure() {
    let after = |stood: u64| failures_after(6, Duration::from_millis(stood));
    assert_eq!([0, 4999, 5000, 60_000].map(after), [7, 7, 1, 1]);
    assert!(BACKOFF.wait(after(9000), 1.0) <= Duration::from_millis(250));
}

/// A broker that ends the connection for a probe is not asked again and again.
#[tokio::test]
async fn what_a_connection_ends_for_is_not_published_again() {
    let world = World::new(4);
    let (client, _events) = world.connection.session.open(1);
    let probes = world.connection.reader.probes.clone();
    let key = Key::of_fleet("fleet");
    let asking = || Asking::new(probes.clone(), key.clone(), "me".to_owned());
    let (pace, period) = (CanaryPace::fixed(DEAFNESS), Duration::from_secs(1));
    let ask = |asking: &mut Asking, loss: ConnectionLoss| {
        asking.ask(&client, world.clock.now(), &pace, period);
        asking.connection_lost(loss);
        probes.all()[0].standing().refused
    };
    let mut once = asking();
    assert_eq!(ask(&mut once, ConnectionLoss::Broken), None, "that may be an accident");
    let why = ask(&mut once, ConnectionLoss::Broken).expect("twice is none");
    assert!(why.contains("allow me to read units/+ and to write units/rollcall-probe"), "{why}");
    probes.all()[0].answered(None);
    assert_eq!(ask(&mut once, ConnectionLoss::Broken), None, "nothing was published");
    assert!(ask(&mut asking(), ConnectionLoss::Refused).is_some(), "it says why");
    probes.all()[0].answered(None);
    let mut robbed = asking();
    for _ in 0..3 {
        assert_eq!(ask(&mut robbed, ConnectionLoss::TakenOver), None, "that was for another reason");
    }
}
