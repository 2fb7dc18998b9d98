//! Timers in pages, by moment and id.

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use serde::Deserialize;

use super::TimersState;
use super::shown::{ShownTimer, TimersPage, from_cursor, to_cursor};
use crate::clock::Timestamp;
use crate::http::http_error::{HttpError, page_limit, query};
use crate::presence::{TimerError, TimerState, TimerType};
use crate::store::FindTimers;

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;
/// The most reads of the engine for one page, because a read may find few matching timers.
const LOOKS: usize = 10;

/// The query of a URL of timers.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct TimersQuery {
    /// Types, with commas between them.
    pub r#type: Option<String>,
    /// States, with commas between them.
    pub state: Option<String>,
    /// Only timers that are due at or after this moment.
    pub from: Option<Timestamp>,
    /// Only timers that are due before this moment.
    pub until: Option<Timestamp>,
    pub limit: Option<usize>,
    pub cursor: Option<String>,
}

impl TimersQuery {
    /// The selected list, and the most timers of a page.
    fn read(&self) -> Result<(FindTimers, usize), HttpError> {
        let limit = page_limit(self.limit, DEFAULT_LIMIT, MAX_LIMIT)?;
        let wrong =
            |name: &'static str| move |error: TimerError| HttpError::bad_request(format!("{name}: {error}"));
        let words =
            |text: &Option<String>| text.as_deref().map(|text| text.split(',').map(str::to_owned).collect());
        let words = |text| -> Vec<String> { words(text).unwrap_or_default() };
        let types = words(&self.r#type).iter().map(|one| one.parse()).collect::<Result<Vec<TimerType>, _>>();
        let states = words(&self.state).iter().map(|one| one.parse()).collect::<Result<Vec<TimerState>, _>>();
        let after = self.cursor.as_deref().map(from_cursor).transpose()?;
        let (types, states) = (types.map_err(wrong("type"))?, states.map_err(wrong("state"))?);
        Ok((FindTimers { types, states, from: self.from, until: self.until, after }, limit))
    }
}

pub(super) async fn list(State(state): State<TimersState>, uri: Uri) -> Result<Json<TimersPage>, HttpError> {
    Ok(Json(state.page(&query(&uri)?).await?))
}

impl TimersState {
    pub async fn page(&self, wanted: &TimersQuery) -> Result<TimersPage, HttpError> {
        let (mut find, limit) = wanted.read()?;
        let mut timers = Vec::new();
        for _ in 0..LOOKS {
            let page = self.timers.list(&find, limit - timers.len()).await?;
            timers.extend(page.timers.iter().map(ShownTimer::from));
            find.after = page.next;
            if find.after.is_none() || timers.len() >= limit {
                break;
            }
        }
        Ok(TimersPage { timers, next: find.after.as_ref().map(to_cursor) })
    }
}
