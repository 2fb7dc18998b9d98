//! Reads what devices, brokers and bridges announce of presence: one file for each format.
//!
//! Formats are pure: a format only reads the meaning of a message. The rules in [`crate::presence`] decide whether an
//! announcement counts.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::clock::Timestamp;
use crate::presence::{Announced, Cause, Kind, KindRules, Labels, TAKEOVER, Unit, UnitName};

mod aws;
pub(super) mod bridge;
mod emqx;
mod esphome;
mod held;
pub(super) mod homeassistant;
mod homie;
mod last_will;
pub(super) mod mosquitto;
pub(super) mod sparkplug;
mod tasmota;
mod zigbee2mqtt;

pub(super) use held::HeldAnnouncements;
pub use last_will::StateWords;

/// The presence of a unit that a message announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// The unit is present: a heartbeat.
    Here,
    /// The unit is gone without having announced it.
    Gone(Cause),
    /// The unit left on purpose.
    Left,
    /// The unit announced a sleep.
    Sleeps,
    /// Nothing about the unit: another session took its session over, or a retained state was deleted.
    Nothing,
}

/// A message of a broker that numbers sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    said: Said,
    /// Grows with each session of a client.
    order: Option<i64>,
}

impl From<Said> for Event {
    fn from(said: Said) -> Event {
        Event { said, order: None }
    }
}

/// The format of announcements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// Words of the configuration.
    LastWill(StateWords),
    Tasmota,
    Homie,
    Zigbee2Mqtt,
    HomeAssistant,
    EspHome,
    Emqx,
    Mosquitto,
    Aws,
    Sparkplug(SparkplugHost),
}

/// Rollcall as a host application of Sparkplug.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SparkplugHost {
    /// The id under which it publishes its state; empty if it publishes none.
    pub id: String,
    /// Nodes are asked for their births when messages of them are missing.
    pub rebirth: bool,
}

impl Format {
    /// The topics on which bridges of the format announce themselves, from the topics of announcements.
    fn bridges(&self, topics: &[String]) -> Vec<String> {
        match self {
            Format::Zigbee2Mqtt => topics.iter().filter_map(|topic| zigbee2mqtt::bridge_of(topic)).collect(),
            _ => Vec::new(),
        }
    }

    /// The topics of a device with default settings; empty means the topics of the kind.
    pub fn topics(&self) -> &'static [&'static str] {
        match self {
            Format::LastWill(_) => &[],
            Format::Tasmota => &["tele/{unit}/LWT"],
            Format::Homie => &["homie/{unit}/$state", "homie/5/{unit}/$state"],
            Format::Zigbee2Mqtt => &["zigbee2mqtt/{unit}/availability"],
            Format::EspHome => &["{unit}/status"],
            Format::Emqx => {
                &["$SYS/brokers/+/clients/{unit}/connected", "$SYS/brokers/+/clients/{unit}/disconnected"]
            }
            Format::Aws => {
                &["$aws/events/presence/connected/{unit}", "$aws/events/presence/disconnected/{unit}"]
            }
            Format::Sparkplug(_) => &sparkplug::STATUS,
            Format::HomeAssistant => &["+/status", "+/availability", "tele/+/LWT"],
            Format::Mosquitto => &[],
        }
    }

    /// Returns whether each topic of announcements names a unit by the rule of its kind.
    pub fn has_named_topics(&self) -> bool {
        !matches!(self, Format::HomeAssistant | Format::Mosquitto | Format::Sparkplug(_))
    }

    /// The topics of heartbeats, if the format has its own.
    pub fn data_topics(&self) -> &'static [&'static str] {
        match self {
            Format::Sparkplug(_) => &sparkplug::DATA,
            _ => &[],
        }
    }

    /// The rule that names the units of a topic, if the format has one.
    pub(super) fn unit_name(&self, topic: &str) -> Option<UnitName> {
        let is_sparkplug = matches!(self, Format::Sparkplug(_));
        let name = if topic.contains("{device}") { sparkplug::DEVICE } else { sparkplug::NODE };
        is_sparkplug.then(|| name.parse().expect("two or three captures"))
    }

    /// The settings of the host application, if the format is Sparkplug.
    pub(super) fn sparkplug(&self) -> Option<&SparkplugHost> {
        match self {
            Format::Sparkplug(host) => Some(host),
            _ => None,
        }
    }

    /// Returns whether the events are about all clients of a broker, named by their client ids.
    pub(super) fn is_of_clients(&self) -> bool {
        matches!(self, Format::Emqx | Format::Mosquitto | Format::Aws)
    }

    fn read(&self, payload: &[u8]) -> Option<Event> {
        match self {
            Format::LastWill(words) => words.read(payload).map(Event::from),
            Format::Tasmota => tasmota::read(payload).map(Event::from),
            Format::Homie => homie::read(payload).map(Event::from),
            Format::Zigbee2Mqtt => zigbee2mqtt::read(payload).map(Event::from),
            Format::EspHome => esphome::read(payload).map(Event::from),
            Format::Emqx => emqx::read(payload),
            Format::Aws => aws::read(payload),
            // Their messages name units themselves, or need earlier births.
            Format::HomeAssistant | Format::Mosquitto | Format::Sparkplug(_) => None,
        }
    }
}

/// The consequence of a planned departure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planned {
    /// The unit is paused until it is heard again, at most for `max_sleep` of its kind.
    Pause,
    /// The unit counts as gone.
    Offline,
    #[default]
    Ignore,
}

/// The announcements of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresenceRules {
    pub format: Format,
    /// Templates of the topics on which units announce their presence; empty means the topics of the kind.
    pub topics: Vec<String>,
    /// How long a unit may stay silent after it was announced as gone; zero means that the announcement is proof.
    pub settle: Duration,
    pub planned: Planned,
    /// The topic on which the bridge announces itself that forwards the units.
    pub bridge: Option<String>,
}

/// The meaning of a message for Rollcall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Heartbeat,
    /// The end of a session, which another session may have taken over.
    Ends(Announced),
    /// A departure or a sleep that the unit announces in advance.
    Plans(Announced),
    /// A planned departure that is ignored.
    Nothing,
    /// The message has none of the forms of the format.
    Unknown,
}

impl PresenceRules {
    /// The meaning of a message, and the number of its session, if it has one. `is_status`: its topic is for
    /// announcements only; a message on any other topic is also a heartbeat. A message without content deletes a
    /// retained state, as when a device is renamed.
    pub(super) fn meaning(
        &self,
        payload: &[u8],
        is_status: bool,
        rules: &KindRules,
    ) -> (Meaning, Option<i64>) {
        let event = match payload {
            [] if is_status => Some(Said::Nothing.into()),
            _ => self.format.read(payload),
        };
        let meaning = self.meaning_of(event.map(|event| event.said), is_status, rules);
        (meaning, event.and_then(|event| event.order))
    }

    /// The topics of messages that name their units themselves, or concern all units of the kind.
    pub(super) fn feeds(&self) -> Vec<String> {
        let of_format = match &self.format {
            Format::Mosquitto if self.topics.is_empty() => mosquitto::TOPICS.map(str::to_owned).into(),
            Format::Mosquitto => self.topics.clone(),
            Format::HomeAssistant => {
                let discovery = homeassistant::DISCOVERY.map(str::to_owned);
                discovery.into_iter().chain(self.topics.iter().cloned()).collect()
            }
            _ => Vec::new(),
        };
        of_format.into_iter().chain(self.format.bridges(&self.topics)).chain(self.bridge.clone()).collect()
    }

    /// Returns whether a bridge announces itself on this topic.
    pub(super) fn is_bridge(&self, topic: &str) -> bool {
        self.bridge.as_deref() == Some(topic)
            || self.format.bridges(&self.topics).iter().any(|bridge| bridge == topic)
    }

    /// The topics on which units announce their presence, each unit on its own.
    pub(super) fn status_topics(&self) -> &[String] {
        let has_none = matches!(self.format, Format::HomeAssistant | Format::Mosquitto);
        if has_none { &[] } else { &self.topics }
    }

    pub(super) fn meaning_of(&self, said: Option<Said>, is_status: bool, rules: &KindRules) -> Meaning {
        let gone = |cause| Announced::Gone { cause, settle: self.settle };
        let away = Meaning::Plans(Announced::Away(rules.max_sleep));
        match (said, self.planned) {
            (Some(Said::Here), _) => Meaning::Heartbeat,
            (Some(Said::Gone(cause)), _) => Meaning::Ends(gone(cause)),
            (Some(Said::Left), Planned::Offline) => Meaning::Plans(gone(Cause::Disconnected)),
            (Some(Said::Left), Planned::Pause) => away,
            (Some(Said::Sleeps), _) if rules.accept_sleep => away,
            (Some(Said::Left | Said::Sleeps | Said::Nothing), _) => Meaning::Nothing,
            (None, _) if is_status => Meaning::Unknown,
            (None, _) => Meaning::Heartbeat,
        }
    }
}

/// The most units whose sessions are in memory, about 40 MB; a full table is cleared.
const MAX_SESSIONS: usize = 1_000_000;

/// The last announcements of units.
#[derive(Default)]
pub(super) struct RecentSessions {
    /// The sessions of units that announced their presence, by a hash of the unit.
    sessions: Mutex<HashMap<u64, Session, FixedState>>,
    /// When a unit was last announced as gone, in milliseconds.
    gone: AtomicI64,
    /// The nodes of Sparkplug.
    pub nodes: sparkplug::nodes::Nodes,
    /// The devices of Home Assistant, by kind.
    homes: Mutex<HashMap<Kind, homeassistant::Discovery, FixedState>>,
}

#[derive(Default)]
struct Session {
    born: Timestamp,
    is_open: bool,
    /// The unit was present before this session, and no will has come since: a broker may publish the will of a former
    /// session after the birth of the new one.
    took_over: bool,
    /// The number of the session, if the broker numbers sessions.
    order: Option<i64>,
}

impl RecentSessions {
    /// Notes that a unit announced its presence. Returns `false` if the announcement is late, and its session has
    /// ended.
    pub fn born(&self, unit: &Unit, born: Timestamp, order: Option<i64>) -> bool {
        let mut sessions = self.lock();
        let session = session_of(&mut sessions, unit);
        if order.is_some() && session.order >= order && !session.is_open {
            return false;
        }
        let order = session.order.max(order);
        *session = Session { born, took_over: session.is_open, is_open: true, order };
        true
    }

    /// Reads a message for Home Assistant: its meaning for each unit, by id, and the labels of the unit; `None` in an
    /// entry: a report of the unit.
    pub fn discovered(
        &self,
        kind: &Kind,
        topic: &str,
        payload: &[u8],
        retained: bool,
    ) -> Vec<(Box<str>, Option<Said>, Labels)> {
        let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        let discovery = homes.entry(kind.clone()).or_default();
        if homeassistant::is_discovery(topic) {
            discovery.discover(topic, payload);
            return Vec::new();
        }
        let said = discovery.read(topic, payload, retained);
        said.into_iter().map(|(id, said)| (id.clone(), said, discovery.labels(&id))).collect()
    }

    /// Notes when a unit was announced as gone.
    pub fn gone(&self, at: Timestamp) {
        self.gone.store(at.as_millis(), Ordering::Relaxed);
    }

    /// Notes an announcement that a unit is gone, or leaves on purpose. Returns whether it ends a session that was
    /// taken over. A unit that wakes for a moment may leave right after its birth.
    pub fn announced(&self, unit: &Unit, at: Timestamp, order: Option<i64>, is_planned: bool) -> bool {
        self.gone(at);
        let mut sessions = self.lock();
        let session = match order {
            Some(_) => session_of(&mut sessions, unit),
            None => match sessions.get_mut(&hash(unit)) {
                Some(session) => session,
                None => return false,
            },
        };
        if order.is_some() && session.order > order {
            return true;
        }
        let is_this = order.is_some() && session.order == order;
        if session.took_over && !is_planned && !is_this && at <= session.born + TAKEOVER {
            // The next will belongs to the new session.
            session.took_over = false;
            return true;
        }
        match order {
            Some(_) => *session = Session { order, ..Session::default() },
            None => drop(sessions.remove(&hash(unit))),
        }
        false
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Session, FixedState>> {
        self.sessions.lock().expect("nothing panics under this lock")
    }

    /// The moment of a heartbeat that arrives now. In the millisecond of an announcement, a heartbeat after it gets the
    /// next one, so that the moments show their order.
    pub fn after_announcement(&self, at: Timestamp) -> Timestamp {
        match at.as_millis() == self.gone.load(Ordering::Relaxed) {
            true => at + Duration::from_millis(1),
            false => at,
        }
    }
}

/// The session of a unit, kept in memory from now on.
fn session_of<'a>(sessions: &'a mut HashMap<u64, Session, FixedState>, unit: &Unit) -> &'a mut Session {
    if sessions.len() >= MAX_SESSIONS {
        sessions.clear();
    }
    sessions.entry(hash(unit)).or_default()
}

fn hash(unit: &Unit) -> u64 {
    FixedState::default().hash_one(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planned_departure_is_what_the_kind_says() {
        let kind: crate::presence::Kind = "lamp".parse().unwrap();
        let rules = KindRules::new(kind);
        let away = Meaning::Plans(Announced::Away(rules.max_sleep));
        let gone = Meaning::Plans(Announced::Gone { cause: Cause::Disconnected, settle: Duration::ZERO });
        for (planned, expected) in
            [(Planned::Pause, away), (Planned::Offline, gone), (Planned::Ignore, Meaning::Nothing)]
        {
            let (format, topics, settle) = (Format::Homie, Vec::new(), Duration::ZERO);
            let presence = PresenceRules { format, topics, settle, planned, bridge: None };
            assert_eq!(presence.meaning(b"disconnected", true, &rules).0, expected);
            assert_eq!(presence.meaning(b"sleeping", true, &rules).0, away);
            assert_eq!(presence.meaning(b"ready", true, &rules).0, Meaning::Heartbeat);
            assert_eq!(presence.meaning(b"21.5", true, &rules).0, Meaning::Unknown);
            assert_eq!(presence.meaning(b"21.5", false, &rules).0, Meaning::Heartbeat);
            assert_eq!(presence.meaning(b"", true, &rules).0, Meaning::Nothing);
        }
    }

    #[test]
    fn the_will_of_a_session_that_was_taken_over_comes_right_after_the_birth_of_the_next() {
        let (start, unit) = (Timestamp::from_millis(1_732_147_200_000), "lamp:1".parse::<Unit>().unwrap());
        let at = |ms| start + Duration::from_millis(ms);
        // Births, wills and planned departures with their moments, and whether each end belongs to a session that was
        // taken over.
        type Case = (&'static str, &'static [(char, u64)], &'static [bool]);
        let cases: [Case; 8] = [
            ("cut right after the first birth", &[('b', 0), ('w', 5)], &[false]),
            (
                "the will before the birth",
                &[('b', 0), ('w', 5000), ('b', 5001), ('w', 5010)],
                &[false, false],
            ),
            ("the will after the birth", &[('b', 0), ('b', 5000), ('w', 5010)], &[true]),
            ("then the new session ends", &[('b', 0), ('b', 5000), ('w', 5010), ('w', 5020)], &[true, false]),
            ("long after the birth", &[('b', 0), ('b', 5000), ('w', 5251)], &[false]),
            ("a will without a birth", &[('w', 0)], &[false]),
            ("it wakes, is ready and sleeps", &[('b', 0), ('b', 20), ('p', 60)], &[false]),
            ("three sessions", &[('b', 0), ('b', 10), ('w', 11), ('b', 20), ('w', 21)], &[true, true]),
        ];
        for (what, events, expected) in cases {
            let recent = RecentSessions::default();
            let mut taken_over = Vec::new();
            for (event, ms) in events {
                match event {
                    'b' => assert!(recent.born(&unit, at(*ms), None)),
                    end => taken_over.push(recent.announced(&unit, at(*ms), None, *end == 'p')),
                }
            }
            assert_eq!(taken_over, expected, "{what}");
        }
    }

    #[test]
    fn sessions_with_numbers_are_told_apart_in_any_order() {
        let (at, unit) = (Timestamp::from_millis(1_732_147_200_000), "lamp:1".parse::<Unit>().unwrap());
        // A late birth is false, and so is an end that counts.
        type Case = (&'static str, &'static [(char, i64)], &'static [bool]);
        let cases: [Case; 5] = [
            ("in order", &[('b', 1), ('e', 1), ('b', 2), ('e', 2)], &[true, false, true, false]),
            ("the end comes first", &[('e', 1), ('b', 1), ('b', 2)], &[false, false, true]),
            (
                "the former end comes late",
                &[('b', 1), ('b', 2), ('e', 1), ('e', 2)],
                &[true, true, true, false],
            ),
            ("everything twice", &[('b', 1), ('b', 1), ('e', 1), ('e', 1)], &[true, true, false, false]),
            ("right after the birth", &[('b', 1), ('b', 2), ('e', 2)], &[true, true, false]),
        ];
        for (what, events, expected) in cases {
            let recent = RecentSessions::default();
            let note = |(event, number): &(char, i64)| match event {
                'b' => recent.born(&unit, at, Some(*number)),
                _ => recent.announced(&unit, at, Some(*number), false),
            };
            assert_eq!(events.iter().map(note).collect::<Vec<_>>(), expected, "{what}");
        }
    }

    #[test]
    fn the_sessions_of_a_client_that_invents_ids_have_a_bound() {
        let (at, unit) = (Timestamp::from_millis(1_732_147_200_000), "lamp:1".parse::<Unit>().unwrap());
        let recent = RecentSessions::default();
        let invented = (0..MAX_SESSIONS as u64).map(|n| (n, Session::default()));
        recent.lock().extend(invented);
        recent.announced(&unit, at, Some(1), false);
        assert_eq!(recent.lock().len(), 1);
        recent.lock().extend((0..MAX_SESSIONS as u64).map(|n| (n, Session::default())));
        recent.born(&unit, at, None);
        assert_eq!(recent.lock().len(), 1);
    }

    #[test]
    fn a_heartbeat_in_the_millisecond_of_an_announcement_counts_for_the_next_one() {
        let (at, ms) = (Timestamp::from_millis(1_732_147_200_000), Duration::from_millis(1));
        let recent = RecentSessions::default();
        recent.announced(&"lamp:1".parse().unwrap(), at, None, false);
        assert_eq!([at, at + ms].map(|at| recent.after_announcement(at)), [at + ms; 2]);
    }
}
