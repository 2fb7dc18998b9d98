//! A running instance, which commands ask over its HTTP API.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use reqwest::{Client, StatusCode, Url};
use serde_json::Value;

use crate::cli::ConfigFile;
use crate::cli::access::reachable;
use crate::trust;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(15);

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
        Ok(Remote { client, base, token })
    }
}

impl Remote {
    /// Asks for a page. `path`: its segments; `query`: names and values.
    pub async fn get(&self, path: &[&str], query: &[(&str, String)]) -> anyhow::Result<Value> {
        let mut url = self.base.clone();
        url.path_segments_mut().ok().context("--url has no path")?.pop_if_empty().extend(path);
        url.set_query(None);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let place = self.place();
        let mut request = self.client.get(url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let mut answer = request.send().await.map_err(|error| {
            let why = root_cause(&error.without_url());
            anyhow::anyhow!(
                "{place} does not answer: {why}; does rollcall serve run there? --url names another place"
            )
        })?;
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
