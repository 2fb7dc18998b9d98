//! A running instance, which commands call over its HTTP API with the rights of a token.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use bytes::BytesMut;
use clap::Args;
use futures_util::stream;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Body, Client, Method, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::operator::OperatorArguments;
use super::{ConfigFile, wrong};
use crate::cause;
use crate::config::{Config, ConfigError, DEFAULT_FILES};
use crate::http::AUTHOR;
use crate::routing::alert_silence::is_author;
use crate::trust;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The longest transfer of a file.
const MAX_TRANSFER: Duration = Duration::from_secs(3600);

/// How many bytes of a file are sent at once.
const CHUNK: usize = 64 * 1024;

/// The longest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 << 20;

/// The most items that a page of the API has.
pub(super) const PAGE: usize = 1000;

/// The variable that may hold the token itself.
const TOKEN: &str = "ROLLCALL_TOKEN";
/// The variable that may name the file of the token.
const TOKEN_FILE: &str = "ROLLCALL_TOKEN_FILE";

#[derive(Debug, Args)]
pub(super) struct RemoteArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Ask the instance that listens there, such as `https://rollcall.example.org`; by default the one at http.listen.
    #[arg(long, value_name = "URL", env = "ROLLCALL_URL", value_parser = address)]
    url: Option<Url>,
    /// File with a token of http.token, for an instance; the variable ROLLCALL_TOKEN may hold the token itself.
    #[arg(long, value_name = "FILE", env = TOKEN_FILE)]
    token_file: Option<PathBuf>,
}

fn address(text: &str) -> Result<Url, String> {
    text.parse().map_err(|error| format!("{error}; write https://rollcall.example.org"))
}

/// A running instance.
pub(super) struct Remote {
    client: Client,
    base: Url,
    /// The option or file that gave the address, for errors.
    named_by: String,
    token: Option<ClientToken>,
}

/// The token that a command sends.
pub(super) struct ClientToken {
    secret: String,
    /// The file or the variable that it came from, for errors.
    from: String,
}

impl ClientToken {
    /// The token of the environment.
    pub fn of_environment() -> anyhow::Result<Option<ClientToken>> {
        ClientToken::find(std::env::var_os(TOKEN_FILE).map(PathBuf::from).as_deref())
    }

    /// The token in a file, or else in the variable.
    fn find(file: Option<&Path>) -> anyhow::Result<Option<ClientToken>> {
        let (secret, from) = match file {
            Some(file) => {
                let from = file.display().to_string();
                let read = std::fs::read_to_string(file);
                (read.with_context(|| format!("the token in {from} cannot be read"))?, from)
            }
            None => (std::env::var(TOKEN).unwrap_or_default(), TOKEN.to_owned()),
        };
        let secret = secret.trim().to_owned();
        Ok((!secret.is_empty()).then_some(ClientToken { secret, from }))
    }
}

/// An instance refuses a request, and says why.
#[derive(Debug, thiserror::Error)]
#[error("{place} answers {}: {detail}", status.as_u16())]
struct RefusedRequest {
    place: String,
    status: StatusCode,
    detail: String,
}

/// Returns whether an instance answered that the thing does not exist.
pub(super) fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<RefusedRequest>().is_some_and(|refusal| refusal.status == StatusCode::NOT_FOUND)
}

impl RemoteArguments {
    pub fn config(&self) -> Result<Config, ConfigError> {
        self.file.load()
    }

    /// The instance at `--url`, or else the instance of the configuration.
    pub fn open(&self) -> anyhow::Result<Remote> {
        let token = ClientToken::find(self.token_file.as_deref())?;
        let Some(base) = self.url.clone() else { return Remote::beside(&self.config()?, token) };
        if !["http", "https"].contains(&base.scheme()) || !base.has_host() {
            return Err(wrong("--url begins with http:// or https:// and a host"));
        }
        let client = Client::builder().tls_backend_preconfigured(trust::web()?).timeout(TIMEOUT);
        let named_by = "--url or ROLLCALL_URL".to_owned();
        Ok(Remote { client: client.build()?, base, named_by, token })
    }
}

impl Remote {
    /// The instance of this configuration on this machine.
    pub fn beside(config: &Config, token: Option<ClientToken>) -> anyhow::Result<Remote> {
        let base = format!("http://{}", reachable(config.http.listen)).parse()?;
        let named_by = format!("http.listen of {}", named_by(config));
        let plain = Client::builder().no_proxy().tls_backend_preconfigured(trust::web()?).timeout(TIMEOUT);
        Ok(Remote { client: plain.build()?, base, named_by, token })
    }

    /// Asks for a page. `path`: its segments; `query`: names and values; `field`: a field that each such page has. An
    /// answer without it is an error: another server must not look like a fleet without units.
    pub async fn get(&self, path: &[&str], query: &[(&str, String)], field: &str) -> anyhow::Result<Value> {
        let answer = self.answer(self.request(Method::GET, path, query)?).await?;
        let status = answer.status();
        let page = self.read(answer).await?;
        ensure!(
            status == StatusCode::OK && page.get(field).is_some(),
            "{} does not answer as Rollcall does ({}, without {field:?}); check {}",
            self.place(),
            status.as_u16(),
            self.named_by
        );
        Ok(page)
    }

    /// The items of a list, page by page.
    pub async fn all(&self, path: &[&str], items: &str) -> anyhow::Result<Vec<Value>> {
        let mut query = vec![("limit", PAGE.to_string())];
        let mut all = Vec::new();
        loop {
            let mut page = self.get(path, &query, items).await?;
            if let Value::Array(more) = page[items].take() {
                all.extend(more);
            }
            let Some(next) = page["next"].as_str() else { return Ok(all) };
            query.truncate(1);
            query.push(("cursor", next.to_owned()));
        }
    }

    /// Asks for a page that is not JSON.
    pub async fn text(&self, path: &[&str]) -> anyhow::Result<String> {
        let request = self.request(Method::GET, path, &[])?;
        let mut text = Vec::new();
        self.receive(request, &mut text).await?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Sends a change. `author`: the operator, for the audit. Returns `null` if the answer is empty.
    pub async fn change(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
        author: Option<&str>,
    ) -> anyhow::Result<Value> {
        let mut request = self.request(method, path, &[])?;
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        self.json(signed(request, author)?).await
    }

    /// Removes a thing, or takes a change back.
    pub async fn delete(&self, path: &[&str], by: &OperatorArguments) -> anyhow::Result<()> {
        let comment = (!by.comment.is_empty()).then(|| by.comment.clone());
        let request = self.request(Method::DELETE, path, &given(vec![("comment", comment)]))?;
        self.json(signed(request, Some(&by.author))?).await.map(drop)
    }

    /// Sends a file, however long that takes.
    pub async fn send(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        media: &str,
        body: Body,
        author: Option<&str>,
    ) -> anyhow::Result<Value> {
        let request = self.request(Method::POST, path, query)?.header(CONTENT_TYPE, media);
        self.json(signed(request, author)?.body(body).timeout(MAX_TRANSFER)).await
    }

    /// Writes an answer to a file as it arrives, however long that takes.
    pub async fn save(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        to: &mut (dyn AsyncWrite + Send + Unpin),
    ) -> anyhow::Result<()> {
        self.receive(self.request(Method::GET, path, query)?.timeout(MAX_TRANSFER), to).await
    }

    async fn receive(
        &self,
        request: RequestBuilder,
        to: &mut (dyn AsyncWrite + Send + Unpin),
    ) -> anyhow::Result<()> {
        let mut answer = self.answer(request).await?;
        if !answer.status().is_success() {
            return self.read(answer).await.map(drop);
        }
        let cut_off = || format!("{} stopped before the end", self.place());
        while let Some(bytes) = answer.chunk().await.with_context(cut_off)? {
            to.write_all(&bytes).await?;
        }
        Ok(to.flush().await?)
    }

    fn request(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
    ) -> anyhow::Result<RequestBuilder> {
        // HTTP clients drop such a segment, and the path would name another page.
        if let Some(id) = path.iter().find(|one| matches!(**one, "" | "." | "..")) {
            bail!("{id:?} is not an id; write the id or the name that the command is about");
        }
        let mut url = self.base.clone();
        url.path_segments_mut().ok().context("--url has no path")?.pop_if_empty().extend(path);
        url.set_query(None);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let request = self.client.request(method, url);
        Ok(match &self.token {
            Some(token) => request.bearer_auth(&token.secret),
            None => request,
        })
    }

    async fn answer(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        let place = self.place();
        request.send().await.map_err(|error| {
            let why = cause::why("--url", "server", &error.without_url());
            anyhow!(
                "{place} ({}) does not answer: {why}; start rollcall serve there, or name another place with --config or \
                 --url",
                self.named_by
            )
        })
    }

    async fn json(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        self.read(self.answer(request).await?).await
    }

    async fn read(&self, mut answer: Response) -> anyhow::Result<Value> {
        let place = self.place();
        let mut body = Vec::new();
        while let Some(bytes) = answer.chunk().await.with_context(|| format!("{place} stopped answering"))? {
            ensure!(body.len() + bytes.len() <= MAX_ANSWER, "the answer of {place} is too long");
            body.extend_from_slice(&bytes);
        }
        let is_success = answer.status().is_success();
        if is_success && body.is_empty() {
            return Ok(Value::Null);
        }
        let read: Result<Value, _> = serde_json::from_slice(&body);
        if is_success {
            return read.map_err(|_| {
                anyhow!("{place} does not answer with JSON, so it is not Rollcall; check {}", self.named_by)
            });
        }
        let (status, problem) = (answer.status(), read.unwrap_or_default());
        let detail = problem["detail"].as_str().map(str::to_owned);
        match (status, detail, &self.token) {
            (StatusCode::UNAUTHORIZED, _, None) => bail!(
                "{place} needs a valid token, and none is given; pass it with --token-file or {TOKEN} (rollcall token \
                 new makes one)"
            ),
            (StatusCode::UNAUTHORIZED, _, Some(token)) => bail!(
                "{place} needs a valid token, and that of {} is unknown there or has expired; pass another one with \
                 --token-file or {TOKEN}",
                token.from
            ),
            // The server says that the arguments are wrong.
            (StatusCode::BAD_REQUEST, Some(detail), _) => {
                Err(wrong(format!("{place} answers 400: {detail}")))
            }
            (_, Some(detail), _) => Err(RefusedRequest { place, status, detail }.into()),
            _ => bail!("{place} answers {}: no reason given; is it Rollcall?", status.as_u16()),
        }
    }

    /// The address without a name or a password.
    pub fn place(&self) -> String {
        let port = self.base.port().map_or(String::new(), |port| format!(":{port}"));
        format!("{}://{}{port}", self.base.scheme(), self.base.host_str().unwrap_or_default())
    }
}

fn signed(request: RequestBuilder, author: Option<&str>) -> anyhow::Result<RequestBuilder> {
    Ok(match author {
        // The instance ignores an invalid name.
        Some(author) if !is_author(author) => {
            return Err(wrong("--author is a short text without control characters"));
        }
        Some(author) => request.header(AUTHOR, HeaderValue::from_bytes(author.as_bytes())?),
        None => request,
    })
}

pub(super) fn given(parameters: Vec<(&'static str, Option<String>)>) -> Vec<(&'static str, String)> {
    parameters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// How a command found its configuration, for errors.
pub(super) fn named_by(config: &Config) -> String {
    match &config.source {
        Some(file) => file.display().to_string(),
        None => format!("the defaults, as {}", without_file()),
    }
}

/// The error that no configuration file was found.
pub(super) fn without_file() -> String {
    format!("neither {} exists", DEFAULT_FILES.join(" nor "))
}

/// The content of a file as the body of a request.
pub(super) fn content(file: File) -> Body {
    Body::wrap_stream(stream::try_unfold(file, async |mut file| {
        let mut chunk = BytesMut::with_capacity(CHUNK);
        let read = file.read_buf(&mut chunk).await?;
        Ok::<_, io::Error>((read > 0).then(|| (chunk.freeze(), file)))
    }))
}

/// The address by which this machine reaches a server that listens on `listen`.
pub(super) fn reachable(mut listen: SocketAddr) -> SocketAddr {
    if listen.ip().is_unspecified() {
        listen.set_ip(match listen {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    listen
}
