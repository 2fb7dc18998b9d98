//! One message in, at most one heartbeat out.
//!
//! This runs where messages are received, so that nothing which waits in the queue is larger than
//! a heartbeat, whatever devices send. It never fails and never waits: what cannot be used is
//! counted by reason, and now and then logged.

use std::sync::Arc;
use std::time::Duration;

use super::canary::{Canary, Key};
use super::probe::Probes;
use super::told::Told;
use super::topic::{self, Refusal, Topics};
use super::{Fields, PayloadIssues, canary, payload};
use crate::clock::{Clock, Timestamp};
use crate::presence::Heartbeat;
use crate::store::Member;
use crate::telemetry::{Rejection, Telemetry};

/// What a message turned out to be.
#[derive(Debug, PartialEq)]
pub(super) enum What {
    /// A proof that a unit lives.
    Heartbeat(Heartbeat),
    /// Our own canary.
    Canary(Canary),
    /// A probe of the filter with this number, and when it was sent.
    Probe(usize, Timestamp),
    /// The broker has dropped this member of a shared subscription.
    Gone(Member),
    /// We are given nothing more: everything before this was all.
    Farewell,
    /// Nothing that counts.
    Nothing,
}

/// A message as it came.
pub(super) struct Message<'a> {
    pub topic: &'a [u8],
    pub payload: &'a [u8],
    pub retain: bool,
    /// When it was sent, at the earliest and at the latest, if it was under way for long.
    pub under_way: Option<(Timestamp, Timestamp)>,
}

/// Reads messages.
pub(super) struct Reader {
    pub topics: Arc<Topics>,
    pub probes: Arc<Probes>,
    pub fields: Fields,
    /// Takes what units tell of themselves, where a kind has metrics.
    pub told: Option<Arc<Told>>,
    pub client_id: String,
    /// Signs the canaries of the fleet.
    pub key: Key,
    pub max_payload: usize,
    /// Messages that say that they are older are no heartbeats.
    pub max_age: Option<Duration>,
    pub clock: Clock,
    pub telemetry: Arc<Telemetry>,
}

impl Reader {
    /// What the message is, and when it arrived.
    pub fn read(&self, message: &Message) -> (What, Timestamp) {
        let arrived = self.clock.now();
        let Ok(topic) = std::str::from_utf8(message.topic) else {
            self.telemetry.message_rejected("", Rejection::BadTopic, "the topic is not UTF-8");
            return (What::Nothing, arrived);
        };
        let what = match self.decide(topic, message, arrived) {
            Ok(what) => what,
            Err((why, text)) => {
                self.telemetry.message_rejected(topic, why, &text);
                What::Nothing
            }
        };
        (what, arrived)
    }

    fn decide(&self, topic: &str, message: &Message, arrived: Timestamp) -> Result<What, Refusal> {
        if let Some(member) = canary::read_gone(topic, message.payload) {
            return Ok(What::Gone(member));
        }
        if message.retain {
            // The broker was asked for none, but a bridge may pass one on.
            return Err((Rejection::Retained, "a retained message may be of any age".to_owned()));
        }
        if let Some(client_id) = topic.strip_prefix(canary::PREFIX) {
            return if client_id == self.client_id {
                self.canary(topic, message, arrived)
            } else {
                Ok(What::Nothing)
            };
        }
        if topic::is_probe(topic) {
            let probe = self.probes.read(&self.key, topic, message.payload, arrived)?;
            return Ok(probe.map_or(What::Nothing, |(number, sent_at)| What::Probe(number, sent_at)));
        }
        let latest = message.under_way.map_or(arrived, |(_, latest)| latest.min(arrived));
        self.probes.spoken(topic, latest);
        if message.payload.len() > self.max_payload {
            return Err((Rejection::TooLarge, format!("{} bytes of payload", message.payload.len())));
        }
        let mut odd = PayloadIssues::default();
        let sender = self.topics.sender(topic, &mut odd)?;
        let spoken = payload::read(message.payload, &self.fields, &sender.rules, latest, &mut odd);
        if let (Some(most), Some(sent)) = (self.max_age, spoken.sent)
            && arrived.since(sent) > most
        {
            return Err((Rejection::TooOld, format!("it was sent at {sent}")));
        }
        if let Some(told) = &self.told {
            told.take(&sender.unit, spoken.at, message.payload, &mut odd);
        }
        let mut declared = spoken.declared;
        // The topic is what a broker can guard, so its labels win.
        declared.labels.extend(sender.labels);
        for (oddity, what) in odd.take() {
            self.telemetry.payload_issue(&sender.unit, oddity, &what);
        }
        let not_before = message.under_way.map(|(earliest, _)| earliest);
        Ok(What::Heartbeat(Heartbeat { unit: sender.unit, at: spoken.at, not_before, declared }))
    }

    fn canary(&self, topic: &str, message: &Message, arrived: Timestamp) -> Result<What, Refusal> {
        match Canary::read(&self.key, topic, message.payload) {
            // One of an earlier process, by a clock that was ahead.
            Some(canary) if canary.sent_at() > arrived => Ok(What::Nothing),
            Some(canary) => Ok(What::Canary(canary)),
            None => Err((Rejection::ForgedCanary, canary::FORGED.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::roll::Rules;
    use crate::intake::topic::Template;
    use crate::presence::{Kind, KindRules};

    const NOW: Timestamp = Timestamp::from_millis(1_732_147_200_000);

    fn reader() -> Reader {
        let kind: Kind = "pump".parse().unwrap();
        let clock = Clock::by_hand(NOW);
        let rules: Rules = [(kind.clone(), KindRules::new(kind.clone()))].into();
        let template = Template::parse("{site}/{unit}/data", Some(kind)).unwrap();
        let topics = Topics::new(vec![template], &rules);
        Reader {
            probes: Arc::new(Probes::new(&topics.filters_of_kinds(&rules), &rules)),
            topics: Arc::new(topics),
            fields: Fields::default(),
            told: None,
            client_id: "me".to_owned(),
            key: Key::of_fleet("fleet"),
            max_payload: 1024,
            max_age: None,
            telemetry: Arc::new(Telemetry::new(&clock)),
            clock,
        }
    }

    fn count(reader: &Reader, result: &str) -> u64 {
        let families = reader.telemetry.gather();
        let metrics = families.iter().flat_map(|family| family.get_metric());
        let is = |m: &&prometheus::proto::Metric| m.get_label().iter().any(|l| l.value() == result);
        metrics.filter(is).map(|m| m.get_counter().get_value() as u64).sum()
    }

    fn read(reader: &Reader, topic: &str, payload: &[u8], retain: bool) -> What {
        reader.read(&Message { topic: topic.as_bytes(), payload, retain, under_way: None }).0
    }

    #[test]
    fn a_message_becomes_a_heartbeat_and_labels_of_the_topic_win() {
        let payload = b"{\"labels\":{\"site\":\"south\",\"floor\":3}}";
        let What::Heartbeat(beat) = read(&reader(), "north/7/data", payload, false) else { panic!() };
        assert_eq!((beat.unit.to_string().as_str(), beat.at), ("pump:7", NOW));
        let labels: Vec<_> = beat.declared.labels.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(labels, [("floor", "3"), ("site", "north")]);
    }

    #[test]
    fn what_does_not_count_is_counted_by_reason() {
        let reader = reader();
        let large = vec![b'x'; 1025];
        for (topic, payload, retain, reason) in [
            ("north/7", &b""[..], false, "bad_topic"),
            ("north//data", b"", false, "bad_unit"),
            ("north/7/data", &large, false, "too_large"),
            ("north/7/data", b"", true, "retained"),
        ] {
            assert_eq!(count(&reader, reason), 0);
            assert_eq!(read(&reader, topic, payload, retain), What::Nothing, "{topic}");
            assert_eq!(count(&reader, reason), 1, "{reason}");
        }
        let message = Message { topic: b"\xff", payload: b"", retain: false, under_way: None };
        assert_eq!(reader.read(&message).0, What::Nothing);
        assert_eq!(count(&reader, "bad_topic"), 2);
        assert!(matches!(read(&reader, "north/7/data", &large[..1024], false), What::Heartbeat(_)));
    }

    #[test]
    fn a_message_that_says_that_it_is_too_old_is_no_heartbeat() {
        let reader = Reader { max_age: Some(Duration::from_secs(60)), ..reader() };
        let sent = |ago: i64| format!("{{\"ts\":{}}}", NOW.as_millis() - ago * 1000);
        let beats = |payload: &str| {
            matches!(read(&reader, "north/7/data", payload.as_bytes(), false), What::Heartbeat(_))
        };
        // Without a time, in time, ahead, and by a clock that fell back to long ago.
        let ages = [60, -10, 100 * 86_400].map(sent);
        for payload in ["", "{}"].into_iter().chain(ages.iter().map(String::as_str)) {
            assert!(beats(payload), "{payload}");
        }
        assert_eq!(count(&reader, "too_old"), 0);
        assert!(!beats(&sent(61)) && !beats(&sent(3 * 86_400 - 60)));
        assert_eq!(count(&reader, "too_old"), 2);
        let forever = Reader { max_age: None, ..reader };
        assert!(matches!(read(&forever, "north/7/data", sent(61).as_bytes(), false), What::Heartbeat(_)));
    }

    #[test]
    fn something_odd_is_counted_and_the_unit_still_lives() {
        let reader = reader();
        assert!(matches!(read(&reader, "north/7/data", b"{", false), What::Heartbeat(_)));
        assert_eq!(count(&reader, "broken_json"), 1);
    }

    #[test]
    fn a_canary_of_another_client_is_nothing_and_never_a_unit() {
        let reader = reader();
        let own = Canary::new(&reader.key, "rollcall/canary/me", "x", 0, Timestamp::from_millis(5));
        let canary = own.to_json();
        assert_eq!(read(&reader, "rollcall/canary/me", &canary, false), What::Canary(own));
        assert_eq!(read(&reader, "rollcall/canary/you", &canary, false), What::Nothing);
        assert_eq!(read(&reader, "rollcall/canary/data", b"", false), What::Nothing);
        assert_eq!(count(&reader, "forged_canary"), 0);
        // What is left of a last word once it was removed.
        assert_eq!(read(&reader, "rollcall/canary/you/gone", b"", false), What::Nothing);
    }

    #[test]
    fn what_rollcall_says_to_itself_on_topics_of_the_fleet_is_nothing_and_never_a_unit() {
        let reader = reader();
        for topic in
            ["rollcall-probe/rollcall-probe/data", "north/rollcall-probe/data", "rollcall-probe/7/data"]
        {
            assert_eq!(read(&reader, topic, b"{}", false), What::Nothing, "{topic}");
        }
        assert_eq!(count(&reader, "bad_topic") + count(&reader, "bad_unit"), 0);
        assert!(matches!(read(&reader, "north/rollcall-probe-2/data", b"", false), What::Heartbeat(_)));
    }

    #[test]
    fn a_forged_canary_is_refused_and_counted() {
        let reader = reader();
        let topic = "rollcall/canary/me";
        let own = Canary::new(&reader.key, topic, "x", 7, Timestamp::from_millis(5));
        let forged = Canary { seq: u64::MAX, ..own.clone() };
        let unsigned = "{\"instance\":\"x\",\"seq\":1000000,\"sent_at\":5}";
        for (n, payload) in [forged.to_json(), unsigned.into(), b"tweet".to_vec()].iter().enumerate() {
            assert_eq!(read(&reader, topic, payload, false), What::Nothing);
            assert_eq!(count(&reader, "forged_canary"), n as u64 + 1);
        }
        let ahead = Canary::new(&reader.key, topic, "x", 8, NOW + Duration::from_millis(1));
        assert_eq!(read(&reader, topic, &ahead.to_json(), false), What::Nothing, "by a clock that is ahead");
    }

    #[test]
    fn a_last_word_counts_also_when_it_was_kept() {
        let member = Member { share: "all".to_owned(), client_id: "you".to_owned(), connection: 3 };
        let word = canary::last_word(&member);
        assert_eq!(read(&reader(), "rollcall/canary/you/gone", &word, true), What::Gone(member));
    }
}
