//! Alert silences: one hash, in which `version` has another value after each change. An instance reads the version, and
//! the rest only if it is another one.
//!
//! An alert silence that cannot be read is left out, and named. It stays where it is: another version of Rollcall may
//! have written it.

use async_trait::async_trait;
use redis::pipe;

use super::{RedisEngine, outbox};
use crate::store::json::{from_json, to_json};
use crate::store::{
    AuditEntry, EngineError, MOST_AUDITED, Result, SilenceChange, SilenceStore, StoredSilences,
};
use crate::telemetry::Stored;

const VERSION: &str = "version";
/// The field of an entry of the audit.
const ENTRY: &[u8] = b"entry";

#[async_trait]
impl SilenceStore for RedisEngine {
    async fn silences_version(&self) -> Result<Option<String>> {
        let mut read = pipe();
        read.hget(self.keys.silences(), VERSION);
        let (version,): (Option<Vec<u8>>,) = self.topology.send("silences", &read).await?;
        Ok(version.map(text))
    }

    async fn silences(&self) -> Result<StoredSilences> {
        let key = self.keys.silences();
        let mut read = pipe();
        read.hgetall(&key);
        let (fields,): (Vec<(Vec<u8>, Vec<u8>)>,) = self.topology.send("silences", &read).await?;
        let mut stored = StoredSilences::default();
        for (id, json) in fields {
            let (id, json) = (text(id), text(json));
            if id == VERSION {
                stored.version = Some(json);
                continue;
            }
            match from_json("an alert silence", &json) {
                Ok(silence) => stored.silences.push(silence),
                Err(why) => self.unreadable_silence(&format!("{key} {id}"), &why),
            }
        }
        Ok(stored)
    }

    async fn change_silences(&self, change: &SilenceChange) -> Result<bool> {
        let mut script = self.scripts.change_silences.prepare_invoke();
        script.key(self.keys.silences()).key(self.keys.audit());
        script.arg(change.version.as_deref().unwrap_or_default());
        script.arg(format!("{:016x}", rand::random::<u64>())).arg(MOST_AUDITED);
        script.arg(change.write.len());
        for silence in &change.write {
            script.arg(silence.id.to_string()).arg(to_json(silence)?);
        }
        script.arg(change.forget.len());
        for id in &change.forget {
            script.arg(id.to_string());
        }
        script.arg(change.audit.len());
        for entry in &change.audit {
            script.arg(to_json(entry)?);
        }
        self.topology.run("change_silences", &script).await
    }

    async fn add_audit(&self, entry: &AuditEntry) -> Result<()> {
        let mut add = pipe();
        add.cmd("XADD").arg(self.keys.audit()).arg("MAXLEN").arg(MOST_AUDITED).arg("*");
        add.arg(ENTRY).arg(to_json(entry)?).ignore();
        self.topology.send("audit", &add).await
    }

    async fn audit(&self, limit: usize) -> Result<Vec<AuditEntry>> {
        let key = self.keys.audit();
        let mut read = pipe();
        // The stream has at most `MOST_AUDITED` entries.
        read.xrange_all(&key);
        let (entries,): (Vec<outbox::Stored>,) = self.topology.send("audit", &read).await?;
        let mut audit = Vec::new();
        for (id, fields) in entries.into_iter().rev().take(limit) {
            let json = fields.chunks_exact(2).find(|pair| pair[0] == ENTRY).map(|pair| pair[1].clone());
            match from_json("an entry of the audit", &text(json.unwrap_or_default())) {
                Ok(entry) => audit.push(entry),
                Err(why) => {
                    let why = format!("{why}; it is left out: XDEL it there");
                    self.telemetry.unreadable(Stored::Audit, &format!("{key} {id}"), &why);
                }
            }
        }
        Ok(audit)
    }
}

impl RedisEngine {
    fn unreadable_silence(&self, location: &str, why: &EngineError) {
        let why = format!("{why}; it covers nothing: HDEL it there, and add it again");
        self.telemetry.unreadable(Stored::AlertSilence, location, &why);
    }
}

/// Bytes that are no UTF-8 are no JSON either.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}
