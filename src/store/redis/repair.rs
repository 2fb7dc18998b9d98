//! What was put aside in Redis: looked at, put back where it can be read by now, and deleted.

use std::sync::Arc;

use async_trait::async_trait;
use redis::pipe;

use super::fields::Fields;
use super::keys::{KeyRule, Keys};
use super::topology::Topology;
use super::{Config, outbox};
use crate::presence::Unit;
use crate::store::{Result, encoding};
use crate::store::{repair::Aside, repair::AsideId, repair::Repair, repair::shown};
use crate::telemetry::{Stored, Telemetry};

/// How many fields or entries are read in one command.
const STEP: usize = 500;

/// The fleet on a server, for repairs.
pub struct RedisRepair {
    topology: Topology,
    keys: Keys,
}

impl RedisRepair {
    /// Of the fleet of this configuration.
    ///
    /// # Errors
    /// `Refused` if the address makes no sense.
    pub fn new(config: &Config, telemetry: Arc<Telemetry>) -> Result<RedisRepair> {
        let keys = Keys::new(&config.prefix, config.partitions);
        Ok(RedisRepair { topology: Topology::new(config, telemetry)?, keys })
    }

    async fn fields(&self, hash: &str, found: &mut Vec<Aside>) -> Result<()> {
        let mut all = Fields::of(&self.topology, "repair", hash.to_owned(), STEP);
        while let Some(fields) = all.next().await? {
            for (field, held) in fields {
                let (key, of_it) = parts(&field);
                let what = self.keys.sort(&key).map_or(Stored::Other, |sort| sort.what);
                let place = of_it.map_or(key.clone(), |of_it| format!("{key} {}", shown(of_it)));
                let id = AsideId::Field { hash: hash.to_owned(), field: field.clone() };
                found.push(Aside { what, place, held: shown(&held), id });
            }
        }
        Ok(())
    }

    async fn entries(&self, number: u16, found: &mut Vec<Aside>) -> Result<()> {
        let (stream, outbox) = (self.keys.unreadable(number), self.keys.outbox(number));
        let mut from = "-".to_owned();
        loop {
            let mut look = pipe();
            look.xrange_count(&stream, &from, "+", STEP);
            let (entries,): (Vec<outbox::Stored>,) = self.topology.send("repair", &look).await?;
            let Some((last, _)) = entries.last() else { return Ok(()) };
            from = format!("({last}");
            found.extend(entries.into_iter().map(|(id, fields)| {
                let held = shown(&fields.join(&b' '));
                let id = AsideId::Entry { stream: stream.clone(), id, outbox: outbox.clone() };
                Aside { what: Stored::Outbox, place: outbox.clone(), held, id }
            }));
        }
    }

    /// Puts a whole key back, if it is of the right type by now.
    async fn restore_key(&self, key: &str, sort: &KeyRule) -> Result<bool> {
        let aside = format!("{key}:unreadable");
        let mut look = pipe();
        look.cmd("TYPE").arg(&aside).exists(key);
        let (found, is_taken): (String, bool) = self.topology.send("repair", &look).await?;
        if found != sort.redis_type || is_taken {
            return Ok(false);
        }
        let mut put = pipe();
        put.rename(aside, key).ignore();
        self.topology.send::<()>("repair", &put).await?;
        Ok(true)
    }

    /// Puts a field of a hash, or a member of a sorted set, back.
    async fn restore_part(&self, key: &str, sort: &KeyRule, of_it: &[u8], held: &[u8]) -> Result<bool> {
        let mut put = pipe();
        match sort.what {
            Stored::Facts if std::str::from_utf8(held).ok().and_then(encoding::decode).is_some() => {
                put.cmd("HSETNX").arg(key).arg(of_it).arg(held);
            }
            Stored::Deadlines
                if std::str::from_utf8(of_it).is_ok_and(|name| name.parse::<Unit>().is_ok()) =>
            {
                put.cmd("ZADD").arg(key).arg("NX").arg(0).arg(of_it);
            }
            _ => return Ok(false),
        }
        let (put,): (bool,) = self.topology.send("repair", &put).await?;
        Ok(put)
    }
}

#[async_trait]
impl Repair for RedisRepair {
    async fn aside(&self) -> Result<Vec<Aside>> {
        let mut found = Vec::new();
        for hash in self.keys.all_unreadable() {
            self.fields(&hash, &mut found).await?;
        }
        for number in 0..self.keys.outboxes() {
            self.entries(number, &mut found).await?;
        }
        Ok(found)
    }

    async fn restore(&self, aside: &Aside) -> Result<bool> {
        let is_back = match &aside.id {
            AsideId::Row(_) => false,
            AsideId::Field { hash, field } => {
                let mut look = pipe();
                look.hget(hash, field);
                let (held,): (Option<Vec<u8>>,) = self.topology.send("repair", &look).await?;
                match (self.keys.sort(&parts(field).0), parts(field), held) {
                    (Some(sort), (key, Some(of_it)), Some(held)) => {
                        self.restore_part(&key, sort, of_it, &held).await?
                    }
                    (Some(sort), (key, None), Some(_)) => self.restore_key(&key, sort).await?,
                    _ => false,
                }
            }
            AsideId::Entry { stream, id, outbox } => {
                let mut look = pipe();
                look.xrange(stream, id, id);
                let (entries,): (Vec<outbox::Stored>,) = self.topology.send("repair", &look).await?;
                let readable = entries.first().filter(|(_, fields)| outbox::news(fields).is_ok());
                if let Some((_, fields)) = readable {
                    let mut put = pipe();
                    put.cmd("XADD").arg(outbox).arg("*").arg(fields).ignore();
                    self.topology.send::<()>("repair", &put).await?;
                }
                readable.is_some()
            }
        };
        if is_back {
            self.forget(aside).await?;
        }
        Ok(is_back)
    }

    async fn discard(&self, aside: &Aside) -> Result<()> {
        if let AsideId::Field { field, .. } = &aside.id
            && let (key, None) = parts(field)
        {
            let mut delete = pipe();
            delete.del(format!("{key}:unreadable")).ignore();
            self.topology.send::<()>("repair", &delete).await?;
        }
        self.forget(aside).await
    }
}

impl RedisRepair {
    async fn forget(&self, aside: &Aside) -> Result<()> {
        let mut forget = pipe();
        match &aside.id {
            AsideId::Row(_) => return Ok(()),
            AsideId::Field { hash, field } => forget.hdel(hash, field).ignore(),
            AsideId::Entry { stream, id, .. } => forget.xdel(stream, &[id]).ignore(),
        };
        self.topology.send("repair", &forget).await
    }
}

/// The key that something was put aside of and, where it was a part of it, which.
fn parts(field: &[u8]) -> (String, Option<&[u8]>) {
    match field.iter().position(|byte| *byte == b'\n') {
        Some(at) => (String::from_utf8_lossy(&field[..at]).into_owned(), Some(&field[at + 1..])),
        None => (String::from_utf8_lossy(field).into_owned(), None),
    }
}
