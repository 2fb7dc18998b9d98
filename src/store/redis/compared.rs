//! Which instances have compared the silences that their receivers know of with the stored ones, since a primary was
//! replaced.
//!
//! The instance that lets a silence join its group need not be the one whose receivers know of it: see
//! `acknowledged.rs`. A silence that the failover lost is found again, perhaps with a later deadline and beside other
//! members, so its notification would have another id. Therefore silences join no group until every instance with a
//! lease has announced that it has compared under the primaries of now: by then, lost silences are marked in their
//! groups.
//!
//! # What they do not wait for
//! An instance that dies: its lease ends. An instance that cannot compare, because another server is away, for longer than
//! [`MAX_AGE`]. Returns wait for [`HOLD`] only: a return that is faster than the mark joins
//! once more.
//!
//! # Why a primary is named by its replication id
//! A server may be a primary, become a replica and be promoted again, and instances learn of each change one after the
//! other. It takes another replication id with each promotion, so an announcement is about one reign.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{InfoDict, pipe};
use tokio::time::Instant;

use super::RedisEngine;
use super::topology::{Server, View};
use crate::store::{Entry, OutboxEvent, Result};

/// How long after a failover no transition joins a group: in that time most instances compare.
const HOLD: Duration = Duration::from_secs(1);
/// The longest wait of silences: instances learn of a new primary within seconds, and compare at once.
const MAX_AGE: Duration = Duration::from_secs(8);
/// The time between two looks at the announcements.
const AGAIN: Duration = Duration::from_millis(50);
/// How long an announcement is valid. It is made once for each change of the primaries.
const VALID: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(super) struct Comparisons {
    /// The name of this instance, since it has a lease.
    instance: OnceLock<String>,
    /// The number of the view of the last announcement.
    announced: Mutex<u64>,
    /// When the primary was replaced for which no silence waits any more.
    passed: Mutex<Option<Instant>>,
}

impl Comparisons {
    /// Notes that this instance has a lease, under its name.
    pub fn has_lease(&self, instance: &str) {
        self.instance.get_or_init(|| instance.to_owned());
    }

    fn passed(&self) -> Option<Instant> {
        *self.passed.lock().expect("nothing panics under this lock")
    }
}

impl RedisEngine {
    /// Announces that this instance has compared under the primaries of a view.
    pub(super) async fn announce_comparison(&self, view: &View) -> Result<()> {
        let Comparisons { instance, announced, .. } = &self.comparisons;
        let Some(instance) = instance.get() else { return Ok(()) };
        if *announced.lock().expect("nothing panics under this lock") == view.number {
            return Ok(());
        }
        let servers = view.map.servers().iter();
        let reigns = join_all(servers.map(|server| self.reign(server))).await;
        let Some(reigns) = reigns.into_iter().collect::<Option<Vec<String>>>() else { return Ok(()) };
        let mut write = pipe();
        let key = self.keys.compared(instance);
        write.pset_ex(key, reigns.join(" "), VALID.as_millis() as u64).ignore();
        self.topology.send::<()>("announce_comparison", &write).await?;
        *announced.lock().expect("nothing panics under this lock") = view.number;
        Ok(())
    }

    /// Waits, after a primary was replaced, until these entries may join their groups.
    pub(super) async fn hold_after_failover(&self, entries: &[Entry]) {
        let Some(since) = self.topology.replaced_at() else { return };
        tokio::time::sleep_until(since + HOLD).await;
        let is_silence =
            |entry: &Entry| matches!(&entry.event, OutboxEvent::Record(one) if one.closed_by.is_none());
        if self.comparisons.passed() >= Some(since) || !entries.iter().any(is_silence) {
            return;
        }
        let all_have_compared = async {
            while !self.all_have_compared().await.unwrap_or(false) {
                tokio::time::sleep(AGAIN).await;
            }
        };
        // Then a silence may be notified again: that is better than none.
        let _ = tokio::time::timeout_at(since + MAX_AGE, all_have_compared).await;
        *self.comparisons.passed.lock().expect("nothing panics under this lock") = Some(since);
    }

    /// Whether every instance with a lease has compared under the primaries that were replaced lately.
    async fn all_have_compared(&self) -> Result<bool> {
        let (view, passed) = (self.topology.view().await?, self.comparisons.passed());
        let replaced = view.map.servers().iter().filter(|server| server.since() > passed);
        let reigns = join_all(replaced.map(|server| self.reign(server))).await;
        let Some(reigns) = reigns.into_iter().collect::<Option<Vec<String>>>() else { return Ok(false) };
        let mut read = pipe();
        read.zrange(self.keys.roster(), 0, -1);
        let (instances,): (Vec<String>,) = self.topology.send("comparisons", &read).await?;
        let mut read = pipe();
        for instance in &instances {
            read.get(self.keys.compared(instance));
        }
        let announced: Vec<Option<String>> = self.topology.send("comparisons", &read).await?;
        let has_compared = |announced: &Option<String>| {
            let announced: BTreeSet<&str> = announced.iter().flat_map(|text| text.split(' ')).collect();
            reigns.iter().all(|reign| announced.contains(reign.as_str()))
        };
        Ok(announced.iter().all(has_compared))
    }

    /// The replication id of a primary; `None` if it does not answer as one.
    async fn reign(&self, server: &Server) -> Option<String> {
        let mut question = pipe();
        question.cmd("INFO").arg("replication");
        let (info,): (InfoDict,) = self.topology.send_to("replication", server, &question).await.ok()?;
        let is_primary = info.get::<String>("role")? == "master";
        info.get::<String>("master_replid").filter(|_| is_primary)
    }
}
