//! Where a command finds alert silences, records, units and deliveries: in the engine, or at an instance.
//!
//! With `--url` the command asks the instance there, with the rights of a token. Otherwise it opens the engine of the
//! configuration. The embedded engine belongs to one process: while an instance serves it, the command asks that
//! instance, at `http.listen` of the same configuration. Both answer the same JSON, so a command prints it in one way.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use reqwest::Method;
use serde_json::{Value, json};

use super::remote::{Remote, RemoteArguments, named_by};
use super::wrong;
use crate::clock::{Clock, Timestamp, parse_moment};
use crate::config::{Config, EngineConfig};
use crate::fleet::coverage::covered;
use crate::fleet::{
    Attempts, Deliveries, MassBreaker, Mirror, Operators, Receivers, Roll, SharedRules, Silences,
    SilencesError, Subject, UnitChange,
};
use crate::http::{ShownBreaker, ShownSilence};
use crate::presence::Kind;
use crate::routing::alert_silence::{SilenceError, SilenceRequest, SilenceState, in_order};
use crate::routing::{AlertSilence, SilenceId};
use crate::store::{Documents, Engine, EngineError, Queries, StoredDeliveries, StoredTimers};
use crate::store::{embedded, embedded::EmbeddedEngine};
use crate::store::{redis, redis::RedisEngine};
use crate::telemetry::Telemetry;

mod deliveries;

const NO_FLEET: &str = "there is no fleet yet; start rollcall serve first";

const SILENCES: [&str; 3] = ["api", "v1", "silences"];
const BREAKER: [&str; 3] = ["api", "v1", "breaker"];

pub(super) enum Access {
    Engine(Box<EngineAccess>),
    Instance(Remote),
}

/// The engine itself, and the rules of this configuration.
pub(super) struct EngineAccess {
    silences: Arc<Silences>,
    queries: Arc<dyn Queries>,
    roll: Arc<Roll>,
    deliveries: Deliveries,
    receivers: Receivers,
    config: crate::alerting::Config,
    breaker: Arc<MassBreaker>,
    /// The kinds that are configured.
    kinds: Vec<Kind>,
    clock: Clock,
}

impl EngineAccess {
    async fn open(
        engine: Arc<dyn Engine>,
        config: Config,
        telemetry: Arc<Telemetry>,
        clock: Clock,
    ) -> anyhow::Result<Access> {
        let kinds = config.rules.keys().cloned().collect();
        let rules = SharedRules::from(Arc::new(config.rules));
        let mirror = Mirror::new(rules.clone(), engine.partitions());
        // Other processes own all partitions: they learn of each change.
        mirror.keep(|_| false);
        let filters = config.intake.filters(&rules).unwrap_or_default();
        let (mirror, hearing) = (Arc::new(mirror), config.hearing);
        let roll = Roll::new(engine.clone(), rules, mirror, telemetry.clone(), hearing, Arc::default());
        let roll = roll.with_filters(filters);
        roll.refresh_hearing().await?;
        let silences = Arc::new(Silences::new(engine.clone()));
        let records = StoredDeliveries::new(engine.clone());
        let (queries, groups) = (engine.clone(), engine.clone());
        let (timers, cells) = (StoredTimers::new(engine.clone()), engine);
        let roll = Arc::new(roll);
        let breaker = MassBreaker::new(None, cells.clone(), queries.clone(), silences.clone(), telemetry);
        let breaker = Arc::new(breaker);
        let all_units = queries.clone();
        let receivers = Receivers { records: records.clone(), documents: Documents::new(cells.clone()) };
        let deliveries = Deliveries {
            records,
            attempts: Attempts::new(cells),
            queries,
            groups,
            roll: roll.clone(),
            breaker: breaker.clone(),
            timers,
            silences: silences.clone(),
        };
        let config = config.alerting;
        let access = EngineAccess {
            silences,
            queries: all_units,
            roll,
            deliveries,
            receivers,
            config,
            breaker,
            kinds,
            clock,
        };
        Ok(Access::Engine(Box::new(access)))
    }

    /// The names of the receivers that are configured.
    fn configured(&self) -> Vec<String> {
        self.config.receivers.iter().map(|one| one.name.clone()).collect()
    }
}

/// An operator, and the comment on a change.
pub(super) struct Operator {
    pub author: String,
    pub comment: String,
}

impl Access {
    pub async fn open(arguments: &RemoteArguments) -> anyhow::Result<Access> {
        if let Some(remote) = arguments.named()? {
            return Ok(Access::Instance(remote));
        }
        let config = arguments.config()?;
        let named_by = named_by(&config);
        Access::beside(arguments, config)
            .await
            .map_err(|error| anyhow!("{error:#} (the engine of {named_by})"))
    }

    /// The engine of this configuration, or the instance that has locked it.
    async fn beside(arguments: &RemoteArguments, config: Config) -> anyhow::Result<Access> {
        let clock = Clock::system();
        let telemetry = Arc::new(Telemetry::new(&clock));
        match &config.engine {
            EngineConfig::Redis(redis) => {
                redis::partitions(redis, telemetry.clone()).await?.context(NO_FLEET)?;
                let engine = Arc::new(RedisEngine::connect(redis, telemetry.clone()).await?);
                // The clock of this machine may be wrong; the fleet uses the clock of the engine.
                let (theirs, took) = engine.time().await?;
                clock.follow(theirs, took);
                EngineAccess::open(engine, config, telemetry, clock).await
            }
            EngineConfig::Embedded(embedded) => {
                embedded::partitions(&embedded.path)?.context(NO_FLEET)?;
                match EmbeddedEngine::open(embedded, telemetry.clone()).await {
                    Ok(engine) => EngineAccess::open(Arc::new(engine), config, telemetry, clock).await,
                    Err(locked @ EngineError::Refused(_)) => {
                        let instance = arguments.beside(&config)?;
                        let asked = instance.text(&["healthz"]).await;
                        asked.map(|_| Access::Instance(instance)).map_err(|_| locked.into())
                    }
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    /// The time of the fleet. An instance uses its own clock for requests; then this is the clock of this machine.
    pub fn now(&self) -> Timestamp {
        match self {
            Access::Engine(engine) => engine.clock.now(),
            Access::Instance(_) => Clock::system().now(),
        }
    }

    /// Whether a kind is configured, as far as this command knows.
    pub fn has_kind(&self, kind: &Kind) -> bool {
        match self {
            Access::Engine(engine) => engine.kinds.contains(kind),
            Access::Instance(_) => true,
        }
    }

    /// Alert silences, active ones first.
    pub async fn silences(&self, now: Timestamp) -> anyhow::Result<Value> {
        match self {
            Access::Engine(engine) => {
                let stored = engine.silences.current().await?;
                let stored = in_order(&stored, now);
                let lasting = stored.iter().filter(|one| one.state(now) != SilenceState::Expired);
                let lasting: Vec<AlertSilence> = lasting.map(|one| (*one).clone()).collect();
                let units = covered(engine.queries.clone(), &lasting).await?.unwrap_or_default();
                let shown =
                    stored.into_iter().map(|one| ShownSilence::of(one, units.get(&one.id).copied(), now));
                Ok(serde_json::to_value(shown.collect::<Vec<ShownSilence>>())?)
            }
            Access::Instance(remote) => Ok(Value::Array(remote.all(&SILENCES, "silences").await?)),
        }
    }

    /// Adds an alert silence of this length, which begins at `from` or now. Returns its id, and how many units it
    /// covers, if they could be counted. For a silence that begins now, an instance uses its own clock.
    pub async fn add(
        &self,
        wanted: SilenceRequest,
        (from, span): (Option<Timestamp>, Option<Duration>),
        now: Timestamp,
    ) -> anyhow::Result<(String, Option<u64>)> {
        match self {
            Access::Engine(engine) => {
                let by = wanted.author.clone();
                let id = engine.silences.put(None, wanted, &by, now).await.map_err(refused)?;
                let stored = engine.silences.cached().await?;
                let added: Vec<AlertSilence> = stored.iter().filter(|one| one.id == id).cloned().collect();
                let counted = covered(engine.queries.clone(), &added).await.ok().flatten();
                Ok((id.to_string(), counted.and_then(|units| units.get(&id).copied())))
            }
            Access::Instance(remote) => {
                let SilenceRequest { matchers, ends_at, author, comment, .. } = wanted;
                let matchers: Vec<String> = matchers.iter().map(ToString::to_string).collect();
                let ends_at = span.is_none().then_some(ends_at);
                let span = span.map(|span| format!("{}ms", span.as_millis()));
                let body = json!({
                    "matchers": matchers, "starts_at": from, "ends_at": ends_at, "for": span, "author": author,
                    "comment": comment,
                });
                let added = remote.change(Method::POST, &SILENCES, Some(&body), Some(&author)).await?;
                let id = added["id"].as_str().context("the answer names no silence")?;
                Ok((id.to_owned(), added["units"].as_u64()))
            }
        }
    }

    /// Ends an alert silence; returns whether it was still active or pending.
    pub async fn expire(&self, id: SilenceId, author: &str, now: Timestamp) -> anyhow::Result<bool> {
        match self {
            Access::Engine(engine) => Ok(engine.silences.expire(id, author, now).await.map_err(refused)?),
            Access::Instance(remote) => {
                let id = id.to_string();
                let path = [&SILENCES[..], &[&id]].concat();
                let was_over = is_over(&remote.get(&path, &[], "ends_at").await?);
                remote.change(Method::DELETE, &path, None, Some(author)).await?;
                Ok(!was_over)
            }
        }
    }

    /// Moves the end of an alert silence to a later moment. Returns its end; an end that is later already stays.
    pub async fn extend(
        &self,
        id: SilenceId,
        ends_at: Timestamp,
        author: &str,
        now: Timestamp,
    ) -> anyhow::Result<Timestamp> {
        match self {
            Access::Engine(engine) => {
                let stored = engine.silences.current().await?;
                let lasting =
                    stored.iter().find(|one| one.id == id && one.state(now) != SilenceState::Expired);
                if let Some(lasting) = lasting.filter(|one| one.ends_at > ends_at) {
                    return Ok(lasting.ends_at);
                }
                engine.silences.extend(id, ends_at, author, now).await.map_err(refused)?;
                Ok(ends_at)
            }
            Access::Instance(remote) => {
                let id = id.to_string();
                let path = [&SILENCES[..], &[&id]].concat();
                let shown = remote.get(&path, &[], "ends_at").await?;
                ensure!(!is_over(&shown), "silence {id} has expired; add a new one");
                let lasts = shown["ends_at"].as_str().and_then(parse_moment);
                if let Some(later) = lasts.filter(|lasts| *lasts > ends_at) {
                    return Ok(later);
                }
                let body = json!({
                    "matchers": shown["matchers"], "starts_at": shown["starts_at"], "ends_at": ends_at,
                    "author": shown["author"], "comment": shown["comment"],
                });
                remote.change(Method::PUT, &path, Some(&body), Some(author)).await.map(|_| ends_at)
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
            Access::Instance(remote) => change(remote, subject, wanted, operator).await.map(|()| true),
        }
    }

    /// Receivers, sorted by name.
    pub async fn receivers(&self) -> anyhow::Result<Value> {
        match self {
            Access::Engine(engine) => {
                Ok(serde_json::to_value(engine.receivers.list(&engine.config.types()).await?)?)
            }
            Access::Instance(remote) => {
                Ok(remote.get(&["api", "v1", "receivers"], &[], "receivers").await?["receivers"].take())
            }
        }
    }

    pub async fn breaker(&self) -> anyhow::Result<Value> {
        match self {
            Access::Engine(engine) => {
                let trip = engine.breaker.last().await?;
                Ok(serde_json::to_value(ShownBreaker::new(engine.config.breaker.is_some(), trip))?)
            }
            Access::Instance(remote) => remote.get(&BREAKER, &[], "tripped").await,
        }
    }

    /// Releases the breaker; returns whether it held anything.
    pub async fn release_breaker(&self, operator: &Operator, now: Timestamp) -> anyhow::Result<bool> {
        let Operator { author, comment } = operator;
        match self {
            Access::Engine(engine) => Ok(engine.breaker.release((author, comment), now).await?),
            Access::Instance(remote) => {
                let is_tripped = remote.get(&BREAKER, &[], "tripped").await?["tripped"] == true;
                if is_tripped {
                    let path = [&BREAKER[..], &["release"]].concat();
                    let body = json!({ "author": author, "comment": comment });
                    remote.change(Method::POST, &path, Some(&body), Some(author)).await?;
                }
                Ok(is_tripped)
            }
        }
    }

    /// The last changes that operators made, newest first.
    pub async fn audit(&self, limit: usize) -> anyhow::Result<Value> {
        match self {
            Access::Engine(engine) => Ok(serde_json::to_value(engine.silences.audit(limit).await?)?),
            Access::Instance(remote) => {
                let query = [("limit", limit.to_string())];
                Ok(remote.get(&["api", "v1", "audit"], &query, "audit").await?["audit"].take())
            }
        }
    }
}

/// An alert silence that is refused because of its content means wrong arguments.
fn refused(error: SilencesError) -> anyhow::Error {
    match error {
        SilencesError::Refused(
            error @ (SilenceError::Unknown(_) | SilenceError::Expired(_) | SilenceError::TooMany),
        ) => error.into(),
        SilencesError::Refused(error) => wrong(error.to_string()),
        SilencesError::Engine(error) => error.into(),
    }
}

/// Whether an alert silence, as it is shown, is over.
pub(super) fn is_over(shown: &Value) -> bool {
    shown["state"] == SilenceState::Expired.as_str()
}

async fn change(
    remote: &Remote,
    subject: &Subject,
    wanted: &UnitChange,
    operator: &Operator,
) -> anyhow::Result<()> {
    let Operator { author, comment } = operator;
    let unit = subject.unit();
    let of_unit = ["api", "v1", "units", unit.kind.as_str(), unit.id.as_str()];
    let record;
    let (path, body) = match wanted {
        UnitChange::Acknowledge(to) => {
            record = match subject {
                Subject::Record(id) => id.to_string(),
                Subject::Unit(_) => {
                    let shown = remote.get(&of_unit, &[], "state").await?;
                    let id = shown["record"]["id"].as_str();
                    id.with_context(|| format!("unit {}/{} has no open record", unit.kind, unit.id))?
                        .to_owned()
                }
            };
            let body = to.as_ref().map(|_| json!({ "author": author, "comment": comment }));
            (vec!["api", "v1", "records", &record, "ack"], body)
        }
        UnitChange::Pause(until) => {
            let body = until.map(|until| json!({ "until": until, "author": author, "comment": comment }));
            ([&of_unit[..], &["pause"]].concat(), body)
        }
        UnitChange::Remove => (of_unit.to_vec(), None),
        UnitChange::Register(_) => bail!("units are registered by rollcall import"),
    };
    let method = if body.is_some() { Method::PUT } else { Method::DELETE };
    remote.change(method, &path, body.as_ref(), Some(author)).await.map(drop)
}
