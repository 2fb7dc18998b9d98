//! The other instances. The mirror of an instance holds its own units only. So an instance that answers for the whole
//! fleet requests the same page from the others, with the header `rollcall-scope: own` and a signature with the key of
//! the fleet in place of a token. The answer names instances that do not answer in time; their units are missing in it.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use data_encoding::HEXLOWER;
use futures_util::future::join_all;
use reqwest::{Client, redirect};
use ring::hmac;
use serde::de::DeserializeOwned;

use super::PageSources;
use crate::clock::Clock;
use crate::fleet::Ownership;
use crate::store::{EngineError, Roster};
use crate::trust;

/// How long the answer of another instance may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The longest answer of an instance, in bytes: a page of a thousand units with the longest names takes less than half
/// of it.
const MAX_ANSWER: usize = 1024 * 1024;

const SCOPE: HeaderName = HeaderName::from_static("rollcall-scope");
const OWN: HeaderValue = HeaderValue::from_static("own");

/// The header with the time (in seconds) and the signature of a request between instances.
const PROOF: HeaderName = HeaderName::from_static("rollcall-peer");

/// By how much the clocks of two instances may differ, in seconds.
const TOLERANCE: u64 = 60;

/// The key with which instances sign their requests to each other: every instance of the fleet may read.
#[derive(Clone)]
pub(super) struct PeerKey {
    key: hmac::Key,
    clock: Clock,
}

impl PeerKey {
    pub fn new(sources: &PageSources) -> PeerKey {
        let key = hmac::Key::new(hmac::HMAC_SHA256, sources.roll.key().as_bytes());
        PeerKey { key, clock: sources.clock.clone() }
    }

    /// The proof for a request that is sent now. `path`: with its query.
    fn prove(&self, path: &str) -> String {
        let second = self.clock.now().as_millis() / 1000;
        let signature = hmac::sign(&self.key, signed_text(path, second).as_bytes());
        format!("{second}.{}", HEXLOWER.encode(signature.as_ref()))
    }

    /// Returns whether an instance signed this request for its path. `path`: with its query.
    pub fn has_signed(&self, path: &str, headers: &HeaderMap) -> bool {
        let proof = headers.get(PROOF).and_then(|proof| proof.to_str().ok()?.split_once('.'));
        let Some((second, signature)) = proof else { return false };
        let (Ok(second), Ok(signature)) = (second.parse::<i64>(), HEXLOWER.decode(signature.as_bytes()))
        else {
            return false;
        };
        let now = self.clock.now().as_millis() / 1000;
        now.abs_diff(second) <= TOLERANCE
            && hmac::verify(&self.key, signed_text(path, second).as_bytes(), &signature).is_ok()
    }
}

fn signed_text(path: &str, second: i64) -> String {
    format!("peer {second} {path}")
}

/// The other instances of the fleet.
#[derive(Clone)]
pub(super) struct Peers {
    roster: Arc<dyn Roster>,
    ownership: Ownership,
    client: Client,
    key: PeerKey,
}

/// The answers of the other instances.
#[derive(Debug)]
pub(super) struct PeerAnswers<T> {
    pub parts: Vec<T>,
    /// The instances that did not answer.
    pub missing: Vec<String>,
}

/// Returns whether another instance sends the request. It needs the units of this instance only.
pub(super) fn is_from_peer(headers: &HeaderMap) -> bool {
    headers.get(SCOPE).is_some_and(|scope| *scope == OWN)
}

impl Peers {
    pub fn new(sources: &PageSources) -> Peers {
        // Instances use HTTP without TLS between them; the client needs a TLS configuration in any case.
        let tls = trust::web().expect("the provider of cryptography is built in");
        let client = Client::builder().no_proxy().tls_backend_preconfigured(tls).timeout(TIMEOUT);
        let client = client.redirect(redirect::Policy::none()).build();
        Peers {
            roster: sources.roster.clone(),
            ownership: sources.ownership.clone(),
            client: client.expect("a client with a configuration of TLS needs nothing that may be missing"),
            key: PeerKey::new(sources),
        }
    }

    /// The name of this instance.
    pub fn own_name(&self) -> String {
        self.ownership.view().instance.clone()
    }

    /// Requests a part of a page from every other instance. `path`: with its query.
    pub async fn ask<T: DeserializeOwned>(&self, path: &str) -> PeerAnswers<T> {
        let view = self.ownership.view();
        let others: Vec<String> =
            view.instances.iter().filter(|name| **name != view.instance).cloned().collect();
        let addresses = match self.addresses(&others).await {
            Ok(addresses) => addresses,
            Err(_) => return PeerAnswers { parts: Vec::new(), missing: others },
        };
        let asked = others.iter().zip(addresses).map(|(name, address)| async move {
            let part = match address {
                Some(address) => self.ask_one(&address, path).await,
                None => Err("it has announced no address".to_owned()),
            };
            part.map_err(|why| {
                tracing::debug!(instance = %name, %why, "an instance did not answer for its units");
                name.clone()
            })
        });
        let mut answers = PeerAnswers { parts: Vec::new(), missing: Vec::new() };
        for part in join_all(asked).await {
            match part {
                Ok(part) => answers.parts.push(part),
                Err(name) => answers.missing.push(name),
            }
        }
        answers
    }

    async fn addresses(&self, others: &[String]) -> Result<Vec<Option<String>>, EngineError> {
        if others.is_empty() {
            return Ok(Vec::new());
        }
        self.roster.addresses(others).await
    }

    async fn ask_one<T: DeserializeOwned>(&self, address: &str, path: &str) -> Result<T, String> {
        let request = self.client.get(format!("http://{address}{path}")).header(SCOPE, OWN);
        let request = request.header(PROOF, self.key.prove(path));
        let mut answer = request.send().await.map_err(|error| error.without_url().to_string())?;
        if !answer.status().is_success() {
            return Err(format!("it answers {}", answer.status()));
        }
        let mut body = Vec::new();
        while let Some(bytes) = answer.chunk().await.map_err(|error| error.without_url().to_string())? {
            if body.len() + bytes.len() > MAX_ANSWER {
                return Err(format!("its answer is longer than {MAX_ANSWER} bytes"));
            }
            body.extend_from_slice(&bytes);
        }
        serde_json::from_slice(&body).map_err(|error| format!("its answer cannot be read: {error}"))
    }
}
