//! The meaning of the server's errors, with advice for the operator.

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use crate::store::EngineError;
use crate::{cause, trust};

/// The options of the login at every server that holds a part of the fleet.
pub const LOGIN: &str = "engine.url and engine.password_file";

/// The first words of an error that explains why no server is known, with advice.
pub const NO_SERVERS: &str = "no servers";

/// The error codes of a server that did not execute a command because another server has to, or because no server can
/// at the moment.
const NOT_EXECUTED: &[&str] =
    &["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS"];

/// Whether the server did not execute a command, and another attempt may succeed.
pub fn is_not_executed(answer: &Value) -> bool {
    let Value::ServerError(error) = answer else { return false };
    NOT_EXECUTED.contains(&error.code()) || is_within(error.details().unwrap_or_default())
}

/// Whether a transaction or a script was not executed, and another attempt may succeed. Each reports this within an
/// error of its own.
pub fn was_not_executed(error: &RedisError) -> bool {
    let error = &first_of(error);
    error.code().is_some_and(|code| NOT_EXECUTED.contains(&code)) || is_within(&error.to_string())
}

/// Whether the connection failed, not a command.
pub fn is_cut(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped() || error.is_timeout()
}

/// Whether a server refused the login of a new connection, or its database.
pub fn is_refused_login(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
        || error.to_string().starts_with("Redis server refused")
}

/// Whether a failover, which ends within seconds, or a moving slot explains a failure. A script that is unknown to
/// this server was loaded at another server.
pub fn may_pass(error: &RedisError) -> bool {
    is_cut(error) || was_not_executed(error) || first_of(error).code() == Some("NOSCRIPT")
}

/// Whether a server needs a password and got none: its answer names HELLO and AUTH.
fn needs_login(error: &RedisError) -> bool {
    error.code() == Some("NOAUTH") || error.to_string().contains("NOAUTH")
}

/// The advice if a server lacks a command that every Redis has.
const NO_STORE: &str = "it keeps no keys, as a sentinel does, or its commands are renamed: write redis-sentinel:// for \
                        sentinels";

fn is_unknown_command(error: &RedisError) -> bool {
    error.to_string().to_lowercase().contains("unknown command")
}

/// Why a server is of another sort than `engine.url` says; `None`: its answer does not show that.
fn other_sort(error: &RedisError) -> Option<&'static str> {
    let text = error.to_string();
    let is = |part: &str| text.contains(part);
    if is("cluster support disabled") {
        Some("is no node of a cluster; write redis:// in engine.url (rediss:// with TLS)")
    } else if is_unknown_command(error) && text.to_lowercase().contains("sentinel") {
        Some("is not a sentinel; write redis:// in engine.url, or the addresses of the sentinels")
    } else if is("DB index is out of range") {
        Some("has no database of that number; correct the end of engine.url")
    } else {
        None
    }
}

/// Whether a text has a code of [`NOT_EXECUTED`]: `… -READONLY You can't write …`.
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

/// Why a server did not answer a request about the topology.
#[derive(Debug, PartialEq, Eq)]
pub struct NoAnswer {
    /// The server and the reason, with advice for the operator.
    pub text: String,
    /// Whether only an operator can help: the server refused the login or a command, or is of another sort than
    /// `engine.url` says.
    pub is_refused: bool,
    /// Whether the text has advice.
    is_explained: bool,
}

impl NoAnswer {
    /// `options` names the options of the login at this server.
    pub fn of(server: &str, error: &RedisError, options: &str) -> NoAnswer {
        let error = &first_of(error);
        let lacks_rights = error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm);
        let is_refused = lacks_rights || is_refused_login(error);
        let (cause, sort) = (trust::cause(error), other_sort(error));
        let is_explained = is_refused || cause.is_some() || sort.is_some();
        let text = match cause.ok_or(sort) {
            Err(Some(sort)) => format!("{server} {sort}; {}", answer(error)),
            Ok(cause) => {
                format!("{server} cannot be reached: {}", trust::advice("engine", "server", cause))
            }
            Err(None) if lacks_rights => {
                let advice = "grant it to the user with ACL SETUSER";
                format!("{server} does not permit a command; {advice}; {}", answer(error))
            }
            Err(None) if needs_login(error) => {
                format!("{server} refused the login: it needs a password; set one ({options})")
            }
            Err(None) if is_refused => {
                format!("{server} refused the login; check {options}; {}", answer(error))
            }
            Err(None) => format!("{server} does not answer: {}", cause::why("engine", "server", error)),
        };
        NoAnswer { text, is_refused: is_refused || sort.is_some(), is_explained }
    }

    /// The text, with this advice if it has none yet.
    pub fn advised(self, advice: &str) -> String {
        if self.is_explained { self.text } else { format!("{}; {advice}", self.text) }
    }

    /// The error if no server answers: `Refused` if all of them refuse the login, so that only an operator can help.
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
        NoAnswer { text, is_refused: false, is_explained: true }
    }
}

/// The first error of a batch, which may have hundreds. It has no code if the library does not know the code.
pub fn first_of(error: &RedisError) -> RedisError {
    let errors = error.clone().into_server_errors();
    let first = errors.as_deref().and_then(<[_]>::first).map(|(_, first)| Value::ServerError(first.clone()));
    first.and_then(|first| first.extract_error().err()).unwrap_or_else(|| error.clone())
}

/// The answer in the server's own words, so that an operator can look it up.
fn answer(error: &RedisError) -> String {
    // The digest of a script and its line number mean nothing to operators.
    let said = |text: &str| text.split(" script: ").next().unwrap_or_default().to_owned();
    match (error.code(), error.detail().map(said)) {
        (Some(code), Some(detail)) => format!("it answers \"{code} {detail}\""),
        (None, Some(said)) => format!("it answers \"{said}\""),
        (Some(code), None) => format!("it answers \"{code}\""),
        (None, None) => cause::why("engine", "server", error),
    }
}

/// The meaning of an error that a replica answers, if a replica may replace a primary; `None`: the error is not about
/// a replica.
pub fn replaced(address: &str, error: &RedisError, is_cluster: bool) -> Option<EngineError> {
    let is_replica = error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
        || error.to_string().split_ascii_whitespace().any(|word| word.trim_start_matches('-') == "READONLY");
    let look = if is_cluster { "CLUSTER NODES there" } else { "SENTINEL MASTER at the sentinels" };
    is_replica.then(|| {
        EngineError::Unavailable(format!(
            "redis at {address} is a replica now, and rollcall looks for the primary that took over; if this lasts, \
             see {look}; {}",
            answer(&first_of(error))
        ))
    })
}

/// The meaning of a failure, with advice for the operator.
pub fn classify(address: &str, error: &RedisError) -> EngineError {
    let error = &first_of(error);
    // A script reports `WRONGTYPE` within an error of its own.
    if error.code() == Some("WRONGTYPE") || error.to_string().contains("WRONGTYPE") {
        return EngineError::WrongType(format!(
            "redis at {address} holds a key of a wrong type; {}",
            answer(error)
        ));
    }
    if let Some(cause) = trust::cause(error) {
        let why = trust::advice("engine", "server", cause);
        return EngineError::Unavailable(format!("redis at {address} cannot be reached: {why}"));
    }
    if error.is_connection_refusal() {
        return EngineError::Unavailable(format!(
            "redis at {address} refuses connections: nothing listens there; check that it runs, and engine.url"
        ));
    }
    // A server with `maxclients` clients closes a new connection, often before its answer is read.
    if error.is_connection_dropped() {
        return EngineError::Unavailable(format!(
            "redis at {address} closed the connection; check that it runs, and if it does, its maxclients and its log"
        ));
    }
    if error.is_io_error() {
        return EngineError::Unavailable(format!(
            "redis at {address} cannot be reached; check that it runs, and engine.url: {}",
            cause::why("engine", "server", error)
        ));
    }
    if needs_login(error) {
        let why = "refused the login: it needs a password; set engine.password_file";
        return EngineError::Refused(format!("redis at {address} {why}"));
    }
    if let Some(sort) = other_sort(error) {
        return refused(address, error, sort);
    }
    by_kind(address, error)
}

fn refused(address: &str, error: &RedisError, why: &str) -> EngineError {
    EngineError::Refused(format!("redis at {address} {why}; {}", answer(error)))
}

fn unavailable(address: &str, error: &RedisError, why: &str) -> EngineError {
    EngineError::Unavailable(format!("redis at {address} {why}; {}", answer(error)))
}

/// The meaning of the answer of a server that was reached, by the kind of the error.
fn by_kind(address: &str, error: &RedisError) -> EngineError {
    let refused = |why: &str| refused(address, error, why);
    let unavailable = |why: &str| unavailable(address, error, why);
    match error.kind() {
        ErrorKind::AuthenticationFailed => refused(&format!("refused the login; check {LOGIN}")),
        ErrorKind::InvalidClientConfig if error.to_string().starts_with(NO_SERVERS) => {
            EngineError::Refused(error.detail().unwrap_or(NO_SERVERS).to_owned())
        }
        ErrorKind::InvalidClientConfig => refused("does not accept this address; check engine.url"),
        ErrorKind::Parse => EngineError::Unavailable(format!(
            "what listens at {address} does not speak the protocol of Redis; check engine.url"
        )),
        ErrorKind::RESP3NotSupported => refused("is too old; 6.2 or newer is needed"),
        ErrorKind::Server(ServerErrorKind::NoPerm) => {
            refused("does not permit a command; check the rights of its user")
        }
        ErrorKind::Server(ServerErrorKind::ReadOnly) => {
            unavailable("is a replica; engine.url has to name the primary")
        }
        ErrorKind::Server(ServerErrorKind::Moved) => refused(
            "has only a part of a cluster; write redis-cluster:// in engine.url (rediss-cluster:// with TLS)",
        ),
        ErrorKind::Server(ServerErrorKind::ClusterDown) => unavailable(
            "is part of a cluster that does not serve all slots; see redis-cli --cluster check HOST:PORT, with the \
                 address of a node",
        ),
        ErrorKind::Server(ServerErrorKind::TryAgain) => unavailable(
            "has a slot that is being moved; if no reshard is running, it was interrupted: complete it with redis-cli \
             --cluster fix HOST:PORT",
        ),
        ErrorKind::Server(ServerErrorKind::BusyLoading) => unavailable("is still loading its data"),
        _ => by_code(address, error),
    }
}

/// The meaning of an answer whose code the library does not know.
fn by_code(address: &str, error: &RedisError) -> EngineError {
    let refused = |why: &str| refused(address, error, why);
    let unavailable = |why: &str| unavailable(address, error, why);
    match error.code() {
        Some("NOAUTH" | "WRONGPASS") => refused(&format!("refused the login; check {LOGIN}")),
        Some("OOM") => unavailable("is full; raise its maxmemory"),
        Some("MISCONF") => unavailable("cannot write its data to disk"),
        Some("NOREPLICAS") => {
            unavailable("does not write without a replica (min-replicas-to-write); start its replicas")
        }
        _ if is_unknown_command(error) => refused(&format!("did not execute a command; {NO_STORE}")),
        _ => unavailable("did not execute a command"),
    }
}

#[cfg(test)]
mod tests {
    use redis::{Client, ConnectionLike};

    use super::*;
    use crate::simulate::servers::{Server, free_cluster_port, free_port};

    #[test]
    fn the_advice_about_a_replica_fits_the_servers() {
        let read_only = || {
            let kind = ErrorKind::Server(ServerErrorKind::ReadOnly);
            RedisError::from((kind, "READONLY", "You can't write against a read only replica.".to_owned()))
        };
        let text = |meaning: EngineError| meaning.to_string();
        assert!(text(classify("a:1", &read_only())).contains("engine.url has to name the primary"));
        for (is_cluster, look) in [(true, "CLUSTER NODES"), (false, "SENTINEL MASTER")] {
            let text = text(replaced("a:1", &read_only(), is_cluster).unwrap());
            assert!(text.contains("a:1 is a replica now") && text.contains(look), "{text}");
            assert!(!text.contains("engine.url"), "{text}");
        }
        let full = RedisError::from((ErrorKind::Extension, "OOM", "command not allowed".to_owned()));
        assert!(replaced("a:1", &full, true).is_none());
    }

    #[test]
    fn a_server_that_does_not_permit_a_question_is_not_away() {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::redis(dir.path(), free_port().unwrap(), &[]).unwrap();
        let mut connection = Client::open(("127.0.0.1", server.port())).unwrap().get_connection().unwrap();
        redis::cmd("ACL").arg(&["SETUSER", "few", "on", "nopass", "+ping"]).exec(&mut connection).unwrap();
        redis::cmd("AUTH").arg(&["few", "any"]).exec(&mut connection).unwrap();
        let error = redis::cmd("ROLE").exec(&mut connection).unwrap_err();
        let why = NoAnswer::of("the node at a:1", &error, LOGIN);
        assert!(why.is_refused && why.text.contains("ACL SETUSER"), "{}", why.text);
        assert!(matches!(NoAnswer::all(vec![why]), EngineError::Refused(_)), "only an operator can help");
    }

    #[test]
    fn a_batch_that_another_server_has_to_execute_may_succeed_later() {
        let dir = tempfile::tempdir().unwrap();
        // The server serves no slot.
        let args = ["--cluster-enabled", "yes"];
        let server = Server::redis(dir.path(), free_cluster_port().unwrap(), &args).unwrap();
        let mut connection = Client::open(("127.0.0.1", server.port())).unwrap().get_connection().unwrap();
        let mut batch = redis::pipe();
        batch.set("a", 1).set("a", 2).set("a", 3);
        for batch in [batch.clone(), batch.atomic().clone()] {
            let error = batch.exec(&mut connection).unwrap_err();
            assert!(was_not_executed(&error) && may_pass(&error), "{error:?}");
        }
    }

    #[test]
    fn the_errors_of_a_batch_are_told_by_the_first_one_with_its_advice() {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::redis(dir.path(), free_port().unwrap(), &[]).unwrap();
        let mut connection = Client::open(("127.0.0.1", server.port())).unwrap().get_connection().unwrap();
        redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1").exec(&mut connection).unwrap();
        assert!(connection.is_open());
        let mut batch = redis::pipe();
        batch.set("a", 1).set("b", 2).set("c", 3);
        for batch in [batch.clone(), batch.atomic().clone()] {
            let error = batch.exec(&mut connection).unwrap_err();
            let text = classify("here", &error).to_string();
            assert!(text.contains("is full; raise its maxmemory"), "{text}");
            assert_eq!(text.matches("OOM").count(), 1, "{text}");
        }
    }

    #[test]
    fn a_server_of_another_sort_than_the_url_says_is_named_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::redis(dir.path(), free_port().unwrap(), &[]).unwrap();
        let mut connection = Client::open(("127.0.0.1", server.port())).unwrap().get_connection().unwrap();
        let cases: [(&str, &[&str], &str); 3] = [
            ("CLUSTER", &["NODES"], "is no node of a cluster; write redis://"),
            ("SENTINEL", &["MASTER", "main"], "is not a sentinel; write redis://"),
            ("SELECT", &["99"], "has no database of that number"),
        ];
        for (command, args, expected) in cases {
            let error = redis::cmd(command).arg(args).exec(&mut connection).unwrap_err();
            let why = NoAnswer::of("the server at a:1", &error, LOGIN);
            assert!(why.is_refused && why.text.contains(expected), "{}", why.text);
        }
        let error = redis::cmd("NOCOMMAND").exec(&mut connection).unwrap_err();
        let text = classify("a:1", &error).to_string();
        assert!(text.contains("redis-sentinel:// for sentinels"), "{text}");
    }
}
