//! The middleware of every request: its token, a time limit, headers for browsers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT, ALLOW, AUTHORIZATION, CACHE_CONTROL, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use subtle::ConstantTimeEq;
use url::form_urlencoded;

use super::changes::{Caller, HasTokens, foreign_host};
use super::ended_sessions::EndedSessions;
use super::http_error::{Detail, HttpError};
use super::peers::PeerKey;
use super::proxies::{PeerAddress, Proxies};
use super::rate_limit::{LimitedClient, RequestLimit, RequestRate, moment};
use super::session::{BrowserSessions, WRONG_WAITS};
use super::{Role, Token, alertmanager, heartbeats, import, timers};
use crate::clock::{Clock, Stopwatch, Timestamp};

/// How long an answer may take until it begins.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// The pages without a token: for probes of health, and for the login of a browser.
const OPEN_PAGES: [&str; 5] = ["/healthz", "/readyz", "/login", "/assets/style.css", "/assets/script.js"];

/// The pages without a limit of requests: a supervisor whose probe is refused would end the process.
const HEALTH_PAGES: [&str; 2] = ["/healthz", "/readyz"];

const NO_TOKEN: &str = "send a known token as `Authorization: Bearer …`";

/// The rules by which requests are admitted.
#[derive(Clone)]
pub(super) struct AdmissionRules {
    pub tokens: Arc<[Token]>,
    pub has_tokens: HasTokens,
    /// The path of the login page.
    pub login: Arc<str>,
    pub proxies: Arc<Proxies>,
    /// `None` while the engine, which stores the key of the fleet, does not answer.
    pub known: Option<KnownClients>,
    /// How many requests a client may send; `None`: there is no limit.
    pub rate: Option<RequestRate>,
    pub requests: Arc<RequestLimit>,
    /// The start of the clock for rate limits.
    pub began: Stopwatch,
    /// Counts wrong bearer tokens.
    pub wrong: Arc<RequestLimit>,
    /// The host of `http.external_url`.
    pub external_host: Option<Arc<str>>,
}

/// Clients that the key of the fleet proves: browsers with a session, and other instances.
#[derive(Clone)]
pub(super) struct KnownClients {
    pub sessions: Arc<BrowserSessions>,
    pub ended: Arc<EndedSessions>,
    pub peer_key: PeerKey,
    pub clock: Clock,
}

impl AdmissionRules {
    /// Counts a request of the client with this name.
    ///
    /// # Errors
    /// How long the client has to wait.
    fn count(&self, request: &Request, name: Option<&str>) -> Result<(), Duration> {
        let (headers, peer) = (request.headers(), request.extensions().get::<PeerAddress>());
        match (peer, self.rate) {
            (Some(peer), Some(rate)) if !HEALTH_PAGES.contains(&request.uri().path()) => {
                let client = LimitedClient::of(name, self.proxies.client(*peer, headers));
                self.requests.count(client, rate, self.began.elapsed())
            }
            _ => Ok(()),
        }
    }

    /// The name and the role of a client without a token.
    fn without_token(&self, request: &Request) -> Option<(String, Role)> {
        let (known, headers) = (self.known.as_ref()?, request.headers());
        if let Some(user) = request.extensions().get().and_then(|peer| self.proxies.user(*peer, headers)) {
            return Some(user);
        }
        let path = request.uri().path_and_query().map_or("", |path| path.as_str());
        let is_instance = request.method() == Method::GET && known.peer_key.has_signed(path, headers);
        is_instance.then(|| ("instance".to_owned(), Role::Viewer))
    }

    /// The name and the role of a browser with a valid session.
    async fn of_session(&self, headers: &HeaderMap, now: Timestamp) -> Option<(String, Role)> {
        let known = self.known.as_ref()?;
        let session = known.sessions.find(headers, now)?;
        let has_ended = known.ended.contains(&session.cookie).await;
        (!has_ended).then(|| (session.token.name.clone(), session.token.role))
    }

    /// The answer to an unknown token. A program with an old token gets it at once; a program that guesses tokens waits
    /// for each answer.
    async fn wrong_token(&self, client: Option<IpAddr>, now: Timestamp) -> Response {
        let count = |client| {
            self.wrong.count(LimitedClient::of(None, client), RequestRate::WRONG_TOKENS, moment(now))
        };
        let Some(Err(wait)) = client.map(count) else {
            return HttpError::unauthorized(NO_TOKEN).into_response();
        };
        tokio::time::sleep(WRONG_WAITS).await;
        let text = "too many wrong tokens from this address; send a known one";
        HttpError::too_many_requests(text, wait).into_response()
    }
}

/// Refuses requests of unknown clients if there are tokens or users, and redirects browsers to the login page. Pages
/// read from [`Caller`] what the client may do.
pub(super) async fn require_token(
    State(access): State<AdmissionRules>,
    mut request: Request,
    next: Next,
) -> Response {
    let open = !access.has_tokens.0 || OPEN_PAGES.contains(&request.uri().path());
    let headers = request.headers();
    let now = access.known.as_ref().map_or_else(Clock::machine, |known| known.clock.now());
    let bearer = known(&access.tokens, headers);
    let valid = bearer.filter(|token| !token.is_expired(now));
    let client = valid.map(|token| (token.name.clone(), token.role));
    let client = match (client, request.headers().clone()) {
        (None, headers) => access.of_session(&headers, now).await.or_else(|| access.without_token(&request)),
        (known, _) => known,
    };
    let headers = request.headers();
    let is_device = client.as_ref().is_some_and(|(_, role)| *role == Role::Device);
    if is_device && !open && !heartbeats::is_for_devices(request.uri().path()) {
        return HttpError::forbidden("this token may only send heartbeats").into_response();
    }
    // The token of a device has its own limit.
    if !is_device && let Err(wait) = access.count(&request, client.as_ref().map(|(name, _)| name.as_str())) {
        let text = "too many requests; send fewer than http.requests_per_second";
        return HttpError::too_many_requests(text, wait).into_response();
    }
    if let (Some(Token { expires_at: Some(end), .. }), None, false) = (bearer, &client, open) {
        return HttpError::unauthorized(format!("this token expired at {end}")).into_response();
    }
    if client.is_none() && !open {
        if bearer_of(headers).is_some() {
            let peer = request.extensions().get::<PeerAddress>();
            let address = peer.map(|peer| access.proxies.client(*peer, headers));
            return access.wrong_token(address, now).await;
        }
        let is_page = request.method() == Method::GET && access.known.is_some() && wants_page(headers);
        return if is_page {
            Redirect::to(&login_before(request.uri(), &access.login)).into_response()
        } else {
            HttpError::unauthorized(NO_TOKEN).into_response()
        };
    }
    let caller = Caller::of(client, access.has_tokens, headers, access.external_host.as_deref());
    // A web page whose name was made to resolve to 127.0.0.1 could read everything.
    if !access.has_tokens.0 && !caller.names_this_host() && request.uri().path() != HEALTH_PAGES[0] {
        return foreign_host(headers).into_response();
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// The page of the login, which leads to the wanted page after it.
fn login_before(wanted: &Uri, login: &str) -> String {
    match wanted.path_and_query().map_or("/", PathAndQuery::as_str) {
        "/" => login.to_owned(),
        wanted => {
            let query = form_urlencoded::Serializer::new(String::new()).append_pair("next", wanted).finish();
            format!("{login}?{query}")
        }
    }
}

/// The token of the request; of several equal ones, the token with the most rights. Compares with every token, in
/// constant time.
fn known<'a>(tokens: &'a [Token], headers: &HeaderMap) -> Option<&'a Token> {
    let digest = Token::digest(bearer_of(headers)?);
    let same = |known: &&Token| bool::from(known.sha256.as_slice().ct_eq(&digest));
    tokens.iter().filter(same).max_by_key(|known| known.role)
}

/// The request's token.
fn bearer_of(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Returns whether a browser requests a page to show.
pub(super) fn wants_page(headers: &HeaderMap) -> bool {
    headers
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/html"))
}

/// Answers 503 if an answer does not begin in time. An import and batches of timers and heartbeats have their own
/// limits.
pub(super) async fn limit_time(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_batch = matches!(path, timers::PATH | heartbeats::PATH) && request.method() == Method::POST;
    if path == import::PATH || is_batch {
        return next.run(request).await;
    }
    match tokio::time::timeout(ANSWER_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            HttpError::unavailable(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs())).into_response()
        }
    }
}

/// Errors of Alertmanager's API are a JSON string.
pub(super) async fn plain_errors(request: Request, next: Next) -> Response {
    let is_alertmanager = request.uri().path().starts_with(alertmanager::PREFIX);
    let mut response = next.run(request).await;
    if is_alertmanager && let Some(Detail(detail)) = response.extensions_mut().remove() {
        let mut plain = Json(detail).into_response();
        *plain.status_mut() = response.status();
        for name in [ALLOW, RETRY_AFTER, WWW_AUTHENTICATE] {
            if let Some(value) = response.headers_mut().remove(&name) {
                plain.headers_mut().insert(name, value);
            }
        }
        return plain;
    }
    response
}

/// Forbids caching, unless a page allows it, and reading an answer as another content type.
pub(super) async fn set_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
