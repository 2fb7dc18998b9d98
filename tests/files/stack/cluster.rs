//! The profile `cluster`: its servers find one another, also after all of them have changed their addresses, as
//! containers do.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rollcall::simulate::servers::{Server, free_cluster_port};

use super::{root, services, texts, yaml};

const SERVERS: usize = 6;

/// Server `number` has the address 127.0.0.`<from + number>`, and all have one port, as in containers.
fn start(dir: &Path, from: usize, port: u16) -> Vec<Server> {
    let file = root().join("config/redis/cluster.conf");
    let start = |number: usize| {
        let address = format!("127.0.0.{}", from + number);
        let port_text = port.to_string();
        let arguments = [file.to_str().unwrap(), "--port", &port_text, "--bind", &address];
        // With several loopback addresses, the kernel would choose the first as the source of the server's own
        // connections.
        let arguments = [&arguments[..], &["--bind-source-addr", &address]].concat();
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        let dir = dir.join(format!("data-{number}"));
        Server::start("redis-server", &arguments, &dir, port, "Ready to accept connections").unwrap()
    };
    (1..=SERVERS).map(start).collect()
}

/// Runs the service `cluster-join`, where these addresses stand for the names of containers.
fn join(dir: &Path, from: usize, port: u16) {
    let resolver = dir.join("getent");
    let text = format!("#!/bin/sh\nnumber=${{2#cluster-}}\necho \"127.0.0.$(({from} + number))  $2\"\n");
    std::fs::write(&resolver, text).unwrap();
    std::fs::set_permissions(&resolver, std::fs::Permissions::from_mode(0o755)).unwrap();
    let compose = yaml("docker-compose.yml");
    let command = texts(&compose["services"]["cluster-join"]["command"]);
    let [first, second] = [1, 2].map(|number| format!("-h 127.0.0.{} -p {port}", from + number));
    let script = command[2]
        .replace("$$", "$")
        .replace("-h cluster-1", &first)
        .replace("-h cluster-2", &second)
        .replace("6379", &port.to_string());
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default());
    let done = Command::new(command[0]).args([command[1], &script]).env("PATH", path).output().unwrap();
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(done.status.success(), "{said}");
}

fn ask(address: &str, port: u16, question: [&str; 2]) -> String {
    let output =
        Command::new("redis-cli").args(["-h", address, "-p", &port.to_string()]).args(question).output();
    String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
}

#[test]
fn the_servers_become_a_cluster_and_stay_one_when_all_addresses_change() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_cluster_port().unwrap();
    for from in [10, 20] {
        let servers = start(dir.path(), from, port);
        join(dir.path(), from, port);
        let nodes = ask(&format!("127.0.0.{}", from + 1), port, ["cluster", "nodes"]);
        assert_eq!(nodes.matches("master").count(), 3, "{nodes}");
        assert_eq!(nodes.matches("slave").count(), 3, "{nodes}");
        assert_eq!(nodes.matches(&format!(" 127.0.0.{}", from / 10)).count(), SERVERS, "{nodes}");
        drop(servers);
    }
}

#[test]
fn every_server_of_the_cluster_is_joined_and_has_its_own_data() {
    let compose = yaml("docker-compose.yml");
    let services = services(&compose);
    let servers = services.iter().filter(|(name, _)| name.starts_with("cluster-") && *name != "cluster-join");
    let names: Vec<&str> = servers.map(|(name, _)| *name).collect();
    assert_eq!(names.len(), SERVERS);
    let join = &compose["services"]["cluster-join"];
    for name in names {
        assert_eq!(join["depends_on"][name]["condition"], "service_healthy");
        let mounts = texts(&compose["services"][name]["volumes"]);
        assert!(mounts.contains(&format!("{name}:/data").as_str()), "{name}: {mounts:?}");
    }
}
