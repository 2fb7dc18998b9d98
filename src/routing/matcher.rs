//! A condition on one label of a silence.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::compiled::{Compiled, ExpressionOrigin};
use crate::presence::{Cause, OfflineRecord, Transition, is_label_name};

/// How a matcher compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Equal,
    NotEqual,
    Matches,
    MatchesNot,
}

impl Operator {
    /// The longer operators first, in the order of the search.
    pub const ALL: [Operator; 4] =
        [Operator::Matches, Operator::MatchesNot, Operator::NotEqual, Operator::Equal];

    pub fn as_str(self) -> &'static str {
        match self {
            Operator::Equal => "=",
            Operator::NotEqual => "!=",
            Operator::Matches => "=~",
            Operator::MatchesNot => "!~",
        }
    }
}

/// `site="north"`, `kind=~"gate.*"`.
#[derive(Clone, Debug)]
pub struct Matcher {
    name: String,
    operator: Operator,
    value: String,
    /// The value as an anchored expression.
    expression: Option<Arc<Compiled>>,
}

impl Matcher {
    /// A matcher of a request.
    ///
    /// # Errors
    /// The expression does not compile, or expressions take too much memory already.
    pub fn new(name: String, operator: Operator, value: String) -> Result<Matcher, String> {
        Matcher::of(name, operator, value, ExpressionOrigin::Request)
    }

    /// A matcher of the configuration or of the store. It counts in the budget of expressions and is never refused by
    /// it.
    ///
    /// # Errors
    /// The expression does not compile.
    pub fn in_force(name: String, operator: Operator, value: String) -> Result<Matcher, String> {
        Matcher::of(name, operator, value, ExpressionOrigin::InForce)
    }

    fn of(
        name: String,
        operator: Operator,
        value: String,
        origin: ExpressionOrigin,
    ) -> Result<Matcher, String> {
        let is_expression = matches!(operator, Operator::Matches | Operator::MatchesNot);
        let expression = is_expression.then(|| Compiled::of(&value, origin)).transpose()?;
        Ok(Matcher { name, operator, value, expression })
    }

    /// Whether the value is an expression.
    pub fn has_expression(&self) -> bool {
        self.expression.is_some()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// The text or the expression, as it is written.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The values that its label can have, if none of them is the one that it names, or matches its expression: then
    /// it takes all silences, or none.
    pub fn names_no_value_of(&self) -> Option<Vec<&'static str>> {
        let values: Vec<&str> = match self.name.as_str() {
            UNUSUAL => vec!["true", "false"],
            "state" => vec!["offline", "online"],
            "cause" => Cause::ALL.map(Cause::as_str).to_vec(),
            _ => return None,
        };
        let is_named = |value: &&str| match &self.expression {
            Some(expression) => expression.is_match(value),
            None => **value == self.value,
        };
        (!values.iter().any(is_named)).then_some(values)
    }

    /// Whether a value of the label matches; a missing label is empty.
    pub fn is_match(&self, value: &str) -> bool {
        match (self.operator, &self.expression) {
            (Operator::NotEqual, _) => value != self.value,
            (Operator::MatchesNot, Some(expression)) => !expression.is_match(value),
            (_, Some(expression)) => expression.is_match(value),
            _ => value == self.value,
        }
    }

    /// Whether a silence matches.
    pub fn takes(&self, record: &OfflineRecord) -> bool {
        self.is_match(self.label(record))
    }

    /// The value of the label that is compared; empty if there is none.
    pub fn label<'a>(&self, record: &'a OfflineRecord) -> &'a str {
        label(record, &self.name)
    }
}

impl PartialEq for Matcher {
    fn eq(&self, other: &Matcher) -> bool {
        (&self.name, self.operator, &self.value) == (&other.name, other.operator, &other.value)
    }
}

/// Writes one spelling, whatever the spelling in the configuration. A reader of matchers reads the same matcher from
/// it.
impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = self.name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_')
            && !self.name.starts_with(|c: char| c.is_ascii_digit());
        let name = if is_plain { Cow::Borrowed(&*self.name) } else { Cow::Owned(quoted(&self.name)) };
        write!(f, "{name}{}{}", self.operator.as_str(), quoted(&self.value))
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// The name that a matcher has for unusual silences.
pub(super) const UNUSUAL: &str = "unusual";

/// Whether a route or a rule may compare a value of this name: a label of units, or a label that Rollcall gives.
pub(super) fn is_matcher_name(name: &str) -> bool {
    matches!(name, "kind" | "unit" | "cause" | "state" | UNUSUAL) || is_label_name(name)
}

/// The value of a label, `kind`, `unit`, `cause`, `state` or `unusual`; empty if there is none.
pub(super) fn label<'a>(record: &'a OfflineRecord, name: &str) -> &'a str {
    match (name, record.labels.get(name)) {
        ("kind", _) => record.kind.as_str(),
        ("unit", _) => record.unit.as_str(),
        // The value as pages show it: operators build alert silences from these labels.
        (_, Some(value)) => value,
        ("cause", None) => record.cause.as_str(),
        (UNUSUAL, None) if record.is_unusual() => "true",
        (UNUSUAL, None) => "false",
        ("state", None) if record.is_unusual() => "online",
        ("state", None) => match record.transition() {
            Transition::Offline => "offline",
            Transition::Online => "online",
        },
        (_, None) => "",
    }
}
