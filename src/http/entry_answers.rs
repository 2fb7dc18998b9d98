//! The answer to a batch: its counts, and an answer to each entry, in order.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::entry_body::MAX_UPLOAD_TIME;
use super::http_error::HttpError;
use crate::telemetry::truncate;

/// The longest reason of a refusal in an answer, in characters.
const MAX_REASON: usize = 300;
/// The answers to a batch, in bytes of JSON, after which no further entry is read: memory holds all of them until the
/// end, and a character of a client may take six bytes there.
const MAX_ANSWERS: usize = 16 << 20;

/// The answers so far.
#[derive(Default)]
pub(super) struct EntryAnswers {
    list: Vec<Box<RawValue>>,
    /// The bytes of the list.
    bytes: usize,
}

/// The whole answer: counts by their names, and the list under its name.
struct BatchAnswer<'a> {
    counts: &'a [(&'a str, u64)],
    name: &'a str,
    list: &'a [Box<RawValue>],
}

impl Serialize for BatchAnswer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.counts.len() + 1))?;
        for (count, number) in self.counts {
            map.serialize_entry(count, number)?;
        }
        map.serialize_entry(self.name, self.list)?;
        map.end()
    }
}

impl EntryAnswers {
    pub fn add(&mut self, answer: &impl Serialize) {
        let answer = to_raw_value(answer).expect("plain structs with text keys are JSON");
        self.bytes += answer.get().len();
        self.list.push(answer);
    }

    /// Whether there is room for answers to further entries.
    ///
    /// # Errors
    /// There is none: the batch ends.
    pub fn has_room(&self) -> Result<(), HttpError> {
        match self.bytes < MAX_ANSWERS {
            true => Ok(()),
            false => {
                Err(HttpError::too_large("the answers are too long; send the others in another request"))
            }
        }
    }

    /// The answer to a batch that was read to its end: these counts, and the answers under `name`.
    pub fn response(self, counts: &[(&str, u64)], name: &str) -> Response {
        Json(BatchAnswer { counts, name, list: &self.list }).into_response()
    }

    /// A problem that ended the batch, with the number of entries that have an answer.
    pub fn with(&self, problem: HttpError) -> HttpError {
        problem.with("answered", (self.list.len() as u64).into())
    }
}

/// A text of any length as an answer says it, such as why its entry was refused.
pub(super) fn reason(why: &str) -> &str {
    truncate(why, MAX_REASON)
}

/// A permit to read a batch; at most `most` are read at a time.
pub(super) fn turn(batches: &Semaphore, most: usize) -> Result<SemaphorePermit<'_>, HttpError> {
    let detail = || format!("{most} batches are being read; try again later");
    batches.try_acquire().map_err(|_| HttpError::unavailable(detail()))
}

/// Reads a body within its time limit; `what` names its entries.
pub(super) async fn in_time(
    read: impl Future<Output = Result<(), HttpError>>,
    what: &str,
) -> Result<(), HttpError> {
    let late = |_| Err(HttpError::bad_request(format!("the {what} took too long to arrive")));
    timeout(MAX_UPLOAD_TIME, read).await.unwrap_or_else(late)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_bounded_by_their_bytes_in_json() {
        let mut answers = EntryAnswers::default();
        let text = "\u{1}".repeat(MAX_REASON);
        while answers.has_room().is_ok() {
            answers.add(&text);
        }
        let each = 6 * MAX_REASON + 2;
        assert!((MAX_ANSWERS..MAX_ANSWERS + each).contains(&answers.bytes), "{}", answers.bytes);
        assert_eq!(answers.has_room().unwrap_err().status(), 413);
    }

    #[test]
    fn an_answer_has_the_counts_and_then_the_list() {
        let mut answers = EntryAnswers::default();
        answers.add(&"a\"b");
        answers.add(&1);
        let counts = [("recorded", 1), ("refused", 2)];
        let answer = BatchAnswer { counts: &counts, name: "heartbeats", list: &answers.list };
        let json = serde_json::to_string(&answer).unwrap();
        assert_eq!(json, r#"{"recorded":1,"refused":2,"heartbeats":["a\"b",1]}"#);
    }
}
