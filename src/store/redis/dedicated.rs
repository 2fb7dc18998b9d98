//! A dedicated connection has one user at a time, because the server keeps the watched keys of each connection.
//!
//! A dropped connection becomes idle, even in the middle of a command, because its answers stay in order. After a
//! failure it is closed together with all idle connections, which are likely to fail as well; the server forgets
//! their watched keys.

use std::sync::Arc;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Client, FromRedisValue, Pipeline, RedisResult};

use super::config::patience;

/// Connections without a user.
#[derive(Clone, Default)]
pub struct IdleConnections(Arc<Mutex<Vec<MultiplexedConnection>>>);

/// A connection with one user.
pub struct Dedicated {
    idle: IdleConnections,
    /// `None` after a failure.
    connection: Option<MultiplexedConnection>,
}

impl IdleConnections {
    /// Sends commands that may be repeated as one batch, over an idle connection or a new one.
    pub async fn ask<T: FromRedisValue>(
        &self,
        client: &Client,
        pipe: &Pipeline,
    ) -> RedisResult<(Dedicated, T)> {
        let idle = self.0.lock().pop();
        if let Some(connection) = idle {
            match self.lend(connection).send(pipe).await {
                // A restarted server has closed the idle connection.
                Err(error) if error.is_connection_dropped() => {}
                answer => return answer,
            }
        }
        let connection = client.get_multiplexed_async_connection_with_config(&patience()).await?;
        self.lend(connection).send(pipe).await
    }

    fn lend(&self, connection: MultiplexedConnection) -> Dedicated {
        Dedicated { idle: self.clone(), connection: Some(connection) }
    }
}

impl Dedicated {
    /// Sends commands as one batch. After a failure the connection is closed.
    pub async fn send<T: FromRedisValue>(mut self, pipe: &Pipeline) -> RedisResult<(Dedicated, T)> {
        let connection = self.connection.as_mut().expect("there was no failure");
        match pipe.query_async(connection).await {
            Ok(answer) => Ok((self, answer)),
            Err(error) => {
                self.connection = None;
                self.idle.0.lock().clear();
                Err(error)
            }
        }
    }
}

impl Drop for Dedicated {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.idle.0.lock().push(connection);
        }
    }
}
