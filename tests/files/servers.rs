//! The examples of `config/redis/`: one command starts each, Ctrl-C ends it without a trace, and the claims in their
//! files about failovers hold.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use redis::{Cmd, FromRedisValue, cmd};
use rollcall::simulate::servers::{ExitCleanup, free_ports};
use tempfile::TempDir;

use crate::support::client::client;
use crate::support::cluster::{Cluster, ClusterPlan};
use crate::support::node::{shipped, until};
use crate::support::sentinel::{Sentinel, SentinelPlan};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `make cluster` or `make sentinel`, run as in a terminal of its own.
struct Example {
    make: Child,
    url: String,
    dir: TempDir,
    _cleanup: ExitCleanup,
}

impl Example {
    fn start(target: &str, port: u16) -> Example {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("make");
        command.arg(target).current_dir(root()).process_group(0).stdout(Stdio::piped());
        // These variables belong to the run of this test by make.
        command.env_remove("MAKEFLAGS").env_remove("MFLAGS");
        let mut make = command.env("PORT", port.to_string()).env("TMPDIR", dir.path()).spawn().unwrap();
        let cleanup = ExitCleanup::new("kill -INT -- \"-$1\"", make.id().to_string()).unwrap();
        let mut lines = BufReader::new(make.stdout.take().unwrap()).lines().map_while(Result::ok);
        let last = lines.find(|line| line.starts_with("engine.url = "));
        let last = last.expect("it says where the servers are");
        crate::reference::load(&last, Path::new("make"));
        let table: toml::Table = last.parse().unwrap();
        let url = table["engine"]["url"].as_str().unwrap().to_owned();
        Example { make, url, dir, _cleanup: cleanup }
    }

    fn press_ctrl_c(&mut self) {
        let group = format!("-{}", self.make.id());
        let _ = Command::new("kill").args(["-INT", "--", &group]).status();
        let _ = self.make.wait();
    }

    /// The processes that run in the example's directory. Ports would not tell: another test may have taken one since.
    fn running(&self) -> Vec<PathBuf> {
        let processes = std::fs::read_dir("/proc").unwrap().map_while(Result::ok);
        let cwds = processes.filter_map(|process| std::fs::read_link(process.path().join("cwd")).ok());
        cwds.filter(|cwd| cwd.starts_with(self.dir.path())).collect()
    }

    /// Presses Ctrl-C, after which nothing is left.
    fn ends(mut self, servers: usize) {
        let running = self.running();
        assert!(running.len() >= servers, "{running:?}");
        self.press_ctrl_c();
        let running = self.running();
        assert!(running.is_empty(), "{running:?}");
        let left: Vec<_> = std::fs::read_dir(self.dir.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        if self.make.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.press_ctrl_c();
        }
    }
}

async fn ask<T: FromRedisValue>(port: u16, command: &Cmd) -> T {
    let mut connection = client(port).await.unwrap();
    command.query_async(&mut connection).await.unwrap()
}

/// The settings of a file, line by line, without the settings that depend on the place.
fn settings(file: &str) -> Vec<String> {
    let text = shipped(file);
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .filter(|line| !line.starts_with("port ") && !line.starts_with("protected-mode "))
        .map(str::to_owned)
        .collect()
}

#[test]
fn servers_among_others_have_the_settings_of_a_single_one() {
    let single = settings("redis.conf");
    assert!(single.len() > 5, "{single:?}");
    for file in ["cluster.conf", "replicated.conf"] {
        let here = settings(file);
        for line in &single {
            assert!(here.contains(line), "{file} has no line {line}");
        }
    }
}

#[tokio::test]
async fn one_command_starts_a_cluster_as_its_file_says_and_ctrl_c_leaves_nothing() {
    let port = free_ports(6, 10_000).unwrap();
    let example = Example::start("cluster", port);
    let [a, b, c] = [port, port + 1, port + 2].map(|port| format!("127.0.0.1:{port}"));
    assert_eq!(example.url, format!("redis-cluster://{a},{b},{c}"));
    let nodes: String = ask(port, cmd("CLUSTER").arg("NODES")).await;
    assert_eq!((nodes.matches("master").count(), nodes.matches("slave").count()), (3, 3), "{nodes}");
    for port in port..port + 6 {
        let info: String = ask(port, cmd("CLUSTER").arg("INFO")).await;
        assert!(info.contains("cluster_state:ok"), "{info}");
        has_the_settings_of("cluster.conf", port).await;
    }
    example.ends(6);
}

#[tokio::test]
async fn one_command_starts_servers_with_sentinels_as_their_files_say_and_ctrl_c_leaves_nothing() {
    let port = free_ports(3, 20_000).unwrap();
    let example = Example::start("sentinel", port);
    let [a, b, c] = [20_000, 20_001, 20_002].map(|above| format!("127.0.0.1:{}", port + above));
    assert_eq!(example.url, format!("redis-sentinel://{a},{b},{c}/main/0"));
    for sentinel in port + 20_000..port + 20_003 {
        let where_it_is = cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg("main").to_owned();
        assert_eq!(ask::<(String, u16)>(sentinel, &where_it_is).await, ("127.0.0.1".to_owned(), port));
        let quorum: String = ask(sentinel, cmd("SENTINEL").arg("CKQUORUM").arg("main")).await;
        assert!(quorum.starts_with("OK 3 usable Sentinels"), "{quorum}");
    }
    for port in port..port + 3 {
        has_the_settings_of("replicated.conf", port).await;
    }
    example.ends(6);
}

async fn has_the_settings_of(file: &str, port: u16) {
    for line in settings(file) {
        let (name, value) = line.split_once(' ').unwrap();
        let value = value.trim_matches('"').replace("64mb", "67108864");
        let (_, found): (String, String) = ask(port, cmd("CONFIG").arg("GET").arg(name)).await;
        // Redis writes the flags of notifications in an order of its own.
        let (mut found, mut value): (Vec<char>, Vec<char>) =
            (found.chars().collect(), value.chars().collect());
        found.sort();
        value.sort();
        assert_eq!(found, value, "{name} at {port}");
    }
}

#[test]
fn a_port_that_is_taken_is_named_and_nothing_is_left() {
    let port = free_ports(6, 10_000).unwrap() + 5;
    let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    for script in ["cluster", "sentinel"] {
        let dir = tempfile::tempdir().unwrap();
        // The taken port is that of the last server, so that the others have started before.
        let first = if script == "cluster" { port - 5 } else { port - 2 };
        let mut command = Command::new(root().join("config/redis").join(script));
        let command = command.env("PORT", first.to_string()).env("TMPDIR", dir.path());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let named = (first..=port).any(|port| {
            said.contains(&format!("port {port}")) && said.contains("taken; choose others: PORT=")
        });
        assert!(!output.status.success() && named, "{said}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{script}");
    }
}

#[test]
fn a_missing_redis_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for script in ["cluster", "sentinel"] {
        let mut command = Command::new("/bin/sh");
        command.arg(root().join("config/redis").join(script));
        // The path has dirname, but not Redis.
        std::os::unix::fs::symlink("/usr/bin/dirname", dir.path().join("dirname")).ok();
        let output = command.env("PATH", dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("redis-server is not installed") && !output.status.success(), "{said}");
    }
}

#[tokio::test]
async fn a_cluster_goes_on_without_a_primary_and_while_servers_are_added_and_removed() {
    let mut cluster = Cluster::start(ClusterPlan::new(1)).await;
    let key = "rollcall:{p7}:heard";
    let set = cmd("SET").arg(key).arg("written").to_owned();
    cluster.ask::<()>(key, &set).await;
    let first = cluster.primary_of(key).await;
    let replica = cluster.replicas_of(first).await[0];
    until("the replica has it", async || {
        let size: usize = cluster.nodes[replica].ask(&cmd("DBSIZE")).await;
        size == 1
    })
    .await;
    cluster.nodes[first].kill();
    assert_eq!(cluster.until_promoted(key, first).await, replica);
    // The promoted replica has no replica itself, and accepts writes.
    cluster.until_whole().await;
    assert_eq!(cluster.ask::<String>(key, cmd("GET").arg(key)).await, "written");
    cluster.ask::<()>(key, &set).await;
    cluster.nodes[first].restart();
    cluster.until_whole().await;
    cluster.failover(first).await;
    assert_eq!(cluster.until_promoted(key, replica).await, first);
    cluster.nodes[replica].kill();
    cluster.replace(replica, key).await;
    cluster.until_whole().await;

    let fourth = cluster.add().await;
    cluster.reshard(first, fourth, 10).await;
    assert_eq!(cluster.primaries().await.len(), 4);
    cluster.begin_move(key, fourth).await;
    cluster.move_key(key, fourth).await;
    let asked = cluster.nodes[first].try_ask::<String>(cmd("GET").arg(key)).await;
    assert!(asked.as_ref().is_err_and(|why| why.to_lowercase().contains("ask")), "{asked:?}");
    cluster.end_move(key, fourth).await;
    assert_eq!(cluster.until_promoted(key, first).await, fourth);
    cluster.remove(fourth, first).await;
    cluster.until_whole().await;
    assert_eq!(cluster.ask::<String>(key, cmd("GET").arg(key)).await, "written");
}

#[tokio::test]
async fn sentinels_promote_a_replica_that_accepts_writes() {
    let mut sentinel = Sentinel::start(SentinelPlan::new(2)).await;
    let first = sentinel.primary().await;
    let set = cmd("SET").arg("a").arg(1).to_owned();
    sentinel.ask::<()>(&set).await;
    sentinel.servers[first].freeze();
    let second = sentinel.until_promoted(first).await;
    until("the other replica follows it", async || {
        sentinel.servers[second].try_ask::<()>(&set).await.is_ok()
    })
    .await;
    sentinel.servers[first].thaw();
    sentinel.until_whole().await;
    assert_ne!(sentinel.failover().await, second);
    sentinel.until_whole().await;
}

#[tokio::test]
async fn a_primary_without_its_replicas_refuses_writes() {
    let mut sentinel = Sentinel::start(SentinelPlan::new(2)).await;
    let primary = sentinel.primary().await;
    for server in sentinel.servers.iter_mut().skip(1) {
        server.freeze();
    }
    let set = cmd("SET").arg("a").arg(1).to_owned();
    until("it refuses writes", async || {
        let refused = sentinel.servers[primary].try_ask::<()>(&set).await;
        refused.is_err_and(|why| why.contains("NOREPLICAS") || why.contains("replicas"))
    })
    .await;
}
