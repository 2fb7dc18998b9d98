//! Which parts of a topic name a unit: `{site}.{unit}`.
//!
//! # Why a capture may not hold the text after it
//! With `{site}.{unit}`, the site `a.b` with the unit `c` would have the same id as the site `a` with the unit `b.c`:
//! one of two devices would never be missed. So each capture ends where the text after it first occurs. Then only one
//! set of captures gives an id, and [`UnitName::parts`] reads its captures back. The last capture may hold anything.

use std::str::FromStr;

use super::{MAX_ID, NameError, UnitId, is_label_name, may_stand_in_topic};

/// The captures and texts that make the id of a unit, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitName {
    /// The text before the first capture.
    begin: Box<str>,
    /// Each capture with the text after it.
    captures: Vec<(Box<str>, Box<str>)>,
}

/// Why a text does not name units.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitNameError {
    #[error("has no capture; write {{unit}}, or for example {{site}}.{{unit}}")]
    NoCapture,
    /// Two captures with nothing between them, or one capture twice.
    #[error("write each capture once, with a text between two captures, as in {{site}}.{{unit}}")]
    Together,
    /// A capture is neither `{unit}` nor the name of a label, or a brace stands alone.
    #[error(
        "{0:?} is no capture; write {{unit}} or the name of a label of the topics in braces, as in {{site}}.{{unit}}"
    )]
    Capture(String),
    /// The text between captures is not allowed in an id.
    #[error(
        "{0:?} is not allowed in an id; write text without /, +, # and control characters, such as a dot"
    )]
    Text(String),
}

/// Why a topic names no unit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComposeError {
    /// A capture holds the text after it.
    #[error("{{{capture}}} has {text:?}, which ends that part of the id: two devices could get one id")]
    Ambiguous { capture: String, text: String },
    #[error("{{{0}}} is empty")]
    Empty(String),
    #[error(transparent)]
    Id(#[from] NameError),
}

impl Default for UnitName {
    fn default() -> UnitName {
        UnitName { begin: "".into(), captures: vec![("unit".into(), "".into())] }
    }
}

impl FromStr for UnitName {
    type Err = UnitNameError;

    fn from_str(text: &str) -> Result<UnitName, UnitNameError> {
        let mut parts = text.split('{');
        let begin = parts.next().unwrap_or_default();
        let mut captures: Vec<(Box<str>, Box<str>)> = Vec::new();
        for part in parts {
            let (name, after) =
                part.split_once('}').ok_or_else(|| UnitNameError::Capture(part.to_owned()))?;
            if name != "unit" && !is_label_name(name) {
                return Err(UnitNameError::Capture(name.to_owned()));
            }
            let is_joined = captures.last().is_some_and(|(_, between)| between.is_empty());
            if is_joined || captures.iter().any(|(known, _)| **known == *name) {
                return Err(UnitNameError::Together);
            }
            captures.push((name.into(), after.into()));
        }
        let is_bad = |text: &&str| text.contains(['/', '}']) || !may_stand_in_topic(text);
        let mut texts = std::iter::once(begin).chain(captures.iter().map(|(_, after)| &**after));
        if let Some(text) = texts.find(is_bad) {
            return Err(UnitNameError::Text(text.to_owned()));
        }
        if captures.is_empty() {
            return Err(UnitNameError::NoCapture);
        }
        Ok(UnitName { begin: begin.into(), captures })
    }
}

impl UnitName {
    /// Whether the capture is a part of the name.
    pub fn has(&self, capture: &str) -> bool {
        self.captures().any(|own| own == capture)
    }

    /// The names of the captures.
    pub fn captures(&self) -> impl Iterator<Item = &str> {
        self.captures.iter().map(|(name, _)| &**name)
    }

    /// Whether the id is `{unit}` and nothing else.
    pub fn is_plain(&self) -> bool {
        self.begin.is_empty()
            && matches!(&self.captures[..], [(name, after)] if &**name == "unit" && after.is_empty())
    }

    /// The id of the unit with these captures.
    pub fn compose<'a>(&self, capture: impl Fn(&str) -> &'a str) -> Result<UnitId, ComposeError> {
        let mut id = String::with_capacity(MAX_ID);
        id.push_str(&self.begin);
        for (at, (name, after)) in self.captures.iter().enumerate() {
            let (from, value) = (id.len(), capture(name));
            if value.is_empty() {
                return Err(ComposeError::Empty(name.to_string()));
            }
            id.push_str(value);
            id.push_str(after);
            let is_last = at + 1 == self.captures.len();
            if !is_last && id[from..].find(&**after) != Some(value.len()) {
                return Err(ComposeError::Ambiguous { capture: name.to_string(), text: after.to_string() });
            }
        }
        Ok(id.parse()?)
    }

    /// The captures of an id, each with its name; `None` if no topic gives this id.
    pub fn parts<'a>(&'a self, id: &'a str) -> Option<Vec<(&'a str, &'a str)>> {
        let mut rest = id.strip_prefix(&*self.begin)?;
        let mut parts = Vec::with_capacity(self.captures.len());
        for (at, (name, after)) in self.captures.iter().enumerate() {
            let is_last = at + 1 == self.captures.len();
            let (value, next) = match is_last {
                true => (rest.strip_suffix(&**after)?, ""),
                false => rest.split_once(&**after)?,
            };
            if value.is_empty() {
                return None;
            }
            parts.push((&**name, value));
            rest = next;
        }
        Some(parts)
    }
}

impl std::fmt::Display for UnitName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.begin)?;
        self.captures.iter().try_for_each(|(name, after)| write!(f, "{{{name}}}{after}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compose(name: &str, captures: &[(&str, &str)]) -> Result<String, ComposeError> {
        let name: UnitName = name.parse().unwrap();
        let value = |capture: &str| captures.iter().find(|(one, _)| *one == capture).unwrap().1;
        name.compose(value).map(|id| id.to_string())
    }

    #[test]
    fn an_id_is_made_of_captures_and_texts_in_one_way_only() {
        let of = |site, unit| compose("{site}.{unit}", &[("site", site), ("unit", unit)]);
        let ambiguous = Err(ComposeError::Ambiguous { capture: "site".into(), text: ".".into() });
        assert_eq!(of("north", "pump-1"), Ok("north.pump-1".to_owned()));
        assert_eq!(of("a", "b.c"), Ok("a.b.c".to_owned()));
        assert_eq!(of("a.b", "c"), ambiguous);
        assert_eq!(of("", "c"), Err(ComposeError::Empty("site".into())));
        assert_eq!(of("a", ""), Err(ComposeError::Empty("unit".into())));
        assert_eq!(of("a", "b+"), Err(ComposeError::Id(NameError::BadId)));
        assert_eq!(of(&"x".repeat(100), &"y".repeat(28)), Err(ComposeError::Id(NameError::LongId)));

        // A text of two characters may also begin in the capture before it.
        let of = |a, b| compose("{a}--{b}", &[("a", a), ("b", b)]);
        assert_eq!(of("x", "-y"), Ok("x---y".to_owned()));
        assert!(of("x-", "y").is_err());
        assert_eq!(compose("u-{unit}-x", &[("unit", "1-x-x")]), Ok("u-1-x-x-x".to_owned()));
    }

    #[test]
    fn two_topics_that_make_one_id_have_the_same_captures() {
        let texts: Vec<String> = (1..=3)
            .flat_map(|length| (0..3_usize.pow(length)).map(move |n| (length, n)))
            .map(|(length, n)| (0..length).map(|at| ['a', '-', '.'][n / 3_usize.pow(at) % 3]).collect())
            .collect();
        for name in ["{a}.{b}", "{a}--{b}", "-{a}-.{b}--", "{a}a{b}"] {
            let parsed: UnitName = name.parse().unwrap();
            let mut made = std::collections::HashMap::new();
            for (a, b) in texts.iter().flat_map(|a| texts.iter().map(move |b| (a, b))) {
                let Ok(id) = compose(name, &[("a", a), ("b", b)]) else { continue };
                assert_eq!(
                    parsed.parts(&id).unwrap(),
                    [("a", a.as_str()), ("b", b.as_str())],
                    "{name}: {id}"
                );
                assert_eq!(made.insert(id.clone(), (a, b)), None, "{name}: {id}");
            }
            assert!(made.len() > 100);
        }
    }

    #[test]
    fn an_id_that_no_topic_makes_has_no_parts() {
        let name: UnitName = "s-{site}.{unit}".parse().unwrap();
        for (id, expected) in [
            ("s-north.7", Some(vec![("site", "north"), ("unit", "7")])),
            ("s-north.7.8", Some(vec![("site", "north"), ("unit", "7.8")])),
            ("north.7", None),
            ("s-north", None),
            ("s-.7", None),
            ("s-north.", None),
        ] {
            assert_eq!(name.parts(id), expected, "{id}");
        }
        assert_eq!(UnitName::default().parts("a.b"), Some(vec![("unit", "a.b")]));
    }

    #[test]
    fn a_name_has_captures_with_texts_between_them() {
        for text in ["{unit}", "{site}.{unit}", "{site}:{row}:{unit}", "u-{unit}-x", "{rack} {slot}"] {
            assert_eq!(text.parse::<UnitName>().unwrap().to_string(), text);
        }
        assert!(UnitName::default().is_plain() && !"u{unit}".parse::<UnitName>().unwrap().is_plain());
        for (text, why) in [
            ("", UnitNameError::NoCapture),
            ("unit", UnitNameError::NoCapture),
            ("{site}{unit}", UnitNameError::Together),
            ("{unit}.{unit}", UnitNameError::Together),
            ("{kind}.{unit}", UnitNameError::Capture("kind".into())),
            ("{a-b}", UnitNameError::Capture("a-b".into())),
            ("{unit", UnitNameError::Capture("unit".into())),
            ("unit}.{site}", UnitNameError::Text("unit}.".into())),
            ("{site}/{unit}", UnitNameError::Text("/".into())),
            ("{site}+{unit}", UnitNameError::Text("+".into())),
        ] {
            assert_eq!(text.parse::<UnitName>().unwrap_err(), why, "{text:?}");
        }
    }
}
