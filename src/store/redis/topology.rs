//! Where keys live: one server now. Everything that speaks to Redis goes through here, so that
//! several servers later are a matter of this file.
//!
//! One multiplexed connection that reconnects by itself, and a few dedicated ones. A call made
//! while it is down waits for one attempt to connect and then fails; whether to repeat it is for the
//! caller to say.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{
    Client, ErrorKind, FromRedisValue, IntoConnectionInfo, Pipeline, ProtocolVersion, RedisError,
    RedisResult, ScriptInvocation, ServerErrorKind, Value,
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

/// The servers that hold the fleet.
pub struct Topology {
    client: Client,
    connection: ConnectionManager,
    address: String,
    idle: IdleConnections,
    admission: Admission,
    round_trip: RoundTrip,
    telemetry: Arc<Telemetry>,
    /// Notified when a key of a wrong type was met.
    wrong_type: Notify,
    has_wrong_type: AtomicBool,
}

impl Topology {
    /// Prepares to speak to the server of `config`; connects when first asked for something.
    pub fn new(config: &Config, telemetry: Arc<Telemetry>) -> Result<Topology> {
        let address = config.to_string();
        let client = client(config).map_err(|error| classify(&address, &error))?;
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

    /// A key of a wrong type was met.
    pub fn quarantine_wrong_types(&self) {
        self.has_wrong_type.store(true, Ordering::Relaxed);
        self.wrong_type.notify_one();
    }

    /// Whether one was since this was asked last. One may be there from before a start.
    pub fn takes_wrong_type(&self) -> bool {
        self.has_wrong_type.swap(false, Ordering::Relaxed)
    }

    /// Ends when one is met.
    pub async fn met_wrong_type(&self) {
        self.wrong_type.notified().await;
    }

    /// The server, for people: without user and password.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A client for connections of their own.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Sends commands as one batch. `name` is what the batch does, for metrics and errors. A batch
    /// of none is not sent: nothing was asked, as by an instance that owns no partition.
    pub async fn send<T: FromRedisValue>(&self, name: &'static str, pipe: &Pipeline) -> Result<T> {
        if pipe.is_empty() {
            let nothing = redis::from_redis_value(redis::Value::Array(Vec::new()));
            return nothing.map_err(|error| EngineError::Damaged(format!("{name}: {error}")));
        }
        let began = Instant::now();
        let answer = pipe.query_async(&mut self.connection.clone()).await;
        self.judge(name, began, answer)
    }

    /// Sends commands that read units, once that is admitted.
    pub async fn read<T: FromRedisValue>(&self, name: &'static str, pipe: &Pipeline) -> Result<T> {
        let _permit = self.admission.read().await;
        self.send(name, pipe).await
    }

    /// Sends commands as one batch, at least one, and lets `read` have what the server said to each.
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

    /// Sends commands over a connection that is closed afterwards, and lets the caller have what the server says to
    /// each. `first` ends with `MULTI`; the others are sent only if that was granted, and are never executed.
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

    /// Makes such a connection, so that the first deadline check need not wait for it.
    pub async fn prepare_dedicated(&self) -> Result<()> {
        let mut nothing = redis::pipe();
        nothing.cmd("UNWATCH").ignore();
        self.ask_dedicated::<()>("meta", &nothing).await.map(|_| ())
    }

    /// Sends commands as one batch over such a connection, which is closed after a failure.
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

    /// Runs a script and sends commands behind it, as one batch: what they answer is as of after the script.
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

    /// That many instances are there: see [`Admission::share`].
    pub fn share(&self, instances: usize) {
        self.admission.share(instances);
    }

    /// Very many units are due, until that is over: see [`Admission::storm`].
    pub fn storm(&self, is_on: bool) {
        self.admission.storm(is_on);
    }

    /// Tells of storms that come and go.
    pub fn storms(&self) -> watch::Receiver<bool> {
        self.admission.storms()
    }

    /// Sends commands that read for the mirror, once no storm is on: see [`Admission::calm`].
    pub async fn browse<T: FromRedisValue>(&self, name: &'static str, pipe: &Pipeline) -> Result<T> {
        self.admission.calm().await;
        self.send(name, pipe).await
    }

    /// Runs a script that changes many units, once that is admitted.
    pub async fn change<T: FromRedisValue>(
        &self,
        name: &'static str,
        script: &ScriptInvocation<'_>,
    ) -> Result<T> {
        let _permit = self.admission.change().await;
        self.run(name, script).await
    }

    /// Runs a script that has to do with telling, once that is admitted.
    pub async fn tell<T: FromRedisValue>(
        &self,
        name: &'static str,
        script: &ScriptInvocation<'_>,
    ) -> Result<T> {
        let _permit = self.admission.tell().await;
        self.run(name, script).await
    }

    /// Awaits steps in order, few of them under way at once: see [`super::admission`].
    pub async fn few_at_once<T>(&self, steps: Vec<impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
        stream::iter(steps).buffered(self.admission.steps()).try_collect().await
    }

    /// Whether the server is so far away that what is under way to it takes longer than what it does.
    pub fn is_far(&self) -> bool {
        self.admission.is_far()
    }

    /// How long an answer is under way at the least, if that is far.
    pub fn round_trip(&self) -> Duration {
        if self.is_far() { self.round_trip.least() } else { Duration::ZERO }
    }

    fn judge<T>(&self, name: &'static str, began: Instant, answer: RedisResult<T>) -> Result<T> {
        self.telemetry.engine_command(name, began.elapsed());
        match answer {
            Ok(answer) => {
                let now = Instant::now();
                self.admission.stretch(times(self.round_trip.took(now.duration_since(began), now)));
                Ok(answer)
            }
            Err(error) => {
                let error = classify(&self.address, &error);
                if matches!(error, EngineError::WrongType(_)) {
                    self.quarantine_wrong_types();
                }
                Err(error)
            }
        }
    }
}

/// What the server said, unless it refused something.
fn first_error(answers: Vec<Value>) -> RedisResult<Vec<Value>> {
    match answers.iter().find(|answer| matches!(answer, Value::ServerError(_))) {
        None => Ok(answers),
        Some(error) => Err(error.clone().extract_error().expect_err("it is one")),
    }
}

/// How connections are kept up.
pub fn manager() -> ConnectionManagerConfig {
    ConnectionManagerConfig::new()
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(Some(RESPONSE))
        .set_number_of_retries(1)
        .set_min_delay(Duration::from_millis(50))
        .set_max_delay(Duration::from_millis(500))
}

fn client(config: &Config) -> redis::RedisResult<Client> {
    let info = config.url.as_str().into_connection_info()?;
    let mut login = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    if let Some(password) = &config.password {
        login = login.set_password(password);
    }
    Client::open(info.set_redis_settings(login).set_tcp_settings(tcp()))
}

/// What was not taken by the server in the time of an answer is dropped: a heartbeat that sets out
/// again when a cable is plugged in would overwrite all that others have written since.
fn tcp() -> TcpSettings {
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(RESPONSE);
    tcp
}

/// What a failure means, and what to do about it.
pub fn classify(address: &str, error: &RedisError) -> EngineError {
    let refused = |why: &str| EngineError::Refused(format!("redis at {address} {why}: {error}"));
    let unavailable = |why: &str| EngineError::Unavailable(format!("redis at {address} {why}: {error}"));
    // A script tells it within its own error.
    if error.code() == Some("WRONGTYPE") || error.to_string().contains("WRONGTYPE") {
        return EngineError::WrongType(format!("redis at {address} holds a key of a wrong type: {error}"));
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
            _ => unavailable("did not do what was asked"),
        },
    }
}
