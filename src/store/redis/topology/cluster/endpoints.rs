//! Chooses the address under which each node is used.
//!
//! The cluster prefers one address of a node (`cluster-preferred-endpoint-type`). If that address cannot be reached
//! from here, such as a name that does not resolve here, or an IP address that is not in the certificate, another
//! address of the node is used. A node is reached if it answers with its own id: several nodes may answer at one
//! address, behind a balancer.
//!
//! # Why an address stays
//! A node under another address counts as another server, and its time begins blind. So the address changes only if
//! it fails while another address of the node answers.

use std::collections::{BTreeMap, BTreeSet};

use super::nodes::Report;
use crate::store::redis::topology::address::HostPort;

/// The addresses of the nodes, by the ids of the nodes.
#[derive(Default)]
pub struct Endpoints(BTreeMap<String, Used>);

struct Used {
    at: HostPort,
    /// All addresses of the node, the preferred address first.
    all: Vec<HostPort>,
    /// Whether the address was tried, or is the only one.
    is_tried: bool,
}

impl Endpoints {
    /// Learns the nodes and their endpoints, and forgets nodes that no report lists any more.
    pub fn learn(&mut self, reports: &[Report]) {
        let mut all: BTreeMap<&str, Vec<HostPort>> = BTreeMap::new();
        let nodes = || reports.iter().flat_map(|report| &report.nodes);
        // The report of a node about itself counts; the reports of others describe nodes that did not report.
        for node in nodes().filter(|node| node.is_itself) {
            let known = all.entry(&node.id).or_default();
            let new: Vec<_> = node.endpoints.iter().filter(|at| !known.contains(at)).cloned().collect();
            known.extend(new);
        }
        let itself: BTreeSet<&str> = all.keys().copied().collect();
        for node in nodes().filter(|node| !itself.contains(node.id.as_str())) {
            let known = all.entry(&node.id).or_default();
            // Some nodes may not know the name of this node yet.
            if known.len() < node.endpoints.len() {
                known.clone_from(&node.endpoints);
            }
        }
        self.0.retain(|id, _| all.contains_key(id.as_str()));
        for (id, all) in all {
            match self.0.get_mut(id) {
                Some(used) if all.contains(&used.at) => used.all = all,
                _ => {
                    let (at, is_tried) = (all[0].clone(), all.len() == 1);
                    self.0.insert(id.to_owned(), Used { at, all, is_tried });
                }
            }
        }
    }

    /// The addresses of nodes that have several and were not tried yet.
    pub fn untried(&self) -> BTreeSet<HostPort> {
        self.0.values().filter(|used| !used.is_tried).flat_map(|used| used.all.clone()).collect()
    }

    /// The addresses of nodes that have several addresses and failed under the current one.
    pub fn of_failed(&self, failed: &BTreeSet<HostPort>) -> BTreeSet<HostPort> {
        let of_failed = self.0.values().filter(|used| used.all.len() > 1 && failed.contains(&used.at));
        of_failed.flat_map(|used| used.all.clone()).collect()
    }

    /// Chooses the addresses. `answered`: the id of the node that answered at an address.
    pub fn choose(&mut self, answered: &BTreeMap<HostPort, String>, failed: &BTreeSet<HostPort>) {
        for (id, used) in &mut self.0 {
            let answers = |at: &&HostPort| answered.get(at).is_some_and(|other| other == id);
            let is_stranger = |at: &HostPort| answered.get(at).is_some_and(|other| other != id);
            let is_wrong = !used.is_tried || is_stranger(&used.at);
            if is_wrong || failed.contains(&used.at) {
                let reached = used.all.iter().find(answers);
                let possible = used.all.iter().find(|at| is_wrong && !is_stranger(at));
                used.at = reached.or(possible).unwrap_or(&used.at).clone();
                used.is_tried = true;
            }
        }
    }

    /// Writes the chosen addresses into reports.
    pub fn apply(&self, reports: &mut [Report]) {
        for node in reports.iter_mut().flat_map(|report| &mut report.nodes) {
            if let Some(used) = self.0.get(&node.id) {
                node.at = used.at.clone();
            }
        }
    }

    /// The address under which the node with this endpoint is used; `None`: no node has it.
    pub fn used(&self, endpoint: &HostPort) -> Option<HostPort> {
        let used = self.0.values().find(|used| used.at == *endpoint);
        let used = used.or_else(|| self.0.values().find(|used| used.all.contains(endpoint)));
        used.map(|used| used.at.clone())
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn at(host: &str) -> HostPort {
        HostPort { host: host.into(), port: 7000 }
    }

    fn report(asked: &str, lines: &[&str]) -> Report {
        Report::new(&at(asked), &lines.join("\n"), &Value::Nil)
    }

    fn answered(all: &[(&str, &str)]) -> BTreeMap<HostPort, String> {
        all.iter().map(|(host, id)| (at(host), (*id).to_owned())).collect()
    }

    fn hosts(all: &BTreeSet<HostPort>) -> Vec<&str> {
        all.iter().map(|at| at.host.as_str()).collect()
    }

    const TWO: [&str; 2] = [
        "aa 10.0.0.1:7000@1,one myself,master - 0 0 1 connected 0-100",
        "bb 10.0.0.2:7000@1,two master - 0 0 1 connected 101-16383",
    ];

    #[test]
    fn an_address_that_cannot_be_reached_is_replaced_by_another_one_of_the_node() {
        let mut endpoints = Endpoints::default();
        endpoints.learn(&[report("10.0.0.1", &TWO)]);
        assert_eq!(hosts(&endpoints.untried()), ["10.0.0.1", "10.0.0.2", "one", "two"]);
        let none = BTreeSet::new();
        endpoints.choose(&answered(&[("10.0.0.1", "aa"), ("one", "aa"), ("two", "bb")]), &none);
        assert_eq!(endpoints.used(&at("one")), Some(at("10.0.0.1")), "the preferred one");
        assert_eq!(endpoints.used(&at("10.0.0.2")), Some(at("two")));
        assert_eq!(endpoints.used(&at("10.0.0.3")), None);
        assert!(endpoints.untried().is_empty());
        // The address stays, whatever else answers, until it fails while another address answers.
        endpoints.learn(&[report("10.0.0.1", &TWO)]);
        endpoints.choose(&answered(&[("10.0.0.2", "bb")]), &none);
        let failed = BTreeSet::from([at("two")]);
        assert_eq!(hosts(&endpoints.of_failed(&failed)), ["10.0.0.2", "two"]);
        endpoints.choose(&answered(&[]), &failed);
        assert_eq!(endpoints.used(&at("10.0.0.2")), Some(at("two")));
        endpoints.choose(&answered(&[("10.0.0.2", "bb")]), &failed);
        assert_eq!(endpoints.used(&at("two")), Some(at("10.0.0.2")));
        let mut reports = [report("10.0.0.1", &TWO)];
        reports[0].nodes[1].at = at("other");
        endpoints.apply(&mut reports);
        assert_eq!(reports[0].nodes[1].at, at("10.0.0.2"));
    }

    #[test]
    fn an_address_at_which_another_node_answers_is_not_used() {
        let mut endpoints = Endpoints::default();
        endpoints.learn(&[report("10.0.0.1", &TWO)]);
        endpoints.choose(&answered(&[("10.0.0.2", "aa")]), &BTreeSet::new());
        assert_eq!(endpoints.used(&at("10.0.0.2")), Some(at("two")));
    }
}
