//! The connections to Redis. Callers name keys, not servers: each command goes to the primary that has its key.
//!
//! | file | what it does |
//! |---|---|
//! | `address.rs`, `login.rs` | `engine.url`, and clients for its servers |
//! | `discovery.rs` | the trait that learns the primaries; `single.rs`, `sentinel.rs` and `cluster.rs` implement it |
//! | `servers.rs` | the current primaries, learned again when they may have changed |
//! | `slots.rs` | the slot of a key, and the server of a slot |
//! | `layout.rs` | answers questions about the servers: how many, their replicas, the slots without a server |
//! | `server.rs` | one primary: its connections, and the requests under way |
//! | `routed.rs` | sends commands to their servers, and again if no server executed them |
//! | `script_call.rs` | a call of a script |
//! | `scripted.rs` | runs scripts |
//!
//! Connections for watched transactions, limits on requests under way, and subscriptions to expiry belong to one
//! server; the caller names the slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use redis::{FromRedisValue, Pipeline, RedisResult, Value};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::RedisConfig;
use super::admission::Permit;
use super::dedicated::Dedicated;
use crate::clock::Stopwatch;
use crate::store::{EngineError, Result};
use crate::telemetry::Telemetry;

pub mod address;
mod cluster;
mod discovery;
mod errors;
mod layout;
mod login;
mod routed;
mod script_call;
mod scripted;
mod sentinel;
mod server;
mod servers;
mod single;
mod slots;

pub use address::{HostPort, Mode, RedisAddress, RedisAddressError, SCHEMES};
use cluster::Cluster;
use discovery::Discovery;
pub use errors::{classify, may_pass};
use errors::{first_error, replaced};
pub use login::Login;
use routed::RoutedConnection;
pub(super) use script_call::ScriptCall;
use sentinel::Sentinel;
pub use server::RedisServer;
pub use servers::ServerView;
use servers::Servers;
use single::Single;
pub use slots::slot_of;
use slots::slot_of_command;

pub struct Topology {
    servers: Arc<Servers>,
    address: String,
    /// The slot of `{hearing}`, and of commands without a key.
    slot: u16,
    telemetry: Arc<Telemetry>,
    /// Notified when a command finds a key of a wrong type.
    wrong_type: Notify,
    has_wrong_type: AtomicBool,
    /// Notified when several servers have to be examined.
    examination: Notify,
    /// The task that keeps learning the servers; `None` if they never change.
    follower: Option<JoinHandle<()>>,
}

impl Drop for Topology {
    fn drop(&mut self) {
        if let Some(follower) = &self.follower {
            follower.abort();
        }
    }
}

impl Topology {
    /// Prepares the connections to the servers of `config`; the first call connects.
    pub fn new(config: &RedisConfig, telemetry: Arc<Telemetry>) -> Result<Topology> {
        let login = Login::new(config)?;
        let address = login.address().to_string();
        let discovery: Box<dyn Discovery> = match &login.address().mode {
            Mode::Single => Box::new(Single(login)),
            Mode::Sentinel { service } => {
                let service = service.clone();
                Box::new(Sentinel::new(login, &service))
            }
            Mode::Cluster => Box::new(Cluster::new(login)),
        };
        let servers = Arc::new(Servers::new(discovery, telemetry.clone()));
        let follower = (!servers.is_fixed()).then(|| {
            let servers = servers.clone();
            tokio::spawn(async move { servers.follow().await })
        });
        Ok(Topology {
            servers,
            address,
            slot: slot_of(format!("{}:{{hearing}}", config.prefix).as_bytes()),
            telemetry,
            wrong_type: Notify::new(),
            has_wrong_type: AtomicBool::new(false),
            examination: Notify::new(),
            follower,
        })
    }

    /// Requests an examination, which quarantines keys of a wrong type.
    pub fn request_quarantine(&self) {
        self.has_wrong_type.store(true, Ordering::Relaxed);
        self.wrong_type.notify_one();
    }

    /// Whether quarantine was requested since the last call.
    pub fn take_quarantine_request(&self) -> bool {
        self.has_wrong_type.swap(false, Ordering::Relaxed)
    }

    /// Lets the next examination quarantine again, because the current one could not.
    pub fn postpone_quarantine(&self) {
        self.has_wrong_type.store(true, Ordering::Relaxed);
    }

    /// Ends when quarantine is requested.
    pub async fn quarantine_requested(&self) {
        self.wrong_type.notified().await;
    }

    /// Requests an examination of several servers.
    pub fn request_examination(&self) {
        self.examination.notify_one();
    }

    /// Ends when an examination of several servers is requested.
    pub async fn examination_requested(&self) {
        self.examination.notified().await;
    }

    /// The address of the servers for messages: without user and password.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The servers as last learned.
    pub async fn view(&self) -> Result<Arc<ServerView>> {
        self.servers.view().await.map_err(|error| match error {
            EngineError::Unavailable(why) if !self.servers.is_fixed() => EngineError::Passing(why),
            other => other,
        })
    }

    /// Whether the servers have changed since `view` was learned.
    pub fn has_changed_since(&self, view: &ServerView) -> bool {
        self.servers.now().number != view.number
    }

    /// The current primaries.
    pub async fn servers(&self) -> Result<Vec<Arc<RedisServer>>> {
        Ok(self.view().await?.map.servers().to_vec())
    }

    /// The primaries, as a channel.
    pub fn changes(&self) -> watch::Receiver<Arc<ServerView>> {
        self.servers.changes()
    }

    /// The primary of a slot.
    pub async fn server(&self, slot: u16) -> Result<Arc<RedisServer>> {
        let view = self.view().await?;
        let server = view.map.server(slot).cloned();
        server.ok_or_else(|| {
            self.servers.doubt();
            EngineError::Passing(format!("no primary at {} has slot {slot} at the moment", self.address))
        })
    }

    fn routed(&self) -> RoutedConnection<'_> {
        RoutedConnection::new(&self.servers, self.slot)
    }

    /// Sends commands as one batch. `name` names the batch in metrics and errors. An empty batch is not sent, such as
    /// that of an instance that owns no partition.
    pub async fn send<T: FromRedisValue>(&self, name: &'static str, pipe: &Pipeline) -> Result<T> {
        if pipe.is_empty() {
            let nothing = redis::from_redis_value(Value::Array(Vec::new()));
            return nothing.map_err(|error| EngineError::Damaged(format!("{name}: {error}")));
        }
        let began = Stopwatch::start();
        let mut connection = self.routed();
        let answer = pipe.query_async(&mut connection).await;
        self.judge(&connection, name, began, answer)
    }

    /// Sends commands as one batch to a server, whatever their keys.
    pub async fn send_to<T: FromRedisValue>(
        &self,
        name: &'static str,
        server: &RedisServer,
        pipe: &Pipeline,
    ) -> Result<T> {
        let began = Stopwatch::start();
        let answers = server.send(pipe, 0, pipe.len()).await.and_then(first_error);
        let answer = answers.and_then(|answers| Ok(redis::from_redis_value(Value::Array(answers))?));
        self.judge_of(server.address(), name, began, answer)
    }

    /// Sends commands that read units of one server, once that server admits a read.
    pub async fn read<T: FromRedisValue>(&self, name: &'static str, slot: u16, pipe: &Pipeline) -> Result<T> {
        let server = self.server(slot).await?;
        let _permit = server.admission().read().await;
        self.send(name, pipe).await
    }

    /// Sends a batch of at least one command, and passes the answers to `read`. When the caller built the batch, one
    /// server had all its keys and the slot `slot`.
    pub async fn send_raw<T>(
        &self,
        name: &'static str,
        slot: u16,
        pipe: &Pipeline,
        read: impl FnOnce(Vec<Value>) -> RedisResult<T>,
    ) -> Result<T> {
        let began = Stopwatch::start();
        let mut connection = self.routed();
        let answers = connection.send_together(pipe, slot).await;
        self.judge(&connection, name, began, answers.and_then(first_error).and_then(read))
    }

    /// See [`RedisServer::try_out`].
    pub async fn try_out(
        &self,
        server: &RedisServer,
        first: &Pipeline,
        others: &Pipeline,
    ) -> Result<(Vec<Value>, Vec<Value>)> {
        let began = Stopwatch::start();
        self.judge_of(server.address(), "probe", began, server.try_out(first, others).await)
    }

    /// Sends commands that may be repeated as one batch, over a dedicated connection to a server.
    pub async fn ask_dedicated<T: FromRedisValue>(
        &self,
        name: &'static str,
        server: &RedisServer,
        pipe: &Pipeline,
    ) -> Result<(Dedicated, T)> {
        let began = Stopwatch::start();
        self.judge_of(server.address(), name, began, server.ask_dedicated(pipe).await)
    }

    /// Opens a dedicated connection to each server, so that the first deadline check does not wait for it.
    pub async fn prepare_dedicated(&self) -> Result<()> {
        let mut nothing = redis::pipe();
        nothing.cmd("UNWATCH").ignore();
        let servers = self.servers().await?;
        let asked = servers.iter().map(|server| self.ask_dedicated::<()>("meta", server, &nothing));
        try_join_all(asked).await.map(|_| ())
    }

    /// Sends commands as one batch over a dedicated connection, which is closed after a failure.
    pub async fn send_dedicated<T: FromRedisValue>(
        &self,
        name: &'static str,
        server: &RedisServer,
        connection: Dedicated,
        pipe: &Pipeline,
    ) -> Result<(Dedicated, T)> {
        let began = Stopwatch::start();
        let answer = server.until_left(connection.send(pipe)).await;
        self.judge_of(server.address(), name, began, answer)
    }

    /// See [`RedisServer::replicated`].
    pub async fn replicated(&self, server: &RedisServer, write_and_wait: &Pipeline) -> Result<usize> {
        let began = Stopwatch::start();
        let answer = server.replicated(write_and_wait).await;
        self.judge_of(server.address(), "replicated", began, answer)
    }

    /// See [`Servers::check_roles`].
    pub async fn check_roles(&self) {
        self.servers.check_roles().await;
    }

    /// See [`Admission::share`](super::admission::Admission::share).
    pub fn share(&self, instances: usize) {
        self.servers.share(instances);
    }

    /// Begins a storm of the server that has the slot of a partition: see
    /// [`Admission::storm`](super::admission::Admission::storm).
    pub fn begin_storm(&self, partition: u16, slot: u16) {
        self.servers.begin_storm(partition, slot);
    }

    /// Ends the storms of the servers that have none of these slots.
    pub fn end_storms(&self, slots: impl Iterator<Item = u16>) {
        self.servers.end_storms(slots);
    }

    /// Sends commands that read for the mirror, after a storm: see
    /// [`Admission::wait_for_end_of_storm`](super::admission::Admission::wait_for_end_of_storm).
    pub async fn browse<T: FromRedisValue>(&self, name: &'static str, pipe: &Pipeline) -> Result<T> {
        let slot = pipe.cmd_iter().find_map(slot_of_command).unwrap_or(self.slot);
        self.server(slot).await?.admission().wait_for_end_of_storm().await;
        self.send(name, pipe).await
    }

    /// Waits until units of a server may be checked.
    pub async fn admit_check(&self, slot: u16) -> Result<(Arc<RedisServer>, Permit)> {
        let server = self.server(slot).await?;
        let permit = server.admission().check().await;
        Ok((server, permit))
    }

    /// Runs steps, each on one slot. A server has only a few steps under way at once, see [`super::admission`]; the
    /// steps of different servers run side by side. The answers are in the order of the steps.
    pub async fn run_limited<T>(&self, steps: Vec<(u16, impl Future<Output = Result<T>>)>) -> Result<Vec<T>> {
        let numbered = steps.into_iter().enumerate();
        let parts = self.by_server(numbered, |(_, (slot, _))| *slot);
        let parts = parts.into_iter().filter(|part| !part.is_empty()).map(|part| async move {
            let limit = self.server(part[0].1.0).await?.admission().steps();
            let steps = part.into_iter().map(|(index, (_, step))| async move { Ok((index, step.await?)) });
            stream::iter(steps).buffered(limit).try_collect::<Vec<(usize, T)>>().await
        });
        let mut answers: Vec<(usize, T)> = try_join_all(parts).await?.into_iter().flatten().collect();
        answers.sort_unstable_by_key(|(index, _)| *index);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    fn judge<T>(
        &self,
        connection: &RoutedConnection<'_>,
        name: &'static str,
        began: Stopwatch,
        answer: RedisResult<T>,
    ) -> Result<T> {
        let failed = if answer.is_err() { connection.failed_at() } else { None };
        self.judge_of(failed.as_deref().unwrap_or(&self.address), name, began, answer)
    }

    fn judge_of<T>(
        &self,
        address: &str,
        name: &'static str,
        began: Stopwatch,
        answer: RedisResult<T>,
    ) -> Result<T> {
        self.telemetry.engine_command(name, began.elapsed());
        answer.map_err(|error| {
            let meaning = match self.is_fixed() {
                true => classify(address, &error),
                false => {
                    replaced(address, &error, self.has_parts()).unwrap_or_else(|| classify(address, &error))
                }
            };
            if matches!(meaning, EngineError::WrongType(_)) {
                self.request_quarantine();
            }
            if self.is_fixed() || !may_pass(&error) {
                self.servers.refused_at(address);
                return meaning;
            }
            self.servers.doubt();
            self.request_examination();
            match meaning {
                EngineError::Unavailable(why) => EngineError::Passing(match self.servers.learn_failure() {
                    Some(failure) => format!("{why}; the primaries cannot be learned: {failure}"),
                    None => why,
                }),
                // Other servers have the keys of the command, or will have them: the next attempt finds these
                // servers.
                EngineError::Refused(_) => EngineError::Passing(format!(
                    "redis at {address} has no longer the keys of a command: {error}"
                )),
                other => other,
            }
        })
    }
}
