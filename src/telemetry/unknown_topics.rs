//! Topics with messages that no kind matches. A newcomer who configures a wrong topic finds no units, and has to see
//! which topics the messages use.
//!
//! Senders choose topics, so the list is bounded, and each topic is cut and escaped.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{MAX_SHOWN, Telemetry, truncate};
use crate::clock::Timestamp;

/// The most topics in the list; messages on others are counted together.
const MAX_TOPICS: usize = 100;
/// A topic without messages for this long leaves the list.
const KEPT: Duration = Duration::from_secs(86_400);
/// How many topics a sentence names, and with how many characters each.
const NAMED: usize = 3;
const NAMED_LENGTH: usize = 60;

/// The prefix of Rollcall's own topics, which never name a unit.
const OWN: &str = "rollcall/";

/// Messages on one topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownTopic {
    /// Cut to [`MAX_SHOWN`] characters; control characters are escaped.
    pub topic: String,
    pub messages: u64,
    pub first_heard: Timestamp,
    pub last_heard: Timestamp,
}

/// Topics without a kind, ordered by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownTopics {
    pub topics: Vec<UnknownTopic>,
    /// Messages on topics outside the list, which is full.
    pub unlisted_messages: u64,
}

impl UnknownTopics {
    /// Merges the topics of several instances.
    pub fn merged(parts: impl IntoIterator<Item = UnknownTopics>) -> UnknownTopics {
        let mut all = TopicList::default();
        for part in parts {
            all.unlisted = all.unlisted.saturating_add(part.unlisted_messages);
            for one in part.topics {
                all.add(one);
            }
        }
        all.list()
    }

    /// The sentence for a newcomer; `None`: every message was on the topic of a kind.
    pub fn sentence(&self) -> Option<String> {
        let count = self.topics.len();
        let named: Vec<&str> =
            self.topics.iter().take(NAMED).map(|one| truncate(&one.topic, NAMED_LENGTH)).collect();
        let more = match (count.saturating_sub(NAMED), self.unlisted_messages) {
            (0, 0) => String::new(),
            (more, 0) => format!(" and {more} more"),
            (_, _) => " and many more".to_owned(),
        };
        let (topics, what) = if count == 1 { ("a topic", "it") } else { ("topics", "them") };
        let number = if count == 1 { String::new() } else { format!("{count} ") };
        (count > 0).then(|| {
            format!(
                "messages came on {number}{topics} that no kind has: {}{more}; add {what} to the topics of a kind, or let \
                 devices use the topics that are configured",
                named.join(", ")
            )
        })
    }
}

/// The list of this instance.
#[derive(Default)]
pub(super) struct TopicList {
    by_topic: BTreeMap<String, UnknownTopic>,
    unlisted: u64,
}

impl TopicList {
    /// Adds messages; returns whether the topic is new in the list.
    fn add(&mut self, one: UnknownTopic) -> bool {
        if let Some(known) = self.by_topic.get_mut(&one.topic) {
            known.messages = known.messages.saturating_add(one.messages);
            known.first_heard = known.first_heard.min(one.first_heard);
            known.last_heard = known.last_heard.max(one.last_heard);
            return false;
        }
        if self.by_topic.len() >= MAX_TOPICS {
            self.unlisted = self.unlisted.saturating_add(one.messages);
            return false;
        }
        self.by_topic.insert(one.topic.clone(), one);
        true
    }

    fn forget(&mut self, now: Timestamp) {
        let before = self.by_topic.len();
        self.by_topic.retain(|_, one| now.since(one.last_heard) < KEPT);
        if self.by_topic.len() < before {
            self.unlisted = 0;
        }
    }

    fn list(&self) -> UnknownTopics {
        UnknownTopics { topics: self.by_topic.values().cloned().collect(), unlisted_messages: self.unlisted }
    }
}

impl Telemetry {
    /// A message arrived on a topic that no kind matches.
    pub fn topic_of_no_kind(&self, topic: &str) {
        if topic.is_empty() || topic.starts_with(OWN) {
            return;
        }
        let now = self.clock.now();
        let shown = truncate(topic, MAX_SHOWN).escape_debug().to_string();
        let one = UnknownTopic { topic: shown, messages: 1, first_heard: now, last_heard: now };
        let topic = one.topic.clone();
        if self.topics_of_no_kind.lock().add(one) {
            tracing::info!(topic, "message on a topic that matches no kind");
        }
    }

    /// The topics without a kind that had messages within a day.
    pub fn unknown_topics(&self) -> UnknownTopics {
        let mut list = self.topics_of_no_kind.lock();
        list.forget(self.clock.now());
        list.list()
    }
}

/// The list, shared by all receivers of messages.
pub(super) type SharedTopicList = Mutex<TopicList>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn topics_of_no_kind_are_counted_cut_escaped_and_bounded() {
        let clock = Clock::by_hand(Timestamp::ZERO);
        let telemetry = Telemetry::new(&clock);
        assert_eq!(telemetry.unknown_topics().sentence(), None);
        for topic in ["devices/7/state", "devices/7/state", "", "rollcall/canary/x"] {
            telemetry.topic_of_no_kind(topic);
        }
        let listed = telemetry.unknown_topics();
        assert_eq!((listed.topics.len(), listed.topics[0].messages), (1, 2));
        let said = listed.sentence().unwrap();
        assert!(
            said.starts_with("messages came on a topic that no kind has: devices/7/state; add it"),
            "{said}"
        );
        telemetry.topic_of_no_kind(&format!("\u{1b}[2J{}", "x".repeat(60_000)));
        let listed = telemetry.unknown_topics();
        assert_eq!(listed.topics[0].topic.chars().count(), MAX_SHOWN + "\\u{1b}".len() - 1);
        let said = listed.sentence().unwrap();
        assert!(said.len() < 300 && said.contains("2 topics") && !said.contains('\u{1b}'), "{said}");
        for number in 0..1000 {
            telemetry.topic_of_no_kind(&format!("invented/{number}"));
        }
        let listed = telemetry.unknown_topics();
        assert_eq!((listed.topics.len(), listed.unlisted_messages), (MAX_TOPICS, 1002 - MAX_TOPICS as u64));
        let said = listed.sentence().unwrap();
        assert!(said.contains("100 topics") && said.contains("and many more"), "{said}");
        let both = UnknownTopics::merged([listed.clone(), listed]);
        assert_eq!(both.topics.iter().map(|one| one.messages).max(), Some(4));
        clock.advance(KEPT);
        assert_eq!(telemetry.unknown_topics(), UnknownTopics::default());
    }
}
