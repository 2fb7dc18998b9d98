//! Waits until replicas have what receivers are about to be notified of.
//!
//! Replication is asynchronous: a primary answers before its replicas have the write. If it dies then, a replica takes
//! over without the write.
//!
//! # What protects against what
//! | a write has | it survives | it is lost when |
//! |---|---|---|
//! | the answer of the primary | a cut connection, the death of Rollcall | the primary dies before a replica or its disk has the write |
//! | the answer of a replica (`WAIT`) | also the death of the primary, if that replica is promoted | primary and replica die together, or another replica is promoted |
//! | an `fsync` of the append-only file (`appendfsync always`) | a power cut, if the same server comes back | a replica takes over meanwhile: the server that comes back follows it |
//!
//! So `fsync` does not protect against a failover, and `WAIT` not against a power cut of all servers. `everysec`, the
//! default of Redis, loses about a second at a power cut, with or without replicas.
//!
//! # What Rollcall needs
//! A **heartbeat** may be lost: the time since the last one that the new primary has is blind, see `stamps.rs`. A
//! **transition** may be lost as long as no receiver knows of it: the silence is found again, and has the same id. So
//! Rollcall waits twice, for the servers of the units before transitions join their groups, and for the servers of the
//! groups before a notification is handed to its receiver. If the replicas do not answer in time, it goes on: a
//! notification that may be repeated under the same id is better than none. A warning and a counter say so.
//!
//! A primary that is cut off from its replicas does not know that it was replaced, and accepts writes that will be lost.
//! `min-replicas-to-write 1` makes it refuse them; the examination asks for it where there are replicas.
//!
//! # Why a write of its own
//! `WAIT` waits for the writes of its own connection, and blocks that connection. A small write on a dedicated
//! connection comes after all that the server has written before. Calls that come while one waits share the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::pipe;

use super::topology::Server;
use super::{Config, RedisEngine};
use crate::store::{Delivery, Warning};
use crate::telemetry::EngineWarning;

/// How many replicas have to have a transition, and how long they may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// `None`: one, of a server that has replicas.
    replicas: Option<u8>,
    timeout: Duration,
}

impl Wait {
    pub fn new(config: &Config) -> Wait {
        Wait { replicas: config.wait_replicas, timeout: config.wait_timeout }
    }
}

impl RedisEngine {
    /// Waits until replicas have everything that the servers of these partitions have written, but not for long.
    pub(super) async fn wait_for_replicas(&self, partitions: BTreeSet<u16>) {
        if self.wait.replicas == Some(0) || (self.wait.replicas.is_none() && self.topology.is_fixed()) {
            return;
        }
        // One partition of each server is enough.
        let mut servers: BTreeMap<String, (Arc<Server>, u16)> = BTreeMap::new();
        for partition in partitions {
            // A server that cannot be reached fails the call itself.
            if let Ok(server) = self.topology.server(self.keys.slot(partition)).await {
                servers.entry(server.address().to_owned()).or_insert((server, partition));
            }
        }
        join_all(servers.values().map(|(server, partition)| self.wait_for(server, *partition))).await;
    }

    pub(super) async fn wait_for_replicas_of(&self, deliveries: &[Delivery]) {
        let partition = |delivery: &Delivery| self.keys.partition_of_group(&delivery.group.key);
        let partitions: BTreeSet<u16> = deliveries.iter().map(partition).collect();
        self.wait_for_replicas(partitions).await;
    }

    async fn wait_for(&self, server: &Server, partition: u16) {
        let wanted = match self.wait.replicas {
            Some(wanted) => usize::from(wanted),
            None => usize::from(self.topology.has_replicas(server)),
        };
        if wanted == 0 {
            return;
        }
        let key = self.keys.in_partition(partition, "replicated");
        let mut write = pipe();
        write.set(key, 1).ignore();
        write.cmd("WAIT").arg(wanted).arg(self.wait.timeout.as_millis().max(1) as u64);
        let waited = server.replicated(&write).await;
        let late = (!waited.is_ok_and(|count| count >= wanted)).then(|| {
            format!(
                "the replicas of redis at {} did not have a transition in time (engine.wait_timeout); it is notified all \
                 the same, and again under the same id if a replica takes over that lacks it; see that they run and \
                 keep up: INFO replication",
                server.address()
            )
        });
        self.telemetry.waited_for_replicas(late.is_none());
        let mut all = self.late_replicas.lock().expect("nothing panics under this lock");
        match late {
            Some(text) => drop(all.insert(server.address().to_owned(), text)),
            None => drop(all.remove(server.address())),
        }
        drop(all);
        let late = self.late_replicas();
        self.telemetry
            .engine_warning(EngineWarning::ReplicasLate, late.as_ref().map(|late| late.text.as_str()));
    }

    /// The warning about replicas that were late at the last wait for them.
    pub(super) fn late_replicas(&self) -> Option<Warning> {
        let mut late = self.late_replicas.lock().expect("nothing panics under this lock");
        late.retain(|address, _| self.topology.is_primary(address));
        let text = late.values().cloned().collect::<Vec<_>>().join("; ");
        (!text.is_empty()).then_some(Warning { name: EngineWarning::ReplicasLate, text })
    }
}
