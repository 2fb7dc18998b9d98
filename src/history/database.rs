//! A connection to PostgreSQL: address, TLS, time limits, and errors in words for operators.
//!
//! Every statement has a time limit in the server, and a longer one here, because a server that is gone cannot end the
//! statement.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::{Client, NoTls, Transaction};

use super::tls::PostgresTls;
use crate::address::is_this_machine;
use crate::cause::without_number;
use crate::small_file::{self, MAX_SECRET, SmallFile};
use crate::store::EngineError;
use crate::trust::{self, TlsFiles};

/// How much longer than the server this side waits for a statement.
const SPARE: Duration = Duration::from_secs(10);

/// The oldest PostgreSQL with the features that the schema needs.
const OLDEST: i32 = 130_000;

/// Where the database is.
#[derive(Clone)]
pub struct DatabaseAddress(tokio_postgres::Config);

impl DatabaseAddress {
    /// Reads `postgres://user@host:port/database`. A server on another machine has to speak TLS unless the address says
    /// `sslmode=disable`.
    ///
    /// # Errors
    /// The fault, without the address, which may hold a password.
    pub fn parse(url: &str) -> Result<DatabaseAddress, String> {
        // The parser takes any other text as `name=value` pairs, and names the pair that it does not know: all of the text.
        let is_address = ["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme));
        let no_address =
            |why: &str| format!("is no address of a database{why}; write postgres://user@host:5432/database");
        if !is_address {
            return Err(no_address(""));
        }
        // Other programs call this `verify-full`; here `require` also verifies the certificate.
        let url = &url.replace("sslmode=verify-full", "sslmode=require");
        let mut config: tokio_postgres::Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let why = std::error::Error::source(&error).map(|why| format!(" ({why})")).unwrap_or_default();
            no_address(&why)
        })?;
        let mut modes = url.split(['?', '&']).filter_map(|part| part.strip_prefix("sslmode="));
        if modes.any(|mode| !["require", "disable"].contains(&mode)) {
            return Err("names another sslmode than require, which proves the server, and disable".to_owned());
        }
        if config.get_hosts().is_empty() || config.get_dbname().is_none() {
            return Err("names no host or no database; write postgres://user@host:5432/database".to_owned());
        }
        if !url.contains("sslmode=") {
            let is_here = config.get_hosts().iter().all(is_on_this_machine);
            config.ssl_mode(if is_here { SslMode::Disable } else { SslMode::Require });
        }
        config.application_name("rollcall").connect_timeout(SPARE).tcp_user_timeout(3 * SPARE);
        Ok(DatabaseAddress(config))
    }

    pub fn is_encrypted(&self) -> bool {
        self.0.get_ssl_mode() != SslMode::Disable
    }

    pub fn has_password(&self) -> bool {
        self.0.get_password().is_some()
    }
}

fn is_on_this_machine(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => is_this_machine(name),
    }
}

/// Writes the address for operators, without the password.
impl std::fmt::Display for DatabaseAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let host = match self.0.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => String::new(),
        };
        let port = self.0.get_ports().first().unwrap_or(&5432);
        write!(f, "postgres at {host}:{port}, database {}", self.0.get_dbname().unwrap_or_default())
    }
}

/// Omits secrets.
impl std::fmt::Debug for DatabaseAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The reason why history was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The database is away or busy; the loop tries again.
    #[error("{0}")]
    Away(String),
    /// A statement took too long.
    #[error("{0}")]
    TooSlow(String),
    /// An operator has to change something.
    #[error("{0}")]
    Refused(String),
    /// The database cannot hold what rows have in them; others may be fine.
    #[error("{0}")]
    RefusedRows(String),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

pub type Result<T, E = HistoryError> = std::result::Result<T, E>;

/// How to reach the database.
#[derive(Clone, Debug)]
pub struct DatabaseAccess {
    pub address: DatabaseAddress,
    /// The file with the password. It is read for each connection, as those of TLS are, so that a new password needs no
    /// restart.
    pub password_file: Option<PathBuf>,
    pub tls: TlsFiles,
    /// The schema of the tables.
    pub schema: String,
    /// The time limit of a statement.
    pub statement_timeout: Duration,
}

impl DatabaseAccess {
    /// The schema as a statement names it: it may be a reserved word.
    pub(super) fn quoted_schema(&self) -> String {
        format!("\"{}\"", self.schema.replace('"', "\"\""))
    }
}

/// An open connection. Dropping it closes the connection.
pub struct Database {
    client: Client,
    driver: JoinHandle<()>,
    address: DatabaseAddress,
    limit: Duration,
}

impl Drop for Database {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Database {
    /// Connects, and prepares the session.
    pub async fn connect(access: &DatabaseAccess) -> Result<Database> {
        let DatabaseAccess { address, password_file, tls, statement_timeout, .. } = access;
        let mut config = address.0.clone();
        if let Some(file) = password_file {
            config.password(password_in(file)?);
        }
        let failed = |error| explained(&error, address, "connect");
        let (client, driver) = if address.is_encrypted() {
            let files = trust::client("history", tls, small_file::read_file);
            let (tls, _) = files.map_err(|error| HistoryError::Refused(error.to_string()))?;
            let (client, connection) = config.connect(PostgresTls(Arc::new(tls))).await.map_err(failed)?;
            (client, tokio::spawn(async move { drop(connection.await) }))
        } else {
            let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
            (client, tokio::spawn(async move { drop(connection.await) }))
        };
        let limit = *statement_timeout;
        let database = Database { client, driver, address: address.clone(), limit };
        let version: i32 = database
            .limited("ask for the version", async {
                let row = database.client.query_one("SELECT current_setting('server_version_num')::int", &[]);
                row.await.map(|row| row.get(0))
            })
            .await?;
        if version < OLDEST {
            return Err(HistoryError::Refused(format!(
                "{address} is PostgreSQL {}; history needs 13 or newer",
                version / 10_000
            )));
        }
        let (schema, milliseconds) = (access.quoted_schema(), limit.as_millis());
        let settings = format!(
            "SET search_path TO {schema}; SET TimeZone TO 'UTC'; SET statement_timeout TO {milliseconds}; \
             SET lock_timeout TO {milliseconds}; SET idle_in_transaction_session_timeout TO {milliseconds}"
        );
        database.limited("prepare the session", database.client.batch_execute(&settings)).await?;
        Ok(database)
    }

    /// Runs statements within the time limit; errors are in words for operators.
    pub async fn limited<T>(
        &self,
        doing: &str,
        statements: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        limited(statements, self.limit + SPARE, &self.address, doing).await
    }

    /// Runs up to `count` statements, one after the other, which together have the time of so many.
    pub async fn limited_together<T>(
        &self,
        count: u32,
        doing: &str,
        statements: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        limited(statements, count * (self.limit + SPARE), &self.address, doing).await
    }

    /// Returns whether the connection is open, as far as the client has noticed.
    pub fn is_open(&self) -> bool {
        !self.client.is_closed()
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs statements in one transaction. Together they have twice the time of one.
    pub async fn in_transaction<T>(
        &mut self,
        doing: &str,
        statements: impl AsyncFnOnce(&Transaction<'_>) -> std::result::Result<T, tokio_postgres::Error>,
    ) -> Result<T> {
        let (limit, address) = (2 * self.limit + SPARE, self.address.clone());
        let run = async {
            let transaction = self.client.transaction().await?;
            let done = statements(&transaction).await?;
            transaction.commit().await?;
            Ok(done)
        };
        limited(run, limit, &address, doing).await
    }

    pub fn address(&self) -> &DatabaseAddress {
        &self.address
    }
}

fn password_in(file: &Path) -> Result<String> {
    let read = SmallFile::read(file, MAX_SECRET).and_then(SmallFile::into_secret);
    read.map_err(|error| {
        let why = without_number(&error.to_string());
        HistoryError::Refused(format!("history.password_file {} cannot be read: {why}", file.display()))
    })
}

async fn limited<T>(
    statements: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    limit: Duration,
    address: &DatabaseAddress,
    doing: &str,
) -> Result<T> {
    match tokio::time::timeout(limit, statements).await {
        Ok(done) => done.map_err(|error| explained(&error, address, doing)),
        Err(_) => {
            let seconds = limit.as_secs();
            let text = format!("{address} did not answer within {seconds} s when asked to {doing}");
            Err(HistoryError::TooSlow(text))
        }
    }
}

/// An error of the client in words: what was tried, on what, and what to do.
fn explained(error: &tokio_postgres::Error, address: &DatabaseAddress, doing: &str) -> HistoryError {
    let Some(refused) = error.as_db_error() else {
        let chain = std::iter::successors(std::error::Error::source(error), |one| one.source());
        let why = chain.last().map_or_else(|| error.to_string(), ToString::to_string);
        return HistoryError::Away(format!("{address} cannot be reached: {}", without_number(&why)));
    };
    let why = refused.message();
    let text = |advice: &str| format!("{address} refused to {doing}: {why}; {advice}");
    match refused.code() {
        code if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION]
            .contains(code) =>
        {
            HistoryError::Refused(text("check the user in history.url and history.password_file"))
        }
        code if *code == SqlState::INVALID_CATALOG_NAME => {
            HistoryError::Refused(text("make the database, or correct history.url"))
        }
        code if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
            HistoryError::Refused(text("the user of history.url must own the schema of history"))
        }
        code if *code == SqlState::READ_ONLY_SQL_TRANSACTION => HistoryError::Away(text(
            "history needs a server that takes writes: neither a standby, nor read only",
        )),
        code if [SqlState::QUERY_CANCELED, SqlState::LOCK_NOT_AVAILABLE].contains(code) => {
            HistoryError::TooSlow(format!("{address} was too slow to {doing}: {why}"))
        }
        code if *code == SqlState::DISK_FULL || may_not_grow(refused) => {
            HistoryError::Away(text("make room on its disk"))
        }
        code if is_of_rows(code) => {
            HistoryError::RefusedRows(format!("{address} refused to {doing}: {why} ({})", code.code()))
        }
        _ => HistoryError::Away(format!("{address} did not {doing}: {why}")),
    }
}

/// Whether a code blames the rows of a statement: the classes of cardinality, of data and of limits of the program.
fn is_of_rows(code: &SqlState) -> bool {
    ["21", "22", "54"].iter().any(|class| code.code().starts_with(class))
}

/// A file of the server reached a limit other than the size of its disk, such as a quota; the code of that error differs
/// between versions.
fn may_not_grow(refused: &DbError) -> bool {
    refused.routine().is_some_and(|routine| ["mdextend", "mdzeroextend"].contains(&routine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_machine_is_asked_for_tls_and_an_address_shows_no_password() {
        for (url, is_encrypted) in [
            ("postgres://ana@127.0.0.1/fleet", false),
            ("postgres://ana@localhost:5433/fleet", false),
            ("postgres://ana@db.example.org/fleet", true),
            ("postgres://ana@db.example.org/fleet?sslmode=disable", false),
            ("postgres://ana@127.0.0.1/fleet?sslmode=require", true),
            ("postgres:///fleet?host=/run/postgresql&user=ana", false),
            ("postgres://ana@127.0.0.1/fleet?sslmode=verify-full", true),
        ] {
            assert_eq!(DatabaseAddress::parse(url).unwrap().is_encrypted(), is_encrypted, "{url}");
        }
        let address = DatabaseAddress::parse("postgres://ana:secret@db.example.org/fleet").unwrap();
        assert_eq!(format!("{address:?}"), "postgres at db.example.org:5432, database fleet");
        for (url, why) in [
            ("redis://ana:secret@127.0.0.1", "is no address of a database"),
            ("postgre://ana:secret@127.0.0.1/fleet?user=ana", "is no address of a database"),
            ("host=127.0.0.1 dbname=fleet password=secret", "is no address of a database"),
            ("postgres://ana:secret@127.0.0.1", "names no host or no database"),
            ("postgres://ana:secret@db.example.org/fleet?sslmode=prefer", "another sslmode than require"),
        ] {
            let error = DatabaseAddress::parse(url).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
    }
}
