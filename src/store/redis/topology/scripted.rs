//! Runs scripts by their hashes. A script that is unknown to the server is loaded first.

use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::{FromRedisValue, Pipeline, RedisResult, Value};

use super::errors::first_error;
use super::routed::RoutedConnection;
use super::script_call::ScriptCall;
use super::{ServerView, Topology};
use crate::clock::Stopwatch;
use crate::store::Result;

/// The error code for an unknown script.
const UNKNOWN: &str = "NOSCRIPT";

impl Topology {
    pub async fn run<T: FromRedisValue>(&self, name: &'static str, script: ScriptCall<'_>) -> Result<T> {
        self.run_by(self.routed(), name, script).await
    }

    /// Runs a script by the servers of a view, and by no other server.
    ///
    /// # Errors
    /// `Passing` if the keys are on other servers now.
    pub async fn run_under<T: FromRedisValue>(
        &self,
        view: &Arc<ServerView>,
        name: &'static str,
        script: ScriptCall<'_>,
    ) -> Result<T> {
        self.run_by(self.routed().under(view), name, script).await
    }

    async fn run_by<T: FromRedisValue>(
        &self,
        mut connection: RoutedConnection<'_>,
        name: &'static str,
        script: ScriptCall<'_>,
    ) -> Result<T> {
        let began = Stopwatch::start();
        let (command, script) = script.into_command();
        let answer = async {
            match command.query_async(&mut connection).await {
                Err(error) if error.code() == Some(UNKNOWN) => {
                    script.load_async(&mut connection).await?;
                    command.query_async(&mut connection).await
                }
                answer => answer,
            }
        };
        let answer: RedisResult<T> = answer.await;
        self.judge(&connection, name, began, answer)
    }

    /// Runs a script and then the commands in one batch, so that they read the state after the script. All keys are
    /// of one slot. With a view, only its servers run them: see [`Topology::run_under`].
    pub async fn run_and_send<T: FromRedisValue, U: FromRedisValue>(
        &self,
        view: Option<&Arc<ServerView>>,
        name: &'static str,
        script: ScriptCall<'_>,
        behind: &Pipeline,
    ) -> Result<(T, U)> {
        let began = Stopwatch::start();
        let mut batch = redis::pipe();
        let (command, script) = script.into_command();
        batch.add_command(command);
        for command in behind.cmd_iter() {
            batch.add_command(command.clone());
        }
        let mut connection = self.routed();
        if let Some(view) = view {
            connection = connection.under(view);
        }
        let sent = async {
            let mut answers = connection.req_packed_commands(&batch, 0, batch.len()).await?;
            if matches!(&answers[..], [Value::ServerError(error), ..] if error.code() == UNKNOWN) {
                script.load_async(&mut connection).await?;
                answers = connection.req_packed_commands(&batch, 0, batch.len()).await?;
            }
            let mut answers = first_error(answers)?;
            let others = answers.split_off(1.min(answers.len()));
            let first = answers.pop().unwrap_or(Value::Nil);
            Ok((redis::from_redis_value(first)?, redis::from_redis_value(Value::Array(others))?))
        };
        let sent = sent.await;
        self.judge(&connection, name, began, sent)
    }

    /// Runs a script that changes many units, once the server of its keys admits a change.
    pub async fn change<T: FromRedisValue>(
        &self,
        name: &'static str,
        slot: u16,
        script: ScriptCall<'_>,
    ) -> Result<T> {
        let server = self.server(slot).await?;
        let _permit = server.admission().change().await;
        self.run(name, script).await
    }

    /// Runs a script of alerting, once the server of its keys admits it.
    pub async fn run_alerting<T: FromRedisValue>(
        &self,
        name: &'static str,
        slot: u16,
        script: ScriptCall<'_>,
    ) -> Result<T> {
        let server = self.server(slot).await?;
        let _permit = server.admission().alerting().await;
        self.run(name, script).await
    }
}
