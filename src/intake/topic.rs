//! Reads the unit from a topic.
//!
//! A template such as `{kind}/{site}/{unit}/data` captures whole levels of a topic: `{kind}` unless the template
//! belongs to one kind, and under any other name a label or a part of the unit's name. The kind sets which captures
//! name its units; the default is `{unit}`: see [`UnitName`]. `+` stands for any one level, and `#`, which is the last
//! level, for any number of levels. Everything else is literal. A message belongs to the **first** template, in the
//! order of the configuration, whose levels fit its topic; so specific templates stand before general ones.
//!
//! # Why there are fewer filters than templates
//! Each template becomes a subscription filter with `+` for every capture. A filter that another filter covers is left
//! out, because a broker may deliver a message once for each matching filter.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::announcements::{PresenceRules, sparkplug};
use super::{PayloadIssues, states};
use crate::fleet::{Rules, SharedRules};
use crate::presence::{
    Filters, Kind, KindRules, Labels, NameError, Place, Unit, UnitName, covers, is_label_value,
};
use crate::telemetry::{PayloadIssue, Rejection, truncate};

mod template;

use template::Level;
pub use template::{Template, TemplateError};
pub(super) use template::{is_probe, probe_topic};

/// The prefix of Rollcall's own topics.
const OWN: &str = "rollcall/";

/// The unit that a topic names.
#[derive(Debug)]
pub(super) struct Origin {
    pub unit: Unit,
    pub labels: Labels,
    /// Where the unit was heard, if its name does not contain all labels of the topic.
    pub place: Option<Place>,
    /// The rules for announcements on the topic, if it may carry them.
    pub presence: Option<Arc<PresenceRules>>,
    /// The topic is for announcements only.
    pub is_status: bool,
    pub rules: Arc<KindRules>,
}

/// The reason why a message is rejected, with a text for the log.
pub(super) type Refusal = (Rejection, String);

/// Every template, in the order of the configuration.
pub(super) struct Topics {
    entries: Vec<TopicEntry>,
    /// Topics of messages that name their units themselves, or concern all units of a kind.
    feeds: Vec<Feed>,
    /// The kinds whose units announce their presence.
    presence: HashMap<Kind, Arc<PresenceRules>, FixedState>,
    /// The beginning of Rollcall's client ids; empty if unknown.
    own_clients: String,
    rules: SharedRules,
}

/// Filters by the use of their topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FleetFilters {
    /// Heartbeats: any process may hear each message.
    pub heartbeats: Vec<String>,
    /// Announcements, whose order matters: each process hears all of them, even if a share gives each heartbeat to one
    /// process.
    pub status: Vec<String>,
    /// Messages about many units, for each process, including retained ones.
    pub feeds: Vec<String>,
}

/// A topic of messages that name their units themselves, or concern all units of a kind.
pub(super) struct Feed {
    filter: String,
    pub presence: Arc<PresenceRules>,
    pub rules: Arc<KindRules>,
}

struct TopicEntry {
    template: Template,
    /// The rule that names the units, if the format of announcements has one.
    name: Option<UnitName>,
    /// The labels of each kind that are not part of the name of its units.
    beside: HashMap<Kind, LabelLevels, FixedState>,
    role: TopicRole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopicRole {
    /// A topic of a kind.
    Heartbeats,
    /// A topic of a kind on which its units also announce their presence.
    Both,
    /// A topic for announcements only.
    Status,
    /// A topic of heartbeats in the format of the announcements.
    Data,
}

/// Labels, each with its level.
type LabelLevels = Arc<[(Box<str>, usize)]>;

impl Topics {
    pub fn new(templates: Vec<Template>, rules: SharedRules) -> Topics {
        let kinds = rules.rules();
        let entry = |template| TopicEntry::new(template, TopicRole::Heartbeats, None, &kinds);
        let entries = templates.into_iter().map(entry).collect();
        Topics { entries, feeds: Vec::new(), presence: HashMap::default(), own_clients: String::new(), rules }
    }

    /// These topics, with the beginning of Rollcall's client ids.
    pub fn with_own_clients(self, own_clients: String) -> Topics {
        Topics { own_clients, ..self }
    }

    /// Returns whether the unit is a client of Rollcall in a message of the broker, which is no unit.
    pub fn is_of_rollcall(&self, unit: &Unit, presence: &PresenceRules) -> bool {
        let is_own = !self.own_clients.is_empty() && unit.id.as_str().starts_with(&self.own_clients);
        is_own && presence.format.is_of_clients()
    }

    /// These topics, and those on which units of the kind announce their presence. Announcement topics are matched
    /// first, because they are more specific than topics of data.
    ///
    /// # Errors
    /// An invalid template.
    pub fn with_presence(mut self, kind: &Kind, presence: &PresenceRules) -> Result<Topics, TemplateError> {
        let shared = Arc::new(presence.clone());
        // Try these topics first, because most messages are data.
        for text in presence.format.data_topics() {
            let template = Template::of_announcements(text, kind.clone())?;
            self.add(template, TopicRole::Data, presence.format.unit_name(text))?;
        }
        for text in presence.status_topics() {
            let template = Template::of_announcements(text, kind.clone())?;
            let filter = template.filter();
            let own = |entry: &TopicEntry| entry.template.is_of(kind) && entry.template.filter() == filter;
            let role = if self.entries.iter().any(own) { TopicRole::Both } else { TopicRole::Status };
            self.add(template, role, presence.format.unit_name(text))?;
        }
        if let Some(rules) = self.rules.of(kind.as_str()) {
            let feed = |filter| Feed { filter, presence: shared.clone(), rules: rules.clone() };
            self.feeds.extend(presence.feeds().into_iter().map(feed));
        }
        self.presence.insert(kind.clone(), shared);
        Ok(self)
    }

    fn add(
        &mut self,
        template: Template,
        role: TopicRole,
        name: Option<UnitName>,
    ) -> Result<(), TemplateError> {
        let kinds = self.rules.rules();
        if let Some(rules) = template.kind.as_ref().and_then(|kind| kinds.get(kind)) {
            template.check_name(name.as_ref().unwrap_or(&rules.name))?;
        }
        let first = self.entries.iter().position(|entry| entry.role == TopicRole::Heartbeats);
        let place = first.unwrap_or(self.entries.len());
        self.entries.insert(place, TopicEntry::new(template, role, name, &kinds));
        Ok(())
    }

    /// The feeds to which a message on this topic belongs.
    pub fn feeds<'a>(&'a self, topic: &'a str) -> impl Iterator<Item = &'a Feed> {
        self.feeds.iter().filter(move |feed| covers(&feed.filter, topic))
    }

    /// Returns whether a message on this topic concerns the unit that the topic names.
    pub fn names_unit(&self, topic: &str) -> bool {
        self.entries.iter().any(|entry| entry.template.fits(topic))
    }

    /// The filters to subscribe to.
    pub fn filters(&self) -> Vec<String> {
        let FleetFilters { heartbeats, status, feeds } = self.by_use();
        widest(status.into_iter().chain(heartbeats).chain(feeds))
    }

    /// The filters to subscribe to, by the use of their topics.
    pub fn by_use(&self) -> FleetFilters {
        let of = |is_status: bool| {
            let entries =
                self.entries.iter().filter(move |entry| (entry.role == TopicRole::Status) == is_status);
            widest(entries.map(|entry| entry.template.filter()))
        };
        let feeds = widest(self.feeds.iter().map(|feed| feed.filter.clone()));
        FleetFilters { heartbeats: of(false), status: of(true), feeds }
    }

    /// The filters of each kind. Filters of announcements are left out: without announcements, deadlines find every
    /// silence.
    pub fn filters_of_kinds(&self) -> Filters {
        let (mut filters, rules) = (Filters::new(), self.rules.rules());
        let is_heard = |role| matches!(role, TopicRole::Heartbeats | TopicRole::Data);
        let heard = self.entries.iter().filter(|entry| is_heard(entry.role));
        for (kind, filter) in heard.flat_map(|entry| entry.template.filters_of(&rules)) {
            let of_kind = filters.entry(kind).or_default();
            if !of_kind.contains(&filter) {
                of_kind.push(filter);
            }
        }
        filters
    }

    /// Returns whether Rollcall publishes on this topic. Filters of units may cover it, and no message there is one of a
    /// unit: otherwise each published state would be a new unit, whose state is published again.
    pub fn is_own(&self, topic: &str) -> bool {
        let is_host = |id: &str| {
            let hosts = self.presence.values().filter_map(|presence| presence.format.sparkplug());
            hosts.map(|host| &host.id).any(|own| own == id)
        };
        topic.starts_with(OWN)
            || topic.starts_with(states::SENSORS)
            || topic.strip_prefix(sparkplug::STATES).is_some_and(is_host)
    }

    /// The unit that sent a message with this topic, which is not [Rollcall's own](Topics::is_own).
    pub fn origin(&self, topic: &str, issues: &mut PayloadIssues) -> Result<Origin, Refusal> {
        let found = self.entries.iter().find(|entry| entry.template.fits(topic));
        let TopicEntry { template, name, beside, role } =
            found.ok_or_else(|| (Rejection::BadTopic, "it fits no template".to_owned()))?;
        let mut id = "";
        let mut kind = template.kind.as_ref().map_or("", Kind::as_str);
        let mut labels = Labels::new();
        for (level, text) in template.levels.iter().zip(topic.split('/')) {
            match level {
                Level::Literal(_) | Level::Any | Level::Rest => {}
                Level::Unit => id = text,
                Level::Kind => kind = text,
                Level::Label(name) if is_label_value(text) => {
                    labels.insert(name.to_string(), text.to_owned());
                }
                Level::Label(name) => issues.note(PayloadIssue::BadLabel, || format!("{name} in the topic")),
            }
        }
        let Some(rules) = self.rules.of(kind) else {
            return Err((Rejection::UnknownKind, format!("kind {:?} is not configured", truncate(kind, 40))));
        };
        let bad_unit = |why: String| (Rejection::BadUnit, why);
        let name = name.as_ref().unwrap_or(&rules.name);
        let id = match name.is_plain() {
            true => id.parse().map_err(|why: NameError| bad_unit(why.to_string()))?,
            false => {
                let composed = name.compose(|capture| template.capture(capture, topic));
                composed.map_err(|why| bad_unit(why.to_string()))?
            }
        };
        let labels_beside = if beside.is_empty() { None } else { beside.get(&rules.kind) };
        let place = labels_beside.map(|beside| Place { topic: topic.into(), labels: beside.clone() });
        let presence = if self.presence.is_empty() { None } else { self.presence.get(&rules.kind) };
        let presence =
            presence.filter(|known| *role != TopicRole::Heartbeats || known.topics.is_empty()).cloned();
        let (unit, is_status) = (Unit::new(rules.kind.clone(), id), *role == TopicRole::Status);
        Ok(Origin { unit, labels, place, presence, is_status, rules })
    }
}

impl TopicEntry {
    fn new(template: Template, role: TopicRole, name: Option<UnitName>, kinds: &Rules) -> TopicEntry {
        let of_kind = |(kind, rules): (&Kind, &KindRules)| {
            let labels: LabelLevels = template.labels_beside(name.as_ref().unwrap_or(&rules.name)).into();
            (template.is_of(kind) && !labels.is_empty()).then(|| (kind.clone(), labels))
        };
        TopicEntry { beside: kinds.iter().filter_map(of_kind).collect(), template, name, role }
    }
}

/// These filters, without those that another filter covers.
pub(super) fn widest(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut filters: Vec<String> = Vec::new();
    for filter in all {
        if filters.iter().any(|wider| covers(wider, &filter)) {
            continue;
        }
        filters.retain(|narrower| !covers(&filter, narrower));
        filters.push(filter);
    }
    filters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intake::announcements::{Format, Planned, StateWords};

    fn kind(name: &str) -> Kind {
        name.parse().unwrap()
    }

    fn topics(templates: &[(&str, Option<&str>)]) -> Topics {
        let rules: Rules =
            ["detector", "pump"].map(|name| (kind(name), KindRules::new(kind(name)))).into_iter().collect();
        let parse = |(text, of): &(&str, Option<&str>)| Template::parse(text, of.map(kind)).unwrap();
        Topics::new(templates.iter().map(parse).collect(), Arc::new(rules).into())
    }

    fn origin_of(topics: &Topics, topic: &str) -> Result<String, Rejection> {
        let mut issues = PayloadIssues::default();
        match topics.origin(topic, &mut issues) {
            Ok(origin) => Ok(format!("{} {:?}", origin.unit, origin.labels)),
            Err((why, _)) => Err(why),
        }
    }

    #[test]
    fn a_topic_names_a_unit_its_kind_and_its_labels_or_is_refused() {
        let topics = topics(&[
            ("units/{unit}/heartbeat", Some("detector")),
            ("{kind}/{site}/{unit}/data", None),
            ("/lead/{unit}", Some("pump")),
            ("esphome/{unit}/+/+/state", Some("pump")),
            ("homie/{unit}/#", Some("pump")),
            ("N/{unit}/+/{instance}/#", Some("pump")),
        ]);
        let long = format!("units/{}/heartbeat", "x".repeat(129));
        let cases = [
            ("units/7/heartbeat", Ok("detector:7 {}")),
            ("units/a:b c/heartbeat", Ok("detector:a:b c {}")),
            ("pump/hall 3/9/data", Ok("pump:9 {\"site\": \"hall 3\"}")),
            ("/lead/1", Ok("pump:1 {}")),
            ("esphome/porch/sensor/door/state", Ok("pump:porch {}")),
            ("esphome/porch/sensor/state", Err(Rejection::BadTopic)),
            ("homie/lamp", Ok("pump:lamp {}")),
            ("homie/lamp/$state", Ok("pump:lamp {}")),
            ("homie/lamp/light/power/set", Ok("pump:lamp {}")),
            ("homie", Err(Rejection::BadTopic)),
            ("N/c0/battery/256/Dc/0/Voltage", Ok("pump:c0 {\"instance\": \"256\"}")),
            ("N/c0/battery", Err(Rejection::BadTopic)),
            ("units/7", Err(Rejection::BadTopic)),
            ("units/7/heartbeat/more", Err(Rejection::BadTopic)),
            ("units/heartbeat", Err(Rejection::BadTopic)),
            ("", Err(Rejection::BadTopic)),
            ("units//heartbeat", Err(Rejection::BadUnit)),
            ("units/./heartbeat", Err(Rejection::BadUnit)),
            ("units/../heartbeat", Err(Rejection::BadUnit)),
            ("units/.../heartbeat", Ok("detector:... {}")),
            (long.as_str(), Err(Rejection::BadUnit)),
            ("units/a\u{7}/heartbeat", Err(Rejection::BadUnit)),
            ("lamp/x/9/data", Err(Rejection::UnknownKind)),
            ("Pump/x/9/data", Err(Rejection::UnknownKind)),
        ];
        for (topic, expected) in cases {
            assert_eq!(origin_of(&topics, topic), expected.map(str::to_owned), "{topic:?}");
        }
    }

    #[test]
    fn a_bad_label_in_a_topic_is_passed_over_and_the_unit_still_lives() {
        let topics = topics(&[("{site}/{unit}", Some("pump"))]);
        let mut issues = PayloadIssues::default();
        let origin = topics.origin("/9", &mut issues).unwrap();
        assert_eq!((origin.unit.to_string().as_str(), origin.labels.len()), ("pump:9", 0));
        assert_eq!(issues.kinds(), [PayloadIssue::BadLabel]);
    }

    #[test]
    fn the_first_template_that_fits_wins() {
        let specific_first = topics(&[("units/{unit}", Some("pump")), ("{kind}/{unit}", None)]);
        assert_eq!(origin_of(&specific_first, "units/1").unwrap(), "pump:1 {}");
        let general_first = topics(&[("{kind}/{unit}", None), ("units/{unit}", Some("pump"))]);
        assert_eq!(origin_of(&general_first, "units/1").unwrap_err(), Rejection::UnknownKind);
    }

    #[test]
    fn a_filter_that_another_covers_is_not_subscribed() {
        let topics = topics(&[
            ("units/{unit}/heartbeat", Some("detector")),
            ("units/{unit}/{channel}", Some("detector")),
            ("units/{unit}/{other}", Some("detector")),
            ("units/{unit}", Some("detector")),
            ("{kind}/x/{unit}", None),
            ("homie/{unit}/+/{node}", Some("pump")),
            ("homie/{unit}/#", Some("pump")),
        ]);
        assert_eq!(topics.filters(), ["units/+/+", "units/+", "+/x/+", "homie/+/#"]);
    }

    #[test]
    fn a_kind_is_heard_by_the_filters_of_its_templates_and_of_those_that_capture_it() {
        let templates = [
            ("units/{unit}/heartbeat", Some("detector")),
            ("{kind}/{site}/{unit}", None),
            ("a/{unit}", Some("pump")),
        ];
        let filters = topics(&templates).filters_of_kinds();
        assert_eq!(filters[&kind("detector")], ["units/+/heartbeat", "detector/+/+"]);
        assert_eq!(filters[&kind("pump")], ["pump/+/+", "a/+"]);
    }

    #[test]
    fn a_unit_is_named_by_the_captures_that_its_kind_says() {
        let named =
            |name: &str, of: &str| KindRules { name: of.parse().unwrap(), ..KindRules::new(kind(name)) };
        let rules =
            [named("pump", "{site}.{unit}"), named("detector", "{unit}"), named("slot", "{rack}:{slot}")];
        let rules: Rules = rules.into_iter().map(|rules| (rules.kind.clone(), rules)).collect();
        let templates =
            [("racks/{rack}/{slot}/{site}", Some(kind("slot"))), ("{kind}/{site}/{unit}/{room}", None)];
        let templates = templates.map(|(text, of)| Template::parse(text, of).unwrap());
        let topics = Topics::new(templates.to_vec(), Arc::new(rules).into());
        for (topic, unit, place) in [
            ("pump/north/1/a", Ok("pump:north.1"), vec!["room"]),
            ("pump/south/1/a", Ok("pump:south.1"), vec!["room"]),
            ("pump/a/b.c/a", Ok("pump:a.b.c"), vec!["room"]),
            ("pump/a.b/c/a", Err(Rejection::BadUnit), vec![]),
            ("pump//c/a", Err(Rejection::BadUnit), vec![]),
            ("detector/north/1/a", Ok("detector:1"), vec!["site", "room"]),
            ("racks/r1/7/north", Ok("slot:r1:7"), vec!["site"]),
        ] {
            let origin = topics.origin(topic, &mut PayloadIssues::default());
            let origin = origin.map_err(|(why, _)| why);
            let found = origin.as_ref().map(|origin| origin.unit.to_string());
            assert_eq!(found.map_err(|why| *why), unit.map(str::to_owned), "{topic}");
            let labels = origin.ok().and_then(|origin| origin.place).map_or(vec![], |place| {
                assert_eq!(&*place.topic, topic);
                place.labels.iter().map(|(label, _)| label.to_string()).collect()
            });
            assert_eq!(labels, place, "{topic}");
        }
    }

    #[test]
    fn topics_of_announcements_come_first_and_prove_no_hearing() {
        let words = StateWords::default();
        let presence = |format, topics: &[&str]| PresenceRules {
            format,
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            is_proof: true,
            settle: std::time::Duration::ZERO,
            planned: Planned::Ignore,
            bridge: None,
        };
        let (pump, detector) = (kind("pump"), kind("detector"));
        let of_both = [("units/{unit}/{x}", Some("pump")), ("d/{unit}", Some("detector"))];
        let last_will = presence(Format::LastWill(words), &["units/{unit}/status", "units/{unit}/{x}"]);
        let emqx = presence(Format::Emqx, Format::Emqx.topics());
        let topics = topics(&of_both).with_own_clients("rollcall-".to_owned());
        let topics =
            topics.with_presence(&pump, &last_will).unwrap().with_presence(&detector, &emqx).unwrap();
        let clients = "$SYS/brokers/+/clients/+/";
        let events = ["connected", "disconnected"].map(|event| format!("{clients}{event}"));
        assert_eq!(topics.filters(), [&events[0], &events[1], "units/+/+", "d/+"]);
        let FleetFilters { heartbeats, status, feeds } = topics.by_use();
        assert_eq!(heartbeats, ["units/+/+", "d/+"]);
        assert_eq!(status, ["units/+/status", &events[0], &events[1]]);
        assert!(feeds.is_empty());
        assert_eq!(topics.filters_of_kinds()[&detector], ["d/+"]);
        for (topic, has_presence, is_status, is_of_rollcall) in [
            ("units/1/status", true, true, false),
            ("units/1/data", true, false, false),
            ("d/1", false, false, false),
            ("$SYS/brokers/n/clients/c1/connected", true, true, false),
            ("$SYS/brokers/n/clients/rollcall-main/connected", true, true, true),
        ] {
            let origin = topics.origin(topic, &mut PayloadIssues::default()).unwrap();
            let is_own = origin.presence.as_ref().is_some_and(|it| topics.is_of_rollcall(&origin.unit, it));
            let found = (origin.presence.is_some(), origin.is_status, is_own);
            assert_eq!(found, (has_presence, is_status, is_of_rollcall), "{topic}");
        }
        assert!(Template::of_announcements("$share/g/{unit}", pump).is_err());
    }
}
