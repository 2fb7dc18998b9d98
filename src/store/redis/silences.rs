//! Alert silences: one hash, in which `version` has another value after each change. An instance reads the version, and
//! the rest only if it is another one.
//!
//! An alert silence that cannot be read is left out, and named. It stays where it is: another version of Rollcall may
//! have written it.

use async_trait::async_trait;
use redis::pipe;

use super::{RedisEngine, outbox, shared};
use crate::store::json::{from_json, to_json};
use crate::store::silences::read_silences;
use crate::store::{
    AuditEntry, EngineError, MAX_AUDITED, Result, SilenceChange, SilenceStore, StoredSilences,
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
        let mut rows = Vec::with_capacity(fields.len());
        for (id, json) in fields {
            let (id, json) = (text(id), text(json));
            if id == VERSION {
                stored.version = Some(json);
            } else {
                rows.push((id, json));
            }
        }
        for (id, read) in read_silences(rows).await? {
            match read {
                Ok(silence) => stored.silences.push(silence),
                Err(why) => self.unreadable_silence(&format!("{key} {id}"), &why),
            }
        }
        Ok(stored)
    }

    async fn change_silences(&self, change: &SilenceChange) -> Result<bool> {
        let (key, audit, most) = (self.keys.silences(), self.keys.audit(), MAX_AUDITED.to_string());
        let mut steps = shared::change(&key, change.version.as_deref());
        for silence in &change.write {
            steps.write("HSET", &key, &[silence.id.to_string().as_bytes(), to_json(silence)?.as_bytes()]);
        }
        for id in &change.forget {
            steps.write("HDEL", &key, &[id.to_string().as_bytes()]);
        }
        for entry in &change.audit {
            let text = to_json(entry)?;
            let words = [&b"MAXLEN"[..], most.as_bytes(), b"*", ENTRY, text.as_bytes()];
            steps.write("XADD", &audit, &words);
        }
        self.write_shared("change_silences", steps).await
    }

    async fn add_audit(&self, entry: &AuditEntry) -> Result<()> {
        let mut add = pipe();
        add.cmd("XADD").arg(self.keys.audit()).arg("MAXLEN").arg(MAX_AUDITED).arg("*");
        add.arg(ENTRY).arg(to_json(entry)?).ignore();
        self.topology.send("audit", &add).await
    }

    async fn audit(&self, limit: usize) -> Result<Vec<AuditEntry>> {
        let key = self.keys.audit();
        let mut read = pipe();
        // The stream has at most `MAX_AUDITED` entries.
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
