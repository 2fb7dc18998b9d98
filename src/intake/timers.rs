//! Timers that programs register and cancel over MQTT: a JSON object on `rollcall/timers/<id>` registers or changes a
//! timer, an empty payload cancels it. If the message has a response topic, the answer goes there with its correlation
//! data.
//!
//! A request is read where messages are received, and applied by the recorder behind the heartbeats of its batch, in
//! the order of arrival; then it is acknowledged. So the broker repeats a QoS 1 request that Rollcall loses. Applying a
//! request again has the same result.
//!
//! # Why requests have a limit of their own
//! A heartbeat is small, whatever devices send; a timer carries data. All waiting requests together take at most
//! [`QUEUE_BYTES`] bytes; a request without room is refused in its answer.
//!
//! # Topics that get no answer
//! Rollcall may publish on topics that its clients may not use. An answer on a topic of the fleet would be a heartbeat
//! of a unit, and an answer below `rollcall/` a message of Rollcall. So no answer goes to such a topic.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock::Timestamp;
use crate::fleet::timers::TimerRequest;
use crate::presence::{TimerId, covers, may_stand_in_topic};
use crate::telemetry::{Telemetry, TimerOutcome};

mod apply;

pub(super) use apply::apply;

/// The beginning of the topics of requests; the id follows.
pub(super) const PREFIX: &str = "rollcall/timers/";
/// The subscription filter for all requests.
pub(super) const FILTER: &str = "rollcall/timers/+";

/// The memory for waiting requests, in bytes.
const QUEUE_BYTES: usize = 64 << 20;
/// The longest request, in bytes: the data of a timer, with room for escapes and the other fields.
const MAX_PAYLOAD: usize = 128 * 1024;
/// The longest response topic, and the longest correlation data, in bytes.
const MAX_REPLY_TO: usize = 256;

/// A message on a topic of timers.
#[derive(Debug, PartialEq)]
pub(super) struct ReceivedCommand {
    pub asked: TimerCommand,
    /// The topic for the answer, if the sender wants one.
    pub reply_to: Option<ReplyTo>,
    _room: Reservation,
}

#[derive(Debug, PartialEq)]
pub(super) enum TimerCommand {
    Register(TimerRequest),
    Cancel(TimerId),
    /// The request is invalid, or has no room.
    Refused {
        id: Option<TimerId>,
        why: String,
    },
}

/// The topic of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReplyTo {
    pub topic: String,
    pub correlation: Vec<u8>,
}

/// The memory that a request takes until it is applied.
#[derive(Debug)]
struct Reservation(#[expect(dead_code, reason = "its end gives the room back")] Option<OwnedSemaphorePermit>);

impl PartialEq for Reservation {
    fn eq(&self, _: &Reservation) -> bool {
        true
    }
}

pub(super) struct TimerReader {
    room: Arc<Semaphore>,
    /// The filters by which the fleet is heard.
    filters: Vec<String>,
    telemetry: Arc<Telemetry>,
}

impl TimerReader {
    /// `filters`: the filters by which the fleet is heard.
    pub fn new(filters: Vec<String>, telemetry: Arc<Telemetry>) -> TimerReader {
        TimerReader { room: Arc::new(Semaphore::new(QUEUE_BYTES)), filters, telemetry }
    }

    /// Reads a request about the timer `id`, as the topic has it.
    pub fn read(
        &self,
        id: &str,
        payload: &[u8],
        reply_to: Option<(&str, &[u8])>,
        arrived: Timestamp,
    ) -> ReceivedCommand {
        let reply_to = reply_to.and_then(|(topic, correlation)| self.reply_to(topic, correlation));
        let size = payload.len().min(MAX_PAYLOAD) as u32;
        let Ok(room) = self.room.clone().try_acquire_many_owned(size) else {
            self.telemetry.timers_requested(TimerOutcome::Overflow, 1);
            let why = "Rollcall has no room for it now; try again later".to_owned();
            return ReceivedCommand {
                asked: TimerCommand::Refused { id: id.parse().ok(), why },
                reply_to,
                _room: Reservation(None),
            };
        };
        let asked = asked(id, payload, arrived);
        if matches!(asked, TimerCommand::Refused { .. }) {
            self.telemetry.timers_requested(TimerOutcome::Bad, 1);
        }
        ReceivedCommand { asked, reply_to, _room: Reservation(Some(room)) }
    }

    fn reply_to(&self, topic: &str, correlation: &[u8]) -> Option<ReplyTo> {
        let is_of_fleet = self.filters.iter().any(|filter| covers(filter, topic));
        let is_own = topic == "rollcall" || topic.starts_with("rollcall/") || topic.starts_with('$');
        let is_topic = !topic.is_empty() && may_stand_in_topic(topic);
        let fits = topic.len() <= MAX_REPLY_TO && correlation.len() <= MAX_REPLY_TO;
        if is_of_fleet || is_own || !is_topic || !fits {
            self.telemetry.timer_answer_left_out(topic);
            return None;
        }
        Some(ReplyTo { topic: topic.to_owned(), correlation: correlation.to_owned() })
    }
}

fn asked(id: &str, payload: &[u8], arrived: Timestamp) -> TimerCommand {
    let id: TimerId = match id.parse() {
        Ok(id) => id,
        Err(error) => {
            let error: crate::presence::TimerError = error;
            return TimerCommand::Refused { id: None, why: error.to_string() };
        }
    };
    if payload.len() > MAX_PAYLOAD {
        let why = format!("a timer has at most {MAX_PAYLOAD} bytes of JSON");
        return TimerCommand::Refused { id: Some(id), why };
    }
    if payload.is_empty() {
        return TimerCommand::Cancel(id);
    }
    match TimerRequest::read(payload, Some(&id), arrived) {
        Ok(wanted) => TimerCommand::Register(wanted),
        Err(bad) => TimerCommand::Refused { id: bad.id, why: bad.why },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    const NOW: Timestamp = Timestamp::from_millis(1_764_000_000_000);

    fn reader() -> TimerReader {
        let telemetry = Arc::new(Telemetry::new(&Clock::by_hand(NOW)));
        TimerReader::new(vec!["units/+/data".to_owned()], telemetry)
    }

    #[test]
    fn a_payload_registers_and_an_empty_one_cancels() {
        let reader = reader();
        let asked = |id: &str, payload: &str| reader.read(id, payload.as_bytes(), None, NOW).asked;
        let TimerCommand::Register(wanted) = asked("a b", r#"{"type":"report","in":"1s"}"#) else { panic!() };
        assert_eq!((wanted.timer.id.as_str(), wanted.timer.timer_type.as_str()), ("a b", "report"));
        assert_eq!(asked("7", ""), TimerCommand::Cancel("7".parse().unwrap()));
        for (id, payload, why) in [
            ("", "", "at least one character"),
            ("a\u{1b}", "", "control characters"),
            ("7", "{}", "type is missing"),
            ("7", "tomorrow", "JSON object"),
            ("7", r#"{"id":"8","type":"x","in":"1s"}"#, "is not the id 7 of the request"),
        ] {
            let TimerCommand::Refused { why: text, .. } = asked(id, payload) else {
                panic!("{id} {payload}")
            };
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn an_answer_never_goes_where_only_rollcall_or_a_unit_may_publish() {
        let reader = reader();
        let goes = |topic: &str| reader.read("7", b"", Some((topic, b"c")), NOW).reply_to.is_some();
        assert!(goes("workers/3/answers") && goes("units/7/answers"));
        let long = "x".repeat(MAX_REPLY_TO + 1);
        for topic in [
            "",
            "units/7/data",
            "rollcall/canary/rollcall-main",
            "rollcall",
            "$SYS/x",
            "a/+",
            "#",
            "a\0",
            &long,
        ] {
            assert!(!goes(topic), "{topic:?}");
        }
        assert_eq!(reader.read("7", b"", Some(("a", long.as_bytes())), NOW).reply_to, None);
    }

    #[test]
    fn what_finds_no_room_is_refused_until_there_is_some() {
        let mut reader = reader();
        reader.room = Arc::new(Semaphore::new(100));
        let payload = format!("{{\"type\":\"x\",\"in\":\"1s\",\"data\":\"{}\"}}", "y".repeat(40));
        let request = || reader.read("7", payload.as_bytes(), Some(("a", b"")), NOW);
        let first = request();
        assert!(matches!(first.asked, TimerCommand::Register(_)));
        let second = request();
        assert!(matches!(&second.asked, TimerCommand::Refused { why, .. } if why.contains("no room")));
        assert!(second.reply_to.is_some(), "its sender learns of it");
        drop(first);
        assert!(matches!(request().asked, TimerCommand::Register(_)));
    }
}
