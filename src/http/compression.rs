//! Compresses answers with gzip for clients that accept it: a page of a thousand units shrinks to a tenth.
//!
//! Streams of events are not compressed, since each event has to arrive at once; nor are answers that are shorter than
//! a packet or compressed already. An answer is compressed as it is written, so a long answer takes little memory too.

use std::io::Write;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use hyper::body::Body as _;

use super::exposition::accepts_gzip;

/// The shortest answer that is compressed, in bytes.
const SHORTEST: u64 = 1024;

pub(super) async fn compress(request: Request, next: Next) -> Response {
    let is_wanted = request.method() != Method::HEAD && accepts_gzip(request.headers());
    let mut response = next.run(request).await;
    if !is_text(response.headers()) || response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    // `Vary` makes a cache keep the compressed and the plain form apart.
    response.headers_mut().append(VARY, HeaderValue::from_static("accept-encoding"));
    let is_short = response.body().size_hint().upper().is_some_and(|length| length < SHORTEST);
    if !is_wanted || is_short || response.status() == StatusCode::PARTIAL_CONTENT {
        return response;
    }
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.headers_mut().remove(CONTENT_LENGTH);
    response.map(|body| Body::from_stream(unfold(Some(Compressing::of(body)), next_part)))
}

/// Returns whether compression makes an answer shorter, and its parts may wait for one another.
fn is_text(headers: &HeaderMap) -> bool {
    let media = headers.get(CONTENT_TYPE).and_then(|media| media.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim();
    let is_other =
        ["json", "ndjson", "javascript", "openmetrics-text"].iter().any(|name| media.ends_with(name));
    media != "text/event-stream" && (media.starts_with("text/") || is_other)
}

struct Compressing {
    rest: BodyDataStream,
    gzip: GzEncoder<Vec<u8>>,
}

impl Compressing {
    fn of(body: Body) -> Compressing {
        let gzip = GzEncoder::new(Vec::new(), Compression::fast());
        Compressing { rest: body.into_data_stream(), gzip }
    }
}

type BodyChunk = Result<Bytes, axum::Error>;

/// The next part that is not empty. An error ends the answer as it would without compression.
async fn next_part(state: Option<Compressing>) -> Option<(BodyChunk, Option<Compressing>)> {
    let Compressing { mut rest, mut gzip } = state?;
    while let Some(part) = rest.next().await {
        let part = match part {
            Ok(part) => part,
            Err(error) => return Some((Err(error), None)),
        };
        if let Err(error) = gzip.write_all(&part) {
            return Some((Err(axum::Error::new(error)), None));
        }
        if !gzip.get_ref().is_empty() {
            let made = std::mem::take(gzip.get_mut());
            return Some((Ok(made.into()), Some(Compressing { rest, gzip })));
        }
    }
    let end = gzip.finish().map(Bytes::from).map_err(axum::Error::new);
    Some((end, None))
}
