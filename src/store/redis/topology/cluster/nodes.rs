//! A node's report of its cluster: `CLUSTER NODES` and `CLUSTER SLOTS`.
//!
//! # Why both commands
//! Only `CLUSTER NODES` has the nodes without slots, and the epochs. Only `CLUSTER SLOTS` has the endpoints that the
//! cluster prefers (`cluster-preferred-endpoint-type`).

use redis::Value;

use crate::store::redis::topology::address::HostPort;
use crate::store::redis::topology::slots::SLOTS;

/// A node, as the reporting node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedNode {
    pub id: String,
    /// The address under which the node is used.
    pub at: HostPort,
    /// The addresses under which the node may be reached, the preferred address first.
    pub endpoints: Vec<HostPort>,
    pub is_primary: bool,
    /// Whether this node is the reporting node.
    pub is_itself: bool,
    /// Whether the reporting node can reach this node.
    pub is_connected: bool,
    /// The id of its primary.
    pub primary: String,
    pub epoch: u64,
    pub slots: Vec<u16>,
}

/// The nodes in the report of the node at `asked`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub asked: HostPort,
    pub nodes: Vec<ReportedNode>,
}

impl Report {
    /// `lines` is the answer to `CLUSTER NODES`, `slots` the answer to `CLUSTER SLOTS`.
    pub fn new(asked: &HostPort, lines: &str, slots: &Value) -> Report {
        let endpoints = endpoints(slots);
        let lines: Vec<Line<'_>> = lines.lines().filter_map(Line::parse).collect();
        let preferred = Preferred::of(&lines, &endpoints);
        let nodes = lines.into_iter().map(|line| line.node(&asked.host, preferred)).collect();
        Report { asked: asked.clone(), nodes }
    }

    /// The id of the node that reports.
    pub fn reporter(&self) -> Option<&str> {
        self.nodes.iter().find(|node| node.is_itself).map(|node| node.id.as_str())
    }

    pub fn lists(&self, id: &str) -> bool {
        self.nodes.iter().any(|node| node.id == id)
    }
}

/// The endpoints that a cluster gives to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preferred {
    Ip,
    Name,
    /// The host to which a client connected, with the port of the node.
    Asked,
}

impl Preferred {
    /// Old servers know only IP addresses.
    fn of(lines: &[Line<'_>], endpoints: &[(String, Option<String>)]) -> Preferred {
        if endpoints.iter().any(|(_, endpoint)| endpoint.is_none()) {
            return Preferred::Asked;
        }
        let is_name = |(id, endpoint): &(String, Option<String>)| {
            let of_line = |line: &&Line<'_>| line.id == id;
            // Where names are preferred, a node without a name is "?".
            endpoint.as_deref() == Some("?")
                || lines.iter().find(of_line).is_some_and(|line| line.name == endpoint.as_deref())
        };
        if endpoints.iter().any(is_name) { Preferred::Name } else { Preferred::Ip }
    }
}

/// The id and the endpoint of each node in the answer to `CLUSTER SLOTS`:
/// `[first, last, [endpoint, port, id, …], …]` for each range. `None`: the endpoint is NULL.
fn endpoints(slots: &Value) -> Vec<(String, Option<String>)> {
    let Value::Array(ranges) = slots else { return Vec::new() };
    let nodes = ranges.iter().filter_map(|range| match range {
        Value::Array(range) => range.get(2..),
        _ => None,
    });
    let text = |value: &Value| redis::from_redis_value_ref::<Option<String>>(value).ok();
    let of = |node: &Value| match node {
        Value::Array(node) => Some((text(node.get(2)?)??, text(node.first()?)?)),
        _ => None,
    };
    nodes.flatten().filter_map(of).collect()
}

/// A line of `CLUSTER NODES`:
/// `<id> <ip:port@bus[,name]> <flags> <primary> <ping> <pong> <epoch> <link> <slot> …`.
struct Line<'a> {
    id: &'a str,
    /// Empty for a node that is alone: it does not know its own address.
    ip: &'a str,
    name: Option<&'a str>,
    port: u16,
    flags: Vec<&'a str>,
    primary: &'a str,
    epoch: u64,
    link: &'a str,
    slots: Vec<u16>,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Line<'a>> {
        let mut words = line.split(' ');
        let (id, at, flags, primary) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let epoch = words.nth(2)?.parse().ok()?;
        let link = words.next()?;
        let flags: Vec<&str> = flags.split(',').collect();
        if flags.contains(&"noaddr") || flags.contains(&"handshake") {
            return None;
        }
        let (at, name) = at.split_once(',').unwrap_or((at, ""));
        let (ip, port) = at.split('@').next()?.rsplit_once(':')?;
        let name = name.split(',').next().filter(|name| !name.is_empty() && *name != "?");
        let mut slots = Vec::new();
        // A slot in brackets is moving to another node, or from it.
        for word in words.filter(|word| !word.starts_with('[') && !word.is_empty()) {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
            slots.extend((first..=last).take_while(|slot| *slot < SLOTS));
        }
        let ip = ip.trim_start_matches('[').trim_end_matches(']');
        Some(Line { id, ip, name, port: port.parse().ok()?, flags, primary, epoch, link, slots })
    }

    fn node(self, asked: &str, preferred: Preferred) -> ReportedNode {
        let ip = if self.ip.is_empty() { asked } else { self.ip };
        let hosts = match preferred {
            Preferred::Ip => [Some(ip), self.name, None],
            Preferred::Name => [self.name, Some(ip), None],
            Preferred::Asked => [Some(asked), self.name, Some(ip)],
        };
        let mut endpoints: Vec<HostPort> = Vec::new();
        for host in hosts.into_iter().flatten() {
            let endpoint = HostPort { host: host.to_owned(), port: self.port };
            if !endpoints.contains(&endpoint) {
                endpoints.push(endpoint);
            }
        }
        ReportedNode {
            id: self.id.to_owned(),
            at: endpoints[0].clone(),
            endpoints,
            is_primary: self.flags.contains(&"master"),
            is_itself: self.flags.contains(&"myself"),
            is_connected: self.link == "connected" && !self.flags.iter().any(|flag| flag.starts_with("fail")),
            primary: self.primary.to_owned(),
            epoch: self.epoch,
            slots: self.slots,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> HostPort {
        HostPort { host: host.into(), port }
    }

    fn read(lines: &str, slots: &Value) -> Vec<ReportedNode> {
        Report::new(&at("asked", 1), lines, slots).nodes
    }

    #[test]
    fn a_line_about_a_node_is_read_with_its_slots() {
        let read = |line: &str| read(line, &Value::Nil).pop();
        let one = read("aa 10.0.0.1:7000@17000 myself,master - 0 0 3 connected 0-2 7 [9->-bb]").unwrap();
        assert_eq!((one.at, one.is_primary, one.epoch), (at("10.0.0.1", 7000), true, 3));
        assert_eq!((one.slots, one.is_itself), (vec![0, 1, 2, 7], true));
        let alone = read("aa :7000@17000 myself,master - 0 0 0 connected").unwrap();
        assert_eq!(alone.at, at("asked", 7000));
        let named = read("aa 10.0.0.1:7000@17000,redis-1.example slave bb 0 0 1 connected").unwrap();
        assert_eq!((named.at, named.primary.as_str()), (at("10.0.0.1", 7000), "bb"));
        for broken in [
            "",
            "aa",
            "aa 10.0.0.1 master",
            "aa 10.0.0.1:7000@17000 master - 0 0 x connected 1-x",
            "aa :0@0 master,noaddr - 0 0 1 connected",
        ] {
            assert_eq!(read(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn the_endpoint_that_the_cluster_prefers_comes_first() {
        let lines = "aa 10.0.0.1:7000@17000,one.example myself,master - 0 0 3 connected 0-16383\n\
            bb 10.0.0.2:7000@17000,two.example master - 0 0 3 connected\n\
            cc 10.0.0.3:7000@17000 slave aa 0 0 3 connected";
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let of = |endpoint: Value| {
            let node = Value::Array(vec![endpoint, Value::Int(7000), text("aa"), Value::Array(Vec::new())]);
            let slots = Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(16383), node])]);
            let hosts = |node: ReportedNode| node.endpoints.into_iter().map(|at| at.host).collect::<Vec<_>>();
            read(lines, &slots).into_iter().map(hosts).collect::<Vec<_>>()
        };
        assert_eq!(
            of(text("10.0.0.1")),
            [vec!["10.0.0.1", "one.example"], vec!["10.0.0.2", "two.example"], vec!["10.0.0.3"]]
        );
        let by_name = [vec!["one.example", "10.0.0.1"], vec!["two.example", "10.0.0.2"], vec!["10.0.0.3"]];
        assert_eq!(of(text("one.example")), by_name);
        assert_eq!(of(text("?")), by_name, "another node has no name");
        let asked = of(Value::Nil);
        assert_eq!(asked[1], ["asked", "two.example", "10.0.0.2"]);
        assert_eq!(asked[2], ["asked", "10.0.0.3"]);
    }
}
