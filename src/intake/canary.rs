//! The canary: a message of our own that travels with the fleet's and proves that it is heard.
//!
//! Once a period each connection publishes one to a topic of its own, which it subscribes to
//! plainly, beside the fleet's topics. So it comes back by the same connection, the same quality of
//! service and the same queue as the fleet, and is told to the engine only after everything that came
//! before it was recorded. Its topic is as open as any other, so it is hostile until parsed.
//!
//! # Why by client id
//! A canary of an earlier run that comes out of the broker's backlog truly proves that everything
//! before it has come, because the session is the same. One of another client proves nothing about
//! ours. Members of a shared subscription have no backlog, and believe only what they sent themselves.
//!
//! # The last word
//! A member's connection leaves a last will with the broker, which publishes it when it drops the
//! member without having been told good-bye: the broker itself says from when on the member is given
//! nothing more. The others subscribe to that. It is retained, so that also a member that comes later
//! learns of it; whoever has told the engine removes it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::engine::Member;

/// What the topics of all canaries begin with.
pub(super) const PREFIX: &str = "rollcall/canary/";
/// What the topics of last words end with.
const GONE: &str = "/gone";
/// The subscription filter for the last words of all members.
pub(super) const GONE_FILTER: &str = "rollcall/canary/+/gone";

/// More than any canary and any last word has.
const LONGEST: usize = 512;

/// What a canary carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Canary {
    /// The process that sent it.
    pub instance: String,
    /// Its number within that connection.
    pub seq: u64,
    /// Milliseconds since 1970.
    pub sent_at: i64,
}

impl Canary {
    /// Its payload.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a text and two numbers")
    }

    /// When it was sent.
    pub fn sent_at(&self) -> Timestamp {
        Timestamp::from_millis(self.sent_at)
    }
}

/// What the last word of a member carries; the client id is in its topic.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LastWord {
    share: String,
    connection: u64,
}

/// The topic of one client's canaries.
pub(super) fn topic(client_id: &str) -> String {
    format!("{PREFIX}{client_id}")
}

/// The topic of one client's last word.
pub(super) fn gone_topic(client_id: &str) -> String {
    format!("{PREFIX}{client_id}{GONE}")
}

/// The payload of a member's last word.
pub(super) fn last_word(member: &Member) -> Vec<u8> {
    let word = LastWord { share: member.share.clone(), connection: member.connection };
    serde_json::to_vec(&word).expect("a text and a number")
}

/// The canary, if it is one of `client_id`, sent by `instance` where that is given; `None` if it is
/// another's or none at all.
pub(super) fn read(
    topic: &str,
    payload: &[u8],
    client_id: &str,
    instance: Option<&str>,
    now: Timestamp,
) -> Option<Canary> {
    if topic.strip_prefix(PREFIX) != Some(client_id) || payload.len() > LONGEST {
        return None;
    }
    let canary: Canary = serde_json::from_slice(payload).ok()?;
    let ours = instance.is_none_or(|instance| instance == canary.instance);
    (ours && (0..=now.as_millis()).contains(&canary.sent_at)).then_some(canary)
}

/// The member that the broker has dropped, if this is a last word.
pub(super) fn read_gone(topic: &str, payload: &[u8]) -> Option<Member> {
    let client_id = topic.strip_prefix(PREFIX)?.strip_suffix(GONE)?;
    if client_id.is_empty() || client_id.contains('/') || payload.len() > LONGEST {
        return None;
    }
    let LastWord { share, connection } = serde_json::from_slice(payload).ok()?;
    (!share.contains('/')).then(|| Member { share, client_id: client_id.to_owned(), connection })
}

/// Those canaries, of some that came in this order after `last`, that must be told for no gap to
/// seem to be where there was none: the last of them, and enough before it.
pub(super) fn worth_telling(
    came: &[Timestamp],
    mut last: Option<Timestamp>,
    gap: Duration,
) -> Vec<Timestamp> {
    let mut told = Vec::new();
    for (n, canary) in came.iter().enumerate() {
        if last.is_some_and(|last| *canary <= last) {
            continue;
        }
        let next = came[n + 1..].iter().find(|next| *next > canary);
        let bridged = |last: Timestamp| next.is_some_and(|next| next.since(last) <= gap);
        if !last.is_some_and(bridged) {
            told.push(*canary);
            last = Some(*canary);
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_canary_is_believed_only_in_its_own_shape_from_its_own_client_and_of_the_past() {
        let now = at(1000);
        let canary = Canary { instance: "x".to_owned(), seq: 1, sent_at: 990 };
        let good = canary.to_json();
        let reads = |topic: &str, payload: &[u8], instance| read(topic, payload, "me", instance, now);
        assert_eq!(reads("rollcall/canary/me", &good, None), Some(canary.clone()));
        assert_eq!(reads("rollcall/canary/me", &good, Some("x")), Some(canary));
        assert_eq!(reads("rollcall/canary/me", &good, Some("y")), None);
        assert_eq!(reads("rollcall/canary/you", &good, None), None);
        assert_eq!(reads("rollcall/canary/", &good, None), None);
        for bad in [
            "",
            "{}",
            "990",
            "{\"instance\":\"x\",\"seq\":1,\"sent_at\":1001}",
            "{\"instance\":\"x\",\"seq\":1,\"sent_at\":-1}",
            "{\"instance\":\"x\",\"seq\":-1,\"sent_at\":1}",
            "{\"instance\":\"x\",\"seq\":1,\"sent_at\":1,\"more\":1}",
            &format!("{{\"instance\":\"{}\",\"seq\":1,\"sent_at\":1}}", "x".repeat(600)),
        ] {
            assert_eq!(reads("rollcall/canary/me", bad.as_bytes(), None), None, "{bad:.60}");
        }
    }

    #[test]
    fn a_last_word_is_believed_only_in_its_own_shape() {
        let member = Member { share: "all".to_owned(), client_id: "you".to_owned(), connection: 3 };
        let good = last_word(&member);
        assert_eq!(read_gone(&gone_topic("you"), &good), Some(member));
        for topic in ["rollcall/canary/you", "rollcall/canary/gone", "rollcall/canary/a/b/gone", "you/gone"] {
            assert_eq!(read_gone(topic, &good), None, "{topic}");
        }
        let long = format!("{{\"share\":\"{}\",\"connection\":3}}", "x".repeat(600));
        let other = "{\"share\":\"a/b\",\"connection\":3}";
        for bad in ["", "gone", "{\"share\":\"all\"}", "{\"share\":\"all\",\"connection\":-1}", other, &long]
        {
            assert_eq!(read_gone(&gone_topic("you"), bad.as_bytes()), None, "{bad:.60}");
        }
    }

    #[test]
    fn canaries_are_told_so_that_no_gap_seems_where_none_was_and_none_is_bridged() {
        // (last told before, came, told) with a gap of 30.
        let cases: [(Option<i64>, &[i64], &[i64]); 7] = [
            (None, &[10], &[10]),
            (None, &[10, 20, 30, 40], &[10, 40]),
            (Some(0), &[10, 20, 30, 40], &[30, 40]),
            (Some(0), &[10, 50, 60], &[10, 50, 60]),
            (Some(0), &[40, 50], &[40, 50]),
            (Some(50), &[10, 20], &[]),
            (Some(0), &[20, 10, 20, 30], &[30]),
        ];
        for (last, came, told) in cases {
            let came: Vec<Timestamp> = came.iter().map(|ms| at(*ms)).collect();
            let told: Vec<Timestamp> = told.iter().map(|ms| at(*ms)).collect();
            let got = worth_telling(&came, last.map(at), Duration::from_millis(30));
            assert_eq!(got, told, "{last:?} {came:?}");
        }
    }
}
