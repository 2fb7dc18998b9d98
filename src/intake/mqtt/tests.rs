//! The queue's room, the broker that is held back, the requests of sessions.

use futures_util::FutureExt;
use rumqttc::{Publish, QoS};
use tokio::sync::mpsc;

use super::*;
use crate::clock::{Timestamp, monotonic};
use crate::fleet::CanaryPace;
use crate::fleet::Rules;
use crate::intake::canary::{self, Key};
use crate::intake::probe::Probes;
use crate::intake::record::{Ack, QueuedMessage};
use crate::intake::topic::{FleetFilters, Template, Topics};
use crate::intake::{Config, Fields};
use crate::presence::{Kind, KindRules};
use crate::telemetry::Telemetry;

const WINDOW: u16 = 3;
/// How many messages may be unacknowledged.
const MAX_UNACKNOWLEDGED: usize = 6;

fn of_heartbeats(heartbeats: Vec<String>) -> FleetFilters {
    FleetFilters { heartbeats, ..FleetFilters::default() }
}

pub(super) fn config(share: &str) -> Config {
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
        broker: String::new(),
        is_one_of_several: false,
        kinds: Vec::new(),
        kinds_elsewhere: Vec::new(),
        watch_sys: false,
        states: None,
        timers: false,
        max_batch: 10,
        canary_period: Duration::from_secs(1),
        topics: vec![("units/{unit}".to_owned(), Some("pump".parse().unwrap()))],
        presence: Vec::new(),
        fields: Fields::default(),
    }
}

/// A connection with this much room in its queue.
struct World {
    connection: Connection,
    open: OpenConnection,
    queued: mpsc::Receiver<QueuedMessage>,
    _proof: watch::Sender<Proof>,
}

impl World {
    fn new(room: usize) -> World {
        let kind: Kind = "pump".parse().unwrap();
        let rules = Rules::from_iter([(kind.clone(), KindRules::new(kind.clone()))]);
        let topics = Topics::new(
            vec![Template::parse("units/{unit}", Some(kind)).unwrap()],
            Arc::new(rules.clone()).into(),
        );
        let clock = Clock::by_hand(Timestamp::from_millis(1_000_000));
        let mut session = Session::new(&config(""), "main", topics.by_use()).unwrap();
        session.most_unacknowledged = MAX_UNACKNOWLEDGED;
        let session = Arc::new(session);
        let reader = Reader {
            recent: Arc::default(),
            probes: Arc::new(Probes::new(&topics.filters_of_kinds(), &rules, str::to_owned)),
            topics: Arc::new(topics),
            fields: Fields::default(),
            values: None,
            client_id: session.client_id().to_owned(),
            key: Key::of_fleet("fleet"),
            broker: None,
            max_payload: 1024,
            budget: Default::default(),
            timers: None,
            max_age: None,
            telemetry: Arc::new(Telemetry::new(&clock)),
        };
        let (queue, queued) = mpsc::channel(room);
        let (_proof, proof) = watch::channel(Proof::default());
        let pace = Arc::new(CanaryPace::fixed(Duration::from_secs(3))).at("main");
        let mut state = ConnectionState::new(session.clone(), pace, None, "process", None, 0);
        state.on_connect(monotonic());
        let open = OpenConnection::new(
            session.open(1, super::CONNECT).0,
            ticks(monotonic(), Duration::from_secs(1)),
        );
        let connection = Connection {
            broker: "main".to_owned(),
            name: "main".to_owned(),
            canaries: CanaryPublisher::new(&session, Key::of_fleet("fleet")),
            session,
            state,
            reader,
            note_lost: Box::new(|_| ()),
            clock,
            probes: None,
            drops: None,
            queue: Some(BatchSender::new(queue)),
            link: watch::Sender::new(Link::default()),
            proof,
            accepted: None,
            takeovers: super::Takeovers::default(),
            stop: CancellationToken::new(),
            recorded: CancellationToken::new(),
        };
        World { connection, open, queued, _proof }
    }

    fn receive(&mut self, message: Publish) -> Result<(), ConnectionEnd> {
        self.connection.receive(&Packet::Publish(message), &mut self.open)
    }

    fn recorded(&mut self) -> Vec<QueuedMessage> {
        self.connection.hand_over();
        std::iter::from_fn(|| self.queued.try_recv().ok()).collect()
    }
}

fn heartbeat(qos: QoS, pkid: u16) -> Publish {
    Publish { pkid, ..Publish::new("units/7", qos, "", None) }
}

#[tokio::test]
async fn the_last_places_in_the_queue_are_for_messages_that_are_acknowledged() {
    let mut world = World::new(MAX_UNACKNOWLEDGED + 3);
    for _ in 0..MAX_UNACKNOWLEDGED + 6 {
        world.receive(heartbeat(QoS::AtMostOnce, 0)).unwrap_or_else(|_| panic!("there is room"));
    }
    // One message more than may be unacknowledged.
    for pkid in 1..=MAX_UNACKNOWLEDGED as u16 + 1 {
        world.receive(heartbeat(QoS::AtLeastOnce, pkid)).unwrap_or_else(|_| panic!("there is room"));
    }
    assert!(world.receive(heartbeat(QoS::AtLeastOnce, MAX_UNACKNOWLEDGED as u16 + 2)).is_err());
    let acks: Vec<bool> = world.recorded().iter().map(|message| message.ack.is_some()).collect();
    assert_eq!(acks, [[false; 2].as_slice(), &[true; MAX_UNACKNOWLEDGED + 1]].concat());
}

#[tokio::test]
async fn a_broker_that_sends_more_than_it_may_is_held_back_until_enough_is_acknowledged() {
    let mut world = World::new(MAX_UNACKNOWLEDGED + 7);
    let accept = Action::Accept { release: Duration::ZERO };
    world.connection.carry_out(accept, &mut world.open, None).unwrap_or_else(|_| panic!("it cannot fail"));
    let unacknowledged = world.open.unacknowledged.clone();
    for pkid in 1..=MAX_UNACKNOWLEDGED as u16 {
        world.receive(heartbeat(QoS::AtLeastOnce, pkid)).unwrap_or_else(|_| panic!("there is room"));
    }
    assert!(unacknowledged.at_most(MAX_UNACKNOWLEDGED).now_or_never().is_some());
    world.receive(heartbeat(QoS::AtLeastOnce, MAX_UNACKNOWLEDGED as u16 + 1)).unwrap_or_else(|_| {
        panic!(
            "there is \
         room"
        )
    });
    world.receive(heartbeat(QoS::AtMostOnce, 0)).unwrap_or_else(|_| panic!("there is room"));
    let mut waits = pin!(unacknowledged.at_most(MAX_UNACKNOWLEDGED));
    assert!(waits.as_mut().now_or_never().is_none());
    let ack = |message: QueuedMessage| match message.ack {
        Some(Ack::Broker(ack)) => Some(ack),
        _ => None,
    };
    let acks: Vec<BrokerAck> = world.recorded().into_iter().filter_map(ack).collect();
    let link = world.connection.link.borrow();
    link.acknowledge(&[BrokerAck { connection: 0, ..acks[0] }]);
    assert!(waits.as_mut().now_or_never().is_none(), "that was another connection");
    link.acknowledge(&acks[..1]);
    assert!(waits.now_or_never().is_some());
}

#[test]
fn a_member_has_a_client_id_of_its_own_and_a_session_that_ends_with_its_connection() {
    let filters = || vec!["units/+".to_owned()];
    let filters_of = |requests: &[session::TopicRequest]| -> Vec<String> {
        requests.iter().map(|request| request.filter.clone()).collect()
    };
    let plain = Session::new(&config(""), "main", of_heartbeats(filters())).unwrap();
    assert_eq!((plain.client_id(), plain.expiry), ("me-main", Some(3600)));
    assert_eq!(filters_of(&plain.first), ["units/+", "rollcall/canary/me-main"]);
    assert_eq!(filters_of(&plain.share_requests), [""; 0]);
    let shared = Session::new(&config("all"), "main", of_heartbeats(filters())).unwrap();
    // Announcements and messages about many units are not shared; one connection hears them.
    let all = || FleetFilters {
        heartbeats: filters(),
        status: vec!["units/+".to_owned(), "status/+".to_owned()],
        feeds: vec!["bridge".to_owned()],
    };
    let plain = Session::new(&config(""), "main", all()).unwrap();
    assert_eq!(filters_of(&plain.first), ["units/+", "status/+", "rollcall/canary/me-main", "bridge"]);
    for (name, own) in [("main", ["units/+", "status/+", "bridge"].as_slice()), ("2", &[])] {
        let shared = Session::new(&config("all"), name, all()).unwrap();
        assert_eq!(filters_of(&shared.first)[3..], *own);
        assert_eq!(filters_of(&shared.share_requests), ["$share/all/units/+"]);
    }
    let own = canary::topic(shared.client_id());
    let answers = canary::answers_topic(shared.client_id());
    assert_eq!(filters_of(&shared.first), [own.as_str(), &answers, "rollcall/canary/+/gone"]);
    assert_eq!(filters_of(&shared.share_requests), ["$share/all/units/+"]);
    assert_eq!(shared.expiry, None);
    assert_ne!(
        shared.client_id(),
        Session::new(&config("all"), "main", of_heartbeats(filters())).unwrap().client_id()
    );
}

#[test]
fn a_member_is_released_only_when_the_broker_is_certain_to_have_dropped_it() {
    let session = Session::new(&config("all"), "main", FleetFilters::default()).unwrap();
    assert_eq!(session.release(Duration::from_secs(10)), Duration::from_secs(10 + 15 + 5));
    // If the broker sets a longer keep-alive than the requested one, the longer one counts.
    assert_eq!(session.release(Duration::from_secs(60)), Duration::from_secs(10 + 90 + 5));
}

#[test]
fn a_loss_after_a_long_connection_is_the_first_failure() {
    let after = |lasted: u64| failures_after(6, Duration::from_millis(lasted));
    assert_eq!([0, 4999, 5000, 60_000].map(after), [7, 7, 1, 1]);
    assert!(BACKOFF.wait(after(9000), 1.0) <= Duration::from_millis(250));
}

#[test]
fn timers_are_requested_once_and_only_where_they_are_wanted() {
    let requested = |share: &str, timers: bool, fleet: &str| -> Vec<String> {
        let config = Config { timers, ..config(share) };
        let session = Session::new(&config, "main", of_heartbeats(vec![fleet.to_owned()])).unwrap();
        let all = session.first.iter().chain(&session.share_requests);
        all.map(|request| request.filter.clone()).filter(|filter| filter.contains("timers")).collect()
    };
    assert_eq!(requested("", true, "units/+"), ["rollcall/timers/+"]);
    assert_eq!(
        requested("all", true, "units/+"),
        ["$share/all/rollcall/timers/+"],
        "one member applies each"
    );
    assert_eq!(requested("", false, "units/+"), [""; 0]);
    // Other filters cover these topics already; a broker might deliver each message twice.
    assert_eq!(requested("", true, "+/+/+"), [""; 0]);
}

#[test]
fn one_canary_serves_all_announcements_that_wait() {
    let begin = monotonic();
    assert_eq!(wait_for_announcements(None, begin, TOGETHER), TOGETHER);
    // A client announces every millisecond, for a second.
    let (mut last, mut next, mut canaries) = (None, None, 0);
    for ms in 0..1000 {
        let now = begin + Duration::from_millis(ms);
        if next.take_if(|at| *at <= now).is_some() {
            (last, canaries) = (Some(now), canaries + 1);
        }
        next.get_or_insert(now + wait_for_announcements(last, now, TOGETHER));
    }
    assert_eq!(canaries, 20);
}
