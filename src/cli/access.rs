//! Where a command finds alert silences, records and units: in the engine, or at the instance that has locked it.
//!
//! The embedded engine belongs to one process. While an instance serves it, the command asks that instance over HTTP, at
//! `http.listen` of the same configuration.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::HeaderValue;
use reqwest::{Client, Method};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::ConfigFile;
use crate::clock::{Clock, Timestamp};
use crate::config::{Config, EngineConfig};
use crate::fleet::{
    Deliveries, MassBreaker, Mirror, Operators, Roll, RuleBook, Silences, Subject, UnitChange,
};
use crate::http::alertmanager::{ApiSilence, Posted, PostedSilence};
use crate::http::{AUTHOR, ShownBreaker};
use crate::routing::alert_silence::{SilenceState, WantedSilence};
use crate::routing::{AlertSilence, SilenceId};
use crate::store::{AuditEntry, Engine, EngineError};
use crate::store::{embedded, embedded::EmbeddedEngine};
use crate::store::{redis, redis::RedisEngine};
use crate::telemetry::Telemetry;

mod deliveries;

/// How long an answer of an instance may take.
const TIMEOUT: Duration = Duration::from_secs(15);

const NO_FLEET: &str = "there is no fleet yet; start rollcall serve first";
const SILENCES: &str = "/alertmanager/api/v2/silences";

#[derive(Debug, Args)]
pub(super) struct AccessArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// File with a token of http.token, for an instance that serves the embedded engine.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

pub(super) enum Access {
    Engine(Box<EngineAccess>),
    Instance(Instance),
}

impl AccessArguments {
    pub async fn open(&self) -> anyhow::Result<Access> {
        let config = self.file.load()?;
        let telemetry = Arc::new(Telemetry::new(&Clock::system()));
        match &config.engine {
            EngineConfig::Redis(redis) => {
                redis::partitions(redis, telemetry.clone()).await?.context(NO_FLEET)?;
                let engine = Arc::new(RedisEngine::connect(redis, telemetry.clone()).await?);
                EngineAccess::open(engine, config, telemetry).await
            }
            EngineConfig::Embedded(embedded) => {
                embedded::partitions(&embedded.path)?.context(NO_FLEET)?;
                match EmbeddedEngine::open(embedded, telemetry.clone()).await {
                    Ok(engine) => EngineAccess::open(Arc::new(engine), config, telemetry).await,
                    Err(locked @ EngineError::Refused(_)) => {
                        let instance = Instance::new(config.http.listen, self.token_file.as_deref())?;
                        let asked = instance.ask(Method::GET, "/healthz", None, "").await;
                        asked.map(|_| Access::Instance(instance)).map_err(|_| locked.into())
                    }
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}

/// The engine itself, and the rules of this configuration.
pub(super) struct EngineAccess {
    silences: Arc<Silences>,
    roll: Roll,
    deliveries: Deliveries,
    configured: Vec<String>,
    breaker: MassBreaker,
    has_breaker: bool,
}

impl EngineAccess {
    async fn open(
        engine: Arc<dyn Engine>,
        config: Config,
        telemetry: Arc<Telemetry>,
    ) -> anyhow::Result<Access> {
        let configured = config.alerting.receivers.iter().map(|one| one.name.clone()).collect();
        let rules = RuleBook::from(Arc::new(config.rules));
        let mirror = Mirror::new(rules.clone(), engine.partitions());
        // The owners of all partitions are other processes: they learn of each change.
        mirror.keep(|_| false);
        let filters = config.intake.filters(&rules).unwrap_or_default();
        let (mirror, hearing) = (Arc::new(mirror), config.hearing);
        let has_breaker = config.alerting.breaker.is_some();
        let roll = Roll::new(engine.clone(), rules, mirror, telemetry.clone(), hearing, Arc::default());
        let roll = roll.with_filters(filters);
        roll.refresh_hearing().await?;
        let silences = Arc::new(Silences::new(engine.clone()));
        let (alerts, queries, shared) = (engine.clone(), engine.clone(), engine);
        let breaker = MassBreaker::new(None, shared, queries.clone(), silences.clone(), telemetry);
        let deliveries = Deliveries { alerts, queries, silences: silences.clone() };
        let access = EngineAccess { silences, roll, deliveries, configured, breaker, has_breaker };
        Ok(Access::Engine(Box::new(access)))
    }
}

/// An operator, and the comment on a change.
pub(super) struct Operator {
    pub author: String,
    pub comment: String,
}

impl Access {
    pub async fn list(&self) -> anyhow::Result<Vec<AlertSilence>> {
        match self {
            Access::Engine(engine) => Ok(engine.silences.current().await?.to_vec()),
            Access::Instance(instance) => {
                let shown: Vec<ApiSilence> = instance.get(SILENCES).await?;
                let silences = shown.into_iter().map(ApiSilence::silence).collect::<Result<_, _>>();
                silences.map_err(anyhow::Error::msg)
            }
        }
    }

    /// Answers the id.
    pub async fn add(&self, wanted: WantedSilence, now: Timestamp) -> anyhow::Result<SilenceId> {
        match self {
            Access::Engine(engine) => {
                let by = wanted.author.clone();
                Ok(engine.silences.put(None, wanted, &by, now).await?)
            }
            Access::Instance(instance) => instance.post(None, &wanted, &wanted.author).await,
        }
    }

    /// Answers whether it was not over yet.
    pub async fn expire(&self, id: SilenceId, author: &str, now: Timestamp) -> anyhow::Result<bool> {
        match self {
            Access::Engine(engine) => Ok(engine.silences.expire(id, author, now).await?),
            Access::Instance(instance) => {
                let silence = instance.silence(id).await?;
                instance.ask(Method::DELETE, &path_of(id), None, author).await?;
                Ok(silence.state(now) != SilenceState::Expired)
            }
        }
    }

    pub async fn extend(
        &self,
        id: SilenceId,
        ends_at: Timestamp,
        author: &str,
        now: Timestamp,
    ) -> anyhow::Result<()> {
        match self {
            Access::Engine(engine) => Ok(engine.silences.extend(id, ends_at, author, now).await?),
            Access::Instance(instance) => {
                let silence = instance.silence(id).await?;
                if silence.state(now) == SilenceState::Expired {
                    bail!("silence {id} has expired; add a new one");
                }
                let AlertSilence { matchers, starts_at, author: of, comment, .. } = silence;
                let wanted = WantedSilence { matchers, starts_at, ends_at, author: of, comment };
                instance.post(Some(id), &wanted, author).await.map(|_| ())
            }
        }
    }

    /// Changes a unit. `false`: there is nothing to change.
    pub async fn change(
        &self,
        subject: &Subject,
        wanted: &UnitChange,
        operator: &Operator,
        now: Timestamp,
    ) -> anyhow::Result<bool> {
        match self {
            Access::Engine(engine) => {
                let operators = Operators { roll: &engine.roll, silences: &engine.silences };
                let by = (operator.author.as_str(), operator.comment.as_str());
                Ok(operators.change(subject, wanted, by, now).await?)
            }
            Access::Instance(instance) => instance.change(subject, wanted, operator).await.map(|()| true),
        }
    }

    pub async fn breaker(&self) -> anyhow::Result<ShownBreaker> {
        match self {
            Access::Engine(engine) => Ok(ShownBreaker::new(engine.has_breaker, engine.breaker.last().await?)),
            Access::Instance(instance) => instance.get("/api/v1/breaker").await,
        }
    }

    /// Answers whether the breaker held anything.
    pub async fn release_breaker(&self, operator: &Operator, now: Timestamp) -> anyhow::Result<bool> {
        let Operator { author, comment } = operator;
        match self {
            Access::Engine(engine) => Ok(engine.breaker.release((author, comment), now).await?),
            Access::Instance(instance) => {
                let shown: ShownBreaker = instance.get("/api/v1/breaker").await?;
                if shown.tripped {
                    let body = json!({ "author": author, "comment": comment }).to_string();
                    instance.ask(Method::POST, "/api/v1/breaker/release", Some(body), author).await?;
                }
                Ok(shown.tripped)
            }
        }
    }

    pub async fn audit(&self, limit: usize) -> anyhow::Result<Vec<AuditEntry>> {
        #[derive(Deserialize)]
        struct Page {
            audit: Vec<AuditEntry>,
        }
        match self {
            Access::Engine(engine) => Ok(engine.silences.audit(limit).await?),
            Access::Instance(instance) => {
                let path = format!("/api/v1/audit?limit={limit}");
                let page: Page = instance.get(&path).await?;
                Ok(page.audit)
            }
        }
    }
}

/// An instance that serves, over HTTP.
pub(super) struct Instance {
    client: Client,
    address: SocketAddr,
    token: Option<String>,
}

impl Instance {
    fn new(listen: SocketAddr, token_file: Option<&Path>) -> anyhow::Result<Instance> {
        let read = |file: &Path| {
            let text = std::fs::read_to_string(file);
            text.with_context(|| format!("the token in {} cannot be read", file.display()))
        };
        let token = token_file.map(read).transpose()?.map(|text| text.trim().to_owned());
        let plain = Client::builder().no_proxy().tls_certs_only([]).timeout(TIMEOUT);
        Ok(Instance { client: plain.build()?, address: reachable(listen), token })
    }

    async fn silence(&self, id: SilenceId) -> anyhow::Result<AlertSilence> {
        let shown: ApiSilence = self.get(&path_of(id)).await?;
        shown.silence().map_err(anyhow::Error::msg)
    }

    async fn post(
        &self,
        id: Option<SilenceId>,
        wanted: &WantedSilence,
        author: &str,
    ) -> anyhow::Result<SilenceId> {
        let body = serde_json::to_string(&PostedSilence::of(id, wanted))?;
        let posted = self.ask(Method::POST, SILENCES, Some(body), author).await?;
        Ok(self.read::<Posted>(&posted)?.id)
    }

    async fn change(
        &self,
        subject: &Subject,
        wanted: &UnitChange,
        operator: &Operator,
    ) -> anyhow::Result<()> {
        let Operator { author, comment } = operator;
        let unit = subject.unit();
        let of_unit = format!("/api/v1/units/{}/{}", unit.kind, segment(unit.id.as_str()));
        let path = match wanted {
            UnitChange::Acknowledge(_) => self.ack_of(subject, &of_unit).await?,
            UnitChange::Pause(_) => format!("{of_unit}/pause"),
            UnitChange::Register(_) | UnitChange::Remove => of_unit,
        };
        let body = match wanted {
            UnitChange::Acknowledge(Some(_)) => Some(json!({ "author": author, "comment": comment })),
            UnitChange::Pause(Some(until)) => {
                Some(json!({ "until": until, "author": author, "comment": comment }))
            }
            UnitChange::Acknowledge(None)
            | UnitChange::Pause(None)
            | UnitChange::Register(_)
            | UnitChange::Remove => None,
        };
        let method = if body.is_some() { Method::PUT } else { Method::DELETE };
        self.ask(method, &path, body.map(|body| body.to_string()), author).await.map(|_| ())
    }

    /// The page that acknowledges the open record.
    async fn ack_of(&self, subject: &Subject, of_unit: &str) -> anyhow::Result<String> {
        let id = match subject {
            Subject::Record(id) => id.to_string(),
            Subject::Unit(unit) => {
                let shown: serde_json::Value = self.get(of_unit).await?;
                let id = shown["record"]["id"].as_str();
                id.with_context(|| format!("unit {}/{} has no open record", unit.kind, unit.id))?.to_owned()
            }
        };
        Ok(format!("/api/v1/records/{}/ack", segment(&id)))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.read(&self.ask(Method::GET, path, None, "").await?)
    }

    fn read<T: DeserializeOwned>(&self, text: &str) -> anyhow::Result<T> {
        serde_json::from_str(text).with_context(|| format!("{} answered something else", self.address))
    }

    /// The body of an answer. `author`: the operator who changes something.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        author: &str,
    ) -> anyhow::Result<String> {
        let address = self.address;
        let mut request = self.client.request(method, format!("http://{address}{path}"));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        if !author.is_empty() {
            request = request.header(AUTHOR, HeaderValue::from_bytes(author.as_bytes())?);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = request.send().await.with_context(|| format!("{address} does not answer"))?;
        let status = answer.status();
        let text = answer.text().await.with_context(|| format!("{address} does not answer"))?;
        if !status.is_success() {
            let why: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            let why = why.as_str().or(why["detail"].as_str()).unwrap_or(&text);
            bail!("{address} answers {}: {why}", status.as_u16());
        }
        Ok(text)
    }
}

/// The page of an alert silence.
fn path_of(id: SilenceId) -> String {
    format!("/alertmanager/api/v2/silence/{id}")
}

/// A part of the path of a URL.
fn segment(text: &str) -> impl std::fmt::Display {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
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
