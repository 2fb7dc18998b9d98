//! The meaning of the server's errors, with advice for the operator.

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use crate::store::EngineError;
use crate::trust;

/// The answers of a server that did not execute a command because another server has to, or because none can at
/// the moment.
const NOT_EXECUTED: &[&str] =
    &["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS"];

/// Whether the server did not execute a command, and another attempt may succeed.
pub fn is_not_executed(answer: &Value) -> bool {
    let Value::ServerError(error) = answer else { return false };
    NOT_EXECUTED.contains(&error.code()) || is_within(error.details().unwrap_or_default())
}

/// The same of a transaction or a script, which reports it within an error of its own.
pub fn was_not_executed(error: &RedisError) -> bool {
    error.code().is_some_and(|code| NOT_EXECUTED.contains(&code)) || is_within(&error.to_string())
}

/// Whether the connection failed, not a command.
pub fn is_cut(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped() || error.is_timeout()
}

/// Whether a failover, which ends within seconds, explains a failure.
pub fn may_pass(error: &RedisError) -> bool {
    is_cut(error) || was_not_executed(error)
}

/// Whether a text has the code of such an error: `… -READONLY You can't write …`.
fn is_within(text: &str) -> bool {
    let word = |word: &str| NOT_EXECUTED.contains(&word.trim_start_matches('-').trim_end_matches(':'));
    text.split_ascii_whitespace().any(word)
}

/// The answers, or the first error among them.
pub fn first_error(answers: Vec<Value>) -> RedisResult<Vec<Value>> {
    match answers.iter().find(|answer| matches!(answer, Value::ServerError(_))) {
        None => Ok(answers),
        Some(error) => Err(error.clone().extract_error().expect_err("it is one")),
    }
}

/// Why a server did not answer a question about the topology.
#[derive(Debug, PartialEq, Eq)]
pub struct NoAnswer {
    /// The server and the reason, with advice for the operator.
    pub text: String,
    /// Whether it refused the login.
    pub is_refused: bool,
}

impl NoAnswer {
    /// `options` are those of the login at this server.
    pub fn of(server: &str, error: &RedisError, options: &str) -> NoAnswer {
        let is_refused = error.kind() == ErrorKind::AuthenticationFailed
            || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
        let text = match trust::cause(error) {
            Some(cause) => {
                format!("{server} cannot be reached: {}", trust::advice("engine", "server", cause))
            }
            None if is_refused => format!("{server} refused the login; check {options}: {error}"),
            None => format!("{server} does not answer: {error}"),
        };
        NoAnswer { text, is_refused }
    }

    /// The error if no server answers: only an operator can help if all of them refuse the login.
    pub fn all(failed: Vec<NoAnswer>) -> EngineError {
        let texts: Vec<&str> = failed.iter().map(|one| one.text.as_str()).collect();
        let text = texts.join("; ");
        match failed.iter().all(|one| one.is_refused) {
            true => EngineError::Refused(text),
            false => EngineError::Unavailable(text),
        }
    }
}

impl From<String> for NoAnswer {
    fn from(text: String) -> NoAnswer {
        NoAnswer { text, is_refused: false }
    }
}

/// The meaning of a failure, with advice for the operator.
pub fn classify(address: &str, error: &RedisError) -> EngineError {
    let refused = |why: &str| EngineError::Refused(format!("redis at {address} {why}: {error}"));
    let unavailable = |why: &str| EngineError::Unavailable(format!("redis at {address} {why}: {error}"));
    // A script reports it within an error of its own.
    if error.code() == Some("WRONGTYPE") || error.to_string().contains("WRONGTYPE") {
        return EngineError::WrongType(format!("redis at {address} holds a key of a wrong type: {error}"));
    }
    if let Some(cause) = trust::cause(error) {
        let why = trust::advice("engine", "server", cause);
        return EngineError::Unavailable(format!("redis at {address} cannot be reached: {why}"));
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
            refused("has only a part of a cluster; write redis-cluster:// in engine.url")
        }
        ErrorKind::Server(ServerErrorKind::ClusterDown) => {
            unavailable("is part of a cluster that does not serve all slots; see CLUSTER INFO there")
        }
        ErrorKind::Server(ServerErrorKind::BusyLoading) => unavailable("is still loading its data"),
        _ => match error.code() {
            Some("NOAUTH" | "WRONGPASS") => {
                refused("refused the login; check engine.url and engine.password_file")
            }
            Some("OOM") => unavailable("is full; raise its maxmemory"),
            Some("MISCONF") => unavailable("cannot write its data to disk"),
            Some("NOREPLICAS") => {
                unavailable("does not write without a replica (min-replicas-to-write); start its replicas")
            }
            _ => unavailable("did not execute a command"),
        },
    }
}
