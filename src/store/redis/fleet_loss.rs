//! Detects that the server has lost its data: it was emptied while it ran, or started without data.
//!
//! The id of the fleet is stored beside `heard`, and an instance keeps both in memory. The step that records a canary
//! compares the ids: another id, or none, is a loss. The first instance that detects it writes the new id and the
//! event for the operators in one step. An instance keeps its values in memory until the server answers with new
//! ones, so a server without data does not erase them.

use std::time::Duration;

use redis::pipe;

use super::conditional::{ConditionalWrite, Expect, HashFields};
use super::hearing::EMPTIED_AT;
use super::meta::StoredFleet;
use super::reading::milliseconds;
use super::topology::Topology;
use super::{RedisEngine, meta, watermarks};
use crate::clock::Timestamp;
use crate::presence::{BlindInterval, Interval};
use crate::store::json::to_json;
use crate::store::{DataLoss, Result};

/// The last state of the fleet that an instance knows.
#[derive(Clone)]
pub(super) struct KnownFleet {
    pub id: String,
    /// Up to when Rollcall has heard.
    pub heard: Option<Timestamp>,
    /// The furthest `heard` that was stored since the last blind interval that this instance ended.
    pub furthest: Option<Timestamp>,
    /// When the fleet, or partitions of it, were last lost (ms).
    pub emptied_at: Option<i64>,
    /// Whether every partition has had its watermark.
    pub has_watermarks: bool,
}

impl KnownFleet {
    /// The state at the start of an instance. Writes the id beside `heard` if it is missing there: the fleet is new,
    /// or the server of `heard` lost its data while no instance ran. In the second case, Rollcall has heard up to the
    /// oldest watermark of the other servers, and partitions without a watermark are lost.
    pub async fn begin(
        topology: &Topology,
        StoredFleet { id, key, keys }: &StoredFleet,
    ) -> Result<KnownFleet> {
        let mut exists = pipe();
        exists.hexists(keys.heard(), "fleet");
        let (exists,): (bool,) = topology.send("meta", &exists).await?;
        let oldest = match topology.has_parts() && !exists {
            true => watermarks::read(topology, keys).await?.iter().flatten().map(|one| one.heard).min(),
            false => None,
        };
        let mut pipe = pipe();
        pipe.atomic();
        if let Some(oldest) = oldest {
            tracing::error!(
                heard = %oldest,
                "the server of hearing lost its data while no instance ran; Rollcall continues from the oldest time \
                 that \
                 the other servers have"
            );
            // Another instance may have written these fields meanwhile.
            pipe.hset_nx(keys.heard(), "at", oldest.as_millis()).ignore();
            pipe.hset_nx(keys.heard(), watermarks::HAS_WATERMARKS, 1).ignore();
        }
        pipe.hset_nx(keys.heard(), "fleet", id).ignore();
        pipe.hset_multiple(keys.heard(), &meta::copy(keys, key)).ignore();
        pipe.hmget(keys.heard(), &["fleet", "at", "emptied_at"]);
        type Text = Option<Vec<u8>>;
        let ((fleet, heard, emptied_at),): ((String, Text, Text),) = topology.send("meta", &pipe).await?;
        let heard = heard.as_deref().and_then(milliseconds).map(Timestamp::from_millis);
        let emptied_at = emptied_at.as_deref().and_then(milliseconds);
        Ok(KnownFleet { id: fleet, heard, furthest: heard, emptied_at, has_watermarks: false })
    }

    /// Notes that the server has stored `heard`, and a blind interval up to there if `ended_blindness`.
    pub fn has_stored(&mut self, heard: Timestamp, ended_blindness: bool) {
        self.furthest = if ended_blindness { Some(heard) } else { self.furthest.max(Some(heard)) };
    }
}

impl DataLoss {
    /// The interval of the loss in the ledger. Operators are also notified of the blindness if it was long.
    pub(super) fn blindness(&self, tell_after: Duration) -> BlindInterval {
        let is_notified = self.interval.length() > tell_after;
        BlindInterval { interval: self.interval, is_taken: false, is_notified }
    }
}

/// One step after a loss of the fleet.
struct Loss {
    /// The id of the new fleet.
    fleet: String,
    /// When the loss was first noticed.
    at: Timestamp,
    /// The blind interval, if this step writes the event for the operators.
    reported: Option<Interval>,
}

impl RedisEngine {
    /// Compares the fleet with the known fleet. Answers the blind interval, if this call reports a loss.
    pub(super) async fn notice_loss(&self, now: Timestamp, tell_after: Duration) -> Result<Option<Interval>> {
        let known = self.known_fleet.lock().clone();
        let decide = |read: &[&HashFields], _: bool, write: &mut ConditionalWrite<'_>| {
            self.loss_by(read[0], &known, (now, tell_after), write)
        };
        let keys = [self.keys.heard()];
        let (loss, ()) = self.write_if_unchanged("notice_loss", &keys, &pipe(), decide).await?;
        let Some(Loss { fleet, at, reported }) = loss else { return Ok(None) };
        tracing::error!(
            before = known.id,
            fleet,
            "the server lost the fleet: a unit is known again after its next heartbeat, a unit that stays silent is \
             not; compare with your registry"
        );
        // This instance, or another one, has written the loss.
        let emptied_at = Some(at.as_millis());
        *self.known_fleet.lock() =
            KnownFleet { id: fleet, heard: None, furthest: None, emptied_at, has_watermarks: false };
        self.topology.request_examination();
        meta::replace(&self.topology, &self.scripts, &self.keys, &self.key).await?;
        Ok(reported)
    }

    /// Decides from stored values whether the fleet was lost, and adds the writes. A loss is reported once for each
    /// new fleet, even if instances remembered different fleets: some may have missed a fleet in between.
    fn loss_by(
        &self,
        heard: &HashFields,
        known: &KnownFleet,
        (now, tell_after): (Timestamp, Duration),
        write: &mut ConditionalWrite<'_>,
    ) -> Option<Loss> {
        let names = [b"fleet".as_slice(), b"loss_told"];
        write.expect_some(heard, names.into_iter().map(|name| (name, Expect::Same)));
        let [fleet, loss_reported] = names.map(|name| heard.get(name));
        if fleet.is_some_and(|id| id == known.id.as_bytes()) {
            return None;
        }
        let key = self.keys.heard();
        let begins = fleet.is_none();
        let fleet = match fleet {
            Some(id) => String::from_utf8_lossy(id).into_owned(),
            None => meta::new_id(),
        };
        if begins {
            write.set(&key, b"fleet", fleet.as_bytes());
            for (name, text) in meta::copy(&self.keys, &self.key) {
                write.set(&key, name.as_bytes(), text.as_bytes());
            }
            write.remove(&key, b"loss_told");
            write.set(&key, EMPTIED_AT, now.as_millis().to_string().as_bytes());
        }
        let reported = known.heard.filter(|_| begins || loss_reported.is_none()).map(|from| {
            let interval = Interval { from, to: now.max(from + Duration::from_millis(1)) };
            let loss = DataLoss { interval, partitions: None };
            write.set(&key, b"loss_told", b"1");
            self.write_blind(write, &loss.blindness(tell_after), now);
            self.write_loss(write, &loss);
            interval
        });
        let at = heard.get(EMPTIED_AT).and_then(|ms| milliseconds(ms)).map_or(now, Timestamp::from_millis);
        Some(Loss { fleet, at, reported })
    }

    /// Adds the event for the operators.
    pub(super) fn write_loss(&self, write: &mut ConditionalWrite<'_>, loss: &DataLoss) {
        let json = to_json(loss).expect("times and numbers are always JSON");
        let outbox = self.keys.outbox(self.keys.partitions());
        write.write("XADD", &outbox, &[b"lost", json.as_bytes()]);
    }
}
