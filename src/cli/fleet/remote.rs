//! A running instance, which commands ask over its HTTP API.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::BytesMut;
use clap::Args;
use futures_util::stream;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Body, Client, Method, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::cli::ConfigFile;
use crate::cli::access::reachable;
use crate::http::AUTHOR;
use crate::trust;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(15);

/// How long an inventory may take.
const LONGEST_TRANSFER: Duration = Duration::from_secs(3600);

/// The bytes of a file that are sent at once.
const CHUNK: usize = 64 * 1024;

/// The longest answer that is read, in bytes.
const LONGEST_ANSWER: usize = 64 << 20;

/// The variable that may hold the token itself.
const TOKEN: &str = "ROLLCALL_TOKEN";

#[derive(Debug, Args)]
pub(super) struct RemoteArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// Where an instance listens, such as `https://rollcall.example.org`; by default http.listen of the configuration.
    #[arg(long, value_name = "URL", env = "ROLLCALL_URL")]
    url: Option<Url>,
    /// File with a token of http.token; the variable ROLLCALL_TOKEN may hold the token itself.
    #[arg(long, value_name = "FILE", env = "ROLLCALL_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

/// A running instance.
pub(super) struct Remote {
    client: Client,
    base: Url,
    token: Option<String>,
    /// The operator who changes something, for the audit.
    pub author: Option<String>,
}

impl RemoteArguments {
    pub fn open(&self) -> anyhow::Result<Remote> {
        let base = match &self.url {
            Some(url) => url.clone(),
            None => format!("http://{}", reachable(self.file.load()?.http.listen)).parse()?,
        };
        ensure!(
            ["http", "https"].contains(&base.scheme()) && base.has_host(),
            "--url begins with http:// or https:// and a host"
        );
        let token = match &self.token_file {
            Some(file) => Some(
                std::fs::read_to_string(file)
                    .with_context(|| format!("the token in {} cannot be read", file.display()))?,
            ),
            None => std::env::var(TOKEN).ok(),
        };
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        let client = Client::builder().tls_backend_preconfigured(trust::web()?).timeout(TIMEOUT).build()?;
        Ok(Remote { client, base, token, author: None })
    }
}

impl Remote {
    /// Asks for a page. `path`: its segments; `query`: names and values.
    pub async fn get(&self, path: &[&str], query: &[(&str, String)]) -> anyhow::Result<Value> {
        self.json(self.request(Method::GET, path, query)?).await
    }

    /// Sends JSON.
    pub async fn send_json(&self, method: Method, path: &[&str], body: &Value) -> anyhow::Result<Value> {
        let request = self.request(method, path, &[])?;
        self.json(request.header(CONTENT_TYPE, "application/json").body(body.to_string())).await
    }

    /// Sends a file, however long that takes.
    pub async fn send_file(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        media: &str,
        file: tokio::fs::File,
    ) -> anyhow::Result<Value> {
        let request = self.request(Method::POST, path, query)?;
        let chunks = stream::try_unfold(file, async |mut file| {
            let mut chunk = BytesMut::with_capacity(CHUNK);
            let read = file.read_buf(&mut chunk).await?;
            Ok::<_, io::Error>((read > 0).then(|| (chunk.freeze(), file)))
        });
        let request = request.header(CONTENT_TYPE, media).body(Body::wrap_stream(chunks));
        self.json(request.timeout(LONGEST_TRANSFER)).await
    }

    /// Writes an answer as it comes, however long that takes.
    pub async fn save(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        to: &mut (impl AsyncWrite + Unpin),
    ) -> anyhow::Result<()> {
        let request = self.request(Method::GET, path, query)?.timeout(LONGEST_TRANSFER);
        let mut answer = self.send(request).await?;
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
        let mut url = self.base.clone();
        url.path_segments_mut().ok().context("--url has no path")?.pop_if_empty().extend(path);
        url.set_query(None);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.client.request(method, url);
        if let Some(author) = &self.author {
            request = request.header(AUTHOR, HeaderValue::from_bytes(author.as_bytes())?);
        }
        Ok(match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        })
    }

    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        let place = self.place();
        request.send().await.map_err(|error| {
            let why = root_cause(&error.without_url());
            anyhow::anyhow!(
                "{place} does not answer: {why}; does rollcall serve run there? --url names another place"
            )
        })
    }

    async fn json(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        self.read(self.send(request).await?).await
    }

    async fn read(&self, mut answer: Response) -> anyhow::Result<Value> {
        let place = self.place();
        let mut body = Vec::new();
        while let Some(bytes) = answer.chunk().await.with_context(|| format!("{place} stopped to answer"))? {
            ensure!(body.len() + bytes.len() <= LONGEST_ANSWER, "the answer of {place} is too long");
            body.extend_from_slice(&bytes);
        }
        let read: Result<Value, _> = serde_json::from_slice(&body);
        if answer.status().is_success() {
            return read
                .with_context(|| format!("{place} answers something else than JSON; is it Rollcall?"));
        }
        let detail = read.ok().and_then(|problem| Some(problem["detail"].as_str()?.to_owned()));
        let detail = detail.unwrap_or_else(|| "no reason given; is it Rollcall?".to_owned());
        match answer.status() {
            StatusCode::UNAUTHORIZED => {
                bail!("{place} wants a token that it knows: give it by --token-file or in {TOKEN}")
            }
            status => bail!("{place} answers {}: {detail}", status.as_u16()),
        }
    }

    /// The address without a name or a password.
    fn place(&self) -> String {
        let port = self.base.port().map_or(String::new(), |port| format!(":{port}"));
        format!("{}://{}{port}", self.base.scheme(), self.base.host_str().unwrap_or_default())
    }
}

/// What an error comes from in the end.
fn root_cause(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = cause.to_string();
        next = cause.source();
    }
    text
}
