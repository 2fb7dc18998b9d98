//! A dedicated connection: one caller has it for a while, for what a server remembers of a connection.
//!
//! It goes back to the idle ones when it is dropped, also in the middle of a command: answers stay in order
//! on it. After a failure it is closed with all idle ones, for they are no better, and what the
//! server remembered of it is gone.

use std::sync::Mutex;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, Pipeline, RedisResult};

use super::config::{CONNECT, RESPONSE};

/// Connections that no caller has at the moment.
#[derive(Default)]
pub struct IdleConnections(Mutex<Vec<MultiplexedConnection>>);

/// A connection that no other caller has.
pub struct Dedicated<'a> {
    idle: &'a IdleConnections,
    /// `None` after a failure, on the way out.
    connection: Option<MultiplexedConnection>,
}

impl IdleConnections {
    /// Sends commands that may be repeated as one batch, over an idle connection or a new one.
    pub async fn ask<T: FromRedisValue>(
        &self,
        client: &Client,
        pipe: &Pipeline,
    ) -> RedisResult<(Dedicated<'_>, T)> {
        let idle = self.connections().pop();
        if let Some(connection) = idle {
            match self.lend(connection).send(pipe).await {
                // It was closed while it was idle, as by a server that was restarted.
                Err(error) if error.is_connection_dropped() => {}
                answer => return answer,
            }
        }
        let patience = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(RESPONSE));
        let connection = client.get_multiplexed_async_connection_with_config(&patience).await?;
        self.lend(connection).send(pipe).await
    }

    fn lend(&self, connection: MultiplexedConnection) -> Dedicated<'_> {
        Dedicated { idle: self, connection: Some(connection) }
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, Vec<MultiplexedConnection>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

impl<'a> Dedicated<'a> {
    /// Sends commands as one batch. After a failure the connection is closed.
    pub async fn send<T: FromRedisValue>(mut self, pipe: &Pipeline) -> RedisResult<(Dedicated<'a>, T)> {
        let connection = self.connection.as_mut().expect("there was no failure");
        match pipe.query_async(connection).await {
            Ok(answer) => Ok((self, answer)),
            Err(error) => {
                self.connection = None;
                self.idle.connections().clear();
                Err(error)
            }
        }
    }
}

impl Drop for Dedicated<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.idle.connections().push(connection);
        }
    }
}
