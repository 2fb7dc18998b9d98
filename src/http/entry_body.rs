//! The body of a batch, split into entries as they arrive.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use futures_util::StreamExt;
use tokio::time::timeout;

use super::entries::{BatchEntry, BrokenArray, EntryFormat, EntrySplitter};
use super::http_error::HttpError;

/// How long a whole body may take.
pub(super) const MAX_UPLOAD_TIME: Duration = Duration::from_secs(15 * 60);
/// The longest pause of a client within a body.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// The largest body, in bytes.
const MAX_UPLOAD: u64 = 1 << 30;

pub(super) struct EntryBody {
    body: BodyDataStream,
    splitter: EntrySplitter,
    length: u64,
}

/// The entries that end in the next bytes of a body.
pub(super) struct NextEntries {
    pub entries: Vec<BatchEntry>,
    /// The end of the entries; an error if the rest cannot be read.
    pub end: Option<Result<(), BrokenArray>>,
}

impl EntryBody {
    /// # Errors
    /// The body is compressed, or declared as something other than JSON or lines of JSON.
    pub fn new(headers: &HeaderMap, body: Body) -> Result<EntryBody, HttpError> {
        if headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return Err(HttpError::unsupported_media_type(
                "a batch is not compressed: send it without content-encoding",
            ));
        }
        let splitter = EntrySplitter::new(format_of(headers)?);
        Ok(EntryBody { body: body.into_data_stream(), splitter, length: 0 })
    }

    /// # Errors
    /// The body breaks off, or is too large.
    pub async fn next(&mut self) -> Result<NextEntries, HttpError> {
        let Ok(chunk) = timeout(MAX_PAUSE, self.body.next()).await else {
            return Err(HttpError::bad_request(format!("nothing came for {} s", MAX_PAUSE.as_secs())));
        };
        let mut entries = Vec::new();
        let mut take = |entry| entries.push(entry);
        let end = match chunk {
            None => Some(self.splitter.finish(&mut take)),
            Some(Err(error)) => {
                return Err(HttpError::bad_request(format!("the body ended early: {error}")));
            }
            Some(Ok(chunk)) => {
                self.length += chunk.len() as u64;
                if self.length > MAX_UPLOAD {
                    let detail = format!("a batch has at most {MAX_UPLOAD} bytes; send it in parts");
                    return Err(HttpError::too_large(detail));
                }
                self.splitter.cut(&chunk, &mut take).err().map(Err)
            }
        };
        Ok(NextEntries { entries, end })
    }
}

/// The declared media type, without its parameters and in small letters; empty if there is none.
pub(super) fn media_type(headers: &HeaderMap) -> String {
    let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns whether the media type is that of lines of JSON: it has several names, and none of them is registered.
pub(super) fn is_lines_of_json(media: &str) -> bool {
    let name = media.strip_prefix("application/").unwrap_or_default();
    matches!(name.strip_prefix("x-").unwrap_or(name), "ndjson" | "jsonl" | "jsonlines")
}

fn format_of(headers: &HeaderMap) -> Result<EntryFormat, HttpError> {
    match &*media_type(headers) {
        "application/json" => Ok(EntryFormat::Array),
        media if is_lines_of_json(media) => Ok(EntryFormat::Lines),
        _ => Err(HttpError::unsupported_media_type(
            "send a JSON array or lines of JSON, with content-type: application/json or application/x-ndjson",
        )),
    }
}
