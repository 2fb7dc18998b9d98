//! A server of Redis with a file of `config/redis/`, as operators have it, in a directory of its own. A test may kill
//! the server, freeze it, start it again with or without its data, and query it as another program.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisResult, cmd};
use rollcall::simulate::servers::{Server, free_cluster_port};

use super::certificates::Authority;
use super::client::client_of;

/// How long a test waits for a fact.
const MAX_WAIT: Duration = Duration::from_secs(120);
/// How long a server may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(20);

/// The network of a server, and its clock.
#[derive(Clone)]
pub struct Place {
    /// The address under which all others reach the server.
    pub host: String,
    /// A prefix of the command line, for another network or another clock.
    pub before: Vec<String>,
    /// The authority of the server's certificate, if the server speaks TLS; the host is 127.0.0.1 then.
    pub authority: Option<Arc<Authority>>,
}

impl Default for Place {
    fn default() -> Place {
        Place { host: "127.0.0.1".to_owned(), before: Vec::new(), authority: None }
    }
}

/// A running server, which ends with this value.
pub struct Node {
    server: Server,
    dir: PathBuf,
    host: String,
    authority: Option<Arc<Authority>>,
    /// The program and its arguments.
    line: Vec<String>,
    ready: &'static str,
    is_running: bool,
    is_frozen: bool,
}

/// A file of `config/redis/`.
pub fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/redis").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl Node {
    /// Starts a server with these settings, at a port for which the port ten thousand above is free too.
    pub fn start(dir: &Path, settings: &str) -> Node {
        Node::start_in(dir, settings, &Place::default())
    }

    /// Starts a node at a place: its network and its clock.
    pub fn start_in(dir: &Path, settings: &str, place: &Place) -> Node {
        Node::with(dir, settings, &[], "Ready to accept connections", place)
    }

    /// Starts a Sentinel with these settings.
    pub fn sentinel(dir: &Path, settings: &str, place: &Place) -> Node {
        Node::with(dir, settings, &["--sentinel"], "+monitor", place)
    }

    fn with(dir: &Path, settings: &str, more: &[&str], ready: &'static str, place: &Place) -> Node {
        std::fs::create_dir_all(dir).unwrap();
        let Place { host, before, authority } = place.clone();
        if let Some(authority) = &authority {
            authority.certify_server(dir, false);
        }
        let mut line = before;
        line.extend(["redis-server", "redis.conf"].iter().chain(more).map(|one| (*one).to_owned()));
        // Another test may take the same port just now.
        for _ in 0..10 {
            let port = free_cluster_port().unwrap();
            let own =
                authority.as_ref().map_or(format!("port {port}\n"), |authority| authority.settings(port));
            let text = format!("{settings}\n{own}bind {host}\n");
            std::fs::write(dir.join("redis.conf"), text).unwrap();
            if let Ok(server) = Server::start(&line[0], &line[1..], dir, port, ready) {
                let dir = dir.to_owned();
                return Node {
                    server,
                    dir,
                    host,
                    authority,
                    line,
                    ready,
                    is_running: true,
                    is_frozen: false,
                };
            }
        }
        panic!("no server starts; see the log in {}", dir.display());
    }

    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// The address of the node as a part of `engine.url`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port())
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Whether the node is expected to answer: neither killed nor frozen.
    pub fn answers(&self) -> bool {
        self.is_running && !self.is_frozen
    }

    /// Ends the node like a power cut.
    pub fn kill(&mut self) {
        self.server.kill();
        (self.is_running, self.is_frozen) = (false, false);
    }

    /// Stops the node (SIGSTOP): it keeps its connections and answers nothing.
    pub fn freeze(&mut self) {
        self.signal("-STOP");
        self.is_frozen = true;
    }

    /// Continues the node (SIGCONT).
    pub fn thaw(&mut self) {
        self.signal("-CONT");
        self.is_frozen = false;
    }

    /// Notes that the test cuts the node's network, or joins it again.
    pub fn cut_off(&mut self, is_cut_off: bool) {
        self.is_frozen = is_cut_off;
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.pid().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Starts the node again at its port, with the content of its directory.
    pub fn restart(&mut self) {
        self.try_restart().unwrap();
    }

    fn try_restart(&mut self) -> io::Result<()> {
        self.kill();
        self.server = Server::start(&self.line[0], &self.line[1..], &self.dir, self.port(), self.ready)?;
        self.is_running = true;
        Ok(())
    }

    /// Kills the node and removes its data. Its knowledge of the other servers stays.
    pub fn wipe(&mut self) {
        self.kill();
        // Redis 6.2 has one file instead of the directory.
        for name in ["appendonlydir", "appendonly.aof", "dump.rdb"] {
            let path = self.dir.join(name);
            let _ = std::fs::remove_dir_all(&path);
            let _ = std::fs::remove_file(&path);
        }
    }

    /// Starts the node again with a certificate that has expired, or with a new one.
    pub fn restart_with_certificate(&mut self, is_expired: bool) {
        let authority = self.authority.as_ref().expect("it speaks TLS");
        authority.certify_server(&self.dir, is_expired);
        self.restart();
        // Other programs refuse an expired certificate.
        self.is_frozen = is_expired;
    }

    /// The options of Rollcall for the node's TLS.
    pub fn tls_options(&self) -> Option<String> {
        self.authority.as_ref().map(|authority| authority.options())
    }

    pub async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        match &self.authority {
            Some(authority) => authority.connect(self.port()).await,
            None => client_of(&self.host, self.port()).await,
        }
    }

    /// Sends the node a command; an error if it does not answer in time.
    pub async fn try_ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, String> {
        let asked = async { command.query_async(&mut self.connect().await?).await };
        match tokio::time::timeout(ANSWER, asked).await {
            Ok(answer) => answer.map_err(|error: redis::RedisError| error.to_string()),
            Err(_) => Err(format!("{} does not answer", self.address())),
        }
    }

    pub async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        self.try_ask(command).await.unwrap_or_else(|why| panic!("{}: {why}", self.address()))
    }

    /// A section of INFO.
    pub async fn info(&self, section: &str) -> Result<String, String> {
        self.try_ask(cmd("INFO").arg(section)).await
    }

    /// Whether the node is a primary, or a replica that follows its primary.
    pub async fn is_linked(&self) -> bool {
        let info = self.info("replication").await.unwrap_or_default();
        info.contains("role:master") || info.contains("master_link_status:up")
    }
}

/// Leaves replicas behind: they hang, their connections are cut, and they lack all that the primary writes from now
/// on. After a thaw they try to connect to the primary again.
pub async fn leave_behind(nodes: &mut [Node], primary: usize, replicas: &[usize]) {
    replicas.iter().for_each(|number| nodes[*number].freeze());
    // Otherwise a thawed replica would read what the network still holds for it.
    let cut: usize = nodes[primary].ask(cmd("CLIENT").arg("KILL").arg("TYPE").arg("replica")).await;
    assert_eq!(cut, replicas.len(), "all replicas were connected");
}

/// Waits for a fact.
pub async fn until(what: &str, mut fact: impl AsyncFnMut() -> bool) {
    let waited = async {
        while !fact().await {
            tokio::time::sleep(AGAIN).await;
        }
    };
    if tokio::time::timeout(MAX_WAIT, waited).await.is_err() {
        panic!("not within {MAX_WAIT:?}: {what}");
    }
}

/// Starts servers side by side.
pub fn in_parallel(
    numbers: impl IntoIterator<Item = usize>,
    start: impl Fn(usize) -> Node + Sync,
) -> Vec<Node> {
    let start = &start;
    std::thread::scope(|scope| {
        let starting: Vec<_> = numbers.into_iter().map(|number| scope.spawn(move || start(number))).collect();
        starting.into_iter().map(|one| one.join().unwrap()).collect()
    })
}
