//! The connections to Redis: one server today. All commands go through this file, so support for several servers
//! changes only this file.
//!
//! There is one multiplexed connection, which reconnects by itself, and a few dedicated ones. A call without a
//! connection waits for one attempt to connect and then fails; the caller decides whether to repeat it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    Client, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, ScriptInvocation, ServerErrorKind,
    Value,
};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::Config;
use super::admission::{Admission, Permit};
use super::config::{CONNECT, RESPONSE};
use super::dedicated::{Dedicated, IdleConnections};
use super::round_trip::{RoundTrip, times};
use crate::store::{EngineError, Result};
use crate::telemetry::Telemetry;
use crate::trust;

pub mod address;
mod login;

pub use address::{Address, AddressError, HostPort, Mode, SCHEMES};
pub use login::Login;

pub struct Topology {
    client: Client,
    connection: ConnectionManager,
    address: String,
    idle: IdleConnections,
    admission: Admission,
    round_trip: RoundTrip,
    telemetry: Arc<Telemetry>,
    /// Notified when a command finds a key of a wrong type.
    wrong_type: Notify,
    has_wrong_type: AtomicBool,
}

impl Topology {
    /// Prepares the connections to the server of `config`; the first call connects.
    pub fn new(config: &Config, telemetry: Arc<Telemetry>) -> Result<Topology> {
        let login = Login::new(config)?;
        let address = login.address().to_string();
        if login.address().mode != Mode::Single {
            return Err(EngineError::Refused(format!("{address} is not supported yet; use one server")));
        }
        let client = login.single().map_err(|error| classify(&address, &error))?;
        let connection = ConnectionManager::new_lazy_with_config(client.clone(), manager())
            .map_err(|error| classify(&address, &error))?;
        Ok(Topology {
            client,
            connection,
            address,
            idle: IdleConnections::default(),
            admission: Admission::new(),
            round_trip: RoundTrip::default(),
            telemetry,
            wrong_type: Notify::new(),
            has_wrong_type: AtomicBool::new(true),
        })
    }

    /// Requests an examination, which quarantines keys of a wrong type.
    pub fn request_quarantine(&self) {
        self.has_wrong_type.store(true, Ordering::Relaxed);
        self.wrong_type.notify_one();
    }

    /// Whether quarantine was requested since the last call. True at first: keys of a wrong type may be older than
    /// this process.
    pub fn take_quarantine_request(&self) -> bool {
        self.has_wrong_type.swap(false, Ordering::Relaxed)
    }

    /// Ends when quarantine is requested.
    pub async fn quarantine_requested(&self) {
        self.wrong_type.notified().await;
    }

    /// The address of the server for messages: without user and password.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A client for connections of their own.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Sends commands as one batch. `name` names the batch in metrics and errors. An empty batch, as of an instance
    /// that owns no partition, is not sent.
    pub async fn send<T: FromRedisValue>(&self, name: &'static str, pipe: &Pipeline) -> Result<T> {
        if pipe.is_empty() {
            let nothing = redis::from_redis_value(redis::Value::Array(Vec::new()));
            return nothing.map_err(|error| EngineError::Damaged(format!("{name}: {error}")));
        }
        let began = Instant::now();
        let answer = pipe.query_async(&mut self.connection.clone()).await;
        self.judge(name, began, answer)
    }

    /// Sends commands that read units, as soon as a read is admitted.
    pub async fn read<T: FromRedisValue>(&self, name: &'static str, pipe: &Pipeline) -> Result<T> {
        let _permit = self.admission.read().await;
        self.send(name, pipe).await
    }

    /// Sends at least one command as one batch, and passes the answers to `read`.
    pub async fn send_raw<T>(
        &self,
        name: &'static str,
        pipe: &Pipeline,
        read: impl FnOnce(Vec<Value>) -> RedisResult<T>,
    ) -> Result<T> {
        let began = Instant::now();
        let answers = self.connection.clone().send_packed_commands(pipe, 0, pipe.len()).await;
        self.judge(name, began, answers.and_then(first_error).and_then(read))
    }

    /// Sends commands over a connection of their own, which is closed afterwards. Answers the answers to each.
    /// `first` ends with `MULTI`; `others` are sent only if the server accepts it, and are never executed.
    pub async fn try_out(&self, first: &Pipeline, others: &Pipeline) -> Result<(Vec<Value>, Vec<Value>)> {
        let began = Instant::now();
        let tried = async {
            let patience = redis::AsyncConnectionConfig::new()
                .set_connection_timeout(Some(CONNECT))
                .set_response_timeout(Some(RESPONSE));
            let mut connection = self.client.get_multiplexed_async_connection_with_config(&patience).await?;
            let answers = connection.send_packed_commands(first, 0, first.len()).await?;
            if answers.last() != Some(&Value::Okay) {
                return Ok((answers, Vec::new()));
            }
            let queued = connection.send_packed_commands(others, 0, others.len()).await?;
            Ok((answers, queued))
        };
        self.judge("probe", began, tried.await)
    }

    /// Waits until units may be checked.
    pub async fn admit_check(&self) -> Permit<'_> {
        self.admission.check().await
    }

    /// Sends commands that may be repeated as one batch, over a dedicated connection.
    pub async fn ask_dedicated<T: FromRedisValue>(
        &self,
        name: &'static str,
        pipe: &Pipeline,
    ) -> Result<(Dedicated<'_>, T)> {
        let began = Instant::now();
        let answer = self.idle.ask(&self.client, pipe).await;
        self.judge(name, began, answer)
    }

    /// Opens a dedicated connection, so that the first deadline check does not wait for one.
    pub async fn prepare_dedicated(&self) -> Result<()> {
        let mut nothing = redis::pipe();
        nothing.cmd("UNWATCH").ignore();
        self.ask_dedicated::<()>("meta", &nothing).await.map(|_| ())
    }

    /// Sends commands as one batch over a dedicated connection, which is closed after a failure.
    pub async fn send_dedicated<'a, T: FromRedisValue>(
        &self,
        name: &'static str,
        connection: Dedicated<'a>,
        pipe: &Pipeline,
    ) -> Result<(Dedicated<'a>, T)> {
        let began = Instant::now();
        let answer = connection.send(pipe).await;
        self.judge(name, began, answer)
    }

    /// Runs a script; one that the server does not know is loaded first.
    pub async fn run<T: FromRedisValue>(
        &self,
        name: &'static str,
        script: &ScriptInvocation<'_>,
    ) -> Result<T> {
        let began = Instant::now();
        let answer = script.invoke_async(&mut self.connection.clone()).await;
        self.judge(name, began, answer)
    }

    /// Runs a script and the commands behind it as one batch: the commands read the state after the script.
    pub async fn run_and_send<T: FromRedisValue, U: FromRedisValue>(
        &self,
        name: &'static str,
        script: &ScriptInvocation<'_>,
        behind: &Pipeline,
    ) -> Result<(T, U)> {
        let began = Instant::now();
        let mut batch = redis::pipe();
        batch.invoke_script(script);
        for command in behind.cmd_iter() {
            batch.add_command(command.clone());
        }
        let sent = async {
            let mut connection = self.connection.clone();
            let mut answers = connection.send_packed_commands(&batch, 0, batch.len()).await?;
            if matches!(&answers[..], [Value::ServerError(error), ..] if error.code() == "NOSCRIPT") {
                script.load_async(&mut connection).await?;
                answers = connection.send_packed_commands(&batch, 0, batch.len()).await?;
            }
            let mut answers = first_error(answers)?;
            let others = answers.split_off(1.min(answers.len()));
            let first = answers.pop().unwrap_or(Value::Nil);
            Ok((redis::from_redis_value(first)?, redis::from_redis_value(Value::Array(others))?))
        };
        self.judge(name, began, sent.await)
    }

    /// See [`Admission::share`].
    pub fn share(&self, instances: usize) {
        self.admission.share(instances);
    }

    /// See [`Admission::storm`].
    pub fn storm(&self, is_on: bool) {
        self.admission.storm(is_on);
    }

    /// Whether a storm is on, as a channel.
    pub fn storms(&self) -> watch::Receiver<bool> {
        self.admission.storms()
    }

    /// Sends commands that read for the mirror, after a storm: see [`Admission::calm`].
    pub async fn browse<T: FromRedisValue>(&self, name: &'static str, pipe: &Pipeline) -> Result<T> {
        self.admission.calm().await;
        self.send(name, pipe).await
    }

    /// Runs a script that changes many units, as soon as a change is admitted.
    pub async fn change<T: FromRedisValue>(
        &self,
        name: &'static str,
        script: &ScriptInvocation<'_>,
    ) -> Result<T> {
        let _permit = self.admission.change().await;
        self.run(name, script).await
    }

    /// Runs a script of alerting, as soon as it is admitted.
    pub async fn run_alerting<T: FromRedisValue>(
        &self,
        name: &'static str,
        script: &ScriptInvocation<'_>,
    ) -> Result<T> {
        let _permit = self.admission.alerting().await;
        self.run(name, script).await
    }

    /// Awaits steps in order, few of them under way at once: see [`super::admission`].
    pub async fn few_at_once<T>(&self, steps: Vec<impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
        stream::iter(steps).buffered(self.admission.steps()).try_collect().await
    }

    /// Whether a request is on the network for longer than the server works on it.
    pub fn is_far(&self) -> bool {
        self.admission.is_far()
    }

    /// The shortest recent time from a request to its answer, if the server is far away; else zero.
    pub fn round_trip(&self) -> Duration {
        if self.is_far() { self.round_trip.least() } else { Duration::ZERO }
    }

    fn judge<T>(&self, name: &'static str, began: Instant, answer: RedisResult<T>) -> Result<T> {
        self.telemetry.engine_command(name, began.elapsed());
        match answer {
            Ok(answer) => {
                let now = Instant::now();
                self.admission.set_times(times(self.round_trip.took(now.duration_since(began), now)));
                Ok(answer)
            }
            Err(error) => {
                let error = classify(&self.address, &error);
                if matches!(error, EngineError::WrongType(_)) {
                    self.request_quarantine();
                }
                Err(error)
            }
        }
    }
}

/// The answers, or the first error among them.
fn first_error(answers: Vec<Value>) -> RedisResult<Vec<Value>> {
    match answers.iter().find(|answer| matches!(answer, Value::ServerError(_))) {
        None => Ok(answers),
        Some(error) => Err(error.clone().extract_error().expect_err("it is one")),
    }
}

/// How connections are opened again after a failure.
pub fn manager() -> ConnectionManagerConfig {
    ConnectionManagerConfig::new()
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(Some(RESPONSE))
        .set_number_of_retries(1)
        .set_min_delay(Duration::from_millis(50))
        .set_max_delay(Duration::from_millis(500))
}

/// The meaning of a failure, with advice for the operator.
pub fn classify(address: &str, error: &RedisError) -> EngineError {
    let refused = |why: &str| EngineError::Refused(format!("redis at {address} {why}: {error}"));
    let unavailable = |why: &str| EngineError::Unavailable(format!("redis at {address} {why}: {error}"));
    // A script reports it within an error of its own.
    if error.code() == Some("WRONGTYPE") || error.to_string().contains("WRONGTYPE") {
        return EngineError::WrongType(format!("redis at {address} holds a key of a wrong type: {error}"));
    }
    if let Some(cause) = trust::cause(error) {
        let why = trust::advice("engine", "server", cause);
        return EngineError::Unavailable(format!("redis at {address} cannot be reached: {why}"));
    }
    if error.is_io_error() {
        return unavailable("cannot be reached; check engine.url, and that it runs");
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            refused("refused the login; check engine.url and engine.password_file")
        }
        ErrorKind::InvalidClientConfig => refused("cannot be addressed like that; check engine.url"),
        ErrorKind::RESP3NotSupported => refused("is too old; 6.2 or newer is needed"),
        ErrorKind::Server(ServerErrorKind::NoPerm) => {
            refused("does not permit a command; check the rights of its user")
        }
        ErrorKind::Server(ServerErrorKind::ReadOnly) => {
            unavailable("is a replica; engine.url has to name the primary")
        }
        ErrorKind::Server(ServerErrorKind::Moved) => {
            refused("holds only a part of a cluster, which is not supported yet; use a server that holds all")
        }
        ErrorKind::Server(ServerErrorKind::BusyLoading) => unavailable("is still loading its data"),
        _ => match error.code() {
            Some("NOAUTH" | "WRONGPASS") => {
                refused("refused the login; check engine.url and engine.password_file")
            }
            Some("OOM") => unavailable("is full; raise its maxmemory"),
            Some("MISCONF") => unavailable("cannot write its data to disk"),
            _ => unavailable("did not execute a command"),
        },
    }
}
