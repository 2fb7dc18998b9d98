//! States that all instances share: each is a hash, in which `version` has another value after each change.

use async_trait::async_trait;
use redis::pipe;

use super::RedisEngine;
use crate::store::shared::VERSION;
use crate::store::{MOST_AUDITED, Result, Shared, SharedChange, SharedEntries, SharedStore};

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

    async fn change_shared(&self, of: Shared, change: &SharedChange) -> Result<bool> {
        let mut script = self.scripts.change_silences.prepare_invoke();
        script.key(self.keys.shared(of)).key(self.keys.audit());
        script.arg(change.version.as_deref().unwrap_or_default());
        script.arg(format!("{:016x}", rand::random::<u64>())).arg(MOST_AUDITED);
        script.arg(change.write.len());
        for (name, text) in &change.write {
            script.arg(name).arg(text);
        }
        script.arg(change.forget.len()).arg(&change.forget).arg(0);
        self.topology.run("change_shared", &script).await
    }
}

/// Bytes that are no UTF-8 are no JSON either.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}
