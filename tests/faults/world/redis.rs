//! The Redis of a world, which tests freeze, kill, start with other data, and query as another program.

use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::{Cmd, FromRedisValue};
use rollcall::presence::{OfflineRecord, Unit};
use rollcall::simulate::servers::Server;
use rollcall::store::encoding;
use rollcall::store::redis::{Tags, facts_key};

use super::client::client;
use super::instance::signal;

/// Every answered write is on disk.
pub const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
/// Snapshots on request, and nothing else on disk.
pub const SNAPSHOTS: [&str; 4] = ["--save", "900000 1", "--appendonly", "no"];

pub const PARTITIONS: u16 = 16;

/// Worlds on the embedded engine have none; there killing and starting it does nothing.
pub struct Redis {
    server: Option<Server>,
    before: Vec<String>,
    args: Vec<String>,
    dir: PathBuf,
}

impl Redis {
    /// `before`: a prefix of its command line.
    pub fn start(dir: &Path, port: u16, before: &[String], args: &[&str]) -> Redis {
        let server = Some(Server::redis_after(before, dir, port, args).unwrap());
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Redis { server, before: before.to_vec(), args, dir: dir.to_owned() }
    }

    pub fn none() -> Redis {
        Redis { server: None, before: Vec::new(), args: Vec::new(), dir: PathBuf::new() }
    }

    pub fn port(&self) -> u16 {
        self.server().port()
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("this world has no Redis")
    }

    pub fn signal(&self, name: &str) {
        signal(self.server().pid(), name);
    }

    /// Ends it like a power cut.
    pub fn kill(&mut self) {
        self.server.iter_mut().for_each(Server::kill);
    }

    /// Starts it again on its port with the data on its disk.
    pub fn restart(&mut self) {
        let Some(server) = &mut self.server else { return };
        server.kill();
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        *server = Server::redis_after(&self.before, &self.dir, server.port(), &args).unwrap();
    }

    /// Removes its data from disk.
    pub fn wipe(&mut self) {
        self.kill();
        // Redis 6.2 has one file instead of the directory.
        for name in ["appendonlydir", "appendonly.aof", "dump.rdb"] {
            let path = self.dir.join(name);
            let _ = std::fs::remove_dir_all(&path);
            let _ = std::fs::remove_file(&path);
        }
    }

    /// Sends it a command; an error if it does not answer in time.
    pub async fn try_ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, String> {
        let asked = async {
            let mut connection = client(self.port()).await?;
            command.query_async(&mut connection).await
        };
        match tokio::time::timeout(Duration::from_secs(10), asked).await {
            Ok(answer) => answer.map_err(|error: redis::RedisError| error.to_string()),
            Err(_) => Err("no answer".to_owned()),
        }
    }

    pub async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        self.try_ask(command).await.unwrap()
    }

    /// Every record of a unit with a diary; `None` while Redis does not answer.
    pub async fn records(&self) -> Option<Vec<OfflineRecord>> {
        let mut records = Vec::new();
        for partition in 0..PARTITIONS {
            let key = format!("rollcall:{{p{partition}}}:offline");
            let names: Vec<String> = self.try_ask(redis::cmd("ZRANGE").arg(key).arg(0).arg(-1)).await.ok()?;
            let mut open = Vec::new();
            for name in names.iter().filter(|name| !name.contains(super::CROWD)) {
                open.extend(self.open_record(name).await?);
            }
            let key = format!("rollcall:{{p{partition}}}:archive");
            let texts: Vec<String> = self.try_ask(redis::cmd("HVALS").arg(key)).await.ok()?;
            let closed: Vec<OfflineRecord> = texts
                .iter()
                .map(|text| serde_json::from_str(text).unwrap_or_else(|why| panic!("{text}: {why}")))
                .collect();
            // A record may be closed between the two queries.
            open.retain(|open: &OfflineRecord| closed.iter().all(|closed| closed.id != open.id));
            records.extend(open.into_iter().chain(closed));
        }
        records.retain(|record| !record.unit.as_str().starts_with(super::CROWD));
        Some(records)
    }

    /// The open record of a unit, if it still has one; `None` while Redis does not answer.
    async fn open_record(&self, name: &str) -> Option<Option<OfflineRecord>> {
        let unit: Unit = name.parse().unwrap();
        let ask = redis::cmd("HGET")
            .arg(facts_key("rollcall", PARTITIONS, Tags::Plain, &unit))
            .arg(name)
            .to_owned();
        let facts = self.try_ask::<Option<String>>(&ask).await.ok()?;
        Some(facts.and_then(|facts| encoding::decode(&facts)?.open_record(&unit)))
    }

    /// The backlog: entries of outboxes, members of groups, deliveries.
    pub async fn waiting(&self) -> Option<usize> {
        let mut waiting =
            self.try_ask::<usize>(redis::cmd("XLEN").arg("rollcall:{hearing}:outbox")).await.ok()?;
        for partition in 0..PARTITIONS {
            for (command, name) in [("XLEN", "outbox"), ("ZCARD", "groups"), ("HLEN", "notifications")] {
                let key = format!("rollcall:{{p{partition}}}:{name}");
                waiting += self.try_ask::<usize>(redis::cmd(command).arg(key)).await.ok()?;
            }
        }
        Some(waiting)
    }

    /// How many units are watched.
    pub async fn known(&self) -> Option<usize> {
        self.sum("deadlines").await
    }

    /// Whether that unit is watched.
    pub async fn knows(&self, name: &str) -> Option<bool> {
        for partition in 0..PARTITIONS {
            let key = format!("rollcall:{{p{partition}}}:deadlines");
            let check = self.try_ask::<Option<f64>>(redis::cmd("ZSCORE").arg(key).arg(name)).await.ok()?;
            if check.is_some() {
                return Some(true);
            }
        }
        Some(false)
    }

    /// How many records are open.
    pub async fn open(&self) -> Option<usize> {
        self.sum("offline").await
    }

    /// How many records there are.
    pub async fn recorded(&self) -> Option<usize> {
        let mut closed = 0;
        for partition in 0..PARTITIONS {
            let key = format!("rollcall:{{p{partition}}}:archive");
            closed += self.try_ask::<usize>(redis::cmd("HLEN").arg(key)).await.ok()?;
        }
        Some(self.open().await? + closed)
    }

    /// The sizes of a sorted set of every partition.
    async fn sum(&self, name: &str) -> Option<usize> {
        let mut sum = 0;
        for partition in 0..PARTITIONS {
            let key = format!("rollcall:{{p{partition}}}:{name}");
            sum += self.try_ask::<usize>(redis::cmd("ZCARD").arg(key)).await.ok()?;
        }
        Some(sum)
    }
}
