//! The deaths of nodes, until every instance has marked the devices that it owns: a death names none of them, and an
//! instance knows the devices of its own partitions only.
//!
//! The instance that hears a death enters it here. The others read it: they may not hear the broker of the node, or take
//! partitions over from an instance that ended before it had marked the devices in them. A death may be applied several
//! times: devices that were heard after it are there.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::collection::{Changed, Collection, DocumentsByName};
use crate::clock::Timestamp;
use crate::presence::{Announced, Announcement, BrokerName, Cause, TAKEOVER, Unit};
use crate::store::{Cells, Documents, EngineError, MAX_STEP, Result, Table, TableValue};

/// The most deaths that are stored; beyond it the oldest are left out.
const MAX_DEATHS: usize = 10_000;
/// How long a death is stored: longer than the partitions of an instance that ended are without an owner, and than an
/// instance takes to read the units of its partitions.
const KEPT: Duration = Duration::from_secs(300);

/// The death of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NodeDeath {
    at: Timestamp,
    cause: Cause,
    settle_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    broker: Option<BrokerName>,
    is_unsure: bool,
}

impl NodeDeath {
    fn of(announcement: &Announcement) -> Option<NodeDeath> {
        let Announced::Gone { cause, settle } = announcement.says else { return None };
        let settle_ms = settle.as_millis() as u64;
        let (at, broker, is_unsure) = (announcement.at, announcement.broker.clone(), announcement.is_unsure);
        Some(NodeDeath { at, cause, settle_ms, broker, is_unsure })
    }

    fn of_node(&self, node: &Unit) -> Announcement {
        let says = Announced::Gone { cause: self.cause, settle: Duration::from_millis(self.settle_ms) };
        let (broker, is_unsure) = (self.broker.clone(), self.is_unsure);
        Announcement { broker, is_unsure, has_devices: true, ..Announcement::of(node.clone(), self.at, says) }
    }
}

impl TableValue for NodeDeath {
    type Name = Unit;
    const TABLE: Table = Table::NodeDeaths;
}

type Deaths = DocumentsByName<NodeDeath>;

/// The stored deaths, and which of them this instance has applied.
pub(super) struct NodeDeaths {
    known: Collection<NodeDeath, Deaths>,
    applied: Mutex<AppliedDeaths>,
}

/// The deaths that were applied to the units of these partitions.
#[derive(Default)]
struct AppliedDeaths {
    partitions: Vec<u16>,
    deaths: Deaths,
}

impl NodeDeaths {
    pub fn new(cells: Arc<dyn Cells>) -> NodeDeaths {
        let known = Collection::new(Documents::new(cells), |deaths| deaths);
        NodeDeaths { known, applied: Mutex::default() }
    }

    /// Enters deaths for the other instances.
    pub async fn enter(&self, announcements: &[&Announcement], now: Timestamp) -> Result<()> {
        for announcements in announcements.chunks(MAX_STEP) {
            self.known
                .change(|known| {
                    let write = newer(known, announcements);
                    let forget = over(known, &write, now);
                    let changed = !write.is_empty();
                    Ok::<_, EngineError>(changed.then_some(Changed { write, forget, with: None }))
                })
                .await?;
        }
        Ok(())
    }

    /// The stored deaths that were not applied to the units of all of these partitions yet.
    pub async fn open(&self, partitions: &[u16], now: Timestamp) -> Result<Vec<Announcement>> {
        let known = self.known.current().await?;
        let applied = self.applied.lock();
        let is_open = |(node, death): &(&Unit, &NodeDeath)| {
            let is_applied = applied.partitions == partitions && applied.deaths.get(*node) == Some(*death);
            !is_applied && now.since(death.at) < KEPT
        };
        Ok(known.iter().filter(is_open).map(|(node, death)| death.of_node(node)).collect())
    }

    /// Notes that these deaths are applied to all units of these partitions.
    pub fn applied(&self, partitions: Vec<u16>, deaths: &[Announcement]) {
        let new = deaths.iter().filter_map(|death| Some((death.unit.clone(), NodeDeath::of(death)?)));
        let mut applied = self.applied.lock();
        if applied.partitions != partitions {
            *applied = AppliedDeaths { partitions, deaths: Deaths::new() };
        }
        applied.deaths.extend(new);
        // Only deaths that are stored are asked about.
        if let Some(known) = self.known.cached() {
            applied.deaths.retain(|node, _| known.contains_key(node));
        }
    }
}

/// The deaths that are not known yet: other instances enter the same ones, a moment earlier or later.
fn newer(known: &Deaths, announcements: &[&Announcement]) -> Deaths {
    let deaths = announcements.iter().filter_map(|one| Some((one.unit.clone(), NodeDeath::of(one)?)));
    deaths
        .filter(|(node, death)| known.get(node).is_none_or(|known| known.at + TAKEOVER < death.at))
        .collect()
}

/// The nodes whose deaths are left out when these are written.
fn over(known: &Deaths, write: &Deaths, now: Timestamp) -> Vec<Unit> {
    let mut kept: Vec<(&Unit, Timestamp)> = known
        .iter()
        .filter(|(node, _)| !write.contains_key(*node))
        .map(|(node, death)| (node, death.at))
        .collect();
    kept.sort_by_key(|(_, at)| std::cmp::Reverse(*at));
    let room = MAX_DEATHS.saturating_sub(write.len());
    let is_over = |(place, (_, at)): &(usize, &(&Unit, Timestamp))| *place >= room || now.since(*at) >= KEPT;
    kept.iter().enumerate().filter(is_over).map(|(_, (node, _))| (*node).clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn death(node: &str, seconds: i64) -> Announcement {
        let says = Announced::Gone { cause: Cause::NodeDeath, settle: Duration::from_secs(2) };
        let broker = Some("eu".parse().unwrap());
        Announcement {
            broker,
            has_devices: true,
            ..Announcement::of(node.parse().unwrap(), at(seconds), says)
        }
    }

    #[test]
    fn a_death_is_read_as_it_was_entered() {
        let wanted = Announcement { is_unsure: true, ..death("edge:a.b", 7) };
        let stored = NodeDeath::of(&wanted).unwrap().encode().unwrap();
        assert_eq!(NodeDeath::decode(&stored).unwrap().of_node(&wanted.unit), wanted);
    }

    #[test]
    fn the_newer_death_of_a_node_is_stored_and_old_ones_leave() {
        let deaths = |all: &[&Announcement]| newer(&Deaths::new(), all);
        let (first, again, other) = (death("edge:a.b", 10), death("edge:a.b", 20), death("edge:a.c", 20));
        let known = deaths(&[&first]);
        assert_eq!(newer(&known, &[&first]), Deaths::new(), "another instance heard it, too");
        assert_eq!(newer(&known, &[&again, &other]), deaths(&[&again, &other]));
        assert!(over(&known, &deaths(&[&other]), at(309)).is_empty());
        assert_eq!(over(&known, &deaths(&[&other]), at(310)), std::slice::from_ref(&first.unit));
        assert!(over(&known, &deaths(&[&again]), at(400)).is_empty(), "it is written anew");
        let full: Deaths = (0..MAX_DEATHS as i64)
            .flat_map(|number| deaths(&[&death(&format!("edge:n.{number}"), number / 100)]))
            .collect();
        let left = over(&full, &deaths(&[&first, &other]), at(100));
        assert_eq!(left.len(), 2, "the oldest make room");
        assert!(left.iter().all(|node| full[node].at == at(0)), "{left:?}");
    }
}
