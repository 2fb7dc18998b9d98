//! One server: its connections, and the requests under way to it.
//!
//! A server has one multiplexed connection, which reconnects by itself, and a few dedicated connections. A call
//! without a connection waits for one attempt to connect and then fails; the caller decides whether to repeat it.
//!
//! # Why calls to a server that was replaced end
//! A replaced server may hang, and a call would wait seconds for its answer although the new primary is there. The
//! replaced server has a moment left to answer earlier requests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use parking_lot::Mutex;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, Value};
use tokio_util::sync::CancellationToken;

use super::errors::{is_cut, is_refused_login};
use crate::clock::monotonic;
use crate::store::redis::admission::Admission;
use crate::store::redis::config::{CONNECT, RESPONSE, patience};
use crate::store::redis::dedicated::{Dedicated, IdleConnections};
use crate::store::redis::round_trip::{ShortestRoundTrip, times};
use crate::telemetry::ServerAnswers;

/// How long a server has for its last answers once it is not a primary any more.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// A timer that ends this late belongs to a process that was frozen, or had no processor time.
const FROZEN: Duration = Duration::from_millis(100);

/// The shortest time between two new connections after refused logins and timeouts.
const LOGIN_AGAIN: Duration = Duration::from_secs(1);

pub struct RedisServer {
    address: String,
    client: Client,
    /// Replaced if the connection does not recover by itself, see [`RedisServer::connect_anew`].
    connection: ArcSwap<ConnectionManager>,
    /// When the connection was last replaced.
    replaced: Mutex<Instant>,
    idle: IdleConnections,
    admission: Admission,
    round_trip: ShortestRoundTrip,
    barrier: Barrier,
    /// Since when the server is a primary; `None` if it was a primary when the servers were first learned.
    since: Option<Instant>,
    /// Cancelled when the server is not a primary any more.
    left: CancellationToken,
    answers: ServerAnswers,
}

/// Calls that wait for replicas: calls that arrive while a `WAIT` is under way share the next `WAIT`.
#[derive(Default)]
struct Barrier {
    calls: AtomicU64,
    /// The number of completed calls, and the answer to the last `WAIT`.
    done: tokio::sync::Mutex<(u64, usize)>,
}

impl RedisServer {
    /// Prepares the connections; the first call connects. `address` is for messages: without user and password.
    pub fn new(address: String, client: Client) -> RedisResult<RedisServer> {
        let connection = ConnectionManager::new_lazy_with_config(client.clone(), manager())?;
        Ok(RedisServer {
            address,
            client,
            connection: ArcSwap::from_pointee(connection),
            replaced: Mutex::new(monotonic()),
            idle: IdleConnections::default(),
            admission: Admission::new(),
            round_trip: ShortestRoundTrip::default(),
            barrier: Barrier::default(),
            since: None,
            left: CancellationToken::new(),
            answers: ServerAnswers::default(),
        })
    }

    /// Notes that the server becomes a primary now.
    pub fn taking_over(self) -> RedisServer {
        RedisServer { since: Some(monotonic()), ..self }
    }

    /// Since when the server is a primary; `None` if it was a primary when the servers were first learned.
    pub fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Notes that the server is not a primary any more; calls under way end soon.
    pub fn leave(&self) {
        self.left.cancel();
    }

    /// Awaits a call. If the server is not a primary any more and does not answer in time, the error is that of a cut
    /// connection.
    pub async fn until_left<T>(&self, call: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let left = async {
            self.left.cancelled().await;
            tokio::time::sleep(LAST_ANSWERS).await;
        };
        tokio::select! {
            biased;
            answer = call => answer,
            () = left => Err(RedisError::from(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "another server is the primary now, and it did not answer",
            ))),
        }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether the last call was answered, for metrics.
    pub fn answers(&self) -> ServerAnswers {
        self.answers.clone()
    }

    /// A client for callers that open their own connections.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// The shortest recent time from a request to its answer, if the server is far away; otherwise zero.
    pub fn round_trip(&self) -> Duration {
        if self.admission.is_far() { self.round_trip.least() } else { Duration::ZERO }
    }

    pub async fn send_one(&self, command: &Cmd) -> RedisResult<Value> {
        let began = monotonic();
        let mut connection = ConnectionManager::clone(&self.connection.load());
        let answer = self.until_left(in_time(RESPONSE, connection.send_packed_command(command))).await;
        self.answered(began, answer)
    }

    /// Sends commands as one batch. For `offset` and `count` see [`redis::aio::ConnectionLike`].
    pub async fn send(&self, pipe: &Pipeline, offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        let began = monotonic();
        let mut connection = ConnectionManager::clone(&self.connection.load());
        let answers = connection.send_packed_commands(pipe, offset, count);
        let answers = self.until_left(in_time(RESPONSE, answers)).await;
        self.answered(began, answers)
    }

    /// Sends commands that may be repeated as one batch, over a dedicated connection.
    pub async fn ask_dedicated<T: FromRedisValue>(&self, pipe: &Pipeline) -> RedisResult<(Dedicated, T)> {
        let began = monotonic();
        let answer = self.until_left(self.idle.ask(&self.client, pipe)).await;
        self.answered(began, answer)
    }

    /// Sends a write and a `WAIT` over a dedicated connection. Answers how many replicas have everything that was
    /// written before the call.
    pub async fn replicated(&self, write_and_wait: &Pipeline) -> RedisResult<usize> {
        let call = self.barrier.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let mut done = self.barrier.done.lock().await;
        if done.0 >= call {
            return Ok(done.1);
        }
        let calls = self.barrier.calls.load(Ordering::SeqCst);
        // Not measured: the time depends on the replicas.
        let asked = self.idle.ask(&self.client, write_and_wait);
        let (_, (count,)): (Dedicated, (usize,)) = self.until_left(asked).await?;
        *done = (calls, count);
        Ok(count)
    }

    /// Sends commands over a new connection, which is closed afterwards. Returns the answers to `first` and to
    /// `others`. `first` ends with `MULTI`; `others` are sent only if the server accepts it, and are never executed.
    pub async fn try_out(
        &self,
        first: &Pipeline,
        others: &Pipeline,
    ) -> RedisResult<(Vec<Value>, Vec<Value>)> {
        let mut connection = self.client.get_multiplexed_async_connection_with_config(&patience()).await?;
        let answers = connection.send_packed_commands(first, 0, first.len()).await?;
        if answers.last() != Some(&Value::Okay) {
            return Ok((answers, Vec::new()));
        }
        let queued = connection.send_packed_commands(others, 0, others.len()).await?;
        Ok((answers, queued))
    }

    /// Lets the next call open a new connection. A connection whose login was refused never tries again, though an
    /// operator may have changed the user meanwhile. A connection that takes requests and answers none, as through a
    /// proxy that hangs, stays open by itself.
    fn connect_anew(&self) {
        let mut replaced = self.replaced.lock();
        let now = monotonic();
        if now.duration_since(*replaced) < LOGIN_AGAIN {
            return;
        }
        *replaced = now;
        if let Ok(connection) = ConnectionManager::new_lazy_with_config(self.client.clone(), manager()) {
            self.connection.store(Arc::new(connection));
        }
    }

    fn answered<T>(&self, began: Instant, answer: RedisResult<T>) -> RedisResult<T> {
        self.answers.set(!answer.as_ref().is_err_and(is_cut));
        if answer.as_ref().is_err_and(|error| is_refused_login(error) || error.is_timeout()) {
            self.connect_anew();
        }
        if answer.is_ok() {
            let now = monotonic();
            self.admission.set_times(times(self.round_trip.took(now.duration_since(began), now)));
        }
        answer
    }
}

/// Awaits an answer up to `longest`. The timer of a process that was frozen ends late, when the answer may already
/// lie in its socket, so the answer is awaited once more. A refresh of expiry keys needs the answer: it has the newer
/// heartbeats that were overwritten.
async fn in_time<T>(longest: Duration, answer: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    tokio::pin!(answer);
    loop {
        let until = monotonic() + longest;
        tokio::select! {
            biased;
            answer = &mut answer => return answer,
            () = tokio::time::sleep_until(until.into()) => {}
        }
        if monotonic().duration_since(until) < FROZEN {
            return Err(RedisError::from(io::Error::from(io::ErrorKind::TimedOut)));
        }
    }
}

/// How connections are opened again after a failure. [`in_time`] limits the time of answers.
fn manager() -> ConnectionManagerConfig {
    ConnectionManagerConfig::new()
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(None)
        .set_number_of_retries(1)
        .set_min_delay(Duration::from_millis(50))
        .set_max_delay(Duration::from_millis(500))
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn an_answer_that_came_while_the_process_was_frozen_is_not_lost() {
        let longest = FROZEN / 2;
        let frozen = async |freeze: Duration| {
            let ((arrive, arrives), (answer, answers)) = (oneshot::channel(), oneshot::channel());
            // The task that reads the socket forwards the answer some turns after its arrival.
            tokio::spawn(async move {
                let _: Result<(), _> = arrives.await;
                for _ in 0..100 {
                    yield_now().await;
                }
                let _ = answer.send(());
            });
            let call = async {
                yield_now().await;
                let until = monotonic() + freeze;
                while monotonic() < until {
                    std::hint::spin_loop();
                }
                let _ = arrive.send(());
                answers.await.expect("it is answered");
                Ok(())
            };
            in_time(longest, call).await
        };
        assert!(frozen(Duration::from_millis(1)).await.is_ok());
        assert!(frozen(4 * FROZEN).await.is_ok());
        let never = std::future::pending::<RedisResult<()>>();
        assert!(in_time(longest, never).await.unwrap_err().is_timeout());
    }
}
