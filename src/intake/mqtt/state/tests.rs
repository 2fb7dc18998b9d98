//! A table of packets, ticks, proofs and losses, and the actions of a connection.

use std::collections::HashMap;

use rumqttc::{ConnAckProperties, ConnectReturnCode, SubscribeReasonCode, UnsubAckReason};

use super::*;
use crate::clock::monotonic;
use crate::fleet::{CanaryPace, Rules};
use crate::intake::canary::{Canary, Key};
use crate::intake::mqtt::tests::config;
use crate::intake::probe::Probes;
use crate::intake::topic::{Template, Topics};
use crate::presence::{Announced, Announcement, Cause, Heartbeat, Kind, KindRules};

const GAP: Duration = Duration::from_secs(3);
/// When each case begins, in seconds.
const BEGIN: i64 = 1000;
/// More room in the queue than any case needs.
const ROOM: usize = 100;
/// The payload of last wills.
const WILL: &str = "gone";

/// An event of a connection.
#[derive(Clone, Copy, Debug)]
enum Input {
    Seconds(u64),
    Connect,
    /// CONNACK: whether the broker has a session.
    ConnAck(bool),
    /// CONNACK of a broker without shared subscriptions.
    ConnAckWithoutShares,
    /// SUBACK: the QoS that is granted to each filter; 9 refuses it.
    SubAck(&'static [u8]),
    UnsubAck,
    PingResp,
    /// PUBLISH of a unit: QoS, packet id, whether it is flagged as a duplicate, payload.
    Beat(u8, u16, bool, &'static str),
    /// PUBLISH of a last will, at QoS 1 with this packet id.
    Will(u16),
    /// PUBLISH at QoS 0, while the queue has so much room.
    BeatIntoRoom(usize),
    /// PUBLISH of the canary with this number.
    Canary(u64),
    /// PUBLISH of a canary that an earlier process sent this many seconds ago.
    EarlierCanary(u64),
    SysCount,
    Tick,
    /// A timer runs out; whether the broker is held back.
    Timer(bool),
    /// Reading had stopped for this many seconds.
    ReadAgain(u64),
    /// The recorder has recorded the canary with this number; whether the member attends.
    Proof(u64, bool),
    /// The broker answers probe 0.
    ProbeAnswer(PubAckReason),
    Stop,
    Lost(ConnectionLoss),
}
use Input::*;

mod cases;
mod probing;

use cases::{CASES, PLAIN};
use probing::{PROBING, PROBING_CASES};

struct World {
    state: ConnectionState,
    now: Now,
    /// When each canary was sent.
    sent: HashMap<u64, Timestamp>,
    key: Key,
}

impl World {
    fn new(share: &str, heard: Option<i64>) -> World {
        let kind: Kind = "pump".parse().unwrap();
        let rules = Rules::from_iter([(kind.clone(), KindRules::new(kind.clone()))]);
        let topics = Topics::new(
            vec![Template::parse("units/{unit}", Some(kind)).unwrap()],
            Arc::new(rules.clone()).into(),
        );
        let probes = Arc::new(Probes::new(&topics.filters_of_kinds(), &rules, str::to_owned));
        let is_probing = share == PROBING;
        let share = if is_probing { PLAIN } else { share };
        let mut session = Session::new(&config(share), "main", topics.by_use()).unwrap();
        session.most_unacknowledged = 6;
        let session = Arc::new(session);
        let pace = Arc::new(CanaryPace::fixed(GAP)).at("main");
        let heard = heard.map(|second| Timestamp::from_millis(second * 1000));
        let schedule = is_probing.then(|| ProbeSchedule::new(probes));
        World {
            state: ConnectionState::new(session, pace, heard, "process", schedule, 0),
            now: Now { clock: Timestamp::from_millis(BEGIN * 1000), instant: monotonic() },
            sent: HashMap::new(),
            key: Key::of_fleet("fleet"),
        }
    }

    fn packet(&mut self, packet: &Packet, room: usize, actions: &mut Actions) {
        let (now, key) = (self.now.clock, &self.key);
        let read = |message: &Incoming| match Canary::read(key, "canary", message.payload) {
            Some(canary) => Content::Canary(canary),
            None if message.payload == WILL.as_bytes() && message.stood_still => Content::Nothing,
            None if message.payload == WILL.as_bytes() => {
                let gone = Announced::Gone { cause: Cause::LastWill, settle: Duration::ZERO };
                Content::Announcement(Announcement::of("pump:7".parse().unwrap(), now, gone).into())
            }
            None => Content::Heartbeat(Heartbeat {
                not_before: message.sent_after,
                ..Heartbeat::of("pump:7".parse().unwrap(), message.sent_before.unwrap_or(now))
            }),
        };
        self.state.on_packet(packet, self.now, room, read, actions);
    }

    fn canary(&mut self, instance: &str, seq: u64, sent_at: Timestamp, actions: &mut Actions) {
        let canary = Canary::new(&self.key, "canary", instance, seq, sent_at);
        let publish = Publish::new("canary", QoS::AtMostOnce, canary.to_json(), None);
        self.packet(&Packet::Publish(publish), ROOM, actions);
    }

    /// The actions of the connection, each in a few words.
    fn happens(&mut self, input: Input) -> String {
        let mut actions = Actions::new();
        let now = self.now;
        match input {
            Seconds(seconds) => {
                let span = Duration::from_secs(seconds);
                self.now = Now { clock: now.clock + span, instant: now.instant + span };
            }
            Connect => self.state.on_connect(now.instant),
            ConnAck(session_present) => {
                let code = ConnectReturnCode::Success;
                let packet = rumqttc::ConnAck { session_present, code, properties: None };
                self.packet(&Packet::ConnAck(packet), ROOM, &mut actions);
            }
            ConnAckWithoutShares => {
                let properties = ConnAckProperties {
                    session_expiry_interval: None,
                    receive_max: None,
                    max_qos: None,
                    retain_available: None,
                    max_packet_size: None,
                    assigned_client_identifier: None,
                    topic_alias_max: None,
                    reason_string: None,
                    user_properties: Vec::new(),
                    wildcard_subscription_available: None,
                    subscription_identifiers_available: None,
                    shared_subscription_available: Some(0),
                    server_keep_alive: None,
                    response_information: None,
                    server_reference: None,
                    authentication_method: None,
                    authentication_data: None,
                };
                let (code, properties) = (ConnectReturnCode::Success, Some(properties));
                let packet = rumqttc::ConnAck { session_present: false, code, properties };
                self.packet(&Packet::ConnAck(packet), ROOM, &mut actions);
            }
            SubAck(granted) => {
                let code = |granted: &u8| match granted {
                    0 => SubscribeReasonCode::Success(QoS::AtMostOnce),
                    1 => SubscribeReasonCode::Success(QoS::AtLeastOnce),
                    _ => SubscribeReasonCode::NotAuthorized,
                };
                let return_codes = granted.iter().map(code).collect();
                let packet = rumqttc::SubAck { pkid: 1, return_codes, properties: None };
                self.packet(&Packet::SubAck(packet), ROOM, &mut actions);
            }
            UnsubAck => {
                let reasons = vec![UnsubAckReason::Success];
                let packet = rumqttc::UnsubAck { pkid: 2, reasons, properties: None };
                self.packet(&Packet::UnsubAck(packet), ROOM, &mut actions);
            }
            PingResp => self.packet(&Packet::PingResp, ROOM, &mut actions),
            Beat(qos, pkid, dup, payload) => {
                let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][usize::from(qos)];
                let publish = Publish { pkid, dup, ..Publish::new("units/7", qos, payload, None) };
                self.packet(&Packet::Publish(publish), ROOM, &mut actions);
            }
            Will(pkid) => {
                let publish = Publish { pkid, ..Publish::new("units/7", QoS::AtLeastOnce, WILL, None) };
                self.packet(&Packet::Publish(publish), ROOM, &mut actions);
            }
            BeatIntoRoom(room) => {
                let publish = Publish::new("units/7", QoS::AtMostOnce, "", None);
                self.packet(&Packet::Publish(publish), room, &mut actions);
            }
            Canary(seq) => {
                let sent_at = self.sent.get(&seq).copied().unwrap_or(now.clock);
                self.canary("process", seq, sent_at, &mut actions);
            }
            EarlierCanary(ago) => {
                let sent_at = now.clock - Duration::from_secs(ago);
                self.canary("earlier", 1, sent_at, &mut actions);
            }
            SysCount => {
                let publish = Publish::new(drops::TOPIC, QoS::AtMostOnce, "7", None);
                self.packet(&Packet::Publish(publish), ROOM, &mut actions);
            }
            Tick => {
                assert!(self.state.is_sending_canaries());
                self.state.on_tick(now.instant, &mut actions);
            }
            Timer(is_held_back) => self.state.on_timer(now.instant, is_held_back, &mut actions),
            ReadAgain(seconds) => self.state.on_read_again(Duration::from_secs(seconds), now.clock),
            Proof(seq, attends) => {
                let attends = if attends { self.state.number() } else { 0 };
                let canary = self.sent[&seq];
                let proof = crate::intake::mqtt::Proof {
                    attends,
                    at: Some(now.instant),
                    canary,
                    left: false,
                    round_trip: Duration::ZERO,
                };
                self.state.on_proof(&proof, now, &mut actions);
            }
            ProbeAnswer(reason) => {
                self.state.on_probe_answer(0, Some(reason), now.instant, &mut actions);
            }
            Stop => self.state.on_stop(now.instant, &mut actions),
            Lost(loss) => {
                self.state.on_disconnect(loss, String::new(), now.instant, &mut actions);
                self.state.on_end(Some(loss), now.instant, &mut actions);
            }
        }
        self.carry_out(&actions);
        actions.iter().map(shown).collect::<Vec<_>>().join(", ")
    }

    /// The client has room for everything.
    fn carry_out(&mut self, actions: &Actions) {
        for action in actions {
            match action {
                Action::SendCanary(seq) => {
                    self.state.canary_sent(*seq, self.now.instant);
                    self.sent.insert(*seq, self.now.clock);
                }
                Action::PublishProbe(index) => self.state.probe_published(*index, self.now.instant),
                _ => {}
            }
        }
    }
}

fn shown(action: &Action) -> String {
    let seconds = |at: Timestamp| at.as_millis() / 1000 - BEGIN;
    match action {
        Action::Accept { release } => format!("accept for {} s", release.as_secs()),
        Action::Subscribe(Requests::First) => "subscribe".to_owned(),
        Action::Subscribe(Requests::Share) => "subscribe to the share".to_owned(),
        Action::UnsubscribeShare => "unsubscribe".to_owned(),
        Action::ReportGrants(grants) => grants.refusal().map_or("granted", |_| "refused").to_owned(),
        Action::ReportConnected => "connected".to_owned(),
        Action::Record(QueuedMessage { content, arrived, ack, .. }) => {
            let content = match content {
                Content::Heartbeat(Heartbeat { not_before: Some(earliest), at, .. }) if at < arrived => {
                    format!("heartbeat between {} and {}", seconds(*earliest), seconds(*at))
                }
                Content::Heartbeat(_) => "heartbeat".to_owned(),
                Content::Announcement(_) => "will".to_owned(),
                Content::Canary(canary) => format!("canary {}", canary.seq),
                Content::Unsubscribed => "unsubscribed".to_owned(),
                _ => "nothing".to_owned(),
            };
            let ack = ack.as_ref().map(|ack| match ack {
                Ack::Broker(ack) => format!(" ack {}", ack.packet),
                Ack::Device(receipt) => format!("{receipt:?}"),
            });
            let ack = ack.unwrap_or_default();
            format!("record {content}{ack}")
        }
        Action::RejectOverflow => "overflow".to_owned(),
        Action::CountBrokerDrops => "count".to_owned(),
        Action::SendCanary(seq) => format!("send {seq}"),
        Action::TickAfter(wait) => format!("tick after {wait:?}"),
        Action::TickNow => "tick now".to_owned(),
        Action::PublishProbe(index) => format!("probe {index}"),
        Action::ProbeAnswered(_, outcome) => format!("probe {outcome:?}"),
        Action::StopTaking => "stop taking".to_owned(),
        Action::TellOfProbe(topic, _) => format!("tell {topic}"),
        Action::End(loss, _) => format!("end {loss:?}"),
    }
}

#[test]
fn a_connection_does_what_the_table_says() {
    for (claim, share, heard, before, steps) in CASES.iter().chain(PROBING_CASES) {
        let mut world = World::new(share, *heard);
        for (number, (input, actions)) in before.iter().chain(*steps).enumerate() {
            assert_eq!(world.happens(*input), *actions, "{claim}: step {number}, {input:?}");
        }
    }
}

#[test]
fn a_probe_for_which_two_connections_end_is_not_published_again() {
    let mut world = World::new(PROBING, None);
    let mut connect = |end: &str| {
        for input in [Connect, ConnAck(false), SubAck(&[1, 1])] {
            world.happens(input);
        }
        let ticked = world.happens(Tick);
        assert_eq!(world.happens(Lost(ConnectionLoss::Broken)), end);
        ticked.contains("probe")
    };
    assert!(connect("end Broken"));
    assert!(connect("end Broken, probe EndsConnection"));
    assert!(!connect("end Broken"));
}

#[test]
fn the_way_to_the_broker_is_measured_without_the_time_in_which_nothing_was_read() {
    for (waits, measured) in [(&[Seconds(9)][..], 9), (&[Seconds(8), ReadAgain(8), Seconds(1)], 1)] {
        let mut world = World::new(PLAIN, None);
        let before = [Connect, ConnAck(false), SubAck(&[1, 1]), Seconds(1), Tick];
        for input in before.iter().chain(waits).chain(&[Canary(1)]) {
            world.happens(*input);
        }
        assert_eq!(world.state.pace.round_trip(), Duration::from_secs(measured));
        world.happens(Lost(ConnectionLoss::Silent));
        assert_eq!(world.state.pace.round_trip(), Duration::ZERO, "a connection that ended takes no time");
    }
}
