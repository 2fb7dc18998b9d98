//! The parameters of requests for alerts and silences.

use axum::http::Uri;
use url::form_urlencoded;

use crate::http::problem::Problem;
use crate::routing::alert_silence::MAX_MATCHERS;
use crate::routing::{Matcher, Operator, parse_label_matchers};

/// The alerts that a request asks for.
pub(super) struct AlertFilter {
    /// Alerts that are neither silenced nor inhibited.
    pub active: bool,
    pub silenced: bool,
    pub inhibited: bool,
    /// All of them match.
    pub matchers: Vec<Matcher>,
    /// One of the receivers matches it.
    receiver: Option<Matcher>,
}

impl AlertFilter {
    pub fn of(uri: &Uri) -> Result<AlertFilter, Problem> {
        let (active, silenced, inhibited) = (true, true, true);
        let mut filter = AlertFilter { active, silenced, inhibited, matchers: Vec::new(), receiver: None };
        for (name, value) in pairs(uri) {
            match name.as_str() {
                "active" => filter.active = flag(&name, &value)?,
                "silenced" => filter.silenced = flag(&name, &value)?,
                "inhibited" => filter.inhibited = flag(&name, &value)?,
                "filter" => add_matchers(&mut filter.matchers, &value)?,
                // As in Alertmanager an empty one is none.
                "receiver" if value.is_empty() => {}
                "receiver" => filter.receiver = Some(receiver(value)?),
                // No alert is muted or unprocessed; and as in Alertmanager others are ignored.
                _ => {}
            }
        }
        Ok(filter)
    }

    pub fn takes_receiver(&self, name: &str) -> bool {
        self.receiver.as_ref().is_none_or(|receiver| receiver.is_match(name))
    }

    /// Whether alerts of these receivers are asked for.
    pub fn takes_receivers(&self, names: &[&str]) -> bool {
        self.receiver.is_none() || names.iter().any(|name| self.takes_receiver(name))
    }
}

/// The matchers in the parameters `filter`.
pub(super) fn silence_filter(uri: &Uri) -> Result<Vec<Matcher>, Problem> {
    let mut all = Vec::new();
    for (_, value) in pairs(uri).filter(|(name, _)| name == "filter") {
        add_matchers(&mut all, &value)?;
    }
    Ok(all)
}

fn pairs(uri: &Uri) -> impl Iterator<Item = (String, String)> {
    let query = uri.query().unwrap_or_default();
    form_urlencoded::parse(query.as_bytes()).map(|(name, value)| (name.into_owned(), value.into_owned()))
}

/// An empty value is the default, which is true; others are the words that Alertmanager takes for true, and those for
/// false.
fn flag(name: &str, value: &str) -> Result<bool, Problem> {
    match value.to_ascii_lowercase().as_str() {
        "" | "true" | "1" | "t" | "yes" | "y" | "on" => Ok(true),
        "false" | "0" | "f" | "no" | "n" | "off" => Ok(false),
        _ => Err(Problem::bad_request(format!("{name} is true or false"))),
    }
}

fn add_matchers(all: &mut Vec<Matcher>, text: &str) -> Result<(), Problem> {
    let matchers = parse_label_matchers(text)
        .map_err(|error| Problem::bad_request(format!("filter {text:?}: {error}")))?;
    all.extend(matchers);
    if all.len() > MAX_MATCHERS {
        return Err(Problem::bad_request(format!("a filter has at most {MAX_MATCHERS} matchers")));
    }
    Ok(())
}

fn receiver(expression: String) -> Result<Matcher, Problem> {
    let matcher = Matcher::new("receiver".to_owned(), Operator::Matches, expression);
    matcher.map_err(|error| Problem::bad_request(format!("receiver: {error}")))
}
