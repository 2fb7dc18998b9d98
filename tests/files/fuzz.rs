//! Every parser of foreign bytes, on mutated input: valid examples, cut, joined and
//! changed at random. No parser panics, accepted input keeps the parser's rules, and written output reads back.
//!
//! Each test run uses the same few thousand inputs; `make fuzz MINUTES=10 [SEED=n]` continues with others. A failing
//! input is printed with the seed, and as bytes that a test can repeat.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollcall::alerting::{self, MailContent, MessageConfig, ReceiverMessage};
use rollcall::clock::{Clock, Stopwatch, Timestamp, monotonic};
use rollcall::config::{self, EngineConfig};
use rollcall::fleet::coverage::Coverage;
use rollcall::fleet::timers::{FARTHEST_DUE, TimerRequest};
use rollcall::fleet::{HearingConfig, Roll, Silences, Timers};
use rollcall::fleet::{Mirror, Ownership};
use rollcall::http::{self, AlertRoutes, PageSources, Pages};
use rollcall::intake::{self, Bodies};
use rollcall::presence::{
    Heartbeat, MAX_ID, MAX_LABELS, RecordId, Unit, is_label_name, is_label_value, is_timeout,
};
use rollcall::routing::{AlertSilence, Routes, SilenceId};
use rollcall::store::embedded::EmbeddedEngine;
use rollcall::store::encoding;
use rollcall::store::redis::{Mode, RedisAddress};
use rollcall::store::{Engine, StoredDeliveries, StoredGroups, delivery_of_any};
use rollcall::telemetry::Telemetry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const NOW: Timestamp = Timestamp::from_millis(1_772_366_400_000);
/// Inputs of each parser in a run of the tests.
const FEW: u32 = 4000;
/// Far longer than one input may take, also on a busy machine.
const LONGEST: Duration = Duration::from_secs(60);
/// The largest input.
const LARGEST: usize = 64 << 10;
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Bytes that often break parsers.
const HARD: [&[u8]; 28] = [
    b"\0",
    b"\xff\xfe",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    "\u{202e}".as_bytes(),
    "\u{feff}".as_bytes(),
    b"/",
    b"+",
    b"#",
    b":",
    b"\"",
    b"\\u0000",
    b"{",
    b"[[[[[[[[[[[[[[[[",
    b"}",
    b"-",
    b"-9223372036854775808",
    b"18446744073709551616",
    b"1e999",
    b"NaN",
    b"%00",
    b"%",
    b"$SYS/",
    b"\r\n",
    b"null",
    b"0",
    b"\n",
];

/// Valid bytes, mutated.
struct Twister {
    random: StdRng,
    examples: Vec<Vec<u8>>,
}

impl Twister {
    fn next(&mut self) -> Vec<u8> {
        let mut bytes = self.example();
        for _ in 0..self.random.random_range(0..6) {
            self.twist(&mut bytes);
        }
        bytes.truncate(LARGEST);
        bytes
    }

    fn example(&mut self) -> Vec<u8> {
        let at = self.random.random_range(0..self.examples.len());
        self.examples[at].clone()
    }

    fn twist(&mut self, bytes: &mut Vec<u8>) {
        let at = self.random.random_range(0..=bytes.len());
        let until = self.random.random_range(at..=bytes.len().min(at + 24));
        match self.random.random_range(0..8) {
            0 => drop(bytes.drain(at..until)),
            1 => bytes.truncate(at),
            2 => {
                let part = bytes[at..until].to_vec();
                let times = self.random.random_range(1..40);
                bytes.splice(at..at, part.repeat(times));
            }
            3 => {
                let hard = HARD[self.random.random_range(0..HARD.len())];
                bytes.splice(at..until, hard.iter().copied());
            }
            4 => {
                let other = self.example();
                let from = self.random.random_range(0..=other.len());
                bytes.splice(at..until, other[from..].iter().copied());
            }
            5 => bytes.insert(at, self.random.random()),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << self.random.random_range(0..8);
                }
            }
        }
    }
}

/// Runs `check` on mutated examples.
fn fuzz(examples: &[impl AsRef<[u8]>], mut check: impl FnMut(&[u8])) {
    let seed: u64 = std::env::var("SEED").ok().map_or(7, |seed| seed.parse().expect("SEED is a number"));
    let minutes = std::env::var("FUZZ_MINUTES").ok().map(|minutes| minutes.parse::<f64>().expect("minutes"));
    let until = minutes.map(|minutes| monotonic() + Duration::from_secs_f64(minutes * 60.0));
    let examples = examples.iter().map(|example| example.as_ref().to_vec()).collect();
    let mut twister = Twister { random: StdRng::seed_from_u64(seed), examples };
    let mut tried = 0u64;
    while until.map_or(tried < u64::from(FEW), |until| monotonic() < until) {
        let bytes = twister.next();
        let began = Stopwatch::start();
        let outcome = catch_unwind(AssertUnwindSafe(|| check(&bytes)));
        let shown = || format!("input {tried} of SEED={seed}: b\"{}\"", bytes.escape_ascii());
        if let Err(panic) = outcome {
            eprintln!("{}", shown());
            std::panic::resume_unwind(panic);
        }
        assert!(began.elapsed() < LONGEST, "it took {:?}: {}", began.elapsed(), shown());
        tried += 1;
    }
    println!("{tried} inputs, SEED={seed}");
}

#[test]
fn names_of_units_and_records_keep_their_rules_and_read_back() {
    let long = format!("k:{}", "é".repeat(64));
    fuzz(&["detector:pump-7", "a:b:c:1732147200000", "meter:Halle 3: ü%", &long], |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(unit) = text.parse::<Unit>() {
            assert_keeps_rules(&unit);
            assert_eq!(unit.to_string(), text);
        }
        if let Ok(id) = text.parse::<RecordId>() {
            assert_keeps_rules(&id.unit);
            assert_eq!(id.to_string(), text);
        }
    });
}

fn assert_keeps_rules(unit: &Unit) {
    let id = unit.id.as_str();
    assert!((1..=MAX_ID).contains(&id.len()), "{id:?}");
    assert!(!id.chars().any(|c| c.is_control() || matches!(c, '/' | '+' | '#')), "{id:?}");
    let kind = unit.kind.as_str();
    assert!((1..=32).contains(&kind.len()) && kind.is_ascii(), "{kind:?}");
}

#[test]
fn facts_that_are_read_are_written_and_read_back() {
    let examples = [
        "p1732147200000",
        "p1732147200000+5@sn9xbz",
        "n1732147200000=sn9xc0",
        "n1732147200000+60000",
        r#"p1732147200000-5{"l":{"site":"north"},"d":90000,"t":5000,"g":1000,"s":[1,2],"p":[3,4]}"#,
        r#"f1732147200000{"o":[172800000,1200,"s",172800000]}"#,
        r#"r1732147200000{"r":1732147300000}"#,
    ];
    fuzz(&examples, |bytes| {
        let Some(facts) = std::str::from_utf8(bytes).ok().and_then(encoding::decode) else { return };
        let written = encoding::encode(&facts);
        assert_eq!(encoding::decode(&written).as_ref(), Some(&facts), "{written}");
    });
}

#[test]
fn alert_silences_that_are_read_are_written_and_read_back() {
    let silence = r#"{"id":"5c9c9b7e-3d2c-4a55-9f0c-2d7d0c8a4a11","matchers":[{"name":"site","op":"=~","value":"n.*|\"s\\\\"},{"name":"unit","op":"!=","value":""}],"starts_at":"2026-03-01T12:00:00.000Z","ends_at":"2026-03-01T13:00:00.000Z","updated_at":"2026-03-01T12:00:00.000Z","author":"ana","comment":"cable works"}"#;
    assert!(serde_json::from_str::<AlertSilence>(silence).is_ok());
    fuzz(&[silence, "5c9c9b7e-3d2c-4a55-9f0c-2d7d0c8a4a11"], |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Ok(id) = text.parse::<SilenceId>() {
            assert_eq!(id.to_string(), text.to_ascii_lowercase());
        }
        if let Ok(silence) = serde_json::from_str::<AlertSilence>(text) {
            let written = serde_json::to_string(&silence).unwrap();
            assert_eq!(serde_json::from_str::<AlertSilence>(&written).unwrap(), silence, "{written}");
        }
    });
}

#[test]
fn entries_of_a_queue_are_notified_in_order_or_left_out() {
    let record = r#"{"id":"detector:a:1732147200000","kind":"detector","unit":"a","labels":{"site":"north"},"last_seen":"2024-11-21T00:00:00Z","deadline":"2024-11-23T00:00:00Z","detected_at":"2024-11-23T00:00:00.004Z","back_at":null,"cause":"silence","closed_by":null}"#;
    let back = record.replace("\"back_at\":null", "\"back_at\":\"2024-11-25T00:00:00Z\"");
    let sealed = |offline: &str, online: &str, blind: &str| {
        format!(
            r#"{{"group":{{"key":"site=north","labels":{{"site":"north"}}}},"sealed_at":"2024-11-23T00:00:10Z","offline":[{offline}],"online":[{online}],"blind":[{blind}]}}"#
        )
    };
    let blind = r#"{"from":"2024-11-21T00:00:00Z","to":"2024-11-21T01:00:00Z"}"#;
    let lone = r#"["detector:a:1732147200000",1732320000000,1732320000004,1732320010000,"silence",{"site":"north"},{"kind":"detector"}]"#;
    let examples =
        [sealed(record, &back, ""), sealed("", "", blind), sealed(&[record, record].join(","), "", "")];
    let mut examples: Vec<&str> = examples.iter().map(String::as_str).collect();
    examples.push(lone);
    for example in &examples {
        let delivery = delivery_of_any("site=north", example.as_bytes(), "hook");
        assert!(
            delivery.is_some_and(|delivery| delivery.offline.len() + delivery.blind.len() > 0),
            "{example}"
        );
    }
    fuzz(&examples, |bytes| {
        let Some(delivery) = delivery_of_any("site=north", bytes, "hook") else { return };
        let body: serde_json::Value = serde_json::from_str(&alerting::body(&delivery)).unwrap();
        assert!(body["type"].as_str().is_some_and(|name| name.starts_with("rollcall.")), "{body}");
        let mail = MailContent::new(
            &ReceiverMessage::new(&delivery),
            "example.org",
            &MessageConfig::default(),
            true,
        );
        assert!(!mail.subject.chars().any(char::is_control), "{:?}", mail.subject);
        assert!(!mail.text.contains(&mail.boundary) && !mail.html.contains("<script"));
    });
}

const FLEET: &str = r#"
[engine]
type = "embedded"
path = "fleet"
[[kind]]
name = "pump"
topics = ["{site}/{unit}/data", "units/{unit}/heartbeat"]
timeout = "48h"
grace = "10s"
clock = "device"
[[kind.metric]]
name = "battery_volts"
pointer = "/power/0/battery~1v"
type = "gauge"
help = "Battery."
[[kind]]
name = "edge"
timeout = "1h"
presence = { format = "sparkplug", rebirth = true }
[[kind.metric]]
name = "volts"
pointer = "/Volts"
type = "gauge"
help = "Volts."
[[kind]]
name = "client"
topics = ["clients/{unit}/x/y"]
timeout = "1h"
presence = { format = "mosquitto" }
[[kind]]
name = "home"
topics = ["home/{unit}/x/y"]
timeout = "1h"
presence = { format = "homeassistant", topics = ["lamps/+"] }
[[receiver]]
name = "hook"
type = "webhook"
url = "https://example.org/hook"
secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
[[receiver]]
name = "mail"
type = "email"
smtp = "smtp+starttls://example.org:587"
from = "Rollcall <rollcall@example.org>"
to = ["ops@example.org"]
[route]
receivers = ["hook", "mail"]
group_by = ["kind", "site"]
[http]
listen = "127.0.0.1:8080"
"#;

#[test]
fn an_address_of_redis_names_servers_without_its_secrets_or_is_refused_with_a_reason() {
    let examples = [
        "redis://me:se%2Fcret@127.0.0.1:6379/0",
        "rediss://host",
        "redis+unix:///run/redis.sock?db=1&user=me&pass=secret",
        "redis-sentinel://me:secret@10.0.0.1:26379,[::1]:26380,host/mymaster/3",
        "rediss-cluster://:secret@a.example.org:7000,b.example.org",
    ];
    fuzz(&examples, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        match RedisAddress::parse(&text) {
            Err(why) => assert!(!why.to_string().is_empty()),
            Ok(address) => {
                assert_ne!(address.servers.is_empty(), address.socket.is_none(), "{text}");
                if address.mode != Mode::Single {
                    let shown = RedisAddress::parse(&address.to_string()).unwrap();
                    assert_eq!((shown.user, shown.password), (None, None), "{text}");
                    let without_login = (&shown.mode, &shown.servers, shown.database, shown.has_tls);
                    assert_eq!(
                        without_login,
                        (&address.mode, &address.servers, address.database, address.has_tls)
                    );
                }
            }
        }
    });
}

#[test]
fn a_configuration_is_accepted_or_refused_with_a_reason() {
    let parts: Vec<&str> = FLEET.split_inclusive("\n[").collect();
    let mut examples = vec![FLEET, include_str!("../../config/reference.toml"), "kind = [{ name = \"a\" }]"];
    examples.extend(parts);
    fuzz(&examples, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Err(why) = config::parse(text, None, []) {
            assert!(!why.to_string().is_empty());
        }
    });
}

#[test]
fn a_message_is_at_most_one_heartbeat_which_keeps_its_rules() {
    let config = config::parse(FLEET, None, []).unwrap();
    let clock = Clock::by_hand(NOW);
    let telemetry = Arc::new(Telemetry::new(&clock));
    let read = intake::reader_of_any(
        &config.intake[0],
        &Arc::new(config.rules).into(),
        &config.metrics,
        &clock,
        &telemetry,
    )
    .unwrap();
    let examples = [
        "north/pump-7/data\n",
        "units/pump-7/heartbeat\n{\"ts\":1772366400,\"timeout\":\"36h\",\"sleep\":\"2h\",\"labels\":{\"site\":\"north\"}}",
        "north/p/data\n{\"ts\":1772366400123,\"timeout\":90,\"power\":[{\"battery/v\":12.5e0}]}",
        "north/p/data\n{\"a\":\"\\ud83d\\ude00\",\"ts\":\"2026-03-01T12:00:00Z\"}",
        "rollcall/canary/rollcall-main\n{\"instance\":\"0011223344556677\",\"seq\":1,\"sent_at\":1772366400000,\"mac\":\"00112233445566778899aabbccddeeff\"}",
        "units/rollcall-probe/heartbeat\n{\"instance\":\"0011223344556677\",\"seq\":0,\"sent_at\":1772366400000,\"mac\":\"00112233445566778899aabbccddeeff\"}",
        "rollcall/canary/x/gone\n{\"share\":\"fleet\",\"connection\":7}",
        "spBv1.0/g/NBIRTH/n\n\x08\x01\x12\x0b\n\x05bdSeq \x08X\x00\x12\x0b\n\x05Volts \x08X\x07\x18\x00",
        "spBv1.0/g/DDATA/n/d\n\x08\x01\x12\x06\x10\x03 \x08X\x07\x18\x05",
        "spBv1.0/g/NDEATH/n\n\x12\x0b\n\x05bdSeq \x08X\x00",
        "$SYS/broker/log/N\n1: New client connected from 127.0.0.1:1 as one (p2, c1, k60, u'x').",
        "$SYS/broker/log/N\n1: Client one disconnected: Connection reset by peer.",
        "homeassistant/light/a/config\n{\"~\":\"lamps\",\"avty\":[{\"t\":\"~/a\",\"val_tpl\":\"{{ value_json.s }}\"}],\"avty_mode\":\"all\",\"stat_t\":\"lamps/b\",\"dev\":{\"ids\":[\"1\"],\"name\":\"n\"}}",
        "lamps/a\n{\"s\":\"online\"}",
        "lamps/b\n1",
    ];
    fuzz(&examples, |bytes| {
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
        let payload = bytes.get(end + 1..).unwrap_or_default();
        let Some(beat) = read(&bytes[..end], payload) else { return };
        let Heartbeat { unit, at, declared, .. } = &beat;
        assert_keeps_rules(unit);
        // In the millisecond of an announcement, a heartbeat after it counts for the next one.
        assert!(*at <= NOW + Duration::from_millis(1), "{at} is in the future");
        assert!(declared.timeout.is_none_or(is_timeout), "{declared:?}");
        assert!(declared.labels.len() <= MAX_LABELS, "{declared:?}");
        assert!(declared.labels.iter().all(|(name, value)| is_label_name(name) && is_label_value(value)));
    });
}

#[cfg(feature = "broker")]
#[test]
fn files_of_users_and_rules_are_accepted_or_refused_with_a_reason() {
    let examples = [
        "gateway:$7$101$LSL2y570hL7qK8HZ$0fCn+BAhwwEE8yQ/NjM6H4gJC/7a4ekLjsAJ/QceBzrZGVJ1p9IKzXDelUB+/ko3VGo8x/LreWjjDmoTifpqWg==\n",
        "# nobody\n\n",
        "user gateway\ntopic readwrite units/#\ntopic deny rollcall/#\npattern write units/%u/+\npattern read x/%c/y\n",
    ];
    fuzz(&examples, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        for why in rollcall::intake::listener::refusals(text) {
            assert!(!why.is_empty());
        }
    });
}

#[cfg(feature = "broker")]
#[test]
fn packets_of_mqtt_are_read_or_refused_with_a_reason_and_each_advances() {
    let examples: [&[u8]; 12] = [
        b"\x10\x13\x00\x04MQTT\x04\x02\x00\x3c\x00\x07gateway",
        b"\x10\x2d\x00\x04MQTT\x05\xee\0\x3c\x08\x11\0\0\0\x3c\x21\0\x14\0\x01a\x05\x18\0\0\0\x05\0\x01w\0\x01x\0\x01u\0\x01p",
        b"\x32\x12\0\x0cunits/a/data\0\x01{}",
        b"\x3d\x15\0\x01t\0\x07\x0e\x02\0\0\0\0\x08\0\x01r\x09\0\x02cdx",
        b"\x30\x0e\0\x01t\x0a\x23\0\x05\x26\0\x01k\0\x01v",
        b"\x82\x0c\0\x01\0\x07units/#\x01",
        b"\x82\x10\0\x01\x02\x0b\x07\0\x08$share/g\x01",
        b"\xa2\x09\0\x01\0\x05a/+/#",
        b"\x40\x02\0\x01\x50\x03\0\x01\x10\x62\x04\0\x01\0\0\x70\x02\0\x01",
        b"\xc0\0\xe0\x07\x04\x05\x11\0\0\0\x01",
        b"\xe0\0",
        b"\xf0\0",
    ];
    fuzz(&examples, |bytes| {
        for is_five in [false, true] {
            let (count, why) = rollcall::intake::listener::packets_of_any(bytes, is_five);
            assert!(count <= bytes.len() / 2 && why.is_none_or(|why| !why.is_empty()));
        }
    });
}

#[test]
fn a_timer_that_is_accepted_keeps_its_limits_and_its_data_are_the_json_that_was_sent() {
    let examples = [
        r#"{"id":"a b","type":"report","due":"2026-03-01T13:00:00+01:00","data":{"x":[1.50,"\u00fc",null]},"if_absent":true}"#,
        r#"{"type":"x","in":"1h 30m","data":[[[[1e10]]]]}"#,
        r#"{"type":"x","in":"0s"}"#,
    ];
    fuzz(&examples, |bytes| {
        let id = "t".parse().unwrap();
        for id in [None, Some(&id)] {
            match TimerRequest::read(bytes, id, NOW) {
                Ok(TimerRequest { timer, .. }) => {
                    assert!(id.is_none_or(|id| *id == timer.id));
                    assert!(timer.due <= NOW + FARTHEST_DUE);
                    let data = timer.data.as_str();
                    assert!(data == "null" || bytes.windows(data.len()).any(|part| part == data.as_bytes()));
                    // Programs still read data that is nested deeper within a notification.
                    let nested = format!("[[[[{data}]]]]");
                    serde_json::from_str::<serde_json::Value>(&nested).unwrap();
                }
                Err(bad) => assert!(!bad.why.is_empty()),
            }
        }
    });
}

/// A web server of a fleet without units.
async fn served() -> (String, CancellationToken, tempfile::TempDir) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    let config = config::parse(FLEET, None, []).unwrap();
    let clock = Clock::by_hand(NOW);
    let telemetry = Arc::new(Telemetry::new(&clock));
    let EngineConfig::Embedded(mut embedded) = config.engine else { panic!("it is embedded") };
    embedded.path = dir.path().join("fleet");
    let engine: Arc<dyn Engine> = Arc::new(EmbeddedEngine::open(&embedded, telemetry.clone()).await.unwrap());
    let rules = Arc::new(config.rules);
    let mirror = Arc::new(Mirror::of(&*engine, rules.clone(), &[]));
    let second = Duration::from_secs(1);
    let hearing =
        HearingConfig { gap: 3 * second, settle: 300 * second, tell_after: 300 * second, ..config.hearing };
    let outbox_grew = Arc::new(Notify::new());
    let roll =
        Arc::new(Roll::new(engine.clone(), rules, mirror.clone(), telemetry.clone(), hearing, outbox_grew));
    let beat =
        |unit: &str| Heartbeat { declared: Default::default(), ..Heartbeat::of(unit.parse().unwrap(), NOW) };
    roll.hear(&[beat("pump:a"), beat("pump:Halle 3: ü%")], NOW).await.unwrap();
    let ownership = Ownership::of_everything(engine.partitions());
    let bodies = Bodies::new(&config.intake, roll.shared_rules().clone(), None, telemetry.clone());
    let silences = Arc::new(Silences::new(engine.clone()));
    let sources = PageSources {
        ownership,
        units: engine.clone(),
        records: engine.clone(),
        deliveries: StoredDeliveries::new(engine.clone()),
        groups: StoredGroups::new(engine.clone()),
        values: engine.clone(),
        cells: engine.clone(),
        bodies: Arc::new(bodies),
        silences: silences.clone(),
        coverage: Arc::new(Coverage::new(silences)),
        timers: Arc::new(Timers::new(engine.clone(), config.timers, Arc::default(), telemetry.clone())),
        history: None,
        keep_records: config.keep_records,
        keep_deliveries: config.keep_deliveries,
        routes: watch::Sender::new(Arc::new(AlertRoutes {
            routes: Routes::new(config.alerting.route),
            receivers: Vec::new(),
            types: BTreeMap::new(),
            limited: BTreeSet::new(),
            inhibition: config.alerting.inhibition,
            breaker: None,
            unsent: None,
            flapping: config.alerting.flapping,
        }))
        .subscribe(),
        reloads: None,
        configuration: watch::Sender::new(Arc::default()).subscribe(),
        roster: engine,
        roll,
        mirror,
        metrics: config.metrics,
        telemetry: telemetry.clone(),
        clock,
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stop = CancellationToken::new();
    let pages = Pages::new(config.http, "one", telemetry.clone());
    pages.show(sources, &stop);
    tokio::spawn(http::serve(listener, pages, telemetry, stop.clone()));
    (address, stop, dir)
}

/// The beginning of the server's answer to these bytes.
async fn ask(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may refuse the request before all of it is written.
    let _ = stream.write_all(bytes).await;
    let has_body = bytes.windows(8).any(|part| part.eq_ignore_ascii_case(b"content-"));
    if has_body || !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        // No more bytes follow, so that the server need not wait for the end of the head or of the body.
        let _ = stream.shutdown().await;
    }
    let mut answer = vec![0; 4096];
    let length = stream.read(&mut answer).await.unwrap_or(0);
    answer.truncate(length);
    answer
}

#[test]
fn a_request_is_answered_and_never_by_an_error_of_the_server() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (address, stop, _dir) = runtime.block_on(served());
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let paths = [
        "/readyz",
        "/api/v1/records?open=true&limit=10&cursor=0000019c9f2d3400706d703a61",
        "/api/v1/records/pump:a:1772366400000",
        "/api/v1/units/pump/Halle%203:%20%C3%BC%25",
        "/api/v1/units?state=offline,late&kind=pump&label=site=north&q=a&contains=%C3%BC&sort=-last_seen&limit=7&cursor=7b7d",
        "/api/v1/records?from=2026-03-01T12:00:00Z&until=2026-03-02T12:00:00Z&kind=pump&label=site=north&cause=silence",
        "/api/v1/summary",
        "/?state=offline&kind=pump&label=site%3Dnorth&contains=%22%3E&sort=unit&cursor=7b7d",
        "/units/pump/Halle%203:%20%C3%BC%25",
        "/records?open=true&kind=pump",
        "/instances",
        "/login",
        "/metrics/units?shard=0&shards=4&mode=offline&kind=pump&label=site=north",
        "/probe?unit=pump:a",
        "/api/v1/prometheus/targets?shards=4",
        "/alertmanager/api/v2/alerts?active=true&silenced=false&receiver=ho.*&filter=site%3D~%22n.*%22&filter=kind%21%3Dx",
        "/alertmanager/api/v2/alerts/groups?filter=%7Bunit%3D%22a%22%2C%20kind%3Dpump%7D",
        "/alertmanager/api/v2/silences?filter=site%3Dnorth",
        "/alertmanager/api/v2/silence/5c9c9b7e-3d2c-4a55-9f0c-2d7d0c8a4a11",
        "/api/v1/timers?type=report&state=waiting,dead&from=2026-03-01T12:00:00Z&limit=7&cursor=1772366400000:a",
        "/api/v1/timers/Halle%203:%20%C3%BC%25",
        "/timers?state=waiting&type=report&cursor=1772366400000:a",
        "/reports?month=2026-10&from=&to=&group=site&target=99.5",
        "/policy?kind=pump&timeout=20m&grace=2m&since=30d&until=2026-03-01T12:00:00Z&group_by=site",
        "/api/v1/availability?kind=pump&from=2026-02-01T00:00:00Z&until=2026-03-01T12:00:00Z",
    ];
    let put = |path: &str, media: &str, body: &str| {
        let head = format!("Host: 127.0.0.1\r\nContent-Type: {media}\r\nContent-Length: {}", body.len());
        format!("POST {path} HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n{body}")
    };
    let timer = r#"{"id":"a","type":"report","in":"30m","data":{"x":[1,"]}"]}}"#;
    let bodies = [
        put("/api/v1/timers", "application/json", &format!("[{timer}, {timer}]")),
        put("/api/v1/timers", "application/x-ndjson", &format!("{timer}\n{timer}\n")),
        put("/api/v1/timers:cancel", "application/json", r#"{"ids":["a","b"]}"#),
        put(
            "/api/v1/timers:cancel",
            "application/json",
            r#"{"type":"report","until":"2026-03-01T13:00:00Z"}"#,
        ),
    ];
    let examples: Vec<String> = paths.map(get).into_iter().chain(bodies).collect();
    let examples: Vec<&str> = examples.iter().map(String::as_str).collect();
    fuzz(&examples, |bytes| {
        let asked = async { tokio::time::timeout(MAX_WAIT, ask(&address, bytes)).await };
        let answer = runtime.block_on(asked).expect("it is answered, or the connection ends");
        assert!(!answer.starts_with(b"HTTP/1.1 500"), "{}", answer.escape_ascii());
    });
    let healthy = runtime.block_on(ask(&address, get("/healthz").as_bytes()));
    assert!(healthy.starts_with(b"HTTP/1.1 200"), "{}", healthy.escape_ascii());
    stop.cancel();
}
