//! The parameters of requests for alerts and silences.

use std::collections::HashMap;

use axum::http::Uri;
use parking_lot::Mutex;
use url::form_urlencoded;

use crate::http::expressions::{compiled, matchers};
use crate::http::http_error::HttpError;
use crate::routing::{Matcher, Operator};

/// The alerts that a request asks for.
pub(super) struct AlertFilter {
    /// The answer includes alerts that are neither silenced nor inhibited.
    pub active: bool,
    pub silenced: bool,
    pub inhibited: bool,
    /// Matchers that an alert has to match, all of them.
    pub matchers: Vec<Matcher>,
    /// A matcher of receiver names: at least one receiver of the alert has to match it.
    receiver: Option<Matcher>,
    /// The results of `receiver` by name, so that each name is compared once.
    compared: Mutex<HashMap<String, bool>>,
}

impl AlertFilter {
    pub async fn of(uri: &Uri) -> Result<AlertFilter, HttpError> {
        let (active, silenced, inhibited) = (true, true, true);
        let (none, compared) = (Vec::new(), Mutex::default());
        let mut filter =
            AlertFilter { active, silenced, inhibited, matchers: none, receiver: None, compared };
        let (mut filters, mut wanted) = (Vec::new(), None);
        for (name, value) in pairs(uri) {
            match name.as_str() {
                "active" => filter.active = flag(&name, &value)?,
                "silenced" => filter.silenced = flag(&name, &value)?,
                "inhibited" => filter.inhibited = flag(&name, &value)?,
                "filter" => filters.push(value),
                // As in Alertmanager, an empty value sets no filter.
                "receiver" if value.is_empty() => {}
                // If the parameter is repeated, the last value counts, and only that one is compiled.
                "receiver" => wanted = Some(value),
                // Rollcall has no muted or unprocessed alerts; and as in Alertmanager, other parameters are ignored.
                _ => {}
            }
        }
        filter.matchers = matchers(filters, "filter").await?;
        if let Some(expression) = wanted {
            filter.receiver = Some(compiled(move || receiver(expression)).await?);
        }
        Ok(filter)
    }

    pub fn takes_receiver(&self, name: &str) -> bool {
        let Some(receiver) = &self.receiver else { return true };
        let mut compared = self.compared.lock();
        match compared.get(name) {
            Some(takes) => *takes,
            None => *compared.entry(name.to_owned()).or_insert_with(|| receiver.is_match(name)),
        }
    }

    /// Returns whether the filter selects alerts of these receivers.
    pub fn takes_receivers(&self, names: &[&str]) -> bool {
        self.receiver.is_none() || names.iter().any(|name| self.takes_receiver(name))
    }
}

/// The matchers in the parameters `filter`.
pub(super) async fn silence_filter(uri: &Uri) -> Result<Vec<Matcher>, HttpError> {
    let filters = pairs(uri).filter(|(name, _)| name == "filter").map(|(_, value)| value);
    matchers(filters.collect(), "filter").await
}

fn pairs(uri: &Uri) -> impl Iterator<Item = (String, String)> {
    let query = uri.query().unwrap_or_default();
    form_urlencoded::parse(query.as_bytes()).map(|(name, value)| (name.into_owned(), value.into_owned()))
}

/// Reads a flag: an empty value means the default, true; other values are the words that Alertmanager accepts for true
/// and false.
fn flag(name: &str, value: &str) -> Result<bool, HttpError> {
    match value.to_ascii_lowercase().as_str() {
        "" | "true" | "1" | "t" | "yes" | "y" | "on" => Ok(true),
        "false" | "0" | "f" | "no" | "n" | "off" => Ok(false),
        _ => Err(HttpError::bad_request(format!("{name} is true or false"))),
    }
}

fn receiver(expression: String) -> Result<Matcher, HttpError> {
    let matcher = Matcher::new("receiver".to_owned(), Operator::Matches, expression);
    matcher.map_err(|error| HttpError::bad_request(format!("receiver: {error}")))
}
