use super::*;
use prost::Message;

use crate::clock::Clock;
use crate::fleet::Rules;
use crate::intake::announcements::sparkplug::payload::{Metric, MetricValue, Payload};
use crate::intake::announcements::{
    Format, Planned, PresenceRules, SparkplugHost, StateWords, homeassistant,
};
use crate::intake::topic::Template;
use crate::presence::{Announced, KindRules, Labels, TimeSource};
use crate::store::ShareMember;

const NOW: Timestamp = Timestamp::from_millis(1_732_147_200_000);

fn reader() -> Reader {
    reader_of(None)
}

fn reader_of(presence: Option<PresenceRules>) -> Reader {
    reader_by(TimeSource::Arrival, presence)
}

fn reader_by(clock: TimeSource, presence: Option<PresenceRules>) -> Reader {
    let kind: Kind = "pump".parse().unwrap();
    let rules = KindRules { clock, ..KindRules::new(kind.clone()) };
    let rules = Rules::from_iter([(kind.clone(), rules)]);
    let template = Template::parse("{site}/{unit}/data", Some(kind.clone())).unwrap();
    let topics = Topics::new(vec![template], Arc::new(rules.clone()).into());
    let topics = match presence {
        Some(presence) => topics.with_presence(&kind, &presence).unwrap(),
        None => topics,
    };
    Reader {
        probes: Arc::new(Probes::new(&topics.filters_of_kinds(), &rules, str::to_owned)),
        recent: Arc::default(),
        topics: Arc::new(topics),
        fields: Fields::default(),
        values: None,
        client_id: "me".to_owned(),
        key: Key::of_fleet("fleet"),
        broker: None,
        max_payload: 1024,
        budget: ReadBudget::default(),
        timers: None,
        max_age: None,
        telemetry: Arc::new(Telemetry::new(&Clock::by_hand(NOW))),
    }
}

fn count(reader: &Reader, result: &str) -> u64 {
    let families = reader.telemetry.gather();
    let metrics = families.iter().flat_map(|family| family.get_metric());
    let is = |m: &&prometheus::proto::Metric| m.get_label().iter().any(|l| l.value() == result);
    metrics.filter(is).map(|m| m.get_counter().get_value() as u64).sum()
}

fn read(reader: &Reader, topic: &str, payload: &[u8], retain: bool) -> Content {
    reader.read(&Incoming { topic: topic.as_bytes(), payload, retain, ..Incoming::default() }, NOW)
}

#[test]
fn a_message_becomes_a_heartbeat_with_labels_of_its_topic_beside_those_of_its_payload() {
    let payload = b"{\"labels\":{\"site\":\"south\",\"floor\":3}}";
    let Content::Heartbeat(heartbeat) = read(&reader(), "north/7/data", payload, false) else { panic!() };
    assert_eq!((heartbeat.unit.to_string().as_str(), heartbeat.at), ("pump:7", NOW));
    let Declared { labels, topic_labels, .. } = heartbeat.declared;
    let texts = |labels: &Labels| -> Vec<String> {
        labels.iter().map(|(name, value)| format!("{name}={value}")).collect()
    };
    assert_eq!(
        (texts(&labels), texts(&topic_labels)),
        (vec!["floor=3".to_owned(), "site=south".to_owned()], vec!["site=north".to_owned()])
    );
}

#[test]
fn a_rejected_message_is_counted_by_reason() {
    let reader = reader();
    for (topic, payload, retain, reason) in [
        ("north/7", &b""[..], false, "bad_topic"),
        ("north//data", b"", false, "bad_unit"),
        ("north/7/data", b"", true, "retained"),
    ] {
        assert_eq!(count(&reader, reason), 0);
        assert_eq!(read(&reader, topic, payload, retain), Content::Nothing, "{topic}");
        assert_eq!(count(&reader, reason), 1, "{reason}");
    }
    let message = Incoming { topic: b"\xff", ..Incoming::default() };
    assert_eq!(reader.read(&message, NOW), Content::Nothing);
    assert_eq!(count(&reader, "bad_topic"), 2);
}

#[test]
fn a_payload_that_is_too_large_or_one_too_many_is_not_read_and_the_unit_lives() {
    let text = |size: usize| format!("{{\"timeout\":60,\"x\":\"{}\"}}", "x".repeat(size - 21)).into_bytes();
    let timeout = |reader: &Reader, size| {
        let payload = text(size);
        assert_eq!(payload.len(), size);
        match read(reader, "north/7/data", &payload, false) {
            Content::Heartbeat(heartbeat) => heartbeat.declared.timeout,
            _ => panic!("{size} bytes prove no life"),
        }
    };
    let reader = Reader { max_payload: 8 << 20, ..reader() };
    let minute = Some(Duration::from_secs(60));
    assert_eq!((timeout(&reader, (8 << 20) + 1), count(&reader, "too_large")), (None, 1));
    for read in [minute, minute, minute, minute, None] {
        assert_eq!(timeout(&reader, 8 << 20), read);
    }
    assert_eq!((timeout(&reader, 1024), timeout(&reader, 1025)), (minute, None), "small ones always are");
    assert_eq!(count(&reader, "too_large"), 3);
}

#[test]
fn an_announcement_that_is_not_read_says_nothing_and_is_counted() {
    let large = vec![b' '; 2000];
    // On a topic of announcements, it may say anything.
    let reader = reader_of(Some(presence(Format::Zigbee2Mqtt)));
    assert_eq!(read(&reader, "zigbee2mqtt/a/availability", &large, false), Content::Nothing);
    assert_eq!(count(&reader, "too_large"), 1);
    // The state of a bridge.
    read(&reader, "zigbee2mqtt/bridge/state", b"offline", false);
    read(&reader, "zigbee2mqtt/bridge/state", &large, false);
    assert!(reader.probes.is_held(&"pump".parse().unwrap()));
    assert_eq!(count(&reader, "too_large"), 2);

    // A discovery message that is not read changes nothing of its device.
    let topics = vec!["porch/+".to_owned()];
    let rules = PresenceRules { topics, ..presence(Format::HomeAssistant) };
    let reader = Reader { max_payload: 200, ..reader_of(Some(rules)) };
    let discover = |name: &str| {
        let device = format!("\"dev\":{{\"ids\":\"porch\",\"name\":\"{name}\"}}");
        let message = format!("{{\"avty_t\":\"porch/status\",\"stat_t\":\"porch/state\",{device}}}");
        read(&reader, "homeassistant/sensor/porch/config", message.as_bytes(), true)
    };
    assert_eq!(discover("a"), Content::Nothing);
    let state = |payload: &[u8]| told(read(&reader, "porch/status", payload, false));
    assert_eq!(state(b"online"), ["pump:porch is there"]);
    discover(&"x".repeat(homeassistant::MAX_DISCOVERY));
    assert_eq!((state(b"offline"), count(&reader, "too_large")), (vec!["pump:porch is gone".to_owned()], 1));
    let report = read(&reader, "porch/state", &large, false);
    assert_eq!((told(report), count(&reader, "too_large")), (vec!["pump:porch is there".to_owned()], 2));
    // Discovery messages of devices with many entities are larger than heartbeats.
    discover(&"x".repeat(5000));
    assert_eq!((state(b"online"), count(&reader, "too_large")), (vec!["pump:porch is there".to_owned()], 2));
}

#[test]
fn a_heartbeat_of_a_clock_that_is_behind_says_when_it_arrived_which_is_after_an_announcement() {
    let words = StateWords { online: vec![], offline: vec!["offline".to_owned()], field: String::new() };
    let topics = vec!["{site}/{unit}/status".to_owned()];
    let rules = PresenceRules { topics, ..presence(Format::LastWill(words)) };
    let reader = reader_by(TimeSource::Device, Some(rules));
    let second = Duration::from_secs(1);
    // Heartbeats that arrive after these seconds, of a clock that is 5 s behind.
    let moment = |seconds: u32| {
        let arrived = NOW + seconds * second;
        let payload = format!("{{\"ts\":{}}}", (arrived - 5 * second).as_millis());
        let message = Incoming { topic: b"north/7/data", payload: payload.as_bytes(), ..Incoming::default() };
        match reader.read(&message, arrived) {
            Content::Heartbeat(heartbeat) => (heartbeat.at, heartbeat.arrived),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(moment(10), (NOW + 5 * second, NOW + 10 * second));
    let will = Incoming { topic: b"north/7/status", payload: b"offline", ..Incoming::default() };
    assert!(matches!(reader.read(&will, NOW + 20 * second), Content::Announcement(_)));
    let next = NOW + 20 * second + Duration::from_millis(1);
    assert_eq!([20, 21].map(moment), [(NOW + 15 * second, next), (NOW + 16 * second, NOW + 21 * second)]);
}

#[test]
fn a_session_that_ends_because_its_broker_stood_still_says_nothing_and_what_the_unit_says_itself_counts() {
    let homie = PresenceRules { planned: Planned::Offline, ..presence(Format::Homie) };
    let sparkplug = presence(Format::Sparkplug(Default::default()));
    let death = numbered(Some(MetricValue::Long(1)));
    let cases: [(PresenceRules, &str, &[u8], bool); 4] = [
        (homie.clone(), "homie/7/$state", b"lost", true),
        (homie.clone(), "homie/7/$state", b"disconnected", false),
        (homie, "homie/7/$state", b"ready", false),
        (sparkplug, "spBv1.0/plant/NDEATH/7", &death, true),
    ];
    for (presence, topic, payload, is_void) in cases {
        let reader = reader_of(Some(presence));
        let message = |stood_still| {
            let topic = topic.as_bytes();
            told(reader.read(&Incoming { topic, payload, stood_still, ..Incoming::default() }, NOW))
        };
        assert_eq!((message(true).is_empty(), count(&reader, "lost")), (is_void, is_void.into()), "{topic}");
        assert!(!message(false).is_empty(), "{topic}");
    }
}

#[test]
fn a_message_that_declares_too_high_an_age_is_no_heartbeat() {
    let reader = Reader { max_age: Some(Duration::from_secs(60)), ..reader() };
    let sent = |ago: i64| format!("{{\"ts\":{}}}", NOW.as_millis() - ago * 1000);
    let heartbeats = |payload: &str| {
        matches!(read(&reader, "north/7/data", payload.as_bytes(), false), Content::Heartbeat(_))
    };
    // Payloads without a time, with a plausible time, with a time ahead, and from a clock that fell back to long
    // ago.
    let ages = [60, -10, 100 * 86_400].map(sent);
    for payload in ["", "{}"].into_iter().chain(ages.iter().map(String::as_str)) {
        assert!(heartbeats(payload), "{payload}");
    }
    assert_eq!(count(&reader, "too_old"), 0);
    assert!(!heartbeats(&sent(61)) && !heartbeats(&sent(3 * 86_400 - 60)));
    assert_eq!(count(&reader, "too_old"), 2);
    let forever = Reader { max_age: None, ..reader };
    assert!(matches!(read(&forever, "north/7/data", sent(61).as_bytes(), false), Content::Heartbeat(_)));
}

#[test]
fn a_payload_issue_is_counted_and_the_unit_still_lives() {
    let reader = reader();
    assert!(matches!(read(&reader, "north/7/data", b"{", false), Content::Heartbeat(_)));
    assert_eq!(count(&reader, "broken_json"), 1);
}

#[test]
fn a_canary_of_another_client_is_nothing_and_never_a_unit() {
    let reader = reader();
    let own = Canary::new(&reader.key, "rollcall/canary/me", "x", 0, Timestamp::from_millis(5));
    let canary = own.to_json();
    assert_eq!(read(&reader, "rollcall/canary/me", &canary, false), Content::Canary(own));
    assert_eq!(read(&reader, "rollcall/canary/you", &canary, false), Content::Nothing);
    assert_eq!(read(&reader, "rollcall/canary/data", b"", false), Content::Nothing);
    assert_eq!(count(&reader, "forged_canary"), 0);
    // The message that removes a last will.
    assert_eq!(read(&reader, "rollcall/canary/you/gone", b"", false), Content::Nothing);
}

#[test]
fn what_rollcall_publishes_is_no_message_of_a_unit_whatever_covers_it() {
    let home = PresenceRules { topics: vec!["+/#".to_owned()], ..presence(Format::HomeAssistant) };
    let sensor = br#"{"state_topic":"rollcall/state/pump/7","device":{"identifiers":["rollcall_pump_7"]}}"#;
    let host = Format::Sparkplug(SparkplugHost { id: "data".to_owned(), rebirth: false });
    for (presence, is_own_host) in [(None, false), (Some(home), false), (Some(presence(host)), true)] {
        let reader = reader_of(presence);
        for (topic, payload) in [
            ("homeassistant/binary_sensor/rollcall/pump_7/config", &sensor[..]),
            ("rollcall/state/pump/7", b"{}"),
            ("rollcall/state/data", b"{}"),
            ("rollcall/alerts/data", b"{}"),
        ] {
            assert_eq!(read(&reader, topic, payload, false), Content::Nothing, "{topic}");
        }
        let is_host = read(&reader, "spBv1.0/STATE/data", b"{}", false) == Content::Nothing;
        assert_eq!((is_host, count(&reader, "bad_topic")), (is_own_host, 0));
    }
}

#[test]
fn a_probe_on_a_topic_of_the_fleet_is_never_a_unit() {
    let reader = reader();
    for topic in ["rollcall-probe/rollcall-probe/data", "north/rollcall-probe/data", "rollcall-probe/7/data"]
    {
        assert_eq!(read(&reader, topic, b"{}", false), Content::Nothing, "{topic}");
    }
    assert_eq!(count(&reader, "bad_topic") + count(&reader, "bad_unit"), 0);
    assert!(matches!(read(&reader, "north/rollcall-probe-2/data", b"", false), Content::Heartbeat(_)));
}

#[test]
fn a_forged_canary_is_refused_and_counted() {
    let reader = reader();
    let topic = "rollcall/canary/me";
    let own = Canary::new(&reader.key, topic, "x", 7, Timestamp::from_millis(5));
    let forged = Canary { seq: u64::MAX, ..own.clone() };
    let unsigned = "{\"instance\":\"x\",\"seq\":1000000,\"sent_at\":5}";
    for (n, payload) in [forged.to_json(), unsigned.into(), b"tweet".to_vec()].iter().enumerate() {
        assert_eq!(read(&reader, topic, payload, false), Content::Nothing);
        assert_eq!(count(&reader, "forged_canary"), n as u64 + 1);
    }
    let ahead = Canary::new(&reader.key, topic, "x", 8, NOW + Duration::from_millis(1));
    assert_eq!(read(&reader, topic, &ahead.to_json(), false), Content::Nothing, "by a clock that is ahead");
}

/// The units that are present, and the units that are gone.
fn told(content: Content) -> Vec<String> {
    match content {
        Content::Several(all) => all.into_iter().flat_map(told).collect(),
        Content::Heartbeat(heartbeat) => vec![format!("{} is there", heartbeat.unit)],
        Content::Announcement(one) => vec![format!("{} is gone", one.unit)],
        _ => Vec::new(),
    }
}

/// Announcements of this format, with proof.
fn presence(format: Format) -> PresenceRules {
    let topics = format.topics().iter().map(|topic| (*topic).to_owned()).collect();
    let (settle, planned) = (SETTLE, Planned::Ignore);
    PresenceRules { format, topics, is_proof: true, settle, planned, bridge: None }
}

const SETTLE: Duration = Duration::from_secs(10);

#[test]
fn data_of_a_sparkplug_device_prove_its_node_and_its_death_does_not() {
    let reader = reader_of(Some(presence(Format::Sparkplug(Default::default()))));
    let payload = |is_historical| {
        let metrics = vec![Metric { is_historical, ..Metric::default() }];
        Payload { metrics, ..Payload::default() }.encode_to_vec()
    };
    let (node, device) = ("pump:plant.n1 is there", "pump:plant.n1.d1 is there");
    let cases: [(&str, Option<bool>, &[&str]); 6] = [
        ("NBIRTH/n1", None, &[node]),
        ("DBIRTH/n1/d1", None, &[device, node]),
        ("DDATA/n1/d1", Some(false), &[device, node]),
        ("DDATA/n1/d1", Some(true), &[node]),
        ("NDATA/n1", Some(true), &[node]),
        ("DDEATH/n1/d1", None, &["pump:plant.n1.d1 is gone"]),
    ];
    for (topic, is_historical, expected) in cases {
        let content = read(&reader, &format!("spBv1.0/plant/{topic}"), &payload(is_historical), false);
        assert_eq!(told(content), expected, "{topic} {is_historical:?}");
    }
}

/// How long a unit may take to be heard after an announcement; `None`: the message is none.
fn settle(content: Content) -> Option<Duration> {
    match content {
        Content::Announcement(one) => match one.says {
            Announced::Gone { settle, .. } => Some(settle),
            Announced::Away(_) => None,
        },
        Content::Several(all) => all.into_iter().find_map(settle),
        _ => None,
    }
}

fn numbered(value: Option<MetricValue>) -> Vec<u8> {
    let metrics = vec![Metric { name: Some("bdSeq".to_owned()), value, ..Metric::default() }];
    Payload { metrics, ..Payload::default() }.encode_to_vec()
}

#[test]
fn a_sparkplug_death_that_names_no_session_says_nothing_of_a_node_whose_session_has_a_number() {
    let (birth, death) = ("spBv1.0/plant/NBIRTH/n1", "spBv1.0/plant/NDEATH/n1");
    let (number, text) = (Some(MetricValue::Long(1)), Some(MetricValue::Text("1".to_owned())));
    let unnumbered = Payload { timestamp: Some(5), ..Payload::default() }.encode_to_vec();
    let reader = reader_of(Some(presence(Format::Sparkplug(Default::default()))));
    assert_eq!(told(read(&reader, birth, &numbered(number.clone()), false)), ["pump:plant.n1 is there"]);
    assert_eq!(read(&reader, death, b"", false), Content::Nothing);
    assert_eq!((count(&reader, "unknown_state"), count(&reader, "bad_value")), (0, 0));
    assert_eq!(read(&reader, death, &unnumbered, false), Content::Nothing);
    assert_eq!((count(&reader, "unknown_state"), count(&reader, "bad_value")), (1, 0));
    assert_eq!(read(&reader, death, &numbered(text.clone()), false), Content::Nothing);
    assert_eq!((count(&reader, "unknown_state"), count(&reader, "bad_value")), (2, 1));
    assert_eq!(settle(read(&reader, death, &numbered(number), false)), Some(Duration::ZERO));

    // A library that writes no number into its births.
    assert_eq!(told(read(&reader, birth, &numbered(text), false)), ["pump:plant.n1 is there"]);
    assert_eq!(count(&reader, "bad_value"), 2);
    assert_eq!(settle(read(&reader, death, &unnumbered, false)), Some(Duration::ZERO));
}

#[test]
fn an_announcement_is_a_hint_while_the_session_that_ends_is_not_known() {
    let host = SparkplugHost { rebirth: true, ..SparkplugHost::default() };
    let reader = reader_of(Some(presence(Format::Sparkplug(host))));
    let (birth, death) = ("spBv1.0/plant/NBIRTH/n1", "spBv1.0/plant/NDEATH/n1");
    let payload = numbered(Some(MetricValue::Long(1)));
    let Content::Several(parts) = read(&reader, death, &payload, false) else { panic!() };
    let [announced, Content::Command(topic, _)] = &parts[..] else { panic!("{parts:?}") };
    assert_eq!(topic, "spBv1.0/plant/NCMD/n1", "the node is asked whether it lives");
    assert!(matches!(announced, Content::Announcement(one) if one.has_devices && !one.follows_birth));
    assert_eq!(settle(Content::Several(parts)), Some(SETTLE));
    read(&reader, birth, &payload, false);
    assert_eq!(settle(read(&reader, death, &payload, false)), Some(Duration::ZERO));

    // Events of EMQX; the moments of the second client are ahead, so that they are no order.
    let reader = reader_of(Some(presence(Format::Emqx)));
    let ahead = NOW.as_millis() + 86_400_000;
    for (client, begin, settles) in
        [("a", NOW.as_millis(), [SETTLE, Duration::ZERO]), ("b", ahead, [SETTLE, SETTLE])]
    {
        let event = |event: &str, begin: i64, rest: &str| {
            let payload = format!("{{\"connected_at\":{begin}{rest}}}");
            read(&reader, &format!("$SYS/brokers/n/clients/{client}/{event}"), payload.as_bytes(), false)
        };
        let end = ",\"disconnected_at\":5,\"reason\":\"tcp_closed\"";
        assert_eq!(settle(event("disconnected", begin - 10, end)), Some(settles[0]), "{client}");
        assert_eq!(told(event("connected", begin, "")), [format!("pump:{client} is there")]);
        assert_eq!(settle(event("disconnected", begin, end)), Some(settles[1]), "{client}");
    }
    // And they make no later event void.
    let payload = format!("{{\"connected_at\":{}}}", NOW.as_millis());
    let content = read(&reader, "$SYS/brokers/n/clients/b/connected", payload.as_bytes(), false);
    assert_eq!(told(content), ["pump:b is there"]);
}

#[test]
fn announcements_are_void_while_the_bridge_of_their_kind_is_offline() {
    let reader = reader_of(Some(presence(Format::Zigbee2Mqtt)));
    let lamp = |state: &[u8]| told(read(&reader, "zigbee2mqtt/a/availability", state, false));
    let bridge = |state: &[u8]| read(&reader, "zigbee2mqtt/bridge/state", state, true);
    let none: [&str; 0] = [];
    assert_eq!(lamp(b"offline"), ["pump:a is gone"]);
    bridge(b"offline");
    assert_eq!((lamp(b"offline"), count(&reader, "lost")), (none.map(str::to_owned).into(), 1));
    assert_eq!(lamp(b"online"), ["pump:a is there"]);
    bridge(b"\xEF\xBB\xBF{\"state\":\"online\"}");
    assert_eq!(lamp(b"offline"), ["pump:a is gone"]);
}

#[test]
fn a_byte_order_mark_before_a_payload_is_left_out() {
    let words = StateWords { online: vec![], offline: vec!["lost".to_owned()], field: "state".to_owned() };
    let topics = vec!["{site}/{unit}/data".to_owned()];
    let reader = reader_of(Some(PresenceRules { topics, ..presence(Format::LastWill(words)) }));
    let gone = read(&reader, "north/7/data", "\u{feff}{\"state\":\"lost\"}".as_bytes(), false);
    assert_eq!(told(gone), ["pump:7 is gone"]);
    let content = read(&reader, "north/7/data", "\u{feff}{\"timeout\":60}".as_bytes(), false);
    let Content::Heartbeat(heartbeat) = content else { panic!() };
    assert_eq!(heartbeat.declared.timeout, Some(Duration::from_secs(60)));
}

#[test]
fn heartbeats_and_announcements_of_kinds_that_several_brokers_hear_have_the_broker() {
    let words = StateWords { online: vec![], offline: vec!["offline".to_owned()], field: String::new() };
    let topics = vec!["{site}/{unit}/status".to_owned()];
    let presence = PresenceRules { topics, ..presence(Format::LastWill(words)) };
    let broker: BrokerName = "eu".parse().unwrap();
    for (kinds, expected) in [(vec!["pump"], Some(&broker)), (vec![], None)] {
        let kinds = kinds.into_iter().map(|kind| kind.parse().unwrap()).collect();
        let reader = Reader { broker: Some((broker.clone(), kinds)), ..reader_of(Some(presence.clone())) };
        let Content::Heartbeat(one) = read(&reader, "north/7/data", b"", false) else { panic!() };
        assert_eq!(one.broker.as_ref(), expected);
        let Content::Announcement(one) = read(&reader, "north/7/status", b"offline", false) else { panic!() };
        assert_eq!(one.broker.as_ref(), expected);
    }
}

#[test]
fn a_last_will_counts_also_when_it_was_retained() {
    let member = ShareMember { share: "all".to_owned(), client_id: "you".to_owned(), connection: 3 };
    let will = canary::gone_payload(&member);
    assert_eq!(read(&reader(), "rollcall/canary/you/gone", &will, true), Content::MemberLost(member));
}
