//! Quarantined values in Redis: listed, restored if they are readable now, and deleted.

use std::sync::Arc;

use async_trait::async_trait;
use redis::pipe;

use super::fields::FieldScan;
use super::keys::{KeyRule, Keys};
use super::quarantine::{located, parts};
use super::topology::Topology;
use super::{RedisConfig, meta, outbox};
use crate::presence::Unit;
use crate::store::{Result, encoding};
use crate::store::{repair::Quarantined, repair::QuarantinedId, repair::Repair, repair::shown};
use crate::telemetry::{Stored, Telemetry};

/// How many fields or entries are read in one command.
const STEP: usize = 500;

/// The fleet on a server, for repairs.
pub struct RedisRepair {
    topology: Topology,
    keys: Keys,
}

impl RedisRepair {
    /// The fleet of this configuration.
    ///
    /// # Errors
    /// `Unavailable` while the server cannot be reached; `Refused` if it refuses the login.
    pub async fn open(config: &RedisConfig, telemetry: Arc<Telemetry>) -> Result<RedisRepair> {
        let topology = Topology::new(config, telemetry)?;
        let keys = meta::read_keys(&topology, config).await?;
        Ok(RedisRepair { topology, keys })
    }

    async fn fields(&self, hash: &str, quarantined: &mut Vec<Quarantined>) -> Result<()> {
        let mut all = FieldScan::of(&self.topology, "repair", hash.to_owned(), STEP);
        while let Some(fields) = all.next().await? {
            for (field, held) in fields {
                let (key, part) = parts(&field);
                let (what, location) = located(&self.keys, &key, part);
                let id = QuarantinedId::Field { hash: hash.to_owned(), field: field.clone() };
                quarantined.push(Quarantined { what, location, held: shown(&held), id });
            }
        }
        Ok(())
    }

    async fn entries(&self, number: u16, quarantined: &mut Vec<Quarantined>) -> Result<()> {
        let (stream, outbox) = (self.keys.unreadable(number), self.keys.outbox(number));
        let mut from = "-".to_owned();
        loop {
            let mut read = pipe();
            read.xrange_count(&stream, &from, "+", STEP);
            let (entries,): (Vec<outbox::StreamEntry>,) = self.topology.send("repair", &read).await?;
            let Some((last, _)) = entries.last() else { return Ok(()) };
            from = format!("({last}");
            quarantined.extend(entries.into_iter().map(|(id, fields)| {
                let held = shown(&fields.join(&b' '));
                let id = QuarantinedId::Entry { stream: stream.clone(), id, outbox: outbox.clone() };
                Quarantined { what: Stored::Outbox, location: outbox.clone(), held, id }
            }));
        }
    }

    /// Restores a whole key, if its type is right now.
    async fn restore_key(&self, key: &str, sort: &KeyRule) -> Result<bool> {
        let quarantined = format!("{key}:unreadable");
        let mut read = pipe();
        read.cmd("TYPE").arg(&quarantined);
        let (redis_type,): (String,) = self.topology.send("repair", &read).await?;
        if redis_type != sort.redis_type {
            return Ok(false);
        }
        // Fails if there is such a key again.
        let mut put = pipe();
        put.rename_nx(quarantined, key);
        let (is_back,): (bool,) = self.topology.send("repair", &put).await?;
        Ok(is_back)
    }

    /// Restores a field of a hash, or a member of a sorted set.
    async fn restore_part(&self, key: &str, sort: &KeyRule, part: &[u8], held: &[u8]) -> Result<bool> {
        let mut put = pipe();
        match sort.what {
            Stored::Facts if std::str::from_utf8(held).ok().and_then(encoding::decode).is_some() => {
                put.cmd("HSETNX").arg(key).arg(part).arg(held);
            }
            Stored::Deadlines if std::str::from_utf8(part).is_ok_and(|name| name.parse::<Unit>().is_ok()) => {
                put.cmd("ZADD").arg(key).arg("NX").arg(0).arg(part);
            }
            _ => return Ok(false),
        }
        let (put,): (bool,) = self.topology.send("repair", &put).await?;
        Ok(put)
    }
}

#[async_trait]
impl Repair for RedisRepair {
    async fn quarantined(&self) -> Result<Vec<Quarantined>> {
        let mut quarantined = Vec::new();
        for hash in self.keys.all_unreadable() {
            self.fields(&hash, &mut quarantined).await?;
        }
        for number in 0..self.keys.outboxes() {
            self.entries(number, &mut quarantined).await?;
        }
        Ok(quarantined)
    }

    async fn restore(&self, quarantined: &Quarantined) -> Result<bool> {
        let is_back = match &quarantined.id {
            QuarantinedId::Row(_) => false,
            QuarantinedId::Field { hash, field } => {
                let mut read = pipe();
                read.hget(hash, field);
                let (held,): (Option<Vec<u8>>,) = self.topology.send("repair", &read).await?;
                match (self.keys.sort(&parts(field).0), parts(field), held) {
                    (Some(sort), (key, Some(part)), Some(held)) => {
                        self.restore_part(&key, sort, part, &held).await?
                    }
                    (Some(sort), (key, None), Some(_)) => self.restore_key(&key, sort).await?,
                    _ => false,
                }
            }
            QuarantinedId::Entry { stream, id, outbox } => {
                let mut read = pipe();
                read.xrange(stream, id, id);
                let (entries,): (Vec<outbox::StreamEntry>,) = self.topology.send("repair", &read).await?;
                let readable = entries.first().filter(|(_, fields)| outbox::events_in(fields).is_ok());
                if let Some((_, fields)) = readable {
                    let mut put = pipe();
                    put.cmd("XADD").arg(outbox).arg("*").arg(fields).ignore();
                    self.topology.send::<()>("repair", &put).await?;
                }
                readable.is_some()
            }
        };
        if is_back {
            self.forget(quarantined).await?;
        }
        Ok(is_back)
    }

    async fn discard(&self, quarantined: &Quarantined) -> Result<()> {
        if let QuarantinedId::Field { field, .. } = &quarantined.id
            && let (key, None) = parts(field)
        {
            let mut delete = pipe();
            delete.del(format!("{key}:unreadable")).ignore();
            self.topology.send::<()>("repair", &delete).await?;
        }
        self.forget(quarantined).await
    }
}

impl RedisRepair {
    async fn forget(&self, quarantined: &Quarantined) -> Result<()> {
        let mut forget = pipe();
        match &quarantined.id {
            QuarantinedId::Row(_) => return Ok(()),
            QuarantinedId::Field { hash, field } => forget.hdel(hash, field).ignore(),
            QuarantinedId::Entry { stream, id, .. } => forget.xdel(stream, &[id]).ignore(),
        };
        self.topology.send("repair", &forget).await
    }
}
