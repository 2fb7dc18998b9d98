//! States that all instances share: each is a hash, in which `version` has another value after each change.

use async_trait::async_trait;
use redis::pipe;

use super::RedisEngine;
use super::steps::Steps;
use crate::store::shared::VERSION;
use crate::store::{Result, Shared, SharedChange, SharedEntries, SharedStore};

#[async_trait]
impl SharedStore for RedisEngine {
    async fn shared_version(&self, of: Shared) -> Result<Option<String>> {
        let mut read = pipe();
        read.hget(self.keys.shared(of), VERSION);
        let (version,): (Option<Vec<u8>>,) = self.topology.send("shared", &read).await?;
        Ok(version.map(text))
    }

    async fn shared(&self, of: Shared) -> Result<SharedEntries> {
        let mut read = pipe();
        read.hgetall(self.keys.shared(of));
        let (fields,): (Vec<(Vec<u8>, Vec<u8>)>,) = self.topology.send("shared", &read).await?;
        let mut shared = SharedEntries::default();
        for (name, value) in fields {
            match (text(name), text(value)) {
                (name, value) if name == VERSION => shared.version = Some(value),
                entry => shared.entries.push(entry),
            }
        }
        Ok(shared)
    }

    async fn change_shared(&self, of: Shared, of_change: &SharedChange) -> Result<bool> {
        let key = self.keys.shared(of);
        let mut steps = change(&key, of_change.version.as_deref());
        for (name, text) in &of_change.write {
            steps.write("HSET", &key, &[name.as_bytes(), text.as_bytes()]);
        }
        for name in &of_change.forget {
            steps.write("HDEL", &key, &[name.as_bytes()]);
        }
        self.write_shared("change_shared", steps).await
    }
}

/// A change of a shared state in one step, if its version is the one that the change was decided from.
pub(super) fn change(key: &str, version: Option<&str>) -> Steps {
    let mut steps = Steps::default();
    steps.begin().expect_field(key, VERSION.as_bytes(), version.map(str::as_bytes));
    let next = format!("{:016x}", rand::random::<u64>());
    steps.write("HSET", key, &[VERSION.as_bytes(), next.as_bytes()]);
    steps
}

impl RedisEngine {
    /// Answers whether the change is written.
    pub(super) async fn write_shared(&self, name: &'static str, steps: Steps) -> Result<bool> {
        Ok(self.write_steps(name, steps).await? == [true])
    }
}

/// Bytes that are no UTF-8 are no JSON either.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}
