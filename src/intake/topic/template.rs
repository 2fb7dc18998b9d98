//! Topic templates: which topics fit, and what their levels name.

use crate::fleet::Rules;
use crate::presence::{Kind, PROBE, UnitName, is_label_name};

/// The probe topic of `#`: two levels, so that no filter with two `+` has the same one.
const PROBE_OF_REST: &str = "rollcall-probe/rollcall-rest";

/// Returns whether only probes, of this fleet or another, are published on this topic.
pub fn is_probe(topic: &str) -> bool {
    topic.contains(PROBE) && topic.split('/').any(|level| level == PROBE)
}

/// The topic of a filter's probe: it fits the filter, and no unit publishes on it.
pub fn probe_topic(filter: &str) -> String {
    let level = |level| match level {
        "+" => PROBE,
        "#" => PROBE_OF_REST,
        level => level,
    };
    filter.split('/').map(level).collect::<Vec<_>>().join("/")
}

/// The longest template, in bytes: what MQTT allows to a topic filter.
const MAX_BYTES: usize = 65_535;

/// The reason why a text is not a topic template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template has no `{unit}`, or several.
    #[error("has no {{unit}}, or several; write it exactly once, as in units/{{unit}}/heartbeat")]
    Unit,
    /// The template lacks a level for a part of the name of units.
    #[error("has no {{{capture}}}, and units are named {name:?}; write {{{capture}}} in place of a level")]
    Name {
        /// The missing part.
        capture: String,
        /// How units of the kind are named.
        name: String,
    },
    /// The template has `{unit}`, which is neither a label nor a part of the name of units.
    #[error(
        "has {{unit}}, and units are named {0:?}; write another name, or + for a level without a meaning"
    )]
    Unnamed(String),
    /// The template has no `{kind}` and belongs to no kind, has `{kind}` and belongs to one, or has it several times.
    #[error("a topic template captures {{kind}} once if it belongs to no kind, and not at all if it does")]
    Kind,
    /// A capture is neither `{unit}` nor `{kind}` nor the name of a label, or comes twice.
    #[error(
        "{{{0}}} is not allowed as a label: write each name once, with 1 to 32 letters, digits and _, not first a \
             digit; kind, unit, state, cause and transition are reserved"
    )]
    Label(String),
    /// A level has a wildcard, a `{` or a `}` inside, or control characters.
    #[error(
        "{0:?} is not allowed in a topic template: a level is literal text, one capture such as {{unit}}, or + for \
             any text"
    )]
    Level(String),
    /// A `#` stands before the last level.
    #[error("# stands for all levels that follow, so it is the last one; write + for a single level")]
    Rest,
    /// The template is empty, too long, or a topic that is not for devices (`$SYS`, Rollcall's own).
    #[error("a topic template is a topic for devices, not empty, not below $… or rollcall/…")]
    Topic,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Literal(Box<str>),
    Unit,
    Kind,
    Label(Box<str>),
    /// Any text, which is ignored.
    Any,
    /// All levels that follow, if any.
    Rest,
}

impl Level {
    fn parse(text: &str) -> Result<Level, TemplateError> {
        let bad = |c: char| c.is_control() || matches!(c, '+' | '#' | '{' | '}');
        match text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some("unit") => Ok(Level::Unit),
            Some("kind") => Ok(Level::Kind),
            Some(name) if is_label_name(name) => Ok(Level::Label(name.into())),
            Some(name) => Err(TemplateError::Label(name.to_owned())),
            None if text == "+" => Ok(Level::Any),
            None if text == "#" => Ok(Level::Rest),
            None if text.contains(bad) => Err(TemplateError::Level(text.to_owned())),
            None => Ok(Level::Literal(text.into())),
        }
    }
}

/// A parsed topic template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub(super) levels: Vec<Level>,
    pub(super) kind: Option<Kind>,
}

impl Template {
    /// Parses a template that belongs to `kind`, or that captures it.
    pub fn parse(text: &str, kind: Option<Kind>) -> Result<Template, TemplateError> {
        if text.starts_with('$') { Err(TemplateError::Topic) } else { Template::of_any(text, kind) }
    }

    /// Parses a template of announcements, which may also be on topics of the broker: `$SYS/…`.
    pub fn of_announcements(text: &str, kind: Kind) -> Result<Template, TemplateError> {
        let is_share = text.starts_with("$share/");
        if is_share { Err(TemplateError::Topic) } else { Template::of_any(text, Some(kind)) }
    }

    fn of_any(text: &str, kind: Option<Kind>) -> Result<Template, TemplateError> {
        let own = text.split('/').next() == Some("rollcall");
        if text.is_empty() || text.len() > MAX_BYTES || own {
            return Err(TemplateError::Topic);
        }
        let levels = text.split('/').map(Level::parse).collect::<Result<Vec<Level>, _>>()?;
        let count = |wanted: &Level| levels.iter().filter(|level| *level == wanted).count();
        if count(&Level::Unit) > 1 {
            return Err(TemplateError::Unit);
        }
        if count(&Level::Kind) != usize::from(kind.is_none()) {
            return Err(TemplateError::Kind);
        }
        if levels.iter().rev().skip(1).any(|level| *level == Level::Rest) {
            return Err(TemplateError::Rest);
        }
        for level in &levels {
            if let Level::Label(name) = level
                && count(level) > 1
            {
                return Err(TemplateError::Label(name.to_string()));
            }
        }
        Ok(Template { levels, kind })
    }

    /// Checks that the template captures all parts of the name of units.
    ///
    /// # Errors
    /// A capture is missing, or `{unit}` is not part of the name.
    pub fn check_name(&self, name: &UnitName) -> Result<(), TemplateError> {
        let missing = name.captures().find(|capture| self.level_of(capture).is_none());
        match missing {
            Some("unit") if name.is_plain() => Err(TemplateError::Unit),
            Some(capture) => Err(TemplateError::Name { capture: capture.to_owned(), name: name.to_string() }),
            None if self.levels.contains(&Level::Unit) && !name.has("unit") => {
                Err(TemplateError::Unnamed(name.to_string()))
            }
            None => Ok(()),
        }
    }

    /// Returns whether the template may name units of the kind.
    pub fn is_of(&self, kind: &Kind) -> bool {
        self.kind.as_ref().is_none_or(|own| own == kind)
    }

    /// The labels that are not part of the name of units, each with its level.
    pub fn labels_beside(&self, name: &UnitName) -> Vec<(Box<str>, usize)> {
        let label = |(at, level): (usize, &Level)| match level {
            Level::Label(label) if !name.has(label) => Some((label.clone(), at)),
            _ => None,
        };
        self.levels.iter().enumerate().filter_map(label).collect()
    }

    fn level_of(&self, capture: &str) -> Option<usize> {
        self.levels.iter().position(|level| match level {
            Level::Unit => capture == "unit",
            Level::Label(label) => **label == *capture,
            _ => false,
        })
    }

    /// The text of a capture in the topic, if the template has it.
    pub(super) fn capture<'a>(&self, capture: &str, topic: &'a str) -> &'a str {
        self.level_of(capture).and_then(|at| topic.split('/').nth(at)).unwrap_or_default()
    }

    /// A topic that the template fits, for people.
    pub fn example(&self) -> String {
        let level = |level: &Level| match level {
            Level::Literal(text) => text.to_string(),
            Level::Unit => "pump-7".to_owned(),
            Level::Kind => self.kind.as_ref().map_or("pump".to_owned(), Kind::to_string),
            Level::Label(name) => format!("{name}-1"),
            Level::Any | Level::Rest => "any".to_owned(),
        };
        self.levels.iter().map(level).collect::<Vec<_>>().join("/")
    }

    /// The subscription filter that covers the topics of the template.
    pub fn filter(&self) -> String {
        self.filter_of(None)
    }

    /// The subscription filter with `kind` in place of `{kind}`.
    fn filter_of(&self, kind: Option<&Kind>) -> String {
        let level = |level: &Level| match level {
            Level::Literal(text) => text.to_string(),
            Level::Kind => kind.map_or("+".to_owned(), Kind::to_string),
            Level::Unit | Level::Label(_) | Level::Any => "+".to_owned(),
            Level::Rest => "#".to_owned(),
        };
        self.levels.iter().map(level).collect::<Vec<_>>().join("/")
    }

    /// The kinds that the template covers, each with the filter that covers only their topics.
    pub(super) fn filters_of(&self, kinds: &Rules) -> Vec<(Kind, String)> {
        let kinds = kinds.keys().filter(|kind| self.is_of(kind));
        kinds.map(|kind| (kind.clone(), self.filter_of(Some(kind)))).collect()
    }

    /// A topic that fits the template and on which no unit publishes; `kind` is for a template that captures it.
    pub fn probe(&self, kind: Option<&Kind>) -> String {
        probe_topic(&self.filter_of(kind))
    }

    pub(super) fn fits(&self, topic: &str) -> bool {
        let mut levels = topic.split('/');
        for level in &self.levels {
            match (level, levels.next()) {
                (Level::Rest, _) => return true,
                (_, None) => return false,
                (Level::Literal(text), Some(level)) if **text != *level => return false,
                _ => {}
            }
        }
        levels.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::covers;

    fn kind(name: &str) -> Kind {
        name.parse().unwrap()
    }

    #[test]
    fn the_probe_of_a_template_fits_it_and_each_filter_has_its_own() {
        let texts =
            ["a/{unit}", "a/{unit}/+", "a/{unit}/#", "a/{unit}/+/+", "a/{unit}/+/+/#", "+/{unit}/{x}/b"];
        let templates = texts.map(|text| Template::parse(text, Some(kind("pump"))).unwrap());
        let mut probes: Vec<String> = Vec::new();
        for template in &templates {
            let probe = template.probe(None);
            assert!(
                template.fits(&probe) && covers(&template.filter(), &probe) && is_probe(&probe),
                "{probe}"
            );
            assert!(!probes.contains(&probe), "{probe}");
            probes.push(probe);
        }
        let shared = Template::parse("{kind}/{unit}/#", None).unwrap();
        assert_eq!(shared.probe(Some(&kind("pump"))), "pump/rollcall-probe/rollcall-probe/rollcall-rest");
    }

    #[test]
    fn an_example_fits_its_template() {
        for (text, example) in [
            ("units/{unit}/heartbeat", "units/pump-7/heartbeat"),
            ("sites/{site}/+/{unit}/#", "sites/site-1/any/pump-7/any"),
        ] {
            let template = Template::parse(text, Some(kind("pump"))).unwrap();
            assert_eq!(template.example(), example);
            assert!(template.fits(example));
        }
    }

    #[test]
    fn a_template_captures_what_names_units() {
        let cases = [
            ("units/{unit}", "{unit}", Ok(())),
            ("units/heartbeat", "{unit}", Err(TemplateError::Unit)),
            ("+/#", "{unit}", Err(TemplateError::Unit)),
            ("{site}/{unit}", "{site}.{unit}", Ok(())),
            ("{site}/{rack}", "{site}.{rack}", Ok(())),
            (
                "units/{unit}",
                "{site}.{unit}",
                Err(TemplateError::Name { capture: "site".into(), name: "{site}.{unit}".into() }),
            ),
            ("{site}/{unit}", "{site}", Err(TemplateError::Unnamed("{site}".into()))),
        ];
        for (text, name, expected) in cases {
            let template = Template::parse(text, Some(kind("pump"))).unwrap();
            assert_eq!(template.check_name(&name.parse().unwrap()), expected, "{text} {name}");
        }
    }

    #[test]
    fn a_bad_template_says_what_a_good_one_is() {
        let cases = [
            ("{unit}/{unit}", Some("pump"), TemplateError::Unit),
            ("units/{unit}", None, TemplateError::Kind),
            ("{kind}/{unit}", Some("pump"), TemplateError::Kind),
            ("{kind}/{kind}/{unit}", None, TemplateError::Kind),
            ("{a-b}/{unit}", Some("pump"), TemplateError::Label("a-b".into())),
            ("{transition}/{unit}", Some("pump"), TemplateError::Label("transition".into())),
            ("{}/{unit}", Some("pump"), TemplateError::Label("".into())),
            ("{a}/{a}/{unit}", Some("pump"), TemplateError::Label("a".into())),
            ("u-{unit}", Some("pump"), TemplateError::Level("u-{unit}".into())),
            ("a+/{unit}", Some("pump"), TemplateError::Level("a+".into())),
            ("{unit}/a#", Some("pump"), TemplateError::Level("a#".into())),
            ("{unit}/#/a", Some("pump"), TemplateError::Rest),
            ("#/{unit}", Some("pump"), TemplateError::Rest),
            ("a\u{0}/{unit}", Some("pump"), TemplateError::Level("a\u{0}".into())),
            ("", Some("pump"), TemplateError::Topic),
            ("$share/x/{unit}", Some("pump"), TemplateError::Topic),
            ("rollcall/{unit}", Some("pump"), TemplateError::Topic),
        ];
        for (text, of, why) in cases {
            assert_eq!(Template::parse(text, of.map(kind)).unwrap_err(), why, "{text:?}");
        }
    }
}
