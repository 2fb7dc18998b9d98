//! Reads what devices, brokers and bridges announce of presence: one file for each format.
//!
//! Formats are pure: a format only reads the meaning of a message. The rules in [`crate::presence`] decide whether an
//! announcement counts.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::Mutex;

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
    /// Grows with each session of a client. `None`: the message has no such number, or one that is not believed.
    order: Option<i64>,
}

impl From<Said> for Event {
    fn from(said: Said) -> Event {
        Event { said, order: None }
    }
}

/// The session of a unit that an announcement ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// Its session.
    Own,
    /// A former one, or one that has ended already.
    Former,
    /// Any one: sessions have numbers, but no birth of an open one is known, as after a start. So the announcement is a
    /// hint.
    Unknown,
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

    /// Whether events tell sessions apart by numbers.
    pub(super) fn has_numbers(&self) -> bool {
        matches!(self, Format::Emqx | Format::Aws)
    }

    fn read(&self, payload: &[u8], now: Timestamp) -> Option<Event> {
        match self {
            Format::LastWill(words) => words.read(payload).map(Event::from),
            Format::Tasmota => tasmota::read(payload).map(Event::from),
            Format::Homie => homie::read(payload).map(Event::from),
            Format::Zigbee2Mqtt => zigbee2mqtt::read(payload).map(Event::from),
            Format::EspHome => esphome::read(payload).map(Event::from),
            Format::Emqx => emqx::read(payload, now),
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
    /// Whether an announcement that a unit is gone is proof, if it is that of the unit's session.
    pub is_proof: bool,
    /// How long a unit may take to be heard after any other announcement that it is gone.
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
    /// retained state, as when a device is renamed. `payload`: `None` if it is not read, so that it may say anything.
    pub(super) fn meaning(
        &self,
        payload: Option<&[u8]>,
        is_status: bool,
        rules: &KindRules,
        now: Timestamp,
    ) -> (Meaning, Option<i64>) {
        let event = match payload {
            None | Some([]) if is_status => Some(Said::Nothing.into()),
            payload => payload.and_then(|payload| self.format.read(payload, now)),
        };
        let meaning = self.meaning_of(event.map(|event| event.said), is_status, rules);
        (meaning, event.and_then(|event| event.order))
    }

    /// What an announcement says that a unit is gone. `is_proved`: it is known to be that of the unit's session.
    pub(super) fn gone(&self, cause: Cause, is_proved: bool) -> Announced {
        let settle = if self.is_proof && is_proved { Duration::ZERO } else { self.settle };
        Announced::Gone { cause, settle }
    }

    /// The topics of messages that name their units themselves, or are about all units of the kind.
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
        let gone = |cause| self.gone(cause, true);
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
    /// The logs of Mosquitto.
    pub logs: mosquitto::Logs,
}

#[derive(Default)]
struct Session {
    state: SessionState,
    /// When it began or, if it is over, when it ended.
    since: Timestamp,
    /// The unit may have been present before this session, and no will has come since: a broker may publish the will of
    /// a former session after the birth of the new one.
    took_over: bool,
    /// The number of the session, if the broker numbers sessions.
    order: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SessionState {
    /// As after a start: one that began before may be open.
    #[default]
    Unknown,
    Open,
    Ended,
}

/// How long after a birth or an end another birth has the next number, whatever that is. Brokers count anew for a client
/// that was away for long, and a clock may go back; events that come late do so within seconds.
const COUNT_ENDS: Duration = Duration::from_secs(300);

impl RecentSessions {
    /// Notes that a unit announced its presence. Returns `false` if the announcement is late, and its session has
    /// ended.
    pub fn born(&self, unit: &Unit, born: Timestamp, order: Option<i64>) -> bool {
        let mut sessions = self.sessions.lock();
        let session = session_of(&mut sessions, unit);
        let counted = session.order.filter(|_| order.is_none() || born.since(session.since) <= COUNT_ENDS);
        if order.is_some() && counted >= order && session.state == SessionState::Ended {
            return false;
        }
        let (took_over, order) = (session.state != SessionState::Ended, counted.max(order));
        *session = Session { state: SessionState::Open, since: born, took_over, order };
        true
    }

    /// Reads a message for Home Assistant: its meaning for each unit, by id, and the labels of the unit; `None` in an
    /// entry: a report of the unit. `payload`: `None` if it is not read.
    pub fn discovered(
        &self,
        kind: &Kind,
        topic: &str,
        payload: Option<&[u8]>,
        retained: bool,
    ) -> Vec<(Box<str>, Option<Said>, Labels)> {
        let mut homes = self.homes.lock();
        let discovery = homes.entry(kind.clone()).or_default();
        if homeassistant::is_discovery(topic) {
            if let Some(payload) = payload {
                discovery.discover(topic, payload);
            }
            return Vec::new();
        }
        let said = discovery.read(topic, payload, retained);
        said.into_iter().map(|(id, said)| (id.clone(), said, discovery.labels(&id))).collect()
    }

    /// Notes when a unit was announced as gone.
    pub fn gone(&self, at: Timestamp) {
        self.gone.store(at.as_millis(), Ordering::Relaxed);
    }

    /// Notes an announcement that a unit is gone, or leaves on purpose, which was sent between these moments. Answers which
    /// session ends. A unit that wakes for a moment may leave right after its birth.
    pub fn announced(
        &self,
        unit: &Unit,
        (at, latest): (Timestamp, Timestamp),
        order: Option<i64>,
        is_planned: bool,
    ) -> SessionEnd {
        self.gone(at);
        let mut sessions = self.sessions.lock();
        let session = session_of(&mut sessions, unit);
        let is_this = order.is_some() && session.order == order;
        if order.is_some() && session.order > order || is_this && session.state == SessionState::Ended {
            return SessionEnd::Former;
        }
        if session.took_over && !is_planned && order.is_none() && at <= session.since + TAKEOVER {
            // The next will belongs to the new session.
            session.took_over = false;
            return SessionEnd::Former;
        }
        let is_known = session.state == SessionState::Open || order.is_none();
        let order = session.order.max(order);
        *session = Session { state: SessionState::Ended, since: latest, took_over: false, order };
        if is_known { SessionEnd::Own } else { SessionEnd::Unknown }
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

    const NOW: Timestamp = Timestamp::from_millis(1_732_147_200_000);

    #[test]
    fn a_planned_departure_is_what_the_kind_says() {
        let kind: crate::presence::Kind = "lamp".parse().unwrap();
        let rules = KindRules::new(kind);
        let away = Meaning::Plans(Announced::Away(rules.max_sleep));
        let settle = Duration::from_secs(10);
        let gone = Meaning::Plans(Announced::Gone { cause: Cause::Disconnected, settle: Duration::ZERO });
        for (planned, expected) in
            [(Planned::Pause, away), (Planned::Offline, gone), (Planned::Ignore, Meaning::Nothing)]
        {
            let (format, topics) = (Format::Homie, Vec::new());
            let presence = PresenceRules { format, topics, is_proof: true, settle, planned, bridge: None };
            let meaning = |payload: Option<&str>, is_status| {
                presence.meaning(payload.map(str::as_bytes), is_status, &rules, NOW).0
            };
            assert_eq!(meaning(Some("disconnected"), true), expected);
            assert_eq!(meaning(Some("sleeping"), true), away);
            assert_eq!(meaning(Some("ready"), true), Meaning::Heartbeat);
            assert_eq!(meaning(Some("21.5"), true), Meaning::Unknown);
            assert_eq!(meaning(Some("21.5"), false), Meaning::Heartbeat);
            assert_eq!(meaning(Some(""), true), Meaning::Nothing);
            assert_eq!(meaning(None, true), Meaning::Nothing);
            assert_eq!(meaning(None, false), Meaning::Heartbeat);
        }
    }

    #[test]
    fn the_will_of_a_session_that_was_taken_over_comes_right_after_the_birth_of_the_next() {
        let (start, unit) = (Timestamp::from_millis(1_732_147_200_000), "lamp:1".parse::<Unit>().unwrap());
        let at = |ms| start + Duration::from_millis(ms);
        // Births, wills and planned departures with their moments, and whether each end belongs to a session that was
        // taken over.
        type Case = (&'static str, &'static [(char, u64)], &'static [bool]);
        let cases: [Case; 11] = [
            ("right after the first birth since the start", &[('b', 0), ('w', 5)], &[true]),
            ("then that session ends", &[('b', 0), ('w', 5), ('w', 10)], &[true, false]),
            ("a moment after that birth", &[('b', 0), ('w', 251)], &[false]),
            ("the former session is known to have ended", &[('w', 0), ('b', 20), ('w', 25)], &[false, false]),
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
                    end => {
                        let ends = recent.announced(&unit, (at(*ms), at(*ms)), None, *end == 'p');
                        taken_over.push(ends == SessionEnd::Former);
                    }
                }
            }
            assert_eq!(taken_over, expected, "{what}");
        }
    }

    #[test]
    fn sessions_with_numbers_are_told_apart_in_any_order() {
        let (at, unit) = (Timestamp::from_millis(1_732_147_200_000), "lamp:1".parse::<Unit>().unwrap());
        let (born, late) = ("born", "late");
        let (own, former, unknown) = ("own", "former", "unknown");
        type Case = (&'static str, &'static [(char, i64)], [&'static str; 4]);
        let cases: [Case; 7] = [
            ("in order", &[('b', 1), ('e', 1), ('b', 2), ('e', 2)], [born, own, born, own]),
            ("the end comes first", &[('e', 1), ('b', 1), ('b', 2), ('e', 2)], [unknown, late, born, own]),
            (
                "the former end comes late",
                &[('b', 1), ('b', 2), ('e', 1), ('e', 2)],
                [born, born, former, own],
            ),
            ("everything twice", &[('b', 1), ('b', 1), ('e', 1), ('e', 1)], [born, born, own, former]),
            ("right after the birth", &[('b', 1), ('b', 2), ('e', 2), ('e', 2)], [born, born, own, former]),
            (
                "no birth since the start",
                &[('e', 1), ('e', 1), ('e', 2), ('b', 3)],
                [unknown, former, unknown, born],
            ),
            ("a birth that is missing", &[('b', 1), ('e', 2), ('b', 3), ('e', 3)], [born, own, born, own]),
        ];
        for (what, events, expected) in cases {
            let recent = RecentSessions::default();
            let note = |(event, number): &(char, i64)| match event {
                'b' if recent.born(&unit, at, Some(*number)) => born,
                'b' => late,
                _ => match recent.announced(&unit, (at, at), Some(*number), false) {
                    SessionEnd::Own => own,
                    SessionEnd::Former => former,
                    SessionEnd::Unknown => unknown,
                },
            };
            assert_eq!(events.iter().map(note).collect::<Vec<_>>(), expected, "{what}");
        }
    }

    #[test]
    fn the_numbers_of_sessions_may_begin_again_after_a_while() {
        let (start, unit) = (Timestamp::from_millis(1_732_147_200_000), "lamp:1".parse::<Unit>().unwrap());
        // Births and ends with their seconds and numbers, and whether each birth is news and each end that of its session.
        type Case = (&'static str, &'static [(char, u64, i64)], &'static [bool]);
        let cases: [Case; 6] = [
            ("a late birth", &[('b', 0, 7), ('e', 9, 7), ('b', 309, 7)], &[true, true, false]),
            (
                "AWS IoT, an hour later",
                &[('b', 0, 7), ('e', 9, 7), ('b', 3700, 0), ('e', 3710, 0), ('b', 3720, 1), ('e', 3730, 1)],
                &[true; 6],
            ),
            (
                "with the number it had",
                &[('b', 0, 0), ('e', 9, 0), ('b', 3700, 0), ('e', 3800, 0)],
                &[true; 4],
            ),
            ("the end is missing", &[('b', 0, 7), ('b', 3700, 0), ('e', 3710, 0)], &[true; 3]),
            (
                "a former birth comes late",
                &[('b', 0, 7), ('b', 1, 6), ('e', 2, 6), ('e', 9, 7)],
                &[true, true, false, true],
            ),
            (
                "everything twice",
                &[('b', 0, 7), ('e', 9, 7), ('b', 400, 0), ('b', 400, 0), ('e', 401, 0), ('e', 401, 0)],
                &[true, true, true, true, true, false],
            ),
        ];
        for (what, events, expected) in cases {
            let recent = RecentSessions::default();
            let note = |(event, seconds, number): &(char, u64, i64)| {
                let at = start + Duration::from_secs(*seconds);
                match event {
                    'b' => recent.born(&unit, at, Some(*number)),
                    _ => recent.announced(&unit, (at, at), Some(*number), false) == SessionEnd::Own,
                }
            };
            assert_eq!(events.iter().map(note).collect::<Vec<_>>(), expected, "{what}");
        }
    }

    #[test]
    fn the_sessions_of_a_client_that_invents_ids_have_a_bound() {
        let (at, unit) = (Timestamp::from_millis(1_732_147_200_000), "lamp:1".parse::<Unit>().unwrap());
        let recent = RecentSessions::default();
        let invented = (0..MAX_SESSIONS as u64).map(|n| (n, Session::default()));
        recent.sessions.lock().extend(invented);
        recent.announced(&unit, (at, at), Some(1), false);
        assert_eq!(recent.sessions.lock().len(), 1);
        recent.sessions.lock().extend((0..MAX_SESSIONS as u64).map(|n| (n, Session::default())));
        recent.born(&unit, at, None);
        assert_eq!(recent.sessions.lock().len(), 1);
    }

    #[test]
    fn a_heartbeat_in_the_millisecond_of_an_announcement_counts_for_the_next_one() {
        let (at, ms) = (Timestamp::from_millis(1_732_147_200_000), Duration::from_millis(1));
        let recent = RecentSessions::default();
        recent.announced(&"lamp:1".parse().unwrap(), (at, at), None, false);
        assert_eq!([at, at + ms].map(|at| recent.after_announcement(at)), [at + ms; 2]);
    }
}
