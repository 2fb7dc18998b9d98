//! A connection to all servers: each command goes to the server that has its key.
//!
//! The parts of a batch go to their servers side by side, and the answers are in the order of the commands. A command
//! that a server did not execute, because the slot of its key has moved or a failover is under way, is sent again
//! after the servers were learned again; other commands are not. A cut connection is an error: the caller does not
//! know whether a command was executed, and decides whether to repeat it.
//!
//! While a server moves a slot, it refers to another server (`ASK`). A script has no key while it is loaded, so it is
//! loaded at both servers.
//!
//! A caller whose decision depends on the servers of a view has its commands sent under that view: if the servers
//! have changed since, no new server executes them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, Value};

use super::errors::{NO_SERVERS, is_not_executed, was_not_executed};
use super::server::RedisServer;
use super::servers::{ServerView, Servers};
use super::slots::{is_about_scripts, slot_of_command};
use crate::clock::Stopwatch;
use crate::store::EngineError;

/// How long commands that no server executes are sent again.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// The first and the longest wait between two attempts.
const WAITS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// A connection for one call.
pub struct RoutedConnection<'a> {
    servers: &'a Servers,
    /// The view whose servers may execute the commands; `None`: the current view.
    only: Option<Arc<ServerView>>,
    /// The slot of commands without a key, such as the loading of a script: the slot of the last command with a key.
    slot: u16,
    /// The server to which another server last referred (`ASK`).
    referred: Option<Arc<RedisServer>>,
    /// The address of the server at which a command last failed, for the error.
    failed: Mutex<Option<String>>,
}

/// Waits a little longer before each attempt.
struct RetryWait {
    began: Stopwatch,
    wait: Duration,
}

impl RetryWait {
    fn begin() -> RetryWait {
        RetryWait { began: Stopwatch::start(), wait: WAITS.0 }
    }

    /// Learns the servers again and waits before another attempt. False if the servers never change, the attempts
    /// take longer than [`MAX_WAIT`], or the servers have changed and no other view is permitted.
    async fn next(&mut self, connection: &RoutedConnection<'_>, seen: &ServerView) -> bool {
        let servers = connection.servers;
        if servers.is_fixed() || self.began.elapsed() > MAX_WAIT {
            return false;
        }
        // Ignored: the next attempt shows whether it helped.
        let _ = servers.learn(seen.number).await;
        if connection.is_outdated() {
            return false;
        }
        tokio::time::sleep(self.wait).await;
        self.wait = (self.wait * 2).min(WAITS.1);
        true
    }
}

impl<'a> RoutedConnection<'a> {
    /// `slot` is the slot of commands without a key.
    pub fn new(servers: &'a Servers, slot: u16) -> RoutedConnection<'a> {
        RoutedConnection { servers, only: None, slot, referred: None, failed: Mutex::default() }
    }

    /// Lets only the servers of a view execute the commands.
    pub fn under(self, view: &Arc<ServerView>) -> RoutedConnection<'a> {
        RoutedConnection { only: Some(view.clone()), ..self }
    }

    /// Whether the servers have changed since the view whose servers may execute the commands.
    fn is_outdated(&self) -> bool {
        self.only.as_ref().is_some_and(|only| only.number != self.servers.now().number)
    }

    /// The address of the server at which a command last failed; `None`: the failure is not of one server.
    pub fn failed_at(&self) -> Option<String> {
        self.failed.lock().clone()
    }

    fn failed(&self, server: &RedisServer) {
        let mut failed = self.failed.lock();
        *failed = Some(server.address().to_owned());
    }

    async fn view(&self) -> RedisResult<Arc<ServerView>> {
        if let Some(only) = &self.only {
            if self.servers.promoted().await && self.is_outdated() {
                return Err(no_server_of(self.slot));
            }
            return Ok(only.clone());
        }
        self.servers.view().await.map_err(|error| match error {
            EngineError::Unavailable(why) => RedisError::from(std::io::Error::other(why)),
            other => RedisError::from((ErrorKind::InvalidClientConfig, NO_SERVERS, other.to_string())),
        })
    }

    /// Sends commands that one server executes as a whole, such as a transaction.
    async fn send_whole(&mut self, pipe: &Pipeline, offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        self.slot = pipe.cmd_iter().find_map(slot_of_command).unwrap_or(self.slot);
        let mut attempts = RetryWait::begin();
        loop {
            let view = self.view().await?;
            let answer = match view.map.server(self.slot) {
                Some(server) => self.heed_each(server, server.send(pipe, offset, count).await),
                None => Err(no_server_of(self.slot)),
            };
            match answer {
                Err(error) if was_not_executed(&error) && attempts.next(self, &view).await => {}
                answer => return answer,
            }
        }
    }

    /// Sends a batch to the server that had all its keys when the batch was built, without checking the key of each
    /// command. Commands that the server did not execute are sent again, each to its server.
    pub async fn send_together(&mut self, pipe: &Pipeline, slot: u16) -> RedisResult<Vec<Value>> {
        let view = self.view().await?;
        let Some(server) = view.map.server(slot) else { return self.send_each(pipe).await };
        let answers = self.heed_each(server, server.send(pipe, 0, pipe.len()).await)?;
        if self.servers.is_fixed() || !answers.iter().any(is_not_executed) {
            return Ok(answers);
        }
        // Ignored: the next attempt shows whether it helped.
        let _ = self.servers.learn(view.number).await;
        let left = (0..answers.len()).filter(|index| is_not_executed(&answers[*index])).collect();
        self.send_left(pipe, answers, left).await
    }

    /// Sends commands, each to its server.
    async fn send_each(&mut self, pipe: &Pipeline) -> RedisResult<Vec<Value>> {
        self.send_left(pipe, vec![Value::Nil; pipe.len()], (0..pipe.len()).collect()).await
    }

    /// Sends the commands `left` of a batch, each to its server, and puts their answers into `answers`.
    async fn send_left(
        &mut self,
        pipe: &Pipeline,
        mut answers: Vec<Value>,
        mut left: Vec<usize>,
    ) -> RedisResult<Vec<Value>> {
        let commands: Vec<&Cmd> = pipe.cmd_iter().collect();
        let mut slots = Vec::with_capacity(commands.len());
        for command in &commands {
            self.slot = slot_of_command(command).unwrap_or(self.slot);
            slots.push(self.slot);
        }
        let mut attempts = RetryWait::begin();
        loop {
            let view = self.view().await?;
            let mut asked = Vec::new();
            for (part, sent) in self.send_parts(&view, pipe, &commands, &slots, &left).await {
                for (index, answer) in part.into_iter().zip(sent?) {
                    if is_not_executed(&answer) {
                        asked.push(index);
                    }
                    answers[index] = answer;
                }
            }
            asked.sort_unstable();
            left.clear();
            for index in asked {
                let from = view.map.server(slots[index]);
                answers[index] = self.ask_other(from, commands[index], &answers[index]).await?;
                if is_not_executed(&answers[index]) {
                    left.push(index);
                }
            }
            if left.is_empty() || !attempts.next(self, &view).await {
                let error = answers.iter().position(|answer| matches!(answer, Value::ServerError(_)));
                if let Some(server) = error.and_then(|index| view.map.server(slots[index])) {
                    self.failed(server);
                }
                return Ok(answers);
            }
        }
    }

    /// Sends some commands of a batch to their servers. Answers the indices and the answers of each part.
    async fn send_parts(
        &self,
        view: &ServerView,
        pipe: &Pipeline,
        commands: &[&Cmd],
        slots: &[u16],
        indices: &[usize],
    ) -> Vec<(Vec<usize>, RedisResult<Vec<Value>>)> {
        let parts = view.map.split(indices.iter().copied(), |index| slots[*index]);
        let is_whole = parts.len() == 1 && indices.len() == pipe.len();
        let sent = parts.into_iter().map(|(server, part)| async move {
            let answers = match server.and_then(|server| view.map.servers().get(server)) {
                None => Err(no_server_of(slots[part[0]])),
                Some(server) if is_whole => self.heed(server, server.send(pipe, 0, pipe.len()).await),
                Some(server) => {
                    let mut batch = Pipeline::with_capacity(part.len());
                    for index in &part {
                        batch.add_command(commands[*index].clone());
                    }
                    self.heed(server, server.send(&batch, 0, batch.len()).await)
                }
            };
            (part, answers)
        });
        join_all(sent).await
    }

    /// Sends a command to the server to which `answer` refers (`ASK`). Returns any other answer unchanged.
    async fn ask_other(
        &mut self,
        from: Option<&Arc<RedisServer>>,
        command: &Cmd,
        answer: &Value,
    ) -> RedisResult<Value> {
        let Value::ServerError(error) = answer else { return Ok(answer.clone()) };
        let to = match (error.code(), error.details()) {
            ("ASK", Some(details)) => details.split_ascii_whitespace().nth(1),
            _ => None,
        };
        let (Some(from), Some(to)) = (from, to) else { return Ok(answer.clone()) };
        let Ok(server) = self.servers.referred(from, to).await else { return Ok(answer.clone()) };
        let mut asking = redis::pipe();
        asking.cmd("ASKING").add_command(command.clone());
        let answers = self.heed(&server, server.send(&asking, 0, 2).await)?;
        self.referred = Some(server);
        Ok(answers.into_iter().nth(1).unwrap_or(Value::Nil))
    }

    /// Remembers the server if one of several commands failed; the caller judges the failure.
    fn heed_each(&self, server: &RedisServer, answers: RedisResult<Vec<Value>>) -> RedisResult<Vec<Value>> {
        let has_failed =
            |answers: &Vec<Value>| answers.iter().any(|one| matches!(one, Value::ServerError(_)));
        if answers.as_ref().map_or(true, has_failed) {
            self.failed(server);
        }
        answers
    }

    /// Remembers the server of a failure; the caller judges it.
    fn heed<T>(&self, server: &RedisServer, answer: RedisResult<T>) -> RedisResult<T> {
        answer.inspect_err(|_| self.failed(server))
    }
}

/// The error if no server has a slot.
fn no_server_of(slot: u16) -> RedisError {
    let why = format!("CLUSTERDOWN no primary has slot {slot}");
    RedisError::from((ErrorKind::Server(redis::ServerErrorKind::ClusterDown), "no primary", why))
}

impl ConnectionLike for RoutedConnection<'_> {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        async move {
            if let Some(server) = self.servers.only() {
                return server.send_one(command).await;
            }
            let mut one = Pipeline::with_capacity(1);
            one.add_command(command.clone());
            let answers = self.send_each(&one).await?;
            if is_about_scripts(command)
                && let Some(server) = self.referred.take()
            {
                self.heed(&server, server.send_one(command).await)?;
            }
            answers.into_iter().next().unwrap_or(Value::Nil).extract_error()
        }
        .boxed()
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        async move {
            if let Some(server) = self.servers.only() {
                return server.send(pipe, offset, count).await;
            }
            if pipe.is_transaction() {
                self.send_whole(pipe, offset, count).await
            } else {
                self.send_each(pipe).await
            }
        }
        .boxed()
    }

    fn get_db(&self) -> i64 {
        0
    }
}
