//! Another program's connection to Redis.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};

/// The library's default is half a second, which is less than a busy disk takes at times.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Connects to the server at `port` of this machine.
pub async fn client(port: u16) -> RedisResult<MultiplexedConnection> {
    client_of("127.0.0.1", port).await
}

/// Connects to a server of another network.
pub async fn client_of(host: &str, port: u16) -> RedisResult<MultiplexedConnection> {
    Client::open((host, port))?.get_multiplexed_async_connection_with_config(&patient()).await
}

pub fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(Some(MAX_WAIT)).set_response_timeout(Some(MAX_WAIT))
}
