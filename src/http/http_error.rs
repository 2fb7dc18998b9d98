//! The error of a request, as RFC 9457 problem details.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::Query;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cause;
use crate::fleet::SilencesError;
use crate::routing::alert_silence::SilenceError;
use crate::store::EngineError;
use crate::telemetry::truncate;

/// The longest detail, in characters.
const MAX_DETAIL: usize = 1000;

#[derive(Debug)]
pub(super) struct HttpError {
    status: StatusCode,
    detail: String,
    header: Option<(HeaderName, HeaderValue)>,
    /// An additional field, for programs.
    extension: Option<Box<(&'static str, Value)>>,
}

/// The text of the problem in an answer.
#[derive(Clone, Debug)]
pub(super) struct Detail(pub String);

#[derive(Serialize)]
struct ProblemBody<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(flatten)]
    extension: BTreeMap<&'static str, Value>,
}

impl HttpError {
    fn new(status: StatusCode, detail: impl Into<String>) -> HttpError {
        let mut detail = detail.into();
        // The detail may repeat text that the client sent, so its length is bounded.
        let length = truncate(&detail, MAX_DETAIL).len();
        if length < detail.len() {
            detail.truncate(length);
            detail.push('…');
        }
        HttpError { status, detail, header: None, extension: None }
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The text of the fault, with advice.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    pub fn bad_request(detail: impl Into<String>) -> HttpError {
        HttpError::new(StatusCode::BAD_REQUEST, detail)
    }

    /// A token is missing or unknown.
    pub fn unauthorized(detail: impl Into<String>) -> HttpError {
        HttpError {
            header: Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            ..HttpError::new(StatusCode::UNAUTHORIZED, detail)
        }
    }

    pub fn not_found(detail: impl Into<String>) -> HttpError {
        HttpError::new(StatusCode::NOT_FOUND, detail)
    }

    pub fn method_not_allowed() -> HttpError {
        HttpError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "this page does not answer this method; see the header `allow`",
        )
    }

    /// The role of the client does not allow the request.
    pub fn forbidden(detail: impl Into<String>) -> HttpError {
        HttpError::new(StatusCode::FORBIDDEN, detail)
    }

    pub fn unsupported_media_type(detail: impl Into<String>) -> HttpError {
        HttpError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    /// A later request may succeed.
    pub fn unavailable(detail: impl Into<String>) -> HttpError {
        let header = Some((RETRY_AFTER, HeaderValue::from_static("5")));
        HttpError { header, ..HttpError::new(StatusCode::SERVICE_UNAVAILABLE, detail) }
    }

    /// The client has to wait for this time.
    pub fn too_many_requests(detail: impl Into<String>, wait: Duration) -> HttpError {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let header = Some((RETRY_AFTER, HeaderValue::from(seconds.max(1))));
        HttpError { header, ..HttpError::new(StatusCode::TOO_MANY_REQUESTS, detail) }
    }

    /// The state of the fleet does not allow the request.
    pub fn conflict(detail: impl Into<String>) -> HttpError {
        HttpError::new(StatusCode::CONFLICT, detail)
    }

    /// The form of the body is right, but its content is wrong.
    pub fn unprocessable(detail: impl Into<String>, extension: (&'static str, Value)) -> HttpError {
        HttpError {
            extension: Some(Box::new(extension)),
            ..HttpError::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
        }
    }

    /// Adds a field for programs to the problem.
    pub fn with(self, name: &'static str, value: Value) -> HttpError {
        HttpError { extension: Some(Box::new((name, value))), ..self }
    }

    pub fn too_large(detail: impl Into<String>) -> HttpError {
        HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// Rollcall itself failed.
    pub fn internal(detail: impl Into<String>) -> HttpError {
        HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }
}

impl From<EngineError> for HttpError {
    fn from(error: EngineError) -> HttpError {
        match error {
            EngineError::Unavailable(_)
            | EngineError::Passing(_)
            | EngineError::WrongType(_)
            | EngineError::Refused(_) => {
                HttpError::unavailable(format!("the engine did not answer: {error}"))
            }
            EngineError::Damaged(_) => HttpError::internal(error.to_string()),
        }
    }
}

impl From<SilencesError> for HttpError {
    fn from(error: SilencesError) -> HttpError {
        match error {
            SilencesError::Engine(error) => error.into(),
            SilencesError::Refused(error @ SilenceError::Unknown(_)) => {
                HttpError::not_found(error.to_string())
            }
            SilencesError::Refused(error @ (SilenceError::Expired(_) | SilenceError::TooMany)) => {
                HttpError::conflict(error.to_string())
            }
            SilencesError::Refused(error) => HttpError::bad_request(error.to_string()),
        }
    }
}

impl From<BytesRejection> for HttpError {
    fn from(rejection: BytesRejection) -> HttpError {
        let why = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => "the body is longer than this page takes; send less at a time",
            _ => "the body ended early; send it again",
        };
        HttpError::new(rejection.status(), why)
    }
}

impl From<PathRejection> for HttpError {
    fn from(rejection: PathRejection) -> HttpError {
        let text = rejection.body_text();
        HttpError::bad_request(match text.split_once("Invalid UTF-8 in `") {
            Some((_, name)) => format!("{} in the path is not UTF-8", name.trim_end_matches('`')),
            None => cause::json::of_data(&text).unwrap_or(text),
        })
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let body = ProblemBody {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or_default(),
            status: self.status.as_u16(),
            detail: &self.detail,
            extension: self.extension.map(|extension| *extension).into_iter().collect(),
        };
        let mut response = (self.status, Json(body)).into_response();
        response.extensions_mut().insert(Detail(self.detail));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some((name, value)) = self.header {
            headers.insert(name, value);
        }
        response
    }
}

/// The `limit` of a request, or its default.
pub(super) fn page_limit(wanted: Option<usize>, default: usize, largest: usize) -> Result<usize, HttpError> {
    let limit = wanted.unwrap_or(default);
    if !(1..=largest).contains(&limit) {
        return Err(HttpError::bad_request(format!("limit is a number from 1 to {largest}")));
    }
    Ok(limit)
}

/// Parses the query of a request.
pub(super) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, HttpError> {
    match Query::try_from_uri(uri) {
        Ok(Query(wanted)) => Ok(wanted),
        Err(rejection) => Err(HttpError::bad_request(in_words(&rejection.body_text()))),
    }
}

/// Why a query or a form cannot be read, from the error text of the parser: `parameter: why`.
pub(super) fn in_words(text: &str) -> String {
    let leads = [
        "Failed to deserialize query string: ",
        "Failed to deserialize form body: ",
        "Failed to deserialize form: ",
    ];
    let text = leads.iter().find_map(|lead| text.strip_prefix(lead)).unwrap_or(text);
    let known = |list: &str| list.split('`').skip(1).step_by(2).collect::<Vec<&str>>().join(", ");
    if let Some((name, rest)) = between(text, "unknown field `") {
        let known = known(rest);
        let known = if known.is_empty() { "none".to_owned() } else { known };
        return format!("there is no parameter {name:?}; known here: {known}");
    }
    if let Some((name, _)) = between(text, "missing field `") {
        return format!("{name} is missing");
    }
    if let Some((name, _)) = between(text, "duplicate field `") {
        return format!("{name} is given twice");
    }
    let Some((name, why)) = text.split_once(": ") else { return text.to_owned() };
    if let Some((value, rest)) = between(why, "unknown variant `") {
        return format!("{name}: {value:?} is unknown; write one of {}", known(rest));
    }
    match why {
        _ if why.starts_with("invalid digit")
            || why.starts_with("number too")
            || why.starts_with("cannot parse integer") =>
        {
            format!("{name} is not a whole number in its bounds")
        }
        _ if why.contains("float literal") || why.starts_with("cannot parse float") => {
            format!("{name} is not a number")
        }
        _ if why.starts_with("provided string was not") => format!("{name}: write true or false"),
        _ => text.to_owned(),
    }
}

/// The word after `lead`, up to a backtick, and the rest; a parameter may be named before it.
fn between<'a>(text: &'a str, lead: &str) -> Option<(&'a str, &'a str)> {
    let begin = match text.strip_prefix(lead) {
        Some(rest) => rest,
        None => text.split_once(": ")?.1.strip_prefix(lead)?,
    };
    begin.split_once('`')
}
