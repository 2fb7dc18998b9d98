//! Checks the name of this instance, or generates one; and the client id of the instance at the broker.

use super::file::{File, Instance};
use super::problem::Problems;
use super::sections::short_digest;
use super::{Config, broker};
use crate::address::{BrokerAddress, is_this_machine};

/// The longest name, in characters.
const MAX_NAME: usize = 64;

/// The file in which Linux has the name of the machine.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// The file with the names of near machines.
const HOSTS: &str = "/etc/hosts";

pub(super) fn name(instance: &Instance, problems: &mut Problems) -> String {
    if instance.name.is_empty() {
        return made_up(&host());
    }
    if instance.name.len() > MAX_NAME || !instance.name.chars().all(is_plain) {
        let text = format!("{:?} is not a name; write 1 to {MAX_NAME} of A-Z a-z 0-9 . _ -", instance.name);
        problems.error("instance.name", text);
    }
    instance.name.clone()
}

/// The beginning of the client id of an instance that has none configured. It stays over a restart, because the broker
/// keeps messages by it, and two instances on one machine have different ones.
pub(super) fn client_id(file: &File) -> String {
    // A single `[mqtt]` beside `[broker]` stands for the broker within the process.
    if broker::is_configured(&file.broker) && file.mqtt.one().is_some() {
        return broker::WITHIN.to_owned();
    }
    match file.instance.name.as_str() {
        "" => client_id_of(&host(), &file.http.listen.port().to_string()),
        name => client_id_of(name, ""),
    }
}

fn client_id_of(name: &str, port: &str) -> String {
    let name: String = name.chars().filter(|c| is_plain(*c)).take(MAX_NAME - 16).collect();
    let parts = ["rollcall", &name, port];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<&str>>().join("-")
}

/// A digest of the broker and the client id, for other instances: 48 bits. 0 means that no other instance can have the
/// same id.
pub fn client_digest(config: &Config) -> u64 {
    // Members of a share have random client ids, and with the in-process broker Rollcall is no client.
    let [intake] = &config.intake[..] else { return 0 };
    if !intake.share.is_empty() || config.broker.is_some() {
        return 0;
    }
    let machine = if is_loopback(&intake.url) { host() } else { String::new() };
    short_digest(format!("{machine} {} {}", intake.url, intake.client_id).as_bytes())
}

/// Returns whether the broker at that address is on this machine.
pub fn is_loopback(url: &str) -> bool {
    url.parse().is_ok_and(|address: BrokerAddress| is_this_machine(&address.host))
}

/// The name of the machine; empty if it has none.
pub(super) fn host() -> String {
    std::fs::read_to_string(HOST_NAME).unwrap_or_default().trim().to_owned()
}

/// The name of the machine with its domain, as far as local files have it.
pub(super) fn full_host() -> String {
    full(&host(), &std::fs::read_to_string(HOSTS).unwrap_or_default())
}

/// `hosts` may name the machine with its domain: `127.0.1.1 node-1.example.org node-1`.
fn full(host: &str, hosts: &str) -> String {
    let of_host = |line: &&str| line.split_whitespace().skip(1).any(|name| name == host);
    let with_domain = |line: &str| {
        line.split_whitespace()
            .skip(1)
            .find(|name| name.split('.').next() == Some(host) && *name != host)
            .map(str::to_owned)
    };
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.filter(of_host).find_map(with_domain).unwrap_or_else(|| host.to_owned())
}

/// The name of the machine, for operators, and a random number: several instances may run on one machine, and a
/// restarted instance is a new one.
fn made_up(host: &str) -> String {
    let host: String = host.trim().chars().filter(|c| is_plain(*c)).take(MAX_NAME - 9).collect();
    let host = if host.is_empty() { "rollcall" } else { &host };
    format!("{host}-{:08x}", rand::random::<u32>())
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::broker::WITHIN;
    use super::*;

    #[test]
    fn a_generated_name_begins_with_that_of_the_machine_and_is_unique() {
        for (host, begin) in [("node-1\n", "node-1-"), ("", "rollcall-"), (&"ü".repeat(99), "rollcall-")] {
            let name = made_up(host);
            assert!(name.starts_with(begin), "{name}");
            assert_ne!(name, made_up(host));
        }
        let mut problems = Problems::default();
        let name = made_up(&"x".repeat(300));
        assert_eq!(super::name(&Instance { name: name.clone(), ..Instance::default() }, &mut problems), name);
        assert!(problems.errors.is_empty(), "a generated name is valid");
    }

    #[test]
    fn the_client_id_is_that_of_the_instance_or_of_the_machine_and_the_port() {
        let cases = [
            ("one", "", "rollcall-one"),
            ("node-1", "8080", "rollcall-node-1-8080"),
            ("", "8080", "rollcall-8080"),
            ("n/o+d#e", "", "rollcall-node"),
        ];
        for (name, port, expected) in cases {
            assert_eq!(client_id_of(name, port), expected);
        }
        assert!(client_id_of(&"x".repeat(99), "65535").len() <= MAX_NAME);
    }

    #[test]
    fn an_instance_with_a_broker_of_its_own_has_the_same_client_id_at_others_as_one_without() {
        let two = "mqtt = [{ name = \"eu\" }, { name = \"us\", url = \"mqtt://us\" }]\n";
        let of_machine = client_id_of(&host(), "8081");
        let named = "instance.name = \"one\"\n";
        let cases = [
            (two.to_owned(), vec![of_machine.as_str(), &of_machine]),
            (format!("broker.listen = \"127.0.0.1:1884\"\n{two}"), vec![&of_machine, &of_machine, WITHIN]),
            (
                format!("broker.listen = \"127.0.0.1:1884\"\n{named}{two}"),
                vec!["rollcall-one", "rollcall-one", WITHIN],
            ),
            ("broker.listen = \"127.0.0.1:1884\"".to_owned(), vec![WITHIN]),
        ];
        for (text, expected) in cases {
            let config = crate::config::parse(&format!("http.listen = \"127.0.0.1:8081\"\n{text}"), None, []);
            let config = config.unwrap_or_else(|error| panic!("{text}: {error}"));
            let ids: Vec<&str> = config.intake.iter().map(|one| one.client_id.as_str()).collect();
            assert_eq!(ids, expected, "{text}");
            let own = config.broker.map(|broker| broker.own_client_id);
            assert!(own.is_none_or(|own| own == WITHIN), "devices know which ids are Rollcall's: {text}");
        }
    }

    #[test]
    fn the_name_with_its_domain_is_in_the_list_of_hosts_if_it_is_known() {
        let hosts =
            "# node-1.bad.org node-1\n127.0.0.1 localhost\n127.0.1.1\tnode-1.example.org node-1 # this one\n";
        for (host, expected) in [
            ("node-1", "node-1.example.org"),
            ("node-2", "node-2"),
            ("node-1.example.org", "node-1.example.org"),
            ("localhost", "localhost"),
            ("", ""),
        ] {
            assert_eq!(full(host, hosts), expected);
        }
    }

    #[test]
    fn an_invalid_name_is_refused() {
        for bad in ["a b", "ü", "a/b", &"x".repeat(65)] {
            let mut problems = Problems::default();
            super::name(&Instance { name: bad.to_owned(), ..Instance::default() }, &mut problems);
            assert_eq!(problems.errors.len(), 1, "{bad}");
        }
    }
}
