//! Guards the requests that change something. Without tokens the server listens on loopback only, where every program
//! of the machine may send requests, and so may every web page in a browser on it.
//!
//! - A token needs at least the role operator.
//! - Without tokens, every request, even a request that only reads, must name this machine, by a loopback name or by
//!   the host of `http.external_url`: a web page whose name was made to resolve to 127.0.0.1 sends its own name.
//! - A page that sends the request must belong to this server. A program sends no `Origin`.
//! - A body must be declared as JSON, which a form of another web page cannot do. `/-/reload` has no body.

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Role;
use super::http_error::HttpError;
use crate::address::is_this_machine;
use crate::routing::alert_silence::is_author;

/// The longest body of a request, in bytes.
pub(super) const MAX_BODY: usize = 256 * 1024;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The header with the operator for whom a client changes something; commands send it.
pub const AUTHOR: &str = "rollcall-author";

#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// The operator that the client names, if it names one.
    author: Option<String>,
    /// The name of the token or of the user, or `http`.
    name: String,
    role: Role,
    /// Whether a page of another site sends the request.
    is_foreign: bool,
    /// Whether the request names loopback, or the host of `http.external_url`.
    names_this_host: bool,
}

impl Caller {
    /// `known`: the name and role of the token or user. If no token is configured, a client may do everything;
    /// otherwise a client without a token may read the open pages.
    pub fn of(
        known: Option<(String, Role)>,
        HasTokens(has_tokens): HasTokens,
        headers: &HeaderMap,
        external_host: Option<&str>,
    ) -> Caller {
        let author = headers.get(AUTHOR).and_then(|author| std::str::from_utf8(author.as_bytes()).ok());
        let author = author.filter(|author| is_author(author)).map(str::to_owned);
        let unknown = || ("http".to_owned(), if has_tokens { Role::Viewer } else { Role::Admin });
        let (name, role) = known.unwrap_or_else(unknown);
        let host = text(headers, HOST).unwrap_or_default();
        let names_this_host =
            is_loopback(host) || external_host.is_some_and(|own| own.eq_ignore_ascii_case(host_name(host)));
        Caller { author, name, role, is_foreign: is_foreign(headers), names_this_host }
    }

    /// The operator that the client names, or else the name of the token.
    pub fn operator(&self) -> &str {
        self.author.as_deref().unwrap_or(&self.name)
    }

    /// The name of the token, or `http`.
    pub fn token_name(&self) -> &str {
        &self.name
    }

    pub fn role(&self) -> Role {
        self.role
    }

    pub fn names_operator(&self) -> bool {
        self.author.is_some()
    }

    pub fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    pub fn names_this_host(&self) -> bool {
        self.names_this_host
    }

    /// Refuses a client whose role is less than this one.
    pub fn require(&self, role: Role) -> Result<(), HttpError> {
        if self.role < role {
            return Err(HttpError::forbidden(format!(
                "the role of this token is too low; use one with the role {}",
                role.as_str()
            )));
        }
        Ok(())
    }

    /// The name of the client for the audit; `stated`: the author in the body of the request.
    pub fn by(&self, stated: Option<&str>) -> String {
        match self.author.as_deref().or(stated) {
            Some(author) => format!("{author} ({})", self.name),
            None => self.name.clone(),
        }
    }
}

/// Whether clients need a token or a user.
#[derive(Clone, Copy, Debug)]
pub(super) struct HasTokens(pub bool);

/// Refuses changes that another web page may have caused, and changes by a role that may only read.
pub(super) async fn guard(State(has_tokens): State<HasTokens>, request: Request, next: Next) -> Response {
    match guarded(&request, has_tokens).and_then(|()| is_json(request.method(), request.headers())) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Guards requests without a body as [`guard`] does, but needs no content type.
pub(super) async fn guard_without_body(
    State(has_tokens): State<HasTokens>,
    request: Request,
    next: Next,
) -> Response {
    match guarded(&request, has_tokens) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Guards the end of a session, which every role may request.
pub(super) async fn guard_end(State(has_tokens): State<HasTokens>, request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>();
    if caller.is_none_or(|caller| caller.is_foreign || !has_tokens.0 && !caller.names_this_host) {
        return HttpError::forbidden("a page of another site may not end a session").into_response();
    }
    next.run(request).await
}

fn guarded(request: &Request, has_tokens: HasTokens) -> Result<(), HttpError> {
    check(request.method(), request.headers(), request.extensions().get(), has_tokens)
}

fn check(
    method: &Method,
    headers: &HeaderMap,
    caller: Option<&Caller>,
    HasTokens(has_tokens): HasTokens,
) -> Result<(), HttpError> {
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    if caller.is_none_or(|caller| caller.role < Role::Operator) {
        return Err(HttpError::forbidden(
            "the role of this token may only look; use one with the role operator",
        ));
    }
    if !has_tokens && caller.is_none_or(|caller| !caller.names_this_host) {
        return Err(foreign_host(headers));
    }
    if is_foreign(headers) {
        return Err(HttpError::forbidden("a page of another site may not change anything here"));
    }
    Ok(())
}

/// The refusal of a request for another host, on a server without tokens.
pub(super) fn foreign_host(headers: &HeaderMap) -> HttpError {
    let host = text(headers, HOST).unwrap_or_default();
    HttpError::forbidden(format!(
        "{host:?} is not a name of loopback; ask 127.0.0.1 or localhost, set http.external_url to the address of the \
         proxy, or configure a token (http.token)"
    ))
}

/// Returns whether a page of another site sends the request. A program sends neither header.
fn is_foreign(headers: &HeaderMap) -> bool {
    let host = text(headers, HOST).unwrap_or_default();
    let is_own = |origin: &str| origin.split_once("://").is_some_and(|(_, of)| of.eq_ignore_ascii_case(host));
    text(headers, ORIGIN).is_some_and(|origin| !is_own(origin))
        || text(headers, FETCH_SITE).is_some_and(|site| !matches!(site, "same-origin" | "none"))
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// Refuses a change whose body is not declared as JSON.
fn is_json(method: &Method, headers: &HeaderMap) -> Result<(), HttpError> {
    let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim();
    if matches!(*method, Method::POST | Method::PUT) && !media.eq_ignore_ascii_case("application/json") {
        return Err(HttpError::unsupported_media_type("send JSON, with content-type: application/json"));
    }
    Ok(())
}

/// The name or the address in the value of `Host`.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    }
}

/// Returns whether the value of `Host` names loopback.
fn is_loopback(host: &str) -> bool {
    let name = host_name(host);
    is_this_machine(name) || name.to_ascii_lowercase().ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    #[test]
    fn a_change_comes_from_an_operator_and_from_no_other_web_page() {
        const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");
        type Case<'a> = (Method, Role, bool, &'a [(&'a str, &'a str)], u16);
        let here = ("host", "127.0.0.1:8080");
        let cases: [Case<'_>; 20] = [
            (Method::POST, Role::Admin, false, &[("host", "Fleet.example.org:8443"), JSON], 200),
            (Method::GET, Role::Viewer, true, &[("host", "evil.example")], 200),
            (Method::POST, Role::Operator, true, &[("host", "rollcall.example.org"), JSON], 200),
            (Method::POST, Role::Viewer, true, &[("host", "rollcall.example.org"), JSON], 403),
            (Method::DELETE, Role::Viewer, true, &[here], 403),
            (Method::POST, Role::Admin, false, &[here, JSON], 200),
            (Method::POST, Role::Admin, false, &[("host", "localhost"), JSON], 200),
            (Method::POST, Role::Admin, false, &[("host", "[::1]:8080"), JSON], 200),
            (Method::DELETE, Role::Admin, false, &[here], 200),
            (Method::DELETE, Role::Admin, false, &[], 403),
            (Method::POST, Role::Admin, false, &[("host", "evil.example:8080"), JSON], 403),
            (Method::POST, Role::Admin, false, &[("host", "127.0.0.1.evil.example"), JSON], 403),
            (Method::POST, Role::Admin, false, &[here, JSON, ("origin", "http://127.0.0.1:8080")], 200),
            (Method::POST, Role::Admin, false, &[here, JSON, ("origin", "http://127.0.0.1:9090")], 403),
            (Method::DELETE, Role::Admin, false, &[here, ("origin", "null")], 403),
            (Method::DELETE, Role::Admin, false, &[here, ("sec-fetch-site", "cross-site")], 403),
            (Method::DELETE, Role::Admin, false, &[here, ("sec-fetch-site", "same-origin")], 200),
            (Method::POST, Role::Admin, false, &[here], 415),
            (Method::POST, Role::Admin, false, &[here, ("content-type", "text/plain")], 415),
            (Method::PUT, Role::Operator, true, &[("origin", "https://evil.example"), here, JSON], 403),
        ];
        for (method, role, has_tokens, headers, expected) in cases {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.insert(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
            }
            let known = Some(("x".to_owned(), role));
            let caller = Caller::of(known, HasTokens(has_tokens), &map, Some("fleet.example.org"));
            let checked = check(&method, &map, Some(&caller), HasTokens(has_tokens));
            let checked = checked.and_then(|()| is_json(&method, &map));
            let status = checked.map_or_else(|problem| problem.into_response().status(), |()| StatusCode::OK);
            assert_eq!(status, expected, "{method} {role:?} {headers:?}");
        }
    }
}
