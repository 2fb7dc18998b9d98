//! Tells the reports of this cluster from reports of other clusters.
//!
//! A node that was removed and has joined another cluster, or a wrong address in `engine.url`, reports other nodes and
//! other slots. Their epochs mean nothing here, so a mixture would send commands to a server of another cluster.
//!
//! # How reports belong together
//! Two nodes are of one cluster if each lists the other. One direction is not enough: a reset node is still listed by
//! the nodes that it has left.
//!
//! # Which cluster is this one
//! This cluster is the cluster that lists more than half of the last known nodes. At the start, or if no known node
//! answers, it is the cluster with the most nodes of `engine.url`, then with the most slots, then the cluster of the
//! first node of `engine.url`.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::nodes::Report;
use crate::store::redis::topology::address::HostPort;

/// The reports of this cluster, and the reports of others. `members` are the ids of the last known nodes, `given` the
/// addresses of `engine.url` that may get requests.
pub fn of_this(
    reports: Vec<Report>,
    members: &BTreeSet<String>,
    given: &[HostPort],
) -> (Vec<Report>, Vec<Report>) {
    let clusters = clusters(reports);
    let is_known = |cluster: &Vec<Report>| {
        let listed = members.iter().filter(|id| cluster.iter().any(|report| report.lists(id))).count();
        2 * listed > members.len()
    };
    if clusters.iter().any(is_known) {
        return part(clusters, |_, cluster| is_known(cluster));
    }
    let first = |cluster: &[Report]| given.iter().position(|at| cluster.iter().any(|one| one.asked == *at));
    let of_given = |cluster: &[Report]| cluster.iter().filter(|report| given.contains(&report.asked)).count();
    let best = (0..clusters.len()).max_by_key(|index| {
        let cluster = &clusters[*index];
        (of_given(cluster), slots(cluster), Reverse(first(cluster).unwrap_or(usize::MAX)), Reverse(*index))
    });
    // A cluster that was created again has other ids at the same addresses.
    let best = best.filter(|best| members.is_empty() || 2 * of_given(&clusters[*best]) > given.len());
    part(clusters, |index, _| Some(index) == best)
}

fn part(
    clusters: Vec<Vec<Report>>,
    is_this: impl Fn(usize, &Vec<Report>) -> bool,
) -> (Vec<Report>, Vec<Report>) {
    let (mut these, mut others) = (Vec::new(), Vec::new());
    for (index, cluster) in clusters.into_iter().enumerate() {
        let reports = if is_this(index, &cluster) { &mut these } else { &mut others };
        reports.extend(cluster);
    }
    (these, others)
}

/// The reports, by cluster.
fn clusters(reports: Vec<Report>) -> Vec<Vec<Report>> {
    let mut clusters: Vec<Vec<Report>> = Vec::new();
    for report in reports {
        let is_of = |cluster: &Vec<Report>| cluster.iter().any(|other| are_together(&report, other));
        let (with, others): (Vec<_>, Vec<_>) = clusters.into_iter().partition(is_of);
        clusters = others;
        let mut cluster: Vec<Report> = with.into_iter().flatten().collect();
        cluster.push(report);
        clusters.push(cluster);
    }
    clusters
}

fn are_together(one: &Report, other: &Report) -> bool {
    let lists = |one: &Report, other: &Report| other.reporter().is_some_and(|id| one.lists(id));
    lists(one, other) && lists(other, one)
}

/// How many slots have a primary.
fn slots(cluster: &[Report]) -> usize {
    let nodes = cluster.iter().flat_map(|report| &report.nodes).filter(|node| node.is_primary);
    nodes.flat_map(|node| &node.slots).collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn at(port: u16) -> HostPort {
        HostPort { host: "10.0.0.1".into(), port }
    }

    /// The report of a node that lists these ids; the first id is its own, and has the slots.
    fn report(port: u16, ids: &[&str], slots: &str) -> Report {
        let line = |(index, id): (usize, &&str)| {
            let (flags, slots) = if index == 0 { ("myself,master", slots) } else { ("master", "") };
            format!("{id} 10.0.0.9:{port}@1 {flags} - 0 0 1 connected {slots}\n")
        };
        Report::new(&at(port), &ids.iter().enumerate().map(line).collect::<String>(), &Value::Nil)
    }

    /// The ports of the reports that are of this cluster.
    fn these(reports: &[Report], members: &[&str], given: &[u16]) -> Vec<u16> {
        let members = members.iter().map(|id| (*id).to_owned()).collect();
        let given: Vec<HostPort> = given.iter().map(|port| at(*port)).collect();
        let (these, others) = of_this(reports.to_vec(), &members, &given);
        assert_eq!(these.len() + others.len(), reports.len());
        let mut ports: Vec<u16> = these.iter().map(|report| report.asked.port).collect();
        ports.sort_unstable();
        ports
    }

    #[test]
    fn a_node_that_has_joined_another_cluster_is_told_apart_though_it_is_listed_still() {
        // "x" was reset, and now has slots of the other cluster.
        let all = [
            report(1, &["a", "b", "x"], "0-8191"),
            report(2, &["b", "a", "x"], "8192-16383"),
            report(3, &["x", "y"], "0-16383"),
        ];
        assert_eq!(these(&all, &["a", "b", "x"], &[1, 2, 3]), [1, 2]);
        assert_eq!(these(&all, &[], &[1, 2, 3]), [1, 2], "at the start, by the given nodes");
        assert_eq!(these(&all[2..], &["a", "b", "x"], &[1, 2, 3]), [0; 0], "the others do not answer");
    }

    #[test]
    fn the_last_known_nodes_count_more_than_the_given_ones() {
        let all =
            [report(1, &["a", "b", "c"], "0-100"), report(2, &["x", "y"], ""), report(3, &["y", "x"], "")];
        assert_eq!(these(&all, &["a", "b", "c"], &[1, 2, 3]), [1]);
        assert_eq!(these(&all, &[], &[1, 2, 3]), [2, 3]);
        assert_eq!(
            these(&all[1..], &["a", "b", "c"], &[1, 2, 3]),
            [2, 3],
            "made again at the same addresses"
        );
        assert_eq!(these(&all[1..2], &["a", "b", "c"], &[1, 2, 3]), [0; 0], "one of three given ones");
    }

    #[test]
    fn as_many_given_nodes_of_each_cluster_are_told_apart_by_slots_and_order() {
        let (empty, full) = (report(1, &["a"], ""), report(2, &["b"], "0-16383"));
        assert_eq!(these(&[empty.clone(), full.clone()], &[], &[1, 2]), [2]);
        let other = report(3, &["c"], "0-16383");
        assert_eq!(these(&[full.clone(), other.clone()], &[], &[2, 3]), [2]);
        assert_eq!(these(&[full, other], &[], &[3, 2]), [3]);
    }

    #[test]
    fn a_node_that_not_every_other_one_knows_yet_is_of_the_cluster() {
        let all =
            [report(1, &["a", "b"], "0-100"), report(2, &["b", "a", "n"], ""), report(3, &["n", "b"], "")];
        assert_eq!(these(&all, &[], &[1]), [1, 2, 3]);
        assert_eq!(these(&all, &["a", "b"], &[1]), [1, 2, 3]);
        // A node that was cut off still lists the others.
        let cut_off = report(4, &["m", "a", "b"], "");
        assert_eq!(these(&[all[0].clone(), cut_off], &["a", "b"], &[1]), [1, 4]);
    }
}
