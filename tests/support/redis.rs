//! A Redis of the test's own, which a test may freeze, kill, restart, restrict by ACL,
//! and write to as another program.

use std::path::Path;
use std::sync::Arc;

use rollcall::clock::Clock;
use rollcall::presence::Unit;
use rollcall::simulate::servers::{Server, free_port};
use rollcall::store::{redis::RedisConfig, redis::RedisEngine};
use rollcall::telemetry::Telemetry;

/// The options under which every answered write is on disk.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// A server whose answered writes survive a power cut.
pub struct Redis {
    server: Server,
    // The last field, so that the server has ended when the directory is removed.
    dir: tempfile::TempDir,
}

impl Redis {
    pub fn start() -> Redis {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::redis(dir.path(), free_port().unwrap(), &DURABLE).unwrap();
        Redis { server, dir }
    }

    pub fn port(&self) -> u16 {
        self.server.port()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port())
    }

    /// An engine on this server.
    pub async fn engine(&self, telemetry: &Arc<Telemetry>) -> Arc<RedisEngine> {
        let config = RedisConfig { url: self.url(), ..RedisConfig::default() };
        Arc::new(RedisEngine::connect(&config, telemetry.clone()).await.unwrap())
    }

    /// Ends the server like a power cut.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts the server again on its port with its data.
    pub fn restart(&mut self) {
        self.server.kill();
        self.server = Server::redis(self.dir.path(), self.server.port(), &DURABLE).unwrap();
    }

    /// How many connections subscribe to expired keys.
    pub fn listeners(&self) -> usize {
        let ask = &mut redis::cmd("PUBSUB");
        let found: (String, usize) =
            ask.arg("NUMSUB").arg("__keyevent@0__:expired").query(&mut self.client()).unwrap();
        found.1
    }

    /// Sends the server a signal: `-STOP`, `-CONT`.
    pub fn signal(&self, name: &str) {
        signal(&self.server, name);
    }

    /// Forbids commands to every client (`-set`) or permits them again (`+set`).
    pub fn permit(&self, rules: &[&str]) {
        redis::cmd("ACL").arg("SETUSER").arg("default").arg(rules).exec(&mut self.client()).unwrap();
    }

    /// A connection of another program.
    pub fn client(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// Overwrites the facts of a unit with garbage, and deletes its expiry key.
    pub fn damage(&self, unit: &Unit) {
        let (mut client, name) = (self.client(), unit.to_string());
        let partition = rollcall::store::partition_of(unit, 16);
        let pages = format!("rollcall:{{p{partition}}}:facts:*");
        let pages: Vec<String> = redis::cmd("KEYS").arg(pages).query(&mut client).unwrap();
        for page in pages {
            if redis::cmd("HEXISTS").arg(&page).arg(&name).query(&mut client).unwrap() {
                redis::cmd("HSET").arg(&page).arg(&name).arg("garbage").exec(&mut client).unwrap();
            }
        }
        let alive = format!("rollcall:{{p{partition}}}:alive:{name}");
        redis::cmd("DEL").arg(alive).exec(&mut client).unwrap();
    }
}

/// Sends a signal to a server, by its process id.
pub fn signal(server: &Server, name: &str) {
    let sent = std::process::Command::new("kill").args([name, &server.pid().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// A server in `dir` without persistence, and the engine on it, with few partitions so that a
/// walk is short.
pub async fn engine(dir: &Path) -> (Server, Arc<RedisEngine>) {
    let server = Server::redis(dir, free_port().unwrap(), &[]).unwrap();
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let config = RedisConfig { url, partitions: Some(2), ..RedisConfig::default() };
    let telemetry = Arc::new(Telemetry::new(&Clock::system()));
    let engine = RedisEngine::connect(&config, telemetry).await.unwrap();
    (server, Arc::new(engine))
}
