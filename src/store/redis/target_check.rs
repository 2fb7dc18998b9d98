//! Checks that the servers to which a fleet is moved have kept what was written to them.
//!
//! # Why errors do not show a loss
//! The units of one server are written together. If its primary fails later, no command of the move notices it, and
//! the promoted replica lacks what was not replicated. A server that starts again without its last writes lacks them
//! as well.
//!
//! So before an instance may serve the fleet, replicas must have all of it, and the primaries must be the same
//! processes as at the beginning. Data on a replica survives a later failover.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{InfoDict, Pipeline, pipe};

use super::replication::Wait;
use super::topology::{RedisServer, Topology, slot_of};
use super::{Keys, RedisConfig};
use crate::clock::Stopwatch;
use crate::store::{EngineError, Result};

/// How long replicas may take to get the fleet: their first copy may be under way.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// The time of one `WAIT`, which ends before a server without an answer counts as unreachable.
const ONE_WAIT: Duration = Duration::from_secs(1);

/// A field of `heard` that exists only for a moment.
const MOVED: &str = "moved";

/// The servers of the target.
pub(super) struct TargetCheck {
    /// The process of each primary: its run id, by address.
    processes: BTreeMap<String, String>,
    wait: Wait,
}

impl TargetCheck {
    /// Notes the processes of the primaries. Call it before the first write.
    pub async fn begin(topology: &Topology, config: &RedisConfig) -> Result<TargetCheck> {
        Ok(TargetCheck { processes: processes(topology).await?, wait: Wait::new(config) })
    }

    /// Checks the target. Call it before the last write, which lets instances serve the fleet.
    ///
    /// # Errors
    /// `Refused` if a primary was replaced, added or started again, `Unavailable` if replicas do not have the fleet.
    pub async fn check(&self, topology: &Topology, keys: &Keys) -> Result<()> {
        topology.learn_again().await?;
        for (server, write) in writes(topology, keys).await? {
            self.wait_for(topology, &server, write).await?;
        }
        // The other servers report a primary that was replaced meanwhile.
        topology.learn_again().await?;
        let processes = processes(topology).await?;
        let changed = self.processes.iter().find(|one| processes.get(one.0) != Some(one.1));
        let changed = changed.or_else(|| processes.iter().find(|one| !self.processes.contains_key(one.0)));
        match changed {
            None => Ok(()),
            Some((address, _)) => Err(EngineError::Refused(format!(
                "redis at {address} was replaced, added or started again while the fleet was moved, and a part of the \
                 fleet may be lost there; nothing is to be served there: move again"
            ))),
        }
    }

    async fn wait_for(&self, topology: &Topology, server: &RedisServer, mut write: Pipeline) -> Result<()> {
        let wanted = self.wait.wanted(topology, server);
        if wanted == 0 {
            return Ok(());
        }
        write.cmd("WAIT").arg(wanted).arg(ONE_WAIT.as_millis() as u64);
        let began = Stopwatch::start();
        while topology.replicated(server, &write).await? < wanted {
            if began.elapsed() > MAX_WAIT {
                return Err(EngineError::Unavailable(format!(
                    "the replicas of redis at {} do not have the fleet yet; see that they run and follow (INFO \
                     replication), then move again",
                    server.address()
                )));
            }
        }
        Ok(())
    }
}

/// The run id of each primary.
async fn processes(topology: &Topology) -> Result<BTreeMap<String, String>> {
    let mut question = pipe();
    question.cmd("INFO").arg("server");
    let mut processes = BTreeMap::new();
    for server in topology.servers().await? {
        let (info,): (InfoDict,) = topology.send_to("info", &server, &question).await?;
        processes.insert(server.address().to_owned(), info.get("run_id").unwrap_or_default());
    }
    Ok(processes)
}

/// The servers that have keys of the fleet, each with a write that changes nothing: see `replication.rs`.
async fn writes(topology: &Topology, keys: &Keys) -> Result<Vec<(Arc<RedisServer>, Pipeline)>> {
    let partitions = (0..keys.partitions()).map(|partition| {
        let mut write = pipe();
        write.set(keys.in_partition(partition, "replicated"), 1).ignore();
        (keys.slot(partition), write)
    });
    let (mut hearing, mut meta) = (pipe(), pipe());
    hearing.hset(keys.heard(), MOVED, 1).ignore().hdel(keys.heard(), MOVED).ignore();
    meta.hset(keys.meta(), "moving", 1).ignore();
    let others = [(keys.slot_of_hearing(), hearing), (slot_of(keys.meta().as_bytes()), meta)];
    let mut servers = BTreeMap::new();
    for (slot, write) in partitions.chain(others) {
        let server = topology.server(slot).await?;
        servers.entry(server.address().to_owned()).or_insert((server, write));
    }
    Ok(servers.into_values().collect())
}
