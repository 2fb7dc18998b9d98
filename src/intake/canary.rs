//! The canary: a message of our own that travels with the fleet's and proves that it is heard.
//!
//! About once a second it is published through the same connection, comes back through the same
//! subscription and the same queue, and is told to the engine only after everything that came
//! before it was recorded. Its topic is as open as any other, so it is hostile until parsed.
//!
//! # Why by client id
//! A canary of an earlier run that comes out of the broker's backlog truly proves that everything
//! before it has come, because the session is the same. One of another client proves nothing about
//! ours.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

/// What the topics of all canaries begin with.
pub(super) const PREFIX: &str = "rollcall/canary/";
/// The subscription filter for all of them.
pub(super) const FILTER: &str = "rollcall/canary/#";

/// More than any canary has.
const LONGEST: usize = 512;

/// What a canary carries.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Canary {
    /// The process that sent it.
    pub instance: String,
    /// Its number within that process.
    pub seq: u64,
    /// Milliseconds since 1970.
    pub sent_at: i64,
}

impl Canary {
    /// Its payload.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a text and two numbers")
    }
}

/// The topic of one client's canaries.
pub(super) fn topic(client_id: &str) -> String {
    format!("{PREFIX}{client_id}")
}

/// When a canary of `client_id` was sent; `None` if it is another's or none at all.
pub(super) fn read(topic: &str, payload: &[u8], client_id: &str, now: Timestamp) -> Option<Timestamp> {
    if topic.strip_prefix(PREFIX) != Some(client_id) || payload.len() > LONGEST {
        return None;
    }
    let canary: Canary = serde_json::from_slice(payload).ok()?;
    (0..=now.as_millis()).contains(&canary.sent_at).then(|| Timestamp::from_millis(canary.sent_at))
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
        let good = Canary { instance: "x".to_owned(), seq: 1, sent_at: 990 }.to_json();
        assert_eq!(read("rollcall/canary/me", &good, "me", now), Some(at(990)));
        assert_eq!(read("rollcall/canary/you", &good, "me", now), None);
        assert_eq!(read("rollcall/canary/", &good, "me", now), None);
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
            assert_eq!(read("rollcall/canary/me", bad.as_bytes(), "me", now), None, "{bad:.60}");
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
