//! Sessions of browsers: a cookie with the name of a token, an expiry time and a signature.
//!
//! # Why nothing is stored
//! Every instance has the key of the fleet and the same tokens, so a session is valid at all instances, also after a
//! restart. The digest of the token is part of the key: changing or removing a token ends its sessions. Only ended
//! sessions are stored: see `ended_sessions.rs`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::COOKIE;
use axum::http::{HeaderMap, HeaderValue};
use data_encoding::HEXLOWER;
use ring::hmac;
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

use super::Token;
use super::rate_limit::{LimitedClient, RequestLimit, RequestRate, moment};
use crate::clock::Timestamp;

const COOKIE_NAME: &str = "rollcall_session";

/// How long a session lasts.
const LENGTH_SECONDS: i64 = 12 * 3600;

/// The delay of the answer to a wrong token.
pub(super) const WRONG_WAITS: Duration = Duration::from_secs(1);

/// The logins that are checked at the same time.
const ATTEMPTS: usize = 8;

/// Why a login cannot be checked now.
pub(super) enum RefusedLogin {
    /// Too many other logins are being checked.
    Busy,
    /// The client has to wait: it has sent too many wrong tokens.
    TooManyWrong(Duration),
}

/// A session of a browser.
pub(super) struct BrowserSession<'a> {
    pub token: &'a Token,
    /// When the session expires, in seconds.
    pub ends: i64,
    pub cookie: String,
}

/// The sessions of a fleet.
pub(super) struct BrowserSessions {
    tokens: Arc<[Token]>,
    /// The key of the fleet.
    key: String,
    /// The path of the pages, without a slash at its end.
    base: String,
    /// Browsers reach the pages by https only.
    is_secure: bool,
    attempts: Semaphore,
    /// Counts wrong tokens.
    wrong: RequestLimit,
}

impl BrowserSessions {
    pub fn new(tokens: Arc<[Token]>, key: &str, base: &str, is_secure: bool) -> BrowserSessions {
        let (attempts, wrong) = (Semaphore::new(ATTEMPTS), RequestLimit::closed());
        BrowserSessions { tokens, key: key.to_owned(), base: base.to_owned(), is_secure, attempts, wrong }
    }

    /// Checks a token, and returns the cookie of a new session; `None` for an unknown token, after a second, so that
    /// tokens cannot be found by trying.
    pub async fn log_in(
        &self,
        client: IpAddr,
        token: &str,
        now: Timestamp,
    ) -> Result<Option<HeaderValue>, RefusedLogin> {
        let Ok(_permit) = self.attempts.try_acquire() else { return Err(RefusedLogin::Busy) };
        // Every login counts as a wrong one until its token is known, so that simultaneous logins count too.
        let (sender, rate) = (LimitedClient::of(None, client), RequestRate::WRONG_TOKENS);
        self.wrong.count(sender.clone(), rate, moment(now)).map_err(RefusedLogin::TooManyWrong)?;
        let cookie = self.begin(token, now);
        match cookie {
            Some(_) => self.wrong.give_back(&sender, rate),
            None => {
                tracing::info!(%client, "a login with an unknown token was refused");
                tokio::time::sleep(WRONG_WAITS).await;
            }
        }
        Ok(cookie)
    }

    /// The cookie of a new session; `None` for an unknown token.
    fn begin(&self, token: &str, now: Timestamp) -> Option<HeaderValue> {
        let digest = Token::digest(token.trim());
        let known = self.tokens.iter().filter(|known| bool::from(known.sha256.as_slice().ct_eq(&digest)));
        let known = known.filter(|known| !known.is_expired(now)).max_by_key(|known| known.role)?;
        let ends = now.as_millis() / 1000 + LENGTH_SECONDS;
        let text = signed_text(&known.name, ends, rand::random());
        let signature = HEXLOWER.encode(hmac::sign(&self.key_of(known), text.as_bytes()).as_ref());
        self.cookie(&format!("{text}.{signature}"), LENGTH_SECONDS)
    }

    /// The cookie that ends a session.
    pub fn end(&self) -> HeaderValue {
        self.cookie("", 0).expect("a text without control characters")
    }

    /// The session of the request, unless it has expired. The caller checks whether the user ended it.
    pub fn find(&self, headers: &HeaderMap, now: Timestamp) -> Option<BrowserSession<'_>> {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut values = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|one| {
            let (name, value) = one.trim().split_once('=')?;
            (name == COOKIE_NAME).then_some(value)
        });
        values.find_map(|value| self.verified(value, now))
    }

    fn verified(&self, value: &str, now: Timestamp) -> Option<BrowserSession<'_>> {
        let (text, signature) = value.rsplit_once('.')?;
        let (name, ends) = text.split_once('.')?;
        let (name, _) = name.split_once('-')?;
        let (name, ends): (_, i64) = (HEXLOWER.decode(name.as_bytes()).ok()?, ends.parse().ok()?);
        let signature = HEXLOWER.decode(signature.as_bytes()).ok()?;
        let is_valid = |token: &&Token| {
            token.name.as_bytes() == name
                && hmac::verify(&self.key_of(token), text.as_bytes(), &signature).is_ok()
        };
        let token = self.tokens.iter().find(is_valid)?;
        let is_on = now.as_millis() / 1000 < ends && !token.is_expired(now);
        is_on.then(|| BrowserSession { token, ends, cookie: value.to_owned() })
    }

    fn key_of(&self, token: &Token) -> hmac::Key {
        let fleet = hmac::Key::new(hmac::HMAC_SHA256, self.key.as_bytes());
        let mut text = b"session ".to_vec();
        text.extend_from_slice(&token.sha256);
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&fleet, &text).as_ref())
    }

    fn cookie(&self, value: &str, seconds: i64) -> Option<HeaderValue> {
        let (base, secure) = (&self.base, if self.is_secure { "; Secure" } else { "" });
        let cookie = format!(
            "{COOKIE_NAME}={value}; Path={base}/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
        );
        HeaderValue::from_str(&cookie).ok()
    }
}

/// `random` makes the text unique, so that the end of one session does not end another of the same second.
fn signed_text(name: &str, ends: i64, random: u64) -> String {
    format!("{}-{random:016x}.{ends}", HEXLOWER.encode(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Role;

    fn token(name: &str, secret: &str) -> Token {
        Token {
            name: name.to_owned(),
            sha256: Token::digest(secret),
            role: Role::Operator,
            expires_at: None,
            device: Default::default(),
        }
    }

    fn sessions(key: &str, tokens: &[Token]) -> BrowserSessions {
        BrowserSessions::new(tokens.into(), key, "/fleet", true)
    }

    #[test]
    fn a_session_is_valid_for_its_token_at_every_instance_until_it_ends() {
        let now = Timestamp::from_millis(1_772_366_400_000);
        let tokens = [token("désk", "one"), token("screen", "two")];
        let begun = sessions("key", &tokens);
        assert!(begun.begin("three", now).is_none());
        let cookie = begun.begin("one", now).unwrap().to_str().unwrap().to_owned();
        for part in ["; Path=/fleet/", "; HttpOnly", "; SameSite=Strict", "; Secure"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        let value = cookie.split(';').next().unwrap();
        let of = |sessions: &BrowserSessions, value: &str, now: Timestamp| {
            let mut headers = HeaderMap::new();
            headers.insert(COOKIE, format!("other=1; {value}").parse().unwrap());
            sessions.find(&headers, now).map(|session| session.token.name.clone())
        };
        assert_eq!(of(&sessions("key", &tokens), value, now).as_deref(), Some("désk"));
        let end = now + std::time::Duration::from_secs(LENGTH_SECONDS as u64);
        assert_eq!(of(&begun, value, end), None, "it is over");
        assert_eq!(of(&sessions("another", &tokens), value, now), None, "another fleet");
        assert_eq!(of(&sessions("key", &[token("désk", "new")]), value, now), None, "a new token");
        let later = value.replacen(".17", ".18", 1);
        assert_ne!(later, value);
        for wrong in [later.as_str(), "rollcall_session=", "rollcall_session=..", "rollcall_session=a.b.c"] {
            assert_eq!(of(&begun, wrong, now), None, "{wrong}");
        }
    }
}
