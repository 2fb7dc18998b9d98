//! How a server that lost its data is noticed.
//!
//! It was emptied while it ran, or started with nothing. Beside how far was heard stands the id of the fleet,
//! and an instance remembers both. In the step that writes that a canary has come the ids are compared: another one, or
//! none, is a loss, and the first instance that notices tells the operators, in the same step in which the new id
//! is written. What an instance remembers is not forgotten because the server has nothing to say any more: only a
//! server that answers with something replaces it.

use std::sync::MutexGuard;
use std::time::Duration;

use redis::pipe;

use super::conditional::{ConditionalWrite, Expect, Fields};
use super::keys::Keys;
use super::reading::milliseconds;
use super::topology::Topology;
use super::{RedisEngine, found_fleet};
use crate::clock::Timestamp;
use crate::presence::{BlindInterval, Interval};
use crate::store::Result;

/// What an instance knew last of the fleet.
#[derive(Clone)]
pub(super) struct KnownFleet {
    pub id: String,
    /// Up to when was heard.
    pub heard: Option<Timestamp>,
}

impl KnownFleet {
    /// As it is when an instance begins. A fleet that was there before ids stood beside how far was heard gets
    /// its own there.
    pub async fn begin(topology: &Topology, keys: &Keys, fleet: &str) -> Result<KnownFleet> {
        let mut pipe = pipe();
        pipe.atomic().hset_nx(keys.heard(), "fleet", fleet).ignore();
        pipe.hmget(keys.heard(), &["fleet", "at"]);
        let ((fleet, heard),): ((String, Option<Vec<u8>>),) = topology.send("meta", &pipe).await?;
        let heard = heard.as_deref().and_then(milliseconds).map(Timestamp::from_millis);
        Ok(KnownFleet { id: fleet, heard })
    }
}

/// What was found instead of the fleet that was known.
struct Loss {
    /// The id of the fleet that is there now.
    fleet: String,
    /// The blind interval, if the loss is told with this.
    told: Option<Interval>,
}

impl RedisEngine {
    /// Compares the fleet with the one that was known. Answers with the blind interval, if its loss is told with
    /// this.
    pub(super) async fn notice_loss(&self, now: Timestamp) -> Result<Option<Interval>> {
        let known = self.known_fleet().clone();
        let decide = |read: &[&Fields], _: bool, write: &mut ConditionalWrite<'_>| {
            self.loss_by(read[0], &known, now, write)
        };
        let keys = [self.keys.heard()];
        let (loss, ()) = self.write_if_unchanged("notice_loss", &keys, &pipe(), decide).await?;
        let Some(Loss { fleet, told }) = loss else { return Ok(None) };
        tracing::error!(
            before = known.id,
            fleet,
            "the server has lost the fleet that was there: units are known again when they are heard, those that \
             stay silent are not; compare with your registry"
        );
        // What was known is written, or another instance has written it.
        *self.known_fleet() = KnownFleet { id: fleet, heard: None };
        found_fleet(&self.topology, &self.keys, Some(&self.key)).await?;
        Ok(told)
    }

    /// Decides by what is stored whether the fleet was lost, and writes what follows. A loss is told once for each
    /// fleet that begins, whichever one an instance knew: some may have missed the one in between.
    fn loss_by(
        &self,
        heard: &Fields,
        known: &KnownFleet,
        now: Timestamp,
        write: &mut ConditionalWrite<'_>,
    ) -> Option<Loss> {
        let names = [b"fleet".as_slice(), b"loss_told"];
        write.expect_some(heard, names.into_iter().map(|name| (name, Expect::Same)));
        let [fleet, loss_told] = names.map(|name| heard.get(name));
        if fleet.is_some_and(|id| id == known.id.as_bytes()) {
            return None;
        }
        let key = self.keys.heard();
        let begins = fleet.is_none();
        let fleet = match fleet {
            Some(id) => String::from_utf8_lossy(id).into_owned(),
            None => format!("{:016x}", rand::random::<u64>()),
        };
        if begins {
            write.set(&key, b"fleet", fleet.as_bytes());
            write.remove(&key, b"loss_told");
        }
        let told = known.heard.filter(|_| begins || loss_told.is_none()).map(|from| {
            let interval = Interval { from, to: now.max(from + Duration::from_millis(1)) };
            write.set(&key, b"loss_told", b"1");
            let blind = BlindInterval { interval, is_taken: false, is_told: true };
            self.write_blind(write, &blind, now);
            interval
        });
        Some(Loss { fleet, told })
    }

    pub(super) fn known_fleet(&self) -> MutexGuard<'_, KnownFleet> {
        self.known_fleet.lock().expect("nothing panics under this lock")
    }
}
