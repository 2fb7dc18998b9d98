//! An alert silence in the form of Alertmanager.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::presence::Labels;
use crate::routing::alert_silence::{MAX_MATCHERS, MAX_MATCHERS_BYTES, SilenceError, SilenceRequest};
use crate::routing::{AlertSilence, Matcher, Operator, SilenceId};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiMatcher {
    name: String,
    value: String,
    is_regex: bool,
    /// Absent or null means true.
    is_equal: Option<bool>,
}

impl ApiMatcher {
    fn of(matcher: &Matcher) -> ApiMatcher {
        let operator = matcher.operator();
        ApiMatcher {
            name: matcher.name().to_owned(),
            value: matcher.value().to_owned(),
            is_regex: matches!(operator, Operator::Matches | Operator::MatchesNot),
            is_equal: Some(matches!(operator, Operator::Equal | Operator::Matches)),
        }
    }

    fn matcher(self) -> Result<Matcher, String> {
        let operator = match (self.is_regex, self.is_equal.unwrap_or(true)) {
            (false, true) => Operator::Equal,
            (false, false) => Operator::NotEqual,
            (true, true) => Operator::Matches,
            (true, false) => Operator::MatchesNot,
        };
        if self.name.is_empty() {
            return Err("a matcher needs the name of a label".to_owned());
        }
        let value = self.value[..self.value.floor_char_boundary(200)].to_owned();
        Matcher::new(self.name, operator, self.value).map_err(|error| format!("{value:?}: {error}"))
    }
}

fn matchers(all: Vec<ApiMatcher>) -> Result<Vec<Matcher>, String> {
    // Check the length before the first expression is compiled.
    let length: usize = all.iter().map(|one| one.name.len() + one.value.len()).sum();
    if all.len() > MAX_MATCHERS || length > MAX_MATCHERS_BYTES {
        return Err(SilenceError::LongMatchers.to_string());
    }
    all.into_iter().map(ApiMatcher::matcher).collect()
}

/// An alert silence as it is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ApiSilence {
    id: SilenceId,
    status: SilenceStatus,
    updated_at: Timestamp,
    matchers: Vec<ApiMatcher>,
    starts_at: Timestamp,
    ends_at: Timestamp,
    created_by: String,
    comment: String,
    /// Always empty: alert silences of Rollcall have no annotations.
    annotations: Labels,
}

#[derive(Serialize)]
struct SilenceStatus {
    state: &'static str,
}

impl ApiSilence {
    pub fn of(silence: &AlertSilence, now: Timestamp) -> ApiSilence {
        ApiSilence {
            id: silence.id,
            status: SilenceStatus { state: silence.state(now).as_str() },
            updated_at: silence.updated_at,
            matchers: silence.matchers.iter().map(ApiMatcher::of).collect(),
            starts_at: silence.starts_at,
            ends_at: silence.ends_at,
            created_by: silence.author.clone(),
            comment: silence.comment.clone(),
            annotations: Labels::new(),
        }
    }
}

/// An alert silence as it is added or changed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AlertmanagerSilence {
    /// Empty, absent or null: the request adds a new silence.
    id: Option<String>,
    matchers: Vec<ApiMatcher>,
    starts_at: Timestamp,
    ends_at: Timestamp,
    created_by: String,
    comment: String,
}

impl AlertmanagerSilence {
    pub fn wanted(self) -> Result<(Option<SilenceId>, SilenceRequest), String> {
        let id = match self.id.as_deref() {
            None | Some("") => None,
            Some(id) => Some(id.parse().map_err(|error| format!("{id:?}: {error}"))?),
        };
        let wanted = SilenceRequest {
            matchers: matchers(self.matchers)?,
            starts_at: self.starts_at,
            ends_at: self.ends_at,
            author: self.created_by,
            comment: self.comment,
        };
        Ok((id, wanted))
    }
}

/// The answer to an [`AlertmanagerSilence`].
#[derive(Serialize)]
pub(super) struct Posted {
    /// The id of the alert silence that is in force.
    #[serde(rename = "silenceID")]
    pub id: SilenceId,
}
