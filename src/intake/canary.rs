//! The canary: a message of Rollcall that travels with the fleet's messages and proves that they are heard.
//!
//! Once a period each connection publishes a canary to a topic of its own, which it subscribes to plainly, beside the
//! fleet's topics. So the canary comes back by the same connection, the same quality of service and the same queue as
//! the fleet, and is reported to the engine only after all messages that came before it were recorded. Its topic is as
//! open as any other, so it is hostile until parsed.
//!
//! # Why it is signed
//! A forged canary could make Rollcall believe that it hears, or hide lost canaries. So each canary carries a code
//! computed with the key of the fleet, which is stored in the engine and never sent over the broker. A client that can
//! write to the topic but not read the engine cannot forge a valid canary. A client that can read the topic may repeat
//! an old canary, but an old number or time changes nothing.
//!
//! # What a canary of an earlier connection proves
//! Such a canary comes out of the backlog of a session that another client may have used in between, so it never proves
//! that the messages before it were heard. It only limits the age of the messages around it.
//!
//! # The last will
//! A member's connection has a last will, which the broker publishes when it drops the member without a DISCONNECT. So
//! the broker itself reports from when on the member receives no more messages. The other members subscribe to the
//! will. It is retained, so that a member that connects later receives it too; the member that reports it to the engine
//! removes it.

use std::time::Duration;

use data_encoding::HEXLOWER;
use ring::hmac;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::store::ShareMember;

/// The beginning of the topics of all canaries.
pub(super) const PREFIX: &str = "rollcall/canary/";
/// The end of the topics of last wills.
const GONE: &str = "/gone";
/// The end of topics on which members of a share report to one another that their probes came.
const ANSWERS: &str = "/probes";
/// The subscription filter for the last wills of all members.
pub(super) const GONE_FILTER: &str = "rollcall/canary/+/gone";

/// More bytes than the payload of any canary or last will.
const MAX_BYTES: usize = 512;

/// The log line about a canary that no instance of the fleet sent.
pub(super) const FORGED: &str = "a canary that Rollcall did not send is not believed; let only the user of Rollcall \
                                 write to rollcall/#";

/// Signs the canaries of a fleet.
#[derive(Clone)]
pub(super) struct Key(hmac::Key);

impl Key {
    /// The key of the fleet with this id, which is stored in the engine.
    pub fn of_fleet(id: &str) -> Key {
        let of_fleet = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, id.as_bytes()), b"rollcall canary");
        Key(hmac::Key::new(hmac::HMAC_SHA256, of_fleet.as_ref()))
    }

    /// The tag that distinguishes probes of this fleet from those of others. It is no secret.
    pub fn tag(&self) -> String {
        HEXLOWER.encode(&hmac::sign(&self.0, b"probes of this fleet").as_ref()[..8])
    }

    fn sign(&self, topic: &str, canary: &Canary) -> String {
        let Canary { instance, seq, sent_at, .. } = canary;
        let text = format!("{seq} {sent_at} {} {instance} {topic}", instance.len());
        HEXLOWER.encode(&hmac::sign(&self.0, text.as_bytes()).as_ref()[..16])
    }
}

/// The payload of a canary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Canary {
    /// The process that sent the canary; for a probe, the tag of the fleet.
    pub instance: String,
    /// The number of the canary within its process and connection name.
    pub seq: u64,
    /// When the canary was sent, in milliseconds since 1970.
    pub sent_at: i64,
    /// Proves that an instance of the fleet sent this, to this topic.
    pub mac: String,
}

impl Canary {
    pub fn new(key: &Key, topic: &str, instance: &str, seq: u64, sent_at: Timestamp) -> Canary {
        let sent_at = sent_at.as_millis();
        let canary = Canary { instance: instance.to_owned(), seq, sent_at, mac: String::new() };
        Canary { mac: key.sign(topic, &canary), ..canary }
    }

    /// A tick of the listener: it never leaves the process, so it needs no code.
    #[cfg(feature = "broker")]
    pub fn within(sent_at: Timestamp) -> Canary {
        Canary { instance: String::new(), seq: 0, sent_at: sent_at.as_millis(), mac: String::new() }
    }

    /// The canary on this topic, if an instance of the fleet sent it there.
    pub fn read(key: &Key, topic: &str, payload: &[u8]) -> Option<Canary> {
        if payload.len() > MAX_BYTES {
            return None;
        }
        let canary: Canary = serde_json::from_slice(payload).ok()?;
        (canary.sent_at >= 0 && key.sign(topic, &canary) == canary.mac).then_some(canary)
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers")
    }

    pub fn sent_at(&self) -> Timestamp {
        Timestamp::from_millis(self.sent_at)
    }
}

/// Returns whether this is a probe of another fleet, by its tag.
pub(super) fn is_of_another_fleet(key: &Key, payload: &[u8]) -> bool {
    let read = || serde_json::from_slice::<Canary>(payload).ok();
    let is_tag = |tag: &str| tag.len() == 16 && tag.bytes().all(|byte| byte.is_ascii_hexdigit());
    let other = (payload.len() <= MAX_BYTES).then(read).flatten();
    other.is_some_and(|canary| is_tag(&canary.instance) && canary.instance != key.tag())
}

/// The payload of a member's last will; the client id is in its topic.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GonePayload {
    share: String,
    connection: u64,
}

/// The topic of one client's canaries.
pub(super) fn topic(client_id: &str) -> String {
    format!("{PREFIX}{client_id}")
}

/// The topic on which a member of a share learns that its probes came.
pub(super) fn answers_topic(client_id: &str) -> String {
    format!("{PREFIX}{client_id}{ANSWERS}")
}

pub(super) fn is_answers_topic(topic: &str) -> bool {
    let client_id = topic.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(ANSWERS));
    client_id.is_some_and(|id| !id.is_empty() && id.len() <= 128 && !id.contains(['/', '+', '#']))
}

/// The topic of one client's last will.
pub(super) fn gone_topic(client_id: &str) -> String {
    format!("{PREFIX}{client_id}{GONE}")
}

/// The payload of a member's last will.
pub(super) fn gone_payload(member: &ShareMember) -> Vec<u8> {
    let payload = GonePayload { share: member.share.clone(), connection: member.connection };
    serde_json::to_vec(&payload).expect("a text and a number")
}

/// The member that the broker with this name dropped, if this is a last will. A broker reports only its own members.
pub(super) fn read_gone(topic: &str, payload: &[u8], broker: Option<&str>) -> Option<ShareMember> {
    let client_id = topic.strip_prefix(PREFIX)?.strip_suffix(GONE)?;
    if client_id.is_empty() || client_id.contains('/') || payload.len() > MAX_BYTES {
        return None;
    }
    let GonePayload { share, connection } = serde_json::from_slice(payload).ok()?;
    let name = match broker {
        None => Some(share.as_str()),
        Some(broker) => share.strip_prefix(broker).and_then(|rest| rest.strip_prefix('/')),
    };
    let is_of_broker = name.is_some_and(|name| !name.contains('/'));
    is_of_broker.then(|| ShareMember { share, client_id: client_id.to_owned(), connection })
}

/// A canary that is reported to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReportedCanary {
    pub sent_at: Timestamp,
    /// Up to this long before `sent_at`, no canary was missing; at least a gap.
    pub unbroken: Duration,
}

/// The canaries to report, out of `came`, in order, after `last`: the canaries on either side of a gap, and the last
/// one. So the engine sees every gap between canaries, and no false gap. The other canaries are not reported: if the
/// engine is far away, reporting each would take longer than a period.
pub(super) fn to_report(came: &[Timestamp], last: Option<Timestamp>, gap: Duration) -> Vec<ReportedCanary> {
    let mut reports: Vec<ReportedCanary> = Vec::new();
    let (mut before, mut begin) = (last, None);
    for &sent_at in came {
        if before.is_some_and(|before| sent_at <= before) {
            continue;
        }
        let bridged = before.filter(|before| sent_at.since(*before) <= gap);
        match (bridged, begin) {
            // This canary replaces the previous report.
            (Some(_), Some(begin)) => {
                reports.pop();
                reports.push(ReportedCanary { sent_at, unbroken: gap.max(sent_at.since(begin)) });
            }
            (Some(before), None) => {
                reports.push(ReportedCanary { sent_at, unbroken: gap });
                begin = Some(before);
            }
            (None, _) => {
                reports.push(ReportedCanary { sent_at, unbroken: gap });
                begin = None;
            }
        }
        before = Some(sent_at);
    }
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_canary_is_believed_only_as_it_was_sent_and_where_it_was_sent_to() {
        let (key, topic) = (Key::of_fleet("one"), "rollcall/canary/me");
        let canary = Canary::new(&key, topic, "x", 1, at(990));
        let reads = |payload: &[u8]| Canary::read(&key, topic, payload);
        assert_eq!(reads(&canary.to_json()), Some(canary.clone()));
        assert_eq!(Canary::read(&key, "rollcall/canary/you", &canary.to_json()), None);
        assert_eq!(Canary::read(&Key::of_fleet("another"), topic, &canary.to_json()), None);
        let changed = [
            Canary { seq: 1_000_000, ..canary.clone() },
            Canary { seq: 0, ..canary.clone() },
            Canary { sent_at: 991, ..canary.clone() },
            Canary { instance: "y".to_owned(), ..canary.clone() },
            Canary { mac: String::new(), ..canary.clone() },
            Canary::new(&key, topic, &"x".repeat(600), 1, at(990)),
        ];
        for forged in changed {
            assert_eq!(reads(&forged.to_json()), None, "{forged:.60?}");
        }
        let more = String::from_utf8(canary.to_json()).unwrap().replacen('{', "{\"more\":1,", 1);
        for bad in ["", "{}", "990", "{\"instance\":\"x\",\"seq\":1,\"sent_at\":1}", &more] {
            assert_eq!(reads(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_last_will_is_believed_only_in_its_own_shape() {
        let member = ShareMember { share: "all".to_owned(), client_id: "you".to_owned(), connection: 3 };
        let good = gone_payload(&member);
        assert_eq!(read_gone(&gone_topic("you"), &good, None), Some(member.clone()));
        for topic in ["rollcall/canary/you", "rollcall/canary/gone", "rollcall/canary/a/b/gone", "you/gone"] {
            assert_eq!(read_gone(topic, &good, None), None, "{topic}");
        }
        let long = format!("{{\"share\":\"{}\",\"connection\":3}}", "x".repeat(600));
        let other = "{\"share\":\"a/b\",\"connection\":3}";
        for bad in ["", "gone", "{\"share\":\"all\"}", "{\"share\":\"all\",\"connection\":-1}", other, &long]
        {
            assert_eq!(read_gone(&gone_topic("you"), bad.as_bytes(), None), None, "{bad:.60}");
        }
        let at_eu = ShareMember { share: "eu/all".to_owned(), ..member };
        for (broker, is_believed) in
            [(Some("eu"), true), (Some("us"), false), (Some("e"), false), (None, false)]
        {
            let read = read_gone(&gone_topic("you"), &gone_payload(&at_eu), broker);
            assert_eq!(read, is_believed.then(|| at_eu.clone()), "{broker:?}");
        }
    }

    #[test]
    fn canaries_are_reported_so_that_each_gap_shows_and_no_other() {
        // (last reported before, came back, reported and unbroken) with a gap of 30.
        type Case<'a> = (Option<i64>, &'a [i64], &'a [(i64, u64)]);
        let cases: [Case; 8] = [
            (None, &[10], &[(10, 30)]),
            (None, &[10, 20, 30, 40, 50], &[(10, 30), (50, 40)]),
            (Some(0), &[10, 20, 30, 40], &[(40, 40)]),
            (Some(0), &[10, 50, 60], &[(10, 30), (50, 30), (60, 30)]),
            (Some(0), &[30, 60, 91, 100, 130], &[(60, 60), (91, 30), (130, 39)]),
            (Some(0), &[40, 50], &[(40, 30), (50, 30)]),
            (Some(50), &[10, 20], &[]),
            (Some(0), &[20, 10, 20, 30], &[(30, 30)]),
        ];
        for (last, came, reported) in cases {
            let came: Vec<Timestamp> = came.iter().map(|ms| at(*ms)).collect();
            let expected = reported.iter().map(|(ms, unbroken)| ReportedCanary {
                sent_at: at(*ms),
                unbroken: Duration::from_millis(*unbroken),
            });
            let got = to_report(&came, last.map(at), Duration::from_millis(30));
            assert_eq!(got, Vec::from_iter(expected), "{last:?} {came:?}");
        }
    }
}
