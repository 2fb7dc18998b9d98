//! Waits until replicas have the writes on which the next step relies.
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
//! A **heartbeat** may be lost: the time since the last heartbeat that the new primary has is blind, see
//! `watermarks.rs`. A **transition** may be lost as long as no receiver was notified of it: the silence is found
//! again, and has the same id. So Rollcall waits twice: for the servers of the units before transitions join their
//! groups, and for the servers of the groups before a notification is handed to its receiver. If the replicas do not
//! answer in time, Rollcall goes on: a notification that may be repeated under the same id is better than none. A
//! warning and a counter report it. In a cluster a transition leaves the outbox when the server of its group has
//! passed this wait; if that server dies before, the transition joins again.
//!
//! | lost with the primary | what follows |
//! |---|---|
//! | heartbeats | blind time |
//! | a transition that no receiver knows | it is found again: the same record id |
//! | a delivery that was recorded | it is delivered again: the same notification id |
//! | the record of a silence that receivers acknowledged, because the replicas were late | a unit that stays silent is found again and notified again, with the same record id and perhaps another notification id; if the unit is heard first, receivers have an open alert |
//! | in a cluster, the group of such a silence, whose record is on another server | its return is not notified: receivers have an open alert |
//! | in a cluster, a transition that joined such a group before it was sealed | it is not notified, unless a replica had it |
//!
//! A primary that is cut off from its replicas does not know that it was replaced, and accepts writes that will be
//! lost. `min-replicas-to-write 1` makes it refuse them; the examination recommends it where there are replicas.
//!
//! # Why a write of its own
//! `WAIT` waits for the writes of its own connection, and blocks that connection. A small write on a dedicated
//! connection comes after everything that the server has written before. Calls that arrive during a `WAIT` share the
//! next `WAIT`.
//!
//! # Why the wait ends here, too
//! A server that hangs ends no `WAIT`, and notifications would wait for seconds, until the call fails. So a wait takes
//! no longer than `engine.wait_timeout`, [`ANSWER_DELAY`] and a few round trips.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::pipe;

use super::topology::{RedisServer, Topology, may_pass};
use super::{RedisConfig, RedisEngine};
use crate::store::Warning;
use crate::telemetry::EngineWarning;

/// The longest time that the answer to a `WAIT` may be on its way after the server has ended the wait.
const ANSWER_DELAY: Duration = Duration::from_millis(100);
/// The round trips of a connection with TLS and of a `WAIT`.
const ROUND_TRIPS: u32 = 5;

/// The number of replicas that must have a transition, and how long they may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// `None`: 1 with Sentinel and Cluster where the server has replicas, else 0.
    replicas: Option<u8>,
    timeout: Duration,
}

impl Wait {
    pub fn new(config: &RedisConfig) -> Wait {
        Wait { replicas: config.wait_replicas, timeout: config.wait_timeout }
    }

    /// The number of replicas of a server that must have its writes.
    pub fn wanted(&self, topology: &Topology, server: &RedisServer) -> usize {
        match self.replicas {
            Some(wanted) => usize::from(wanted),
            None => usize::from(!topology.is_fixed() && topology.has_replicas(server)),
        }
    }
}

/// How a wait for replicas ended, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Waited {
    /// The replicas have everything, or need not have it.
    TheyHaveIt,
    /// The replicas did not have everything in time.
    TheyAreLate,
    /// The primary did not answer: its last writes may be lost with it.
    PrimaryIsAway,
}

impl RedisEngine {
    /// Waits, within the time limit, until replicas have everything that the servers of these partitions have
    /// written. Answers how the worst of these waits ended.
    pub(super) async fn wait_for_replicas(&self, partitions: BTreeSet<u16>) -> Waited {
        if self.wait.replicas == Some(0) || (self.wait.replicas.is_none() && self.topology.is_fixed()) {
            return Waited::TheyHaveIt;
        }
        let mut worst = Waited::TheyHaveIt;
        // One partition of each server is enough.
        let mut servers: BTreeMap<String, (Arc<RedisServer>, u16)> = BTreeMap::new();
        for partition in partitions {
            match self.topology.server(self.keys.slot(partition)).await {
                Ok(server) => {
                    servers.entry(server.address().to_owned()).or_insert((server, partition));
                }
                Err(_) => worst = Waited::PrimaryIsAway,
            }
        }
        let waits = servers.values().map(|(server, partition)| self.wait_for(server, *partition));
        join_all(waits).await.into_iter().fold(worst, Waited::max)
    }

    async fn wait_for(&self, server: &RedisServer, partition: u16) -> Waited {
        let wanted = self.wait.wanted(&self.topology, server);
        if wanted == 0 {
            let lacks_them = self.topology.lacks_replicas(server);
            return if lacks_them { Waited::TheyAreLate } else { Waited::TheyHaveIt };
        }
        let key = self.keys.in_partition(partition, "replicated");
        let mut write = pipe();
        write.set(key, 1).ignore();
        write.cmd("WAIT").arg(wanted).arg(self.wait.timeout.as_millis().max(1) as u64);
        let longest = self.wait.timeout + ANSWER_DELAY + ROUND_TRIPS * server.round_trip();
        let waited = match tokio::time::timeout(longest, server.replicated(&write)).await {
            Ok(Ok(count)) if count >= wanted => Waited::TheyHaveIt,
            Ok(Err(error)) if may_pass(&error) => Waited::PrimaryIsAway,
            _ => Waited::TheyAreLate,
        };
        let has_them = waited == Waited::TheyHaveIt;
        let late = (!has_them).then(|| {
            format!(
                "the replicas of redis at {} did not have a transition in time (engine.wait_timeout); it is notified \
                 all \
                 the same, and again under the same id if a replica takes over that lacks it; see that they run and \
                 keep up: INFO replication",
                server.address()
            )
        });
        self.telemetry.waited_for_replicas(has_them);
        let mut all = self.late_replicas.lock();
        match late {
            Some(text) => drop(all.insert(server.address().to_owned(), text)),
            None => drop(all.remove(server.address())),
        }
        drop(all);
        let late = self.late_replicas();
        self.telemetry
            .engine_warning(EngineWarning::ReplicasLate, late.as_ref().map(|late| late.text.as_str()));
        waited
    }

    /// The warning about replicas that were late at the last wait for them.
    pub(super) fn late_replicas(&self) -> Option<Warning> {
        let mut late = self.late_replicas.lock();
        late.retain(|address, _| self.topology.is_primary(address));
        let text = late.values().cloned().collect::<Vec<_>>().join("; ");
        (!text.is_empty()).then_some(Warning { name: EngineWarning::ReplicasLate, text })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::clock::Clock;
    use crate::simulate::servers::{Server, free_port};
    use crate::store::HearingStore;
    use crate::telemetry::Telemetry;

    fn signal(server: &Server, name: &str) {
        let sent = Command::new("kill").args([name, &server.pid().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_primary_that_hangs_is_waited_for_no_longer_than_its_replicas() {
        let dir = tempfile::tempdir().unwrap();
        let [port, other] = [free_port().unwrap(), free_port().unwrap()];
        let primary = Server::redis(&dir.path().join("primary"), port, &[]).unwrap();
        let follows = ["--replicaof", "127.0.0.1", &port.to_string()];
        let _replica = Server::redis(&dir.path().join("replica"), other, &follows).unwrap();
        let url = format!("redis://127.0.0.1:{port}");
        let config = RedisConfig { url, wait_replicas: Some(1), ..RedisConfig::default() };
        let telemetry = Arc::new(Telemetry::new(&Clock::system()));
        let engine = RedisEngine::connect(&config, telemetry).await.unwrap();
        let wait = || engine.wait_for_replicas(BTreeSet::from([0]));
        let until_replicated = async { while wait().await != Waited::TheyHaveIt {} };
        tokio::time::timeout(Duration::from_secs(60), until_replicated).await.expect("the replica follows");
        signal(&primary, "-STOP");
        let waited = tokio::select! {
            biased;
            waited = async { tokio::join!(wait(), wait(), wait()) } => waited,
            answer = engine.hearing() => panic!("the wait is as long as that for any answer: {answer:?}"),
        };
        signal(&primary, "-CONT");
        assert_eq!(waited, (Waited::TheyAreLate, Waited::TheyAreLate, Waited::TheyAreLate));
        assert_eq!(engine.late_replicas().map(|late| late.name), Some(EngineWarning::ReplicasLate));
        let until_replicated = async { while wait().await != Waited::TheyHaveIt {} };
        tokio::time::timeout(Duration::from_secs(60), until_replicated).await.expect("it goes on");
    }
}
