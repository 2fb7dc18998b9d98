//! Finds keys by their names, on every server, in steps, so that the servers serve other commands in between.

use std::sync::Arc;

use redis::pipe;

use super::topology::{RedisServer, Topology};
use crate::store::Result;

/// A scan of the keys of all servers. Keys that appear or vanish meanwhile may be found twice or not at all.
pub(super) struct KeyScan {
    name: &'static str,
    pattern: String,
    step: usize,
    /// The servers whose scan is not complete; `None` before the first step.
    servers: Option<Vec<Arc<RedisServer>>>,
    cursor: u64,
}

impl KeyScan {
    /// Scans for keys that match a pattern of Redis, about `step` keys at a time. `name` is for metrics and errors.
    pub fn of(name: &'static str, pattern: String, step: usize) -> KeyScan {
        KeyScan { name, pattern, step, servers: None, cursor: 0 }
    }

    /// The next keys, possibly none. `None` after the last step.
    pub async fn next(&mut self, topology: &Topology) -> Result<Option<Vec<Vec<u8>>>> {
        if self.servers.is_none() {
            self.servers = Some(topology.servers().await?);
        }
        let servers = self.servers.get_or_insert_default();
        let Some(server) = servers.last() else { return Ok(None) };
        let mut scan = pipe();
        scan.cmd("SCAN").arg(self.cursor).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(self.step);
        let ((next, keys),): ((u64, Vec<Vec<u8>>),) = topology.send_to(self.name, server, &scan).await?;
        self.cursor = next;
        if next == 0 {
            servers.pop();
        }
        Ok(Some(keys))
    }
}
