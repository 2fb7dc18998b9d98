//! Learns the current servers. Each way to learn them is one file.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisError, RedisResult};

use super::address::HostPort;
use crate::store;

/// The longest wait for an answer about the topology; a slower server is skipped.
pub const MAX_WAIT: Duration = Duration::from_secs(1);

/// How long the last servers may take once most servers have answered: most answers are enough.
const REMAINING_WAIT: Duration = Duration::from_millis(200);

/// A primary and its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primary {
    pub at: HostPort,
    /// `None`: the primary is the only one, and has all slots.
    pub slots: Option<Vec<u16>>,
    /// The replicas that are connected.
    pub replicas: Vec<HostPort>,
    /// Whether there are replicas that are not connected, which may still be promoted.
    pub lacks_replicas: bool,
}

/// The address of a server that holds no part of the fleet, and its state, or why it fails in its work.
pub type Observer = (String, Result<String, String>);

/// A change of the primaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyEvent {
    /// A replica is about to be promoted. The current primary still takes writes, which the replica will lack.
    Promotion,
    /// The primaries may have changed.
    Changed,
}

/// Learns the current servers.
#[async_trait]
pub trait Discovery: Send + Sync {
    /// The current primaries. `known` are the addresses of the primaries and replicas of the last answer.
    ///
    /// # Errors
    /// `Unavailable` while no server answers, or no server is the primary. `Refused` if only an operator can help,
    /// for example when all servers refuse the login.
    async fn learn(&self, known: &[HostPort]) -> store::Result<Vec<Primary>>;

    /// A client for a primary.
    fn client(&self, at: &HostPort) -> RedisResult<Client>;

    /// The address under which the server at `at` is used; `None`: the server is unknown.
    fn used(&self, at: &HostPort) -> Option<HostPort> {
        Some(at.clone())
    }

    /// Ends when the primaries change.
    async fn changed(&self) -> TopologyEvent {
        std::future::pending().await
    }

    /// Whether a promotion is under way, as far as the topology reports it.
    async fn is_promoting(&self) -> bool {
        false
    }

    /// The sentinels, and the servers of the fleet that hold no part of it: replicas that do not answer or refuse the
    /// login, nodes without slots. `known` are the primaries of the last answer.
    async fn observers(&self, _known: &[Primary]) -> Vec<Observer> {
        Vec::new()
    }

    /// Whether there may be several primaries at once.
    fn has_parts(&self) -> bool {
        false
    }

    /// Whether the primaries never change.
    fn is_fixed(&self) -> bool {
        false
    }
}

/// The addresses of primaries and of their replicas.
pub fn addresses(primaries: &[Primary]) -> Vec<HostPort> {
    let of = |primary: &Primary| [std::slice::from_ref(&primary.at), &primary.replicas].concat();
    primaries.iter().flat_map(of).collect()
}

/// Sends a request over a connection of its own, which is closed afterwards.
pub async fn ask<T: redis::FromRedisValue>(client: &Client, question: &Pipeline) -> RedisResult<T> {
    let asked = async {
        let patience = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(MAX_WAIT))
            .set_response_timeout(Some(MAX_WAIT));
        let mut connection: MultiplexedConnection =
            client.get_multiplexed_async_connection_with_config(&patience).await?;
        question.query_async(&mut connection).await
    };
    match tokio::time::timeout(MAX_WAIT, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut))),
    }
}

/// Awaits the answers of servers side by side. Once most servers have answered, the others have only a moment left.
/// The answers are in order; `None`: the server did not answer in time.
pub async fn most<T, E>(asked: Vec<impl Future<Output = Result<T, E>>>) -> Vec<Option<Result<T, E>>> {
    let mut answers: Vec<Option<Result<T, E>>> = asked.iter().map(|_| None).collect();
    let numbered = asked.into_iter().enumerate();
    let mut asked: FuturesUnordered<_> =
        numbered.map(|(number, answer)| async move { (number, answer.await) }).collect();
    let mut answered = 0;
    while 2 * answered <= answers.len() {
        let Some((number, answer)) = asked.next().await else { return answers };
        answered += usize::from(answer.is_ok());
        answers[number] = Some(answer);
    }
    let rest = async {
        while let Some((number, answer)) = asked.next().await {
            answers[number] = Some(answer);
        }
    };
    // Leave out late answers.
    let _ = tokio::time::timeout(REMAINING_WAIT, rest).await;
    answers
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt;

    use super::*;

    async fn after(ms: u64, answer: Result<u8, u8>) -> Result<u8, u8> {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        answer
    }

    #[tokio::test]
    async fn a_server_that_hangs_is_not_waited_for_when_most_have_answered() {
        let asked = vec![pending().boxed(), after(0, Ok(1)).boxed(), after(50, Ok(2)).boxed()];
        assert_eq!(most(asked).await, [None, Some(Ok(1)), Some(Ok(2))]);
        // A failure is no answer.
        let asked = vec![after(2 * 200, Ok(3)).boxed(), after(0, Ok(1)).boxed(), after(0, Err(2)).boxed()];
        assert_eq!(most(asked).await, [Some(Ok(3)), Some(Ok(1)), Some(Err(2))]);
        assert_eq!(most(vec![after(0, Err(1)).boxed()]).await, [Some(Err(1))]);
        assert_eq!(most(Vec::<std::future::Ready<Result<u8, u8>>>::new()).await, []);
    }
}
