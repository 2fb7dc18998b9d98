//! Which servers there are: each way to learn it is one file.

use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisError, RedisResult};

use super::address::HostPort;
use crate::store::Result;

/// A server that answers no question about the topology within this time is passed over.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// A primary and its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primary {
    pub at: HostPort,
    /// `None`: it is the only one, and has all of them.
    pub slots: Option<Vec<u16>>,
    /// The replicas that are connected.
    pub replicas: Vec<HostPort>,
    /// Whether there are replicas that are not connected, which may still be promoted.
    pub lacks_replicas: bool,
}

/// The address of a server that holds no part of the fleet, and its state, or why it does not do its work.
pub type Observer = (String, std::result::Result<String, String>);

/// Learns which servers there are.
#[async_trait]
pub trait Discovery: Send + Sync {
    /// The primaries now. `known` are those of the last answer.
    ///
    /// # Errors
    /// `Unavailable` while no server answers, or none is the primary.
    async fn learn(&self, known: &[HostPort]) -> Result<Vec<Primary>>;

    /// A client for a primary.
    fn client(&self, at: &HostPort) -> RedisResult<Client>;

    /// Ends when the primaries may be others.
    async fn changed(&self) {
        std::future::pending().await
    }

    /// The sentinels, and the servers that hold no part of the fleet though they belong to it: replicas that do not
    /// answer, nodes without slots. `known` are the primaries and their replicas.
    async fn observers(&self, _known: &[HostPort]) -> Vec<Observer> {
        Vec::new()
    }

    /// Whether there may be several primaries at once.
    fn has_parts(&self) -> bool {
        false
    }

    /// Whether the primaries may ever be others.
    fn is_fixed(&self) -> bool {
        false
    }
}

/// Asks a server over a connection of its own, which is closed afterwards.
pub async fn ask<T: redis::FromRedisValue>(client: &Client, question: &Pipeline) -> RedisResult<T> {
    let asked = async {
        let patience = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let mut connection: MultiplexedConnection =
            client.get_multiplexed_async_connection_with_config(&patience).await?;
        question.query_async(&mut connection).await
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut))),
    }
}
